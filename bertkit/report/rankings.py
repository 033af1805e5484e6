"""The queries of a split: the ranks of their relevant documents, and what was found first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log2
from operator import itemgetter
from typing import NamedTuple

from bertkit.evaluation.ranking import places
from bertkit.report.facts import Facts, Row


class Query(NamedTuple):
    """A query with a relevant document. number: its first row, from 1. ndcg: None where one document was
    ranked.
    """

    number: int
    text: str
    relevant: list[tuple[int, Row]]  # (rank, row), best first: among all documents, or among the query's rows
    hits: list[tuple[str, float]]  # the first three documents, with their scores
    ndcg: float | None


def is_ranked(facts: Facts) -> bool:
    """Whether the order of a query's documents counts: not in text-ranking with independent pairs."""
    return bool(facts.options.get("grouped", facts.schema.together))


def queries(facts: Facts) -> list[Query]:
    """The queries that have a relevant document, in the order of their first rows."""
    rows_of: dict[str, tuple[int, list[Row]]] = {}  # by the query's identity, after the first one's number
    for number, row in enumerate(facts.rows, 1):
        if row["query"]:
            rows_of.setdefault(_identity(row, "query"), (number, []))[1].append(row)
    texts = {_identity(row, "document"): row["document"] for row in facts.rows}
    asked = (query_of(number, rows, texts) for number, rows in rows_of.values())
    return [query for query in asked if query.relevant]


def query_of(number: int, rows: Sequence[Row], texts: Mapping[str, str]) -> Query:
    """The query of these rows, of which `number` is the first. texts: of the documents, by their identity."""
    first = rows[0]
    if searched := "grade" in first:
        ordered = places([row["answer"]["rank"] for row in rows], [*map(target, rows)])
        ranks = sorted(zip(ordered, rows, strict=True), key=itemgetter(0))
        results, *_ = (row["answer"]["found"] for row in rows if "found" in row["answer"])
        hits = [(texts[hit["id"]], hit["score"]) for hit in results[:3]]
    else:
        # A tie is not a gain.
        ranks = list(enumerate(sorted(rows, key=lambda row: (-row["answer"]["score"], target(row))), 1))
        pairs = ((row["document"], row["answer"]["score"]) for row in rows)
        hits = sorted(pairs, key=lambda pair: -pair[1])[:3]
    relevant = [(rank, row) for rank, row in ranks if target(row) > 0]
    ndcg = None
    if relevant and (searched or len(rows) > 1):  # nDCG@10 (Järvelin & Kekäläinen 2002)
        gains = [(rank, target(row)) for rank, row in relevant]
        ideal = enumerate(sorted((gain for _, gain in gains), reverse=True), 1)
        ndcg = _dcg(gains) / _dcg(ideal)
    return Query(number, first["query"], relevant, hits, ndcg)


def _dcg(hits: Iterable[tuple[int, float]]) -> float:
    return sum(gain / log2(rank + 1) for rank, gain in hits if rank <= 10)


def _identity(row: Row, side: str) -> str:
    """What identifies a query or a document: its id, or else its text."""
    key = row.get(f"{side}_id", row.get("group") if side == "query" else None)
    return str(key or row[side])


def target(row: Row) -> float:
    """The number that a row has as its target."""
    return float(next(row[name] for name in ("grade", "label", "score") if row.get(name) is not None))
