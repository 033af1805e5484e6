"""Vectors computed once: the first pass over a file's texts against the second, which reads them from disk.

The first pass fills a cache in a folder of its own. The second has a new `Features`, as another program would
have,
and must give the same vectors. Loading the weights is not part of either; tokenising and hashing are. The
least of three second passes counts.

Run:  python benchmarks/cache.py sst2/train.tsv --column sentence [--rows 67349]
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from bertkit.data.readers import read_rows
from bertkit.sections import DataSpec
from bertkit.vectors.features import Features


def passed(model: str, texts: list[str], *, load: bool) -> tuple[float, np.ndarray]:
    """Seconds of `transform`, and its vectors."""
    features = Features(model).fit(texts)
    if load:
        assert features.reader_.model
    started = time.perf_counter()
    vectors = features.transform(texts)
    return time.perf_counter() - started, vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--column", default="sentence")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    args = parser.parse_args()
    rows = islice(read_rows(args.file, DataSpec(source=str(args.file))), args.rows)
    texts = [row[args.column] for _, row in rows]
    with TemporaryDirectory() as folder:
        os.environ["BERTKIT_CACHE"] = folder
        first, vectors = passed(args.model, texts, load=True)
        second, again = min(
            (passed(args.model, texts, load=False) for _ in range(3)), key=lambda each: each[0]
        )
        assert np.array_equal(vectors, again)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.sqlite"))
    print(f"{len(texts):,} texts, {len(set(texts)):,} of them different, {size / 1e6:,.1f} MB on disk")
    print(f"{args.model}, {torch.get_num_threads()} threads")
    print(
        f"first pass {first:.2f} s ({len(texts) / first:,.0f} texts/s), second {second:.3f} s: "
        f"{first / second:,.0f}x"
    )


if __name__ == "__main__":
    main()
