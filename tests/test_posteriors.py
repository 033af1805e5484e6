"""A chain's marginals in NumPy, compared with torch's. Paths and spans are tested in test_crf.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from bertkit.models.heads import crf, posteriors
from bertkit.models.heads.crf import Chain

BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
BIOES = ["O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "I-LOC", "E-LOC", "S-LOC"]


class Case(NamedTuple):
    """A batch, its chain, and random tags."""

    emissions: np.ndarray
    lengths: np.ndarray
    chain: tuple[np.ndarray, ...]
    tags: np.ndarray

    @property
    def there(self) -> Any:
        return np.arange(self.tags.shape[1]) < self.lengths[:, None]


def made(
    seed: int, batch: int, words: int, scale: float, scheme: list[str] | None = None, rounded: bool = False
) -> Case:
    """Random scores; with a scheme, of its tags and without what it forbids."""
    rng = np.random.default_rng(seed)
    count = len(scheme) if scheme else int(rng.integers(1, 8))
    lengths = rng.integers(1, words + 1, batch)
    lengths[0] = words
    parts = [rng.normal(size=shape) * scale for shape in ((count, count), (count,), (count,))]
    chain = posteriors.constrained(parts, scheme, 0.7) if scheme else tuple(parts)
    emissions = rng.normal(size=(batch, words, count)) * scale
    return Case(emissions.round() if rounded else emissions, lengths, chain, rng.integers(0, count, (batch, words)))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """1,000 sentences of up to 12 words, in 125 batches with a chain each; scores from tame to wild, some with ties."""
    schemes = (None, BIO, BIOES)
    scales = (0.1, 1.0, 5.0, 60.0, 400.0)
    return [made(n, 8, 1 + n % 12, scales[n % 5], schemes[n % 3], rounded=n % 4 == 0) for n in range(125)]


def test_marginals_are_those_of_the_loss(cases: list[Case]) -> None:
    long = [made(1, 2, 2000, scale, BIOES) for scale in (0.01, 5.0, 50.0)]
    for case in [*cases, *long]:
        found = posteriors.posterior(case.emissions, case.lengths, case.chain).marginals
        emissions, mask, *chain = map(torch.from_numpy, (case.emissions, case.there, *case.chain))
        expected = crf.posterior(emissions, mask, Chain(*chain)).marginals.numpy()
        np.testing.assert_allclose(found[case.there], expected[case.there], rtol=0, atol=1e-9)


@pytest.mark.parametrize("value", [np.nan, 1e6])
def test_what_stands_at_padding_changes_nothing(value: float) -> None:
    case = made(2, 6, 9, 3.0, BIO)
    other = np.where(case.there[..., None], case.emissions, value)
    path = posteriors.decode(case.emissions, case.lengths, case.chain)
    np.testing.assert_array_equal(posteriors.decode(other, case.lengths, case.chain), path)
    assert (path[~case.there] == -1).all()
    one, two = (posteriors.posterior(each, case.lengths, case.chain) for each in (case.emissions, other))
    np.testing.assert_allclose(one.marginals[case.there], two.marginals[case.there], rtol=0, atol=1e-14)


def test_no_spans_have_no_posteriors() -> None:
    case = made(3, 2, 1, 1.0, BIO)
    found = posteriors.posterior(case.emissions, case.lengths, case.chain)
    nothing, never = np.empty((0, 3), dtype=np.int64), np.zeros((5, 5), dtype=bool)
    assert posteriors.span_posteriors(found, case.lengths, case.chain, case.tags, nothing, never).shape == (0,)


def test_a_word_that_can_only_be_what_is_forbidden() -> None:
    """It must begin with tag 0 and end with tag 1; one word can not be both."""
    chain = np.zeros((2, 2)), np.array([0.0, posteriors.FORBIDDEN]), np.array([posteriors.FORBIDDEN, 0.0])
    found = posteriors.posterior(np.zeros((2, 3, 2)), np.array([3, 1]), chain).marginals
    np.testing.assert_allclose(found[:, 0], [[1, 0], [0.5, 0.5]], rtol=0, atol=1e-6)
