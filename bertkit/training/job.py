"""Before the first step: everything that can be wrong is checked, and the job is put together."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from bertkit.attachments import table
from bertkit.data import Data, check, load, log_findings
from bertkit.data.checks import accuracy_findings
from bertkit.data.schema import Finding
from bertkit.data.splits import fold_rows
from bertkit.encoding.texts import unknown_findings
from bertkit.engine.arguments import Arguments
from bertkit.engine.attachment import Attachment, Draft
from bertkit.engine.clock import TICKS, schedule
from bertkit.engine.training_data import mixed_batches
from bertkit.errors import DataError, Problem, RecipeError, RowsError, UserError
from bertkit.evaluation.intervals import mean
from bertkit.inference.probe import check_token_types, padding_findings
from bertkit.inference.runner import Runner
from bertkit.inference.settings import resolve_max_length
from bertkit.models.device import best_device, resolve_precision
from bertkit.models.encoder import Encoder, resolve_encoder
from bertkit.models.quiet import quiet_logger
from bertkit.models.trained_parts import freeze, recompute_layers, with_lora
from bertkit.recipe.cross_checks import settled_problems
from bertkit.recipe.recipe import AnyRecipe, MultiTaskRecipe, Recipe
from bertkit.recipe.training_arguments import DECIDED, EARLIER
from bertkit.run import Run
from bertkit.tasks import get_task
from bertkit.tasks.base import Task, evaluate
from bertkit.tasks.base import prepare as prepare_task
from bertkit.text import Json, Record, unique
from bertkit.validation import describe, did_you_mean

logger = logging.getLogger(__name__)

SENSITIVE = ("f1_macro", "matthews_correlation", "average_precision")  # metrics that depend on rare labels
OF_SOME_ROWS = "triplet_accuracy"  # a metric of rows with certain columns
OF_LIBRARY = "Change the key of `training` that this message is about."
_KEY = re.compile(r"(task|data)(\.|$)")  # of the recipe of one task


@dataclass(frozen=True)
class Extensions:
    """A user's own code in a training, as for `train`. Raises RecipeError where it is of another form."""

    metrics: Sequence[Any] = ()
    callbacks: Sequence[TrainerCallback] = ()
    compute_loss_func: Any = None
    attachments: Sequence[Attachment] = ()

    def __post_init__(self) -> None:
        for name, value in (("metrics", self.metrics), ("callbacks", self.callbacks)):
            if not isinstance(value, list | tuple):
                raise RecipeError(name, f"expected a list, found {describe(value)}", f"Pass {name}=[…].")

    @cached_property
    def added(self) -> tuple[Attachment, ...]:
        """What takes part in the training: the attachments, after the loss."""
        return table.of_user(self.compute_loss_func, self.attachments)

    @property
    def every(self) -> tuple[Attachment, ...]:
        """The attachments of bertkit, then what is added."""
        return (*table.ATTACHMENTS, *self.added)

    @property
    def names(self) -> list[str]:
        """The names of what takes part: a resumed run must have the same."""
        return [attachment.identify() for attachment in self.added]

    @property
    def recorded(self) -> dict[str, list[str]]:
        """What environment.json has of them."""
        return {"attachments": self.names} if self.added else {}


NO_EXTENSIONS = Extensions()


@dataclass(frozen=True)
class Job:
    """What a training works on, checked before anything is written."""

    recipe: Recipe
    encoder: Encoder
    task: Task
    data: Data
    features: Dataset  # of the training rows
    attachments: Sequence[Attachment] = ()
    extensions: Extensions = NO_EXTENSIONS
    folds: Sequence[int] = ()  # of each training row, from 1; empty without cross-validation

    @property
    def headline(self) -> str:
        """The metric that the choice of the checkpoint depends on."""
        return headline_of(self.recipe, self.task)

    @property
    def precision(self) -> Literal["auto", "fp32"]:
        """The precision of predictions that the recipe asks for."""
        return "fp32" if self.recipe.training.get("bf16") is False else "auto"


@dataclass(frozen=True)
class Jobs:
    """What a training works on: one task, whose name is empty, or several over one encoder."""

    recipe: AnyRecipe
    by_task: Mapping[str, Job]

    @property
    def first(self) -> Job:
        """The job that has what all share: encoder, attachments."""
        return next(iter(self.by_task.values()))

    @property
    def only(self) -> Job:
        """The job of one task. Folds, methods and distillation need one; the recipe's checks see to it."""
        (job,) = self.by_task.values()
        return job

    def runs(self, run: Run) -> dict[str, Run]:
        """The run folder of each task; of one task, that of the run itself."""
        return {name: type(run)(run.folder / name) for name in self.by_task}

    @property
    def weights(self) -> dict[str, float]:
        """The factor on each task's loss."""
        tasks = {} if isinstance(self.recipe, Recipe) else self.recipe.tasks
        return {name: task.weight for name, task in tasks.items()}

    def arguments(self, folder: Path, seed: int) -> Arguments:
        """Hugging Face's arguments of one seed's training."""
        recipe = self.first.recipe.model_copy(update={"training": self.recipe.training})
        return arguments(replace(self.first, recipe=recipe), folder, seed)

    def rank(self, outcomes: Mapping[str, Record]) -> float:
        """The score by which seeds are compared: the mean of the tasks' headlines, or that of a task the
        recipe names.

        outcomes: of one seed, by task.
        """
        named = str(self.recipe.training.get("metric_for_best_model"))
        deciding = [named] if named in outcomes else [*outcomes]
        score = mean(outcomes[name]["headline"] for name in deciding)
        return -math.inf if score is None else score


def prepare_jobs(
    recipe: AnyRecipe, extensions: Extensions = NO_EXTENSIONS
) -> tuple[Jobs, dict[str, list[Finding]]]:
    """The jobs of a recipe, and the findings about each. Raises UserError before anything is written."""
    by_task = dict[str, Job]()
    findings = dict[str, list[Finding]]()
    problems = []
    if extensions.added:
        logger.info("with %s", ", ".join(extensions.names))
    for name, part in recipe.parts.items():
        for option in ("metrics", "compute_loss_func"):
            if name and getattr(extensions, option):
                raise RecipeError(
                    option,
                    "is not supported for several tasks",
                    "Leave it out, or train the tasks one by one.",
                )
        if name:
            logger.info("%s:", name)
        try:
            by_task[name], findings[name] = prepare_job(part, extensions)
        except UserError as error:
            if not name:
                raise
            problems += [
                problem._replace(where=f"tasks.{name}.{problem.where}")
                if _KEY.match(problem.where)
                else problem
                for problem in error.problems
            ]
    without = [name for name, job in by_task.items() if "validation" not in job.data.rows]
    if len(without) < len(by_task):
        what = "no validation split, but the scores of all tasks select the checkpoint, and others have one"
        fix = "Hold one out: data: {validation: 0.1}"
        problems += [Problem(f"tasks.{name}.data", what, fix) for name in without]
    if problems:
        raise UserError(unique(problems))  # what is wrong with `training`, each task says again
    jobs = Jobs(recipe, by_task)
    if isinstance(recipe, MultiTaskRecipe):
        args = jobs.arguments(Path(), recipe.seeds[0])
        tokens = recipe.batching.tokens if recipe.batching else None
        parts = {name: (job.task, job.features) for name, job in by_task.items()}
        division = {"accumulation": args.gradient_accumulation_steps, "world": args.world_size, "seed": 0}
        mixed_batches(parts, recipe.mixing, args.train_batch_size, tokens, **division)  # for its errors
    return jobs, findings


def prepare_job(recipe: Recipe, extensions: Extensions = NO_EXTENSIONS) -> tuple[Job, list[Finding]]:
    """The job of one task, and the findings about its data and model. Raises UserError before anything is
    written.
    """
    encoder = resolve_encoder(recipe.model)
    logger.info("encoder: %s (%s)", encoder.name, encoder.origin)
    task, data = prepare(recipe, encoder, extensions.metrics)
    logger.info("task: %s, %s", task.name, task.describe())
    features, findings = inspect(task, data, headline_of(recipe, task), encoder.name)
    job = Job(recipe, encoder, task, data, features, extensions=extensions)
    if recipe.folds:
        folds, fold_findings = fold_rows(data, recipe.folds, recipe.data.seed, task.schema.group_columns)
        log_findings(fold_findings)
        findings += fold_findings
        job = replace(job, folds=folds)
    attachments, model_findings = check_model(job)
    return replace(job, attachments=attachments), findings + model_findings


def prepare(recipe: Recipe, encoder: Encoder, metrics: Sequence[Any] = ()) -> tuple[Task, Data]:
    """The rows of every split, and the task with what they determine. metrics: the user's own."""
    kind = get_task(recipe.task.name)
    tokenizer = encoder.tokenizer(split_special_tokens=not kind.schema.special_tokens)
    limit = resolve_max_length(encoder, tokenizer, recipe.model.max_length)
    data = load(recipe.data, kind.schema_of(recipe.task), kind.rules(recipe.task))
    if "validation" not in data.rows and (recipe.early_stopping or len(recipe.seeds) > 1):
        raise DataError(
            "data",
            "no validation split, which early_stopping and several seeds need to select a model",
            "Add one to data.source, or hold one out: data: {validation: 0.1}",
        )
    task = prepare_task(kind, data.options, tokenizer, limit, data.rows["train"], data.class_names)
    if problems := settled_problems(task.options, recipe.training):
        raise RecipeError(problems)
    headline = headline_of(recipe, task)
    if headline not in task.metrics and not metrics:
        raise _no_metric(task, headline, task.metrics)
    return task, data


def headline_of(recipe: Recipe, task: Task) -> str:
    """The metric that the choice of the checkpoint depends on."""
    return str(recipe.training.get("metric_for_best_model", task.metrics[0]))


def _no_metric(task: Task, name: str, metrics: Collection[str]) -> RecipeError:
    return RecipeError(
        "training.metric_for_best_model",
        f"{task.name} with these targets has no metric {name!r}{did_you_mean(name, metrics)}",
        f"Choose one of {', '.join(metrics)}; or pass metrics of your own from Python: "
        "bertkit.train(…, metrics=[…]).",
    )


def inspect(task: Task, data: Data, headline: str, encoder: str) -> tuple[Dataset, list[Finding]]:
    """Check and report all splits, for the encoder of this name; returns the training features and the
    findings.

    Raises DataError on a failure.
    """
    features = {}
    findings = [*check(data, few_rows=task.method is not None)]
    sensitive = [metric for metric in SENSITIVE if metric in task.metrics]
    if headline == "accuracy" and sensitive:
        findings += accuracy_findings(data, sensitive)
    for split, rows in data.rows.items():
        try:
            features[split] = task.features(rows)
        except RowsError as error:
            raise RowsError(error.by_row, data.origins[split].__getitem__) from None
        findings += task.check(features[split], split)
        findings += unknown_findings(task.tokenizer, encoder, rows, task.schema, split)
    findings.sort(key=lambda finding: finding.severity)
    log_findings(findings)
    failed = [Problem("data", finding.what, finding.fix) for finding in findings if finding.level == "fail"]
    if failed:
        raise DataError(failed)
    return features["train"], findings


def build(job: Job) -> Any:
    """The model to train: encoder and head; with fewer layers, frozen parts or LoRA on request. Raises
    UserError.
    """
    recipe = job.recipe
    task = job.task
    model: Any = task.model(job.encoder)
    for attachment in job.attachments:
        model = attachment.build_model(recipe, model)
    model = freeze(model, recipe.freeze) if recipe.freeze else model
    if recipe.training.get("activation_checkpointing"):
        recompute_layers(model)
    return with_lora(model, recipe.peft, task.extra_modules(model)) if recipe.peft else model


def check_model(job: Job) -> tuple[Sequence[Attachment], list[Finding]]:
    """Build arguments and model once, for what transformers and peft refuse, and let the model read a few
    inputs.

    The user's metrics are computed once, of the untrained model: what they are called is known only from
    what they return.
    Returns the attachments and the findings. Raises UserError; nothing is written.
    """
    recipe = job.recipe
    task = job.task
    features = job.features
    extensions = job.extensions
    if task.method and extensions.added:
        raise RecipeError(
            "task.method",
            f"{extensions.names[0]} has no effect: task.method {task.method} trains without a Trainer",
            "Leave it out, or set task.method: full.",
        )
    if task.method and extensions.callbacks:
        logger.warning("callbacks have no effect: task.method %s trains without a Trainer", task.method)
    with TemporaryDirectory() as folder, quiet_logger("bertkit"):
        args = arguments(job, Path(folder), recipe.seeds[0])
        candidates = [] if task.method else [*map(copy, extensions.every)]
        model = build(replace(job, attachments=candidates))
        draft = Draft(recipe, args, task, model, features)
        attachments = [attachment for attachment in candidates if attachment.join(draft) is not False]
        check_token_types(model, task.examples(features, range(min(len(features), 8))))
        findings = list(padding_findings(task, model))
        if extensions.metrics or job.headline not in task.metrics or job.headline == OF_SOME_ROWS:
            splits = ("validation", *scored_splits(job.data))
            rows = next(job.data.rows[split] for split in splits if split in job.data.rows)
            precision = resolve_precision("auto", args.device)
            runner = Runner(
                task, model.to(args.device), args.device, precision, args.per_device_eval_batch_size
            )
            scores = evaluate(task, rows, runner, fitted=True, metrics=extensions.metrics)
            if job.headline not in scores:
                raise _no_metric(task, job.headline, [name for name in scores if "/" not in name])
    log_findings(findings)
    return attachments, findings


def scored_splits(data: Data) -> list[str]:
    """The splits with targets other than train; train itself if there is no other."""
    held_out = [
        split for split, rows in data.rows.items() if split != "train" and data.target in rows.column_names
    ]
    return held_out or ["train"]


def arguments(job: Job, folder: Path, seed: int) -> Arguments:
    """Hugging Face's arguments for one seed. Raises RecipeError where transformers refuses them."""
    settings = _settings(job, folder, seed)
    try:
        args = Arguments(**settings)
    except (ValueError, TypeError, ImportError) as error:
        raise RecipeError("training", str(error).strip().removeprefix("--"), OF_LIBRARY) from error
    if args.fp16 and args.device.type == "cpu":
        raise RecipeError(
            "training.fp16",
            "has no effect on a CPU, where transformers trains in fp32 instead",
            "Remove it, or train on a GPU.",
        )
    try:  # only for its errors
        schedule(args, torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate), TICKS)
    except (ValueError, TypeError) as error:
        raise RecipeError("training.lr_scheduler_kwargs", str(error), OF_LIBRARY) from error
    _require_trackers(args.report_to or ())
    return args


def _settings(job: Job, folder: Path, seed: int) -> Json:
    """The settings of the recipe that transformers reads, with bertkit's defaults; see `arguments`."""
    recipe = job.recipe
    settings = {name: value for name, value in recipe.training.items() if name not in DECIDED}
    settings["auto_find_batch_size"] = False  # attachments/memory.py does it
    device = torch.device("cpu") if settings.get("use_cpu") else best_device()
    evaluates = "validation" in job.data.rows and recipe.training["eval_strategy"] != "no"
    defaults = {
        "output_dir": str(folder),
        "seed": seed,
        "use_cpu": device.type == "cpu",
        "remove_unused_columns": False,
        "restore_callback_states_from_checkpoint": True,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "load_best_model_at_end": evaluates,
    }
    precision = resolve_precision(job.precision, device)
    if not settings.get("fp16"):
        defaults["bf16"] = precision == "bf16"
    if not settings.get("bf16"):
        defaults["fp16"] = precision == "fp16"
    if evaluates:
        defaults |= {"metric_for_best_model": job.task.metrics[0], "greater_is_better": True}
    elif settings.get("save_strategy") == "best":
        raise RecipeError(
            "training.save_strategy",
            "best needs validation rows, to select the checkpoint",
            "Hold some out (data: {validation: 0.1}), or use epoch or steps.",
        )
    else:
        settings["eval_strategy"] = "no"
    several = recipe.folds or len(recipe.seeds) > 1
    if several and settings.get("run_name"):  # else trackers draw them as one line
        settings["run_name"] += f"-{folder.name}"
    settings = {**defaults, **settings}
    fields = Arguments.__dataclass_fields__
    return {name if name in fields else EARLIER.get(name, name): value for name, value in settings.items()}


def _require_trackers(names: Sequence[str]) -> None:
    """Raises RecipeError where transformers has no integration of this name, or its library is not
    installed.
    """
    integrations = integration_utils.INTEGRATION_TO_CALLBACK.keys()
    if unknown := [str(name) for name in names if name not in integrations]:
        raise RecipeError(
            "training.report_to",
            f"transformers has no integration {unknown[0]!r}{did_you_mean(unknown[0], integrations)}",
            f"Choose among none, all, {', '.join(integrations)}.",
        )
    installed = integration_utils.get_available_reporting_integrations()  # type: ignore[no-untyped-call]
    missing = sorted({*names} - {*installed, "azure_ml", "flyte"})  # these two are not always listed
    if missing:  # MLflow's callback would refuse this too, but also print a traceback from its __del__
        raise RecipeError(
            "training.report_to",
            f"{' and '.join(missing)}: not installed",
            f"pip install {' '.join(missing)}",
        )
