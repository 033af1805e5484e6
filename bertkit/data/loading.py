"""`load`: from the `data:` section of a recipe to checked rows in canonical columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from sys import intern
from typing import Any, NamedTuple

from bertkit.data.columns import choose_columns, optional_columns
from bertkit.data.corrections import corrected
from bertkit.data.disk_list import DiskList
from bertkit.data.on_disk import features_of, fingerprint, in_blocks, on_disk
from bertkit.data.origin import Origin, locations
from bertkit.data.schema import (
    BY,
    ID,
    Column,
    Finding,
    Mapped,
    Schema,
    Source,
    cell,
    columns_of,
    given_name,
    note,
    texts_of,
    warn,
)
from bertkit.data.sources import Part, open_source
from bertkit.data.spelling import respelled, respellings
from bertkit.data.splits import SPLITS, hold_out, known_only, limit_rows, names_of
from bertkit.data.squad import with_starts
from bertkit.data.table import AS_READ, Checked, Data, Loaded, Row, RowRules, Table
from bertkit.data.values import convert, is_blank, marked, refuse_unequal, split_labels, without_decimals
from bertkit.errors import DataError, Problem
from bertkit.sections import MEMORY, DataSpec
from bertkit.text import counted, listed, unique
from bertkit.validation import did_you_mean

Parts = Mapping[str, Sequence[Part]]  # by split

PANDAS = "; pandas reads NA, None, null and nan as missing: read_csv(FILE, keep_default_na=False) keeps them"
STARTS = "answer_start"  # the column of question answering in which plain answers have their offsets


class _Rows(NamedTuple):
    """What was read of all splits that were opened or held out."""

    tables: dict[str, Table]
    target: str | None
    options: Any  # of the task
    findings: list[Finding]
    respelled: Mapping[str, str] = {}  # by `data.labels`: label -> the spelling that replaced it


def load(
    spec: DataSpec,
    schema: Schema,
    rules: RowRules = AS_READ,
    *,
    splits: Collection[str] | None = None,
    known_labels: Collection[str] | None = None,
) -> Data:
    """Read the rows that a recipe names, check every value, and divide them into splits.

    schema: one of its `inputs` (sets of columns) is required in full, and in train and validation one of its
        `targets`; a test split without it is returned without it. Documents of a task that reads a corpus are
        not
        held in memory; see `read_corpus`.
    rules: of the task, `Task.rules`: what the rows decide, and how those of a split are checked and changed.
    splits: those to return; None: all that exist, and train must be one of them.
    known_labels: the labels that `data.unseen_labels` accepts; None: those of train, where train is read.

    Raises DataError: an unusable source, unusable columns or values; everything of one kind in one message.
    """
    sizes = {"test": spec.test, "validation": spec.validation}  # test first: `validation` does not change it
    held_out = {split: size for split, size in sizes.items() if size is not None}
    if splits is not None and {"train", *held_out}.isdisjoint(splits):
        held_out = {}
    opened = {*splits, "train"} - held_out.keys() if splits is not None and held_out else splits
    corpus = schema.corpus
    if corpus and spec.group_by:
        what = "documents of a corpus have no groups; equal texts stay together"
        raise DataError("data.group_by", what, "Remove data.group_by.")
    if corpus and any(size >= 1 for size in held_out.values()):
        what = "documents of a corpus are held out while they are read, before their number is known"
        raise DataError("data", what, "Write a share below 1.")
    if corpus and (spec.exclude or spec.relabel):
        raise DataError("data", "`exclude` and `relabel` are not for a corpus", "Correct its files.")
    if spec.by and (corpus or schema.together):
        raise DataError(
            "data.by",
            "scores by a column need rows that are scored one by one, and not documents of a corpus or a "
            "search",
            "Remove data.by.",
        )
    complete = splits is None or (isinstance(spec.source, dict) and {*splits} >= spec.source.keys())
    if not corpus:
        more = {"id": ID, **({spec.by: BY} if spec.by else {})}
        schema = replace(schema, columns={**schema.columns, **more, **schema.columns})
    sources = [spec.columns.get(name, name) for name in (*schema.columns, *filter(None, [spec.group_by]))]
    sources += chain.from_iterable(column.aliases for column in schema.columns.values())
    unmapped = open_source(spec, opened, {*chain.from_iterable(map(columns_of, sources))})
    if splits is None and "train" not in unmapped:
        what = f"no train split; available: {', '.join(unmapped)}"
        raise DataError(str(spec.source), what, "Map it, e.g.  data: {splits: {train: NAME}}")
    parts = _map_columns(unmapped, spec, schema)
    wanted = [split for split in SPLITS if splits is None or split in splits]
    if corpus:
        from bertkit.data.corpus import read_corpus

        documents, notes = read_corpus(parts, spec, held_out)
        read = _Rows({}, "text", rules.options, notes)
        loaded = {split: documents[split] for split in wanted if split in documents}
    else:
        read = _read_tables(parts, spec, schema, rules, held_out, known_labels, complete)
        loaded = {split: _loaded(read.tables.pop(split), schema) for split in wanted if split in read.tables}
    every = list(chain.from_iterable(parts.values()))
    reading = [] if corpus else every  # a corpus keeps the findings of its parts
    findings = dict.fromkeys(finding for part in reading for finding in part.findings)
    declared = [part.class_names.get(str(part.mapping.get(read.target or ""))) for part in every]
    marks = spec.columns.get(read.target or "", "")
    if not isinstance(marks, str):
        declared = [sorted(marks)]
    present = {name for table in loaded.values() for name in table.rows.column_names}
    if spec.by and spec.by not in present:
        columns = unique(name for part in every for name in part.columns)
        what = f"no column `{spec.by}`, which `data.by` names; found: {listed(columns)}"
        raise DataError(str(spec.source), f"{what}{did_you_mean(spec.by, columns)}", "Correct data.by.")
    return Data(
        rows={split: table.rows for split, table in loaded.items()},
        columns={name: column for name, column in schema.columns.items() if name in present},
        target=read.target,
        class_names=unique(read.respelled.get(n, n) for n in next(filter(None, declared), [])),
        fingerprints={split: table.fingerprint for split, table in loaded.items()},
        findings=[*findings, *read.findings],
        options=read.options,
        origins={split: table.origin for split, table in loaded.items()},
        corpus=corpus,
    )


def _map_columns(opened: Parts, spec: DataSpec, schema: Schema) -> Parts:
    """The parts with their mapping of columns. All parts get the same inputs and target."""
    mapped: dict[str, list[Part]] = {split: [] for split in opened}
    alternatives = {*schema.targets, *chain.from_iterable(schema.inputs)}
    common = schema  # with the alternatives that all parts have
    problems = list[Problem]()
    for split, parts in opened.items():
        for part in parts:
            try:
                part, chosen = _choose(part, spec, common, split)
            except DataError as error:
                problems += [problem for problem in error.problems if problem not in problems]
                continue
            # what an earlier part ruled out is not a column of this one, though it has one of that name
            ruled_out = alternatives.difference(common.targets, *common.inputs)
            chosen = {name: source for name, source in chosen.items() if name not in ruled_out}
            mapped[split].append(replace(part, mapping=chosen))
            inputs = [alternative for alternative in common.inputs if alternative <= chosen.keys()]
            targets = [name for name in common.targets if name in chosen]
            common = replace(common, inputs=inputs, targets=targets)
    if problems:
        raise DataError(problems)
    return mapped


def _choose(part: Part, spec: DataSpec, schema: Schema, split: str) -> tuple[Part, dict[str, Source]]:
    """The part, with the keys of all its objects where those of the first one do not do; and its mapping of
    columns.
    """
    try:
        chosen = choose_columns(part.columns, spec, schema, part.name, split != "test" and not schema.corpus)
        group_by = _group_column(chosen, spec)
        if split == "train" and group_by and group_by not in part.columns:
            what = f"no column `{group_by}`, which `data.group_by` names; found: {listed(part.columns)}"
            raise DataError(
                part.name, f"{what}{did_you_mean(group_by, part.columns)}", "Correct data.group_by."
            )
    except DataError:
        if part.all_keys is None:
            raise
        keys = [*part.columns, *sorted({*part.all_keys()} - {*part.columns})]
        return _choose(replace(part, columns=keys, all_keys=None), spec, schema, split)
    return part, chosen


def _group_column(mapping: Mapped, spec: DataSpec) -> str | None:
    """The column of the source that `data.group_by` names."""
    mapped = mapping.get(spec.group_by or "")
    return mapped if isinstance(mapped, str) else spec.group_by


def _read_tables(
    parts: Parts,
    spec: DataSpec,
    schema: Schema,
    rules: RowRules,
    held_out: Mapping[str, float],
    known_labels: Collection[str] | None,
    complete: bool,
) -> _Rows:
    """The rows of all splits, checked, corrected and sampled."""
    tables = {split: _read(parts[split], schema, spec) for split in parts}
    options, decided = rules.decide(rules.options, tables)
    findings = [*decided]
    validate_rows = corrected(partial(rules.validate, options), tables, spec, schema, complete=complete)
    for split, table in tables.items():
        read = [name for name in schema.targets if name in table.values]
        table, changes = validate_rows(table, split)
        refuse_unequal(schema, table)
        tables[split] = table
        notes = list[Finding]()
        if targets := [name for name in schema.targets if name in table.values]:
            # `validate_rows` may make tags of the spans that were read: messages name the column of the spans
            name = targets[0] if targets[0] in read or not read else read[0]
            theirs = "`, `".join(columns_of(spec.columns.get(name, name)))
            tables[split], notes = _drop_unlabelled(table, split, targets, theirs, spec)
        findings += changes + notes
    present = {*chain.from_iterable(table.values for table in tables.values())}
    target = next((name for name in schema.targets if name in present), None)
    names = names_of(schema.columns[target]) if target else None
    new_names: Mapping[str, str] = {}
    if spec.labels and target and names:
        holds = schema.columns[target].holds
        new_names, notes = respellings(tables, target, holds, known_labels)
        findings += notes
        if new_names:
            tables = {split: respelled(table, target, holds, new_names) for split, table in tables.items()}
    common = present.intersection(*(table.values for table in tables.values()))
    everywhere = {name: column for name, column in schema.columns.items() if name in common}
    total = len(tables.get("train", ()))
    for split, size in held_out.items():
        train = tables["train"]
        held = hold_out(train, split, size, total, spec.seed, target, names, *texts_of(everywhere))
        tables["train"], tables[split] = held
        findings.append(note(f"{split}: {len(tables[split]):,} of {total:,} rows of train"))
    limits = dict.fromkeys(tables, spec.limit) if isinstance(spec.limit, int) else {**(spec.limit or {})}
    for split, limit in limits.items():
        if split in tables and len(tables[split]) > limit:
            findings.append(note(f"{split}: limited to {limit:,} of {len(tables[split]):,} rows"))
            tables[split] = limit_rows(tables[split], limit, spec.seed, split, target, names)
    if held_out or spec.limit is not None:
        grouped = {what: name for name, what in schema.group_columns.items() if name in present}
        for what, name in grouped.items():
            by_it = schema.group_columns.get(spec.group_by or "") == what
            if not by_it or spec.limit is not None:
                whole = held_out and not by_it
                fix = f"data.group_by={name} holds out whole groups" if whole else ""
                findings.append(warn(f"rows are sampled individually: {what}", fix))
    if target is not None and names is not None:
        if known_labels is None and "train" in tables:
            known_labels = {name for value in tables["train"].values[target] for name in names(value)}
        if known_labels is not None:
            tables, notes = known_only(tables, target, names, known_labels, spec.unseen_labels)
            findings += notes
    return _Rows(tables, target, options, findings, new_names)


def _read(parts: Sequence[Part], schema: Schema, spec: DataSpec) -> Table:
    """The rows of a split: labels and numbers in memory, all else on disk.

    Answers get the offsets of STARTS, which is not a column of the table: here, before `data.relabel` may
    replace them by answers without one.
    """
    columns = schema.columns
    late = {name: spec.columns.get(name, name) for name in optional_columns(spec, schema)}
    seen = {name for part in parts for name in part.mapping}
    names = [name for name in columns if name in seen or name in late]
    read = {name: list[Any]() if columns[name].holds in ("label", "number") else DiskList() for name in names}
    origin = Origin([part.prefix for part in parts])
    for index, part in enumerate(parts):
        mapping = {**late, **part.mapping} if part.all_keys else part.mapping  # the first object may lack it
        group_by = _group_column(part.mapping, spec)
        for block in in_blocks(part.rows):
            rows = [row for _, row in block]
            for name in mapping.keys() - seen:
                if any(column in row for row in rows for column in columns_of(mapping[name])):
                    seen.add(name)
            places = Origin(origin.files)
            for number, _ in block:
                origin.add(index, number)
                places.add(index, number)
            if group_by:
                origin.groups.extend(_groups(rows, group_by, places, part.name))
            for name in names:
                values = _cells(rows, name, mapping.get(name), columns[name], spec, places)
                if columns[name].holds != "label":  # labels are converted once all of them are read
                    values = convert(values, given_name(name, spec.columns), columns[name], places)
                read[name].extend(values)
    read = {name: read[name] for name in names if name in seen}
    for name, cells in read.items():
        if columns[name].holds == "label":
            read[name] = convert(cells, given_name(name, spec.columns), columns[name], origin)
        elif columns[name].holds in ("name", "value"):
            whole = without_decimals(cells)
            if whole is not cells:
                read[name] = DiskList(whole)
    starts = read.pop(STARTS, None)
    if starts is not None and "answers" in read:
        read["answers"] = DiskList(map(with_starts, read["answers"], starts))
    return Table({**read}, replace(origin, ids=read.get("id", ())))


def _groups(rows: Sequence[Row], group_by: str, places: Origin, part: str) -> Iterator[int]:
    """A number that the rows of one group share; a row without a value is a group by itself."""
    cells = (row.get(group_by) for row in rows)
    keys = [str(key) if isinstance(key, list | dict) else key for key in cells]
    for number, group in zip(places.number, convert(keys, group_by, BY, places), strict=True):
        yield hash(group.removesuffix(".0") if group and group.strip() else (part, number))


def _cells(
    rows: Sequence[Row], name: str, source: Source | None, column: Column, spec: DataSpec, places: Origin
) -> list[Any]:
    """The values of a column in these rows, before they are converted; equal labels are one object."""
    if source is None:
        return [None] * len(rows)
    if column.holds == "labels" and not isinstance(source, str):
        return list(marked(rows, source, places))
    values = [cell(row, source) for row in rows]
    if column.holds == "labels":
        return [split_labels(value, spec.labels_separator) for value in values]
    if column.holds == "label":
        return [intern(value) if isinstance(value, str) else value for value in values]
    if name == "id" and name not in spec.columns:  # nobody said that it names the row
        return [None if isinstance(value, list | dict | bytes) else value for value in values]
    return values


def _drop_unlabelled(
    table: Table, split: str, targets: Sequence[str], theirs: str, spec: DataSpec
) -> Checked:
    """Without targets that no row of a test split has, and without rows that lack the first of them.

    theirs: what the user calls it. `data.missing_labels`: "error" raises a DataError where some rows, or
    train, lack it; "ignore" leaves them out with a note.
    """
    pandas = PANDAS if spec.source == MEMORY else ""
    values = table.values[targets[0]]
    missing = {index for index, value in enumerate(values) if is_blank(value)}
    # GLUE's mark of a hidden score
    if split == "test" and all(value == -1.0 for value in values):
        missing = set(range(len(table)))
    every = len(missing) == len(table)
    has = "has" if len(missing) == 1 else "have"
    what = f"{len(missing):,} of {counted(len(table), 'row')} of {split} {has} no `{theirs}`"
    if split == "test" and every:
        return table.without(*targets), [
            note(f"{split} has no `{theirs}`: it can be predicted, but not scored")
        ]
    if not missing:
        return table, []
    where = locations(table.origin, sorted(missing))
    if every:
        raise DataError("", f"{what}: {where}", f"is the right column mapped?{pandas}")
    if spec.missing_labels == "error":
        fix = "fill it in, or leave these rows out:  data: {missing_labels: ignore}"
        raise DataError("", f"{what}: {where}", f"{fix}{pandas}")
    return table.dropped(missing), [note(f"{what}; left out: {where}{pandas}")]


def _loaded(table: Table, schema: Schema) -> Loaded:
    names = list(table.values)
    digest = fingerprint(table.values)
    blocks = in_blocks(zip(*table.values.values(), strict=True))
    columnwise = (dict(zip(names, zip(*block, strict=True), strict=True)) for block in blocks)
    features = features_of({name: schema.columns[name].holds for name in names})
    return Loaded(on_disk(columnwise, features, digest[:32]), table.origin, digest)
