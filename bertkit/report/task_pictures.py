"""Pictures that only some tasks have, from the answers of the reported split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bertkit.evaluation import squad
from bertkit.report import pictures
from bertkit.report.facts import Facts, Row
from bertkit.report.pictures import Picture
from bertkit.report.rankings import first_ranks, is_ranked, ndcgs

RANKS = {"1": (1, 1), "2 or 3": (2, 3), "4 to 10": (4, 10), "11 to 100": (11, 100), "beyond": (101, 10**9)}
NDCGS = {"0": 0.0, "to 0.25": 0.25, "to 0.5": 0.5, "to 0.75": 0.75, "below 1": 1 - 1e-9, "1": 1.0}
ERRORS = (
    "boundary: right type, wrong extent; type: right extent, wrong type; both: neither is right; missed: no entity "
    "was predicted there; spurious: an entity was predicted where there is none."
)


def task_pictures(facts: Facts) -> list[Picture]:
    """The pictures of this task."""
    draw = PICTURES.get(facts.task)
    return list(draw(facts)) if draw else []


def _entity_errors(facts: Facts) -> Iterator[Picture]:
    yield pictures.bars("Entities by kind of error", facts.scores["errors"], ERRORS)


def _null_threshold(facts: Facts) -> Iterator[Picture]:
    chosen = facts.options.get("null_threshold")
    if chosen is not None and facts.rows:
        yield pictures.threshold(threshold_curve(facts.rows), chosen)


def threshold_curve(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """(threshold, F1 if questions with null odds above it get no answer), as `squad.best_threshold` computes it."""
    odds, gains, base = [], [], 0.0
    for row in rows:
        answer, gold = row["answer"], row["answers"]["text"]
        best: Row = answer["n_best"][0] if answer["n_best"] else {"answer": "", "score": 0.0}
        silent = squad.question_scores("", gold)[1]
        odds.append(np.log(max(answer["null_score"], 1e-300)) - np.log(max(best["score"], 1e-300)))
        gains.append(squad.question_scores(best["answer"], gold)[1] - silent)
        base += silent
    order = np.argsort(odds, kind="stable")
    f1 = (base + np.concatenate([[0.0], np.cumsum(np.array(gains)[order])])) / len(rows)
    thresholds = [float(np.min(odds)) - 1, *np.array(odds)[order].tolist()]
    step = max(1, len(thresholds) // 1000)
    return list(zip(thresholds[::step], f1.tolist()[::step], strict=True))


def _gold_scores(facts: Facts) -> Iterator[Picture]:
    if "score" in next(iter(facts.rows), ()):
        points = [(row["score"], row["answer"]["score"]) for row in facts.rows]
        yield pictures.scatter(points, "gold score", "predicted score")


def _rankings(facts: Facts) -> Iterator[Picture]:
    if not is_ranked(facts):
        yield from _gold_scores(facts)
    elif facts.rows:
        yield pictures.bars("Queries by their nDCG@10", ndcg_counts(facts), "1: best order; 0: nothing was found.")
        ranks = first_ranks(facts)
        counts = {name: sum(low <= rank <= high for rank in ranks) for name, (low, high) in RANKS.items()}
        note = "MRR is the mean of 1 / rank. Queries without a relevant document are left out."
        yield pictures.bars("Queries by the rank of their first relevant document", counts, note)


def ndcg_counts(facts: Facts) -> dict[str, int]:
    """Number of queries by their nDCG@10."""
    bins = np.searchsorted(list(NDCGS.values())[:-1], ndcgs(facts), side="left")
    return dict(zip(NDCGS, np.bincount(bins, minlength=len(NDCGS)).tolist(), strict=True))


PICTURES: Mapping[str, Callable[[Facts], Iterator[Picture]]] = {
    "text-classification": _gold_scores,
    "token-classification": _entity_errors,
    "question-answering": _null_threshold,
    "sentence-similarity": _gold_scores,
    "retrieval": _rankings,
    "text-ranking": _rankings,
}
