"""What no single value of a recipe can show: settings that contradict each other, and files that are not there.

The functions take plain data whose values have the right types (wrong ones are reported and left out), so
that everything is found at once even in a recipe that is not valid yet.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertkit.text import KeyPath, escape_controls, short_repr
from bertkit.validation import KeyProblem, did_you_mean

_CONLL = "conll|bio|iob|iob2|bioes"
_DATA_FILE = re.compile(rf".*\.(csv|tsv|json|jsonl|parquet|txt|{_CONLL})(\.gz|\.xz)?", re.DOTALL)
_TEXT_FILE = re.compile(rf".*\.(csv|tsv|{_CONLL})(\.gz|\.xz)?", re.DOTALL)


SMOOTHLESS = ("cosent", "cosine-mse", "multiple-negatives-ranking")  # losses of sentence-similarity without labels


def check_settings(data: Mapping[str, Any], metrics: frozenset[str] | None) -> Iterator[KeyProblem]:
    """Contradictions between settings; `task` and `model` have their defaults filled in.

    metrics: the names that the task's `score` gives, or null where the task is not known.
    """
    task, training = data.get("task", {}), data.get("training", {})
    yield from _check_model(data.get("model", {}))
    yield from _check_loss(task, training)
    yield from _check_labels(task)
    yield from _check_selection(data.get("early_stopping"), training)
    if metrics is not None:
        yield from check_headline(training, metrics)
    if training.get("bf16") and training.get("fp16"):
        yield KeyProblem(
            ("training", "fp16"), "bf16 and fp16 are both on", "keep bf16, unless the device has only fp16"
        )
    stride, max_length = task.get("stride", 0), data.get("model", {}).get("max_length", math.inf)
    if task.get("overflow") == "window" and stride >= max_length - 2:
        what = f"{stride} shared word pieces, in windows of {max_length} of which 2 are special"
        yield KeyProblem(("task", "stride"), what, f"write at most {max_length - 3}, or raise model.max_length")
    for seed, count in Counter(data.get("seeds", ())).items():
        if count > 1:
            yield KeyProblem(("seeds",), f"{seed} is there {count} times", "a seed twice is the same run twice")
    if data.get("peft") is not None and data.get("freeze") is not None:
        yield KeyProblem(("freeze",), "`peft` already freezes the whole encoder", "remove `freeze` or `peft`")
    yield from _check_distillation(data.get("distillation") or {}, data.get("model", {}), task)
    yield from _check_table(data.get("data", {}))


def check_headline(training: Mapping[str, Any], metrics: frozenset[str]) -> Iterator[KeyProblem]:
    """`metric_for_best_model` must be one of `metrics`, where a name ending in `/` stands for one per label."""
    path = ("training", "metric_for_best_model")
    if training.get("greater_is_better") is False:
        yield KeyProblem(("training", "greater_is_better"), "higher is better, always", "remove it")
    given = training.get(path[1])
    if given is None:
        return
    name = given.removeprefix("eval_")
    if name == "loss":
        fix = "write neg_log_loss, or neg_mean_squared_error for regression"
        yield KeyProblem(path, f"expected a metric of which higher is better, always; found {given}", fix)
    elif name not in metrics and name.partition("/")[0] + "/" not in metrics:
        known = sorted(metric + "LABEL" if metric.endswith("/") else metric for metric in metrics)
        what = f"the task has no metric {short_repr(name)}{did_you_mean(name, known)}"
        yield KeyProblem(path, what, f"known here: {', '.join(known)}")


def _check_model(model: Mapping[str, Any]) -> Iterator[KeyProblem]:
    name, config, tokenizer = model.get("name"), model.get("config"), model.get("tokenizer")
    if name is None and config is None:
        yield KeyProblem(
            ("model", "name"), "missing", "a Hub id or a folder; or config and tokenizer, for a new encoder"
        )
    elif name is not None and config is not None:
        yield KeyProblem(("model", "config"), "`name` is a model with weights and a config", "remove one of the two")
    elif config is not None and tokenizer is None:
        fix = "name a folder that `bertkit tokenizer train` wrote, or a Hub id"
        yield KeyProblem(("model", "tokenizer"), "missing: a new encoder needs one", fix)
    elif config is None and tokenizer is not None:
        yield KeyProblem(("model", "tokenizer"), "`name` brings its own tokenizer", "remove it")


def _check_loss(task: Mapping[str, Any], training: Mapping[str, Any]) -> Iterator[KeyProblem]:
    kind = task.get("kind")
    for key, wrong, fix in (
        ("pos_weight", ("single-label", "regression"), "write class_weights for single-label, or remove it"),
        ("class_weights", ("multi-label", "regression"), "write pos_weight for multi-label, or remove it"),
        ("thresholds", ("single-label", "regression"), "remove it; thresholds are for multi-label"),
    ):
        if kind in wrong and task.get(key) is not None:
            yield KeyProblem(("task", key), f"has no meaning for kind {kind}", fix)
    if kind in ("multi-label", "regression") and training.get("label_smoothing_factor"):
        path = ("training", "label_smoothing_factor")
        yield KeyProblem(path, f"has no meaning for task.kind {kind}", "remove it; smoothing is for single-label")
    if task.get("name") == "question-answering" and training.get("label_smoothing_factor"):
        path = ("training", "label_smoothing_factor")
        yield KeyProblem(path, "has no meaning for question-answering", "remove it; an answer stands where it stands")
    by_pairs = task.get("name") in ("retrieval", "text-ranking") or task.get("loss") in SMOOTHLESS
    if by_pairs and training.get("label_smoothing_factor"):
        path = ("training", "label_smoothing_factor")
        yield KeyProblem(path, "has no meaning for a loss of pairs", "remove it; smoothing is for labels")
    if task.get("head") == "crf" and training.get("label_smoothing_factor"):
        path = ("training", "label_smoothing_factor")
        yield KeyProblem(path, "has no meaning for task.head crf", "remove it; smoothing is for head: softmax")


def _check_distillation(
    distillation: Mapping[str, Any], model: Mapping[str, Any], task: Mapping[str, Any]
) -> Iterator[KeyProblem]:
    if distillation.get("student") and model.get("config") is not None:
        what = "keeps layers of a pretrained model, but `model.config` makes a new one"
        yield KeyProblem(("distillation", "student"), what, "say it there: model: {config: {num_hidden_layers: …}}")
    if distillation.get("hidden") and task.get("mini_batch") is not None:
        what = "hidden states are learned of whole batches, which `task.mini_batch` divides"
        yield KeyProblem(("distillation", "hidden"), what, "remove one of the two")


def _check_labels(task: Mapping[str, Any]) -> Iterator[KeyProblem]:
    given = task.get("labels")
    if not given:
        return
    labels = list(given.values()) if isinstance(given, dict) else given
    for label, count in Counter(labels).items() if isinstance(given, list) else ():
        if count > 1:
            yield KeyProblem(("task", "labels"), f"{short_repr(label)} is there {count} times", "keep one")
    for key in ("class_weights", "pos_weight", "thresholds"):
        weights = task.get(key)
        for label in weights if isinstance(weights, dict) else ():
            if label not in labels and (label != "O" or "scheme" not in task):
                what = f"not a label{did_you_mean(label, labels)}"
                yield KeyProblem(("task", key, label), what, f"labels: {short_repr(labels)}")


def _check_selection(early_stopping: object, training: Mapping[str, Any]) -> Iterator[KeyProblem]:
    if early_stopping is None:
        return
    for key in ("eval_strategy", "save_strategy"):
        if training.get(key) == "no":
            what = "early_stopping needs evaluations and checkpoints"
            yield KeyProblem(("training", key), what, "write epoch or steps, or remove early_stopping")
    if training.get("load_best_model_at_end") is False:
        what = "early_stopping keeps the best checkpoint, not the last"
        yield KeyProblem(("training", "load_best_model_at_end"), what, "remove it, or remove early_stopping")


def _check_table(data: Mapping[str, Any]) -> Iterator[KeyProblem]:
    if not isinstance(data.get("header"), list):
        return
    files = [text for _, text in _sources(data) if _DATA_FILE.fullmatch(text)]
    named = data.get("format") or (files and not any(map(_TEXT_FILE.fullmatch, files)) and "json or parquet")
    if named and named not in ("csv", "tsv", "conll"):
        fix = "remove it; `columns` maps the names that the data have"
        yield KeyProblem(("data", "header"), f"{named} files name their own columns", fix)


def _sources(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Every text under data.source, and its key path."""
    source = data.get("source")
    if isinstance(source, str):
        yield ("data", "source"), source
    for split, names in source.items() if isinstance(source, dict) else ():
        if isinstance(names, str):
            yield ("data", "source", split), names
        for position, name in enumerate(names if isinstance(names, list) else ()):
            yield ("data", "source", split, position), name


def resolve_paths(
    data: dict[str, Any], folder: Callable[[KeyPath], Path], *, must_exist: bool = True
) -> Iterator[KeyProblem]:
    """Make the paths in `data` absolute, in place; what is not there is found.

    folder: key path -> the folder that a relative path there starts from.
    """
    section = data.get("data", {})
    by_split = isinstance(section.get("source"), dict)
    for path, text in list(_sources(section)):
        there = _absolute(text, folder(path))
        looks = by_split or _starts_as_path(text) or bool(_DATA_FILE.fullmatch(text))
        if text.startswith("sample:") and not by_split:
            continue
        if os.path.exists(there) or (looks and not must_exist):
            _put(data, path, there)
        elif looks:
            yield KeyProblem(path, f"no file or folder '{escape_controls(there)}'{_near(there)}")
    for path in (("model", "name"), ("model", "tokenizer"), ("distillation", "teacher")):
        name = (data.get(path[0]) or {}).get(path[1])
        if not isinstance(name, str):
            continue
        there = _absolute(name, folder(path))
        if os.path.isdir(there) or (_starts_as_path(name) and not must_exist):
            _put(data, path, there)
        elif _starts_as_path(name):
            yield KeyProblem(path, f"no folder '{escape_controls(there)}'{_near(there)}")


def _starts_as_path(text: str) -> bool:
    return text in (".", "..") or text.startswith(("./", "../", "/", "~"))


def _absolute(text: str, folder: Path) -> str:
    return os.path.abspath(os.path.join(folder, os.path.expanduser(text)))


def _near(missing: str) -> str:
    """What is in the folder under a similar name."""
    folder, name = os.path.split(missing)
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):
        return ""
    return did_you_mean(name, names[:1000])


def _put(data: Any, path: KeyPath, value: str) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


def without(data: Any, bad: set[KeyPath], path: KeyPath = ()) -> Any:
    """A copy of plain data without the keys at `bad`; a list with a bad item is left out whole."""
    if isinstance(data, dict):
        kept = {key: value for key, value in data.items() if not _is_bad((*path, key), value, bad)}
        return {key: without(value, bad, (*path, key)) for key, value in kept.items()}
    return [without(item, bad, (*path, n)) for n, item in enumerate(data)] if isinstance(data, list) else data


def _is_bad(path: KeyPath, value: Any, bad: set[KeyPath]) -> bool:
    return path in bad or (isinstance(value, list) and any((*path, n) in bad for n in range(len(value))))
