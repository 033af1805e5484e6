"""The commands about vectors: `embed`, `index` and `search`: files and models in, counts and hits out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import chain
from os import fspath
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertkit.data.problems import Problems
from bertkit.data.readers import read_rows, read_texts, reader_of
from bertkit.data.values import replace_surrogates, without_nan
from bertkit.errors import DataError, ModelError, Problem, UserError
from bertkit.files import require_suffix, written_aside
from bertkit.inference.progress import progress
from bertkit.processes import Shard
from bertkit.recipe.recipe import parse_layout
from bertkit.retrieval import search as ranking
from bertkit.retrieval.filters import Filter, parse_filter, to_sql
from bertkit.retrieval.search import Hit
from bertkit.retrieval.store import Store
from bertkit.retrieval.vector_models import cached_vectors, dual_encoder, reranker
from bertkit.text import Json, Record, json_line
from bertkit.vectors.embed import embed_file

HITS = "hits"  # the added column of a file of queries
QUERY_BATCH = 256  # queries encoded at a time


class Indexed(NamedTuple):
    """What `index` did. counts: documents added, replaced, unchanged, repeated and empty, and passages
    written.

    deleted, absent: the ids that were deleted, and those that were not there. passages: in the store now.
    """

    counts: Counter[str]
    deleted: list[str]
    absent: list[str]
    passages: int


def embed(
    source: str | Path,
    input: str | Path,
    output: str | Path,
    *,
    column: str = "text",
    side: Literal["text", "query", "document"] = "text",
    overrides: Sequence[str] = (),
    shard: str | None = None,
) -> int:
    """Write the vector of each row's text, in constant memory; returns how many. For texts:
    `Predictor.encode`.

    source: a run, folder or Hub id. input: csv, tsv, xlsx, json, jsonl, parquet, or txt with a text per line.
    output: .parquet, the row's own columns and `vector`; or .npy, float32 `(rows, size)`. column: the texts.
    side: the prefix that they get. overrides: how the file is written, such as `data.delimiter=";"`.
    shard: as for `predict`. Vectors are cached on disk. Raises DataError, RecipeError and ModelError, and
    then leaves no output.

    >>> bertkit.embed("runs/retriever", "reviews.csv", "vectors.parquet")
    2
    """
    encode = cached_vectors(fspath(source), side)
    return embed_file(
        encode, input, Path(output).expanduser(), column=column, overrides=overrides, shard=Shard.parse(shard)
    )


def index(
    source: str | Path,
    store: str | Path,
    documents: str | Path | None = None,
    *,
    delete: str | int | Sequence[str | int] = (),
    columns: Mapping[str, str] = {},
    overrides: Sequence[str] = (),
) -> Indexed:
    """Delete documents from a vector store, then add and replace the documents of a file. A missing store is
    created.

    source: a run, folder or Hub id. store: a folder, or the URI of an object store. documents: a file of rows
    with `id`, `text`, and any other columns. delete: one id or several.
    columns: `id`, `text`, `title` or another column -> its name in the file. overrides: how the file is
    written, such as `data.delimiter=";"`.
    Raises UserError, DataError, RecipeError and ModelError, before the model is loaded where possible.

    >>> bertkit.index("runs/retriever", "articles.store", "articles.jsonl").passages
    2
    """
    names = [*map(str, [delete] if isinstance(delete, str | int) else delete)]
    opened = Store.open(store) if names else None
    encoder = None
    rows: Iterator[tuple[int, Json]] = iter(())
    prefix = ""
    if documents is not None:
        documents = Path(documents)
        spec = parse_layout(overrides)
        reader = reader_of(documents, spec)
        prefix = reader.prefix(str(documents))
        rows = read_rows(documents, spec)
        first = next(rows)
        for name, theirs in columns.items():
            # `id` and `text` are looked for in each row; a row of jsonl may lack the others
            if reader.columns != "any" and name not in ("id", "text") and theirs not in first[1]:
                what = f"no column {theirs!r}; found {', '.join(first[1])}"
                raise DataError(documents, what, f"Correct the column of {name!r}.")
        rows = chain([first], rows)
        encoder = dual_encoder(fspath(source))
        opened = Store.open(store, encoder)
    if opened is None:
        raise UserError("", "nothing to do", "Pass documents to add or to delete.")
    deleted = opened.delete(names)

    def renamed(row: Record) -> Json:
        others = {name: value for name, value in row.items() if name not in {*columns, *columns.values()}}
        return {name: row[theirs] for name, theirs in columns.items() if theirs in row} | others

    located = ((f"{prefix}{number}", renamed(row)) for number, row in progress(rows, "document"))
    counts = opened.index(located, encoder) if encoder else Counter[str]()
    absent = [name for name in map(replace_surrogates, names) if name not in deleted]
    return Indexed(counts, deleted, absent, len(opened))


def search(
    store: str | Path,
    query: str | Sequence[str],
    *,
    top_k: int = 10,
    filter: Filter | Sequence[str] = (),
    hybrid: bool = False,
    rerank: str | None = None,
    model: str | None = None,
) -> list[Hit] | list[list[Hit]]:
    """The documents of a store that are nearest to a query, best first; of several queries, a list for each.

    top_k: how many. filter: such as `{"lang": "en", "year": {"gte": 2020}}`, or conditions as text:
    `["year>=2020"]`.
    hybrid: fuse the ranks with the ranks of full-text search. rerank: a cross-encoder that reorders the first
    documents.
    model: the new location of the store's model, if it was moved.
    Raises DataError: an empty store or query, a bad `top_k` or filter; ModelError: a store of another model.

    >>> _ = bertkit.index("runs/retriever", "articles.store", "articles.jsonl")
    >>> [hit.id for hit in bertkit.search("articles.store", "how do vaccines work", top_k=1)]
    [...]
    """
    find = searcher(str(store), model=model, filter=filter, rerank=rerank, top_k=top_k, hybrid=hybrid)
    return next(find([query])) if isinstance(query, str) else list(find(query))


def searcher(
    store: str,
    *,
    model: str | None = None,
    filter: Filter | Sequence[str] = (),
    rerank: str | None = None,
    **options: Any,
) -> Callable[[Sequence[str]], Iterator[list[Hit]]]:
    """Queries -> the hits of each, in a store, by the model that made it.

    model, filter, rerank: as for `search`. options: of `bertkit.retrieval.search.search`. A wrong filter is
    an error before a model is loaded.
    """
    opened = Store.open(store)
    wanted = filter if isinstance(filter, Mapping) else parse_filter(filter or (), opened.columns)
    to_sql(wanted, opened.columns)
    files = opened.made_with
    try:
        encoder = dual_encoder(model or files.name, None if model else files.revision)
    except ModelError as error:
        if model:
            raise
        moved = Problem(
            store, f"was made with {files.name}", "If that model was moved, pass its new folder: model."
        )
        raise ModelError([*error.problems, moved]) from error
    opened.require(encoder.files)
    ranks = reranker(rerank) if rerank else None

    def find(queries: Sequence[str]) -> Iterator[list[Hit]]:
        for start in range(0, len(queries), QUERY_BATCH):
            batch = queries[start : start + QUERY_BATCH]
            for query, vector in zip(batch, encoder.encode_queries(batch), strict=True):
                yield ranking.search(opened, query, vector, filter=wanted, rerank=ranks, **options)

    return find


def search_file(
    store: str,
    file: Path,
    output: Path | None,
    *,
    column: str = "text",
    overrides: Sequence[str] = (),
    **options: Any,
) -> int:
    """Write `{…the row's own columns, "hits": […]}` for each query of `file`, as jsonl; returns the number of
    queries.

    column: of the queries. overrides: how the file is written, such as `data.delimiter=";"`. output: .jsonl;
    None: stdout. options: of `searcher`. Raises as `searcher` does, and RecipeError; then leaves no output.
    """
    if output:
        require_suffix(output, ".jsonl")
    queries = list(read_texts(file, parse_layout(overrides), column))
    problems = Problems()
    for query in queries:
        if HITS in query.row:
            problems.add(query.where, f"has a column `{HITS}` already", "Rename it.", kind=HITS)
        if not query.text.strip():
            problems.add(query.where, "the query is empty", "Write what to search for, or remove the row.")
    problems.raise_if_any()
    find = searcher(store, **options)
    with written_aside(output) if output else nullcontext(sys.stdout) as out:
        hits_of_queries = progress(find([query.text for query in queries]), "query", len(queries))
        for query, hits in zip(queries, hits_of_queries, strict=True):
            out.write(json_line({**without_nan(query.row), HITS: list(map(asdict, hits))}) + "\n")
    return len(queries)
