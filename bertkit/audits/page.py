"""audit.html: one self-contained page, a pure function of the parts of an audit."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.audits.parts import Row, Section
from bertkit.recipe.recipe import Recipe
from bertkit.report.facts import texts_of
from bertkit.report.html import render
from bertkit.report.mistakes import place_of, shortened

MAX_ROWS = 100  # of a part on the page; its files have all


class Line(NamedTuple):
    """A row of a table: its id and location, the cells of the part's columns, and its texts."""

    where: str
    cells: list[str]
    texts: list[str]


def page(parts: Sequence[Section], folder: Path, recipe: Recipe) -> str:
    """The page. Everything that comes from the data is escaped. folder: where it and the lists are."""
    figures = {title: value for part in parts for title, value in part.figures.items()}
    tables = [(part, [_line(part, row) for row in part.rows[:MAX_ROWS]]) for part in parts]
    command = correction(folder, recipe)
    return render("audit.html", name=folder.resolve().name, figures=figures, tables=tables, command=command)


def correction(folder: Path, recipe: Recipe) -> str:
    """The command that trains with the corrected labels, and those of earlier corrections."""
    earlier = recipe.data.relabel or []
    files = [*([earlier] if isinstance(earlier, str) else earlier), f"{folder}/labels.jsonl"]
    lists = files[0] if len(files) == 1 else json.dumps(files, ensure_ascii=False)
    words = ["bertkit", "train", f"{folder}/recipe.yaml", "folds=null", f"data.relabel={lists}"]
    return shlex.join([*words, "--output-dir", "runs/corrected"])


def _line(part: Section, row: Row) -> Line:
    return Line(place_of(row), [_cell(row[name]) for name in part.columns], [shortened(text) for text in texts_of(row)])


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
