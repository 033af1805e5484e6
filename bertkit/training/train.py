"""The program: one recipe and some data in, one run folder out. Read it from top to bottom."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import EarlyStoppingCallback, TrainingArguments, set_seed

from bertkit import data as sources
from bertkit import processes
from bertkit.encoder import Encoder, find, freeze, load_tokenizer, quiet, with_lora
from bertkit.errors import DataError, ModelError, Problem, RecipeError, RowsError, UserError
from bertkit.evaluation.evaluate import score
from bertkit.files import read_json, write_json, write_text, written_aside
from bertkit.inference import best_device, best_precision, load, longest, predictor, usable
from bertkit.padding import Tokens
from bertkit.recipe import dump
from bertkit.run import ANYWAY, Run, environment, only_writer, open_run, versions
from bertkit.tasks import get_task
from bertkit.training.bargain import bargain
from bertkit.training.checkpoint import newest_whole
from bertkit.training.distillation import (
    Distiller,
    Teacher,
    check_sizes,
    find_teacher,
    keep_layers,
    runs_along,
    taught,
)
from bertkit.training.memory import out_of_memory
from bertkit.training.profile import Profile, profile_lines
from bertkit.training.progress import MetricsLog, Progress
from bertkit.training.sharding import spread
from bertkit.training.stopping import Stop
from bertkit.training.trainer import TaskTrainer

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import TrainerCallback

    from bertkit.data import Data
    from bertkit.inference import Predictor
    from bertkit.recipe import Hub, Recipe
    from bertkit.tasks.base import Finding, Predict, Task

logger = logging.getLogger(__name__)

MORE_ROOM = (
    "auto_find_batch_size: true takes the same steps in smaller parts; task.mini_batch does so for tasks with vectors. "
    "Or lower per_device_train_batch_size and raise gradient_accumulation_steps as much; or lower model.max_length."
)


def train(
    recipe: Recipe,
    output_dir: str | Path,
    resume: bool = False,
    *,
    metrics: Sequence[Any] = (),
    callbacks: Sequence[TrainerCallback] = (),
    profile: bool = False,
    changed: bool = False,
) -> Run:
    """Train, choose, calibrate, save, reload, score: everything a run folder holds.

    resume: go on with an interrupted run of the same recipe, data and libraries, from its newest whole checkpoint.
    changed: go on although they are not the same.
    metrics: your own `evaluate.Metric` objects, scored at the end beside the task's own.
    callbacks: of transformers, beside bertkit's own; what they raise ends the run, which can be resumed.
    profile: write profile.json, which says where the time of the training steps of this process went.
    Raises RecipeError, DataError or ModelError before anything is trained, and leaves nothing half-written.
    """
    started = time.monotonic()
    check_hub(recipe)
    first = processes.first()  # under torchrun, one process writes
    run = open_run(recipe, Path(output_dir), resume, changed) if first else Run(Path(output_dir))
    if resume and run.finished:
        logger.info("%s is finished; there is nothing to resume", run.folder)
        return run
    with nullcontext() if first else quiet("bertkit"):  # said once, not by every process
        encoder = find(recipe.model)
        logger.info("encoder: %s (%s)", encoder.name, encoder.origin)
        task, data = prepare(recipe, encoder)
        logger.info("task: %s, %s", task.name, task.describe())
        features, findings = inspect(task, data)
    teacher = rehearse(recipe, encoder, task, data)
    with only_writer(run) if first else nullcontext():
        if first:
            begin(recipe, run, data, findings, changed)
        watch = Profile() if profile else None
        outcomes = [
            train_seed(recipe, seed, run, encoder, task, data, features, teacher, callbacks, watch)
            for seed in recipe.seeds
        ]
        if first and watch:
            write_json(run.folder / "profile.json", watch.facts())
            logger.info("%s", profile_lines(watch.facts()))
        if first:
            best = max(outcomes, key=lambda o: -math.inf if o["headline"] is None else o["headline"])
            publish(run, best["seed"])
            finish(recipe, run, data, outcomes, metrics, started, teacher)
            draw_report(run, recipe.explain)
    if first and recipe.hub and recipe.hub.repo_id:
        push_run(run, recipe.hub, recipe.hub.repo_id)
    return run


def check_hub(recipe: Recipe) -> None:
    """Raises RecipeError where a push would fail for sure, before hours of training."""
    if recipe.hub and recipe.hub.repo_id:
        from bertkit.hub.push import misnamed, unaccepted, unlicensed, unready

        problems = [*misnamed(recipe.hub.repo_id, recipe.hub.revision, recipe.hub.create_pr), *unready()]
        problems += unlicensed(recipe.hub, not recipe.hub.private)
        problems = problems or unaccepted(recipe.hub)
        if problems:
            raise RecipeError([Problem("hub", what, fix) for _, what, fix in problems])


def push_run(run: Run, hub: Hub, repo_id: str) -> None:
    """Push the finished run, as the recipe says. Raises ModelError, which does not touch the run."""
    from bertkit.hub.push import push

    try:
        push(
            run.folder,
            repo_id,
            public=not hub.private,
            revision=hub.revision,
            create_pr=hub.create_pr,
            predictions=hub.predictions,
            report=hub.report,
        )
    except ModelError as error:
        fix = f"Push it later: bertkit push {run.folder} {repo_id}"
        raise ModelError([*error.problems, Problem(str(run.folder), "the run itself is whole", fix)]) from None


def draw_report(run: Run, explains: bool) -> None:
    """Write explanations, report.html and the card; what goes wrong is said, and does not touch the finished run."""
    from jinja2 import TemplateError

    from bertkit.report.card import write_card
    from bertkit.report.html import write_report

    parts: list[tuple[str, Callable[[], object], str]] = [
        ("explanation", partial(_explain, run), f"bertkit explain {run.folder}"),
        ("report", partial(write_report, [run.folder]), f"bertkit report {run.folder}"),
        ("model card", partial(write_card, run), f"bertkit push {run.folder} OWNER/MODEL --dry-run"),
    ]
    usual = (UserError, OSError, TemplateError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError)
    for name, write, again in parts if explains else parts[1:]:
        try:
            write()
        except (*usual, ImportError, RuntimeError) as error:  # no picture is worth a training
            what = f"{type(error).__name__}: {error}"
            logger.warning("there is no %s (%s); the run is whole. Try: %s", name, what, again)


def _explain(run: Run) -> None:
    from bertkit.explain.chosen import write_explanations

    write_explanations(run.folder)


def prepare(recipe: Recipe, encoder: Encoder) -> tuple[Task, Data]:
    """The rows of every split, and the task as they settle it."""
    kind = get_task(recipe.task.name)
    tokenizer = load_tokenizer(encoder.folder)
    limit = longest(encoder, tokenizer, recipe.model.max_length)
    data = sources.load(recipe.data, kind, recipe.task)
    if "validation" not in data.rows and (recipe.early_stopping or len(recipe.seeds) > 1):
        what = "there is no validation split to choose by, which early_stopping and several seeds need"
        raise DataError(Problem("data", what, "Name one in data.source, or hold one out: data: {validation: 0.1}"))
    task = kind.prepare(recipe.task, tokenizer, limit, data.rows["train"], data.class_names)
    headline = recipe.training.get("metric_for_best_model", task.headline)
    if headline not in task.emits:
        what = f"{task.name} with these targets has no metric {headline!r} to choose by"
        raise RecipeError(Problem("training.metric_for_best_model", what, f"It has {', '.join(task.emits)}."))
    return task, data


def inspect(task: Task, data: Data) -> tuple[Dataset, list[Finding]]:
    """Check and report all splits; returns the training features and the findings. Raises DataError on a failure."""
    features = {split: _features(task, data, split) for split in data.rows}
    findings: list[Finding] = [*sources.check(data)]
    for split, encoded in features.items():
        findings += task.check(encoded, split)
    for finding in findings:
        level = logging.INFO if finding.level == "note" else logging.WARNING
        logger.log(level, "%s: %s", finding.level, finding.what)
    failed = [Problem("data", finding.what, finding.fix) for finding in findings if finding.level == "fail"]
    if failed:
        raise DataError(failed)
    return features["train"], findings


def _features(task: Task, data: Data, split: str) -> Dataset:
    try:
        return task.features(data.rows[split])
    except RowsError as error:
        raise RowsError(error.found, data.origins[split].__getitem__) from None


def build(recipe: Recipe, encoder: Encoder, task: Task) -> Any:
    """The model that is trained: encoder and head, fewer layers, parts frozen, or with LoRA. Raises UserError."""
    model: Any = task.model(encoder)
    student = recipe.distillation.student if recipe.distillation else None
    model = keep_layers(model, student.layers) if student else model
    model = freeze(model, recipe.freeze) if recipe.freeze else model
    return with_lora(model, recipe.peft, task.beside(model)) if recipe.peft else model


def rehearse(recipe: Recipe, encoder: Encoder, task: Task, data: Data) -> Teacher | None:
    """Find out what transformers and peft would refuse, before anything is written. Raises UserError.

    Returns the teacher, where the recipe names one that the student can learn from.
    """
    with TemporaryDirectory() as room, quiet("bertkit"):
        arguments(recipe, task, Path(room), recipe.seeds[0], evaluates=chooses(recipe, data))
        model = build(recipe, encoder, task)
        if recipe.distillation is None:
            return None
        teacher = find_teacher(recipe.distillation, task)
        few = data.rows["train"].select(range(min(len(data.rows["train"]), 8)))
        check_sizes(recipe.distillation, teacher, task, model, task.features(few))
        return teacher


def chooses(recipe: Recipe, data: Data) -> bool:
    """Is there something to choose the checkpoint by?"""
    return "validation" in data.rows and recipe.training["eval_strategy"] != "no"


def begin(recipe: Recipe, run: Run, data: Data, findings: list[Finding], changed: bool = False) -> None:
    """Write recipe.yaml, data.json and versions. Raises DataError when a run is resumed on other data or libraries."""
    known, environment = run.folder / "data.json", run.folder / "environment.json"
    problems, now = [], versions()
    if known.is_file() and _kept(known, "fingerprints") != data.fingerprints:
        what = "the data are not those this run was started with (their sha256 differs)"
        problems.append(Problem(str(known), what, f"Bring the old data back, start a new run, or {ANYWAY}."))
    before = _kept(environment, "versions") if environment.is_file() else now
    other = [f"{name} {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
    if other:
        what = f"libraries are not those this run was started with: {'; '.join(other)}"
        problems.append(Problem(str(environment), what, f"Install those again, start a new run, or {ANYWAY}."))
    if problems and not changed:
        raise DataError(problems)
    write_json(environment, {"versions": now})
    facts = {"fingerprints": data.fingerprints, "rows": {split: len(rows) for split, rows in data.rows.items()}}
    write_text(run.folder / "recipe.yaml", dump(recipe))
    write_json(known, facts | {"findings": [finding._asdict() for finding in findings]})


def _kept(file: Path, name: str) -> dict[str, Any]:
    """A section of what this run's file says; empty where it says nothing of the kind."""
    told = read_json(file)
    section = told.get(name) if isinstance(told, dict) else None
    return section if isinstance(section, dict) else {}


def scored_splits(data: Data) -> list[str]:
    """The splits that are not learned from and have targets; train itself where there is no other."""
    held_out = [split for split, rows in data.rows.items() if split != "train" and data.target in rows.column_names]
    return held_out or ["train"]


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
    how = task, args.device, usable(settings["precision"], args.device), rows
    divided = args.world_size > 1 and not (args.fsdp or args.deepspeed)  # their forward passes are of all processes
    headline = str(args.metric_for_best_model or task.headline)
    try:
        trainer = TaskTrainer(
            task=task,
            model=fresh,
            args=args,
            features=features,
            validation=data.rows.get("validation"),
            predict=predictor(*how, spread=spread if divided else map),
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
    scores = settle(recipe, model, task, data, predictor(*how), folder, settings)
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
    if not runs_along(recipe.distillation, task):
        with args.main_process_first():  # the others find what it has kept
            features = taught(features, teacher)
    return distiller, features


def own_callbacks(recipe: Recipe, run: Run, seed: int, headline: str) -> list[TrainerCallback]:
    """What is shown and written while a seed is trained, and what stops it."""
    title = f"seed {seed}" if len(recipe.seeds) > 1 else "training"
    shown: list[TrainerCallback] = [Progress(title, headline), MetricsLog(run.folder / "metrics.jsonl", seed)]
    stop = recipe.early_stopping
    return [*shown, EarlyStoppingCallback(stop.patience, stop.threshold)] if stop else shown


def learn(trainer: TaskTrainer, folder: Path) -> float:
    """Train, from the newest whole checkpoint in `folder` if there is one; the seconds it took. Raises UserError."""
    start, damaged = newest_whole(folder)
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
    recipe: Recipe,
    model: Any,
    task: Task,
    data: Data,
    answering: Callable[[Any], Predict],
    folder: Path,
    settings: dict[str, Any],
) -> dict[str, dict[str, float | None]]:
    """Merge LoRA into the model, calibrate it, save it in `folder`; returns its scores by split.

    None of an only seed: nothing is chosen by them, and `finish` scores what was saved.
    """
    if recipe.peft:
        model.save_pretrained(folder / "adapter")
        model = model.merge_and_unload()
    predict = answering(model)
    if "validation" in data.rows:
        task = task.fit(data.rows["validation"], predict)
    save(model, task, folder / "model", settings)
    if len(recipe.seeds) == 1:
        return {}
    return {split: task.evaluate(data.rows[split], predict) for split in scored_splits(data)}


def arguments(recipe: Recipe, task: Task, folder: Path, seed: int, *, evaluates: bool) -> TrainingArguments:
    """Hugging Face's arguments for one seed. Raises RecipeError where transformers refuses them."""
    given = {name: value for name, value in recipe.training.items() if name != "auto_find_batch_size"}  # we find it
    device = best_device()
    own: dict[str, Any] = {
        "output_dir": str(folder),
        "seed": seed,
        "use_cpu": device.type == "cpu",
        "remove_unused_columns": False,
        "restore_callback_states_from_checkpoint": True,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "load_best_model_at_end": evaluates,
    }
    if "bf16" not in given and not given.get("fp16"):
        own["bf16"] = best_precision(device) == "bf16"
    if evaluates:
        own["metric_for_best_model"] = task.headline
        own["greater_is_better"] = True
    else:
        given["eval_strategy"] = "no"
    try:
        return TrainingArguments(**{**own, **given})
    except (ValueError, TypeError, ImportError) as error:
        raise RecipeError(Problem("training", str(error).strip())) from error


def model_settings(recipe: Recipe, args: TrainingArguments) -> dict[str, Any]:
    """What the predictor has to know beside the task; it goes into the model's config.json."""
    from bertkit import __version__

    return {
        "version": __version__,
        "precision": "fp32" if recipe.training.get("bf16") is False else "auto",
        "batch_size": recipe.batching.model_dump() if recipe.batching else args.per_device_eval_batch_size,
        "columns": dict(recipe.data.columns),
    }


def save(model: Any, task: Task, folder: Path, settings: dict[str, Any]) -> None:
    """A model folder that transformers loads by itself, and that bertkit reads its own settings from."""
    aside = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    beside = task.beside(model)
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
        for name, value in task.files(model).items():
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


def publish(run: Run, seed: int) -> None:
    """The chosen seed's model becomes RUN/model, its LoRA adapter RUN/adapter."""
    for name in ("model", "adapter"):
        source, target = run.checkpoints / f"seed-{seed}" / name, run.folder / name
        if source.is_dir():  # else it was moved before this run was interrupted and resumed
            shutil.rmtree(target, ignore_errors=True)
            source.replace(target)


def finish(
    recipe: Recipe,
    run: Run,
    data: Data,
    outcomes: list[dict[str, Any]],
    metrics: Sequence[Any],
    started: float,
    teacher: Teacher | None = None,
) -> None:
    """Score what was saved, compare it with simple models and with a fresh process; results.json comes last."""
    predictor = load(run.folder)
    splits, baselines = {}, {}
    answers: Iterable[Any]
    for split, rows in data.rows.items():
        if split in scored_splits(data):
            answers, splits[split] = score(predictor, rows, metrics)
            baselines[split] = predictor.task.baselines(data.rows["train"], rows)
        elif split != "train":
            answers = predictor.task.answer(rows, predictor.predict_features)
        else:
            continue
        with written_aside(run.folder / "predictions" / f"{split}.jsonl") as file:
            for row, answer in zip(rows, answers, strict=True):
                file.write(json.dumps({**row, "answer": answer}, ensure_ascii=False) + "\n")
    if recipe.verify:
        verify(run, predictor, data.rows[split])
    device = predictor.device.type
    write_json(run.folder / "environment.json", environment(device, predictor.precision))
    headline = recipe.training.get("metric_for_best_model", predictor.task.headline)
    if len(outcomes) == 1:
        own = {split: each["metrics"] for split, each in splits.items()}
        outcomes = [outcomes[0] | {"headline": own.get("validation", {}).get(headline), "metrics": own}]
    results = {
        "task": {"name": predictor.task.name, "description": predictor.task.describe()},
        "headline": headline,
        "splits": splits,
        "baselines": baselines,
        "seeds": outcomes,
        "over_seeds": over_seeds(outcomes),
        "seconds": time.monotonic() - started,
        "verified": recipe.verify,
        "expected": recipe.expected,
    }
    if teacher:
        chosen = "validation" if "validation" in splits else next(iter(splits))
        compared = bargain(teacher, run.model, predictor, data.rows[chosen], splits[chosen], headline)
        results["distillation"] = {"split": chosen, **compared}
    write_json(run.folder / "results.json", results)


def over_seeds(outcomes: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """split -> metric -> mean and sample standard deviation over the seeds, where each seed has the metric."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for split, scores in outcomes[0]["metrics"].items():
        table[split] = {}
        for name in scores:
            values = [outcome["metrics"][split][name] for outcome in outcomes]
            if "/" not in name and None not in values:
                table[split][name] = {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else 0.0}
    return table


def verify(run: Run, predictor: Predictor, rows: Dataset) -> None:
    """Load the saved model in a fresh process, and hold its answers against this process's. Raises ModelError."""
    inputs = frozenset(predictor.task.context).union(*predictor.task.accepted)
    probe = [{name: row[name] for name in inputs if name in row} for row in rows.select(range(min(len(rows), 64)))]
    with TemporaryDirectory() as room:
        asked, told = Path(room) / "asked.jsonl", Path(room) / "told.jsonl"
        write_text(asked, "".join(json.dumps(row) + "\n" for row in probe))
        command = [
            sys.executable,
            "-m",
            "bertkit",
            "predict",
            str(run.model),
            "--input",
            str(asked),
            "--output",
            str(told),
        ]
        alone = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
        if done.returncode:
            raise ModelError(Problem(str(run.model), f"does not load in a fresh process:\n{done.stderr.strip()}"))
        fresh = [json.loads(line)["answer"] for line in told.read_text(encoding="utf-8").splitlines()]
    ours = list(predictor.stream(probe))
    different = [index for index, pair in enumerate(zip(ours, fresh, strict=True)) if pair[0] != pair[1]]
    if different:
        what = f"a fresh process answers {len(different)} of {len(ours)} rows differently, first row {different[0] + 1}"
        raise ModelError(Problem(str(run.model), what, "This is a bug of bertkit; please report it with the recipe."))
    logger.info("verified: a fresh process gives the same %d answers", len(ours))
