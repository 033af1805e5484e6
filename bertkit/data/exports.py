"""Annotations as Label Studio, doccano and Prodigy export them, as rows in canonical columns.

A file is recognised by its first object. Its rows have `text`, and what was annotated: `spans`, or `labels` and, in
rows with exactly one, `label`. `annotated` is false in rows that nobody annotated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from bertkit.data.label_studio import (
    MALFORMED,
    TARGETS,
    find_fields,
    full,
    is_full,
    is_minimal,
    label_columns,
    minimal,
    task_row,
)
from bertkit.data.schema import Finding, columns_of, note, warn
from bertkit.data.table import Export, NumberedRow, Problems, Row
from bertkit.errors import DataError, Problem
from bertkit.sections import DataSpec
from bertkit.text import counted, short_repr


def exported(
    objects: Iterable[tuple[int, Any]], where: str, spec: DataSpec, problems: Problems
) -> Iterator[NumberedRow]:
    """The rows of a tool's export, and objects of any other file as they are.

    objects: numbered.  where: goes before the number of an object in messages.
    problems: gets what the export is before its first row, and what it must not hold, with its location.
    """
    objects = iter(objects)
    first = next(objects, None)
    if first is None:
        return
    objects = chain([first], objects)
    form = next((form for form in _FORMS if form.recognised(first[1])), None)
    if form is None:
        yield from objects
        return
    if form.tasks:  # only all of them together show which field is what
        objects = list(objects)
        fields = find_fields((item for _, item in objects), form.read, spec)
        export, row_of = replace(form.export, several=fields.several), partial(task_row, form.read, fields)
    else:
        export, row_of = form.export, partial(_mapped, form.read, spec)
    problems.export = export
    for number, item in objects:
        row: Row = {}
        try:
            row = row_of(item)
        except (ValueError, *MALFORMED) as error:
            what = str(error) if isinstance(error, ValueError) else f"not as {export.title} has it: {error!r}"
            problems.add(f"{where}{number}", what)
        yield number, row


def survey(
    export: Export, rows: Iterable[NumberedRow], name: str, mapped: Iterable[str]
) -> tuple[list[str], list[Finding]]:
    """The columns of an export, and what was read. Raises DataError where nothing is annotated.

    `label` is a column only if no row has several labels, or it is one of the columns that the recipe has `mapped`.
    """
    columns: dict[str, None] = {}
    total = left_out = disputed = 0
    multiple = False
    for _, row in rows:
        total += 1
        if not row.get("annotated", True):
            left_out += 1
            continue
        columns.update(dict.fromkeys(row))
        disputed += "annotations" in row
        multiple |= isinstance(row.get("labels"), list) and len(row["labels"]) > 1
    what = f"read as {export.title}: {counted(total, export.unit)}"
    if left_out == total:
        fix = "annotate some, and export again; `bertkit predict` reads the file as it is"
        raise DataError(Problem(name, f"{what}, none with an annotation", fix))
    if multiple and "label" not in mapped:
        columns.pop("label", None)
    findings = [note(f"{name}: {what}" + (f", {left_out:,} without annotation left out" if left_out else ""))]
    if disputed:
        what = f"{counted(disputed, export.unit)} with several annotations, none of them the ground truth"
        fix = "If it is not the right one, mark the ground truth, and export again."
        findings.append(warn(f"{name}: {what}; the first of each was read", fix))
    return list(columns), findings


# --- a row per object: doccano, Prodigy


def _mapped(read: Callable[[Any], Row], spec: DataSpec, item: Any) -> Row:
    """The row, with the fields that the recipe maps by the tool's names for them."""
    names = [name for ours, source in spec.columns.items() for name in columns_of(source) if name != ours]
    return {**read(item), **{name: item[name] for name in names if isinstance(item, dict) and name in item}}


def _text(item: Any, *names: str) -> str:
    for name in names:
        if isinstance(text := item.get(name), str):
            return text
    raise ValueError(f"has no text in `{names[0]}`: {short_repr(item)}")


def _is_doccano(item: Any) -> bool:
    if not isinstance(item, dict) or not any(isinstance(item.get(name), str) for name in ("text", "data")):
        return False
    if "entities" in item:
        return "relations" in item or "cats" in item
    name = "label" if "label" in item else "labels"
    marks = item.get(name)
    if not isinstance(marks, list) or "id" not in item:
        return False
    return all(_is_mark(mark) for mark in marks) and (name == "label" or any(isinstance(m, list) for m in marks))


def _is_mark(mark: Any) -> bool:
    return isinstance(mark, str) or (isinstance(mark, list) and len(mark) == 3 and isinstance(mark[2], str))


def _doccano_row(item: Any) -> Row:
    """Sequence labelling, with or without relations, text classification, and both at once."""
    row = {name: value for name, value in item.items() if name not in (*TARGETS, "entities", "cats", "data")}
    row["text"] = _text(item, "text", "data")
    marks = item.get("label", item.get("labels", []))
    if "entities" in item:
        return row | {"spans": item["entities"]} | (label_columns(item["cats"]) if "cats" in item else {})
    if not marks:  # of either kind of project
        return row | {"spans": [], "labels": []}
    spans = [mark for mark in marks if not isinstance(mark, str)]
    if 0 < len(spans) < len(marks):
        raise ValueError(f"has labels of spans and of the whole text in one list: {short_repr(marks)}")
    return row | ({"spans": spans} if spans else label_columns(marks))


def _is_prodigy(item: Any) -> bool:
    return isinstance(item, dict) and "_task_hash" in item and "_input_hash" in item


def _prodigy_row(item: Any) -> Row:
    """Spans by hand or corrected; one label, accepted or not; labels chosen among options."""
    row = {name: value for name, value in item.items() if name not in (*TARGETS, "options", "accept", "config")}
    row["text"] = _text(item, "text")
    if "options" in item:
        style = (item.get("config") or {}).get("choice_style", "single")
        return row | label_columns(item.get("accept", []), single=style == "single")
    if "label" in item and not item.get("spans"):
        return row | label_columns([item["label"]])
    return row | {"spans": item.get("spans", [])}


class _Form(NamedTuple):
    export: Export
    recognised: Callable[[Any], bool]  # by the first object
    read: Callable[[Any], Any]  # an object -> its row, or its task
    tasks: bool = False  # of Label Studio


_FORMS = (
    _Form(Export("Label Studio's JSON export", "task"), is_full, full, tasks=True),
    _Form(Export("Label Studio's JSON_MIN export", "annotation"), is_minimal, minimal, tasks=True),
    _Form(Export("Prodigy's export", "example"), _is_prodigy, _prodigy_row),
    _Form(Export("doccano's export", "text"), _is_doccano, _doccano_row),
)
