"""Search: the passages nearest to a query, merged into documents; optionally with full text and a re-ranker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, ModelError, Problem, StoreError
from bertkit.retrieval.database import database_errors
from bertkit.retrieval.documents import RESERVED, TYPE_NAMES, Kind, Value
from bertkit.retrieval.passages import joined
from bertkit.retrieval.store import Store
from bertkit.text import short_repr

Rerank: TypeAlias = Callable[[str, Sequence[str]], ArrayLike]
"""A query and texts -> a score per text (texts,), higher is better."""

CANDIDATES = 100  # documents of the first stage, for fusion and for the re-ranker
FUSION = 60  # the constant of reciprocal rank fusion
REFINE = 3  # times as many passages as requested are compared exactly after the approximate search

_Row: TypeAlias = dict[str, Any]


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
    metadata: dict[str, Value]


def search(
    store: Store,
    query: str,
    vector: ArrayLike,
    top_k: int = 10,
    *,
    filter: str | None = None,
    hybrid: bool = False,
    exact: bool = False,
    rerank: Rerank | None = None,
    candidates: int = CANDIDATES,
) -> list[Hit]:
    """The `top_k` best documents, best first; fewer only where no more are in the store and pass the filter.

    vector: the query's, (size,). filter: a condition on the columns in LanceDB's SQL, such as `year > 2020`.
    hybrid: fuse the ranks by cosine with those by BM25 of the query's words (Cormack et al. 2009).
    exact: compare with all vectors, even if there is an approximate index.
    rerank: orders the first `candidates` documents by its scores of their best passages.
    Raises DataError: an empty store or query, a bad vector, `top_k` or filter; ModelError: bad scores, or a
    store of another model.
    """
    query, filter = replace_surrogates(query), None if filter is None else replace_surrogates(filter)
    unit = _checked(store, query, vector, top_k, candidates)
    wide = max(top_k, candidates) if hybrid or rerank else top_k
    passages = _Passages(store, unit, filter, exact or not store.approximate)
    rows = _documents(passages.nearest, wide, len(store))
    if hybrid:
        rows = _fused(rows, _documents(partial(passages.matching, query), wide, len(store)))
    hits = [_hit(row) for row in rows]
    if rerank and hits:
        hits = _reranked(query, hits[:wide], rerank)
    return hits[:top_k]


@dataclass(frozen=True)
class _Passages:
    """Ranked passages of a store that pass the filter."""

    store: Store
    vector: np.ndarray[Any, np.dtype[np.float32]]
    filter: str | None
    exact: bool

    def nearest(self, limit: int) -> list[_Row]:
        """The nearest passages, nearest first."""

        def near(exact: bool) -> Any:
            query = self.store.table.search(self.vector, vector_column_name="vector").distance_type("cosine")
            return query.bypass_vector_index() if exact else query.refine_factor(REFINE).ef(REFINE * limit)

        rows = self._rows(partial(near, self.exact), limit, "_distance")
        if len(rows) < limit and not self.exact:  # the approximate search can miss passages under a narrow filter
            rows = self._rows(partial(near, True), limit, "_distance")
        return sorted(rows, key=lambda row: (-row["_cosine"], row["id"], row["passage"]))

    def matching(self, words: str, limit: int) -> list[_Row]:
        """The best passages by BM25 with at least one of these words, best first."""
        from lancedb.query import FullTextOperator, MultiMatchQuery

        either = MultiMatchQuery(words, ["text", "title"], boosts=None, operator=FullTextOperator.OR)
        rows = self._rows(lambda: self.store.table.search(either, query_type="fts"), limit, "_score")
        return sorted(rows, key=lambda row: (-row["_score"], row["id"], row["passage"]))

    def _rows(self, build: Callable[[], Any], limit: int, extra: str) -> list[_Row]:
        names = [name for name in self.store.table.schema.names if name != "hash"]
        with database_errors(self.store.uri):
            try:
                query = build().select([*names, extra]).limit(limit)
                if self.filter:  # in parentheses: LanceDB ignores anything after a complete condition
                    query = query.where(f"({self.filter})", prefilter=True)
                table = query.to_arrow()
            except (ValueError, RuntimeError) as error:
                if not self.filter or "LanceError(IO)" in str(error):
                    raise
                raise DataError(_bad_filter(self.store, self.filter, error)) from error
        vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, self.vector.size)
        vectors = vectors.astype(np.float64)
        scores = vectors @ self.vector / np.linalg.norm(vectors, axis=1)
        return [row | {"_cosine": score} for row, score in zip(table.to_pylist(), scores.tolist(), strict=True)]


def _checked(
    store: Store, query: str, vector: ArrayLike, top_k: int, candidates: int
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The query's vector, (size,), of unit length."""
    given = np.asarray(vector, dtype=np.float32)
    if not query.strip():
        raise DataError(Problem("query", "is empty", "Write what to search for."))
    for name, value in (("top_k", top_k), ("candidates", candidates)):
        if value < 1:
            raise DataError(Problem(name, f"is {value}", "It must be at least 1."))
    if given.shape != (store.identity.size,):
        what = f"has shape {given.shape}, but the vectors of {store.uri} have size {store.identity.size}"
        raise DataError(Problem("the query's vector", what, f"Make it with {store.identity.name}."))
    if not (np.isfinite(given).all() and given.any()):
        raise DataError(Problem("the query's vector", "is 0 or not finite", "The model is damaged."))
    store.require_same_model()
    if not len(store):
        what = "the store is empty"
        raise StoreError(Problem(store.uri, what, "Add documents: bertkit index MODEL --documents FILE"))
    return given / np.linalg.norm(given)


def _documents(run: Callable[[int], list[_Row]], count: int, passages: int) -> list[_Row]:
    """The best passage of each of the `count` best documents: more passages are read until they are enough.

    run: limit -> so many passages, best first.
    """
    limit = min(4 * count + 40, passages)
    while True:
        rows = run(limit)
        best: dict[str, _Row] = {}
        for row in rows:
            best.setdefault(row["id"], row)
        if len(best) >= count or len(rows) < limit or limit == passages:
            return list(best.values())[:count]
        limit = min(4 * limit, passages)


def _fused(nearest: Sequence[_Row], matching: Sequence[_Row]) -> list[_Row]:
    """Documents of both lists by the sum of 1 / (60 + rank), each by the passage with the greater cosine."""
    fused, best = defaultdict[str, float](float), dict[str, _Row]()
    for rows in (nearest, matching):
        for rank, row in enumerate(rows, 1):
            fused[row["id"]] += 1 / (FUSION + rank)
            best[row["id"]] = max(best.get(row["id"], row), row, key=lambda each: float(each["_cosine"]))
    ranked = [row | {"_relevance": fused[name]} for name, row in best.items()]
    return sorted(ranked, key=lambda row: (-row["_relevance"], -row["_cosine"], row["id"]))


def _reranked(query: str, hits: Sequence[Hit], rerank: Rerank) -> list[Hit]:
    scores = np.asarray(rerank(query, [joined(hit.title, hit.text) for hit in hits]), dtype=np.float64)
    if scores.shape != (len(hits),) or not np.isfinite(scores).all():
        what = f"gave scores of shape {scores.shape} for {len(hits)} texts, or not finite ones"
        fix = "It must give one score per pair: use a cross-encoder for ranking."
        raise ModelError(Problem("the re-ranker", what, fix))
    order = np.argsort(-scores, kind="stable")
    return [replace(hits[index], relevance=float(scores[index])) for index in order]


def _hit(row: _Row) -> Hit:
    fields = {name: row[name] for name in ("id", "passage", "start", "end", "text")}
    # Names with a leading _ are reserved, for LanceDB and `_cosine`.
    metadata = {name: v for name, v in row.items() if name not in RESERVED and name[0] != "_" and v is not None}
    scores = {"score": row["_cosine"], "relevance": row.get("_relevance", row["_cosine"])}
    return Hit(**fields, **scores, title=row["title"] or "", metadata=metadata)


def _bad_filter(store: Store, condition: str, error: Exception) -> Problem:
    reason = str(error).partition(", /")[0].removeprefix("Invalid input, ").removeprefix("lance error: ")[:300]
    columns: dict[str, Kind] = {"id": str, "title": str, "text": str, **store.columns}
    have = ", ".join(f"{name} ({TYPE_NAMES[kind]})" for name, kind in columns.items())
    fix = f"Columns: {have}. For example: id = 'a7'; in a list: array_has(tags, 'a7')"
    return Problem(f"filter {short_repr(condition)}", reason, fix)
