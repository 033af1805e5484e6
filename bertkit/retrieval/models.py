"""What index, search and embed need of a model: vectors of queries and of documents, and what to know it by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bertkit.cache import cached, fingerprint, model_key
from bertkit.inference import load_as, model_folder
from bertkit.retrieval.commands import DualEncoder
from bertkit.retrieval.store import Encode, ModelIdentity

SHARE = 8  # neighbouring passages share an eighth of their pieces


def dual_encoder(model: str, revision: str | None = None) -> DualEncoder:
    """The model of a run, a folder or a Hub id; one that bertkit did not make is opened as sentence-transformers does.

    Raises ModelError, also where its task gives no vectors.
    """
    folder = model_folder(model, revision)
    predictor = load_as("sentence-similarity", model, revision=revision)
    options = predictor.task.options

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
    """Texts -> their vectors `(texts, size)`, which are computed once and kept on disk."""
    predictor = load_as("sentence-similarity", model)
    key = model_key(model_folder(model)) | {
        "pool": "sentence",
        "side": side,
        "precision": predictor.precision,
        "max_length": predictor.task.max_length,
        "options": predictor.task.options.model_dump(mode="json"),
    }
    return lambda texts: cached(texts, lambda new: predictor.encode(new, side), name=model, key=key)


def reranker(model: str) -> Callable[[str, Sequence[str]], Sequence[float]]:
    """A cross-encoder as a function: query and texts -> scores, higher is better."""
    predictor = load_as("text-ranking", model)

    def scores(query: str, texts: Sequence[str]) -> Sequence[float]:
        return [answer["score"] for answer in predictor.stream({"query": query, "document": t} for t in texts)]

    return scores
