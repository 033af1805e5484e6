"""Vectors per second beside SentenceTransformer.encode, in one run, on the documents of a BEIR folder.

(a) SentenceTransformer.encode, fp32, batches of 32, as people call it. (b) bertkit, fp32. (c) bertkit, at its
own precision. They take turns over the same documents; ratios are of each round, and their median is printed,
with the lowest cosine between a document's vectors.

Run:  python benchmarks/encode.py scifact [--rows 640] [--rounds 3] [--model
sentence-transformers/all-MiniLM-L6-v2]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from bertkit.data.beir import read_beir
from bertkit.inference.predictor import load_as, model_folder

TASK = "sentence-similarity"  # of a model that bertkit did not make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--rows", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    texts = list(read_beir(args.folder).corpus.values())[: args.rows]

    theirs = SentenceTransformer(str(model_folder(args.model)), device="cpu")
    exact, own = load_as(TASK, args.model, precision="fp32"), load_as(TASK, args.model)
    contestants: dict[str, Callable[[], np.ndarray]] = {
        "sentence-transformers fp32": lambda: theirs.encode(texts, show_progress_bar=False),
        "bertkit fp32": lambda: exact.encode(texts),
        f"bertkit {own.precision}": lambda: own.encode(texts),
    }
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {len(texts)} documents")
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    vectors = {}
    for number in range(args.rounds):
        for name, encode in contestants.items():
            started = time.perf_counter()
            vectors[name] = encode()
            rates[name].append(len(texts) / (time.perf_counter() - started))
        print(f"round {number + 1}: " + "  ".join(f"{name} {rate[-1]:.1f}/s" for name, rate in rates.items()))
    first = next(iter(contestants))
    for name in list(contestants)[1:]:
        ratio = statistics.median(a / b for a, b in zip(rates[name], rates[first], strict=True))
        a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (vectors[name], vectors[first]))
        print(f"{name}: {ratio:.2f} x, lowest cosine {float((a * b).sum(1).min()):.6f}")


if __name__ == "__main__":
    main()
