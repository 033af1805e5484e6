"""What happens to splits after they were read: hold-out, limit, labels that train does not have."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

from bertkit.data.schema import Column, Finding, warn
from bertkit.data.table import Problems, Table
from bertkit.errors import DataError, Problem
from bertkit.sections import DataSpec
from bertkit.text import counted
from bertkit.validation import did_you_mean

Names: TypeAlias = Callable[[Any], Sequence[str]]  # a value of the target -> its labels
SPLITS = ("train", "validation", "test")
BINS = 10  # quantiles of scores for a stratified hold-out


def names_of(column: Column) -> Names | None:
    """What gives the names of the labels of one value of this column, or the types of its tags; None: no labels."""
    names = column.names
    if column.holds == "tags":
        return lambda tags: sorted({tag.partition("-")[2] for tag in tags or () if tag != "O"})
    if column.holds == "labels":
        return lambda labels: list(dict.fromkeys(names.get(label, label) for label in labels or ()))
    return (lambda label: [names.get(label, label)] if label else []) if column.holds == "label" else None


def hold_out(
    train: Table, share: float, seed: int, target: str | None, names: Names | None = None
) -> tuple[Table, Table]:
    """Split train into (train, validation), both in their old order; the same on every platform for a seed.

    share: of the rows, in (0, 1).  target: column to stratify by: a label, the first of several labels, or a number
    (by quantile); None: not stratified. A label never loses its last row in train.  names: `names_of` the target.
    Raises DataError where no row can be held out.
    """
    values = train.values[target] if target else [None] * len(train)
    labels = [names(value) if names else [] for value in values]
    rng = random.Random(seed)
    draw = [rng.random() for _ in range(len(train))]  # random() is the part of the module that never changes
    strata: defaultdict[Any, list[int]] = defaultdict(list)
    for index, stratum in enumerate(_strata(values, labels)):
        strata[stratum].append(index)
    position = {}
    for members in strata.values():
        members.sort(key=draw.__getitem__)
        position.update({index: (i + 0.5) / len(members) for i, index in enumerate(members)})
    order = sorted(range(len(train)), key=lambda index: (position[index], draw[index]))
    held = set(order[: max(1, round(share * len(train)))])
    remaining = Counter(name for i, given in enumerate(labels) if i not in held for name in given)
    for index in sorted(held):
        if any(not remaining[name] for name in labels[index]):
            held.remove(index)
            remaining.update(labels[index])
    if not 0 < len(held) < len(train):
        what = f"validation: {share} of {len(train)} rows of train cannot be held out"
        raise DataError(Problem("data.validation", what, "add rows, or name a validation file under data.source"))
    return train.select([i for i in range(len(train)) if i not in held]), train.select(sorted(held))


def limit_rows(table: Table, limit: int, seed: int, split: str) -> Table:
    """`limit` rows, sampled with `seed`, in their old order, independently of the other splits."""
    rng = random.Random(f"{seed} {split}")
    draw = [rng.random() for _ in range(len(table))]
    return table.select(sorted(sorted(range(len(table)), key=draw.__getitem__)[:limit]))


def labels_of(table: Table, target: str, names: Names) -> set[str]:
    """The labels that a split has."""
    return {name for value in table.values[target] for name in names(value)}


def known_only(
    tables: dict[str, Table], target: str, names: Names, known: Collection[str], policy: str
) -> tuple[dict[str, Table], list[Finding]]:
    """The tables without labels of validation and test that are not in `known`, by `policy`, and what was left out.

    policy: "error" raises a DataError with split, label, count and first row of each; "ignore" leaves those rows out
    with a warning. Raises DataError also when no row remains.
    """
    known_tables, findings, problems = dict(tables), [], []
    for split, table in tables.items():
        if split == "train" or target not in table.values:
            continue
        unseen: defaultdict[str, list[int]] = defaultdict(list)
        for index, value in enumerate(table.values[target]):
            for name in names(value):
                if name not in known:
                    unseen[name].append(index)
        out = {index for indices in unseen.values() for index in indices}
        for name, rows in sorted(unseen.items()):
            what = f"{split} has {counted(len(rows), 'row')} with the label {name!r}, which train does not have"
            problems.append(Problem(table.origin[rows[0]], what))
            findings.append(warn(f"{what} (first: {table.origin[rows[0]]}); left out"))
        if len(out) == len(table) and policy == "ignore":
            raise DataError(Problem("", f"{split}: no row remains; none of its labels is in train"))
        if out:
            known_tables[split] = table.select([i for i in range(len(table)) if i not in out])
    if problems and policy == "error":
        fix = "add rows with these labels to train, or leave the rows out:  data: {unseen_labels: ignore}"
        raise DataError([*problems, Problem("", fix)])
    return known_tables, findings


def _strata(values: Sequence[Any], labels: Sequence[Sequence[str]]) -> Iterator[Any]:
    if values and isinstance(values[0], float):
        rank = {index: r for r, index in enumerate(sorted(range(len(values)), key=values.__getitem__))}
        return (rank[i] * BINS // len(values) for i in range(len(values)))
    return (next(iter(each), None) for each in labels)


VALIDATION = ("validation", "valid", "val", "dev")  # its names in folders and on the Hub


def match_splits(names: Collection[str], spec: DataSpec) -> dict[str, str]:
    """Split -> its name among `names`: the recipe's, its own, or for validation one of VALIDATION.

    Raises DataError: a name of `data.splits` that is not there, or two names for one split.
    """
    given = spec.splits or {}
    problems, found = Problems(), {}
    for split in SPLITS:
        mapped = {n: n for n in names}.get(given[split]) if split in given else None
        if split in given and mapped is None:
            what = f"no split {given[split]!r}{did_you_mean(given[split], names)}"
            problems.add("data.splits", what, f"splits of the source: {', '.join(names)}")
        known = VALIDATION if split == "validation" else (split,)
        there = [mapped] if mapped else [n for n in known if n in names and n not in given.values()]
        if len(there) > 1:
            fix = f"say which one, e.g.  data: {{splits: {{{split}: {there[0]}}}}}"
            problems.add(str(spec.source), f"two names for {split}: {', '.join(there)}", fix)
        if there:
            found[split] = there[0]
    problems.raise_if_any()
    return found
