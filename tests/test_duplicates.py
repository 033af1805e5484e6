"""Near-duplicates are the connected components of brute-force cosines, whatever the size of a block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sentence_transformers.util import paraphrase_mining_embeddings

from bertkit.audits import duplicates
from bertkit.audits.duplicates import connected


def unit(vectors: Any) -> Any:
    vectors = np.asarray(vectors, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def groups(pairs: Any, count: int) -> set[frozenset[int]]:
    """The connected components of more than one, joined pair by pair."""
    own = [{number} for number in range(count)]
    for one, other in pairs:
        own[one] |= own[other]
        for number in own[one]:
            own[number] = own[one]
    return {frozenset(each) for each in own if len(each) > 1}


@pytest.mark.parametrize("block", [1, 7, 60, 2048])
@pytest.mark.parametrize("threshold", [0.85, 0.95])
def test_clusters_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch, block: int, threshold: float) -> None:
    monkeypatch.setattr(duplicates, "BLOCK", block)
    random = np.random.default_rng(0)
    vectors = unit(np.repeat(random.normal(size=(20, 6)), 3, axis=0) + 0.4 * random.normal(size=(60, 6)))
    vectors = vectors[random.permutation(60)]
    cosines = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    pairs = [(i, j) for i in range(60) for j in range(i) if cosines[i, j] >= threshold]
    labels = connected(vectors, threshold)
    found = {frozenset(np.flatnonzero(labels == label).tolist()) for label in labels}
    expected = groups(pairs, 60)
    assert {each for each in found if len(each) > 1} == expected
    assert len(expected) > 3
    mined = paraphrase_mining_embeddings(np.asarray(vectors), max_pairs=10**6, top_k=60)
    assert groups([(i, j) for score, i, j in mined if score >= threshold], 60) == expected
