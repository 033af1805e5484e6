"""Models for index, search, mine and embed: vectors of queries and documents, and what identifies a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bertkit.cache import fingerprint, model_key
from bertkit.errors import ModelError, Problem
from bertkit.evaluation.similarity import unit
from bertkit.inference.predictor import Predictor, load_as, model_folder
from bertkit.inference.vector_cache import cached
from bertkit.models.device import best_device, best_precision
from bertkit.retrieval.store import Encode, ModelIdentity, Vectors
from bertkit.tasks.vectors import VectorTask

OVERLAP = 8  # neighbouring passages share an eighth of their tokens


@dataclass(frozen=True)
class DualEncoder:
    """A model for index and search; each encoder prepends its own prefix."""

    identity: ModelIdentity
    tokenizer: PreTrainedTokenizerBase
    encode_documents: Encode
    encode_queries: Encode


def dual_encoder(model: str, revision: str | None = None) -> DualEncoder:
    """The model of a run, a folder or a Hub id; one without bertkit's settings is read as sentence-transformers does.

    Raises ModelError, also where its task gives no vectors.
    """
    predictor = _load(model, revision)
    identity = model_identity(predictor, model, revision)
    sides = (partial(_unit_vectors, predictor, side) for side in ("document", "query"))
    return DualEncoder(identity, predictor.task.tokenizer, *sides)


def model_identity(predictor: Predictor, model: str, revision: str | None = None) -> ModelIdentity:
    """What determines this predictor's vectors. model: the source that it was loaded from. Raises ModelError."""
    options: Any = require_vectors(predictor, model).task.options
    size, length = predictor.encode(["any"]).shape[1], predictor.task.max_length  # no config: AutoConfig imports torch
    prefixes, files = (options.query_prefix, options.document_prefix), fingerprint(model_folder(model, revision))
    return ModelIdentity(model, revision, files, size, length, length // OVERLAP, *prefixes)


def _unit_vectors(predictor: Predictor, side: Any, texts: Sequence[str]) -> Vectors:
    return np.asarray(unit(predictor.encode(list(texts), side)), dtype=np.float32)


def cached_vectors(model: str, side: Any) -> Callable[[list[str]], Any]:
    """Texts -> their vectors `(texts, size)`, cached on disk. side: text, query or document.

    The weights are loaded for the first text that is not in the cache. Raises ModelError.
    """
    folder, device = model_folder(model), best_device()
    # Pooling, length and prefixes are in the model's files, whose fingerprint is in the key.
    precision = best_precision(device)
    key = model_key(folder) | {"pool": "sentence", "side": side, "device": device.type, "precision": precision}

    @cache
    def predictor() -> Predictor:
        loaded = _load(model, None)
        if key["model"] != fingerprint(folder):
            raise ModelError(Problem(model, "its files have changed in the meantime", "Run the same command again."))
        return loaded

    return lambda texts: cached(texts, lambda new: predictor().encode(new, side), name=model, key=key)


def reranker(model: str) -> Callable[[str, Sequence[str]], Sequence[float]]:
    """A cross-encoder as a function: query and texts -> scores, higher is better. Raises ModelError."""
    predictor = load_as("text-ranking", model)
    if predictor.task.name != "text-ranking":
        what = f"a model for {predictor.task.name} does not rank texts"
        raise ModelError(Problem(model, what, "Name one for text-ranking."))

    def scores(query: str, texts: Sequence[str]) -> Sequence[float]:
        return [answer["score"] for answer in predictor.stream({"query": query, "document": t} for t in texts)]

    return scores


def _load(model: str, revision: str | None) -> Predictor:
    return require_vectors(load_as("sentence-similarity", model, revision=revision), model)


def require_vectors(predictor: Predictor, model: str) -> Predictor:
    """The same predictor. Raises ModelError where its task gives no vectors."""
    if not isinstance(predictor.task, VectorTask):
        what = f"a model for {predictor.task.name} gives no vectors of texts"
        raise ModelError(Problem(model, what, "Name one for sentence-similarity or retrieval."))
    return predictor
