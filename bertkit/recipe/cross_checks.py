"""Checks across values of a recipe: settings that contradict each other.

The functions take plain data whose values have the right types (others are reported and left out), so that
everything is found at once even in a recipe that is not valid yet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from bertkit.data.readers import by_name, by_suffix, suffix_of
from bertkit.errors import DataError, Problem
from bertkit.recipe.plain_data import texts_in
from bertkit.sections import MEMORY, REPO_ID, TrainingKeys
from bertkit.tasks import find_task
from bertkit.tasks.base import TaskOptions
from bertkit.text import Json, dotted, short_repr, unique
from bertkit.validation import KeyProblem, did_you_mean

ROWS = ("per_device_train_batch_size", "per_device_eval_batch_size")
DECAY = {"num_decay_steps": 0.2}  # of warmup_stable_decay, where the recipe has none
# of `training.lr_scheduler_kwargs`: below 1, shares of all steps
STEP_KWARGS = (
    "num_decay_steps",
    "num_stable_steps",
)
HEAD = ("pooling", "dropout")  # keys of `model` for the head of a classification
# of `training`, by methods that transformers' Trainer does not run; every written recipe has the strategies
STILL_READ = (
    "per_device_eval_batch_size bf16 metric_for_best_model greater_is_better eval_strategy save_strategy"
).split()
_Rule = tuple[Any, str, str, str]  # does it apply?, dotted key, what is wrong, fix


def check_settings(data: Json, options: type[TaskOptions] | None, own_metrics: bool) -> Iterator[KeyProblem]:
    """Contradictions between settings; `task` and `model` have their defaults filled in.

    options: the type of the task's options, or None where the task is not known. own_metrics: as for
    `load_recipe`.
    """
    task = data.get("task", {})
    training = data.get("training", {})
    rules = chain(
        _section_rules(data, task),
        _loss_rules(task, training, options),
        _training_rules(data, training, options),
        _schedule_rules(training),
        _method_rules(data, task, training, options),
    )
    for applies, key, what, fix in rules:
        if applies:
            yield KeyProblem(tuple(key.split(".")), what, fix)
    if options is not None:
        yield from _check_headline(training, options.metrics, own_metrics)
    yield from _check_labels(task)
    for seed, count in Counter[int](data.get("seeds", ())).items():
        if count > 1:
            yield KeyProblem(
                ("seeds",),
                f"{seed} is listed {count} times",
                "Remove it: an equal seed repeats the same training.",
            )


def settled_problems(options: TaskOptions, training: Json) -> list[Problem]:
    """Settings without effect, of a task whose kind the data have settled."""
    rules = _loss_rules(vars(options), training, type(options))
    unknown = [Problem(dotted(path), what, fix) for path, what, fix in _check_labels(vars(options))]
    return [*unknown, *(Problem(key, what, fix) for applies, key, what, fix in rules if applies)]


def _check_headline(training: Json, metrics: frozenset[str], own_metrics: bool) -> Iterator[KeyProblem]:
    """`metric_for_best_model` must be one of `metrics`; a name ending in `/` stands for one per label."""
    if training.get("greater_is_better") is False:
        fix = "Remove it; a metric of your own may return its negative."
        yield KeyProblem(("training", "greater_is_better"), "all metrics are better when higher", fix)
    path = ("training", "metric_for_best_model")
    value = training.get(path[1])
    if value is None:
        return
    name = value.removeprefix("eval_")
    if (
        (name == "loss" or not own_metrics)
        and name not in metrics
        and name.partition("/")[0] + "/" not in metrics
    ):
        names = sorted(metric + "LABEL" if metric.endswith("/") else metric for metric in metrics)
        what = f"the task has no metric {short_repr(name)}{did_you_mean(name, names)}"
        fix = "Metrics of your own are passed from Python: bertkit.train(…, metrics=[…])."
        yield KeyProblem(path, what, f"Known here: {', '.join(names)}. {fix}")


def _section_rules(data: Json, task: Json) -> Iterator[_Rule]:
    model = data.get("model", {})
    rows = data.get("data", {})
    distillation = data.get("distillation") or {}
    name = model.get("name") is not None
    config = model.get("config") is not None
    tokenizer = model.get("tokenizer") is not None
    source = rows.get("source")
    stride = task.get("stride", 0)
    max_length = model.get("max_length", math.inf)
    readers = [reader for _, text in texts_in(source) for reader in by_suffix(suffix_of(text))]
    with suppress(DataError):  # which `format_problems` reports
        readers = [by_name(rows["format"])] if rows.get("format") else readers
    form = " and ".join(sorted({reader.name for reader in readers}))
    yield (
        not name and not config,
        "model.name",
        "missing",
        "Write a Hub id or a folder; or config and tokenizer, for a new encoder.",
    )
    yield (
        name and config,
        "model.config",
        "`name` is a model that has its own config",
        "Remove one of the two.",
    )
    yield (
        config and not name and not tokenizer,
        "model.tokenizer",
        "missing: a new encoder needs one",
        "Use a folder that `bertkit tokenizer train` wrote, or a Hub id.",
    )
    yield name and not config and tokenizer, "model.tokenizer", "`name` has its own tokenizer", "Remove it."
    yield (
        task.get("overflow") == "window" and stride >= max_length - 2,
        "task.stride",
        f"{stride} shared tokens do not fit into windows of {max_length} tokens, 2 of them special",
        f"Write at most {max_length - 3}, or raise model.max_length.",
    )
    yield (
        distillation.get("student") and config,
        "distillation.student",
        "selects layers of a pretrained model, but `model.config` makes a new one",
        "Write the number of layers there: model: {config: {num_hidden_layers: …}}.",
    )
    yield (
        task.get("scheme") == "none" and task.get("data_scheme") is not None,
        "task.data_scheme",
        "has no effect with scheme none, whose tags are labels of words",
        "Remove it.",
    )
    yield (
        isinstance(rows.get("header"), list)
        and form
        and not any(reader.columns == "header" for reader in readers),
        "data.header",
        f"{form} files name their own columns",
        "Remove it; `columns` maps the names in the data.",
    )
    yield (
        source == MEMORY and rows.get("fingerprint") is None,
        "data.source",
        "`memory` stands for rows that are given from Python: bertkit.train(recipe, output_dir, data=…)",
        "Use files or a data set of the Hub; a folder of this name is ./memory.",
    )
    yield (
        (data.get("hub") or {}).get("benchmark") and (readers or not REPO_ID.fullmatch(str(source))),
        "hub.benchmark",
        "data.source is not a data set of the Hub",
        "Write owner/name, or remove benchmark.",
    )
    for key in ("fingerprint", "folder"):
        yield (
            rows.get("source", MEMORY) != MEMORY and rows.get(key) is not None,
            f"data.{key}",
            "has an effect only with `source: memory`",
            f"Remove it (~data.{key} on the command line).",
        )


def format_problems(data: Json) -> Iterator[KeyProblem]:
    """What is wrong with `data.format`."""
    name = (data.get("data") or {}).get("format")
    try:
        by_name(name or "csv")
    except DataError as error:
        yield from (KeyProblem(("data", "format"), what, fix) for _, what, fix in error.problems)


def _loss_rules(task: Json, training: Json, options: type[TaskOptions] | None) -> Iterator[_Rule]:
    """Settings that the loss, or the decisions, of this kind of task do not read."""
    kind = task.get("kind")
    unsmoothed = options.unsmoothed if options else None
    for key in ("class_weights", "thresholds", "temperature", "labels") if kind == "regression" else ():
        yield task.get(key) is not None, f"task.{key}", f"has no effect with kind {kind}", "Remove it."
    several = kind in ("multi-label", "regression") and task.get("cutoffs") is not None
    yield several, "task.cutoffs", f"has no effect with kind {kind}", "Remove it, or use task.thresholds."
    for applies, what, fix in (
        (kind in ("multi-label", "regression"), f"task.kind {kind}", "smoothing is for single-label"),
        *([(True, *unsmoothed)] if unsmoothed else []),
        (task.get("head") == "crf", "task.head crf", "smoothing is for head: softmax"),
    ):
        smooth = applies and training.get("label_smoothing_factor")
        yield smooth, "training.label_smoothing_factor", f"has no effect with {what}", f"Remove it; {fix}."


def _training_rules(data: Json, training: Json, options: type[TaskOptions] | None) -> Iterator[_Rule]:
    stated = {key for key, value in data.items() if value is not None}
    early = "early_stopping" in stated
    folds = "folds" in stated
    kind = find_task(data["task"].get("name"))
    model = data.get("model", {})
    for key in ("eval_strategy", "save_strategy"):
        yield (
            early and training.get(key) == "no",
            f"training.{key}",
            "early_stopping needs evaluations and checkpoints",
            "Write epoch or steps, or remove early_stopping.",
        )
    yield (
        training.get("save_strategy") == "best" and training.get("eval_strategy") == "no",
        "training.save_strategy",
        "best needs evaluations",
        "Write epoch or steps, or remove eval_strategy.",
    )
    yield (
        early and training.get("load_best_model_at_end") is False,
        "training.load_best_model_at_end",
        "early_stopping keeps the best checkpoint, not the last one",
        "Remove it, or remove early_stopping.",
    )
    for key in ROWS:
        yield (
            "batching" in stated and key in training,
            f"training.{key}",
            "has no effect when `batching` counts tokens",
            f"Remove it (~training.{key} on the command line), or remove `batching`.",
        )
    yield (
        options and "pooling" in options.model_fields and training.get("auto_find_batch_size"),
        "training.auto_find_batch_size",
        "is not supported for losses that compare the rows of a batch",
        "Remove it; training.activation_checkpointing: true saves memory.",
    )
    yield (
        "distillation" in stated and data["task"].get("loss") == "listwise",
        "task.loss",
        "listwise does not support a teacher",
        "Use another loss, or remove `distillation`.",
    )
    yield (
        (data.get("distillation") or {}).get("alpha") == 1 and training.get("label_smoothing_factor"),
        "training.label_smoothing_factor",
        "has no effect with distillation.alpha 1, which leaves the labels out",
        "Remove it.",
    )
    yield (
        folds and "distillation" in stated,
        "folds",
        "the teacher may have been trained on rows that a fold holds out, which inflates the scores",
        "Remove `folds` or `distillation`.",
    )
    yield (
        folds and kind and kind.schema.corpus,
        "folds",
        "documents for pretraining have no targets to score a fold by",
        "Remove it.",
    )
    for key, field in TrainingKeys.model_fields.items():
        yield (
            key.startswith("muon_")
            and training.get("optim") != "muon"
            and training.get(key, field.default) != field.default,
            f"training.{key}",
            "has no effect without `optim: muon`",
            "Remove it, or write optim: muon.",
        )
    for key in HEAD:
        yield (
            model.get(key) is not None
            and (model.get("config") or (options and key not in options.head_settings)),
            f"model.{key}",
            "is only for classification with a pretrained encoder",
            "Remove it; for a new encoder, set it in model.config.",
        )
    yield (
        {"peft", "freeze"} <= stated,
        "freeze",
        "`peft` already freezes the whole encoder",
        "Remove `freeze` or `peft`.",
    )


def _schedule_rules(training: Json) -> Iterator[_Rule]:
    """Numbers of steps that are none, and those that a budget of time leaves open."""
    by_time = training.get("budget") is not None
    kwargs = training.get("lr_scheduler_kwargs") or {}
    shares = {"warmup_steps": training.get("warmup_steps", 0)}
    if isinstance(kwargs, Mapping):
        kwargs = {**(DECAY if training.get("lr_scheduler_type") == "warmup_stable_decay" else {}), **kwargs}
        shares |= {f"lr_scheduler_kwargs.{key}": kwargs[key] for key in STEP_KWARGS if key in kwargs}
    for key, value in shares.items():
        valid = isinstance(value, int | float) and value >= 0
        what = f"expected a number of steps, or a share of them below 1, found {short_repr(value)}"
        yield not valid, f"training.{key}", what, "Write a share, such as 0.1, or a number of steps."
        yield (
            by_time and valid and value >= 1,
            f"training.{key}",
            "is a number of steps, which a budget of time does not fix",
            "Write a share of the budget, such as 0.1.",
        )
    both = sum(value for value in shares.values() if isinstance(value, int | float) and value < 1)
    what = f"warm-up, stable phase and decay add up to {both:.12g} of all steps"
    yield both > 1, "training.lr_scheduler_kwargs", what, "Lower one of them, so that the sum is at most 1."
    for key in ("logging_steps", "eval_steps", "save_steps"):
        what = "is a share of all steps, whose number a budget of time does not fix"
        yield by_time and (training.get(key) or 1) < 1, f"training.{key}", what, "Write a number of steps."
    ends = {"num_train_epochs": "num_train_epochs" in training, "max_steps": training.get("max_steps", 0) > 0}
    for key, stated in ends.items():
        fix = f"Remove it (~training.{key} on the command line), or remove `budget`."
        yield by_time and stated, f"training.{key}", "`budget` already sets when training ends", fix
    yield (
        by_time and training.get("lr_scheduler_type") == "inverse_sqrt",
        "training.lr_scheduler_type",
        "inverse_sqrt depends only on the number of steps, and does not end with `budget`",
        "Use linear, cosine or warmup_stable_decay.",
    )


def _method_rules(
    data: Json, task: Json, training: Json, options: type[TaskOptions] | None
) -> Iterator[_Rule]:
    method = task.get("method")
    if options is None or method not in options.untrained:
        return
    model = data.get("model", {})
    what = f"has no effect with task.method {method}"
    fix = "Remove it, or write method: full."
    for section in ("distillation", "early_stopping", "peft", "freeze"):
        yield data.get(section) is not None, section, what, fix
    for key in HEAD:
        yield model.get(key) is not None, f"model.{key}", what, fix
    for key in training:
        fix = f"Remove it (~training.{key} on the command line), or write method: full."
        yield key not in STILL_READ, f"training.{key}", what, fix
    yield (
        model.get("config") is not None,
        "model.config",
        f"task.method {method} needs a pretrained encoder, not a new one",
        "Write a pretrained encoder in model.name, or method: full.",
    )


def _check_labels(task: Json) -> Iterator[KeyProblem]:
    stated = task.get("labels")
    if not stated:
        return
    in_order = isinstance(stated, list) and isinstance(stated[0], str)  # else a mapping, or its pairs
    labels = stated if in_order else list(dict(stated).values())
    for label, count in Counter(labels).items() if in_order else ():
        if count > 1:
            yield KeyProblem(("task", "labels"), f"{short_repr(label)} is listed {count} times", "Keep one.")
    if task.get("scheme", "none") != "none":  # of types, where the labels are tags
        prefixed = "O" in labels and any(name[1:2] == "-" for name in labels)
        labels = unique(["O", *(name[2 * prefixed :] or name for name in labels)])
    for key in ("class_weights", "thresholds", "cutoffs"):
        weights = task.get(key)
        for label in weights if isinstance(weights, dict) else ():
            if label not in labels:
                what = f"not a label{did_you_mean(label, labels)}"
                yield KeyProblem(("task", key, label), what, f"Labels: {short_repr(labels)}.")
