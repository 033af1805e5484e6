"""Rows with nearly the same texts: first those with different labels, then those in several splits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from bertkit.audits.parts import Row, Section, by_column, centred, identified, joined, named, rows_of
from bertkit.data.schema import Schema
from bertkit.data.values import folded
from bertkit.encoding.pieces import tokenize
from bertkit.evaluation.similarity import unit
from bertkit.models.encoder import resolve_encoder
from bertkit.recipe.recipe import Recipe
from bertkit.tasks import get_task
from bertkit.text import counted
from bertkit.vectors.cache import Encode, Vectors

THRESHOLD = 0.95  # the smallest cosine of near-duplicates
BLOCK = 2048  # texts that are compared with as many others at a time
UNKNOWN = 0.5  # share of unknown tokens from which on a text is not compared by its vector
ROUNDING = 1e-6  # of a cosine of float32 vectors
APART = 0.2  # by which numbers contradict each other, as a share of the range of all
# what targets hold that are also compared where texts are nearly the same
NEARLY = (
    "label",
    "labels",
    "number",
)
PROBLEMS = (
    "same text, different target",
    "nearly the same text, different target",
    "in several splits",
    "repeated",
)


def near_duplicates(recipe: Recipe, rows: Sequence[Row], encode: Encode) -> Section:
    """Near-duplicates in all splits.

    Splits of rows that are answered together, such as queries and documents, share documents: train is
    compared alone.
    """
    train = [{**row, "split": "train"} for row in rows]
    kind = get_task(recipe.task.name)
    data = rows_of(recipe)
    others = [
        {**row, "split": split, "location": data.origins[split].public(number)}
        for split, rows in data.rows.items()
        if split != "train" and not kind.schema.together
        for number, row in enumerate(rows)
    ]
    schema = kind.schema_of(recipe.task)
    every = [named(row, schema) for row in (*train, *others)]
    tokenizer = resolve_encoder(recipe.model).tokenizer()

    def apart(texts: Sequence[str]) -> Vectors:
        """The vectors of `encode`; mostly unknown texts get random ones, equal for equal texts: theirs
        would be nearly the same.
        """
        encoded = np.array(encode(texts))
        for row, tokens in enumerate(tokenize(tokenizer, texts)):
            if tokens.ids and tokens.ids.count(tokenizer.unk_token_id) >= UNKNOWN * len(tokens.ids):
                rng = np.random.default_rng(list(folded(texts[row]).encode()))
                encoded[row] = unit(rng.standard_normal((1, encoded.shape[1])))[0]
        return encoded

    vectors = by_column(every, kind.schema, apart)
    if all(schema.columns[name].unordered for name in schema.shown(every[0])):
        vectors = [np.sum(vectors, axis=0)]
    return duplicates(schema, every, list(map(centred, vectors)))


def clusters(
    texts: Sequence[Sequence[str]], vectors: Sequence[Vectors], threshold: float
) -> np.ndarray[Any, Any]:
    """The number of each row's cluster, `(rows,)`: rows share one where each of their texts is a
    near-duplicate.

    texts, vectors: by column, `(rows,)` and `(rows, size)` of unit length. Texts that differ only in case and
    whitespace are the same.
    """
    numbers = []
    for column, of_texts in zip(texts, vectors, strict=True):
        number = dict[str, int]()
        of_row = np.asarray([number.setdefault(folded(text), len(number)) for text in column])
        _, first = np.unique(of_row, return_index=True)
        numbers.append(connected(of_texts[first], threshold)[of_row])
    return np.unique(np.stack(numbers, axis=1), axis=0, return_inverse=True)[1]


def connected(vectors: Vectors, threshold: float) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The number of each vector's cluster, `(texts,)`: pairs with a cosine from the threshold on are in the
    same one.

    vectors: `(texts, size)`, of unit length. A cluster is a connected component, whose ends may be far from
    each other.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    clusters = np.arange(len(vectors), dtype=np.int32)
    for one, other in combinations_with_replacement(range(0, len(vectors), BLOCK), 2):
        near = np.nonzero(
            vectors[one : one + BLOCK] @ vectors[other : other + BLOCK].T >= threshold - ROUNDING
        )
        ends = clusters[near[0] + one], clusters[near[1] + other]
        if (ends[0] != ends[1]).any():
            graph = coo_array((np.ones(len(ends[0]), dtype=bool), ends), shape=(len(vectors), len(vectors)))
            clusters = connected_components(graph, directed=False)[1][clusters]
    return clusters


def duplicates(schema: Schema, rows: Sequence[Row], vectors: Sequence[Vectors]) -> Section:
    """The clusters of near-duplicates, the most severe problem first.

    schema: of the task. rows: of all splits, each with its `split`. vectors: by column of texts, `(rows,
    size)`, of unit length; one for all columns where the order of a row's texts does not count.
    """
    keys = [tuple(map(folded, schema.shown(row).values())) for row in rows]
    if len(vectors) == 1:
        keys = [("\n".join(sorted(key)),) for key in keys]
    numbers = clusters(list(zip(*keys, strict=True)), vectors, THRESHOLD)
    whole = joined(vectors)
    columns = [(name, schema.columns[name].holds) for name in schema.targets]
    targets = {name: holds for name, holds in columns if holds not in ("text", "spans")}
    values = [row[name] for row in rows for name in targets if isinstance(row.get(name), int | float)]
    most = APART * (max(values, default=0.0) - min(values, default=0.0))
    members = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    ranked = []
    for cluster in members:
        if len(cluster) > 1:
            problem = _problem(targets, [rows[i] for i in cluster], [keys[i] for i in cluster], most)
            ranked.append((problem, cluster))
    ranked.sort(key=lambda pair: (pair[0], -len(pair[1])))
    counts = np.bincount([problem for problem, _ in ranked], minlength=len(PROBLEMS))
    listed = [
        {
            **identified(rows[index], schema),
            "cluster": number,
            "problem": PROBLEMS[problem],
            "target": _shown(targets, rows[index]),
            "cosine": round(min(1.0, float(whole[index] @ whole[cluster[0]])), 4),
        }
        for number, (problem, cluster) in enumerate(ranked, 1)
        for index in cluster
    ]
    conflicts = int(counts[:2].sum())
    splits = [row["split"] for row in rows]
    shared = sum(len({*map(splits.__getitem__, cluster)}) > 1 for _, cluster in ranked)
    return Section(
        name="duplicates",
        title="Near-duplicates",
        summary=f"{counted(len(ranked), 'cluster')} of near-duplicates: {conflicts:,} with different "
        f"targets; {shared:,} {'is' if shared == 1 else 'are'} in several splits.",
        rows=listed,
        columns=("cluster", "problem", "split", "target", "cosine"),
        figures={"near-duplicates with different targets": counted(conflicts, "cluster")},
        notes=(
            f"Near-duplicates have vectors with a cosine of at least {THRESHOLD:g}, or are linked "
            "by a chain of such rows. `cosine` is that with the first row of the cluster. Texts with at "
            "least half of their tokens unknown to the tokenizer match only equal texts.",
        ),
    )


def _shown(targets: Iterable[str], row: Row) -> str:
    """The targets of a row in words; those of a sentence or a question as JSON."""
    values = [row[name] for name in targets if row.get(name) is not None]
    return ", ".join(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values
    )


def _problem(
    targets: Mapping[str, str], rows: Sequence[Row], keys: Sequence[tuple[str, ...]], most: float
) -> int:
    """The index of the first of PROBLEMS that a cluster has. most: by which equal rows' numbers may differ.

    targets: column -> what it holds. keys: equal for rows with the same texts.
    """
    same: dict[tuple[str, ...], list[Row]] = {}
    for row, key in zip(rows, keys, strict=True):
        same.setdefault(key, []).append(row)
    if any(_contradict(group, targets, most) for group in same.values()):
        return 0
    if _contradict(rows, {name: holds for name, holds in targets.items() if holds in NEARLY}, most):
        return 1
    return 2 if len({row["split"] for row in rows}) > 1 else 3


def _contradict(rows: Sequence[Row], targets: Mapping[str, str], most: float) -> bool:
    """Whether one of these targets differs between the rows, a number by more than `most`."""
    for name, holds in targets.items():
        values = [row[name] for row in rows if row.get(name) is not None]
        if values and isinstance(values[0], int | float):
            differ = max(values) - min(values) > most
        else:
            differ = len({_comparable(holds, value) for value in values}) > 1
        if differ:
            return True
    return False


def _comparable(holds: str, value: Any) -> str:
    """What equal targets share: labels in any order, answers by their texts."""
    if holds == "answers":
        value = sorted(map(folded, value["text"]))
    return json.dumps(sorted(value) if holds == "labels" else value)
