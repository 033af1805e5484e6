"""What happens to splits after they were read: hold-out, limit, labels that train does not have."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bertkit.data.table import Table
from bertkit.errors import DataError, Problem

if TYPE_CHECKING:
    from bertkit.tasks.base import Finding

SPLITS = ("train", "validation", "test")
BINS = 10  # parts of equal size that scores are cut into for a stratified hold-out


def hold_out(train: Table, share: float, seed: int, target: str | None) -> tuple[Table, Table]:
    """Part train into (train, validation), both in their old order; the same on every platform for a seed.

    share: of the rows, in (0, 1).  target: column to stratify by: a label, the first of several labels, or a
    number (in BINS parts of equal size); None: not stratified. A label never loses its last row in train.
    Raises DataError where no row can be held out.
    """
    values = train.values[target] if target else [None] * len(train)
    rng = random.Random(seed)
    draw = [rng.random() for _ in range(len(train))]  # random() is the part of the module that never changes
    strata: defaultdict[Any, list[int]] = defaultdict(list)
    for index, stratum in enumerate(_strata(values)):
        strata[stratum].append(index)
    position = {}
    for members in strata.values():
        members.sort(key=draw.__getitem__)
        position.update({index: (i + 0.5) / len(members) for i, index in enumerate(members)})
    order = sorted(range(len(train)), key=lambda index: (position[index], draw[index]))
    held = set(order[: max(1, round(share * len(train)))])
    left = Counter(name for i, value in enumerate(values) if i not in held for name in _names(value))
    for index in sorted(held):
        if any(not left[name] for name in _names(values[index])):
            held.remove(index)
            left.update(_names(values[index]))
    if not 0 < len(held) < len(train):
        what = f"validation: {share} of {len(train)} rows of train can not be held out"
        raise DataError(Problem("data.validation", what, "add rows, or name a validation file under data.source"))
    keep = [i for i in range(len(train)) if i not in held]
    return train.select(keep), train.select(sorted(held))


def limit_rows(table: Table, limit: int, seed: int, split: str) -> Table:
    """At most `limit` rows, drawn with `seed`, in their old order, whatever the other splits are."""
    if len(table) <= limit:
        return table
    rng = random.Random(f"{seed} {split}")
    draw = [rng.random() for _ in range(len(table))]
    return table.select(sorted(sorted(range(len(table)), key=draw.__getitem__)[:limit]))


def labels_of(table: Table, target: str) -> set[str]:
    """The labels that a split has."""
    return {name for value in table.values[target] for name in _names(value)}


def known_only(
    tables: dict[str, Table], target: str, known: Collection[str], policy: str
) -> tuple[dict[str, Table], list[Finding]]:
    """See to the labels of validation and test that are not in `known`.

    policy: "error" raises a DataError with split, label, count and first row of each; "ignore" leaves those
    rows out and says the same in findings. Raises DataError also when no row is left.
    """
    from bertkit.tasks.base import Finding

    kept, findings, problems = dict(tables), [], []
    for split, table in tables.items():
        if split == "train" or target not in table.values:
            continue
        unseen: defaultdict[str, list[int]] = defaultdict(list)
        for index, value in enumerate(table.values[target]):
            for name in _names(value):
                if name not in known:
                    unseen[name].append(index)
        out = {index for indices in unseen.values() for index in indices}
        for name, rows in sorted(unseen.items()):
            what = f"{split} has {len(rows):,} rows with the label {name!r}, which train does not have"
            problems.append(Problem(table.origin[rows[0]], what))
            findings.append(Finding("warn", f"{what} (first: {table.origin[rows[0]]}); left out"))
        kept[split] = table.select([i for i in range(len(table)) if i not in out]) if out else table
        if not len(kept[split]) and policy == "ignore":
            raise DataError(Problem("", f"{split}: no row is left; none of its labels is in train"))
    if problems and policy == "error":
        fix = "add rows with these labels to train, or leave the rows out:  data: {unseen_labels: ignore}"
        raise DataError([*problems, Problem("", fix)])
    return kept, findings


def _names(value: Any) -> Sequence[str]:
    """The labels of one row, whatever kind of target it has; none for a number."""
    if isinstance(value, str):
        return [value]
    return value if isinstance(value, list) else []


def _strata(values: Sequence[Any]) -> Iterator[Any]:
    if values and isinstance(values[0], float):
        rank = {index: r for r, index in enumerate(sorted(range(len(values)), key=values.__getitem__))}
        return (rank[i] * BINS // len(values) for i in range(len(values)))
    return (next(iter(_names(value)), None) for value in values)
