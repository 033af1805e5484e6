"""Columns: which column of a source is which canonical column, and the order of label names."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from bertkit.data.problems import Problems, setting
from bertkit.data.schema import Column, Schema, Source, columns_of, mapped_columns
from bertkit.errors import DataError, Problem
from bertkit.sections import DataSpec
from bertkit.text import listed, short_repr
from bertkit.validation import did_you_mean, nearest

_IDS = ("id", "idx", "index", "")  # the last things to suggest
_PLAIN = re.compile(r"[^\W\d][\w.-]*")  # needs no quotes in YAML
_WHOLE = re.compile(r"-?\d+")


def choose_columns(
    available: Sequence[str], spec: DataSpec, schema: Schema, where: str, needs_target: bool
) -> dict[str, Source]:
    """Canonical column -> column of the source, or text columns to be joined; `available` are all of them.

    Columns that the recipe maps precede those that have the canonical name. Of the schema's inputs one
    alternative is required in full; of its targets, one, if `needs_target`.
    Raises DataError, with the line that fixes it: columns that are missing, or several that could be meant.
    """
    spec = _with_aliases(available, spec, schema)
    columns = schema.columns
    targets = [frozenset([name]) for name in schema.targets]

    def is_available(name: str) -> bool:
        if name == "id" and name not in spec.columns and name in mapped_columns(spec):
            return False  # the recipe says that it is something else
        return {*columns_of(spec.columns.get(name, name))}.issubset(available)

    present = set(filter(is_available, columns))
    _check_mapping(available, spec, columns, () if needs_target else (*schema.targets, "id"), where)
    chosen = present.difference(*schema.inputs, schema.targets)
    for group, needed in ((schema.inputs, True), (targets, needs_target)):
        names = frozenset[str]().union(*group)
        mapped = names & spec.columns.keys()
        fitting = [a for a in group if mapped <= a]
        if mapped and not fitting:
            what = f"{_either([mapped], sorted(mapped))} do not go together"
            raise DataError("data.columns", what, f"Map {_either(group, columns)}.")
        complete = [a for a in fitting if a <= present]
        complete = [a for a in complete if a == mapped] or complete
        complete = [a for a in complete if not any(map(a.__lt__, complete))]
        if len(complete) > 1:
            example = ", ".join(f"{name}: {name}" for name in columns if name in complete[0])
            raise DataError(
                where,
                f"has {_either(complete, columns)}: only one of these can be used",
                f"map the intended one, e.g.  data: {{columns: {{{example}}}}}",
            )
        if complete:
            chosen |= complete[0]
        elif needed and group:
            fewest = [a for a in fitting if not any(map(a.__gt__, fitting))]
            raise DataError(_missing(fewest, available, spec, columns, where))
        else:  # objects of json lines may have it further down
            chosen |= mapped or names
    sources: dict[str, Source] = {n: spec.columns.get(n, n) for n in columns if n in chosen}
    joined = [name for name in sources if columns[name].located and not isinstance(sources[name], str)]
    if joined and any(columns[name].holds == "spans" for name in chosen):
        what = f"`{joined[0]}` is joined from several columns, but the offsets of spans count in one"
        raise DataError("data.columns", what, "Map that one.")
    return sources


def _with_aliases(available: Sequence[str], spec: DataSpec, schema: Schema) -> DataSpec:
    """The section, with the column mapped that has the target of another name, where no target is there."""
    if any(name in available or name in spec.columns for name in schema.targets) or "tokens" in available:
        return spec
    free = {*available} - mapped_columns(spec)
    pairs = [
        (name, alias) for name in schema.targets for alias in schema.columns[name].aliases if alias in free
    ]
    return spec.model_copy(update={"columns": {**spec.columns, **dict(pairs)}}) if len(pairs) == 1 else spec


def optional_columns(spec: DataSpec, schema: Schema) -> list[str]:
    """Canonical columns that no row needs, neither to be answered nor to be learned from."""
    needed = {*chain.from_iterable(schema.inputs), *schema.targets}
    other = mapped_columns(spec) - spec.columns.keys()  # the recipe says that these are something else
    return [
        name for name in schema.columns if name not in needed and (name in spec.columns or name not in other)
    ]


def label_names(values: Iterable[str], class_names: Sequence[str] = ()) -> list[str]:
    """Label names in a stable order, for id2label: that of `Data.class_names`, else by number, else by
    alphabet.
    """
    names = set(values)
    if class_names:
        return [*class_names, *sorted(names.difference(class_names))]
    if all(_WHOLE.fullmatch(name) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _check_mapping(
    available: Sequence[str],
    spec: DataSpec,
    columns: Mapping[str, Column],
    optional: Collection[str],
    where: str,
) -> None:
    problems = Problems()
    for ours, theirs in spec.columns.items():
        several = not isinstance(theirs, str)
        if ours not in columns:
            what = f"the task has no column `{ours}`{did_you_mean(ours, columns)}"
            problems.add("data.columns", what, f"columns of the task: {', '.join(columns)}")
        elif several and columns[ours].holds not in ("text", "labels"):
            fix = "Map one column. Several columns of 0 and 1 are mapped as `labels`."
            problems.add("data.columns", f"`{ours}` cannot be read from several columns", fix)
        some = several and not {*theirs}.isdisjoint(available)
        for name in columns_of(theirs) if ours in columns and (some or ours not in optional) else ():
            if name not in available:
                what = f"no column `{name}`, which `data.columns` names for `{ours}`; found: "
                near = nearest(name, available) or nearest(ours, available)
                like = [near if n == name else n for n in theirs] if several else near
                problems.add(where, what + listed(available), _fix(ours, like))
    problems.raise_if_any()


def _either(alternatives: Iterable[Collection[str]], order: Collection[str]) -> str:
    sides = (map("`{}`".format, filter(names.__contains__, order)) for names in alternatives)
    return ", or ".join(map(" and ".join, sides))


def _missing(
    group: Sequence[frozenset[str]],
    available: Sequence[str],
    spec: DataSpec,
    columns: Collection[str],
    where: str,
) -> Problem:
    what = f"needs a column {_either(group, columns)}; found: {listed([*map(short_repr, available)])}"
    if len(available) == 1 and (others := [d for d in "\t;,|" if d in available[0]]):
        return Problem(where, what, setting("delimiter", json.dumps(others[0])))
    taken = mapped_columns(spec)
    free = [name for name in available if name not in taken and name not in columns]
    free.sort(key=lambda name: name.lower() in _IDS)
    similar = {name: nearest(name, free) for alternative in group for name in columns if name in alternative}
    sources = {name: columns_of(spec.columns.get(name, name)) for name in similar}
    closest = max(
        group, key=lambda names: sum(source in available for name in names for source in sources[name])
    )
    gaps = [name for name in columns if name in closest and not {*sources[name]}.issubset(available)]
    pairs = [(name, source) for name, source in similar.items() if source]
    ours, theirs = pairs[0] if pairs else (gaps[0], free[0] if free else "")
    return Problem(where, what, _fix(ours, theirs) if theirs else "")


def _fix(ours: str, theirs: Source) -> str:
    names = [
        name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)
        for name in columns_of(theirs)
    ]
    written = names[0] if isinstance(theirs, str) else f"[{', '.join(names)}]"
    written = written.replace('""', "…")
    return f"say which column it is, e.g.  data: {{columns: {{{ours}: {written}}}}}"
