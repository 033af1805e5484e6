"""Accuracy by the number of labelled rows, where these are chosen at random or by what a model is unsure of.

A logistic regression on the vectors of a frozen encoder starts with 100 random rows of a pool; each round it
chooses 100 more, and is fitted again. Printed are the accuracy on the test file after each round, the mean of
all rounds, and how much higher it is than with random rows (± standard error); means over the seeds, which
share their first rows. Without a test file, a fifth of the rows is the test.

Run:  python benchmarks/label_next.py SST-2/train.tsv --test SST-2/dev.tsv --column sentence
      python benchmarks/label_next.py banking77/train.csv --label category --rounds 20
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import entr
from sklearn.cluster import kmeans_plusplus

from bertkit.audits.next_rows import head
from bertkit.audits.parts import unit_vectors
from bertkit.data.readers import read_rows
from bertkit.sections import DataSpec, ModelSpec

BATCH = 100


def margin(probabilities: Any) -> Any:
    """1 - the difference of the two highest probabilities in each row, `(rows,)`, from 0 (sure) to 1."""
    ordered = np.sort(probabilities, axis=1)
    return 1 - ordered[:, -1] + ordered[:, -2]


def entropy(probabilities: Any) -> Any:
    """In nats, `(rows,)`."""
    return entr(probabilities).sum(axis=1)


def highest(score: Callable[[Any], Any], probabilities: Any, vectors: Any, count: int, seed: int) -> Any:
    """The rows of the highest scores."""
    return np.argsort(-score(probabilities), kind="stable")[:count]


def at_random(probabilities: Any, vectors: Any, count: int, seed: int) -> Any:
    """Any rows."""
    return np.random.default_rng(seed).permutation(len(vectors))[:count]


def weighted(probabilities: Any, vectors: Any, count: int, seed: int) -> Any:
    """k-means++ seeds among the vectors, weighted by margin."""
    return kmeans_plusplus(vectors, count, sample_weight=margin(probabilities) + 1e-9, random_state=seed)[1]


def without_duplicates(probabilities: Any, vectors: Any, count: int, seed: int) -> Any:
    """The rows of the smallest margin, without those that have a cosine of 0.95 or more to one before."""
    chosen = list[int]()
    for index in np.argsort(-margin(probabilities), kind="stable"):
        if len(chosen) < count and (not chosen or (vectors[chosen] @ vectors[index]).max() < 0.95):
            chosen.append(int(index))
    return np.asarray(chosen)


def badge(probabilities: Any, vectors: Any, count: int, seed: int) -> Any:
    """k-means++ seeds among the gradients of the last layer (BADGE, Ash et al. 2020), the longest first.

    A gradient is the outer product of `probabilities - onehot` and the vector; distances follow from the
    factors.
    """
    errors = probabilities - np.eye(probabilities.shape[1])[probabilities.argmax(axis=1)]
    squares = (errors**2).sum(axis=1) * (vectors.astype(np.float64) ** 2).sum(axis=1)
    rng, chosen, distances = np.random.default_rng(seed), list[int](), squares.copy()
    while len(chosen) < count:
        index = (
            int(rng.choice(len(errors), p=distances / distances.sum())) if chosen else int(squares.argmax())
        )
        products = (errors @ errors[index]) * (vectors @ vectors[index])
        distances = np.minimum(distances, np.maximum(squares + squares[index] - 2 * products, 0))
        chosen.append(index)
        distances[chosen] = 0
    return np.asarray(chosen)


STRATEGIES = {
    "random": at_random,
    "margin": partial(highest, margin),
    "margin, no duplicates": without_duplicates,
    "entropy": partial(highest, entropy),
    "k-means++ weighted": weighted,
    "BADGE": badge,
}


def curve(choose: Any, pool: Any, test: Any, rounds: int, seed: int) -> list[float]:
    """Accuracy on the test rows after each round."""
    (vectors, labels), scores = pool, list[float]()
    chosen = np.random.default_rng(seed).permutation(len(labels))[:BATCH]
    for number in range(rounds):
        model = head(vectors[chosen], labels[chosen])
        scores.append(float(np.mean(model.predict(test[0]) == test[1])))
        rest = np.setdiff1d(np.arange(len(labels)), chosen)
        picked = choose(model.predict_proba(vectors[rest]), vectors[rest], BATCH, seed * 1000 + number)
        chosen = np.concatenate([chosen, rest[picked]])
    return scores


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--column", default="text")
    parser.add_argument("--label", default="label")
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--pool", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()

    encode = unit_vectors(ModelSpec(name=options.model))

    def read(file: Path) -> tuple[Any, Any]:
        rows = [row for _, row in read_rows(file, DataSpec(source=str(file)))]
        rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[: options.pool]]
        return encode([row[options.column] for row in rows]), np.asarray([row[options.label] for row in rows])

    pool = read(options.train)
    if options.test:
        test = read(options.test)
    else:
        cut = len(pool[1]) // 5
        test, pool = tuple(each[:cut] for each in pool), tuple(each[cut:] for each in pool)
    print(f"{len(pool[1]):,} rows to choose from, {len(test[1]):,} test rows, {options.seeds} seeds")
    print("labelled".ljust(22), *(f"{BATCH * (n + 1):>6}" for n in range(options.rounds)), "  mean  - random")
    areas = dict[str, Any]()
    for name, choose in STRATEGIES.items():
        scores = 100 * np.asarray(
            [curve(choose, pool, test, options.rounds, seed) for seed in range(options.seeds)]
        )
        areas[name] = scores.mean(axis=1)
        gain = areas[name] - areas["random"]
        error = gain.std(ddof=1) / np.sqrt(options.seeds) if options.seeds > 1 else 0.0
        means = " ".join(f"{mean:6.1f}" for mean in scores.mean(axis=0))
        print(name.ljust(22), means, f"{areas[name].mean():6.2f}  {gain.mean():+.2f} ± {error:.2f}")


if __name__ == "__main__":
    main()
