"""Scores of ranked documents against graded judgements, by ir-measures (trec_eval), per query and over
queries.

A tie is not a gain: of documents with equal scores, the less relevant come first. So scores are those of the
worst order of equals, and the same whatever the order of the rows; trec_eval would break ties by document id.
McSherry & Najork (2008) compare such rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bertkit.data.on_disk import column_values
from bertkit.data.problems import FirstSeen
from bertkit.data.schema import Answer
from bertkit.data.table import required
from bertkit.errors import DataError, extras_required
from bertkit.evaluation.graded import Graded, Scored
from bertkit.evaluation.intervals import Floats, Values

if TYPE_CHECKING:
    from datasets import Dataset

MAX_HITS = 100  # documents in the answer to a query; a document further down counts as not retrieved
KS = (1, 5, 10, 100)  # of recall@k
QUERIES = 256  # measured at a time

Judgements = dict[str, dict[str, int]]
"""Query id -> {document id: grade}, 0 is not relevant, nor is a document that is not named."""
PerQuery = dict[str, dict[str, float]]
"""Score name -> {query id: value}, the queries in the order of the judgements."""


def measures(hits: Mapping[str, Sequence[str]], judged: Judgements) -> PerQuery:
    """`ndcg@10`, `mrr@10`, `map` and, for each k of KS, `recall@k` of every judged query.

    hits: query -> documents, best first.

    - `ndcg@10` (Järvelin & Kekäläinen 2002, as trec_eval computes it): a document gains its grade, divided by
      log2(rank + 1); divided by the same sum in the best order.
    - `mrr@10`: 1 / rank of the first relevant document; 0 if that is not among the first 10.
    - `map`: mean, over the relevant documents, of the precision at their ranks, in all that were found.
    - `recall@k`: share of the relevant documents among the first k.

    Relevant is a grade of 1 or more. A query without a relevant document, or for which nothing was found,
    scores 0.
    Raises UserError: ir-measures is not installed.
    """
    with extras_required():
        import ir_measures
        from ir_measures import AP, RR, R, nDCG

    names = {nDCG @ 10: "ndcg@10", RR @ 10: "mrr@10", AP: "map", **{R @ k: f"recall@{k}" for k in KS}}
    run = {query: _by_rank(documents) for query, documents in hits.items() if documents}
    values = {name: dict.fromkeys(judged, 0.0) for name in names.values()}
    for metric in ir_measures.iter_calc(list(names), judged, run):
        values[names[metric.measure]][metric.query_id] = float(metric.value)
    return values


def _by_rank(documents: Sequence[str]) -> dict[str, int]:
    return {name: -rank for rank, name in enumerate(documents)}


def scored(per_query: PerQuery) -> Scored:
    """Means over the queries of `measures`, which are what the bootstrap resamples."""
    table = np.array([list(values.values()) for values in per_query.values()])  # (scores, queries)

    def weighted(weights: Floats) -> Values:
        return dict(zip(per_query, table @ weights / weights.sum(axis=0), strict=True))

    means = {name: math.fsum(values.values()) / len(values) for name, values in per_query.items()}
    return Scored(weighted, table.shape[1], means)


@dataclass(frozen=True)
class GradedSearches(Graded):
    """Answers of retrieval, as `searched` gives them, compared with the grades of their rows.

    Raises DataError: the rows have no grades.
    """

    answers: Sequence[Answer]
    rows: Dataset

    @cached_property
    def per_query(self) -> PerQuery:
        """The scores of each query; some queries are measured at a time, which bounds memory."""
        rows_of = rows_by_query(self.rows)
        if not rows_of:
            raise DataError("data", "no row has a query to score a ranking by", "Add rows with a query.")
        names = list(rows_of)
        measured = dict[str, dict[str, float]]()
        for start in range(0, len(names), QUERIES):
            some = [row for name in names[start : start + QUERIES] for row in rows_of[name].tolist()]
            judged = by_place(self.rows.select(some), [self.answers[row]["rank"] for row in some])
            first = list(map(str, range(1, MAX_HITS + 1)))
            for metric, values in measures(dict.fromkeys(judged, first), judged).items():
                measured.setdefault(metric, {}).update(values)
        return measured

    @cached_property
    def scored(self) -> Scored:
        """`ndcg@10`, `mrr@10`, `map` and `recall@k`, means over queries."""
        return scored(self.per_query)

    def details(self) -> dict[str, Any]:
        """How many queries were judged."""
        return {"queries": len(self.per_query["ndcg@10"])}


def places(ranks: ArrayLike, gains: ArrayLike) -> list[int]:
    """The places of a query's documents, from 1: of equals, the better come later. ranks: see
    `Retrieval.answer`.
    """
    ranks = np.asarray(ranks)
    order = np.lexsort([-np.asarray(gains), ranks])
    ordered = ranks[order]
    placed = np.empty_like(order)
    placed[order] = ordered - np.arange(len(order)) + np.searchsorted(ordered, ordered)
    return list(map(int, placed))


def searched(
    rows: Dataset, queries: Sequence[str], documents: Sequence[str], query_vectors: Any, document_vectors: Any
) -> Iterator[Answer]:
    """One answer per row, as described at `Retrieval.answer`, from unit vectors of the named queries and
    documents.
    """
    named = {"query_id", "document_id"} <= set(rows.column_names)
    rows_of = rows_by_query(rows)
    place = {name: index for index, name in enumerate(documents)}
    document = np.fromiter((place[name] for name in ids(rows, "document")), np.int64, len(rows))
    first = {int(rows_of[query][0]): index for index, query in enumerate(queries)}
    by_id = np.array(sorted(range(len(documents)), key=documents.__getitem__))
    by_term = document_vectors.T  # if sparse, as CSR once: each product would convert it
    by_term = by_term if isinstance(by_term, np.ndarray) else by_term.tocsr()
    waiting = {}  # answers of later rows
    for row in range(len(rows)):
        if row in first:
            index = first[row]
            query = queries[index]
            scores = query_vectors[index : index + 1] @ by_term
            scores = (scores if isinstance(scores, np.ndarray) else scores.toarray())[0].astype(np.float64)
            if named and query in place and place[query] not in document[rows_of[query]]:
                scores[place[query]] = -np.inf  # the query itself, as BEIR leaves it out (ArguAna, Quora)
            order = by_id[np.argsort(-scores[by_id], kind="stable")]
            theirs = rows_of[query]
            ranks = np.searchsorted(-scores[order], -scores[document[theirs]], side="right")
            for judged, rank in zip(theirs.tolist(), ranks.tolist(), strict=True):
                waiting[judged] = {"score": float(scores[document[judged]]), "rank": rank}
            best = [i for i in order[:MAX_HITS].tolist() if scores[i] > -np.inf]
            waiting[row]["found"] = [{"id": documents[i], "score": float(scores[i])} for i in best]
        yield waiting.pop(row, {})


def ids(rows: Dataset, side: str) -> Iterator[str]:
    """The id of each row's query or document, or its text; "" where there is no query."""
    texts = column_values(rows, side)
    if f"{side}_id" not in rows.column_names:
        yield from texts
        return
    for name, text in zip(column_values(rows, f"{side}_id"), texts, strict=True):
        if text or side == "document":
            yield name or text
        else:
            yield ""


def first_rows(rows: Dataset, side: str) -> dict[str, int]:
    """Id -> the first row that has it, without "". Raises DataError: one id has several texts."""
    seen = FirstSeen()
    for row, (name, text) in enumerate(zip(ids(rows, side), column_values(rows, side), strict=True)):
        _, other = seen.add(name, hash(text), row)
        if other is not None:
            raise DataError(
                f"row {row + 1}",
                f"the {side} {name!r} has another text in row {other + 1}",
                "Give every text its own id.",
            )
    return {name: row for name, row in seen.locations.items() if name or side == "document"}


def rows_by_query(rows: Dataset) -> dict[str, np.ndarray]:
    """The queries in the order of their first rows, each with its rows; without empty ones."""
    numbers: dict[str, int] = {}
    numbered = (numbers.setdefault(name, len(numbers)) if name else -1 for name in ids(rows, "query"))
    query = np.fromiter(numbered, np.int64, len(rows))
    order = np.argsort(query, kind="stable")
    starts = np.searchsorted(query[order], np.arange(len(numbers) + 1))
    return dict(zip(numbers, np.split(order, starts)[1:-1], strict=True))


def by_place(rows: Dataset, ranks: Sequence[int]) -> Judgements:
    """The grades of these rows, whose documents are named by their places. Raises DataError: they have no
    grades.
    """
    judged: dict[str, dict[str, tuple[int, int]]] = {}
    grades = column_values(rows, required(rows, "grade"))
    for query, document, rank, grade in zip(
        ids(rows, "query"), ids(rows, "document"), ranks, grades, strict=True
    ):
        judged.setdefault(query, {})[document] = rank, int(grade)
    columns = {query: tuple(zip(*pairs.values(), strict=True)) for query, pairs in judged.items()}
    return {name: dict(zip(map(str, places(*both)), both[1], strict=True)) for name, both in columns.items()}
