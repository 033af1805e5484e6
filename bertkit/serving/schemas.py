"""The rows of a request and the answers to them as pydantic models, for validation and for the OpenAPI
schema.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import GenericAlias
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, create_model

from bertkit.data.rows import Columns
from bertkit.data.schema import Source
from bertkit.data.values import read_inputs
from bertkit.errors import DataError
from bertkit.tasks.base import Task
from bertkit.tasks.fields import AnswerForm
from bertkit.text import Json, short_repr

Row = Json
_TYPES: Json = {"text": str, "words": list[str], "name": str | int | float | None}


@dataclass(frozen=True)
class RowReader:
    """Reads rows for one task, whose columns have the task's names or those that the recipe mapped to
    them.
    """

    task: Task
    columns: Mapping[str, Source]  # canonical column -> column of the user's rows

    @property
    def annotation(self) -> Any:
        """The type of `rows` in a request for pydantic: validated by `self.read`, with a schema per set of
        inputs.
        """
        texts = any(names == {"text"} for names in self.task.inputs)
        kinds: list[Any] = [list[str]] * texts + [list[self._schema(names)] for names in self.task.inputs]  # type: ignore[misc]
        about = Field(description="texts, or rows; all with the same columns" if texts else "rows")
        return Annotated[
            list[Row], PlainValidator(self.read, json_schema_input_type=reduce(or_, kinds)), about
        ]

    def _schema(self, names: frozenset[str]) -> type[BaseModel]:
        schema = self.task.schema
        fields: Json = {}
        for name in [*sorted(names), *sorted(set(schema.context) - names)]:
            column = schema.columns[name]
            fields[name] = (
                _TYPES.get(column.holds, Any),
                Field(... if name in names else None, description=column.about),
            )
        return create_model(
            "RowOf" + "And".join(name.title().replace("_", "") for name in sorted(names)), **fields
        )

    def read(self, body: object) -> list[Row]:
        """Rows of a request, in canonical columns.

        Raises DataError with row numbers and columns.
        """
        if not isinstance(body, list):
            raise DataError("rows", f"expected a list, found {short_repr(body)}", "Send a list of rows.")
        if not body:
            return []
        try:
            columns = read_inputs(body, self.task.schema, self.task.inputs, self.columns)
        except DataError as error:  # its fixes are for the command line
            raise DataError(problem._replace(fix="") for problem in error.problems) from None
        return [*Columns(columns)]

    def key(self, rows: Sequence[Row]) -> Hashable | None:
        """Rows with equal keys may share a call; None where answers depend on the other rows of the call."""
        schema = self.task.schema
        ranked = schema.together and "query" in rows[0]  # texts alone are embedded
        if schema.corpus or ranked or any(name in row for row in rows for name in schema.context):
            return None
        return frozenset(rows[0])


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
    for field in holds.fields:
        kind = _typed(field.holds)
        fields[field.name] = (
            (described(kind | None, field.about), None) if field.optional else described(kind, field.about)
        )
    return schema(holds.name, holds.about, **fields)
