"""Corrections listed in files: `data.exclude`, rows that are left out, and `data.relabel`, rows with other
targets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from bertkit.data.delimited import unguarded
from bertkit.data.disk_list import DiskList
from bertkit.data.origin import MAX_LOCATIONS, Origin
from bertkit.data.problems import Problems
from bertkit.data.readers import read_rows, reader_of
from bertkit.data.schema import ID, Column, Finding, Schema, note
from bertkit.data.splits import names_of
from bertkit.data.table import Checked, Table
from bertkit.data.tagged import tag_words
from bertkit.data.units import as_spans
from bertkit.data.values import convert, split_labels
from bertkit.errors import DataError
from bertkit.sections import DataSpec
from bertkit.text import Json, Record, counted, listed, unique
from bertkit.validation import did_you_mean

ValidateRows = Callable[[Table, str], Checked]
Place = tuple[str, int]  # split, row
FORMATS = ("jsonl", "csv")  # as `bertkit audit` writes its lists
_LOCATION = re.compile(r"(.*?\D\d+)(?:, id .*)?", re.DOTALL)  # as `Origin` writes it


class _Targets(NamedTuple):
    """The new values of a target in rows of a split."""

    name: str  # of its column
    values: dict[int, Any]  # row -> its new value as `validate_rows` leaves it
    spans: dict[int, Any]  # of tags where the data or the list have spans: row -> the new spans
    findings: list[Finding]  # warnings of `validate_rows`


class _Record(NamedTuple):
    """A row of a list of corrections."""

    file: Path
    prefix: str  # of its location in the file
    number: int
    values: Json  # those that it has of `location`, `id`, the inputs and the targets

    @property
    def where(self) -> str:
        return f"{self.prefix}{self.number}"

    @property
    def row(self) -> str:
        """How it names the row that it corrects."""
        return self.values["location"] if "location" in self.values else f"id {self.values['id']}"

    @property
    def row_key(self) -> str:
        """Its row, without the id that may follow a location."""
        match = _LOCATION.fullmatch(self.row)
        return match[1] if match and "location" in self.values else self.row


def corrected(
    validate_rows: ValidateRows,
    tables: Mapping[str, Table],
    spec: DataSpec,
    schema: Schema,
    *,
    complete: bool,
) -> ValidateRows:
    """`validate_rows`, of these tables without the rows of `data.exclude` and with the targets of
    `data.relabel`.

    tables: the rows as they were read, by split.  complete: whether these are all splits of the source, so
    that a record that matches none of them is an error.
    Raises DataError with all that is wrong in the lists: a record without a row, with several, with one whose
    inputs differ, or without a target; rows in both lists. The function that is returned raises it where a
    target does not fit its row, or no row remains.
    """
    if not spec.exclude and not spec.relabel:
        return validate_rows
    targets = schema.targets  # tags, or the spans that they are made of
    if not any(schema.columns[name].tagged for name in targets):
        present = {*chain.from_iterable(table.values for table in tables.values())}
        targets = ([name for name in targets if name in present] or targets)[:1]
    problems = Problems()
    inputs = {"id", *chain.from_iterable(schema.inputs)}
    columns = {"location": ID, **{name: schema.columns[name] for name in schema.columns if name in inputs}}
    excluded = list(_read(spec.exclude, spec, columns, problems))
    columns |= {name: schema.columns[name] for name in targets}
    relabelled = list(_read(spec.relabel, spec, columns, problems))
    expected = " or ".join(f"`{name}`" for name in targets)
    for record in relabelled:
        if len(record.values.keys() & targets) != 1:
            what = f"a new value for {expected} is expected"
            problems.add(record.where, what, "To leave the row out, list it in data.exclude.")
    match = partial(_match, tables=tables, compared=inputs, problems=problems, complete=complete)
    out = dict(match(excluded))
    new = dict[Place, _Record]()
    for place, record in match(relabelled):
        first = new.setdefault(place, record)
        if place in out:
            what = f"{record.row} is excluded by {out[place].where}"
            problems.add(record.where, what, "Remove it from one of the lists.")
        elif [record.values.get(name) for name in targets] != [first.values.get(name) for name in targets]:
            what = f"{record.row} has another {expected} in {first.where}"
            problems.add(record.where, what, "Remove one of the two records.")
    problems.raise_if_any()
    return partial(_refined, validate_rows, schema, out, new)


# --- the lists


def _read(
    setting: str | list[str] | None, spec: DataSpec, columns: Mapping[str, Column], problems: Problems
) -> Iterator[_Record]:
    """The records of these files, with their values of these columns; what cannot be read goes into
    `problems`.
    """
    for file in map(Path, [setting] if isinstance(setting, str) else setting or ()):
        try:
            yield from _read_file(file, spec, columns, problems)
        except DataError as error:
            for where, what, fix in error.problems:
                problems.add(where, what, fix and "Save it as jsonl, or as csv with commas, in UTF-8.")


def _read_file(
    file: Path, spec: DataSpec, columns: Mapping[str, Column], problems: Problems
) -> Iterator[_Record]:
    layout = DataSpec(source=str(file))
    reader = reader_of(file, layout)
    if reader.name not in FORMATS:
        what = f"a list of rows is expected as .{' or .'.join(FORMATS)}"
        raise DataError(file, what, "Save the list in one of these formats.")
    rows = []
    origin = Origin([reader.prefix(str(file))])
    for number, row in read_rows(file, layout):
        origin.add(0, number)
        rows.append(row if reader.name == "jsonl" else {name: unguarded(cell) for name, cell in row.items()})
    values: list[Json] = [{} for _ in rows]
    for name, column in columns.items():
        cells = {index: _cell(row, name, column, spec) for index, row in enumerate(rows)}
        cells = {index: cell for index, cell in cells.items() if cell is not None}
        read = convert(list(cells.values()), name, column, origin.select(list(cells)))
        for index, value in zip(cells, read, strict=True):
            if value is not None and (value != "" or column.holds != "name"):
                values[index][name] = value
    for index, record in enumerate(values):
        if "location" in record or "id" in record:
            yield _Record(file, origin.files[0], origin.number[index], record)
        else:
            problems.add(
                origin[index], "names no row", "Give its `location`, such as train.csv:17, or its `id`."
            )


def _cell(row: Record, name: str, column: Column, spec: DataSpec) -> Any:
    """A value of the row as the readers of this column take it; lists in csv are JSON, as `predict` writes
    them.
    """
    value = row.get("entities", row.get(name)) if column.holds == "spans" else row.get(name)
    if isinstance(value, str) and value[:1] in ("[", "{") and column.holds not in ("text", "label", "name"):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    if value == "" and (column.tagged or column.holds == "spans"):
        return None
    return split_labels(value, spec.labels_separator) if column.holds == "labels" else value


# --- their rows


def _match(
    records: Sequence[_Record],
    tables: Mapping[str, Table],
    compared: Iterable[str],
    problems: Problems,
    complete: bool,
) -> Iterator[tuple[Place, _Record]]:
    """The row of each record that has exactly one. compared: columns by which a record and its row must be
    the same.
    """
    places: dict[str, list[Place]] = {record.row_key: [] for record in records}
    by_id = any("location" not in record.values for record in records)
    for split, table in tables.items():
        prefixes = [{prefix, PurePath(prefix).name} for prefix in table.origin.files]
        for row, (file, number) in enumerate(zip(table.origin.file, table.origin.number, strict=True)):
            for prefix in prefixes[file]:
                places.get(f"{prefix}{number}", []).append((split, row))
        for row, name in enumerate(table.values.get("id", ()) if by_id else ()):
            places.get(f"id {name}", []).append((split, row))
    fix = "Make the list again from these data, or remove the record."
    for record in records:
        matches = places[record.row_key]
        same = [(split, row) for split, row in matches if _agrees(record, tables[split], row, compared)]
        if len(same) == 1:
            yield same[0], record
        elif same:
            locations = listed([tables[split].origin[row] for split, row in same], MAX_LOCATIONS)
            what = f"{record.row} may be one of several rows: {locations}"
            problems.add(record.where, what, "Write its full `location`, or add the columns of its texts.")
        elif matches:
            problems.add(record.where, f"{record.row} holds another row now", fix)
        elif complete:
            problems.add(record.where, f"there is no row {record.row}", fix)


def _agrees(record: _Record, table: Table, row: int, names: Iterable[str]) -> bool:
    """Whether the row has what the record repeats of it in these columns."""
    shared = (name for name in names if name in record.values and name in table.values)
    return all(table.values[name][row] == record.values[name] for name in shared)


# --- their application


def _refined(
    validate_rows: ValidateRows,
    schema: Schema,
    out: Mapping[Place, _Record],
    new: Mapping[Place, _Record],
    table: Table,
    split: str,
) -> Checked:
    """What `validate_rows` makes of a split whose rows were corrected, and what was corrected."""
    findings = list[Finding]()
    gone = {row: record for (other, row), record in out.items() if other == split}
    kept = [row for row in range(len(table)) if row not in gone]
    if gone:
        if not kept:
            raise DataError("data.exclude", f"no row of {split} remains", "Exclude fewer rows.")
        table = table.select(kept)
        findings.append(note(f"{split}: {counted(len(gone), 'row')} excluded by {_files(gone.values())}"))
    records = {place: new[split, row] for place, row in enumerate(kept) if (split, row) in new}
    if not records:
        table, notes = validate_rows(table, split)
        return table, [*findings, *notes]
    targets = _targets(records, table, split, validate_rows, schema)
    column = schema.columns[targets.name]
    by = _files(records.values())
    if column.tagged:  # those of the data may have another scheme before
        others = table.dropped(targets.values)
        rest = validate_rows(others, split)[1] if len(others) else []
        table, more = validate_rows(table, split)
        if _notes(rest) == _notes(more):  # else another scheme was inferred from the other rows alone
            more = rest
        table, changes = _replaced(table, split, targets, column, by)
        if targets.spans:
            old = table.values.get("spans", [None] * len(table))
            table = table.with_(spans=DiskList(map(targets.spans.get, range(len(table)), old)))
    else:
        table, changes = _replaced(table, split, targets, column, by)
        table, more = validate_rows(table, split)
    return table, [*findings, *changes, *targets.findings, *more]


def _targets(
    records: Mapping[int, _Record], table: Table, split: str, validate_rows: ValidateRows, schema: Schema
) -> _Targets:
    """The targets that these records have for rows of the table, by row."""
    targets = _Targets("", {}, {}, [])
    for name in schema.targets:
        rows = [row for row, record in records.items() if name in record.values]
        if not rows:
            continue
        relabelled = [records[row] for row in rows]
        origin = Origin(unique(record.prefix for record in relabelled))
        for record in relabelled:
            origin.add(origin.files.index(record.prefix), record.number)
        old = table.select(rows)
        column = schema.columns[name]
        others = replace(old.without(*schema.targets), origin=origin)
        some = others.with_(**{name: [record.values[name] for record in relabelled]})
        if column.tagged:
            if "tokens" in some.values and all("text" in record.values for record in relabelled):
                # tags are of the texts that the records repeat
                some = some.without("tokens").with_(text=[record.values["text"] for record in relabelled])
            some, notes = tag_words(some, split, "BIO" if column.holds == "tags" else "none")
            if column.holds == "tags" and "tokens" not in validate_rows(others, split)[0].values:
                some, notes = validate_rows(as_spans(some), split)  # what has a tag depends on the model
        else:
            some, notes = validate_rows(some, f"{split}, relabelled")
        targets = targets._replace(name="tags" if column.holds == "spans" else name)
        values = some.values[targets.name]
        if column.holds == "answers" and name in table.values:
            # those that are the same stay as the data have them
            located = validate_rows(old, split)[0].values[name]
            answers = zip(values, located, old.values[name], strict=True)
            values = [as_read if new == same else new for new, same, as_read in answers]
        targets.values.update(zip(rows, values, strict=True))
        if "spans" in some.values:
            targets.spans.update(zip(rows, some.values["spans"], strict=True))
        if column.holds != "number":  # what is noticed of the documents of a query is of all of them
            targets.findings.extend(finding for finding in notes if finding.level != "note")
    return targets


def _replaced(table: Table, split: str, targets: _Targets, column: Column, by: str) -> Checked:
    """The table with these targets, and how many of them are new."""
    values = targets.values
    old: Sequence[Any] = table.values.get(targets.name, [None] * len(table))
    names = names_of(column)
    plain = column.holds in ("label", "labels")

    def labels(value: Any) -> Sequence[str]:
        return sorted(names(value)) if names else ()

    def key(value: Any) -> Any:
        return labels(value) if plain and value is not None else value

    changed = {row: value for row, value in values.items() if key(value) != key(old[row])}
    same = (
        f"; {len(values) - len(changed):,} more with the same target as before"
        if len(changed) < len(values)
        else ""
    )
    findings = [note(f"{split}: {counted(len(changed), 'row')} relabelled by {by}{same}")]
    if split == "train" and changed:
        before = {*chain.from_iterable(map(labels, old))}
        for label in sorted({*chain.from_iterable(map(labels, changed.values()))} - before):
            findings.append(
                note(f"{split}: the label {label!r} is new, from {by}{did_you_mean(label, before)}")
            )
    kind = DiskList if isinstance(old, DiskList) else list
    return table.with_(**{targets.name: kind(map(changed.get, range(len(table)), old))}), findings


def _notes(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "note"]


def _files(records: Iterable[_Record]) -> str:
    return " and ".join(unique(record.file.name for record in records))
