"""The last hidden states of each text's tokens, from a loaded model for vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bertkit.data.schema import Answer
from bertkit.data.table import numbers
from bertkit.encoding.padding import mask_of
from bertkit.errors import require_finite
from bertkit.inference.predictor import Predictor, Row


def token_states(predictor: Predictor, rows: Sequence[Row]) -> list[Answer]:
    """`states` of each row's text, `(tokens, size)` fp32 with special tokens, and `truncated`.

    predictor: of a task with one vector per text, in torch. Raises DataError as `Predictor.stream`, ModelError where
    states are not finite.
    """
    task: Any = predictor.task
    features = task.encode_sides({"text": predictor.canonical(rows, 0)["text"][:]})
    outputs_of_encoder: list[Any] = []

    def of_tokens(outputs: Any, batch: Any) -> list[np.ndarray[Any, Any]]:
        pairs = zip(outputs_of_encoder.pop().last_hidden_state, mask_of(batch).bool(), strict=True)
        return [states[real].float().cpu().numpy() for states, real in pairs]

    # In front of the hook that replaces the encoder's outputs by vectors.
    hook = predictor.model.register_forward_hook(lambda *call: outputs_of_encoder.append(call[-1]), prepend=True)
    try:
        found = replace(predictor.predict_features, keep=of_tokens)(features)
    finally:
        hook.remove()
    require_finite(np.array([np.isfinite(states).all() for states in found]), "texts")
    cut = (numbers(features, "lost") > 0).tolist()
    return [{"states": states, "truncated": t} for states, t in zip(found, cut, strict=True)]
