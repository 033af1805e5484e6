"""Outputs of an exported graph that its reader needs without bertkit: the predictions for single windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def _text_classification(task: Any, reduced: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`scores`, `(features, labels)`: calibrated probabilities; for regression, the number."""
    if task.kind == "regression":
        return {"scores": reduced["logits"].clone()}
    logits = reduced["logits"] / (task.options.temperature or 1)
    return {"scores": logits.softmax(-1) if task.kind == "single-label" else logits.sigmoid()}


def _token_classification(task: Any, reduced: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tags` and `scores`, `(windows, words)`: the most probable tag and its probability; nothing for a CRF."""
    if task.options.head == "crf":  # its best path is added by `bertkit.exports.viterbi`
        return {}
    best = (reduced["emissions"] / (task.options.temperature or 1)).softmax(-1).max(-1)
    return {"tags": best.indices, "scores": best.values}


def _text_ranking(task: Any, reduced: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`scores`, `(features,)`, after the activation."""
    logits = reduced["logits"]
    return {"scores": logits.clone() if task.options.activation == "identity" else logits.sigmoid()}


EXTRA_OUTPUTS: Mapping[str, Callable[[Any, Mapping[str, Tensor]], dict[str, Tensor]]] = {
    "text-classification": _text_classification,
    "token-classification": _token_classification,
    "text-ranking": _text_ranking,
}
