"""All mistakes of a run as csv for spreadsheets."""

from __future__ import annotations

import csv
from pathlib import Path

from bertkit.data.delimited import readable_cell
from bertkit.files import written_aside
from bertkit.report.facts import Facts, named_texts
from bertkit.report.mistakes import Mistakes


def write_mistakes(facts: Facts, mistakes: Mistakes, path: Path) -> None:
    """Write all mistakes as csv that spreadsheets read: whole texts in UTF-8, with a byte order mark."""
    rows = [named_texts(facts.rows[each.row - 1]) for each in mistakes.every]
    names = [*dict.fromkeys(name for row in rows for name in row if name != "document" or mistakes.unit == "rows")]
    header = ["row", "id", "location", "gold", "answer", mistakes.measure, *names]
    with written_aside(path, "utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for each, texts in zip(mistakes.every, rows, strict=True):
            place = [facts.rows[each.row - 1].get(name, "") for name in ("id", "location")]
            cells = [each.row, *place, each.gold, each.answer, each.measure]
            writer.writerow(map(readable_cell, [*cells, *(texts[name] for name in names)]))
