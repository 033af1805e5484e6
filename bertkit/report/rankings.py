"""The queries of a split, their relevant documents, and the ranks at which these were found."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from bertkit.report.facts import Facts, Row


def is_ranked(facts: Facts) -> bool:
    """Whether the order of a query's documents counts: not in text-ranking with independent pairs."""
    return bool(facts.options.get("grouped", facts.task == "retrieval"))


def identity(row: Row, side: str) -> str:
    """What identifies a query or a document: its id, or else its text."""
    given = row.get(f"{side}_id", row.get("group") if side == "query" else None)
    return str(row[side] if given is None else given)


def queries(facts: Facts) -> list[list[tuple[int, Row]]]:
    """The rows of each query, with their numbers from 1; without documents that belong to no query."""
    rows: dict[str, list[tuple[int, Row]]] = {}
    for number, row in enumerate(facts.rows, 1):
        if row["query"]:
            rows.setdefault(identity(row, "query"), []).append((number, row))
    return list(rows.values())


def target(row: Row) -> float:
    """The number that a row has as its target."""
    return float(next(row[name] for name in ("grade", "label", "score") if row.get(name) is not None))


def relevant(rows: Sequence[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """(rank, row) of a query's relevant documents, best first: among all documents, or among the query's rows."""
    documents = [row for _, row in rows]
    if "grade" in documents[0]:
        return sorted(((row["answer"]["rank"], row) for row in documents if row["grade"]), key=lambda pair: pair[0])
    order = sorted(documents, key=lambda row: (-row["answer"]["score"], target(row)))  # a tie is no gain
    return [(rank, row) for rank, row in enumerate(order, 1) if target(row) > 0]


def first_ranks(facts: Facts) -> list[int]:
    """The rank of the first relevant document, for each query that has one."""
    return [found[0][0] for rows in queries(facts) if (found := relevant(rows))]


def ndcg(found: Sequence[tuple[int, Row]]) -> float:
    """nDCG@10 (Järvelin & Kekäläinen 2002) of a query, from its relevant documents as `relevant` returns them."""
    gains = [target(row) for _, row in found]
    ideal = sum(gain / log2(rank + 1) for rank, gain in enumerate(sorted(gains, reverse=True)[:10], 1))
    return sum(gain / log2(rank + 1) for gain, (rank, _) in zip(gains, found, strict=True) if rank <= 10) / ideal


def ndcgs(facts: Facts) -> list[float]:
    """nDCG@10 of each query with a relevant document; where only its own rows are ranked, of queries with several."""
    found = [relevant(rows) for rows in queries(facts) if len(rows) > 1 or "grade" in rows[0][1]]
    return [ndcg(each) for each in found if each]
