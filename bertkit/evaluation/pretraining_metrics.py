"""Scores of masked tokens and of pairs of sentences: sums per document, of which every metric is a ratio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bertkit.evaluation.graded import Scored

if TYPE_CHECKING:
    from datasets import Dataset

    from bertkit.data.schema import Answer
    from bertkit.evaluation.intervals import Floats, Values

COUNTED = ("masked", "right", "loss", "pairs", "pairs_right")
SAMPLE = 10_000  # examples that the baseline looks at


def scored(answers: Sequence[Answer], *, pairs: bool) -> Scored:
    """Accuracy and perplexity of masked tokens, accuracy of pairs, as ratios of sums over documents."""
    table = np.empty((len(answers), len(COUNTED)))
    for row, answer in enumerate(answers):
        table[row] = [answer.get(name, 0) for name in COUNTED]
    sums = dict(zip(COUNTED, table.T, strict=True))

    def weighted(weights: Floats) -> Values:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            masked = sums["masked"] @ weights
            scores = {
                "mlm_accuracy": sums["right"] @ weights / masked,
                "perplexity": np.exp(sums["loss"] @ weights / masked),
            }
            if pairs:
                scores["nsp_accuracy"] = sums["pairs_right"] @ weights / (sums["pairs"] @ weights)
            return scores

    return Scored(weighted, len(answers))


def unigrams(
    features: Dataset, labels: Sequence[Sequence[int]], vocabulary: int
) -> dict[str, dict[str, float | None]]:
    """A unigram baseline: the accuracy of the most frequent token of these features, and the perplexity of
    frequencies.

    labels: of the masked examples, -100 where nothing is masked. Frequencies are those of the first examples,
    plus one.
    """
    counts = np.ones(vocabulary)
    for ids in features.select(range(min(len(features), SAMPLE)))["input_ids"]:
        counts += np.bincount(np.asarray(ids, dtype=np.int64), minlength=vocabulary)
    masked = np.concatenate([np.asarray(row, dtype=np.int64) for row in labels])
    masked = masked[masked != -100]
    if not len(masked):
        return {}
    surprise = -np.log(counts / counts.sum())[masked]
    accuracy = float((masked == counts.argmax()).mean())
    return {"unigrams": {"mlm_accuracy": accuracy, "perplexity": float(np.exp(surprise.mean()))}}
