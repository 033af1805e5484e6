"""The commands `index` and `search`: files and models in, counts and hits out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.data.readers import read_rows, read_texts, reader_of
from bertkit.data.table import Problems
from bertkit.errors import ModelError, Problem
from bertkit.files import require_suffix, written_aside
from bertkit.inference.progress import progress
from bertkit.recipe.recipe import parse_layout
from bertkit.retrieval.filters import parse_filter, to_sql
from bertkit.retrieval.search import Hit, search
from bertkit.retrieval.store import Store
from bertkit.retrieval.vector_models import dual_encoder, reranker
from bertkit.text import json_line

HITS = "hits"  # the added column of a file of queries
QUERY_BATCH = 256  # queries encoded at a time


def index_file(
    model: str, store: str, documents: Path, *, delete: Sequence[str] = (), columns: Mapping[str, str] = {},
    overrides: Sequence[str] = (),
) -> tuple[Store, list[str], Counter[str]]:  # fmt: skip
    """Delete documents from a store, then add and replace those of a file; the store is created if there is none.

    model: a run, folder or Hub id. documents: in any format that bertkit reads; see `Store.index`.
    columns: `id`, `text`, `title` or another column -> its name in the file. overrides: how the file is written, such
    as `data.delimiter=";"`. Returns the store, the ids that were deleted, and the counts of `Store.index`.
    Raises DataError, RecipeError and ModelError, before the model is loaded where possible.
    """
    spec = parse_layout(overrides)
    prefix, rows = reader_of(documents, spec).prefix(str(documents)), read_rows(documents, spec)
    rows = chain([next(rows)], rows)
    if delete:
        Store.open(store)
    encoder = dual_encoder(model)
    opened = Store.open(store, encoder)
    deleted = opened.delete(delete)

    def renamed(row: Mapping[str, Any]) -> dict[str, Any]:
        others = {name: value for name, value in row.items() if name not in {*columns, *columns.values()}}
        return {name: row[theirs] for name, theirs in columns.items() if theirs in row} | others

    located = ((f"{prefix}{number}", renamed(row)) for number, row in progress(rows, "document"))
    return opened, deleted, opened.index(located, encoder)


def searcher(
    store: str, *, model: str | None = None, filter: Sequence[str] = (), rerank: str | None = None, **options: Any
) -> Callable[[Sequence[str]], Iterator[list[Hit]]]:
    """Queries -> the hits of each, in a store, by the model that made it.

    model: its new location, if it was moved. filter: conditions such as `year>=2020`. rerank: a cross-encoder. options:
    of `search`. Raises as `search` does, and ModelError for another model; a wrong filter before a model is loaded.
    """
    opened = Store.open(store)
    wanted, made_with = parse_filter(filter, opened.columns), opened.made_with
    to_sql(wanted, opened.columns)
    try:
        encoder = dual_encoder(model) if model else dual_encoder(made_with.name, made_with.revision)
    except ModelError as error:
        if model:
            raise
        moved = Problem(store, f"was made with {made_with.name}", "If that model was moved, add --model MODEL.")
        raise ModelError([*error.problems, moved]) from error
    opened.require(encoder.files)
    ranks = reranker(rerank) if rerank else None

    def find(queries: Sequence[str]) -> Iterator[list[Hit]]:
        for start in range(0, len(queries), QUERY_BATCH):
            batch = queries[start : start + QUERY_BATCH]
            for query, vector in zip(batch, encoder.encode_queries(batch), strict=True):
                yield search(opened, query, vector, filter=wanted, rerank=ranks, **options)

    return find


def search_file(
    store: str, file: Path, output: Path | None, *, column: str = "text", overrides: Sequence[str] = (), **options: Any
) -> int:
    """Write `{…the row's own columns, "hits": […]}` for each query of `file`, as jsonl; returns the number of queries.

    column: of the queries. overrides: how the file is written, such as `data.delimiter=";"`. output: .jsonl; None:
    stdout. options: of `searcher`. Raises as `searcher` does, and RecipeError; then leaves no output.
    """
    if output:
        require_suffix(output, ".jsonl")
    rows, problems = list(read_texts(file, parse_layout(overrides), column)), Problems()
    for each in rows:
        if HITS in each.row:
            problems.add(each.where, f"has a column `{HITS}` already", "Rename it.", kind=HITS)
        if not each.text.strip():
            problems.add(each.where, "the query is empty", "Write what to search for, or remove the row.")
    problems.raise_if_any()
    find = searcher(store, **options)
    with written_aside(output) if output else nullcontext(sys.stdout) as out:
        hits_of_queries = progress(find([row.text for row in rows]), "query", len(rows))
        for each, hits in zip(rows, hits_of_queries, strict=True):
            out.write(json_line({**each.row, HITS: list(map(asdict, hits))}) + "\n")
    return len(rows)
