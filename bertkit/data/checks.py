"""What is wrong with rows, whatever the task: empty texts, label balance, duplicates, shared rows."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.data.splits import names_of
from bertkit.data.table import Origin, column_values, numbers, rows_named
from bertkit.text import counted, part_of, share

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset

    from bertkit.data.schema import Column, Finding
    from bertkit.data.table import Data

    Ints = np.ndarray[Any, np.dtype[np.int64]]

FEW_ROWS = 10  # of a label in train: fewer can hardly be learned
MANY_LABELS = 10  # a longer list is cut short in messages


def check(data: Data) -> list[Finding]:
    """What can be said of rows without a tokenizer; a `fail` is a reason not to train.

    Per split: rows, label balance, empty texts, duplicates (with and without the same target), and rows that
    validation or test share with train. Two rows are the same where their texts are, but for case and blanks
    around them. Rows are read a few at a time; what is kept of each are numbers. Of a corpus, all was found when it
    was read.
    """
    from bertkit.data.schema import Finding

    if data.corpus:
        return list(data.findings)
    texts = [name for name, column in data.columns.items() if column.holds in ("text", "words")]
    everywhere = [name for name in texts if all(name in rows.column_names for rows in data.rows.values())]
    findings, trained = list(data.findings), None
    for split, rows in data.rows.items():
        origin = data.origins[split]
        findings.append(Finding("note", f"{split}: {counted(len(rows), 'row')}"))
        own = [name for name in texts if name in rows.column_names and not data.columns[name].unchecked]
        findings += _empty(rows, own, split, origin)
        name = data.target if data.target in rows.column_names else None
        target = None if name is None else data.columns[name]
        if name and target and target.holds not in ("answers", "text") and not target.unchecked:
            findings += _balance(rows, name, target, split)
        seen = _Seen.of(rows, everywhere)
        findings += _duplicates(seen, rows, name, split, origin)
        if split == "train":
            trained = seen
        elif trained is not None:
            findings += _shared(seen, trained, split, data)
    return findings


def _joined(value: str | list[str]) -> str:
    return value if isinstance(value, str) else " ".join(value)


def _empty(rows: Dataset, names: Sequence[str], split: str, origin: Origin) -> list[Finding]:
    from bertkit.data.schema import Finding

    findings = []
    for name in names:
        empty = [index for index, value in enumerate(column_values(rows, name)) if not _joined(value).strip()]
        if empty:
            what = f"{split}: {counted(len(empty), 'row')} with an empty `{name}`: {rows_named(origin, empty)}"
            findings.append(Finding("warn", what))
    return findings


def _balance(rows: Dataset, name: str, column: Column, split: str) -> list[Finding]:
    from bertkit.data.schema import Finding

    if column.holds == "number":
        values = numbers(rows, name)
        low, high = float(values.min()), float(values.max())
        findings = [Finding("note", f"{split}: from {low:g} to {high:g}, mean {values.mean():.4g}")]
        if split == "train" and low == high:
            findings.append(Finding("fail", f"train: every row has the number {low:g}; there is nothing to learn"))
        return findings
    labels = names_of(column)
    counts = Counter(label for value in column_values(rows, name) for label in labels(value))
    shares = [f"{label} {n:,} ({share(n, len(rows))})" for label, n in counts.most_common(MANY_LABELS)]
    more = f", and {len(counts) - MANY_LABELS:,} more labels" if len(counts) > MANY_LABELS else ""
    findings = [Finding("note", f"{split}: {', '.join(shares) or 'no labels'}{more}")]
    if split == "train":
        findings += _label_findings(counts, several=column.holds != "label")
    return findings


def _label_findings(counts: Mapping[str, int], several: bool) -> list[Finding]:
    from bertkit.data.schema import Finding

    findings = []
    if not counts or (len(counts) == 1 and not several):
        have = f"every row has the label {next(iter(counts))!r}" if counts else "no row has a label"
        findings.append(Finding("fail", f"train: {have}; there is nothing to learn", "is the right column mapped?"))
    few = sorted((n, name) for name, n in counts.items() if n < FEW_ROWS)
    if few:
        some = ", ".join(f"{name} {n}" for n, name in few[:MANY_LABELS]) + (", …" if len(few) > MANY_LABELS else "")
        findings.append(Finding("warn", f"train: labels with fewer than {FEW_ROWS} rows: {some}"))
    spelled: dict[str, str] = {}
    for name in sorted(counts):
        other = spelled.setdefault(name.strip().casefold(), name)
        if other != name:
            what = f"train: the labels {other!r} and {name!r} differ only in case or blanks"
            findings.append(Finding("warn", what, "they are two labels; write them the same way if they are one"))
    return findings


@dataclass(frozen=True)
class _Seen:
    """The rows of a split that have texts; all fields are `(rows with texts,)`."""

    rows: Ints
    keys: Ints  # a number that equal texts share
    first: Ints  # the first row that has the same texts

    @classmethod
    def of(cls, rows: Dataset, names: Sequence[str]) -> _Seen:
        """Rows without any text, which `_empty` reports, are left out."""
        import numpy as np

        hashes, there = array("q"), array("q")
        for row, texts in enumerate(zip(*(column_values(rows, name) for name in names), strict=True)):
            normal = tuple(_joined(text).strip().casefold() for text in texts)
            if any(normal):
                hashes.append(hash(normal))
                there.append(row)
        own, keys = (np.frombuffer(values, dtype=np.int64) for values in (there, hashes))
        _, index, inverse = np.unique(keys, return_index=True, return_inverse=True)
        return cls(own, keys, own[index][inverse])


def _duplicates(seen: _Seen, rows: Dataset, target: str | None, split: str, origin: Origin) -> list[Finding]:
    import numpy as np

    from bertkit.data.schema import Finding

    again = np.flatnonzero(seen.first != seen.rows)
    pairs = np.stack([seen.first[again], seen.rows[again]], axis=1)
    if target is None or not len(pairs):
        differ = np.zeros(len(pairs), dtype=bool)
    else:
        values = (column_values(rows.select(side), target) for side in pairs.T)
        differ = np.fromiter((one != other for one, other in zip(*values, strict=True)), bool, len(pairs))
    findings = []
    for found, what in ((pairs[~differ], "an earlier row"), (pairs[differ], "an earlier text with another target")):
        if len(found):
            first, row = found[0].tolist()
            said = f"{split}: {counted(len(found), 'row', 'repeat')} {what}; e.g. {origin[row]} and {origin[first]}"
            findings.append(Finding("warn", said))
    return findings


def _shared(seen: _Seen, trained: _Seen, split: str, data: Data) -> list[Finding]:
    import numpy as np

    from bertkit.data.schema import Finding

    common = np.flatnonzero(np.isin(seen.keys, trained.keys))
    if not len(common):
        return []
    like = trained.first[trained.keys == seen.keys[common[0]]][0]
    pair = f"{data.origins[split][int(seen.rows[common[0]])]} is {data.origins['train'][int(like)]}"
    what = f"{split}: {part_of(len(common), len(data.rows[split]), 'row')} in train too; e.g. {pair}"
    return [Finding("warn", what, "scores will look better than they are")]
