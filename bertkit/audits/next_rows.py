"""Which rows to label next: those that a model is unsure of, and that differ from each other."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from bertkit.inference.vector_cache import Vectors

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def fitted(vectors: Vectors, labels: Any) -> Any:
    """A logistic regression on vectors `(rows, size)`; labels: `(rows,)`."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000).fit(vectors, labels)


def margin(probabilities: Floats) -> Floats:
    """1 - the difference of the two highest probabilities of each row, `(rows,)`, in [0, 1]."""
    ordered = np.sort(probabilities, axis=1)
    return 1 - (ordered[:, -1] - ordered[:, -2])


def entropy(probabilities: Floats) -> Floats:
    """The entropy of each row's probabilities in nats, `(rows,)`."""
    from scipy.special import entr

    return np.asarray(entr(probabilities).sum(axis=1))


def diverse(probabilities: Floats, vectors: Vectors, count: int, seed: int) -> Ints:
    """k-means++ seeds among the gradients of a linear head (BADGE, Ash et al. 2020), as indices in the order drawn.

    A row's gradient, for the label that the head prefers, is the outer product of `probabilities - onehot` and its
    vector: long where the head is unsure. It is not computed: distances follow from the products of both factors.
    """
    errors = probabilities.copy()
    errors[np.arange(len(errors)), errors.argmax(axis=1)] -= 1
    lengths = (errors**2).sum(axis=1) * (vectors.astype(np.float64) ** 2).sum(axis=1)
    rng, distances = np.random.default_rng(seed), lengths.copy()
    chosen: list[int] = []
    for _ in range(count):
        weights = distances / distances.sum()
        index = int(rng.choice(len(weights), p=weights)) if chosen else int(lengths.argmax())
        chosen.append(index)
        products = (errors @ errors[index]) * (vectors @ vectors[index])
        distances = np.minimum(distances, np.maximum(lengths + lengths[index] - 2 * products, 0))
        distances[index] = 0
    return np.asarray(chosen)
