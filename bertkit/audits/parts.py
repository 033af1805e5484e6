"""What the parts of an audit read and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bertkit.recipe.recipe import Recipe

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """The recipe, and its training rows as predictions/train-oof.jsonl has them.

    A row has its canonical columns, `location`, `fold` and the `answer` of a model that was not trained on it.
    """

    recipe: Recipe
    rows: Sequence[Row]


@dataclass(frozen=True)
class Section:
    """A section of the page, whose rows are also written as NAME.jsonl and NAME.csv, if there are any.

    rows: the first to look at first; each has `location`, the input columns of the training row, its `id` if it has
    one, and what was found. The page shows location and texts, followed by `columns`.
    """

    name: str  # of the files
    title: str
    summary: str  # one sentence, also printed by the command
    rows: Sequence[Row] = ()
    columns: Sequence[str] = ()  # keys of the rows
    figures: Mapping[str, str] = field(default_factory=dict)  # title -> number in words, at the top of the page
    notes: Sequence[str] = ()  # sentences on how to read it, and its limits
