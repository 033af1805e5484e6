"""Scores of ranked documents against graded judgements, by ir-measures (trec_eval), per query and over queries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bertkit.errors import DataError, ModelError, Problem, UserError
from bertkit.evaluation.intervals import Interval, bootstrap
from bertkit.evaluation.metrics import Floats

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

    Relevant is a grade of 1 or more. Documents with the same score are ranked by their ids, ascending. A query
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
    try:
        import ir_measures
        from ir_measures import AP, RR, R, nDCG
    except ModuleNotFoundError as error:
        raise UserError(
            Problem("", f"{error.name} is not installed", 'Install it: pip install "bertkit[retrieval]"')
        ) from error

    names = {nDCG @ 10: "ndcg@10", RR @ 10: "mrr@10", AP: "map", **{R @ k: f"recall@{k}" for k in ks}}
    grades = {query: dict(judged) for query, judged in qrels.items()}
    ranked = {query: _descending(run[query]) for query in qrels if run.get(query)}
    values = {name: dict.fromkeys(qrels, 0.0) for name in names.values()}
    for metric in ir_measures.iter_calc(list(names), grades, ranked):
        values[names[metric.measure]][metric.query_id] = float(metric.value)
    return values


def means(per_query: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Score name -> mean over the queries of `measures`."""
    return {name: math.fsum(values.values()) / len(values) for name, values in per_query.items()}


def intervals(
    per_query: Mapping[str, Mapping[str, float]], *, resamples: int = 1000, seed: int = 0
) -> dict[str, Interval | None]:
    """Bootstrap 95 % percentile intervals of `means`: the queries are resampled. See `intervals.bootstrap`."""
    names = list(per_query)
    table = np.array([list(per_query[name].values()) for name in names])  # (scores, queries)

    def weighted(weights: Floats) -> dict[str, Floats]:
        return dict(zip(names, table @ weights / weights.sum(axis=0), strict=True))

    return bootstrap(weighted, table.shape[1], resamples=resamples, seed=seed)


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
    """The same order as whole numbers without ties: trec_eval reads scores as 32-bit floats, and ties are its own."""
    order = sorted(scores, key=lambda document: (-scores[document], document))
    return {document: len(order) - place for place, document in enumerate(order)}
