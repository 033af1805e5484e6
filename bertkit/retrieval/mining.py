"""Hard negatives: documents near a query that do not answer it, as in ANCE (Xiong et al. 2021)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from os import fspath
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from bertkit.data.beir import Beir, read_beir
from bertkit.errors import DataError
from bertkit.files import require_suffix, written_aside
from bertkit.inference.progress import progress
from bertkit.retrieval.vector_models import DualEncoder, dual_encoder
from bertkit.text import Json
from bertkit.validation import did_you_mean

# documents, and scores, in memory at a time
BLOCK = 4096
MOST_SCORES = 2**24
Form = Literal["negatives", "candidates"]


class Mined(NamedTuple):
    """How many rows were written, for how many queries: some with fewer documents than asked, or no relevant
    one.
    """

    rows: int
    queries: int
    short: int
    idle: int


def mine(
    source: str | Path,
    data: str | Path,
    output: str | Path,
    *,
    split: str = "train",
    form: Form = "negatives",
    count: int = 1,
    skip: int = 0,
) -> Mined:
    """Write hard negatives, or candidates for reranking, as jsonl; returns the numbers of rows and queries.

    source: a run, folder or Hub id. data: a folder in BEIR's layout, and the split of its queries.
    form: `negatives`, for retrieval: `count` rows per relevant document, each with one `negative`.
    `candidates`, for text-ranking: for each query, the relevant documents and the `count` nearest others,
    with `label` 1 or 0, in one `group`.
    skip: number of nearest others to skip, as they may be relevant but unjudged.
    Raises DataError and ModelError.

    >>> mined = bertkit.mine("runs/retriever", bertkit.samples_folder() / "retrieval", "negatives.jsonl")
    >>> mined.rows >= mined.queries
    True
    """
    output = Path(output).expanduser()
    folder = Path(data)
    require_suffix(output, ".jsonl")
    if count < 1 or skip < 0:
        raise DataError(f"count must be at least 1 (found {count}), skip at least 0 (found {skip})")
    if form not in get_args(Form):
        raise DataError("form", f"no form {form!r}", "Choose negatives or candidates.")
    beir = read_beir(folder)
    model = dual_encoder(fspath(source))
    if split not in beir.qrels:
        what = f"no split {split!r}{did_you_mean(split, beir.qrels)}"
        raise DataError(folder, what, f"Splits: {', '.join(beir.qrels)}.")
    texts = {name: text for name, text in beir.corpus.items() if text}
    judged = beir.qrels[split]
    for grades in judged.values():  # an empty document answers nothing
        for name in grades.keys() - texts.keys():
            del grades[name]
    # A text that answers does so under any id. A query that is itself a document is not its own negative.
    answers = [set(map(texts.__getitem__, _relevant(grades))) for grades in judged.values()]
    same = Counter(texts.values())
    most = 1 + max(sum(map(same.__getitem__, relevant)) for relevant in answers)
    ranked = nearest(model, [beir.queries[query] for query in judged], texts, count + skip + most)
    rows = 0
    mined = list[int]()
    idle = 0
    with written_aside(output) as file:
        for (query, grades), relevant, near in zip(judged.items(), answers, ranked, strict=True):
            others = [name for name in near if name != query and texts[name] not in relevant][
                skip : skip + count
            ]
            mined.append(len(others))
            idle += not any(grades.values())
            for row in _rows(beir, query, grades, others, form):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                rows += 1
        if not (rows and any(mined)):
            raise DataError(
                folder,
                f"{split}: no query has both a relevant document and another after the {skip:,} skipped",
                "Skip fewer documents, or judge more.",
            )
    return Mined(rows, len(mined), sum(number < count for number in mined), idle)


def nearest(
    model: DualEncoder, queries: Sequence[str], documents: Mapping[str, str], depth: int
) -> list[list[str]]:
    """For each query the ids of the `depth` nearest documents, nearest first, for a corpus of any length."""
    encoded = model.encode_queries(list(queries))
    names = list(documents)
    best = np.empty((len(queries), 0))
    ids = np.empty((len(queries), 0), dtype=np.int64)
    size = max(1, min(BLOCK, MOST_SCORES // len(queries)))
    for start in progress(range(0, len(names), size), "document", len(names), size):
        block = names[start : start + size]
        scores = np.hstack([best, encoded @ model.encode_documents([documents[name] for name in block]).T])
        new = np.broadcast_to(np.arange(start, start + len(block)), (len(queries), len(block)))
        order = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
        best = np.take_along_axis(scores, order, axis=1)
        ids = np.take_along_axis(np.hstack([ids, new]), order, axis=1)
    return [list(map(names.__getitem__, row)) for row in ids.tolist()]


def _relevant(grades: Mapping[str, int]) -> list[str]:
    return [name for name, grade in grades.items() if grade]


def _rows(
    beir: Beir, query: str, grades: Mapping[str, int], others: Sequence[str], form: Form
) -> Iterator[Json]:
    text = beir.queries[query]
    relevant = _relevant(grades)
    if form == "candidates":
        for name in [*relevant, *others]:
            yield {
                "group": query,
                "query": text,
                "document": beir.corpus[name],
                "label": int(name in relevant),
            }
        return
    for name, other in product(relevant, others):
        pair = {"query_id": query, "query": text, "document_id": name, "document": beir.corpus[name]}
        yield {**pair, "grade": grades[name], "negative": beir.corpus[other]}
