"""What index, search and embed need of a model: vectors of queries and of documents, and what to know it by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from bertkit.cache import fingerprint, model_key
from bertkit.errors import ModelError, Problem
from bertkit.inference.predictor import Predictor, load_as, model_folder
from bertkit.inference.vector_cache import cached
from bertkit.models.device import best_device, best_precision
from bertkit.retrieval.commands import DualEncoder
from bertkit.retrieval.store import Encode, ModelIdentity
from bertkit.tasks.vectors import VectorTask

SHARE = 8  # neighbouring passages share an eighth of their pieces


def dual_encoder(model: str, revision: str | None = None) -> DualEncoder:
    """The model of a run, a folder or a Hub id; one that bertkit did not make is opened as sentence-transformers does.

    Raises ModelError, also where its task gives no vectors.
    """
    folder = model_folder(model, revision)
    predictor = _of_vectors(model, revision)
    options: Any = predictor.task.options

    def encode(side: Any) -> Encode:
        def unit(texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
            made = predictor.encode(list(texts), side)
            return np.asarray(made / np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-12), dtype=np.float32)

        return unit

    size = int(options.dense or predictor.model.config.hidden_size)
    pieces = predictor.task.max_length
    identity = ModelIdentity(
        model,
        revision,
        fingerprint(folder),
        size,
        pieces,
        pieces // SHARE,
        options.query_prefix,
        options.document_prefix,
    )
    return DualEncoder(identity, predictor.task.tokenizer, encode("document"), encode("query"))


def kept_vectors(model: str, side: Any) -> Callable[[list[str]], Any]:
    """Texts -> their vectors `(texts, size)`, which are computed once and kept on disk.

    The weights are loaded for the first text that is not kept yet. Raises ModelError.
    """
    folder, device = model_folder(model), best_device()
    # Pooling, length and prefixes stand in the model's files, which the key has the fingerprint of.
    key = model_key(folder) | {
        "pool": "sentence",
        "side": side,
        "device": device.type,
        "precision": best_precision(device),
    }

    @cache
    def predictor() -> Predictor:
        loaded = _of_vectors(model, None)
        if key["model"] != fingerprint(folder):
            raise ModelError(Problem(model, "its files have changed meanwhile", "Run the same again."))
        return loaded

    return lambda texts: cached(texts, lambda new: predictor().encode(new, side), name=model, key=key)


def reranker(model: str) -> Callable[[str, Sequence[str]], Sequence[float]]:
    """A cross-encoder as a function: query and texts -> scores, higher is better. Raises ModelError."""
    predictor = load_as("text-ranking", model)
    if predictor.task.name != "text-ranking":
        what = f"a model for {predictor.task.name}, which ranks nothing"
        raise ModelError(Problem(model, what, "Name one for text-ranking."))

    def scores(query: str, texts: Sequence[str]) -> Sequence[float]:
        return [answer["score"] for answer in predictor.stream({"query": query, "document": t} for t in texts)]

    return scores


def _of_vectors(model: str, revision: str | None) -> Predictor:
    predictor = load_as("sentence-similarity", model, revision=revision)
    if not isinstance(predictor.task, VectorTask):
        what = f"a model for {predictor.task.name} gives no vectors of texts"
        raise ModelError(Problem(model, what, "Name one for sentence-similarity or retrieval."))
    return predictor
