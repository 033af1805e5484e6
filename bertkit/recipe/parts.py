"""A recipe is of one or more tasks over one encoder: each is checked as the recipe that would train it by
itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bertkit.errors import RecipeError
from bertkit.files import read_json
from bertkit.recipe.cross_checks import check_settings, format_problems
from bertkit.recipe.fields import MEAN, Sections, Several
from bertkit.recipe.key_problems import Report
from bertkit.recipe.overrides import SCRIPTS, options_of, sections_of_keys
from bertkit.recipe.plain_data import resolve_paths, without
from bertkit.recipe.training_arguments import check_training
from bertkit.recipe.yaml import written
from bertkit.sections import MEMORY, ModelSpec
from bertkit.tasks import all_tasks, find_task, get_task, task_names
from bertkit.tasks.base import TaskOptions
from bertkit.text import Json, KeyPath, short_repr
from bertkit.validation import KeyProblem, describe, did_you_mean, validate

# Folders of a run, which are not tasks; and `mean`.
_RESERVED = sorted({MEAN, "adapter", "checkpoints", "data", "logs", "model", "predictions"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_OF_ONE = {  # sections of a recipe of one task -> what to do without them
    **dict.fromkeys(("task", "data"), "Move it into each task: tasks: {NAME: {task: …, data: …}}."),
    "folds": "Remove it, or cross-validate one task by itself.",
    "distillation": "Remove it, or distil one task by itself.",
    "hub": "Remove it; after training: bertkit push RUN/NAME OWNER/MODEL.",
    "expected": "Move it into each task: tasks: {NAME: {expected: …}}.",
}
SHARED = [name for name in Sections.model_fields if name not in _OF_ONE]
_REFUSED = ("auto_find_batch_size", "activation_checkpointing", "torch_compile")  # of `training`
# key of a task -> its section elsewhere
_OF_PART = {
    "max_length": "model",
    "metric_for_best_model": "training",
}
_OWN = ("task", "data", "expected")  # sections of a task


def check_parts(sections: Json, report: Report, check_files: bool, own_metrics: bool) -> dict[str, Json]:
    """Task -> plain data of the recipe that trains it by itself, with absolute paths.

    "" is the task of a recipe of one. Raises RecipeError with everything that is wrong.
    """
    entries = {"": Json()}
    problems = dict[KeyProblem, None]()  # what the tasks share is reported once
    if "tasks" in sections:
        own_metrics = False
        entries = {
            name: entry for name, entry in mapping(sections["tasks"]).items() if isinstance(entry, dict)
        }
        problems = dict.fromkeys(_check_several(sections))
    clean = {}
    for name, entry in entries.items():
        one = _by_itself(sections, entry) if name else sections
        section = mapping(one.get("data"))
        folder = report.home / name / "data"  # of rows that were given from Python
        if section.get("source") == MEMORY and report.name and folder.is_dir():
            section.setdefault("folder", str(folder))
        place = partial(_place, name, entry)
        clean[name], wrong = _check_one(one, report, name, place, check_files, own_metrics)
        problems |= dict.fromkeys(problem._replace(path=place(problem.path)) for problem in wrong)
    report.add(*problems)
    report.raise_if_any()
    return clean


def mapping(value: Any) -> Json:
    """The value if it is a mapping; otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def _place(task: str, entry: Json, path: KeyPath) -> KeyPath:
    """Where a key of the recipe that would train this task by itself is in that of all: in the task, or
    shared.
    """
    if not task:
        return path
    if path[0] in _OWN:
        return ("tasks", task, *path)
    return ("tasks", task, *path[1:]) if len(path) > 1 and path[1] in _OF_PART and path[1] in entry else path


def _by_itself(sections: Json, entry: Json) -> Json:
    """Plain data of the recipe that would train this task by itself."""
    one = {name: sections[name] for name in SHARED if name in sections}
    one |= {name: entry[name] for name in _OWN if name in entry}
    for key, section in _OF_PART.items():
        defaults = sections.get(section, {})
        if isinstance(defaults, dict):
            inherited = {
                name: value for name, value in defaults.items() if name != key or key == "max_length"
            }
            one[section] = inherited if entry.get(key) is None else {**inherited, key: entry[key]}
    return one


def _check_several(sections: Json) -> Iterator[KeyProblem]:
    """What is wrong with the keys that only a recipe of several tasks has, and with those that it must not
    have.
    """
    for name in sections.keys() & _OF_ONE.keys():
        yield KeyProblem((name,), "is not a key of a recipe of several tasks", _OF_ONE[name])
    invalid = validate(Several, {name: v for name, v in sections.items() if name not in (*SHARED, *_OF_ONE)})
    yield from (problem for problem in invalid if not {*problem.path[2:3]} & {*_OWN, *_OF_PART})
    entries = mapping(sections.get("tasks"))
    training = mapping(sections.get("training"))
    mixing = mapping(sections.get("mixing"))
    for name, entry in entries.items():
        task = mapping(mapping(entry).get("task"))
        if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
            what = "is not a valid name of a task, which becomes a folder of the run"
            fix = f"Use at most 64 letters, digits, - and _, and none of {', '.join(_RESERVED)}."
            yield KeyProblem(("tasks", name), what, fix)
        if (kind := find_task(task.get("name"))) and not kind.shares_encoder:
            fix = f"Known here: {', '.join(other.name for other in all_tasks() if other.shares_encoder)}."
            yield KeyProblem(
                ("tasks", name, "task", "name"), f"{kind.name} cannot share an encoder with other tasks", fix
            )
        if task.get("method") is not None:
            what = "several tasks are always fine-tuned in full"
            yield KeyProblem(("tasks", name, "task", "method"), what, "Remove it.")
    for name in sorted(mixing.keys() ^ entries.keys()) if isinstance(sections.get("mixing"), dict) else ():
        what = f"no task of this name{did_you_mean(name, entries)}" if name in mixing else "missing"
        yield KeyProblem(("mixing", name), what, f"Write a weight for each task: {', '.join(entries)}.")
    for name in _REFUSED:
        if training.get(name):
            yield KeyProblem(("training", name), "is not supported for several tasks", "Remove it.")
    best = training.get("metric_for_best_model", MEAN)
    if best != MEAN and best not in [*entries]:  # a list is not hashable
        what = f"expected {MEAN!r} or a task, found {short_repr(best)}"
        yield KeyProblem(("training", "metric_for_best_model"), what, f"Tasks: {', '.join(entries)}.")


def _check_one(
    data: Json,
    report: Report,
    name: str,
    place: Callable[[KeyPath], KeyPath],
    check_files: bool,
    own_metrics: bool,
) -> tuple[Json, list[KeyProblem]]:
    """The values that are right, paths as absolute ones, and everything that is wrong. place: of a key in the
    file.
    """
    options = options_of(data)
    problems = [*_task_problems(data, report.home / name)]
    kind = options or TaskOptions
    homes = SCRIPTS | {key: names[0] for key, names in sections_of_keys(kind).items() if not names[1:]}
    if options:
        columns = get_task(data["task"]["name"]).schema.columns
        stated = {key: value for key, value in mapping(data.get("data")).items() if key in columns}
        example = f"columns: {written(stated, flow=True).strip()}"
        homes |= dict.fromkeys(
            (f"data.{key}" for key in columns), f"Columns are mapped under data: {{{example}}}."
        )
    invalid = validate(Sections, data, {"task": kind}, homes)
    # without a task its options cannot be checked
    problems += [problem for problem in invalid if not problems or problem.path[:1] != ("task",)]
    if isinstance(data.get("training"), dict):
        problems += check_training(data["training"], homes)
    bad = {problem.path for problem in problems} | ({("task",)} if options is None else set())
    clean = without(data, bad)
    settings = {
        **clean,
        "model": vars(ModelSpec.model_construct(**clean.get("model", {}))),
        "task": vars(kind.model_construct(**clean.get("task", {}))),
    }
    contradictions = check_settings(settings, options, own_metrics)
    problems += [problem for problem in contradictions if not {problem.path, problem.path[:1]} & bad]
    if best := clean.get("training", {}).get("metric_for_best_model"):
        clean["training"]["metric_for_best_model"] = best.removeprefix("eval_")
    paths = resolve_paths(clean, lambda path: report.folder(place(path)), must_exist=check_files)
    return clean, [*problems, *format_problems(clean), *paths]


def _task_problems(data: Json, run: Path) -> Iterator[KeyProblem]:
    """What is wrong with the name of the task."""
    task = data.get("task")
    if not isinstance(task, dict) or options_of(data):
        return
    name = task.get("name")
    if not isinstance(name, str):
        what = "missing" if "name" not in task else f"expected text, found {describe(name)}"
        yield KeyProblem(("task", "name"), what, f"Known: {', '.join(task_names())}.")
        return
    config = run / "model" / "config.json"
    stated = mapping(mapping(read_json(config)).get("bertkit")) if config.is_file() else {}
    try:
        get_task(name, stated.get("package"))
    except RecipeError as error:
        yield from (KeyProblem(("task", "name"), problem.what, problem.fix) for problem in error.problems)
