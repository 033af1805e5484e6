"""Hard negatives: what a model finds for a query and does not answer it, as in ANCE (Xiong et al. 2021)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bertkit.data.beir import Beir, read_beir
from bertkit.data.table import Problems
from bertkit.errors import DataError, Problem
from bertkit.files import written_aside

if TYPE_CHECKING:
    from bertkit.retrieval.commands import DualEncoder

BLOCK = 4096  # documents whose vectors are in memory at a time
Form = Literal["negatives", "candidates"]


def mine_file(
    model: DualEncoder, folder: Path, split: str, output: Path, *, form: Form, count: int, skip: int = 0
) -> int:
    """Write what the model finds for the queries of a split of a BEIR folder as jsonl; returns the number of rows.

    form: `negatives` for the task retrieval: a row for each relevant document, with `count` times one `negative`;
    `candidates` for text-ranking: the relevant documents and the `count` nearest others of each query, `label`
    1 or 0, in one `group`. skip: the nearest others that are passed over, since they may answer unjudged.
    Raises DataError.
    """
    if output.suffix != ".jsonl":
        raise DataError(Problem(str(output), f"can not write {output.suffix or 'without a suffix'}", "Name a .jsonl."))
    if count < 1 or skip < 0:
        raise DataError(Problem("", f"{count} documents a query, {skip} skipped: at least 1 and 0 are needed"))
    problems = Problems()
    beir = read_beir(folder, problems)
    problems.finish()
    if split not in beir.qrels:
        raise DataError(Problem(str(folder), f"no {split} split; the splits there: {', '.join(beir.qrels)}"))
    judged = beir.qrels[split]
    most = max(len(grades) for grades in judged.values())
    found = nearest(
        model,
        [beir.queries[query] for query in judged],
        {name: beir.document(name) for name in beir.corpus},
        count + skip + most,
    )
    rows = 0
    with written_aside(output) as file:
        for (query, grades), near in zip(judged.items(), found, strict=True):
            others = [name for name in near if not grades.get(name)][skip : skip + count]
            for row in _rows(beir, query, grades, others, form):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                rows += 1
    return rows


def nearest(model: DualEncoder, queries: Sequence[str], documents: Mapping[str, str], depth: int) -> list[list[str]]:
    """For each query the ids of the `depth` nearest documents, nearest first; documents go by in blocks.

    Memory is that of one block's vectors and of `(queries, block)` scores, however long the corpus (E11).
    """
    asked = model.encode_queries(list(queries))
    names = list(documents)
    best = np.full((len(queries), 0), -np.inf)
    ids = np.zeros((len(queries), 0), dtype=np.int64)
    for start in range(0, len(names), BLOCK):
        block = names[start : start + BLOCK]
        scores = asked @ model.encode_documents([documents[name] for name in block]).T
        best = np.concatenate([best, scores], axis=1)
        ids = np.concatenate([ids, np.broadcast_to(np.arange(start, start + len(block)), scores.shape)], axis=1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :depth]
        best, ids = np.take_along_axis(best, order, axis=1), np.take_along_axis(ids, order, axis=1)
    return [[names[index] for index in row] for row in ids.tolist()]


def _rows(
    beir: Beir, query: str, grades: Mapping[str, int], others: Sequence[str], form: Form
) -> Iterator[dict[str, Any]]:
    asked = {"query_id": query, "query": beir.queries[query]}
    relevant = [name for name, grade in grades.items() if grade]
    if form == "candidates":
        for name in [*relevant, *others]:
            yield {
                "group": query,
                "query": asked["query"],
                "document": beir.document(name),
                "label": int(name in relevant),
            }
        return
    for name in relevant:
        for other in others:
            known = {"document_id": name, "document": beir.document(name), "grade": grades[name]}
            yield {**asked, **known, "negative": beir.document(other)}
