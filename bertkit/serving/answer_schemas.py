"""The answers that tasks declare as pydantic models, for the OpenAPI schema. `Task.decode` makes the answers."""

from __future__ import annotations

from functools import reduce
from operator import or_
from types import GenericAlias
from typing import Annotated, Any

from pydantic import ConfigDict, Field, create_model

from bertkit.tasks.base import Task
from bertkit.tasks.fields import AnswerForm


def schema(name: str, about: str, **fields: Any) -> Any:
    """A pydantic model for the OpenAPI schema. fields: name -> type, or (type, default)."""
    return create_model(name, __config__=ConfigDict(extra="forbid"), __doc__=about, **fields)


def described(type: Any, about: str) -> Any:
    """The type with a description."""
    return Annotated[type, Field(description=about)] if about else type


def list_of(item: Any) -> Any:
    """`list[item]` for a model that is a variable."""
    return GenericAlias(list, item)


def answer_type(task: Task) -> Any:
    """The type of an answer of this task."""
    return reduce(or_, map(_typed, task.answers))


def _typed(holds: Any) -> Any:
    """A type for what a field holds: its own, that of a form, or a list of one of them."""
    if isinstance(holds, list):
        return list_of(_typed(holds[0]))
    if not isinstance(holds, AnswerForm):
        return holds
    fields = {}
    for each in holds.fields:
        kind = _typed(each.holds)
        fields[each.name] = (described(kind | None, each.about), None) if each.optional else described(kind, each.about)
    return schema(holds.name, holds.about, **fields)
