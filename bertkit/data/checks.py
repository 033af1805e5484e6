"""What is wrong with rows, whatever the task: empty texts, label balance, duplicates, shared rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertkit.data.splits import names_of
from bertkit.data.table import Origin, rows_named

if TYPE_CHECKING:
    from bertkit.data.loading import Data
    from bertkit.tasks.base import Column, Finding

FEW_ROWS = 10  # of a label in train: fewer can hardly be learned
MANY_LABELS = 10  # a longer list is cut short in messages


def check(data: Data) -> list[Finding]:
    """What can be said of rows without a tokenizer; a `fail` is a reason not to train.

    Per split: rows, label balance, empty texts, duplicates (with and without the same target), and rows that
    validation or test share with train. Two rows are the same where their texts are, but for case and blanks
    around them. One pass over each split; memory is some 150 bytes a row. Of a corpus, all was found when it was read.
    """
    from bertkit.tasks.base import Finding

    if data.corpus:
        return list(data.findings)
    texts = [name for name, column in data.columns.items() if column.holds in ("text", "words")]
    findings, trained = list(data.findings), {}
    for split, rows in data.rows.items():
        origin = data.origins[split]
        values = rows[data.target][:] if data.target is not None and data.target in rows.column_names else None
        read = {name: [_joined(value) for value in rows[name][:]] for name in texts}
        findings.append(Finding("note", f"{split}: {len(rows):,} rows"))
        findings += _empty({n: t for n, t in read.items() if not data.columns[n].unchecked}, split, origin)
        target = None if data.target is None else data.columns[data.target]
        if values is not None and target and target.holds not in ("answers", "text") and not target.unchecked:
            findings += _balance(_labels(values, target), split)
        keys = _keys(read)
        first, duplicates, conflicts = _repeated(keys, values)
        findings += _duplicates(duplicates, conflicts, split, origin)
        if split == "train":
            trained = first
        shared = [] if split == "train" else [i for i, key in enumerate(keys) if key in trained]
        if shared:
            share = len(shared) / len(rows)
            what = f"{split}: {len(shared):,} of {len(rows):,} rows ({share:.1%}) are in train too"
            pair = f"{origin[shared[0]]} is {data.origins['train'][trained[keys[shared[0]]]]}"
            findings.append(Finding("warn", f"{what}; e.g. {pair}", "scores will look better than they are"))
    return findings


def _joined(value: str | list[str]) -> str:
    return value if isinstance(value, str) else " ".join(value)


def _labels(values: Sequence[Any], column: Column) -> Sequence[Any]:
    """The targets, where they are tags: the labels that each row has at least once."""
    return list(map(names_of(column), values)) if column.holds == "tags" else values


def _empty(read: Mapping[str, Sequence[str]], split: str, origin: Origin) -> list[Finding]:
    from bertkit.tasks.base import Finding

    findings = []
    for name, texts in read.items():
        empty = [index for index, text in enumerate(texts) if not text.strip()]
        if empty:
            where = rows_named(origin, empty)
            findings.append(Finding("warn", f"{split}: {len(empty):,} rows with an empty `{name}`: {where}"))
    return findings


def _balance(values: Sequence[Any], split: str) -> list[Finding]:
    from bertkit.tasks.base import Finding

    if isinstance(values[0], float):
        low, high, mean = min(values), max(values), sum(values) / len(values)
        findings = [Finding("note", f"{split}: from {low:g} to {high:g}, mean {mean:.4g}")]
        if split == "train" and low == high:
            findings.append(Finding("fail", f"train: every row has the number {low:g}; there is nothing to learn"))
        return findings
    counts = Counter(name for value in values for name in ([value] if isinstance(value, str) else value))
    shares = [f"{name} {n:,} ({n / len(values):.1%})" for name, n in counts.most_common(MANY_LABELS)]
    more = f", and {len(counts) - MANY_LABELS:,} more labels" if len(counts) > MANY_LABELS else ""
    findings = [Finding("note", f"{split}: {', '.join(shares) or 'no labels'}{more}")]
    if split == "train":
        findings += _label_findings(counts, several=isinstance(values[0], list))
    return findings


def _label_findings(counts: Mapping[str, int], several: bool) -> list[Finding]:
    from bertkit.tasks.base import Finding

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


def _keys(read: Mapping[str, Sequence[str]]) -> list[int | None]:
    """One number per row that equal texts share; None for rows without any text, which `_empty` reports."""
    normal = (tuple(text.strip().casefold() for text in row) for row in zip(*read.values(), strict=True))
    return [hash(row) if any(row) else None for row in normal]


def _repeated(
    keys: Sequence[int | None], values: Sequence[Any] | None
) -> tuple[dict[int | None, int], list[tuple[int, int]], list[tuple[int, int]]]:
    """(key -> its first row, pairs of a row and its first like, those of the pairs with other targets)."""
    first: dict[int | None, int] = {}
    pairs = [(first[k], i) for i, k in enumerate(keys) if k is not None and first.setdefault(k, i) != i]
    return first, pairs, [(a, b) for a, b in pairs if values is not None and values[a] != values[b]]


def _duplicates(
    pairs: Sequence[tuple[int, int]], conflicts: Sequence[tuple[int, int]], split: str, origin: Origin
) -> list[Finding]:
    from bertkit.tasks.base import Finding

    findings = []
    for found, what in (
        (pairs, "repeat an earlier row"),
        (conflicts, "repeat an earlier text with another target"),
    ):
        if found:
            a, b = found[0]
            findings.append(Finding("warn", f"{split}: {len(found):,} rows {what}; e.g. {origin[b]} and {origin[a]}"))
    return findings
