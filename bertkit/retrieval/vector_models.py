"""Models for index, search, mine and embed: vectors of queries and documents, and what identifies a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
from transformers import PreTrainedTokenizerBase

from bertkit.cache import fingerprint, model_key
from bertkit.errors import ModelError
from bertkit.inference.predictor import Predictor, load_as, model_folder
from bertkit.models.device import best_device, best_precision
from bertkit.retrieval.passages import Window
from bertkit.tasks.vector_task import VectorOptions
from bertkit.text import short_repr
from bertkit.vectors.cache import Encode, Vectors, cached

OVERLAP = 8  # neighbouring passages share an eighth of their tokens


class ModelFiles(NamedTuple):
    """What determines a model's vectors: the fingerprint of its files. The others only locate them."""

    name: str
    revision: str | None
    fingerprint: str


@dataclass(frozen=True)
class DualEncoder:
    """A model for index and search; each encoder prepends its own prefix."""

    files: ModelFiles
    size: int  # of a vector
    window: Window  # of a passage
    tokenizer: PreTrainedTokenizerBase
    encode_documents: Encode  # as vectors of unit length
    encode_queries: Encode


def dual_encoder(model: str, revision: str | None = None, predictor: Predictor | None = None) -> DualEncoder:
    """The model of a run, a folder or a Hub id; one without bertkit's settings is read as
    sentence-transformers does.

    predictor: the model, if it is loaded. Raises ModelError, also where its task gives no vectors.
    """
    loaded = require_vectors(predictor, model) if predictor else load_vectors(model, revision)
    task = loaded.task
    options = cast(VectorOptions, loaded.task.options)
    return DualEncoder(
        ModelFiles(model, revision, fingerprint(model_folder(model, revision))),
        loaded.encode([]).shape[1],  # no config: AutoConfig imports torch
        Window(task.max_length, task.max_length // OVERLAP, options.document_prefix),
        task.tokenizer,
        lambda texts: unit_vectors(loaded.encode(list(texts), "document"), texts),
        lambda texts: unit_vectors(loaded.encode(list(texts), "query"), texts),
    )


def unit_vectors(vectors: Any, texts: Sequence[str]) -> Vectors:
    """The texts' vectors as float32 `(texts, size)`, of unit length. Raises ModelError if one is 0 or not
    finite.
    """
    floats = np.array(vectors, dtype=np.float32)
    lengths = np.linalg.norm(floats, axis=1, keepdims=True)
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(bad):
        raise ModelError(
            "the model",
            f"its vector is 0 or not finite for the text {short_repr(texts[bad[0]])}",
            "The model is damaged, or training diverged: train it again with a lower learning rate.",
        )
    floats /= lengths
    return floats


def cached_vectors(model: str, side: Any) -> Callable[[list[str]], Any]:
    """Texts -> their vectors `(texts, size)`, cached on disk. side: text, query or document.

    The weights are loaded for the first text that is not in the cache. Raises ModelError.
    """
    folder = model_folder(model)
    device = best_device()
    # Pooling, length and prefixes are in the model's files, whose fingerprint is in the key.
    precision = best_precision(device)
    key = model_key(folder) | {
        "pool": "sentence",
        "side": side,
        "device": device.type,
        "precision": precision,
    }

    @cache
    def predictor() -> Predictor:
        loaded = load_vectors(model, None)
        if key["model"] != fingerprint(folder):
            raise ModelError(
                model, "its files have changed since it was loaded", "Run the same command again."
            )
        return loaded

    return lambda texts: cached(texts, lambda new: predictor().encode(new, side), key=key)


def reranker(model: str) -> Callable[[str, Sequence[str]], Sequence[float]]:
    """A cross-encoder as a function: query and texts -> scores, higher is better. Raises ModelError."""
    predictor = load_as("text-ranking", model)
    if not predictor.task.ranks:
        raise ModelError(
            model, f"a model for {predictor.task.name} does not rank texts", "Use a model for text-ranking."
        )

    def scores(query: str, texts: Sequence[str]) -> Sequence[float]:
        pairs = ({"query": query, "document": text} for text in texts)
        return [answer["score"] for answer in predictor.stream(pairs)]

    return scores


def load_vectors(model: str, revision: str | None) -> Predictor:
    """The model of a run, a folder or a Hub id, as `dual_encoder` reads it. Raises ModelError."""
    return require_vectors(load_as("sentence-similarity", model, revision=revision), model)


def require_vectors(predictor: Predictor, model: str) -> Predictor:
    """The predictor itself. Raises ModelError where its task gives no vectors."""
    if not predictor.task.gives("vector"):
        raise ModelError(
            model,
            f"a model for {predictor.task.name} gives no vectors of texts",
            "Use a model for sentence-similarity or retrieval.",
        )
    return predictor
