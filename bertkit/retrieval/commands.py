"""`bertkit index` and `bertkit search`, but for the words of the command line and the loading of models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bertkit.data.readers import format_of, read_rows, row_prefix
from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, ModelError, Problem
from bertkit.retrieval.search import Hit, Rerank, search
from bertkit.retrieval.store import Encode, Indexed, ModelIdentity, Store
from bertkit.sections import DataSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN = 200  # characters of a passage on the screen


@dataclass(frozen=True)
class DualEncoder:
    """A model with what index and search need of it; both encoders put their own prefix before the texts."""

    identity: ModelIdentity
    tokenizer: PreTrainedTokenizerBase
    encode_documents: Encode
    encode_queries: Encode


Load: TypeAlias = Callable[[str, str | None], DualEncoder]
"""A run, folder or Hub id, and its revision -> the model."""


def index_file(
    model: str,
    store: str,
    load: Load,
    *,
    documents: Path | None = None,
    delete: Sequence[str] = (),
    revision: str | None = None,
) -> str:
    """Delete documents from a store, then add and replace those of a file; a store is made where there is none.

    documents: any format that bertkit reads; see `Store.index`. Returns what was done, for people.
    Raises DataError and ModelError, before the model is loaded where that is possible.
    """
    if not documents:
        if not delete:
            raise DataError(Problem("", "nothing to do", "Add --documents FILE, or --delete ID."))
        return _delete(Store.open(store), delete)
    spec = DataSpec(source=str(documents))
    before = row_prefix(str(documents), format_of(documents, spec))
    rows = ((f"{before}{number}", row) for number, row in read_rows(documents, spec))
    first = next(rows)
    if delete:
        Store.open(store)
    loaded = load(model, revision)
    opened = Store.open_or_create(store, loaded.identity)
    lines = [_delete(opened, delete)] if delete else []
    done = opened.index_placed(chain([first], rows), loaded.encode_documents, loaded.tokenizer)
    return "\n".join([*lines, f"{_told(done)}; {store} holds {len(opened):,} passages"])


def search_store(
    store: str,
    query: str,
    load: Load,
    *,
    top_k: int = 10,
    filter: str | None = None,
    hybrid: bool = False,
    exact: bool = False,
    rerank: Rerank | None = None,
    model: str | None = None,
) -> list[Hit]:
    """Search a store with the model that made it; arguments and errors as for `search`.

    model: where that model is now, if not where the store says. Raises ModelError where it is another one.
    """
    opened = Store.open(store)
    said = opened.identity
    try:
        loaded = load(model, None) if model else load(said.name, said.revision)
    except ModelError as error:
        if model:
            raise
        made = Problem(store, f"was made with {said.name}", "Say where that model is now: --model MODEL.")
        raise ModelError([*error.problems, made]) from error
    opened.require(loaded.identity)
    vector = loaded.encode_queries([query])[0]
    return search(opened, query, vector, top_k, filter=filter, hybrid=hybrid, exact=exact, rerank=rerank)


def shown(hits: Sequence[Hit]) -> str:
    """Hits for people, two lines each: rank, relevance, id and title; then how the passage begins."""
    lines = []
    for rank, hit in enumerate(hits, 1):
        text = " ".join(hit.text.split())
        lines.append(f"{rank:>3}  {hit.relevance:.4f}  {hit.id}  {hit.title}".rstrip())
        lines.append(f"     {text[:SHOWN]}{'…' if len(text) > SHOWN else ''}")
    return "\n".join(lines) or "nothing found"


def _delete(store: Store, ids: Sequence[str]) -> str:
    """Deletes; returns what was done, for people."""
    wanted = dict.fromkeys(map(replace_surrogates, ids))
    found = store.delete(list(wanted))
    absent = [name for name in wanted if name not in found]
    more = f"; not in the store: {', '.join(absent)}" if absent else ""
    return f"{len(found):,} documents deleted{more}; {len(store):,} passages are left"


def _told(done: Indexed) -> str:
    parts = [f"{done.added:,} documents added", f"{done.replaced:,} replaced", f"{done.unchanged:,} unchanged"]
    parts += [f"{done.repeated:,} repeated rows"] if done.repeated else []
    parts += [f"{done.empty:,} without text, not kept"] if done.empty else []
    return f"{', '.join(parts)}: {done.passages:,} passages written"
