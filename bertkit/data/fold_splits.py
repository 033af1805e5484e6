"""The training rows in folds, for cross-validation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from bertkit.data.disk_list import DiskList
from bertkit.data.schema import Finding, warn
from bertkit.data.splits import folds, names_of
from bertkit.data.table import Data, Table, column_values
from bertkit.text import listed


def fold_rows(data: Data, count: int, seed: int, groups: Collection[str]) -> tuple[list[int], list[Finding]]:
    """The fold of each training row, from 1; and a warning of labels that only one fold has, which its model never saw.

    groups: columns of rows that a task groups, such as the questions about one `context`. They stay together, as do
    rows with the same texts, and rows of one `data.group_by`. Raises DataError like `folds`.
    """
    rows, target = data.rows["train"], data.target
    present = {name: column for name, column in data.columns.items() if name in rows.column_names}
    texts = [name for name, column in present.items() if column.holds in ("text", "words")]
    groups = [name for name in groups if name in present]
    values: dict[str, Sequence[Any]] = {name: DiskList(column_values(rows, name)) for name in {*texts, *groups}}
    values |= {target: rows[target][:]} if target else {}
    names = names_of(present[target]) if target else None
    fold_of = folds(Table(values, data.origins["train"]), count, seed, target, names, texts, groups)
    seen = defaultdict[str, set[int]](set)
    for fold, value in zip(fold_of, values[target], strict=True) if target and names else ():
        for label in names(value) if names else ():
            seen[label].add(fold)
    alone = [label for label, rows_of_label in seen.items() if len(rows_of_label) == 1]
    what = f"train: all rows with {listed(alone)} are in one fold, whose model has no such row to learn from"
    return fold_of, [warn(what, "Add rows with these labels.")] if alone else []
