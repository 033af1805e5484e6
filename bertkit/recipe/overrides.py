"""Changes of a recipe: `key.sub=value` and `~key.sub`; from Python sections, and keys of sections by their
names.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from numbers import Integral, Real
from typing import Any

from bertkit.data.python_inputs import data_section
from bertkit.data.python_rows import Rows, RowsFolder
from bertkit.recipe.fields import Sections, Several
from bertkit.recipe.key_problems import Report
from bertkit.recipe.training_arguments import DECIDED, WARMUP, training_fields
from bertkit.recipe.yaml import MAX_DEPTH, parse
from bertkit.sections import MEMORY
from bertkit.tasks import find_task
from bertkit.tasks.base import TaskOptions
from bertkit.text import Json, Record, dotted
from bertkit.validation import KeyProblem, describe, did_you_mean, fields_at, unknown_key

# in the order in which a misplaced key is looked up
_SECTIONS = "distillation task model data early_stopping peft freeze hub batching".split()
SCRIPTS = {  # arguments of transformers' scripts, and short names -> what to write here
    key: home
    for home, keys in {
        "model.max_length": "max_seq_length max_seq_len max_len sequence_length",
        "model.name": "model_name_or_path model_name base_model pretrained checkpoint encoder model.path",
        "model.revision": "model_revision",
        "data.source": "dataset_name dataset data_files file path",
        "data.subset": "dataset_config_name",
        "data.source.train": "train_file data.train",
        "data.source.validation": "validation_file",
        "data.source.test": "test_file",
        "data.columns": "text_column text_column_name label_column label_column_name",
        "data.validation": "validation_split val_split val_size eval_size data.dev data.val",
        "data.test": "test_split test_size",
        "data.limit.train": "max_train_samples",
        "data.limit.validation": "max_eval_samples",
        "task.name": "task_name",
        "task.stride": "doc_stride",
        "task.class_weights": "pos_weight",
        "training.num_train_epochs": "epochs num_epochs n_epochs max_epochs",
        "training.per_device_train_batch_size": "batch_size batch train_batch_size",
        "training.learning_rate": "lr",
        "training.gradient_accumulation_steps": "accumulation_steps grad_accum",
        "training.lr_scheduler_type": "scheduler lr_scheduler",
        "training.optim": "optimizer",
        WARMUP: "warmup warmup_ratio",
        "early_stopping.patience": "early_stopping_patience",
        "Write peft: {r: 8}.": "lora",
        "Remove it; labels are read from the data.": "num_labels id2label label2id",
        "Remove it; the head is always trained in full and saved with the adapter.": "modules_to_save",
    }.items()
    for key in keys.split()
}
SHORT = {"epochs": "num_train_epochs"}  # short name -> the field of TrainingArguments
_SHOWS = "Leave it out: only stated keys can be deleted."
_UNSTORED = "not stored yet"  # the fingerprint of rows while the recipe is checked
_NAMED = {"task": (), "model": ("config", "tokenizer", "revision")}  # section -> keys that go with its name


def apply_overrides(data: Json, overrides: Sequence[str], report: Report) -> None:
    """Change `data` in place, from left to right. What cannot be applied is reported."""
    for override in overrides:
        if refused := _apply(data, override, report):
            report.add_at(override, *refused)


def _apply(data: Json, override: str, report: Report) -> tuple[str, str] | None:
    """Apply one override; returns what is wrong with it, and a fix, if it cannot be applied."""
    left, *values = override.split("=", 1)
    delete = left.strip().startswith("~")
    path = tuple(word.strip() for word in left.strip().removeprefix("~").split("."))
    if re.search(r"[\ud800-\udfff]", override):
        return "not UTF-8 text", "Write it in UTF-8."
    if not all(path):
        return "no key", "Write key=value, key.sub=value or ~key."
    if len(path) > MAX_DEPTH:
        return f"more than {MAX_DEPTH} levels deep", "Use fewer levels."
    if delete and values:
        return "a deletion has no value", f"Write ~{dotted(path)}."
    if not delete and not values:
        return "no `=`", f"Write {dotted(path)}=value, or ~{dotted(path)} to delete it."
    value = "".join(values)
    if re.match(r"""[^'"\[{]*?(^|\s)#""", value):
        return (
            f"{dotted(path)}: YAML reads what follows # as a comment",
            f"Write '{dotted(path)}=\"{value}\"'.",
        )
    for depth, key in enumerate(path[:-1], start=1):
        here = dotted(path[:depth])
        if delete and key not in data:
            return f"{here}: not in the recipe{did_you_mean(key, data)}", _SHOWS
        if not delete and data.get(key) is None:
            data[key] = {}
            report.read(parse(""), path[:depth], override)
        if not isinstance(data[key], dict):
            whole = reduce(lambda value, key: f"{{{key}: {value}}}", reversed(path[depth:]), *values or "")
            fix = f"Delete all of it: ~{here}" if delete else f"Replace all of it: '{here}={whole}'"
            return f"{here}: expected a mapping, found {describe(data[key])}", fix
        data = data[key]
    if delete and path[-1] not in data:
        return f"{dotted(path)}: not in the recipe{did_you_mean(path[-1], data)}", _SHOWS
    document = parse(value)
    if delete:
        del data[path[-1]]
    else:
        data[path[-1]] = document.data
    report.read(document, path, override)
    return None


def plain_sections(sections: Record) -> tuple[Json, dict[str, Mapping[str, Rows]]]:
    """Sections as a user gives them -> plain data, as YAML has it, and the rows among them, by task and
    split.

    "" is the task of a recipe of one. Raises DataError where `data` is none of the forms of `data_section`.
    """
    plain = Json()
    rows = dict[str, Mapping[str, Rows]]()
    for name, value in sections.items():
        if name == "data" and value is not None:
            section, rows[""] = data_section(value)
            plain["data"] = plain_value(section) | (
                {"source": MEMORY, "fingerprint": _UNSTORED} if rows[""] else {}
            )
        elif name == "tasks" and isinstance(value, Mapping):
            plain["tasks"] = {}
            for task, part in value.items():
                one, of_part = plain_sections(part) if isinstance(part, Mapping) else (plain_value(part), {})
                plain["tasks"][str(task)] = one
                rows[str(task)] = of_part.get("", {})
        elif name != "data":
            named = name in _NAMED and isinstance(value, str | os.PathLike)
            plain[str(name)] = {"name": os.fspath(value)} if named else plain_value(value)
    return plain, rows


def fill_sections(stated: Json, values: Record, report: Report) -> None:
    """Set sections, and keys of sections by their own name, in plain data, in place. What is wrong is
    reported.

    A section is added to what is stated, except for `data`, which is replaced, and `expected` with it: the
    scores were measured on other data. What goes with a model's name or a task is left out with it.
    """
    top = {**Sections.model_fields, **Several.model_fields}
    for name in values.keys() & top.keys():
        before = stated.get(name, {})
        value = values[name]
        added = isinstance(before, dict) and isinstance(value, dict) and name != "data"
        if added and name in _NAMED and value.get("name", before.get("name")) != before.get("name"):
            before = {key: kept for key, kept in before.items() if key not in (_NAMED[name] or before)}
        stated[name] = {**before, **value} if added else value
        report.from_python(*((name, key) for key in value) if added else [(name,)])
    if "data" in values and "expected" not in values:
        stated.pop("expected", None)
    homes = sections_of_keys(options_of(stated) or TaskOptions)
    for name, value in ((SHORT.get(name, name), value) for name, value in values.items() if name not in top):
        section, *others = homes.get(name, [""])
        if others:
            examples = " or ".join(f"{section}={{{name!r}: …}}" for section in homes[name])
            report.add(KeyProblem((name,), "a key of several sections", f"Choose the section: {examples}."))
        elif not section:
            report.add(unknown_key((name,), [*top, *SHORT, *homes], SCRIPTS))
        else:
            before = {} if stated.get(section) is None else stated[section]
            if isinstance(before, dict):  # else it is reported as what it is
                stated[section] = {**before, name: value}
                report.from_python((section, name))


def options_of(stated: Record) -> type[TaskOptions] | None:
    """The type of the options of the task that is named, if there is one of this name."""
    section = stated.get("task")
    task = find_task(section.get("name")) if isinstance(section, dict) else None
    return task.Options if task else None


def sections_of_keys(options: type[TaskOptions]) -> dict[str, list[str]]:
    """Key -> the sections that have it, in which it means something; options: of the task."""
    homes = defaultdict(list)
    for section in _SECTIONS:
        for key in options.model_fields if section == "task" else fields_at(Sections, (section,)):
            homes[key].append(section)
    for key in training_fields():
        homes[key] = ["training"] if key in DECIDED else [*homes[key], "training"]
    return dict(homes)


def plain_value(value: Any) -> Any:
    """A Python value as what YAML has: dicts, lists, texts and numbers. Others stay as they are."""
    match value:
        case Mapping():
            return {str(key): plain_value(inner) for key, inner in value.items()}
        case list() | tuple() | set():
            return [plain_value(inner) for inner in value]
        case os.PathLike():
            return os.fspath(value)
        case str() if not isinstance(value, RowsFolder):
            return str.__str__(value)  # of an enum its value
        case bool() | None:
            return value
        case Integral():  # numpy's numbers too
            return int(value)
        case Real():
            return float(value)
    return value
