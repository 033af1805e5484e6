"""The forms in which Python gives data: rows or paths, alone, by split, or as a `data:` section."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from bertkit.data.problems import Problems
from bertkit.data.python_rows import Rows, is_a, is_frame, store_rows
from bertkit.data.reader import COMPRESSIONS
from bertkit.data.readers import by_suffix
from bertkit.data.splits import SPLITS, VALIDATION, match_splits
from bertkit.errors import DataError, Problem
from bertkit.sections import DataSpec
from bertkit.text import Json, Record, listed, short_repr
from bertkit.validation import did_you_mean

_COLUMNS = """
    pandas.Series pandas.Index polars.Series pyarrow.Array pyarrow.ChunkedArray numpy.ndarray datasets.Column
""".split()
_INSTEAD = {
    "polars.LazyFrame": "Give frame.collect().",
    "datasets.IterableDataset": "Load it without streaming=True.",
    "datasets.IterableDatasetDict": "Load it without streaming=True.",
    **dict.fromkeys(_COLUMNS, 'Give a frame or {"text": […], "label": […]}: rows with named columns.'),
}
_FORMS = "Give a DataFrame, a Dataset, a list of dicts, a dict of columns, or these by split: {'train': …}."


def data_section(data: Any) -> tuple[Json, dict[str, Rows]]:
    """What a user gives as data -> the keys of a `data:` section, and rows by split, empty where they are
    elsewhere.

    data: rows; a path, Hub id or `sample:NAME`; one of these by split in a dict, where `validation` and
    `test` may be numbers, as in a recipe; or a `data:` section, whose `source` is one of these. Raises
    DataError where it is none of them, or ambiguous.
    """
    if isinstance(data, str | os.PathLike):
        return {"source": os.fspath(data)}, {}
    if is_rows(data):
        return {}, {"train": data}
    if not isinstance(data, Mapping) or not data:
        raise DataError(_unknown("data", data))
    if is_a(data, "datasets.DatasetDict"):
        return {}, _matched(data, None)
    if "source" in data:
        section = {key: value for key, value in data.items() if key != "source"}
        if is_a(data["source"], "datasets.DatasetDict"):
            return {**section, "splits": None}, _matched(data["source"], section.get("splits"))
        source, rows = data_section(data["source"])
        return {**section, **source}, rows
    of_section = data.keys() & DataSpec.model_fields.keys() and "train" not in data
    if of_section and all(isinstance(data.get(split), Real | None) for split in ("validation", "test")):
        return dict(data), {}  # a section without its source
    return _by_split(data)


def is_rows(value: Any) -> bool:
    """Whether this is a frame, a data set, a list of rows or a dict of columns."""
    if is_frame(value):
        return True
    if isinstance(value, list | tuple):
        return not value or any(isinstance(row, Mapping) for row in value)
    if not isinstance(value, Mapping) or value.keys() <= {*SPLITS, *VALIDATION}:
        return False
    columns = value.values()
    # the others may hold dicts, such as answers
    return any(map(_is_column, columns)) and all(
        isinstance(column, list | tuple) or _is_column(column) for column in columns
    )


def scored_section(data: Any) -> Json:
    """The keys of a `data:` section for what a user gives to be scored; rows that stand alone are test.

    Raises DataError as `data_section` and `store_rows` do.
    """
    source = data.get("source") if isinstance(data, Mapping) and not is_rows(data) else None
    if is_rows(source) or (isinstance(source, str | os.PathLike) and Path(source).is_file()):
        data = {**data, "source": {"test": source}}
    section, rows = ({}, {"test": data}) if is_rows(data) else data_section(data)
    if not rows and "source" not in section:
        raise DataError("data", "has no rows to score", _FORMS)
    return section | (store_rows(rows) if rows else {})


def _is_column(value: Any) -> bool:
    plain = isinstance(value, list | tuple) and not any(isinstance(cell, Mapping) for cell in value)
    return plain or is_a(value, *_COLUMNS)


def _are_files(value: Any) -> bool:
    """Whether this is a list of paths, such as the shards of a split."""
    if not isinstance(value, list | tuple) or not all(isinstance(path, str | os.PathLike) for path in value):
        return False
    suffixes = {suffix.removeprefix(".") for path in value for suffix in Path(path).suffixes[-1:]}
    return bool(suffixes) and all(f".{suffix}" in COMPRESSIONS or by_suffix(suffix) for suffix in suffixes)


def _unknown(where: str, value: Any) -> Problem:
    what = f"expected rows, found {type(value).__name__} {short_repr(value)}"
    return Problem(where, what, next((fix for name, fix in _INSTEAD.items() if is_a(value, name)), _FORMS))


def _matched(splits: Record, names: Any) -> dict[str, Rows]:
    """The splits of a DatasetDict. names: as `data.splits`."""
    matched = match_splits(splits, DataSpec.model_construct(source="the DatasetDict", splits=names))
    if not matched:
        raise DataError(
            "data",
            f"no split train; it has {listed(list(splits)) or 'none'}",
            "Name them: {'source': …, 'splits': {'train': NAME}}.",
        )
    return {split: splits[name] for split, name in matched.items()}


def _by_split(splits: Mapping[Any, Any]) -> tuple[Json, dict[str, Rows]]:
    problems = Problems()
    section = dict[str, Any]()
    rows = dict[str, Rows]()
    files = dict[str, Any]()
    for name, value in splits.items():
        split = "validation" if name in VALIDATION else name
        where = f"data[{name!r}]"
        if split not in SPLITS:
            what = f"neither a split nor a column of values{did_you_mean(str(name), [*SPLITS, *VALIDATION])}"
            fix = f"Splits are {', '.join(SPLITS)}. {_FORMS}"
            if name in DataSpec.model_fields:
                what = "belongs beside the source"
                fix = f"{{'source': {{'train': …}}, {name!r}: {short_repr(value)}}}"
            problems.add(where, what, fix)
        elif split in {**rows, **files, **section}:
            problems.add(where, f"a second name for {split}", "Give one of them.")
        elif split != "train" and isinstance(value, Real):
            section[split] = value
        elif isinstance(value, str | os.PathLike) or _are_files(value):
            files[split] = value
        elif is_rows(value):
            rows[split] = value
        elif _is_column(value):
            what = f"ambiguous: `{name}` is the name of a split, but holds the values of one column"
            fix = (
                "Rows have named columns: {'train': {'text': […], 'label': […]}}. If it is a column, "
                "give a frame."
            )
            problems.add(where, what, fix)
        elif isinstance(value, Real):
            fix = "Only validation and test can be a share of train, or a number of its rows."
            problems.add(where, f"expected rows, found the number {value}", fix)
        else:
            problems.add(*_unknown(where, value))
    if rows and files:
        what = f"{listed(list(rows))} as rows, but {listed(list(files))} as files"
        problems.add("data", what, "Give all splits as rows, or all as files.")
    if section and not rows and not files and not problems:
        problems.add("data", "no train split", _FORMS)
    problems.raise_if_any()
    return (section | {"source": files} if files else section), rows
