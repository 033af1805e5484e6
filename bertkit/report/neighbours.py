"""Which texts of a split a model finds nearest to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bertkit.report.facts import Row
from bertkit.tasks.sentence_similarity import SentenceSimilarity

if TYPE_CHECKING:
    from bertkit.inference.predictor import Predictor

COMPARED = 400  # distinct texts
SHOWN = 6  # of them whose neighbours are shown
NEAREST = 3
COLUMNS = ("text_a", "text_b", "anchor", "positive")


def neighbours(predictor: Predictor, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Of a few texts of these rows the three nearest others by cosine: {text, near: [{text, cosine}]}.

    Looked for among the first 400 distinct texts; none where the model gives no vectors to compare.
    """
    import numpy as np

    texts = list(dict.fromkeys(str(row[name]) for row in rows for name in COLUMNS if name in row))[:COMPARED]
    if not isinstance(predictor.task, SentenceSimilarity) or len(texts) <= NEAREST:
        return []
    vectors = predictor.encode(texts)
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    asked = np.unique(np.linspace(0, len(texts) - 1, SHOWN).astype(int)).tolist()
    cosines = vectors[asked] @ vectors.T
    cosines[range(len(asked)), asked] = -np.inf
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :NEAREST]
    return [
        {"text": texts[own], "near": [{"text": texts[other], "cosine": float(row[other])} for other in best]}
        for own, row, best in zip(asked, cosines, order.tolist(), strict=True)
    ]
