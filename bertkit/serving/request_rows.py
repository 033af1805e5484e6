"""Rows of a request: their JSON schema, and their columns as the task names them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainValidator, create_model

from bertkit.data.schema import Source
from bertkit.data.values import read_inputs
from bertkit.errors import DataError
from bertkit.serving.limits import Limits
from bertkit.tasks.base import Task
from bertkit.text import Json, short_repr

Row = dict[str, Any]
_TYPES: Json = {"text": str, "words": list[str], "name": str | int | float | None}


class RowReader:
    """Reads rows for one task, whose columns have the task's names or those that the recipe mapped to them."""

    def __init__(self, task: Task, columns: Mapping[str, Source], limits: Limits) -> None:
        """columns: canonical column -> column of the user's rows."""
        self._task, self._columns, self._limits = task, columns, limits

    @property
    def annotation(self) -> Any:
        """The type of `rows` in a request for pydantic: validated by `self.read`, with a schema per set of inputs."""
        texts = any(names == {"text"} for names in self._task.inputs)
        kinds: list[Any] = [list[str]] * texts + [list[self._schema(names)] for names in self._task.inputs]  # type: ignore[misc]
        about = Field(description="texts, or rows; all with the same columns" if texts else "rows")
        return Annotated[list[Row], PlainValidator(self.read, json_schema_input_type=reduce(or_, kinds)), about]

    def _schema(self, names: frozenset[str]) -> type[BaseModel]:
        schema = self._task.schema
        fields: Json = {}
        for name in [*sorted(names), *sorted(set(schema.context) - names)]:
            column = schema.columns[name]
            fields[name] = (_TYPES[column.holds], Field(... if name in names else None, description=column.about))
        return create_model("RowOf" + "And".join(name.title().replace("_", "") for name in sorted(names)), **fields)

    def read(self, body: object) -> list[Row]:
        """Rows of a request, in canonical columns.

        Raises DataError with row numbers and columns, and Refused for more rows than are allowed, before they are read.
        """
        if not isinstance(body, list):
            raise DataError("rows", f"expected a list, found {short_repr(body)}")
        if not body:
            return []
        self._limits.require_count(len(body), "rows")
        try:
            columns = read_inputs(body, self._task.schema, self._task.inputs, self._columns)
        except DataError as error:  # its fixes are for the command line
            raise DataError(problem._replace(fix="") for problem in error.problems) from None
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def key(self, rows: Sequence[Row]) -> Hashable | None:
        """Rows with equal keys may share a call; None where answers depend on the other rows of the call."""
        task = self._task
        ranked = task.schema.together and "query" in rows[0]  # texts alone are embedded
        if task.schema.corpus or ranked or any(name in row for row in rows for name in task.schema.context):
            return None
        return frozenset(rows[0])
