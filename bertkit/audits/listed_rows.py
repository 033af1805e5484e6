"""Rows as an audit lists them, and their vectors by the encoder as it was before training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bertkit.audits.parts import Row
from bertkit.errors import ModelError, Problem
from bertkit.evaluation.similarity import unit
from bertkit.inference.features import Features
from bertkit.inference.vector_cache import Vectors
from bertkit.models.encoder import resolve_encoder
from bertkit.report.facts import named_texts
from bertkit.sections import ModelSpec

Encode: TypeAlias = Callable[[Sequence[str]], Vectors]


def unit_vectors(spec: ModelSpec) -> Encode:
    """Texts -> vectors of unit length, `(texts, size)` float32, cached on disk; the encoder's own pooling.

    Raises ModelError.
    """
    from bertkit.models.heads.vector_head import read_layout

    if spec.name is None:
        what = "an encoder without pretrained weights gives no vectors to compare rows by"
        raise ModelError(Problem("model.config", what, "Audit with a pretrained encoder: model.name=NAME"))
    pooling = read_layout(resolve_encoder(spec).folder)[0].pooling
    features = Features(str(spec.name), pool=pooling, max_length=spec.max_length, revision=spec.revision).fit([])

    return lambda texts: np.asarray(unit(features.vectors(texts)[0]))


def identified(row: Row) -> dict[str, Any]:
    """Where a row is, its id and split if it has them, and its texts."""
    return {name: row[name] for name in ("location", "split", "id") if row.get(name) is not None} | named_texts(row)


def by_column(rows: Sequence[Row], encode: Encode) -> list[Vectors]:
    """The vectors of each column of texts, `(rows, size)`, such as those of questions and of contexts."""
    texts = map(named_texts, rows)
    return [encode(column) for column in zip(*(each.values() for each in texts), strict=True)]


def centred(vectors: Vectors) -> Vectors:
    """The vectors minus their mean, of unit length.

    All texts have a high cosine by the vectors of many encoders that were not trained for similarity, because these
    have a large mean (Mu and Viswanath 2018).
    """
    return np.asarray(unit(vectors - vectors.mean(axis=0)))


def joined(columns: Sequence[Vectors]) -> Vectors:
    """A vector per row, `(rows, columns * size)`: the cosine of two is the mean of their columns' cosines."""
    return np.concatenate(columns, axis=1) / np.float32(np.sqrt(len(columns)))
