"""Search: the passages nearest to a query, merged into documents; full text and a re-ranker are options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, StoreError
from bertkit.retrieval.documents import RESERVED
from bertkit.retrieval.filters import Filter, to_sql
from bertkit.retrieval.passages import joined
from bertkit.retrieval.store import Store, database_errors
from bertkit.text import Json

Rerank = Callable[[str, Sequence[str]], ArrayLike]
"""A query and texts -> a score per text (texts,), higher is better."""

CANDIDATES = 100  # documents of the first stage, for fusion and for the re-ranker
FUSION = 60  # the constant of reciprocal rank fusion
REFINE = 3  # times as many passages as requested are compared exactly after the approximate search


@dataclass(frozen=True)
class Hit:
    """A document, by its best passage: `text`, from `start` to `end` of the document's text."""

    id: str
    score: float  # the cosine of the query and the passage
    relevance: float  # sort key: the cosine, the fused ranks, or the re-ranker's score
    passage: int
    start: int
    end: int
    text: str
    title: str
    metadata: Json


def search(
    store: Store,
    query: str,
    vector: ArrayLike,
    top_k: int = 10,
    *,
    filter: Filter | None = None,
    hybrid: bool = False,
    exact: bool = False,
    rerank: Rerank | None = None,
    timeout: float | None = None,
) -> list[Hit]:
    """The `top_k` best documents, best first; fewer only where no more are in the store and pass the filter.

    vector: the query's, (size,). filter: such as `{"lang": "en", "year": {"gte": 2020}}`.
    hybrid: fuse the ranks by cosine with those by BM25 of the query's words (Cormack et al. 2009).
    exact: compare with all vectors, even if there is an approximate index.
    rerank: orders the first CANDIDATES documents by its scores of their best passages.
    timeout: seconds after which LanceDB gives up. Raises DataError: an empty store or query, a bad `top_k` or
    filter;
    ModelError: a store of another model.
    """
    store.require(store.made_with)  # it may have been replaced
    if not query.strip():
        raise DataError("query", "is empty", "Write what to search for.")
    floats = np.asarray(vector, dtype=np.float32)
    ranked = _Ranked(store, floats / np.linalg.norm(floats), to_sql(filter or {}, store.columns), timeout)
    if top_k < 1:
        raise DataError("top_k", f"must be at least 1, found {top_k}")
    if not (size := len(store)):
        raise StoreError(store.uri, "the store is empty", "Index documents first.")
    wide = max(top_k, CANDIDATES) if hybrid or rerank else top_k
    rows = _documents(partial(ranked.nearest, exact=exact or not store.approximate), wide, size)
    if hybrid:
        rows = _fused(rows, _documents(partial(ranked.matching, replace_surrogates(query)), wide, size))
    hits = [_hit(row) for row in rows]
    if rerank and hits:
        hits = hits[:wide]
        scores = np.asarray(rerank(query, [joined(hit.title, hit.text) for hit in hits]), dtype=np.float64)
        order = np.argsort(-scores, kind="stable")
        hits = [replace(hits[index], relevance=float(scores[index])) for index in order]
    return hits[:top_k]


@dataclass(frozen=True)
class _Ranked:
    """Ranked passages of a store that pass the filter."""

    store: Store
    vector: NDArray[np.float32]
    condition: str | None
    timeout: float | None

    def nearest(self, limit: int, exact: bool) -> list[Json]:
        """The nearest passages, nearest first."""
        query = self.store.table.search(self.vector, vector_column_name="vector").distance_type("cosine")
        query = query.bypass_vector_index() if exact else query.refine_factor(REFINE).ef(REFINE * limit)
        rows = self._rows(query, limit, "_distance")
        if len(rows) < limit and not exact:  # the approximate search can miss passages under a narrow filter
            return self.nearest(limit, exact=True)
        return sorted(rows, key=lambda row: (-row["_cosine"], row["id"], row["passage"]))

    def matching(self, words: str, limit: int) -> list[Json]:
        """The best passages by BM25 with at least one of these words, or n-grams, best first."""
        from lancedb.query import FullTextOperator, MultiMatchQuery

        either = MultiMatchQuery(words, ["text", "title"], boosts=None, operator=FullTextOperator.OR)
        rows = self._rows(self.store.table.search(either, query_type="fts"), limit, "_score")
        return sorted(rows, key=lambda row: (-row["_score"], row["id"], row["passage"]))

    def _rows(self, query: Any, limit: int, extra: str) -> list[Json]:
        names = [name for name in self.store.table.schema.names if name != "hash"]
        query = query.select([*names, extra]).limit(limit)
        query = query.where(self.condition, prefilter=True) if self.condition else query
        with database_errors(self.store.uri):
            table = query.to_arrow(timeout=timedelta(seconds=self.timeout) if self.timeout else None)
        vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, self.vector.size)
        vectors = vectors.astype(np.float64)
        scores = vectors @ self.vector / np.linalg.norm(vectors, axis=1)
        return [
            row | {"_cosine": score} for row, score in zip(table.to_pylist(), scores.tolist(), strict=True)
        ]


def _documents(run: Callable[[int], list[Json]], count: int, passages: int) -> list[Json]:
    """The best passage of each of the `count` best documents: more passages are read until they are enough.

    run: limit -> so many passages, best first.
    """
    limit = min(4 * count + 40, passages)
    while True:
        rows = run(limit)
        best = dict[str, Json]()
        for row in rows:
            best.setdefault(row["id"], row)
        if len(best) >= count or len(rows) < limit or limit == passages:
            return list(best.values())[:count]
        limit = min(4 * limit, passages)


def _fused(nearest: Sequence[Json], matching: Sequence[Json]) -> list[Json]:
    """Documents of both lists by the sum of 1 / (60 + rank), each by the passage with the greater cosine.

    LanceDB's own fusion ranks passages, of which a document may have many.
    """
    fused = Counter[str]()
    best = dict[str, Json]()
    for rows in (nearest, matching):
        for rank, row in enumerate(rows, 1):
            fused[row["id"]] += 1 / (FUSION + rank)  # type: ignore[assignment]
            best[row["id"]] = max(best.get(row["id"], row), row, key=lambda hit: float(hit["_cosine"]))
    ranked = [row | {"_relevance": fused[name]} for name, row in best.items()]
    return sorted(ranked, key=lambda row: (-row["_relevance"], -row["_cosine"], row["id"]))


def _hit(row: Json) -> Hit:
    fields = {name: row[name] for name in ("id", "passage", "start", "end", "text")}
    # Names with a leading _ are reserved, for LanceDB and `_cosine`.
    metadata = {
        name: v for name, v in row.items() if name not in RESERVED and name[0] != "_" and v is not None
    }
    scores = {"score": row["_cosine"], "relevance": row.get("_relevance", row["_cosine"])}
    return Hit(**fields, **scores, title=row["title"] or "", metadata=metadata)
