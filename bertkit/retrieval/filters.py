"""Filters are data: conditions on a store's columns, checked against their types. None of their texts is
executed.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, Problem
from bertkit.recipe.overrides import plain_value
from bertkit.retrieval.documents import TYPE_NAMES
from bertkit.text import Record, short_repr

Filter = Record
"""Column -> a value, a list of which one must hold, or {"gte": value, …} with eq, ne, gt, gte, lt, lte."""
Columns = Mapping[str, pa.DataType]

ORDERED = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
SIGNS = {"=": "eq", "!=": "ne", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
MAX_VALUES = 100  # of a filter
MAX_CHARACTERS = 1000  # of a text in it
EXAMPLE = (
    'Write, for example, {"lang": "en", "year": {"gte": 2020}}, on the command line lang=en and year>=2020.'
)


def parse_filter(conditions: Sequence[str], columns: Columns) -> Filter:
    """The filter of conditions such as `lang=en` and `year>=2020`; of those with = on one column one must
    hold.

    Values are read by the type of their column. Raises DataError.
    """
    result = dict[str, dict[str, list[Any]]]()
    for text in [conditions] if isinstance(conditions, str) else conditions:
        match = re.fullmatch(r"\s*(.+?)\s*(!=|>=|<=|=|>|<)\s*(.*)", text, re.DOTALL)
        if not match:
            raise DataError(
                f"filter {short_repr(text)}", "expected a column, one of = != > >= < <=, and a value", EXAMPLE
            )
        name = match[1]
        value = match[3]
        try:
            typed = value if _item(columns.get(name)) == pa.string() else json.loads(value)
        except (ValueError, RecursionError):
            typed = value
        result.setdefault(name, {}).setdefault(SIGNS[match[2]], []).append(typed)
    return result


def to_sql(filter: Filter, columns: Columns) -> str | None:
    """The condition in LanceDB's SQL, which LanceDB writes itself from typed values; None for no condition.

    Raises DataError: unknown columns and comparisons, values of other types, too many of them.
    """
    tests = [
        (name, sign, value if isinstance(value, list) else [value])
        for name, wanted in plain_value(filter).items()
        for sign, value in (wanted.items() if isinstance(wanted, Mapping) and wanted else [("eq", wanted)])
    ]
    if sum(len(values) or 1 for *_, values in tests) > MAX_VALUES:
        raise DataError("filter", f"more than {MAX_VALUES} values", "Filter by fewer values.")
    if problems := [Problem("filter", what, EXAMPLE) for test in tests for what in _wrong(*test, columns)]:
        raise DataError([problems[0], *(problem._replace(fix="") for problem in problems[1:])])
    from lancedb.expr import col, lit

    parts = []
    for name, sign, values in tests:
        column = col(name)
        options = [lit(_typed(value, _item(columns[name]))) for value in values]
        if sign in ORDERED:
            part = ORDERED[sign](column, options[0]).to_sql()
        elif pa.types.is_list(columns[name]):
            part = f"array_has_any({column.to_sql()}, [{', '.join(option.to_sql() for option in options)}])"
        else:
            part = column.isin(options).to_sql()
        parts.append(f"NOT ({part})" if sign == "ne" else f"({part})")
    return " AND ".join(parts) or None


def _wrong(name: str, sign: str, values: Sequence[Any], columns: Columns) -> Iterator[str]:
    """What is wrong with a condition."""
    if (kind := columns.get(name)) is None:
        have = ", ".join(f"{column} ({TYPE_NAMES[holds]})" for column, holds in columns.items())
        yield f"there is no column {short_repr(name)}; there are {have}"
    elif sign not in SIGNS.values():
        yield f"`{name}`: {short_repr(sign)} is not one of {', '.join(SIGNS.values())}"
    elif sign in ORDERED and (len(values) != 1 or pa.types.is_list(kind) or kind == pa.bool_()):
        yield f"`{name}`: `{sign}` compares a text or a number with one value"
    elif not values or any(_typed(value, _item(kind)) is None for value in values):
        yield f"`{name}` holds {TYPE_NAMES[kind]}, and cannot be compared with {short_repr(values)}"


def _item(kind: pa.DataType | None) -> pa.DataType | None:
    """The type of a column's values, in lists that of their items."""
    return kind.value_type if kind is not None and pa.types.is_list(kind) else kind


def _typed(value: Any, kind: pa.DataType | None) -> Any:
    """The value as one of such a column; None if it is none."""
    if kind == pa.string():
        return replace_surrogates(value) if isinstance(value, str) and len(value) <= MAX_CHARACTERS else None
    if kind == pa.bool_():
        return value if isinstance(value, bool) else None
    if not (type(value) is int or (type(value) is float and kind == pa.float64())):
        return None
    if kind == pa.int64():
        return value if abs(value) < 2**63 else None
    return float(value) if abs(value) < 1e300 else None
