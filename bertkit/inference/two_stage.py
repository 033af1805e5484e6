"""Two-stage retrieval: a cross-encoder reorders a retriever's answers (Nogueira & Cho 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset

from bertkit.data.schema import Answer
from bertkit.errors import Problem, UserError
from bertkit.evaluation.ranking import MAX_HITS
from bertkit.inference.predictor import Predictor


def evaluate_two_stages(retriever: Predictor, ranker: Predictor, rows: Dataset, depth: int) -> dict[str, Any]:
    """Scores of both stages, and of the retriever alone: `rows`, `metrics`, `intervals`, `first_stage` and `depth`.

    depth: number of documents per query that the cross-encoder reorders; the rest follow in the retriever's order.
    Raises UserError where the models are not for retrieval and text-ranking, or depth is out of range.
    """
    if not 1 <= depth <= MAX_HITS:
        what = f"{depth}, where 1 to {MAX_HITS} is expected"
        raise UserError(Problem("depth", what, f"The retriever returns the first {MAX_HITS} documents of a query."))
    task = retriever.task
    if not task.schema.together:
        raise UserError(Problem("the model", f"reranking is for models for retrieval, not for {task.name}"))
    if not ranker.task.ranks:
        raise UserError(Problem("rerank", f"a model for {ranker.task.name}", "Name one for text-ranking."))
    answers = list(task.answer(rows, retriever.predict_features))
    graded = task.grade(reranked(answers, rows, ranker, depth), rows)
    return {
        "rows": len(rows),
        "metrics": graded.scores,
        "intervals": dict(graded.intervals()),
        "first_stage": task.grade(answers, rows).scores,
        "depth": depth,
    }


def reranked(answers: Sequence[Answer], rows: Dataset, ranker: Predictor, depth: int) -> list[Answer]:
    """The answers, with the first `depth` documents of each query in the ranker's order."""
    texts = dict(zip(rows["document_id"][:], rows["document"][:], strict=True))
    pairs = (
        {"query": query, "document": texts[hit["id"]]}
        for query, answer in zip(rows["query"][:], answers, strict=True)
        for hit in answer.get("found", ())[:depth]
    )
    scores = (answer["score"] for answer in ranker.stream(pairs))
    results = []
    for answer in answers:
        if "found" in answer:
            scored = [{"id": hit["id"], "score": next(scores)} for hit in answer["found"][:depth]]
            best = sorted(scored, key=lambda hit: -hit["score"])
            answer = answer | {"found": best + answer["found"][depth:]}
        results.append(answer)
    return results
