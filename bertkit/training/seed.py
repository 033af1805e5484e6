"""One seed: train to the best checkpoint, calibrate, save."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import EarlyStoppingCallback, TrainingArguments, set_seed

from bertkit.encoding.padding import Tokens
from bertkit.errors import ModelError, Problem, RecipeError
from bertkit.files import read_json, write_json
from bertkit.inference.runner import Runner
from bertkit.models.device import resolve_precision
from bertkit.models.encoder import Encoder
from bertkit.run import Run
from bertkit.tasks.base import evaluate
from bertkit.training.checkpoint import latest_intact
from bertkit.training.distillation import Distiller, Teacher, is_online, with_soft_targets
from bertkit.training.memory import out_of_memory
from bertkit.training.preflight import arguments, build, chooses, scored_splits
from bertkit.training.profile import Profile
from bertkit.training.progress import MetricsLog, Progress
from bertkit.training.sharding import sharded_map
from bertkit.training.stopping import Stop
from bertkit.training.trainer import TaskTrainer

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from bertkit.data import Data
    from bertkit.recipe.recipe import Recipe
    from bertkit.tasks.base import Task


logger = logging.getLogger(__name__)


MORE_ROOM = (
    "auto_find_batch_size: true takes the same steps in smaller parts; task.mini_batch does so for tasks with vectors. "
    "Or lower per_device_train_batch_size and raise gradient_accumulation_steps as much; or lower model.max_length."
)


def train_seed(
    recipe: Recipe,
    seed: int,
    run: Run,
    encoder: Encoder,
    task: Task,
    data: Data,
    features: Any,
    teacher: Teacher | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    profile: Profile | None = None,
) -> dict[str, Any]:
    """Train one seed to its best checkpoint, calibrate it, save it whole; returns what done.json says of it."""
    folder = run.checkpoints / f"seed-{seed}"
    done = folder / "done.json"
    if done.is_file() and ((folder / "model").is_dir() or run.model.is_dir()):
        return dict(read_json(done))
    set_seed(seed)
    fresh = build(recipe, encoder, task)
    args = arguments(recipe, task, folder, seed, evaluates=chooses(recipe, data))
    distiller, features = learning_from(teacher, recipe, task, fresh, features, args)
    settings = model_settings(recipe, args)
    rows = Tokens(recipe.batching.tokens) if recipe.batching else args.per_device_eval_batch_size
    precision = resolve_precision(settings["precision"], args.device)
    runner = Runner(task, fresh, args.device, precision, rows)
    divided = args.world_size > 1 and not (args.fsdp or args.deepspeed)  # their forward passes are of all processes
    headline = str(args.metric_for_best_model or task.metrics[0])
    try:
        trainer = TaskTrainer(
            runner=replace(runner, mapper=sharded_map) if divided else runner,
            args=args,
            features=features,
            validation=data.rows.get("validation"),
            callbacks=[*own_callbacks(recipe, run, seed, headline), *callbacks],
            distiller=distiller,
            tokens=recipe.batching.tokens if recipe.batching else None,
            divide=bool(recipe.training.get("auto_find_batch_size")),
            profile=profile,
            place=data.origins["train"].__getitem__,
        )
    except (ImportError, RuntimeError, ValueError) as error:  # such as report_to: something that is not installed
        raise RecipeError(Problem("training", str(error).strip())) from error
    seconds = learn(trainer, folder)
    model = trainer.whole(partial(build, recipe, encoder, task))
    if not args.should_save:
        return {}
    scores = settle(recipe, replace(runner, model=model), data, folder, settings)
    outcome = {
        "seed": seed,
        "headline": scores.get("validation", {}).get(headline),
        "metrics": scores,
        "steps": trainer.state.global_step,
        "seconds": seconds,
        "best_step": trainer.state.best_global_step,
    }
    write_json(done, outcome)
    return outcome


def learning_from(
    teacher: Teacher | None, recipe: Recipe, task: Task, model: Any, features: Any, args: TrainingArguments
) -> tuple[Distiller | None, Any]:
    """The student's loss, where there is a teacher, and the features with what the teacher says of them."""
    if recipe.distillation is None or teacher is None:
        return None, features
    base = model.get_base_model().base_model if recipe.peft else model.base_model
    distiller = Distiller(recipe.distillation, teacher, task, base)
    if not is_online(recipe.distillation, task):
        with args.main_process_first():  # the others find what it has kept
            features = with_soft_targets(features, teacher)
    return distiller, features


def own_callbacks(recipe: Recipe, run: Run, seed: int, headline: str) -> list[TrainerCallback]:
    """What is shown and written while a seed is trained, and what stops it."""
    title = f"seed {seed}" if len(recipe.seeds) > 1 else "training"
    shown: list[TrainerCallback] = [Progress(title, headline), MetricsLog(run.folder / "metrics.jsonl", seed)]
    stop = recipe.early_stopping
    return [*shown, EarlyStoppingCallback(stop.patience, stop.threshold)] if stop else shown


def learn(trainer: TaskTrainer, folder: Path) -> float:
    """Train, from the newest whole checkpoint in `folder` if there is one; the seconds it took. Raises UserError."""
    start, damaged = latest_intact(folder)
    if damaged and trainer.is_fsdp_enabled:
        what = "training with FSDP can not go on from a checkpoint"
        raise ModelError(Problem(str(damaged[0]), what, "Train again, into another --output-dir."))
    for bad in damaged:
        logger.warning("%s is damaged and is left out", bad)
    started = time.monotonic()
    stop = Stop()
    trainer.add_callback(stop)
    try:
        with stop:
            trainer.train(resume_from_checkpoint=str(start) if start else None)
        if stop.heard:  # after the last step
            stop.obey(trainer.state)
    except (ImportError, ValueError) as error:
        if trainer.state.global_step:
            raise
        raise RecipeError(Problem("training", str(error).strip())) from error
    except SafetensorError as error:
        what, fix = f"a checkpoint can not be written: {error}", "Free some space, then go on with --resume."
        raise ModelError(Problem(str(folder), what, fix)) from error
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise RecipeError(Problem("training", f"step {trainer.state.global_step + 1}: {error}", MORE_ROOM)) from error
    return time.monotonic() - started


def settle(
    recipe: Recipe, runner: Runner, data: Data, folder: Path, settings: dict[str, Any]
) -> dict[str, dict[str, float | None]]:
    """Merge LoRA into the model, calibrate it, save it in `folder`; returns its scores by split.

    None of an only seed: nothing is chosen by them, and `finish` scores what was saved.
    """
    task, model = runner.task, runner.model
    if recipe.peft:
        model.save_pretrained(folder / "adapter")
        model = model.merge_and_unload()
    predict = replace(runner, model=model)
    if "validation" in data.rows:
        task = task.fit(data.rows["validation"], predict)
    save(model, task, folder / "model", settings)
    if len(recipe.seeds) == 1:
        return {}
    return {split: evaluate(task, data.rows[split], predict) for split in scored_splits(data)}


def model_settings(recipe: Recipe, args: TrainingArguments) -> dict[str, Any]:
    """What the predictor has to know beside the task; it goes into the model's config.json."""

    return {
        "version": version("bertkit"),
        "precision": "fp32" if recipe.training.get("bf16") is False else "auto",
        "batch_size": recipe.batching.model_dump() if recipe.batching else args.per_device_eval_batch_size,
        "columns": dict(recipe.data.columns),
    }


def save(model: Any, task: Task, folder: Path, settings: dict[str, Any]) -> None:
    """A model folder that transformers loads by itself, and that bertkit reads its own settings from."""
    aside = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    beside = task.extra_modules(model)
    model.config.bertkit = {
        **settings,
        "max_length": task.max_length,
        "task": task.options.model_dump(mode="json"),
        "beside": {name: f"{name}.safetensors" for name in beside},
    }
    parts = {name for name, module in model.named_children() if any(module is other for other in beside.values())}
    known = {k: v for k, v in model.state_dict().items() if k.partition(".")[0] not in parts}
    try:
        model.save_pretrained(aside, state_dict=known)
        for name, value in task.extra_files(model).items():
            write_json(aside / name, value)
        for name, module in beside.items():
            (aside / name).parent.mkdir(exist_ok=True)
            save_file(module.state_dict(), aside / f"{name}.safetensors")
    except SafetensorError as error:
        raise ModelError(
            Problem(str(aside), f"can not be written: {error}", "Free some space, then --resume.")
        ) from error
    backend: Any = task.tokenizer
    backend.backend_tokenizer.no_truncation()  # the limits of our last call are not the tokenizer's own
    backend.backend_tokenizer.no_padding()
    task.tokenizer.save_pretrained(aside)
    shutil.rmtree(folder, ignore_errors=True)
    aside.replace(folder)
