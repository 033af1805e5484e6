"""The rows that a model reads, as a JSON schema; and rows of a request, checked before they wait with others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, create_model

from bertkit.data.table import Problems
from bertkit.errors import DataError, Problem
from bertkit.tasks.base import Task
from bertkit.text import short_repr

Row: TypeAlias = dict[str, Any]
_TYPES: dict[str, Any] = {"text": str, "words": list[str], "name": str | int | float | None}


class _Row(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")


class RowReader:
    """Rows as one task reads them: its columns, by their own names or by those that the recipe mapped them to."""

    def __init__(self, task: Task, columns: Mapping[str, str]) -> None:
        """columns: canonical column -> column of the user's rows."""
        self._task, self._columns = task, columns
        self.forms = [self._form(sorted(names)) for names in task.inputs]
        self._texts = any(names == {"text"} for names in task.inputs)

    def _form(self, names: Sequence[str]) -> type[_Row]:
        """One of the alternatives, as a pydantic model."""
        fields: dict[str, Any] = {}
        for name in names:
            column = self._task.schema.columns[name]
            fields[name] = (_TYPES[column.holds], Field(description=column.about))
        for name in sorted(set(self._task.schema.context) - set(names)):
            column = self._task.schema.columns[name]
            fields[name] = (_TYPES[column.holds], Field(None, description=column.about))
        title = "RowOf" + "And".join(name.title().replace("_", "") for name in names)
        return create_model(title, __base__=_Row, **fields)

    @property
    def annotation(self) -> Any:
        """The type of `rows` in a request, for pydantic: it reads with `self.read`, and has the schema of the forms."""
        kinds: list[Any] = [list[str]] if self._texts else []
        kinds += [list[form] for form in self.forms]  # type: ignore[valid-type]
        about = Field(description="texts, or rows; all with the same columns" if self._texts else "rows")
        return Annotated[list[Row], PlainValidator(self.read, json_schema_input_type=reduce(or_, kinds)), about]

    def read(self, given: object) -> list[Row]:
        """Rows of a request, in canonical columns. Raises DataError, naming rows and columns, never their order."""
        if not isinstance(given, list):
            raise DataError(Problem("rows", f"expected a list, found {short_repr(given)}"))
        rows = [{"text": row} if isinstance(row, str) else row for row in given]
        if not rows:
            return []
        unknown = [(number, row) for number, row in enumerate(rows, 1) if not isinstance(row, dict)]
        problems = Problems()
        for number, row in unknown:
            problems.add(f"row {number}", f"expected {self._wanted()}, found {short_repr(row)}")
        problems.raise_if_any()
        renamed = [self._renamed(row) for row in rows]
        fit = (f for f, names in zip(self.forms, self._task.inputs, strict=True) if names <= renamed[0].keys())
        form = next(fit, None)
        if form is None:
            has = ", ".join(map(str, rows[0])) or "nothing"
            raise DataError(Problem("row 1", f"no {self._wanted()} in this row; it has {has}"))
        read = []
        for number, row in enumerate(renamed, 1):
            try:
                read.append(form.model_validate(row).model_dump(exclude_unset=True))
            except ValidationError as error:
                for each in error.errors(include_input=False, include_url=False):
                    problems.add(f"row {number}", f"{'.'.join(map(str, each['loc']))}: {each['msg']}")
        problems.raise_if_any()
        return read

    def _renamed(self, row: Mapping[str, Any]) -> Row:
        """The task's columns of a row; where both names are there, the recipe's, as `Predictor` takes them."""
        named = {name: self._columns.get(name, name) for name in self._task.schema.columns}
        return {name: row[theirs] for name, theirs in named.items() if theirs in row} | {
            name: row[name] for name, theirs in named.items() if name in row and theirs not in row
        }

    def _wanted(self) -> str:
        return " or ".join(", ".join(sorted(names)) for names in self._task.inputs)

    def key(self, rows: Sequence[Row]) -> Hashable | None:
        """Rows with the same key may be answered in one call; None where answers depend on what rows come along."""
        task = self._task
        ranked = task.name == "retrieval" and "query" in rows[0]
        if task.resampled or ranked or any(name in row for row in rows for name in task.schema.context):
            return None
        return frozenset(rows[0])
