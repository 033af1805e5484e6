"""Scores of documents in rows, some of them for the same query, against targets that may be fractions.

For rankings of a whole corpus against judgements see `ranking`: trec_eval reads integer grades only.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bertkit.data.on_disk import column_values, numbers
from bertkit.data.table import required
from bertkit.evaluation import similarity
from bertkit.evaluation.graded import Graded, Scored
from bertkit.evaluation.intervals import CHUNK, Floats, Ints, Values, floats, joined, ratio
from bertkit.text import Json

if TYPE_CHECKING:
    from datasets import Dataset


CUTOFF = 10  # of ndcg@10 and mrr@10


def query_numbers(queries: Iterable[str], names: Iterable[str | None] | None) -> Ints:
    """The number of each row's query, from 0, in the order of first rows; by its name, or else by its
    text.
    """
    numbers: dict[tuple[bool, str], int] = {}
    pairs = zip(queries, repeat(None) if names is None else names, strict=False)
    keys = ((not name, name or query) for query, name in pairs)
    return np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int64)


def metric_names(grouped: bool, graded: bool) -> list[str]:
    """The metrics that are defined for such targets, the selection metric first."""
    ranks = [f"ndcg@{CUTOFF}", f"mrr@{CUTOFF}"] if grouped else []
    return [*ranks, *(similarity.GRADED if graded else ["average_precision"])]


class PerQuery(NamedTuple):
    """How the documents of each query are ranked, `(queries,)` each."""

    ndcg: Floats  # nDCG@10 (Järvelin & Kekäläinen 2002)
    first: Floats  # the rank of the first relevant document
    sizes: Ints  # documents


class RankedRows(Graded):
    """Documents' targets and scores, and the number of each one's query, from 0: `(rows,)` each.

    grouped: whether the order within a query counts, else every row stands alone. graded: whether there are
    targets other than 0 and 1. What is None is inferred from the rows. Relevant is a target above 0; a
    document's gain is its target, and never below 0. Of equal scores the less relevant document comes first:
    a tie is not a gain, whatever the order of the rows.
    """

    def __init__(
        self, truth: Floats, predicted: ArrayLike, groups: Ints, grouped: bool | None, graded: bool | None
    ) -> None:
        self.truth = truth
        self.predicted = floats(predicted)
        self.grouped = len(np.unique(groups)) < len(groups) if grouped is None else grouped
        self.graded = not np.isin(truth, (0, 1)).all() if graded is None else graded
        self.groups = groups if self.grouped else np.arange(len(groups))

    @cached_property
    def per_query(self) -> PerQuery:
        """The ranking of each query. nDCG is NaN without a relevant document, or with a single document;
        without a relevant document the rank is infinite.
        """
        sizes = np.bincount(self.groups)
        number = np.repeat(np.arange(len(sizes)), sizes)
        rank = 1 + np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        discount = np.where(rank <= CUTOFF, 1 / np.log2(rank + 1), 0)
        order = np.lexsort((self.truth, -self.predicted, self.groups))
        ideal = np.lexsort((-self.truth, self.groups))
        gains = np.maximum(self.truth, 0)
        gain, best = (np.bincount(number, gains[by] * discount) for by in (order, ideal))
        defined = (sizes > 1) & (best > 0)
        ndcg = np.divide(gain, best, out=np.full(len(sizes), np.nan), where=defined)
        first = np.full(len(sizes), np.inf)
        np.minimum.at(first, number, np.where(self.truth[order] > 0, rank, np.inf))
        return PerQuery(ndcg, first, sizes)

    def details(self) -> Json:
        """How many queries have an nDCG."""
        return {"queries": int((~np.isnan(self.per_query.ndcg)).sum())} if self.grouped else {}

    @cached_property
    def scored(self) -> Scored:
        """Those of `metric_names`; `ndcg@10` and `mrr@10` are means over the queries that have an nDCG.

        Weights, and so bootstrap intervals, are over queries.
        """
        per_query = self.per_query
        first = per_query.first
        defined = ~np.isnan(per_query.ndcg)
        by_query = np.stack(
            [np.where(defined, per_query.ndcg, 0), np.where(defined & (first <= CUTOFF), 1 / first, 0)]
        )
        if self.graded:
            by_row = similarity.graded(self.truth, self.predicted).weighted
        else:  # the threshold is accuracy's, which has no meaning here
            by_row = similarity.labelled(self.truth > 0, self.predicted, 0.5).weighted
        names = metric_names(self.grouped, self.graded)
        step = max(1, CHUNK // len(self.groups))  # resamples at a time: there are more rows than queries

        def weighted(weights: Floats) -> Values:
            starts = range(0, weights.shape[1], step)
            parts = [by_row(weights[self.groups, start : start + step]) for start in starts]
            values = {name: joined(parts, name) for name in parts[0]}
            means = ratio(by_query @ weights, defined @ weights, undefined=np.nan)
            values |= dict(zip((f"ndcg@{CUTOFF}", f"mrr@{CUTOFF}"), means, strict=True))
            return {name: values[name] for name in names}

        return Scored(weighted, len(first))

    def pairs(self) -> tuple[list[float], list[float]]:
        """Scores and targets, `(rows,)` each."""
        return self.predicted.tolist(), self.truth.tolist()


def targets(rows: Dataset) -> Floats:
    """Each row's `label` or `score`, `(rows,)`. Raises DataError where the rows have neither."""
    return numbers(rows, required(rows, "label", "score")).astype(np.float64)


def queries(rows: Dataset) -> Ints:
    """The number of each row's query, `(rows,)`: by `group`, or without that by the query's text."""
    names = column_values(rows, "group") if "group" in rows.column_names else None
    return query_numbers(column_values(rows, "query"), names)
