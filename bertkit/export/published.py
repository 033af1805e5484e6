"""Extra outputs of an exported graph: answers of single windows, for readers without bertkit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def _text_classification(task: Any, reduced: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`scores`, `(features, labels)`: probabilities at the fitted temperature; of a regression, the number."""
    logits = reduced["logits"] if task.kind == "regression" else reduced["logits"] / (task.options.temperature or 1)
    squash = {"single-label": "softmax", "multi-label": "sigmoid"}.get(task.kind)
    return {"scores": logits.softmax(-1) if squash == "softmax" else logits.sigmoid() if squash else logits}


def _token_classification(task: Any, reduced: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tags` and `scores`, `(windows, words)`: each word's best, and its posterior; nothing of a chain."""
    if task.options.head == "crf":  # whose best path `bertkit.export.viterbi` adds
        return {}
    best = (reduced["emissions"] / task._temperature).softmax(-1).max(-1)
    return {"tags": best.indices, "scores": best.values}


def _text_ranking(task: Any, reduced: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`scores`, `(features,)`, as the activation gives them."""
    logits = reduced["logits"]
    return {"scores": logits.clone() if task.options.activation == "identity" else logits.sigmoid()}


PUBLISHED: Mapping[str, Callable[[Any, Mapping[str, Tensor]], dict[str, Tensor]]] = {
    "text-classification": _text_classification,
    "token-classification": _token_classification,
    "text-ranking": _text_ranking,
}
