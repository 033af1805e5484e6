"""A retriever's answers in a cross-encoder's order: the two scored as one system (Nogueira & Cho 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertkit.errors import Problem, UserError
from bertkit.evaluation.ranking import DEPTH
from bertkit.inference.predictor import Predictor
from bertkit.tasks.retrieval import Retrieval

if TYPE_CHECKING:
    from datasets import Dataset

    from bertkit.data.schema import Answer


def evaluate_two_stages(retriever: Predictor, ranker: Predictor, rows: Dataset, depth: int) -> dict[str, Any]:
    """Scores of the retriever alone and of both: `rows`, `metrics`, `intervals`, `first_stage` and `depth`.

    depth: how many of the documents that a query finds the cross-encoder orders; the rest stay behind them.
    Raises UserError where the first model is no retriever, the second ranks nothing, or nothing stands at that depth.
    """
    if not 1 <= depth <= DEPTH:
        what = f"{depth}, where 1 to {DEPTH} is expected"
        raise UserError(Problem("--depth", what, f"A query keeps the first {DEPTH} documents that it finds."))
    task = retriever.task
    if not isinstance(task, Retrieval):
        raise UserError(Problem("the model", f"--rerank goes with a model for retrieval, not for {task.name}"))
    if ranker.task.name != "text-ranking":
        raise UserError(Problem("--rerank", f"a model for {ranker.task.name}", "Name one for text-ranking."))
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
    """The answers, with the first `depth` documents that each query found in the ranker's order."""
    texts = dict(zip(rows["document_id"][:], rows["document"][:], strict=True))
    queries = rows["query"][:]
    asked = [
        (row, hit["id"], {"query": queries[row], "document": texts[hit["id"]]})
        for row, answer in enumerate(answers)
        for hit in answer.get("found", ())[:depth]
    ]
    scored: dict[int, list[dict[str, Any]]] = {}
    for (row, name, _), answer in zip(asked, ranker.stream(pair for *_, pair in asked), strict=True):
        scored.setdefault(row, []).append({"id": name, "score": answer["score"]})
    made = []
    for row, answer in enumerate(answers):
        if "found" in answer:
            best = sorted(scored.get(row, ()), key=lambda hit: -hit["score"])
            answer = answer | {"found": best + answer["found"][depth:]}
        made.append(answer)
    return made
