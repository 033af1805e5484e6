"""Recall@10 of approximate search against exact search of the same store, and the latency of both.

The vectors are of a model, for a corpus and its queries in the layout of BEIR; or random: draws around
centres, at a cosine of about 0.6 to them, and queries drawn in the same way. Latency is of `search` as a
whole, one query at a time, from the vector to the hits, with the passages' texts; the query is not encoded.
Hybrid search uses the queries' words.

Run:  python benchmarks/search.py --random 100000
      python benchmarks/search.py --model MODEL --beir FOLDER
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit.data.readers import read_rows
from bertkit.retrieval.passages import Window
from bertkit.retrieval.search import Hit, search
from bertkit.retrieval.store import Store
from bertkit.retrieval.vector_models import DualEncoder, ModelFiles
from bertkit.sections import DataSpec
from bertkit.vectors.cache import Encode

SIZE, CENTRES, TOP_K = 384, 1000, 10


class Contest(NamedTuple):
    """What is indexed, and what is asked."""

    documents: Iterator[dict[str, Any]]
    encode: Encode
    tokenizer: Any
    max_length: int
    size: int
    queries: list[str]


class OnePiece:
    """A tokenizer for texts that are never cut."""

    def __call__(self, texts: Sequence[str], **options: Any) -> dict[str, Any]:
        return {"input_ids": [[0]] * len(texts)}


def made_up(count: int, queries: int) -> Contest:
    """Random vectors; the text of each is its number and a few words."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CENTRES, SIZE)).astype(np.float32)

    def encode(texts: Sequence[str]) -> Any:
        numbers = [int(text.split()[0]) for text in texts]
        noise = np.stack([np.random.default_rng(n).normal(size=SIZE).astype(np.float32) for n in numbers])
        made = centres[[n * 2_654_435_761 % CENTRES for n in numbers]] + 1.33 * noise
        return made / np.linalg.norm(made, axis=1, keepdims=True)

    documents = ({"id": str(n), "text": f"{n} word{n % 997} word{n % 101}"} for n in range(count))
    asked = [f"{count + n} word{n % 997} word{n % 101}" for n in range(queries)]
    return Contest(documents, encode, OnePiece(), 8, SIZE, asked)


def real(model: str, folder: Path, queries: int) -> Contest:
    """A BEIR folder, in the vectors of a model."""
    from bertkit.inference.predictor import load_as

    predictor = load_as("sentence-similarity", model)

    def encode(texts: Sequence[str]) -> Any:
        return np.asarray([answer["vector"] for answer in predictor.stream(texts)], dtype=np.float32)

    def rows(name: str) -> Iterator[dict[str, Any]]:
        return (row for _, row in read_rows(folder / name, DataSpec(source=str(folder))))

    asked = [row["text"] for row in islice(rows("queries.jsonl"), queries)]
    task = predictor.task
    return Contest(
        rows("corpus.jsonl"), encode, task.tokenizer, task.max_length, encode(["a"]).shape[1], asked
    )


def timed(
    ask: Callable[[str, Any], list[Hit]], queries: Sequence[str], vectors: Any
) -> tuple[list[set[str]], str]:
    """Ids found for each query, and latency, in ms, for people; the first five queries warm up."""
    found, seconds = [], []
    for query, vector in zip(queries, vectors, strict=True):
        started = time.perf_counter()
        hits = ask(query, vector)
        seconds.append(time.perf_counter() - started)
        found.append({hit.id for hit in hits})
    median, high = np.percentile(np.array(seconds[5:]) * 1000, [50, 95])
    return found, f"median {median:.1f} ms, p95 {high:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, metavar="N", help="so many random vectors")
    parser.add_argument("--model", help="a run, a model folder or a Hub id")
    parser.add_argument("--beir", type=Path, metavar="FOLDER", help="with corpus.jsonl and queries.jsonl")
    parser.add_argument("--queries", type=int, default=200)
    args = parser.parse_args()
    if bool(args.random) == bool(args.model and args.beir):
        parser.error("--random N, or --model MODEL with --beir FOLDER")
    contest = made_up(args.random, args.queries) if args.random else real(args.model, args.beir, args.queries)
    with tempfile.TemporaryDirectory() as folder:
        compare(contest, Path(folder) / "store")


def compare(contest: Contest, folder: Path) -> None:
    """Prints the time to index and to build, recall and latencies."""
    files, window = (
        ModelFiles("benchmark", None, ""),
        Window(contest.max_length, min(32, contest.max_length // 4)),
    )
    encoder = DualEncoder(files, contest.size, window, contest.tokenizer, contest.encode, contest.encode)
    store = Store.open(folder, encoder)
    started = time.perf_counter()
    store.index((("", document) for document in contest.documents), encoder, ann_from=10**12)
    print(f"lancedb {version('lancedb')}, {len(store):,} passages of {contest.size} numbers")
    print(f"indexed in {time.perf_counter() - started:.1f} s, with making the vectors")
    vectors = contest.encode(contest.queries)
    exact, latency = timed(lambda q, v: search(store, q, v, TOP_K, exact=True), contest.queries, vectors)
    print(f"exact        {latency}, {len(exact)} queries")
    started = time.perf_counter()
    store.index([], encoder, ann_from=0)
    built = time.perf_counter() - started
    assert store.approximate
    found, latency = timed(lambda q, v: search(store, q, v, TOP_K), contest.queries, vectors)
    recall = np.mean([len(a & b) / len(a) for a, b in zip(exact, found, strict=True)])
    print(f"approximate  {latency}, recall@{TOP_K} {recall:.4f}; index built in {built:.1f} s")
    _, latency = timed(lambda q, v: search(store, q, v, TOP_K, hybrid=True), contest.queries, vectors)
    print(f"hybrid       {latency}")


if __name__ == "__main__":
    main()
