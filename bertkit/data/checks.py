"""What is wrong with rows, whatever the task: empty texts, label balance, duplicates, shared rows."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from bertkit.data.on_disk import column_values, numbers
from bertkit.data.origin import Origin, locations
from bertkit.data.schema import Column, Finding, in_train_too, leak, note, severe, texts_of, warn
from bertkit.data.spelling import spellings, variants
from bertkit.data.splits import SPLITS, names_of
from bertkit.data.table import Data
from bertkit.data.tagging import Learned, labelled
from bertkit.data.values import text_keys
from bertkit.errors import Problem
from bertkit.text import counted, escape_controls, listed, part_of, share

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

logger = logging.getLogger(__name__)

RARE = 0.2  # of the rows that a label would have if all had as many
FEW_ROWS = 10  # of a label in train: fewer can hardly be learned
SEPARATORS = ";,|；，、｜؛،"  # that several labels in one cell may have between them
MANY_LABELS = 10  # a longer list is cut short in messages
UNITS: Mapping[str, tuple[str, Learned]] = {"tags": ("entity", "BIO"), "word_labels": ("word", "none")}
"""What a column holds -> what has a label, and the scheme of the labels."""


def check(data: Data, *, few_rows: bool = False) -> list[Finding]:
    """What can be checked without a tokenizer; a `fail` is a reason not to train. few_rows: they suffice to
    learn from.

    Per split: rows, label balance, empty texts, duplicates (with and without the same target), and rows that
    validation or test share with train. Texts are the same if `folded` makes them equal.
    Memory: a few numbers per row. A corpus was checked when it was read.
    """
    if data.corpus:
        return list(data.findings)
    columns = data.columns
    texts, _ = texts_of(columns)
    common = {*columns}.intersection(*(rows.column_names for rows in data.rows.values()))
    everywhere = {name: column for name, column in columns.items() if name in common}
    findings = list(data.findings)
    trained = None
    of_train = data.origins["train"].files if "train" in data.origins else None
    held_out = [split for split in data.rows if split != "train" and data.origins[split].files == of_train]
    seen_in = {split: _Seen.of(rows, everywhere) for split, rows in data.rows.items()}
    for split, rows in data.rows.items():
        origin = data.origins[split]
        findings.append(note(f"{split}: {counted(len(rows), 'row')}"))
        checked = [name for name in texts if name in rows.column_names and not columns[name].unchecked]
        findings += _empty(rows, checked, split, origin)
        findings += _as_text(rows, columns, split, origin)
        name = data.target if data.target in rows.column_names else None
        if name and not columns[name].unchecked:
            findings += _balance(rows, name, data, split, few_rows)
        if split not in held_out:
            of_one_source = [split, *held_out] if split == "train" else [split]
            findings += _duplicates({sibling: seen_in[sibling] for sibling in of_one_source}, data)
        if split == "train":
            trained = seen_in[split]
        elif trained is not None:
            findings += _shared(seen_in[split], trained, split, data)
    return findings


def log_findings(findings: Iterable[Finding]) -> None:
    """Log notes for information, and the others as warnings."""
    for finding in findings:
        level = logging.INFO if finding.level == "note" else logging.WARNING
        logger.log(level, "%s", Problem(finding.level, finding.what, finding.fix))


def accuracy_findings(data: Data, others: Sequence[str]) -> Iterator[Finding]:
    """Labels of train that are so rare that accuracy hardly depends on them. others: metrics that do."""
    if data.target is None or data.columns[data.target].holds != "label":
        return
    names = data.columns[data.target].names
    rows = data.rows["train"]
    counts = Counter(names.get(label, label) for label in column_values(rows, data.target))
    least = RARE / len(counts)
    rare = sorted((n, label) for label, n in counts.items() if n < least * len(rows))
    if rare:
        shares = listed(
            [f"{escape_controls(label)} {n:,} ({share(n, len(rows))})" for n, label in rare], MANY_LABELS
        )
        what = (
            f"accuracy hardly depends on labels with less than {100 * least:.2g}% of the rows; in "
            f"train: {shares}"
        )
        yield warn(what, f"Write training.metric_for_best_model: {' or '.join(others)}.")


def _empty(rows: Dataset, names: Sequence[str], split: str, origin: Origin) -> Iterator[Finding]:
    for name in names:
        empty = [index for index, key in enumerate(text_keys(column_values(rows, name))) if key is None]
        if empty:
            what = f"{split}: {counted(len(empty), 'row')} with an empty `{name}`: {locations(origin, empty)}"
            pandas = origin.files[0] in [f"{split}, row " for split in SPLITS]
            more = " pandas.read_csv(FILE, keep_default_na=False) keeps texts such as NA." if pandas else ""
            yield warn(what, f"Fill them in, or remove these rows.{more}")


def _as_text(rows: Dataset, columns: Mapping[str, Column], split: str, origin: Origin) -> Iterator[Finding]:
    """Missing values that became texts."""
    for name in (name for name in rows.column_names if columns[name].holds in ("label", "name", "value")):
        texts = [
            index for index, value in enumerate(column_values(rows, name)) if value in ("nan", "<NA>", "NaT")
        ]
        if texts:
            what = f"{split}: {counted(len(texts), 'row')} with the text nan, <NA> or NaT in `{name}`"
            fix = "pandas writes missing values so in astype(str) and map(str); leave them out before it."
            yield warn(f"{what}: {locations(origin, texts)}", fix)


def _balance(rows: Dataset, name: str, data: Data, split: str, few_rows: bool) -> Iterator[Finding]:
    column = data.columns[name]
    holds = column.holds
    if holds == "number":
        values = numbers(rows, name)
        low = float(values.min())
        high = float(values.max())
        yield note(f"{split}: from {low:g} to {high:g}, mean {values.mean():.4g}")
        if low == high:
            yield _alike(split, f"every row has the number {low:g}", "")
    labels = names_of(column)
    if labels is None:
        return
    counts = Counter(label for value in column_values(rows, name) for label in labels(value))
    occurrences = counts
    total = len(rows)
    of = ""
    if holds in UNITS:
        unit, scheme = UNITS[holds]
        occurrences = Counter(
            kind for value in column_values(rows, name) for kind, *_ in labelled(value or (), scheme)
        )
        total = occurrences.total()
        of = f"{counted(total, unit)}: " * bool(total)
    common = occurrences.most_common(MANY_LABELS)
    shares = [f"{escape_controls(label)} {count:,} ({share(count, total)})" for label, count in common]
    more = f", and {counted(len(counts) - MANY_LABELS, 'more label')}" if len(counts) > MANY_LABELS else ""
    yield note(f"{split}: {of}{', '.join(shares) or 'no labels'}{more}")
    # a sentence may have entities of every type, and words of every label
    if not counts or (holds in ("label", "labels") and {*counts.values()} == {len(rows)}):
        several = len(counts) > 1
        names = listed([repr(name) for name in sorted(counts)], MANY_LABELS)
        kind = "an entity" if holds == "tags" else "a label"
        have = (
            f"every row has the {'labels' if several else 'label'} {names}"
            if counts
            else f"no row has {kind}"
        )
        by_name = (
            "Name the labels that a row has; map columns of 0 and 1 as  data: {columns: {labels: [A, B]}}"
        )
        yield _alike(split, have, by_name if several else "Is the right column mapped?")
    if split == "train":
        expected = data.class_names if holds == "labels" else ()
        if absent := [label for label in expected if column.names.get(label, label) not in counts]:
            what = f"train: no row has the label {listed(list(map(repr, absent)), MANY_LABELS)}"
            yield warn(what, "Add rows with it, or leave it out: no answer will have it.")
        yield from _label_findings(counts, few_rows)


def _alike(split: str, have: str, fix: str) -> Finding:
    """What it means that all rows of a split have the same target."""
    if split == "train":
        return Finding("fail", f"train: {have}; there is nothing to learn", fix)
    select = ""
    if split == "validation":
        select = " and cannot select a checkpoint"
    fix = (
        f"Give {split} rows with other targets, or hold more rows of train out, e.g.  data: {{{split}: 0.2}}"
    )
    return warn(f"{split}: {have}; some of its scores are not defined or always the same{select}", fix)


def _label_findings(counts: Mapping[str, int], few_rows: bool) -> Iterator[Finding]:
    """few_rows: as for `check`."""
    few = sorted((n, name) for name, n in counts.items() if n < FEW_ROWS)
    if few and not few_rows:
        rare = listed([f"{escape_controls(name)} {n}" for n, name in few], MANY_LABELS)
        yield warn(
            f"train: labels with fewer than {FEW_ROWS} rows: {rare}", "Label more rows, or merge labels."
        )
    if groups := variants(counts):
        what = f"train: {sum(map(len, groups)):,} labels differ only in case, blanks or Unicode form: "
        fix = f"If they are {len(groups):,}, merge them:  data: {{labels: casefold}}"
        yield warn(what + spellings(groups, counts), fix)
    parts_of = {name: {*map(str.strip, re.split(f"[{SEPARATORS}]", name))} for name in counts}
    parts = Counter(chain.from_iterable(parts_of.values()))
    for separator in SEPARATORS:
        joined = [name for name in counts if separator in name]
        if any(parts[part] > 1 for name in joined for part in parts_of[name]):
            name = joined[0]
            written = json.dumps(separator, ensure_ascii=False)
            fix = f"If so, map the column as `labels`, with  data: {{labels_separator: {written}}}"
            yield warn(f"train: labels such as {name!r} look like several labels", fix)


class _Seen(NamedTuple):
    """The rows of a split that have texts; all fields are `(rows with texts,)`."""

    rows: Ints
    keys: Ints  # a number that equal texts share
    first: Ints  # the first row that has the same texts

    @classmethod
    def of(cls, rows: Dataset, columns: Mapping[str, Column]) -> _Seen:
        """Rows without any text, which `_empty` reports, are left out. columns: those that all splits
        have.
        """
        import numpy as np

        names, unordered = texts_of(columns)
        keyed = enumerate(text_keys(*(column_values(rows, name) for name in names), unordered=unordered))
        with_text = ((row, key) for row, key in keyed if key is not None)
        indices, keys = np.fromiter(with_text, np.dtype((np.int64, 2))).T
        index, inverse = np.unique(keys, return_index=True, return_inverse=True)[1:]
        return cls(indices, keys, indices[index][inverse])


def _duplicates(seen_in: Mapping[str, _Seen], data: Data) -> Iterator[Finding]:
    """One warning for the splits of one source, whose equal texts are all in the same one."""
    # with the same target, and with another
    counts = [0, 0]
    examples = ["", ""]
    for split, seen in seen_in.items():
        origin = data.origins[split]
        for kind, pairs in enumerate(_repeats(seen, split, data)):
            if len(pairs) and not counts[kind]:
                first, row = pairs[0].tolist()
                examples[kind] = f"{origin[row]} and {origin[first]}"
            counts[kind] += len(pairs)
    where = " and ".join(seen_in)
    if counts[0]:
        what = f"{where}: {counted(counts[0], 'row', 'repeat')} an earlier row; e.g. {examples[0]}"
        yield warn(what, "Remove them, unless they should count more than once.")
    if counts[1]:
        what = (
            f"{where}: {counted(counts[1], 'row', 'repeat')} an earlier text with another target; e.g. "
            f"{examples[1]}"
        )
        fix = "Correct their targets: a model gives the same text the same answer."
        yield severe(counts[1], sum(len(data.rows[split]) for split in seen_in), what, fix)


def _repeats(seen: _Seen, split: str, data: Data) -> tuple[Ints, Ints]:
    """Rows that repeat an earlier one, with the same target and with another: `(rows, 2)`, each after the
    earlier.
    """
    import numpy as np

    rows = data.rows[split]
    target = data.target
    repeated = np.flatnonzero(seen.first != seen.rows)
    pairs = np.stack([seen.first[repeated], seen.rows[repeated]], axis=1)
    if target is None or target not in rows.column_names or data.columns[target].unordered or not len(pairs):
        differ = np.zeros(len(pairs), dtype=bool)
    else:
        column = data.columns[target]
        named = names_of(column) if column.names or column.holds == "labels" else None
        values = (column_values(rows.select(side), target) for side in pairs.T)
        values = (map(sorted, map(named, side)) if named else side for side in values)
        differ = np.fromiter((one != other for one, other in zip(*values, strict=True)), bool, len(pairs))
    return pairs[~differ], pairs[differ]


def _shared(seen: _Seen, trained: _Seen, split: str, data: Data) -> Iterator[Finding]:
    import numpy as np

    groups, of_train = (np.asarray(data.origins[name].groups, dtype=np.int64) for name in (split, "train"))
    if shared := int(np.isin(groups, of_train).sum()):
        what = f"{part_of(shared, len(groups), 'row')} of a group (`data.group_by`) that train has too"
        yield leak(split, shared, len(groups), what)
    common = np.flatnonzero(np.isin(seen.keys, trained.keys))
    if len(common):
        same = trained.first[trained.keys == seen.keys[common[0]]][0]
        pair = f"{data.origins[split][int(seen.rows[common[0]])]} is {data.origins['train'][int(same)]}"
        yield in_train_too(split, len(common), len(data.rows[split]), "row", pair)
