"""The commands `index` and `search`: files and models in, text for people out."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import chain, islice, tee
from pathlib import Path
from typing import Any

from bertkit.data.readers import TextRow, format_of, read_rows, read_texts, row_prefix
from bertkit.data.table import Problems
from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, ModelError, Problem
from bertkit.files import require_suffix, written_aside
from bertkit.recipe.recipe import parse_layout
from bertkit.retrieval.models import DualEncoder, dual_encoder
from bertkit.retrieval.search import Hit, search
from bertkit.retrieval.store import Indexed, Store
from bertkit.sections import DataSpec
from bertkit.text import beginning, counted, escape_controls

HITS = "hits"  # the added column of a file of queries
QUERY_BATCH = 256  # queries encoded at a time
MAX_SHOWN = 200  # characters of a passage on the screen


def index_file(
    model: str,
    store: str,
    *,
    documents: Path | None = None,
    delete: Sequence[str] = (),
    columns: Mapping[str, str] = {},
    overrides: Sequence[str] = (),
) -> str:
    """Delete documents from a store, then add and replace those of a file; the store is created where needed.

    model: a run, folder or Hub id. documents: in any format that bertkit reads; see `Store.index`.
    columns: `id`, `text`, `title` or another column -> its name in the file. overrides: how the file is written, such
    as `data.delimiter=";"`. Returns a summary. Raises DataError, RecipeError and ModelError, before the model is loaded
    where possible.
    """
    if not documents:
        if not delete:
            raise DataError(Problem("", "nothing to do", "Add --documents FILE, or --delete ID."))
        return _delete(Store.open(store), delete)
    spec = parse_layout(overrides)
    prefix, numbered = row_prefix(str(documents), format_of(documents, spec)), read_rows(documents, spec)
    numbers, rows = tee(chain([next(numbered)], numbered))
    if delete:
        Store.open(store)
    loaded = dual_encoder(model)
    opened = Store.open_or_create(store, loaded.identity)
    lines = [_delete(opened, delete)] if delete else []
    contents = (_renamed(row, columns) for _, row in rows)
    locations = (f"{prefix}{number}" for number, _ in numbers)
    done = opened.index(contents, loaded.encode_documents, loaded.tokenizer, locations=locations)
    written = f"{counted(done.passages, 'passage')} written; {store} holds {counted(len(opened), 'passage')}"
    return "\n".join([*lines, f"{_counts(done)}: {written}"])


def _counts(done: Indexed) -> str:
    counts = [
        f"{counted(done.added, 'document')} added",
        f"{done.replaced:,} replaced",
        f"{done.unchanged:,} unchanged",
    ]
    counts += [counted(done.repeated, "repeated row")] if done.repeated else []
    counts += [f"{done.empty:,} without text, skipped"] if done.empty else []
    return ", ".join(counts)


def _renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with these columns under their canonical names; no other column keeps one of these names."""
    others = {name: value for name, value in row.items() if name not in {*columns, *columns.values()}}
    return {name: row[theirs] for name, theirs in columns.items() if theirs in row} | others


def search_file(
    store: str, file: Path, output: Path | None, *, column: str = "text", overrides: Sequence[str] = (), **options: Any
) -> int:
    """Write `{…the row's own columns, "hits": […]}` for each query of `file`, as jsonl; returns the number of queries.

    column: of the queries. overrides: how the file is written, such as `data.delimiter=";"`. output: .jsonl; None:
    stdout. options: of `search_store`. The file is read twice: all problems with its rows are reported before a model
    is loaded. Raises as `search_store` does, and RecipeError; then leaves no output.
    """
    if output:
        require_suffix(output, ".jsonl")
    spec, count = parse_layout(overrides), 0
    deque(_queries(file, spec, column), maxlen=0)
    rows, texts = tee(_queries(file, spec, column))
    found = search_store(store, (each.text for each in texts), **options)
    with written_aside(output) if output else nullcontext(sys.stdout) as out:
        for each, hits in zip(rows, found, strict=True):
            out.write(json.dumps({**each.row, HITS: list(map(asdict, hits))}, ensure_ascii=False, default=str) + "\n")
            count += 1
    return count


def _queries(file: Path, spec: DataSpec, column: str) -> Iterator[TextRow]:
    problems = Problems()
    try:
        for each in read_texts(file, spec, column):
            if HITS in each.row:
                raise DataError(Problem(str(file), f"the rows have a column `{HITS}` already", "Rename it."))
            if not each.text.strip():
                problems.add(each.where, "the query is empty", "Write what to search for, or remove the row.")
            yield each
    except DataError as error:
        problems.take(error)
    problems.raise_if_any()


def search_store(
    store: str, queries: Iterable[str], *, model: str | None = None, **options: Any
) -> Iterator[list[Hit]]:
    """The hits of each query in a store, by the model that made it; queries are read in batches.

    model: its new location, if it was moved. options: of `search`. Raises as `search` does, and ModelError where the
    model is another one.
    """
    opened, loaded = _opened(store, model)
    remaining = iter(queries)
    while batch := list(islice(remaining, QUERY_BATCH)):
        for query, vector in zip(batch, loaded.encode_queries(batch), strict=True):
            yield search(opened, query, vector, **options)


def searcher(store: str, *, model: str | None = None, **options: Any) -> Callable[[str], list[Hit]]:
    """A query -> its hits, with store and model opened once. Raises as `search_store` does."""
    opened, loaded = _opened(store, model)
    return lambda query: search(opened, query, loaded.encode_queries([query])[0], **options)


def _opened(store: str, model: str | None) -> tuple[Store, DualEncoder]:
    """A store, and the model that made it."""
    opened = Store.open(store)
    made_with = opened.identity
    try:
        loaded = dual_encoder(model) if model else dual_encoder(made_with.name, made_with.revision)
    except ModelError as error:
        if model:
            raise
        moved = Problem(store, f"was made with {made_with.name}", "If that model was moved, add --model MODEL.")
        raise ModelError([*error.problems, moved]) from error
    opened.require(loaded.identity)
    return opened, loaded


def hits_text(hits: Sequence[Hit]) -> str:
    """Hits for people, two lines each: rank, relevance, id and title; then the beginning of the passage."""
    lines = []
    for rank, hit in enumerate(hits, 1):
        lines.append(escape_controls(f"{rank:>3}  {hit.relevance:.4f}  {hit.id}  {hit.title}".rstrip()))
        lines.append(f"     {beginning(hit.text, MAX_SHOWN)}")
    return "\n".join(lines) or "no hits"


def _delete(store: Store, ids: Sequence[str]) -> str:
    """Delete documents; returns a summary."""
    wanted = dict.fromkeys(map(replace_surrogates, ids))
    deleted = store.delete(list(wanted))
    absent = [name for name in wanted if name not in deleted]
    more = f"; not in the store: {', '.join(absent)}" if absent else ""
    return f"{counted(len(deleted), 'document')} deleted{more}; {counted(len(store), 'passage')} left"
