"""One training: to the best checkpoint. One seed: train, calibrate, save."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import EarlyStoppingCallback, TrainerCallback, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback

from bertkit.engine.arguments import Arguments
from bertkit.engine.callbacks import MetadataWriter, MetricsLog, Progress, Shutdown
from bertkit.engine.checkpoint import step_of
from bertkit.engine.clock import Clock
from bertkit.engine.resume import latest_intact, require_resumable
from bertkit.engine.sharding import sharded_map
from bertkit.engine.trainer import Trainer, out_of_memory
from bertkit.engine.training_data import MixedData, TaskData, TrainingData
from bertkit.errors import ModelError, RecipeError, translated
from bertkit.evaluation.intervals import Scores
from bertkit.files import read_json, write_json, write_text
from bertkit.inference.runner import Runner
from bertkit.methods import contrastive, head
from bertkit.models.device import resolve_precision
from bertkit.models.encoder import name_for_older_versions, save_tokenizer
from bertkit.models.trained_parts import merged, save_adapter
from bertkit.recipe.recipe import Recipe
from bertkit.run import Run
from bertkit.tasks import package_of
from bertkit.tasks.base import Task, calibrate, evaluate
from bertkit.text import Json
from bertkit.training.job import OF_LIBRARY, Job, Jobs, build, scored_splits
from bertkit.training.metadata import MARK, trained_with

logger = logging.getLogger(__name__)

DONE = "done.json"  # in the folder of a seed or fold: what became of its training
METHODS = {"head": head.fit, "contrastive": contrastive.fit}  # by `Task.method`
MEMORY_ADVICE = (
    "Set training: {auto_find_batch_size: true}, which takes the same steps in smaller parts (not in "
    "retrieval and sentence-similarity), or {activation_checkpointing: true}, which needs less memory; "
    "neither works for several tasks. Or lower per_device_train_batch_size (with `batching`, "
    "batching.tokens) and raise gradient_accumulation_steps as much; or lower model.max_length. In an "
    "evaluation, lower per_device_eval_batch_size."
)


class TrainedModel(NamedTuple):
    """The best checkpoint of a training."""

    runner: Runner
    facts: Json  # `steps`, `seconds`, `best_step`, and `undecided`, as in CheckpointTrainer


def is_trained(run: Run, folder: Path) -> bool:
    """Whether a seed's training has ended, and its model is there: in the seed's folder, or published."""
    return (folder / DONE).is_file() and any(model.is_dir() for model in (folder / "model", run.model))


def train_seed(jobs: Jobs, seed: int, run: Run, metadata: MetadataWriter) -> dict[str, Json]:
    """Train one seed to its best checkpoint, calibrate and save each task's model; returns each one's
    done.json.
    """
    parts = jobs.runs(run)
    folders = {name: part.checkpoints / f"seed-{seed}" for name, part in parts.items()}
    if all(is_trained(part, folders[name]) for name, part in parts.items()):
        done = {name: dict(read_json(folder / DONE)) for name, folder in folders.items()}
        # an only seed is not scored here
        if len(jobs.recipe.seeds) == 1 or all(outcome["metrics"] for outcome in done.values()):
            return done
    title = f"seed {seed}" if len(jobs.recipe.seeds) > 1 else "training"
    models = fit(jobs, seed, run.checkpoints / f"seed-{seed}", title, run.folder / "metrics.jsonl", metadata)
    outcomes = {}
    for name, trained in models.items():
        job = jobs.by_task[name]
        scores = merge_and_calibrate(job, trained.runner, folders[name])
        headline = scores.get("validation", {}).get(job.headline)
        outcomes[name] = {"seed": seed, "headline": headline, "metrics": scores, **trained.facts}
    for name, outcome in outcomes.items():
        write_json(folders[name] / DONE, outcome)
    return outcomes


def fit(
    jobs: Jobs, seed: int, folder: Path, title: str, log: Path, metadata: MetadataWriter
) -> dict[str, TrainedModel]:
    """Train the models of the jobs in `folder`, a folder of RUN/checkpoints; empty on other ranks than the
    first.

    title: of its progress. log: where its metrics are logged. Raises UserError.
    """
    args = jobs.arguments(folder, seed)
    runners = new_runners(jobs, args)
    if args.should_save:
        shared = next(iter(runners.values()))  # an encoder
        kernels = shared.model.config._attn_implementation
        logger.info("%s: %s attention, %s on %s", title, kernels, shared.precision, args.device)

    def begin() -> None:
        """Write what the run is trained with, and in the training's own folder which recipe it belongs to."""
        metadata.write()
        write_text(folder / MARK, trained_with(jobs.recipe))

    start = MetadataWriter(begin)
    if method := jobs.first.task.method:
        if not args.should_save:
            return {}
        start.write()  # no trainer calls it
        [(name, runner)] = runners.items()
        untrained = replace(runner, model=runner.model.to(args.device))
        try:
            model, facts = METHODS[method](untrained, jobs.only.features, args.seed)
        except RuntimeError as error:
            raise_if_memory_ran_out(error, "task.method", method, "Lower model.max_length.")
            raise
        return {name: TrainedModel(replace(runner, model=model), facts)}
    clock = Clock(args.seconds)
    stop = jobs.recipe.early_stopping
    headline = str(args.metric_for_best_model or jobs.first.headline)
    callbacks = [Progress(title, headline, clock), MetricsLog(log, seed), start]
    if stop:
        callbacks.append(EarlyStoppingCallback(stop.patience, stop.threshold))
    trainer = make_trainer(jobs, runners, args, [*callbacks, *jobs.first.extensions.callbacks], clock)
    seconds = run_trainer(trainer, folder)
    # all have read the best checkpoint, which may be deleted from here on
    trainer.accelerator.wait_for_everyone()
    if not args.should_save:
        return {}
    facts = {
        "steps": trainer.state.global_step,
        "seconds": seconds,
        "best_step": trainer.state.best_global_step if args.load_best_model_at_end else None,
        "undecided": trainer.undecided,
    }
    models = trainer.data.models(trainer.model)
    return {name: TrainedModel(replace(runners[name], model=model), facts) for name, model in models.items()}


def new_runners(jobs: Jobs, args: Arguments) -> dict[str, Runner]:
    """Each task's model with a new head, not yet on its device, determined by the seed."""
    set_seed(args.seed)
    runners = {}
    for name, job in jobs.by_task.items():
        model = build(job)
        precision = resolve_precision(job.precision, args.device)
        batch_size = job.recipe.batching or args.per_device_eval_batch_size
        runners[name] = Runner(job.task, model, args.device, precision, batch_size)
    return runners


def make_trainer(
    jobs: Jobs,
    runners: Mapping[str, Runner],
    args: Arguments,
    callbacks: Sequence[TrainerCallback],
    clock: Clock,
) -> Trainer:
    """The trainer of one seed. Raises RecipeError where transformers refuses the arguments."""
    data = training_data(jobs, runners, args)
    try:
        return Trainer(data, args, callbacks=callbacks, attachments=jobs.first.attachments, clock=clock)
    except (
        ImportError,
        RuntimeError,
        ValueError,
    ) as error:  # such as report_to: a library that is not installed
        if isinstance(error, RuntimeError):
            fix = "Free memory of the device, which other programs may use, or use a smaller encoder."
            raise_if_memory_ran_out(error, "training", "loading the model", fix)
        raise RecipeError("training", str(error).strip(), OF_LIBRARY) from error


def training_data(jobs: Jobs, runners: Mapping[str, Runner], args: Arguments) -> TrainingData:
    """What the trainer asks of the tasks. runners: of each task, with its own model."""
    recipe = jobs.recipe
    parts = dict[str, TaskData]()
    for name, job in jobs.by_task.items():
        features = job.features
        for attachment in job.attachments:
            features = attachment.extend_features(features, args)
        parts[name] = TaskData(
            replace(runners[name], mapper=sharded_map) if args.world_size > 1 else runners[name],
            features,
            job.data.rows.get("validation"),
            job.extensions.metrics,
            recipe.batching.tokens if recipe.batching else None,
            job.data.origins["train"].__getitem__,
        )
    if isinstance(recipe, Recipe):
        return parts[""]
    headlines = {name: job.headline for name, job in jobs.by_task.items()}
    return MixedData(parts, jobs.weights, headlines, recipe.mixing, recipe.peft is not None)


def run_trainer(trainer: Trainer, folder: Path) -> float:
    """Train from the latest intact checkpoint in `folder`, if any; returns the seconds it took, with those up
    to the checkpoint. Raises UserError.
    """
    for callback in trainer.callback_handler.callbacks:
        # else TENSORBOARD_LOGGING_DIR is set
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder.parent.parent / "logs" / folder.name)
    start, damaged = latest_intact(folder)
    for bad in damaged:
        logger.warning("%s is damaged and is skipped", bad)
    if start:
        require_resumable(start, trainer)
    shutdown = Shutdown()
    trainer.add_callback(shutdown)
    try:
        with shutdown, written_to(folder):
            trainer.train(resume_from_checkpoint=str(start) if start else None)
        if shutdown.signal:  # after the last step
            shutdown.exit(trainer.state)
    except (ImportError, ValueError) as error:
        if trainer.state.global_step > (step_of(start) if start else 0):  # a step of its own
            raise
        raise RecipeError("training", str(error).strip(), OF_LIBRARY) from error
    except RuntimeError as error:
        raise_if_memory_ran_out(error, "training", f"step {trainer.state.global_step + 1}", MEMORY_ADVICE)
        raise
    return trainer.clock.elapsed


def raise_if_memory_ran_out(error: RuntimeError, key: str, where: str, advice: str) -> None:
    """Raise RecipeError if the error is that memory ran out."""
    if out_of_memory(error):
        raise RecipeError(key, f"{where}: {error}", advice) from error


def written_to(folder: Path) -> AbstractContextManager[None]:
    """Within the block, weights that cannot be written there are a ModelError."""
    fix = "Free some space, and resume the run: it continues from its last checkpoint."
    return translated(SafetensorError, ModelError, folder, "cannot be written", fix)


def merge_and_calibrate(job: Job, runner: Runner, folder: Path) -> dict[str, Scores]:
    """Merge LoRA into the model, calibrate it, save it in `folder`; returns its scores by split.

    Nothing for a single seed: no choice depends on them, and `finish` scores the saved model.
    """
    recipe = job.recipe
    data = job.data
    task = runner.task.finished(runner.model.get_base_model() if recipe.peft else runner.model)
    if recipe.peft:
        if not (recipe.distillation and recipe.distillation.student):  # no base has these layers
            with written_to(folder):
                save_adapter(runner.model, folder / "adapter", job.encoder)
        runner = replace(runner, model=merged(runner.model))
    if "validation" in data.rows:
        task = calibrate(task, data.rows["validation"], runner)
    size = runner.batch_size
    settings = {  # what a predictor needs besides the task
        "version": version("bertkit"),
        "precision": job.precision,
        "batch_size": size if isinstance(size, int) else size.model_dump(),
        "columns": dict(recipe.data.columns),
    }
    save(runner.model, task, folder / "model", settings)
    if len(recipe.seeds) == 1:
        return {}
    return {
        split: evaluate(task, data.rows[split], runner, metrics=job.extensions.metrics)
        for split in scored_splits(data)
    }


def save(model: Any, task: Task, folder: Path, settings: Json) -> None:
    """Write a model folder that transformers loads by itself, with bertkit's own settings in its
    config.json.
    """
    aside = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    extra = task.extra_modules(model)
    model.config.bertkit = {
        **settings,
        "package": package_of(task.name),
        "max_length": task.max_length,
        "task": task.options.model_dump(mode="json"),
        "extra_weights": {name: f"{name}.safetensors" for name in extra},
    }
    parts = {name for name, module in model.named_children() if module in extra.values()}
    state = {k: v for k, v in model.state_dict().items() if k.partition(".")[0] not in parts}
    state |= task.extra_tensors(model)
    with written_to(aside):
        name_for_older_versions(model.config)
        model.save_pretrained(aside, state_dict=state)
        for name, value in task.extra_files(model).items():
            write_json(aside / name, value)
        for name, module in extra.items():
            (aside / name).parent.mkdir(exist_ok=True)
            save_file(module.state_dict(), aside / f"{name}.safetensors")
    backend = task.tokenizer.backend_tokenizer
    backend.no_truncation()  # limits of the last call, which are not the tokenizer's own
    backend.no_padding()
    save_tokenizer(task.tokenizer, aside, model.config)
    shutil.rmtree(folder, ignore_errors=True)
    aside.replace(folder)
