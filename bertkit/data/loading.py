"""`load`: from the `data:` section of a recipe to checked rows in canonical columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from secrets import token_hex
from sys import intern
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bertkit.data.columns import choose_columns
from bertkit.data.disk_list import DiskList
from bertkit.data.sources import Part, open_source
from bertkit.data.splits import SPLITS, hold_out, known_only, labels_of, limit_rows, names_of
from bertkit.data.table import Data, Origin, Stored, Table, features_of, fingerprint, in_blocks, on_disk, rows_named
from bertkit.data.values import convert
from bertkit.errors import DataError, Problem

if TYPE_CHECKING:
    from datasets import Dataset

    from bertkit.data.schema import Column, Finding, Schema
    from bertkit.sections import DataSpec


Refine: TypeAlias = "Callable[[Table, str], tuple[Table, list[Finding]]]"


def unrefined(table: Table, split: str) -> tuple[Table, list[Finding]]:
    """The rows as they were read."""
    return table, []


STORED = ("text", "words", "tags", "labels", "name")  # kinds of columns that are large: kept on disk from the start
UNREAD = ("spans", "answers")  # kinds that `Task.refine` reads, whatever they are


def load(
    spec: DataSpec,
    schema: Schema,
    refine: Refine = unrefined,
    *,
    splits: Collection[str] | None = None,
    known_labels: Collection[str] | None = None,
) -> Data:
    """Read the rows that a recipe names, check every value, and part them into splits.

    spec: the recipe's `data:` section.
    schema: its `columns` are the canonical ones. One of its `inputs` (sets of columns) is required in full,
        and in train and validation one of its `targets`; a test split without it is returned without it.
    refine: what the task does to the rows of a split as they were read, such as `Task.refine` with its options.
    splits: those to give back; None: all there are, and train has to be among them.
    known_labels: what `data.unseen_labels` goes by; None: the labels of train, where train is read.

    Documents of a task that reads a corpus are not held in memory; see `load_corpus`.
    Raises DataError: a source, columns or values that will not do, everything of one kind in one message.
    """
    if schema.corpus:
        from bertkit.data.corpus import load_corpus

        return load_corpus(spec, schema, splits)
    columns, targets = schema.columns, schema.targets
    inputs = [[name for name in columns if name in alternative] for alternative in schema.inputs]
    share = spec.validation if splits is None or "validation" in splits or "train" in splits else None
    opened = splits if splits is None or share is None else {*splits, "train"} - {"validation"}
    parts = open_source(spec, opened, {spec.columns.get(name, name) for name in columns})
    if splits is None and "train" not in parts:
        raise DataError(Problem(str(spec.source), f"no train split; there is: {', '.join(parts)}"))
    mapped = _map_columns(parts, spec, columns, inputs, targets)
    tables = dict[str, Table]()
    findings = [finding for each in parts.values() for part in each for finding in part.findings]
    for split in parts:
        tables[split], notes = refine(_read(parts[split], mapped[split], columns), split)
        findings += notes
    findings += [note for split in tables for note in _drop_unlabelled(tables[split], split, targets)]
    target = next((name for name in targets if any(name in t.values for t in tables.values())), None)
    if share is not None:
        names, count = names_of(columns[target]) if target else None, len(tables["train"])
        tables["train"], tables["validation"] = hold_out(tables["train"], share, spec.seed, target, names)
        findings.append(_note(f"validation: {len(tables['validation']):,} of {count:,} rows of train"))
    tables, notes = _limit(tables, spec)
    findings += notes
    if share is not None or spec.limit is not None:
        findings += _divided_groups(schema, tables)
    if target is not None and columns[target].holds not in ("number", "text"):
        names = names_of(columns[target])
        own = known_labels is None and "train" in tables
        known = labels_of(tables["train"], target, names) if own else known_labels
        if known is not None:
            tables, notes = known_only(tables, target, names, known, spec.unseen_labels)
            findings += notes
    tables = {s: tables[s] for s in SPLITS if s in tables and (splits is None or s in splits)}
    present = {name for table in tables.values() for name in table.values}
    origins = {split: table.origin for split, table in tables.items()}
    fingerprints = {split: fingerprint(table.values) for split, table in tables.items()}
    return Data(
        rows={split: _dataset(tables.pop(split), columns, digest) for split, digest in fingerprints.items()},
        columns={name: column for name, column in columns.items() if name in present},
        target=target,
        class_names=_class_names(parts, mapped, target),
        fingerprints=fingerprints,
        findings=findings,
        origins=origins,
    )


def _map_columns(
    opened: Mapping[str, Sequence[Part]],
    spec: DataSpec,
    columns: Mapping[str, Column],
    inputs: Sequence[Sequence[str]],
    targets: Sequence[str],
) -> dict[str, list[dict[str, str]]]:
    """Split -> for each part, canonical column -> column there. All parts get the same inputs and target."""
    mapped: dict[str, list[dict[str, str]]] = {split: [] for split in opened}
    alternatives = {*targets, *(name for alternative in inputs for name in alternative)}
    problems: list[Problem] = []
    for split, parts in opened.items():
        for part in parts:
            try:
                chosen = choose_columns(
                    part.columns,
                    spec,
                    columns,
                    inputs=inputs,
                    targets=targets,
                    where=part.name,
                    needs_target=split != "test",
                )
            except DataError as error:
                problems += [problem for problem in error.problems if problem not in problems]
                continue
            # what an earlier part ruled out is no column of this one, though it has one of that name
            ruled_out = alternatives.difference(targets, *inputs)
            chosen = {name: source for name, source in chosen.items() if name not in ruled_out}
            mapped[split].append(chosen)
            inputs = [alternative for alternative in inputs if chosen.keys() >= set(alternative)]
            targets = [name for name in targets if name in chosen]
    if problems:
        raise DataError(problems)
    return mapped


def _read(parts: Sequence[Part], mapped: Sequence[Mapping[str, str]], columns: Mapping[str, Column]) -> Table:
    """The rows of a split: texts, words and names on disk; values of other columns are small, or not settled yet."""
    names = [name for name in columns if any(name in mapping for mapping in mapped)]
    stored = [name for name in names if columns[name].holds in STORED]
    origin, rest = Origin([part.prefix for part in parts]), dict[str, Any]()
    for name in (name for name in names if name not in stored):
        rest[name] = DiskList() if columns[name].holds in UNREAD else []

    def blocks() -> Iterator[dict[str, list[Any]]]:
        for block in in_blocks(_values(parts, mapped, names, origin)):
            own = dict(zip(names, map(list, zip(*block, strict=True)), strict=True))
            places = origin.select(range(len(origin) - len(block), len(origin)))
            for name in names:
                if columns[name].holds == "label":  # which is read when all values are there; equal ones are one object
                    own[name] = [intern(value) if isinstance(value, str) else value for value in own[name]]
                else:
                    own[name] = convert(own[name], name, columns[name], places)
                if name in rest:
                    rest[name].extend(own.pop(name))
            yield own

    rows = on_disk(blocks(), features_of({name: columns[name].holds for name in stored}), token_hex())
    for name in (name for name in rest if columns[name].holds == "label"):
        rest[name] = convert(rest[name], name, columns[name], origin)
    return Table({name: rest[name] if name in rest else Stored(rows, name) for name in names}, origin)


def _values(
    parts: Sequence[Part], mapped: Sequence[Mapping[str, str]], names: Sequence[str], origin: Origin
) -> Iterator[list[Any]]:
    """The values of these columns, row by row; where each row stood is added to `origin`."""
    for index, (part, mapping) in enumerate(zip(parts, mapped, strict=True)):
        wanted = [mapping.get(name, "") for name in names]
        for number, row in part.rows:
            origin.file.append(index)
            origin.number.append(number)
            yield [row.get(source) for source in wanted]


def _note(what: str, level: Literal["note", "warn"] = "note") -> Finding:
    from bertkit.data.schema import Finding

    return Finding(level, what)


def _divided_groups(schema: Schema, tables: Mapping[str, Table]) -> list[Finding]:
    """What drawing rows one by one does to rows that belong together."""
    present = {name for table in tables.values() for name in table.values}
    lost = [what for name, what in schema.group_columns.items() if name in present]
    return [_note(f"rows are sampled individually: {what}", "warn") for what in lost]


def _drop_unlabelled(table: Table, split: str, targets: Sequence[str]) -> list[Finding]:
    """Take targets that no row has out of a test split; DataError where some rows, or train, lack theirs."""
    notes = []
    for name in [name for name in targets if name in table.values]:
        missing = [index for index, value in enumerate(table.values[name]) if value is None]
        # GLUE's mark of a secret score; a text that is not there
        if split == "test" and all(value in (-1.0, "") for value in table.values[name]):
            missing = list(range(len(table)))
        if split == "test" and len(missing) == len(table):
            del table.values[name]
            notes.append(_note(f"{split} has no `{name}`: it can be predicted, but not scored"))
        elif missing:
            what = f"{len(missing):,} of {len(table):,} rows of {split} have no `{name}`"
            where = rows_named(table.origin, missing)
            raise DataError(Problem("", f"{what}: {where}", "fill it in, or remove these rows"))
    return notes


def _limit(tables: Mapping[str, Table], spec: DataSpec) -> tuple[dict[str, Table], list[Finding]]:
    limits = dict.fromkeys(tables, spec.limit) if isinstance(spec.limit, int) else {**(spec.limit or {})}
    limited, notes = dict(tables), []
    for split, limit in limits.items():
        if split in tables and len(tables[split]) > limit:
            limited[split] = limit_rows(tables[split], limit, spec.seed, split)
            notes.append(_note(f"{split}: limited to {limit:,} of {len(tables[split]):,} rows"))
    return limited, notes


def _class_names(
    opened: Mapping[str, Sequence[Part]],
    mapped: Mapping[str, Sequence[Mapping[str, str]]],
    target: str | None,
) -> list[str]:
    for split, parts in opened.items():
        for part, mapping in zip(parts, mapped[split], strict=True):
            names = part.class_names.get(mapping.get(target or "", ""))
            if names:
                return names
    return []


def _dataset(table: Table, columns: Mapping[str, Column], digest: str) -> Dataset:
    names = list(table.values)
    blocks = in_blocks(zip(*table.values.values(), strict=True))
    columnwise = (dict(zip(names, zip(*block, strict=True), strict=True)) for block in blocks)
    return on_disk(columnwise, features_of({name: columns[name].holds for name in names}), digest[:32])
