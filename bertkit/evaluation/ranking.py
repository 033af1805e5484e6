"""Scores of ranked documents against graded judgements, by ir-measures (trec_eval), per query and over queries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bertkit.data.schema import Answer
from bertkit.data.table import FirstSeen, column_values
from bertkit.errors import DataError, ModelError, Problem, extras_required
from bertkit.evaluation.graded import Graded, Scored
from bertkit.evaluation.intervals import Floats

if TYPE_CHECKING:
    from datasets import Dataset

DEPTH = 100  # documents in the answer to a query; a document further down counts as not retrieved
KS = (1, 5, 10, 100)  # of recall@k
QUERIES = 256  # measured at a time
WORST = 20  # queries that `details` lists

Run: TypeAlias = Mapping[str, Mapping[str, float]]
"""Query id -> {document id: score}, higher is better."""
Judgements: TypeAlias = Mapping[str, Mapping[str, int]]
"""Query id -> {document id: grade}, 0 is not relevant; a document that is not named is not relevant either."""
PerQuery: TypeAlias = dict[str, dict[str, float]]
"""Score name -> {query id: value}, the queries in the order of the judgements."""


def measures(run: Run, qrels: Judgements, ks: Sequence[int] = (1, 5, 10, 100)) -> PerQuery:
    """`ndcg@10`, `mrr@10`, `map` and, for each k of `ks`, `recall@k` of every query that has judgements.

    - `ndcg@10` (Järvelin & Kekäläinen 2002, as trec_eval computes it): a document gains its grade, divided by
      log2(rank + 1); divided by the same sum in the best order.
    - `mrr@10`: 1 / rank of the first relevant document; 0 if that is not among the first 10.
    - `map`: mean, over the relevant documents, of the precision at their ranks, in all that the run holds.
    - `recall@k`: share of the relevant documents among the first k.

    Relevant is a grade of 1 or more. Documents of equal score are ranked by their ids, ascending. A query
    for which the run has nothing, and one without a relevant document, scores 0. Queries without judgements
    are left out.

    Raises:
        DataError: There are no judgements, or none is for a query of a run that has queries.
        ModelError: A score is not a number.
        UserError: ir-measures is not installed.
        ValueError: A k is not positive.
    """
    if any(k < 1 for k in ks):
        raise ValueError(f"ks must be positive, not {list(ks)}")
    _check(run, qrels)
    with extras_required():
        import ir_measures
        from ir_measures import AP, RR, R, nDCG

    names = {nDCG @ 10: "ndcg@10", RR @ 10: "mrr@10", AP: "map", **{R @ k: f"recall@{k}" for k in ks}}
    grades = {query: dict(judged) for query, judged in qrels.items()}
    ranked = {query: _descending(run[query]) for query in qrels if run.get(query)}
    values = {name: dict.fromkeys(qrels, 0.0) for name in names.values()}
    for metric in ir_measures.iter_calc(list(names), grades, ranked):
        values[names[metric.measure]][metric.query_id] = float(metric.value)
    return values


def scored(per_query: PerQuery) -> Scored:
    """Means over the queries of `measures`, which are what the bootstrap resamples."""
    table = np.array([list(values.values()) for values in per_query.values()])  # (scores, queries)

    def weighted(weights: Floats) -> dict[str, Floats]:
        return dict(zip(per_query, table @ weights / weights.sum(axis=0), strict=True))

    means = {name: math.fsum(values.values()) / len(values) for name, values in per_query.items()}
    return Scored(weighted, table.shape[1], means)


def _check(run: Run, qrels: Judgements) -> None:
    if not qrels:
        raise DataError("there are no judgements to score a ranking by")
    if run and not any(query in qrels for query in run):
        some, other = next(iter(run)), next(iter(qrels))
        what = f"no query of the run has judgements: the run has {some!r}, the judgements have {other!r}"
        raise DataError(Problem("", what, "use the same query ids in both; ids are text"))
    for query, scores in run.items():
        for document, score in scores.items():
            if math.isnan(score):
                what = f"the score of document {document!r} for query {query!r} is not a number"
                fix = "The model has diverged, or its weights are broken: check it with `bertkit predict`."
                raise ModelError(Problem("", what, fix))


def _descending(scores: Mapping[str, float]) -> dict[str, int]:
    """The same order as integers without ties: trec_eval reads scores as 32-bit floats, with its own order of ties."""
    order = sorted(scores, key=lambda document: (-scores[document], document))
    return {document: len(order) - place for place, document in enumerate(order)}


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
        names, measured = list(rows_of), dict[str, dict[str, float]]()
        for start in range(0, max(len(names), 1), QUERIES):
            some = names[start : start + QUERIES]
            hits = {name: self.answers[int(rows_of[name][0])]["found"] for name in some}
            # Scores of the order: documents of equal scores stay in the order of the answer.
            run = {name: {hit["id"]: -float(place) for place, hit in enumerate(each)} for name, each in hits.items()}
            judged = judgements(self.rows.select([row for name in some for row in rows_of[name].tolist()]))
            for metric, values in measures(run, judged, KS).items():
                measured.setdefault(metric, {}).update(values)
        return measured

    @cached_property
    def scored(self) -> Scored:
        """`ndcg@10`, `mrr@10`, `map` and `recall@k`, means over queries."""
        return scored(self.per_query)

    def details(self) -> dict[str, Any]:
        """The queries with the lowest nDCG@10: their relevant documents, and the first ones of the answer."""
        scores, rows_of, worst = self.per_query["ndcg@10"], rows_by_query(self.rows), []
        for name in sorted(scores, key=scores.__getitem__)[:WORST]:
            part, first = self.rows.select(rows_of[name].tolist()), int(rows_of[name][0])
            worst.append(
                {
                    "query": self.rows[first]["query"],
                    "ndcg@10": scores[name],
                    "relevant": [document for document, grade in judgements(part)[name].items() if grade],
                    "found": [hit["id"] for hit in self.answers[first]["found"][:3]],
                }
            )
        return {"queries": len(scores), "worst": worst}


def searched(
    rows: Dataset, queries: Sequence[str], documents: Sequence[str], query_vectors: Any, document_vectors: Any
) -> Iterator[Answer]:
    """One answer per row, as described at `Retrieval.answer`, from unit vectors of the named queries and documents."""
    named, rows_of = {"query_id", "document_id"} <= set(rows.column_names), rows_by_query(rows)
    place = {name: index for index, name in enumerate(documents)}
    document = np.fromiter((place[name] for name in _ids(rows, "document")), np.int64, len(rows))
    first = {int(rows_of[query][0]): index for index, query in enumerate(queries)}
    waiting: dict[int, Answer] = {}  # answers of later rows
    for row in range(len(rows)):
        if row in first:
            index, query = first[row], queries[first[row]]
            scores = query_vectors[index : index + 1] @ document_vectors.T
            scores = (scores if isinstance(scores, np.ndarray) else scores.toarray())[0].astype(np.float64)
            if named and query in place and place[query] not in document[rows_of[query]]:
                scores[place[query]] = -np.inf  # the query itself, as BEIR leaves it out (ArguAna, Quora)
            order = np.argsort(-scores, kind="stable")
            ranks = np.empty(len(order), dtype=np.int64)
            ranks[order] = np.arange(1, len(order) + 1)
            for each in rows_of[query].tolist():
                waiting[each] = {"score": float(scores[document[each]]), "rank": int(ranks[document[each]])}
            best = [i for i in order[:DEPTH].tolist() if scores[i] > -np.inf]
            waiting[row]["found"] = [{"id": documents[i], "score": float(scores[i])} for i in best]
        yield waiting.pop(row, {})


def _ids(rows: Dataset, side: str) -> Iterator[str]:
    """The id of each row's query or document, or its text; "" where there is no query."""
    texts = column_values(rows, side)
    if f"{side}_id" not in rows.column_names:
        yield from texts
        return
    for name, text in zip(column_values(rows, f"{side}_id"), texts, strict=True):
        yield (text if name is None else str(name)) if text or side == "document" else ""


def first_rows(rows: Dataset, side: str) -> dict[str, int]:
    """Id -> the first row that has it. Raises DataError: one id has several texts."""
    seen = FirstSeen()
    for row, (name, text) in enumerate(zip(_ids(rows, side), column_values(rows, side), strict=True)):
        _, other = seen.add(name, hash(text), row)
        if other is not None:
            raise DataError(Problem(f"row {row + 1}", f"the {side} {name!r} has another text in row {other + 1}"))
    return seen.locations


def rows_by_query(rows: Dataset) -> dict[str, np.ndarray]:
    """The queries in the order of their first rows, each with its rows; without empty ones."""
    numbers: dict[str, int] = {}
    known = (numbers.setdefault(name, len(numbers)) if name else -1 for name in _ids(rows, "query"))
    query = np.fromiter(known, np.int64, len(rows))
    order = np.argsort(query, kind="stable")
    cuts = np.searchsorted(query[order], np.arange(len(numbers) + 1))
    return {name: order[start:end] for name, (start, end) in zip(numbers, pairwise(cuts), strict=True)}


def judgements(rows: Dataset) -> dict[str, dict[str, int]]:
    """Query -> document -> grade."""
    if "grade" not in rows.column_names:
        raise DataError(Problem("column `grade`", f"not in the rows, which have {', '.join(rows.column_names)}"))
    grades: dict[str, dict[str, int]] = {}
    named = zip(_ids(rows, "query"), _ids(rows, "document"), column_values(rows, "grade"), strict=True)
    for query, document, grade in named:
        if query:
            grades.setdefault(query, {})[document] = int(grade)
    return grades
