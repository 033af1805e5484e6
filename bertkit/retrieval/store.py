"""A store: passages of documents with their vectors in one LanceDB table, in a folder or an object store."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from bertkit.data.problems import FirstSeen
from bertkit.data.scripts import LATIN, UNSPACED, share
from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, ModelError, Problem, StoreError, extras_required, translated
from bertkit.files import is_taken
from bertkit.retrieval.documents import HIDDEN, TYPE_NAMES, Document, new_columns, read_documents
from bertkit.retrieval.passages import passages
from bertkit.retrieval.vector_models import DualEncoder, ModelFiles
from bertkit.text import Record

ANN_FROM = 50_000  # minimum number of passages for an approximate index; fewer are compared one by one
SAMPLE = 1_000  # passages whose script decides how all are indexed for full-text search
TABLE = "passages"
NOTE = b"bertkit"
FORMAT = 2
_MAX_INDEX_PARTS = 8  # parts of an approximate index are searched one by one; beyond this it is rebuilt
_CONSISTENCY = timedelta(seconds=5)  # after which an open table checks for updates by other processes


@dataclass(frozen=True)
class Store:
    """Passages and their vectors by one model. Any number of processes may read while one writes."""

    uri: str
    made_with: ModelFiles
    table: Any  # lancedb.table.Table

    @classmethod
    def open(cls, uri: str | Path, encoder: DualEncoder | None = None) -> Store:
        """The store at a folder or URI. encoder: the model that must have made it, or makes it if there is
        none.

        Raises DataError: no store, or a folder with other files; ModelError: a store of another model.
        """
        local = None if "://" in str(uri) else Path(uri).expanduser()
        uri = str(local or uri)
        absent = Problem(uri, "is not a bertkit store", "Index documents first.")
        if local and not (local / f"{TABLE}.lance").is_dir():
            if encoder is None:
                raise DataError(absent)
            if is_taken(local):
                raise DataError(uri, "exists, and is not a store", "Use a new folder.")
        os.environ.setdefault("LANCEDB_LOG", "error")  # its warnings are for developers
        with extras_required():
            import lancedb
        with database_errors(uri):
            connection = lancedb.connect(uri, read_consistency_interval=_CONSISTENCY)
            try:
                table = connection.open_table(TABLE)
            except ValueError as error:
                if encoder is None:
                    raise DataError(absent) from error
                table = connection.create_table(TABLE, schema=_schema(encoder))
        store = cls(uri, _made_with(uri, table), table)
        store.require(encoder.files if encoder else store.made_with)
        return store

    def require(self, files: ModelFiles) -> None:
        """Raises ModelError unless the store, as it is now, was made with this model."""
        made_with = _made_with(self.uri, self.table)
        if made_with.fingerprint != files.fingerprint:
            model = made_with.name + (f" at revision {made_with.revision}" if made_with.revision else "")
            raise ModelError(
                self.uri,
                f"was made with {model}; {files.name} is another model (its files differ)",
                "Use that model, or index into a new folder.",
            )

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """Column -> type, of metadata and texts; without types that bertkit does not write."""
        named = {field.name: field.type for field in self.table.schema if field.name not in HIDDEN}
        return {name: kind for name, kind in named.items() if kind in TYPE_NAMES}

    @property
    def approximate(self) -> bool:
        """True if there is an approximate index of the vectors."""
        return any(index.columns == ["vector"] for index in self.table.list_indices())

    def __len__(self) -> int:
        """Number of passages."""
        with database_errors(self.uri):
            return int(self.table.count_rows())

    def index(
        self, rows: Iterable[tuple[str, Record]], encoder: DualEncoder, ann_from: int = ANN_FROM
    ) -> Counter[str]:
        """Add documents, and replace those with a known id and other contents; unchanged ones are not encoded
        again.

        rows: a location for messages, and `{"id" or "_id", "text", optional "title", further columns}`. Each
        batch is written in one step, so that an interrupted call is completed by the same call.
        ann_from: minimum number of passages for an approximate index.
        Returns the numbers of documents `added`, `replaced`, `unchanged`, `repeated` (rows equal to an
        earlier one) and `empty` (without text: skipped), and of `passages` written.
        Raises DataError on bad rows, ModelError on bad vectors; earlier batches are in the store.
        """
        from lancedb.index import BTree, HnswSq

        seen = FirstSeen()
        columns = self.columns
        counts = Counter[str]()
        for batch in read_documents(rows, seen):
            hashes = self._hashes([document.id for document in batch])
            changed = [document for document in batch if hashes.get(document.id) != document.hash]
            if new := new_columns(batch, columns):
                with database_errors(self.uri):
                    self.table.add_columns(pa.schema(new))
                columns |= new
            counts["passages"] += self._replace(changed, encoder) if changed else 0
            for document in changed:
                change = "replaced" if document.id in hashes else "added"
                counts["empty" if document.empty else change] += 1
            counts["unchanged"] += len(batch) - len(changed)
        with database_errors(self.uri):
            indices = {index.columns[0]: index.name for index in self.table.list_indices()}
            if "id" not in indices:
                self.table.create_index("id", config=BTree())
            texts = self.table.search().select(["text"]).limit(SAMPLE).to_arrow()["text"].to_pylist()
            if texts and "text" not in indices:
                for column in ("text", "title"):
                    self.table.create_index(column, config=_full_text(texts))
            self.table.optimize()
            parts = self.table.index_stats(indices["vector"]).num_indices if "vector" in indices else None
            if len(self) >= ann_from and (parts is None or parts > _MAX_INDEX_PARTS):
                self.table.create_index("vector", config=HnswSq(distance_type="cosine"), replace=True)
        return counts + Counter(repeated=seen.repeats)

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Delete the documents with these ids, in one step. Returns the ids that were in the store."""
        from lancedb.expr import col

        stored = list(self._hashes([replace_surrogates(name) for name in ids]))
        if stored:
            with database_errors(self.uri):
                self.table.delete(col("id").isin(stored))
        return stored

    def _hashes(self, ids: Sequence[str]) -> dict[str, str]:
        """Id -> hash of the contents, of the documents that are in the store."""
        from lancedb.expr import col

        with database_errors(self.uri):
            condition = col("id").isin(ids or [""]) & (col("passage") == 0)
            rows = self.table.search().where(condition).select(["id", "hash"]).to_arrow()
        return dict(zip(rows["id"].to_pylist(), rows["hash"].to_pylist(), strict=True))

    def _replace(self, documents: Sequence[Document], encoder: DualEncoder) -> int:
        """Replace all passages of these documents, in one step; returns how many they have now."""
        from lancedb.expr import col

        full = [document for document in documents if not document.empty]
        split = passages(encoder.tokenizer, [(d.title, d.text) for d in full], encoder.window)
        rows = [
            {**d.metadata, "id": d.id, "hash": d.hash, "title": d.title, "text": p.text}
            | {"passage": number, "start": p.start, "end": p.end, "read": p.read}
            for d, parts in zip(full, split, strict=True)
            for number, p in enumerate(parts)
        ]
        vectors = encoder.encode_documents([row["read"] for row in rows]) if rows else ()
        filled = [{**row, "vector": vector} for row, vector in zip(rows, vectors, strict=True)]
        with database_errors(self.uri):
            merge = self.table.merge_insert(["id", "passage"])
            merge = merge.when_matched_update_all().when_not_matched_insert_all()
            merge = merge.when_not_matched_by_source_delete(col("id").isin([d.id for d in documents]))
            merge.execute(pa.Table.from_pylist(filled, schema=self.table.schema))
        return len(rows)


@contextmanager
def database_errors(uri: str) -> Iterator[None]:
    """Turns LanceDB's errors into a StoreError."""
    try:
        yield
    except (RuntimeError, OSError, ValueError) as error:
        what = f"cannot be read or written: {str(error).partition(', /')[0][:300]}"
        fix = "If the disk is full, free some space and start again. If the store is a copy, copy it again."
        if "commit conflict" in what:
            fix = "Another process was writing to it. When it has ended, run the command again."
        raise StoreError(uri, what, fix) from error


def _full_text(texts: Sequence[str]) -> Any:
    """An index for BM25 of texts like these.

    Of words, where most letters are Latin or of a script without blanks, which ICU's dictionaries divide;
    stemmed as English, which is nearly nothing to other languages. Of 2- and 3-grams in other scripts, such
    as Korean, Arabic and Hebrew, where particles are written together with their words. Without a list of
    stop words: those of English are words of other languages.
    """
    from lancedb.index import FTS

    if share(texts, f"^{LATIN}{UNSPACED}") > 0.5:
        return FTS(
            base_tokenizer="ngram",
            ngram_min_length=2,
            ngram_max_length=3,
            stem=False,
            remove_stop_words=False,
        )
    return FTS(base_tokenizer="icu/split", max_token_length=None, remove_stop_words=False)


def _schema(encoder: DualEncoder) -> pa.Schema:
    types = dict.fromkeys(("id", "text", "title", "hash"), pa.string())
    types |= dict.fromkeys(("passage", "start", "end"), pa.int32())
    types["vector"] = pa.list_(pa.float32(), encoder.size)
    return pa.schema(types, metadata={NOTE: json.dumps({"format": FORMAT, "model": encoder.files}).encode()})


def _made_with(uri: str, table: Any) -> ModelFiles:
    """The model that a table names. Raises DataError."""
    with database_errors(uri):
        note = (table.schema.metadata or {}).get(NOTE)
    what = "has no record of its model, or is of another version of bertkit"
    fix = "Index the documents into a new folder."
    with translated((KeyError, TypeError, ValueError), DataError, uri, what, fix):
        content = json.loads(note or b"")
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}")
        return ModelFiles(*content["model"])
