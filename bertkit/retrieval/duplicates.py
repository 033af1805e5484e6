"""Near-duplicates: texts whose vectors have a cosine from a threshold on, joined to clusters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.readers import TextRow, read_texts
from bertkit.data.table import Problems
from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, ModelError, Problem
from bertkit.files import written_aside
from bertkit.recipe.recipe import parse_layout
from bertkit.retrieval.store import Vectors
from bertkit.text import beginning, escape_controls, short_repr

BLOCK = 2048  # texts that are compared with as many others at a time
ROUNDING = 1e-6  # of a cosine of float32 vectors
MAX_SHOWN = 100  # characters of a text on the screen


@dataclass(frozen=True)
class Duplicate:
    """A text of a cluster. Clusters are numbered from 1, the largest first."""

    cluster: int
    where: str  # such as `train.csv:7`
    id: Any  # of its row, None where it has none
    cosine: float  # with the first text of its cluster; below the threshold if others join the two
    text: str


def find_duplicates(
    encode: Callable[[list[str]], Vectors],
    files: Sequence[Path],
    threshold: float,
    *,
    column: str = "text",
    overrides: Sequence[str] = (),
    across: bool = False,
) -> tuple[list[list[Duplicate]], int]:
    """The clusters of near-duplicates among the texts of all files, in the files' order, and the number of texts.

    encode: texts -> float32 `(texts, size)`. threshold: the smallest cosine of duplicates. overrides: how the files are
    written, such as `data.delimiter=";"`. across: only clusters with texts of several files.
    Memory: all rows, and the vectors of all different texts; the time grows with the square of their number.
    Raises DataError and RecipeError before a text is encoded, and ModelError on a vector that is 0 or not finite.
    """
    if not 0 < threshold <= 1:
        raise DataError(Problem("threshold", f"is {threshold:g}", "Take a cosine above 0, and at most 1."))
    rows, owners = _rows(files, column, overrides)
    numbers = {text: number for number, text in enumerate(dict.fromkeys(row.text for row in rows))}
    vectors, members = _unit_vectors(encode, list(numbers)), dict[int, list[int]]()
    clusters = connected(vectors, threshold)
    for index, row in enumerate(rows):
        members.setdefault(int(clusters[numbers[row.text]]), []).append(index)
    found = [each for each in members.values() if len({owners[index] for index in each} if across else each) > 1]
    return [
        [_duplicate(number, rows[index], vectors, numbers, rows[each[0]].text) for index in each]
        for number, each in enumerate(sorted(found, key=len, reverse=True), 1)
    ], len(rows)


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


def write_duplicates(clusters: Sequence[Sequence[Duplicate]], output: Path) -> None:
    """Write a line of jsonl per text, with the fields of Duplicate, cluster by cluster."""
    with written_aside(output) as file:
        for each in (duplicate for cluster in clusters for duplicate in cluster):
            file.write(json.dumps(asdict(each), ensure_ascii=False, default=str) + "\n")


def duplicates_text(clusters: Sequence[Sequence[Duplicate]]) -> Iterator[str]:
    """Clusters for people: a line per text, with its cosine, place, id and beginning."""
    for cluster in clusters:
        yield f"cluster {cluster[0].cluster}: {len(cluster):,} texts"
        for each in cluster:
            name = "" if each.id is None else f" ({escape_controls(str(each.id))})"
            yield f"  {each.cosine:.4f}  {each.where}{name}  {beginning(each.text, MAX_SHOWN)}"


def _rows(files: Sequence[Path], column: str, overrides: Sequence[str]) -> tuple[list[TextRow], list[int]]:
    """The rows of all files, and the number of each row's file. Raises DataError with the problems of all files."""
    spec, problems, rows, owners = parse_layout(overrides), Problems(), list[TextRow](), list[int]()
    for number, file in enumerate(files):
        try:
            rows += read_texts(file, spec, column)
        except DataError as error:
            problems.take(error)
        owners += [number] * (len(rows) - len(owners))
    problems.raise_if_any()
    return rows, owners


def _unit_vectors(encode: Callable[[list[str]], Vectors], texts: list[str]) -> Vectors:
    """`(texts, size)`, of unit length. Raises ModelError."""
    vectors = np.asarray(encode(list(map(replace_surrogates, texts))), dtype=np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(bad):
        what = f"its vector is 0 or not finite for the text {short_repr(texts[bad[0]])}"
        raise ModelError(Problem("the model", what, "It is damaged, or its training diverged."))
    vectors /= lengths
    return vectors


def _duplicate(number: int, row: TextRow, vectors: Vectors, numbers: Mapping[str, int], first: str) -> Duplicate:
    cosine = 1.0 if row.text == first else float(vectors[numbers[row.text]] @ vectors[numbers[first]])
    return Duplicate(number, row.where, row.row.get("id", row.row.get("_id")), min(cosine, 1.0), row.text)
