"""Near-duplicates: texts whose vectors have a cosine from a threshold on, joined to clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.readers import TextRow, read_texts
from bertkit.data.table import Problems
from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, Problem
from bertkit.recipe.recipe import parse_layout
from bertkit.retrieval.models import Vectors, unit_vectors

BLOCK = 2048  # texts that are compared with as many others at a time
ROUNDING = 1e-6  # of a cosine of float32 vectors


def find_duplicates(
    encode: Callable[[list[str]], Vectors], files: Sequence[Path], threshold: float, *, column: str = "text",
    overrides: Sequence[str] = (), across: bool = False,
) -> tuple[list[list[dict[str, Any]]], int]:  # fmt: skip
    """The clusters of near-duplicates among the texts of all files, the largest first, and the number of texts.

    A text is `{"cluster": from 1, "where": "train.csv:7", "id": …, "cosine": …, "text": …}`; the cosine is with the
    first text of its cluster, and below the threshold if others join the two.
    encode: texts -> float32 `(texts, size)`. threshold: the smallest cosine of duplicates. overrides: how the files are
    written, such as `data.delimiter=";"`. across: only clusters with texts of several files.
    Memory: all rows, and the vectors of all different texts; the time grows with the square of their number.
    Raises DataError and RecipeError before a text is encoded, and ModelError on a vector that is 0 or not finite.
    """
    if not 0 < threshold <= 1:
        raise DataError(Problem("threshold", f"is {threshold:g}", "Take a cosine above 0, and at most 1."))
    spec, problems, rows = parse_layout(overrides), Problems(), list[tuple[Path, TextRow]]()
    for file in files:
        try:
            rows += [(file, row) for row in read_texts(file, spec, column)]
        except DataError as error:
            problems.take(error)
    problems.raise_if_any()
    numbers = {text: number for number, text in enumerate(dict.fromkeys(row.text for _, row in rows))}
    vectors = unit_vectors(encode(list(map(replace_surrogates, numbers))), list(numbers))
    labels, members = connected(vectors, threshold), dict[int, list[tuple[Path, TextRow]]]()
    for file, row in rows:
        members.setdefault(int(labels[numbers[row.text]]), []).append((file, row))
    clusters = [each for each in members.values() if len({file for file, _ in each} if across else each) > 1]
    clusters.sort(key=len, reverse=True)
    return [
        [_described(number, row, cluster[0][1], vectors, numbers) for _, row in cluster]
        for number, cluster in enumerate(clusters, 1)
    ], len(rows)


def _described(
    cluster: int, row: TextRow, first: TextRow, vectors: Vectors, numbers: Mapping[str, int]
) -> dict[str, Any]:
    cosine = 1.0 if row.text == first.text else float(vectors[numbers[row.text]] @ vectors[numbers[first.text]])
    name = row.row.get("id", row.row.get("_id"))
    return {"cluster": cluster, "where": row.where, "id": name, "cosine": min(cosine, 1.0), "text": row.text}


def connected(vectors: Vectors, threshold: float) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The number of each vector's cluster, `(texts,)`: pairs with a cosine from the threshold on are in the same one.

    vectors: `(texts, size)`, of unit length. A cluster is a connected component, whose ends may be far from each other.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    clusters = np.arange(len(vectors), dtype=np.int32)
    for one, other in combinations_with_replacement(range(0, len(vectors), BLOCK), 2):
        near = np.nonzero(vectors[one : one + BLOCK] @ vectors[other : other + BLOCK].T >= threshold - ROUNDING)
        ends = clusters[near[0] + one], clusters[near[1] + other]
        if (ends[0] != ends[1]).any():
            graph = coo_array((np.ones(len(ends[0]), dtype=bool), ends), shape=(len(vectors), len(vectors)))
            clusters = connected_components(graph, directed=False)[1][clusters]
    return clusters
