"""What happens to splits after they were read: hold-out, folds, limit, labels that train does not have."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from bertkit.data.disk_list import DiskList
from bertkit.data.on_disk import column_values
from bertkit.data.problems import Problems, setting
from bertkit.data.schema import Column, Finding, note, texts_of, warn
from bertkit.data.table import Data, Table
from bertkit.data.values import folded, text_keys
from bertkit.errors import DataError, Problem
from bertkit.sections import DataSpec
from bertkit.text import counted, listed, unique
from bertkit.validation import did_you_mean

Names = Callable[[Any], Sequence[str]]  # a value of the target -> its labels
SPLITS = ("train", "validation", "test")
BINS = 10  # quantiles of scores for a stratified hold-out


def names_of(column: Column) -> Names | None:
    """What gives the names of the labels of one value of this column, or the types of its tags; None: no
    labels.
    """
    names = column.names
    if column.holds == "tags":
        return lambda tags: sorted({tag.partition("-")[2] for tag in tags or () if tag != "O"})
    if column.holds == "word_labels":
        return lambda tags: sorted(set(tags or ()))
    if column.holds == "labels":
        return lambda labels: unique(names.get(label, label) for label in labels or ())
    return (lambda label: [names.get(label, label)] if label else []) if column.holds == "label" else None


def hold_out(
    train: Table,
    split: str,
    size: float,
    total: int,
    seed: int,
    target: str | None,
    names: Names | None,
    texts: Sequence[str],
    unordered: int,
) -> tuple[Table, Table]:
    """Hold rows of train out as another split, both in their old order; on every platform alike for a seed.

    split: validation or test, each with random numbers of its own.  size: a number of rows, or a share in
    (0, 1) of `total`, which train had before another split was held out.  target: column to stratify by: a
    label, the first of several labels, or a number (by quantile); None: not stratified. A label never loses
    its last row in train.  names: `names_of` the target.
    texts: columns; rows that have the same texts stay together, and so do rows with one value of
    `data.group_by`.
    unordered: see `text_keys`. Raises DataError where no row can be held out.
    """
    labels = _labels(train, target, names)
    units = _units(train, texts, unordered, target)
    left = len(train)
    wanted = int(size) if size >= 1 else max(1, round(size * total))
    too_many = wanted >= left and (size >= 1 or left < total)
    held = list[list[int]]()

    def needed(unit: Sequence[int]) -> Counter[str]:
        return Counter(chain.from_iterable(labels[row] for row in unit))

    rng = random.Random(seed if split == "validation" else f"{seed} {split}, held out")
    remaining = needed(range(left))
    for unit in _stratified(units, _strata(train, target, labels), rng):
        # a share loses the rows that the next loop gives back; a number of rows is reached by others
        spared = size < 1 or all(remaining[name] > count for name, count in needed(unit).items())
        if spared and len(unit) <= wanted:
            held.append(unit)
            remaining.subtract(needed(unit))
            wanted -= len(unit)
    if not held:
        held = [min(units, key=len)]
        remaining.subtract(needed(held[0]))
    out = {*chain.from_iterable(held)}
    for unit in sorted(held):
        if any(not remaining[name] for name in needed(unit)):
            out.difference_update(unit)
            remaining.update(needed(unit))
    if too_many or not 0 < len(out) < left:
        why = (
            "each label must keep a row in train, and rows of the same texts or group (`data.group_by`) "
            "stay together"
        )
        of_these = f", of which {left:,} are left," if left < total else ""
        raise DataError(
            f"data.{split}",
            f"{size} of {total:,} rows of train{of_these} cannot be held out: {why}",
            f"hold out fewer, add rows, or name a {split} file under data.source",
        )
    return train.dropped(out), train.select(sorted(out))


def folds(
    table: Table,
    count: int,
    seed: int,
    target: str | None,
    names: Names | None = None,
    texts: Sequence[str] = (),
    groups: Collection[str] = (),
    unordered: int = 0,
) -> list[int]:
    """The fold of each row, from 1 to `count`; the same on every platform for a seed.

    Arguments are as for `hold_out`, by which folds are stratified and rows stay together; groups: columns
    whose equal values stay together too. Where every row is on its own, the sizes of folds differ by one row
    at most, and so do their numbers of rows with a label. Raises DataError where there are fewer rows or
    groups than folds.
    """
    units = _units(table, texts, unordered, target, groups)
    if len(units) < count:
        has = f"train has {len(units)} ({counted(len(table), 'row')})"
        what = f"{count} folds need at least {count} groups; {has}"
        fix = "Write fewer folds, or add rows: those of the same texts or group stay together."
        raise DataError("folds", what, fix)
    strata = _strata(table, target, _labels(table, target, names))
    draw = _draw(strata, random.Random(seed))
    sizes = Counter(strata)
    members = [Counter[Any]() for _ in range(count)]
    lengths = [0] * count
    fold_of = [0] * len(table)
    # Large units first: the small ones even out what they leave.
    for unit in sorted(units, key=lambda unit: (-len(unit), strata[unit[0]], draw[unit[0]])):
        added = Counter(strata[row] for row in unit)
        shares = [_overlap(added, member, sizes) for member in members]
        fold = min(range(count), key=lambda fold: (shares[fold], lengths[fold]))
        members[fold].update(added)
        lengths[fold] += len(unit)
        for row in unit:
            fold_of[row] = fold + 1
    return fold_of


def _overlap(unit: Mapping[Any, int], fold: Counter[Any], sizes: Mapping[Any, int]) -> float:
    """The shares that a fold has of the strata of a unit, each as often as the unit has a row of it."""
    return sum(n * fold[stratum] / sizes[stratum] for stratum, n in unit.items())


def fold_rows(data: Data, count: int, seed: int, groups: Collection[str]) -> tuple[list[int], list[Finding]]:
    """The fold of each training row, from 1; and a warning of labels that only one fold has, which its model
    never saw.

    groups: columns of rows that a task groups, such as the questions about one `context`. They stay together,
    as do rows with the same texts, and rows of one `data.group_by`. Raises DataError like `folds`.
    """
    rows = data.rows["train"]
    target = data.target
    present = {name: column for name, column in data.columns.items() if name in rows.column_names}
    texts, unordered = texts_of(present)
    groups = [name for name in groups if name in present]
    values: dict[str, Sequence[Any]] = {
        name: DiskList(column_values(rows, name)) for name in {*texts, *groups}
    }
    names = None
    if target:
        values[target] = rows[target][:]
        names = names_of(present[target])
    fold_of = folds(
        Table(values, data.origins["train"]), count, seed, target, names, texts, groups, unordered
    )
    seen = defaultdict[str, set[int]](set)
    if target and names:
        for fold, value in zip(fold_of, values[target], strict=True):
            for label in names(value):
                seen[label].add(fold)
    alone = [label for label, rows_of_label in seen.items() if len(rows_of_label) == 1]
    what = f"train: all rows with {listed(alone)} are in one fold, whose model has no such row to learn from"
    return fold_of, [warn(what, "Add rows with these labels.")] if alone else []


def limit_rows(
    table: Table, limit: int, seed: int, split: str, target: str | None, names: Names | None
) -> Table:
    """`limit` rows in their old order, stratified like a hold-out, with a row of each label while there is
    room.

    They are sampled with `seed`, independently of the other splits.
    """
    labels = _labels(table, target, names)
    rng = random.Random(f"{seed} {split}")
    units = [[row] for row in range(len(table))]
    # first: with a label that no row before it has
    first = list[int]()
    others = list[int]()
    seen = set[str]()
    for row in chain.from_iterable(_stratified(units, _strata(table, target, labels), rng)):
        (others if seen.issuperset(labels[row]) else first).append(row)
        seen.update(labels[row])
    return table.select(sorted([*first, *others][:limit]))


def _labels(table: Table, target: str | None, names: Names | None) -> list[Sequence[str]]:
    values = table.values.get(target or "")
    return [names(value) for value in values] if values is not None and names else [()] * len(table)


def _units(
    table: Table, texts: Sequence[str], unordered: int, target: str | None, groups: Collection[str] = ()
) -> list[list[int]]:
    """The rows, those together that have the same texts, or belong to one group or have the same value in one
    of the columns `groups`, directly or by way of other rows.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((len(table), len(table)), dtype=bool)
    # of a text that has several targets, unless either may be the target
    texts = [name for place, name in enumerate(texts) if place < unordered or name != target]
    same_texts = text_keys(*(table.values[name] for name in texts), unordered=unordered)
    for values in (same_texts, *(text_keys(table.values[name]) for name in groups), table.origin.groups):
        first = dict[int, int]()
        same = [row if key is None else first.setdefault(key, row) for row, key in enumerate(values)]
        links += coo_array(([True] * len(same), (range(len(same)), same)), shape=links.shape)
    units: defaultdict[int, list[int]] = defaultdict(list)
    for row, unit in enumerate(connected_components(links, directed=False)[1].tolist()):
        units[unit].append(row)
    return sorted(units.values())


def _stratified(units: Sequence[list[int]], strata: Sequence[Any], rng: random.Random) -> Iterator[list[int]]:
    """The units in a random order, every beginning of which is stratified by their first rows. strata: of
    each row.
    """
    draw = _draw(strata, rng)
    by_stratum = defaultdict[Any, list[list[int]]](list)
    for unit in sorted(units, key=lambda unit: draw[unit[0]]):
        by_stratum[strata[unit[0]]].append(unit)
    placed = []
    for members in by_stratum.values():
        size = sum(map(len, members))
        before = 0
        for unit in members:
            placed.append(((before + len(unit) / 2) / size, draw[unit[0]], unit))
            before += len(unit)
    return (unit for _, _, unit in sorted(placed))


def _draw(rows: Iterable[Any], rng: random.Random) -> list[float]:
    """A number for each row; random() is the part of the module that never changes."""
    return [rng.random() for _ in rows]


def _strata(table: Table, target: str | None, labels: Sequence[Sequence[str]]) -> list[Any]:
    """What each row is stratified by: the quantile of a number, or the first of its labels."""
    values = table.values.get(target or "", ())
    if values and isinstance(values[0], float):
        rank = {row: place for place, row in enumerate(sorted(range(len(values)), key=values.__getitem__))}
        return [rank[row] * BINS // len(values) for row in range(len(values))]
    return [next(iter(names), "") for names in labels]


def known_only(
    tables: dict[str, Table], target: str, names: Names, known_labels: Collection[str], policy: str
) -> tuple[dict[str, Table], list[Finding]]:
    """The tables without labels of validation and test that are not in `known_labels`, by `policy`, and what
    was left out.

    policy: "error" raises a DataError with split, label, count and
    first row of each; "ignore" leaves those rows out with a note. Raises DataError also when no row remains.
    """
    known_tables = dict(tables)
    problems = list[Problem]()
    strange = set[str]()
    for split, table in tables.items():
        if split == "train" or target not in table.values:
            continue
        unseen: defaultdict[str, list[int]] = defaultdict(list)
        for index, value in enumerate(table.values[target]):
            for name in names(value):
                if name not in known_labels:
                    unseen[name].append(index)
        out = {index for indices in unseen.values() for index in indices}
        strange.update(map(folded, unseen))
        for name, rows in sorted(unseen.items()):
            what = (
                f"{split} has {counted(len(rows), 'row')} with the label {name!r}, which train does not have"
            )
            problems.append(Problem(table.origin[rows[0]], what))
        if len(out) == len(table) and policy == "ignore":
            what = f"{split}: all rows were dropped, because none of their labels occurs in train"
            raise DataError("", what, "Compare the label names of both splits.")
        if out:
            known_tables[split] = table.dropped(out)
    if problems and policy == "error":
        fix = "correct these labels, add rows with them to train, or raise a `data.limit`; "
        if not strange.isdisjoint(map(folded, known_labels)):
            fix = "to merge labels that differ only in case or blanks,  data: {labels: casefold}; "
        fix += f"to leave these rows out, {setting('unseen_labels', 'ignore')}"
        raise DataError([*problems[:-1], problems[-1]._replace(fix=fix)])
    return known_tables, [note(f"{what} (first: {where}); left out") for where, what, _ in problems]


VALIDATION = ("validation", "valid", "val", "dev")  # its names in folders and on the Hub


def match_splits(names: Collection[str], spec: DataSpec) -> dict[str, str]:
    """Split -> its name among `names`: the recipe's, its own, or for validation one of VALIDATION.

    Raises DataError: a name of `data.splits` that is not there, or two names for one split.
    """
    named = spec.splits or {}
    problems = Problems()
    matched = {}
    for split in SPLITS:
        usual = VALIDATION if split == "validation" else (split,)
        candidates = [name for name in usual if name in names and name not in named.values()]
        if split in named and named[split] in names:
            candidates = [named[split]]
        elif split in named:
            what = f"no split {named[split]!r}{did_you_mean(named[split], names)}"
            problems.add("data.splits", what, f"splits of the source: {', '.join(names)}")
        if len(candidates) > 1:
            fix = f"say which one, e.g.  data: {{splits: {{{split}: {candidates[0]}}}}}"
            problems.add(str(spec.source), f"two names for {split}: {', '.join(candidates)}", fix)
        if candidates:
            matched[split] = candidates[0]
    problems.raise_if_any()
    return matched
