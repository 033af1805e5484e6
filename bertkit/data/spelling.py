"""`data.labels: casefold`: labels that differ only in case, blanks or Unicode form become one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from bertkit.data.disk_list import DiskList
from bertkit.data.schema import Finding, note
from bertkit.data.table import Table
from bertkit.data.values import folded
from bertkit.text import counted, listed

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


def merge_labels(
    tables: Mapping[str, Table], target: str, holds: str, known_labels: Collection[str] | None
) -> tuple[dict[str, Table], dict[str, str], list[Finding]]:
    """The tables with each label in its most frequent spelling in train, or as `known_labels` have it; what
    became what; and a note.

    holds: what the column of the target holds, with tags in BIO. Of spellings that are as frequent, the first
    one counts.
    """
    counts = {
        split: Counter(label for value in table.values.get(target, ()) for label in _labels(value, holds))
        for split, table in tables.items()
    }
    total = sum(counts.values(), Counter[str]())
    preferred = sorted(known_labels or ()) or [name for name, _ in counts.get("train", total).most_common()]
    chosen = {folded(name): name for name in reversed(preferred)}
    new = {name: chosen.get(folded(name), name) for name in total if name not in (known_labels or ())}
    new = {name: label for name, label in new.items() if name != label}
    if not new:
        return dict(tables), {}, []
    merged = dict[str, Table]()
    for split, table in tables.items():
        changed: dict[str, Sequence[Any]] = {}
        if target in table.values:
            changed[target] = _like(table.values[target], lambda value: _respelled(value, holds, new))
        if "spans" in table.values:
            changed["spans"] = _like(table.values["spans"], lambda value: _respelled(value, "spans", new))
        merged[split] = table.with_(**changed)
    groups = [[label, *(name for name in new if new[name] == label)] for label in dict.fromkeys(new.values())]
    what = f"data.labels merged {counted(len(new), 'spelling')}: {spellings(groups, total)}"
    return merged, new, [note(what)]


def _like(values: Sequence[Any], read: Callable[[Any], Any]) -> Sequence[Any]:
    return DiskList(map(read, values)) if isinstance(values, DiskList) else list(map(read, values))


def _labels(value: Any, holds: str) -> Iterable[str]:
    """The labels of a value, of tags the type of each entity."""
    if holds == "tags":
        return [tag[2:] for tag in value or () if tag[0] == "B"]
    return [value] if isinstance(value, str) else value or ()


def _respelled(value: Any, holds: str, new: Mapping[str, str]) -> Any:
    if holds == "labels":
        return value and list(dict.fromkeys(new.get(label, label) for label in value))
    if holds == "tags":
        return value and [tag[:2] + new.get(tag[2:], tag[2:]) for tag in value]
    if holds == "word_labels":
        return value and [new.get(tag, tag) for tag in value]
    if holds == "spans":
        return value and [{**span, "label": new.get(span["label"], span["label"])} for span in value]
    return new.get(value, value)
