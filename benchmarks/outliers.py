"""How soon texts of another kind are found among those of a file, by the distance to their nearest or the local outlier
factor: average precision, mean over three draws of 5 and of 50 planted texts, with 20 neighbours.

Run:  python benchmarks/outliers.py SST-2/train.tsv --column sentence --plant banking77/train.csv
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score
from sklearn.neighbors import LocalOutlierFactor

from bertkit.audits.neighbours import NEAREST, nearest
from bertkit.audits.rows import unit_vectors
from bertkit.data.readers import read_texts
from bertkit.sections import DataSpec, ModelSpec

ROWS, PLANTED = 5000, 400


def main() -> None:
    """Print a line for each number of planted texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--column", default="text")
    parser.add_argument("--plant", type=Path, required=True)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    args = parser.parse_args()
    encode = unit_vectors(ModelSpec(name=args.model))

    def vectors(file: Path, column: str, count: int) -> Any:
        rows = read_texts(file, DataSpec(source=str(file)), column)
        return encode([row.text for row in islice(rows, count)])

    own, other = vectors(args.file, args.column, ROWS), vectors(args.plant, "text", PLANTED)
    for count in (5, 50):
        found = []
        for seed in range(3):
            planted = other[np.random.default_rng(seed).permutation(len(other))[:count]]
            both, truth = np.concatenate([own, planted]), np.arange(len(own) + count) >= len(own)
            factor = LocalOutlierFactor(n_neighbors=NEAREST, algorithm="brute").fit(both).negative_outlier_factor_
            scores = nearest(both, NEAREST)[0].mean(axis=1), -factor
            found.append([average_precision_score(truth, score) for score in scores])
        distance, local = np.mean(found, axis=0)
        print(
            f"{count} of {len(own) + count:,} texts planted: distance {distance:.2f}, local outlier factor {local:.2f}"
        )


if __name__ == "__main__":
    main()
