"""All mistakes of a run as csv for spreadsheets."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from bertkit.files import written_aside
from bertkit.report.facts import Facts, named_texts
from bertkit.report.mistakes import Mistakes

FORMULA = tuple("=+-@\t\r")  # with which a spreadsheet's formula begins, or what hides one


def write_mistakes(facts: Facts, found: Mistakes, path: Path) -> None:
    """Write all mistakes as csv that spreadsheets read: whole texts in UTF-8, with a byte order mark.

    A cell that a spreadsheet would take for a formula begins with an apostrophe (OWASP, "CSV Injection").
    """
    rows = [named_texts(facts.rows[each.row - 1]) for each in found.every]
    names = [*dict.fromkeys(name for row in rows for name in row if name != "document" or found.unit == "rows")]
    header = ["row", "id", "location", "gold", "answer", found.measure, "check_label", *names]
    with written_aside(path, "utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for each, texts in zip(found.every, rows, strict=True):
            place = [facts.rows[each.row - 1].get(name, "") for name in ("id", "location")]
            before, after = [*place, each.gold, each.answer], [texts[name] for name in names]
            writer.writerow([each.row, *map(_inert, before), each.measure, each.check_label, *map(_inert, after)])


def _inert(cell: Any) -> str:
    text = str(cell)
    return f"'{text}" if text.startswith(FORMULA) else text
