"""One training: to the best checkpoint. One seed: train, calibrate, save."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerState, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback

from bertkit.engine.arguments import Arguments
from bertkit.engine.callbacks import MetricsLog, Profile, Progress, Record, Shutdown
from bertkit.engine.checkpoint import step_of
from bertkit.engine.clock import Clock
from bertkit.engine.resume import latest_intact, require_resumable
from bertkit.engine.sharding import sharded_map
from bertkit.engine.trainer import Trainer, out_of_memory
from bertkit.engine.training_data import TaskData
from bertkit.errors import ModelError, Problem, RecipeError
from bertkit.files import read_json, write_json
from bertkit.inference.runner import Runner
from bertkit.methods.table import METHODS
from bertkit.models.device import resolve_precision
from bertkit.models.encoder import save_tokenizer
from bertkit.models.trained_parts import merged, save_adapter
from bertkit.run import Run
from bertkit.sections import EarlyStopping
from bertkit.tasks.base import Task, calibrate, evaluate
from bertkit.training.preflight import Job, arguments, build, scored_splits

logger = logging.getLogger(__name__)

MEMORY_ADVICE = (
    "auto_find_batch_size: true takes the same steps in smaller parts; task.mini_batch does so for tasks with vectors. "
    "Or lower per_device_train_batch_size and raise gradient_accumulation_steps as much; or lower model.max_length."
)


class Fitted(NamedTuple):
    """The best checkpoint of a training. settings: what a predictor needs besides the task."""

    runner: Runner
    headline: str
    settings: dict[str, Any]
    facts: dict[str, Any]  # `steps`, `seconds` and `best_step`


def train_seed(job: Job, seed: int, run: Run, record: Record, profile: Profile | None) -> dict[str, Any]:
    """Train one seed to its best checkpoint, calibrate and save it; returns the content of its done.json."""
    recipe, folder = job.recipe, run.checkpoints / f"seed-{seed}"
    done = folder / "done.json"
    if done.is_file() and ((folder / "model").is_dir() or run.model.is_dir()):
        return dict(read_json(done))
    title = f"seed {seed}" if len(recipe.seeds) > 1 else "training"
    fitted = fit(job, seed, folder, title, run.folder / "metrics.jsonl", record, profile)
    if fitted is None:
        return {}
    scores = merge_and_calibrate(job, fitted.runner, folder, fitted.settings)
    headline = scores.get("validation", {}).get(fitted.headline)
    outcome = {"seed": seed, "headline": headline, "metrics": scores, **fitted.facts}
    write_json(done, outcome)
    return outcome


def fit(
    job: Job,
    seed: int,
    folder: Path,
    title: str,
    log: Path,
    record: Record,
    profile: Profile | None = None,
) -> Fitted | None:
    """Train a model on the job's features, in `folder`, a folder of RUN/checkpoints; None in other processes than the
    first.

    title: of its progress. log: where its metrics are logged. record: of the run. Raises UserError.
    """
    recipe = job.recipe
    args = arguments(recipe, job.task, job.data, folder, seed)
    runner = untrained(job, args)
    headline = str(args.metric_for_best_model or job.task.metrics[0])
    settings = settings_of(job, args)
    if method := job.task.method:
        if not args.should_save:
            return None
        record.write()  # no trainer calls it
        fit_model = METHODS[method]
        model, facts = fit_model(replace(runner, model=runner.model.to(args.device)), job.features, seed)
        return Fitted(replace(runner, model=model), headline, settings, facts)
    clock = Clock(args.seconds)
    built_in = usual_callbacks(recipe.early_stopping, title, headline, log, seed, clock)
    trainer = make_trainer(job, runner, args, [*built_in, record, *job.callbacks], clock, profile)
    seconds = run_trainer(trainer, folder)
    model = trainer.gathered_model(partial(build, recipe, job.encoder, job.task))
    trainer.accelerator.wait_for_everyone()  # all have read the best checkpoint, which may be deleted from here on
    if not args.should_save:
        return None
    return Fitted(replace(runner, model=model), headline, settings, facts_of(trainer.state, seconds))


def settings_of(job: Job, args: Arguments) -> dict[str, Any]:
    """What a predictor needs besides the task."""
    batching = job.recipe.batching
    return {
        "version": version("bertkit"),
        "precision": _precision(job),
        "batch_size": batching.model_dump() if batching else args.per_device_eval_batch_size,
        "columns": dict(job.recipe.data.columns),
    }


def facts_of(state: TrainerState, seconds: float) -> dict[str, Any]:
    """`Fitted.facts` of a training."""
    return {"steps": state.global_step, "seconds": seconds, "best_step": state.best_global_step}


def usual_callbacks(
    stop: EarlyStopping | None, title: str, headline: str, log: Path, seed: int, clock: Clock
) -> list[TrainerCallback]:
    """Progress, metrics.jsonl, and early stopping where it is asked for."""
    callbacks: list[TrainerCallback] = [Progress(title, headline, clock), MetricsLog(log, seed)]
    return [*callbacks, EarlyStoppingCallback(stop.patience, stop.threshold)] if stop else callbacks


def untrained(job: Job, args: Arguments) -> Runner:
    """A model with a new head, not yet on its device, determined by the seed."""
    set_seed(args.seed)
    return runner_of(job, args)


def runner_of(job: Job, args: Arguments) -> Runner:
    """The same, determined by torch's random state."""
    model = build(job.recipe, job.encoder, job.task)
    batch_size = job.recipe.batching or args.per_device_eval_batch_size
    return Runner(job.task, model, args.device, resolve_precision(_precision(job), args.device), batch_size)


def _precision(job: Job) -> Any:
    """Of predictions, as asked for."""
    return "fp32" if job.recipe.training.get("bf16") is False else "auto"


def make_trainer(
    job: Job,
    runner: Runner,
    args: Arguments,
    callbacks: Sequence[TrainerCallback],
    clock: Clock,
    profile: Profile | None,
) -> Trainer:
    """The trainer of one seed's model. Raises RecipeError where transformers refuses the arguments."""
    data, features = job.data, job.features
    for each in job.attachments:
        features = each.features(features, args)
    divided = args.world_size > 1 and not args.fsdp  # which runs each forward pass in all processes
    own = TaskData(
        replace(runner, mapper=sharded_map) if divided else runner,
        features,
        data.rows.get("validation"),
        job.metrics,
        job.recipe.batching.tokens if job.recipe.batching else None,
        data.origins["train"].__getitem__,
    )
    try:
        return Trainer(own, args, callbacks=callbacks, attachments=job.attachments, clock=clock, profile=profile)
    except (ImportError, RuntimeError, ValueError) as error:  # such as report_to: a library that is not installed
        raise RecipeError(Problem("training", str(error).strip())) from error


def run_trainer(trainer: Trainer, folder: Path) -> float:
    """Train from the latest intact checkpoint in `folder`, if any; returns the seconds it took, with those up to the
    checkpoint. Raises UserError.
    """
    for each in trainer.callback_handler.callbacks:
        if isinstance(each, TensorBoardCallback) and each.logging_dir is None:  # else TENSORBOARD_LOGGING_DIR is set
            each.logging_dir = str(folder.parent.parent / "logs" / folder.name)
    start, damaged = latest_intact(folder)
    for bad in damaged:
        logger.warning("%s is damaged and is skipped", bad)
    if start:
        require_resumable(start, trainer)
    shutdown = Shutdown()
    trainer.add_callback(shutdown)
    try:
        with shutdown:
            trainer.train(resume_from_checkpoint=str(start) if start else None)
        if shutdown.signal:  # after the last step
            shutdown.exit(trainer.state)
    except (ImportError, ValueError) as error:
        if trainer.state.global_step > (step_of(start) if start else 0):  # a step of its own
            raise
        raise RecipeError(Problem("training", str(error).strip())) from error
    except SafetensorError as error:
        raise _not_written(folder, error) from error
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        where = f"step {trainer.state.global_step + 1}"
        raise RecipeError(Problem("training", f"{where}: {error}", MEMORY_ADVICE)) from error
    return trainer.clock.elapsed


def _not_written(folder: Path, error: SafetensorError) -> ModelError:
    return ModelError(
        Problem(
            str(folder),
            f"cannot be written: {error}",
            "Free some space; a resumed run continues from its last checkpoint.",
        )
    )


def merge_and_calibrate(
    job: Job, runner: Runner, folder: Path, settings: dict[str, Any]
) -> dict[str, dict[str, float | None]]:
    """Merge LoRA into the model, calibrate it, save it in `folder`; returns its scores by split.

    Nothing for a single seed: no choice depends on them, and `finish` scores the saved model.
    """
    recipe, task, data = job.recipe, runner.task, job.data
    if recipe.peft:
        save_adapter(runner.model, folder / "adapter", job.encoder)
        runner = replace(runner, model=merged(runner.model))
    if "validation" in data.rows:
        task = calibrate(task, data.rows["validation"], runner)
    save(runner.model, task, folder / "model", settings)
    if len(recipe.seeds) == 1:
        return {}
    return {split: evaluate(task, data.rows[split], runner, metrics=job.metrics) for split in scored_splits(data)}


def save(model: Any, task: Task, folder: Path, settings: dict[str, Any]) -> None:
    """Write a model folder that transformers loads by itself, with bertkit's own settings in its config.json."""
    aside = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    extra = task.extra_modules(model)
    model.config.bertkit = {
        **settings,
        "max_length": task.max_length,
        "task": task.options.model_dump(mode="json"),
        "beside": {name: f"{name}.safetensors" for name in extra},
    }
    parts = {name for name, module in model.named_children() if any(module is other for other in extra.values())}
    state = {k: v for k, v in model.state_dict().items() if k.partition(".")[0] not in parts}
    state |= task.extra_tensors(model)
    try:
        model.save_pretrained(aside, state_dict=state)
        for name, value in task.extra_files(model).items():
            write_json(aside / name, value)
        for name, module in extra.items():
            (aside / name).parent.mkdir(exist_ok=True)
            save_file(module.state_dict(), aside / f"{name}.safetensors")
    except SafetensorError as error:
        raise _not_written(aside, error) from error
    backend: Any = task.tokenizer
    backend.backend_tokenizer.no_truncation()  # limits of the last call, which are not the tokenizer's own
    backend.backend_tokenizer.no_padding()
    save_tokenizer(task.tokenizer, aside)
    shutil.rmtree(folder, ignore_errors=True)
    aside.replace(folder)
