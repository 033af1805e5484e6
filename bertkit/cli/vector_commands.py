"""The commands about vectors: embed, mine, index, search."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import bertkit
from bertkit.cli import shared
from bertkit.cli.shared import WITHOUT, argument, column_names, command, flag, one_process, path, say
from bertkit.errors import UserError
from bertkit.text import beginning, counted, escape_controls, json_line

COUNTS = ("added", "replaced", "unchanged", "repeated", "empty")  # documents of `bertkit index`
MAX_PASSAGE = 200  # characters on the screen


@command(
    "embed the texts of a file, as parquet or npy",
    shared.MODEL,
    shared.LAYOUT,
    path("--input", shared.ROWS, required=True),
    path("--output", ".parquet or .npy", required=True),
    shared.COLUMN,
    shared.SHARD,
    argument("--side", "which prefix to prepend", choices=("text", "query", "document"), default="text"),
    example="bertkit embed runs/similarity --input texts.csv --output vectors.parquet",
    page="sentence-similarity",
)
@one_process
def embed(rest: list[str], output: Path, **options: Any) -> None:
    count = bertkit.embed(options.pop("source"), options.pop("input"), output, overrides=rest, **options)
    say(f"{counted(count, 'vector')} in {output}", file=sys.stderr)


@command(
    "mine hard negatives, or candidates for reranking",
    shared.MODEL,
    path("--data", "a folder in BEIR's layout", "DIR", required=True),
    argument("--split", "split of the queries", default="train"),
    path("--output", ".jsonl", required=True),
    argument("--form", "what to write", choices=("negatives", "candidates"), default="negatives"),
    argument("--count", "documents per query", default=1),
    argument("--skip", "nearest documents to skip", default=0),
    example="bertkit mine runs/retriever --data scifact --output negatives.jsonl",
    page="retrieval",
)
@one_process
def mine(source: str, data: Path, output: Path, **options: Any) -> None:
    mined = bertkit.mine(source, data, output, **options)
    said = [f"{counted(mined.rows, 'row')} in {output}"]
    if mined.short:
        said.append(
            f"{mined.short:,} of {counted(mined.queries, 'query')} had fewer than {options['count']} "
            "documents to mine"
        )
    if mined.idle:
        said.append(f"{mined.idle:,} had no relevant document")
    say("; ".join(said), file=sys.stderr)


@command(
    "add, replace or delete documents in a vector store",
    shared.MODEL,
    shared.LAYOUT,
    path("--documents", "rows with id, text and any other columns"),
    shared.COLUMNS,
    argument("--store", "a folder, or the URI of an object store", required=True, metavar="DIR"),
    argument("--delete", "documents to delete first", action="extend", nargs="+", default=[], metavar="ID"),
    example="bertkit index runs/retriever --documents articles.jsonl --store articles.store",
    page="retrieval-store",
)
@one_process
def index(
    source: str, rest: list[str], store: str, documents: Path | None, delete: list[str], column: list[str]
) -> None:
    done = bertkit.index(
        source, store, documents, delete=delete, columns=column_names(column), overrides=rest
    )
    if done.absent:
        say(f"not in the store: {', '.join(done.absent)}", file=sys.stderr)
    if delete:
        say(f"{counted(len(done.deleted), 'document')} deleted")
    if documents:
        numbers = ", ".join(
            f"{done.counts[name]:,} {name}" for name in COUNTS if done.counts[name] or name in COUNTS[:3]
        )
        say(f"documents: {numbers}; {counted(done.counts['passages'], 'passage')} written")
    say(f"{store} holds {counted(done.passages, 'passage')}")


@command(
    "search a vector store for the documents nearest to a query",
    argument("store", "a folder, or the URI of an object store", metavar="STORE"),
    argument("rest", "a text; with --input data.KEY=VALUE", nargs="*", metavar="QUERY"),
    path("--input", f"queries: {shared.ROWS}"),
    path("--output", ".jsonl, for --input; default: stdout"),
    argument("--column", "the column of queries in --input; default: text", metavar="NAME"),
    argument("--top-k", "number of documents", default=10),
    argument("--rerank", "a cross-encoder that reranks the documents found", metavar="MODEL"),
    argument(
        "--filter",
        "such as lang=en or 'year>=2020'; all columns must hold",
        action="append",
        default=[],
        metavar="CONDITION",
    ),
    flag("--hybrid", "add full-text search and fuse the two rankings"),
    argument("--model", "current location of the store's model, if it was moved", metavar="MODEL"),
    shared.JSON,
    example='bertkit search articles.store "how do vaccines work"',
    page="retrieval-store",
)
def search(
    store: str,
    rest: list[str],
    input: Path | None,
    output: Path | None,
    column: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    if len(rest) != 1 if not input else any(not word.startswith("data.") for word in rest):
        raise UserError(
            "", "search needs one query, in quotes, or --input FILE", "bertkit search STORE 'some words'"
        )
    if not input and (output or column):
        raise UserError("", "--output and --column work only with --input FILE", WITHOUT)
    from dataclasses import asdict

    from bertkit.retrieval.commands import search_file

    if input:
        count = search_file(store, input, output, column=column or "text", overrides=rest, **options)
        say(counted(count, "row") + (f" in {output}" if output else ""), file=sys.stderr)
        return
    hits: Any = bertkit.search(store, rest[0], **options)
    for rank, hit in enumerate(hits, 1):
        head = escape_controls(f"{rank:>3}  {hit.relevance:.4f}  {hit.id}  {hit.title}".rstrip())
        say(json_line(asdict(hit)) if as_json else f"{head}\n     {beginning(hit.text, MAX_PASSAGE)}")
    if not hits and not as_json:
        say("no hits")
