"""The tasks: bertkit's own, one file each, those that installed packages announce, and those added by
`register`.

An author imports what a task is made of from here. A package announces a task as an entry point of the group
`bertkit.tasks`, by the task's name; its class is imported when the task is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar, get_args

from bertkit.data import plugins
from bertkit.data.rows import Columns
from bertkit.data.schema import Answer, Column, Finding, Schema, note, warn
from bertkit.data.units import sentences
from bertkit.encoding.texts import encode_texts
from bertkit.encoding.word_windows import encode_words
from bertkit.errors import RecipeError, translated
from bertkit.evaluation.graded import Graded, Scored
from bertkit.evaluation.metrics import regression
from bertkit.models.encoder import Encoder, classifier, load_model
from bertkit.models.heads.tagger import emissions, window_emissions, word_logits, words_of_rows
from bertkit.tasks.base import Batch, Predict, Task, TaskOptions
from bertkit.tasks.fields import NUMBER, READ, SCORE, SPAN, AnswerForm, Key, Usage, form
from bertkit.tasks.pretraining import Pretraining
from bertkit.tasks.question_answering import QuestionAnswering
from bertkit.tasks.retrieval import Retrieval
from bertkit.tasks.sentence_similarity import SentenceSimilarity
from bertkit.tasks.text2text_generation import Text2TextGeneration
from bertkit.tasks.text_classification import TextClassification
from bertkit.tasks.text_ranking import TextRanking
from bertkit.tasks.token_classification import TokenClassification
from bertkit.tasks.vector_task import VectorTask
from bertkit.text import short_repr
from bertkit.validation import did_you_mean

__all__ = [
    "NUMBER",
    "READ",
    "SCORE",
    "SPAN",
    "Answer",
    "AnswerForm",
    "Batch",
    "Column",
    "Columns",
    "Encoder",
    "Finding",
    "Graded",
    "Key",
    "Predict",
    "Schema",
    "Scored",
    "Task",
    "TaskOptions",
    "Usage",
    "VectorTask",
    "classifier",
    "emissions",
    "encode_texts",
    "encode_words",
    "form",
    "load_model",
    "note",
    "register",
    "regression",
    "sentences",
    "warn",
    "window_emissions",
    "word_logits",
    "words_of_rows",
]

T = TypeVar("T", bound=Task)

OURS: Mapping[str, type[Task]] = {
    task.name: task
    for task in (
        TextClassification,
        TokenClassification,
        QuestionAnswering,
        SentenceSimilarity,
        Retrieval,
        TextRanking,
        Text2TextGeneration,
        Pretraining,
    )
}
# The state of this process: tasks of `register`.
_OTHERS: dict[str, type[Task]] = {}
GROUP = "bertkit.tasks"  # of entry points: name of a task -> module:class
_PACKAGE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?) [\w.!+-]+", re.ASCII)  # name and version


def register(task: type[T]) -> type[T]:
    """Let this process use a task of your own, by its name; also as a decorator. Returns the class.

    Other processes know it only if they register it too; a package announces it instead. A second class of
    the same name replaces the first, for example when a notebook's cell is run again. Raises RecipeError
    where the name is taken, or the class is not a complete task.

    >>> @bertkit.register  # doctest: +SKIP
    ... class WordNumbers(bertkit.tasks.Task): ...
    """
    name = str(getattr(task, "name", task.__name__))
    owner = "bertkit" if name in OURS else package_of(name)
    where = f"the task {short_repr(name)}"
    with translated(Exception, RecipeError, where, "is declared wrongly", "Correct the class."):
        why = f"{owner} has a task of this name" if owner else _fault(task, name)
    if why:
        raise RecipeError(
            where,
            why,
            "Correct the class, or its name; a task with an entry point is not registered.",
        )
    _OTHERS[name] = task
    return task


def task_names() -> list[str]:
    """The names of all tasks, ours first; no class is imported."""
    return [*OURS, *sorted(announced_packages().keys() | _OTHERS.keys())]


def all_tasks() -> list[type[Task]]:
    """All tasks that can be used, ours first."""
    return [task for task in map(find_task, task_names()) if task]


def find_task(name: object) -> type[Task] | None:
    """The task of this name; None: there is none, or it cannot be used."""
    with suppress(RecipeError):
        return get_task(name) if isinstance(name, str) else None
    return None


def get_task(name: str, package: object = None) -> type[Task]:
    """The task of this name. package: what a config.json, which anyone may have written, says that it is of.

    Raises RecipeError: there is no such task, with the package to install; or it cannot be used, with the
    reason.
    """
    if task := OURS.get(name) or _OTHERS.get(name):
        return task
    if not package_of(name):
        names = task_names()
        plugins.forget()  # one may be installed now
        if stated := _PACKAGE.fullmatch(str(package)):
            raise RecipeError(
                "task.name",
                f"its task {short_repr(name)} is of the package {stated[1]}, which is not installed",
                f"pip install {stated[1]}",
            )
        raise RecipeError(
            "task.name",
            f"no task {short_repr(name)}{did_you_mean(name, names)}",
            f"Choose one of {', '.join(names)}.",
        )
    other: type[Task] | str = plugins.load(GROUP, name, _fault)
    if isinstance(other, str):
        raise RecipeError("task.name", other, "Update the package, or report it there.")
    return other


def announced_packages() -> dict[str, str]:
    """Name of a task of another package -> the packages that announce it; our names are ours."""
    return {name: packages for name, packages in plugins.announced(GROUP).items() if name not in OURS}


def package_of(name: str) -> str | None:
    """Name and version of the package that announces this task; None of our own, and of one that was
    registered.
    """
    return announced_packages().get(name)


def is_registered(name: str) -> bool:
    """Whether other processes do not have this task."""
    return name in _OTHERS


def announced_tasks() -> dict[str, str]:
    """Name of a task of another package -> the package, or why it cannot be used."""
    packages = announced_packages()
    loaded = {name: plugins.load(GROUP, name, _fault) for name in packages}
    return packages | {name: why for name, why in loaded.items() if isinstance(why, str)}


def _fault(task: object, name: str) -> str:
    """Why a class cannot be the task of this name; empty if it can."""
    if not (isinstance(task, type) and issubclass(task, Task)):
        return f"{short_repr(task)} is not a subclass of bertkit.tasks.Task"
    missing = [
        member for member in ("name", "Options", "schema", "forms") if getattr(task, member, None) is None
    ]
    if missing := [*missing, *sorted(getattr(task, "__abstractmethods__", ()))]:
        return f"it lacks {', '.join(missing)}"
    if task.name != name:
        return f"its name is {short_repr(task.name)}"
    if get_args(task.Options.model_fields["name"].annotation) != (name,):
        return f"its Options do not declare  name: Literal[{name!r}]"
    if task.gives("vector") and not issubclass(task, VectorTask):
        return "its answers have vectors, so that it must be a bertkit.tasks.VectorTask"
    schema = task.schema
    named = {*schema.targets, *schema.context}.union(*schema.inputs)
    if unknown := sorted(named - schema.columns.keys()):
        return f"its schema has no column {', '.join(unknown)}"
    return ""
