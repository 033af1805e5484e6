"""Changes of a recipe: `key.sub=value` and `~key.sub`; from Python sections, and keys of sections by their names."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from pydantic import BaseModel

from bertkit import sections
from bertkit.data.python_inputs import data_section, is_rows
from bertkit.data.python_rows import Rows
from bertkit.data.splits import SPLITS, VALIDATION
from bertkit.recipe.key_problems import Report
from bertkit.recipe.training_arguments import DECIDED, training_fields
from bertkit.recipe.yaml import MAX_DEPTH, parse
from bertkit.sections import MEMORY, DataSpec, ModelSpec
from bertkit.tasks.base import TaskOptions
from bertkit.text import dotted
from bertkit.validation import KeyProblem, describe, did_you_mean, unknown_key

# name -> type of the sections, in the order in which a misplaced key is looked up
SECTIONS: Mapping[str, type[BaseModel]] = {
    "distillation": sections.Distillation, "task": TaskOptions, "model": ModelSpec, "data": DataSpec,
    "early_stopping": sections.EarlyStopping, "peft": sections.Lora, "freeze": sections.Freeze, "hub": sections.Hub,
    "batching": sections.Batching,
}  # fmt: skip
RENAMED = {  # arguments of transformers' scripts, and keys that do not exist -> what to write here
    "max_seq_length": "model.max_length", "model_name_or_path": "model.name", "model_revision": "model.revision",
    "dataset_name": "data.source", "dataset_config_name": "data.subset", "train_file": "data.source.train",
    "validation_file": "data.source.validation", "test_file": "data.source.test",
    **dict.fromkeys(("text_column", "text_column_name", "label_column", "label_column_name"), "data.columns"),
    "max_train_samples": "data.limit.train", "max_eval_samples": "data.limit.validation",
    "task_name": "task.name", "doc_stride": "task.stride", "epochs": "training.num_train_epochs",
    "batch_size": "training.per_device_train_batch_size", "lr": "training.learning_rate",
    "ema": "remove it; averaged weights scored no better than the last ones (docs/benchmarks.md)",
    "batch_ramp": "remove it; choose per_device_train_batch_size and gradient_accumulation_steps for all steps",
    "curriculum": "remove it; pretrain with a small model.max_length, then that model with a larger one",
    "packing": "remove it; rows had hardly less padding than batches of similar length (docs/benchmarks.md)",
    "spans": "remove it; whole_word: true masks all tokens of a word",
    "replace": "remove it; masked tokens become [MASK] (80 %), a random token or themselves (10 % each), as in BERT",
    "costs": "remove it; thresholds by label are fitted by bertkit calibrate RUN --precision X",
    "normalize_labels": "remove it, and give spellings one name in task.labels: {Pos: pos, pos: pos}",
    "decimal": 'remove it, and give the frame pandas.read_csv(FILE, sep=";", decimal=",")',
    "quoting": "remove it; in format: csv quotes group fields, in format: tsv they do not, each with any delimiter",
    "hidden": "remove it; a student learns from the teacher's outputs",
    **dict.fromkeys(("predictions", "report"), "remove it; hf upload REPO_ID FILE uploads more files"),
    "mini_batch": "remove it; training: {gradient_checkpointing: true} takes less memory",
    "pos_weight": "remove it; the thresholds of labels are fitted on validation rows",
    **dict.fromkeys(("constrained", "chain_learning_rate", "length_penalty"), "remove it; its default always applies"),
    "create_pr": "remove it, and push to a branch: revision: NAME",
    "mixed_steps": "remove it; all micro-batches of a step are of one task",
}  # fmt: skip
SHORT = {"epochs": "num_train_epochs"}  # short name -> the field of TrainingArguments
_UNSTORED = "not stored yet"  # the fingerprint of rows while the recipe is checked
_NAMED = {"task": (), "model": ("config", "tokenizer", "revision")}  # section -> keys that go with its name


def apply_overrides(data: dict[str, Any], overrides: Sequence[str], report: Report) -> None:
    """Change `data` in place, from left to right. What cannot be applied is reported."""
    for override in overrides:
        if refused := _apply(data, override, report):
            report.add_at(override, *refused)


def _apply(data: dict[str, Any], override: str, report: Report) -> tuple[str, str] | None:
    """Apply one override; returns what is wrong with it, and a fix, if it cannot be applied."""
    left, equals, value = override.partition("=")
    delete = left.strip().startswith("~")
    path = tuple(word.strip() for word in left.strip().removeprefix("~").split("."))
    if re.search(r"[\ud800-\udfff]", override):
        return "not UTF-8 text", ""
    if not all(path):
        return "no key", "write key=value, key.sub=value or ~key"
    if len(path) > MAX_DEPTH:
        return f"more than {MAX_DEPTH} levels deep", ""
    if delete and equals:
        return "a deletion has no value", f"write ~{dotted(path)}"
    if not delete and not equals:
        return "no `=`", f"write {dotted(path)}=value, or ~{dotted(path)} to delete it"
    for depth, key in enumerate(path[:-1], start=1):
        here = dotted(path[:depth])
        if delete and key not in data:
            return f"{here}: not in the recipe{did_you_mean(key, data)}", ""
        if not delete and data.get(key) is None:
            data[key] = {}
            report.read(parse(""), path[:depth], override)
        if not isinstance(data[key], dict):
            what = f"{here} is {describe(data[key])}, so it has no `{path[depth]}`"
            return what, "" if delete else f"override all of it: {here}=VALUE"
        data = data[key]
    if delete and path[-1] not in data:
        return f"{dotted(path)}: not in the recipe{did_you_mean(path[-1], data)}", ""
    document = parse("" if delete else value)
    if delete:
        del data[path[-1]]
    else:
        data[path[-1]] = document.data
    report.read(document, path, override)
    return None


def plain_sections(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Rows]]:
    """Sections as a user gives them -> plain data, as YAML has it, and the rows among them, by split.

    Raises DataError where `data` is none of the forms of `data_section`.
    """
    plain = {str(name): _plain(_as_section(name, value)) for name, value in keywords.items() if name != "data"}
    rows: dict[str, Rows] = {}
    if keywords.get("data") is not None:
        section, rows = data_section(keywords["data"])
        plain["data"] = _plain(section) | ({"source": MEMORY, "fingerprint": _UNSTORED} if rows else {})
    return plain, rows


def fill_sections(
    base: dict[str, Any], keywords: Mapping[str, Any], top: Mapping[str, Any], options: Mapping[str, Any]
) -> list[KeyProblem]:
    """Set sections, and keys of sections by their own name, in place; returns what is wrong with the names.

    A section's dict is added to what the section has, except for `data`, which is replaced, and `expected` with it: the
    scores were measured on other data. What goes with a model's name or a task is left out with it.
    top: the names of the sections and other keys at the top. options: task -> type of its options.
    """
    for name in keywords.keys() & top.keys():
        base[name] = _merged(name, base.get(name), keywords[name])
    if "data" in keywords and "expected" not in keywords:
        base["expected"] = None
    problems, task = [], base.get("task")
    task_name = task.get("name", "") if isinstance(task, Mapping) else str(task)
    kinds = {**SECTIONS, "task": options.get(task_name, TaskOptions)}
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for section, kind in kinds.items():
        for key in kind.model_fields:
            homes[key].append(section)
    homes |= {key: ["training"] if key in DECIDED else [*homes.get(key, ()), "training"] for key in training_fields()}
    for name, value in ((SHORT.get(name, name), value) for name, value in keywords.items() if name not in top):
        if len(homes[name]) > 1:
            examples = " or ".join(f"{section}={{{name!r}: …}}" for section in homes[name])
            problems.append(KeyProblem((name,), "a key of several sections", f"Name the section: {examples}."))
        elif not homes[name]:
            problems.append(unknown_key((name,), [*top, *SHORT, *(key for key, own in homes.items() if own)], RENAMED))
        else:
            section = homes[name][0]
            before = {} if base.get(section) is None else _as_section(section, base[section])
            if isinstance(before, Mapping):  # else it is reported as what it is
                base[section] = {**before, name: value}
    return problems


def _merged(name: str, before: Any, given: Any) -> Any:
    """What a section is after an override: `given` added to `before`, or in its place."""
    before, given = (_as_section(name, value) for value in (before, given)) if name != "data" else (before, given)
    if name == "data" or not isinstance(given, Mapping) or not isinstance(before, Mapping):
        return given
    if name in _NAMED and given.get("name", before.get("name")) != before.get("name"):
        before = {key: value for key, value in before.items() if key not in (_NAMED[name] or before)}
    return {**before, **given}


def _as_section(name: str, value: Any) -> Any:
    """A section as a dict, where it is given as a name or as rows."""
    if name == "data" and value is not None:
        by_split = isinstance(value, Mapping) and "source" not in value and value.keys() & {*SPLITS, *VALIDATION}
        return {"source": value} if by_split or is_rows(value) or not isinstance(value, Mapping) else value
    return {"name": os.fspath(value)} if name in _NAMED and isinstance(value, str | os.PathLike) else value


def _plain(value: Any) -> Any:
    """A Python value as what YAML has: dicts, lists, texts and numbers. What is none of them stays as it is."""
    match value:
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple() | set():
            return [_plain(inner) for inner in value]
        case os.PathLike():
            return os.fspath(value)
        case str():
            return str(value)
        case bool() | None:
            return value
        case Integral():  # numpy's numbers too
            return int(value)
        case Real():
            return float(value)
    return value
