"""`data.labels: casefold`: labels that differ only in case, blanks or Unicode form become one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from bertkit.data.disk_list import DiskList
from bertkit.data.schema import Finding, note
from bertkit.data.table import Table
from bertkit.data.values import folded
from bertkit.text import counted, listed, unique

MOST_GROUPS = 100  # a longer list is cut short in messages


def variants(counts: Mapping[str, int]) -> list[list[str]]:
    """Labels that `folded` makes equal, in groups of at least two, the most frequent first."""
    groups = defaultdict[str, list[str]](list)
    for name in sorted(counts, key=lambda name: -counts[name]):
        groups[folded(name)].append(name)
    return [names for names in groups.values() if len(names) > 1]


def spellings(groups: Iterable[Sequence[str]], counts: Mapping[str, int]) -> str:
    """These groups with their counts, with escapes where names look the same: where they differ in Unicode
    form.
    """
    shown = list[str]()
    for names in groups:
        alike = len({" ".join(name.casefold().split()) for name in names}) == 1
        shown.append(" = ".join(f"{repr(name) if alike else ascii(name)} {counts[name]:,}" for name in names))
    return listed(shown, MOST_GROUPS)


def respellings(
    tables: Mapping[str, Table], target: str, holds: str, known_labels: Collection[str] | None
) -> tuple[dict[str, str], list[Finding]]:
    """Label -> its most frequent spelling in train, or that of `known_labels`, where it has another.

    holds: what the column of the target holds, with tags in BIO. Of spellings that are as frequent, the first
    one counts.
    """
    of_model = sorted(known_labels or ())
    counts = {split: _counts(table.values.get(target, ()), holds) for split, table in tables.items()}
    total = sum(counts.values(), Counter[str]())
    preferred = of_model or [name for name, _ in counts.get("train", total).most_common()]
    chosen = {folded(name): name for name in reversed(preferred)}
    groups = dict[str, list[str]]()
    new = dict[str, str]()
    for name in total:
        label = chosen.get(folded(name), name)
        if name != label and name not in of_model:
            new[name] = label
            groups.setdefault(label, [label]).append(name)
    what = f"data.labels merged {counted(len(new), 'spelling')}: {spellings(groups.values(), total)}"
    return new, [note(what)] if groups else []


def respelled(table: Table, target: str, holds: str, new: Mapping[str, str]) -> Table:
    """The table with labels as `respellings` has them."""
    for name, kind in ((target, holds), ("spans", "spans")):
        if name in table.values:
            values = map(partial(_respelled, kind, new), table.values[name])
            stored = DiskList if isinstance(table.values[name], DiskList) else list
            table = table.with_(**{name: stored(values)})
    return table


def _counts(values: Iterable[Any], holds: str) -> Counter[str]:
    """The labels of these values, of tags the type of each entity."""
    if holds == "tags":
        tags = chain.from_iterable(value or () for value in values)
        return Counter(tag[2:] for tag in tags if tag[0] == "B")
    return Counter(chain.from_iterable([v] if isinstance(v, str) else v or () for v in values))


def _respelled(holds: str, new: Mapping[str, str], value: Any) -> Any:
    if holds == "labels":
        return value and unique(new.get(label, label) for label in value)
    if holds == "tags":
        return value and [tag[:2] + new.get(tag[2:], tag[2:]) for tag in value]
    if holds == "word_labels":
        return value and [new.get(tag, tag) for tag in value]
    if holds == "spans":
        return value and [{**span, "label": new.get(span["label"], span["label"])} for span in value]
    return new.get(value, value)
