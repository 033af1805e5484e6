"""A vector store: documents as passages with their vectors in one LanceDB table, in a folder or an object store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from bertkit.data.table import FirstSeen
from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, ModelError, Problem
from bertkit.retrieval.database import ARROW_TYPES, connect, database_errors, resolve_uri
from bertkit.retrieval.documents import RESERVED, Document, Kind, batches, infer_column_types, read_documents
from bertkit.retrieval.passages import Passage, Window, passages
from bertkit.text import short_repr

Vectors: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"
Encode: TypeAlias = Callable[[Sequence[str]], Vectors]
"""Texts -> float32 (texts, size), of unit length; it prepends the model's prefix."""

ANN_FROM = 50_000  # minimum number of passages for an approximate index; fewer are compared one by one
TABLE, NOTE = "passages", b"bertkit"
FORMAT = 1
ENCODE_BATCH = 4096  # passages: a document may have any number of them
_MAX_INDEX_PARTS = 8  # parts of an approximate index are searched one by one; beyond this it is rebuilt
_VERSION_LIFETIME = timedelta(hours=1)  # so that readers can finish with an older version


@dataclass(frozen=True)
class ModelIdentity:
    """What determines the vector of a text. `name` and `revision` only locate the model."""

    name: str
    revision: str | None
    fingerprint: str  # of the model's files
    size: int  # of a vector
    max_length: int  # tokens of a passage
    stride: int  # maximum overlap of neighbouring passages, in tokens
    query_prefix: str = ""
    document_prefix: str = ""

    @property
    def window(self) -> Window:
        """How documents are split."""
        return Window(self.max_length, self.stride, self.document_prefix)


class NoStore(DataError):
    """There is no store at this URI."""


class Indexed(NamedTuple):
    """Numbers of documents of one call, and of the passages written for them."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    repeated: int = 0  # rows equal to an earlier one
    empty: int = 0  # without text: skipped
    passages: int = 0


@dataclass(frozen=True)
class Store:
    """Passages of documents and their vectors by one model. Any number of processes may read while one writes."""

    uri: str
    identity: ModelIdentity
    table: Any  # lancedb.table.Table

    @classmethod
    def create(cls, uri: str | Path, identity: ModelIdentity) -> Store:
        """A new, empty store. Raises DataError for an existing store and for a folder with other files."""
        uri, local = resolve_uri(uri)
        if local and not _free(local):
            what = "is already a store" if (local / f"{TABLE}.lance").is_dir() else "exists, and is not a store"
            raise DataError(Problem(uri, what, "Name a new folder."))
        types = dict.fromkeys(("id", "text", "title", "hash"), pa.string())
        types |= dict.fromkeys(("passage", "start", "end"), pa.int32())
        types["vector"] = pa.list_(pa.float32(), identity.size)
        note = json.dumps({"format": FORMAT, "model": asdict(identity)})
        fields = pa.schema(types, metadata={NOTE: note.encode()})
        with database_errors(uri):
            store = cls(uri, identity, connect(uri).create_table(TABLE, schema=fields))
            store._add_indices()
        return store

    @classmethod
    def open(cls, uri: str | Path, identity: ModelIdentity | None = None) -> Store:
        """The store at a folder or URI. Raises NoStore, and ModelError unless it was made with the model `identity`."""
        uri, local = resolve_uri(uri)
        if local and not (local / f"{TABLE}.lance").is_dir():
            raise _absent(uri)
        with database_errors(uri):
            try:
                table = connect(uri).open_table(TABLE)
            except ValueError as error:
                raise _absent(uri) from error
        store = cls(uri, _identity(uri, table), table)
        if identity:
            store.require(identity)
        return store

    @classmethod
    def open_or_create(cls, uri: str | Path, identity: ModelIdentity) -> Store:
        """The store of this model, created if there is none. Raises as `open` and `create`."""
        try:
            return cls.open(uri, identity)
        except NoStore:
            return cls.create(uri, identity)

    def require(self, identity: ModelIdentity) -> None:
        """Raises ModelError unless vectors of this model can be compared with the store's."""
        ours, theirs = asdict(self.identity), asdict(identity)
        differ = [name for name in ours if name not in ("name", "revision") and ours[name] != theirs[name]]
        if not differ:
            return
        model = self.identity.name + (f" at revision {self.identity.revision}" if self.identity.revision else "")
        if "fingerprint" in differ:
            what = f"was made with {model}; {identity.name} is another model (its files differ)"
        else:
            options = ", ".join(f"{name} {ours[name]!r}, not {theirs[name]!r}" for name in differ)
            what = f"was made with {model} and other options: {options}"
        raise ModelError(Problem(self.uri, what, "Use that model and its options, or index into a new folder."))

    def require_same_model(self) -> None:
        """Raises ModelError where the store has been replaced by one of another model since it was opened."""
        replace(self, identity=_identity(self.uri, self.table)).require(self.identity)

    @property
    def columns(self) -> dict[str, Kind]:
        """Column of the metadata, without `title` -> the type of its values. Raises DataError on an unknown type."""
        kinds = {arrow: kind for kind, arrow in ARROW_TYPES.items()}
        fields = [field for field in self.table.schema if field.name not in RESERVED]
        if unknown := [field for field in fields if field.type not in kinds]:
            what = f"the column `{unknown[0].name}` has the type {unknown[0].type}, which bertkit does not write"
            raise DataError(Problem(self.uri, what, "Index the documents into a new folder."))
        return {field.name: kinds[field.type] for field in fields}

    @property
    def approximate(self) -> bool:
        """True if there is an approximate index of the vectors."""
        return any(index.columns == ["vector"] for index in self.table.list_indices())

    def __len__(self) -> int:
        """Number of passages."""
        with database_errors(self.uri):
            return int(self.table.count_rows())

    def index(
        self,
        documents: Iterable[Mapping[str, Any]],
        encode: Encode,
        tokenizer: PreTrainedTokenizerBase,
        ann_from: int = ANN_FROM,
        locations: Iterable[str] | None = None,
    ) -> Indexed:
        """Add documents, and replace those with a known id and other contents; unchanged ones are not encoded again.

        documents: `{"id" or "_id", "text", optional "title", further columns of text, numbers, true or false,
        or of lists of one of these}`.
        Each batch is written in one step with all its passages, so that a killed call loses at most one batch: repeat
        it with the same documents. ann_from: minimum number of passages for an approximate index.
        locations: one per document, for messages; None: their numbers.
        Raises DataError on bad rows and a full disk, ModelError on bad vectors, ValueError where locations are fewer
        or more than the documents; earlier batches are in the store.
        """
        seen, columns, counts = FirstSeen(), self.columns, Counter[str]()
        numbered = ((f"row {n}", document) for n, document in enumerate(documents, 1))
        rows = numbered if locations is None else zip(locations, documents, strict=True)
        for batch in batches(read_documents(rows, seen)):
            new = infer_column_types(batch, columns)
            if new:
                with database_errors(self.uri):
                    self.table.add_columns(pa.schema({name: ARROW_TYPES[kind] for name, kind in new.items()}))
                columns |= new
            known = self.hashes([document.id for document in batch])
            changed = [d for d in batch if known.get(d.id) != d.hash and (d.id in known or not d.empty)]
            full = [d for d in changed if not d.empty]
            split = passages(tokenizer, [(d.id, d.title, d.text) for d in full], self.identity.window)
            if changed:
                self._replace(changed, [p for each in split for p in each], encode)
            counts.update("replaced" if d.id in known else "added" for d in full)
            counts["unchanged"] += sum(known.get(d.id) == d.hash for d in batch)
            counts["empty"] += sum(d.empty for d in batch)
            counts["passages"] += sum(map(len, split))
        self._refresh(ann_from)
        return Indexed(**counts, repeated=seen.repeats)

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Delete the documents with these ids, in one step. Returns the ids that were in the store."""
        from lancedb.expr import col

        known = list(self.hashes([replace_surrogates(name) for name in ids]))
        if known:
            with database_errors(self.uri):
                self.table.delete(col("id").isin(known))
        return known

    def hashes(self, ids: Sequence[str]) -> dict[str, str]:
        """Id -> hash of the contents, for the documents that are in the store."""
        from lancedb.expr import col

        if not ids:
            return {}
        with database_errors(self.uri):
            query = self.table.search().where(col("id").isin(ids) & (col("passage") == 0)).select(["id", "hash"])
            rows = query.to_arrow()
        return dict(zip(rows["id"].to_pylist(), rows["hash"].to_pylist(), strict=True))

    def _replace(self, documents: Sequence[Document], split: Sequence[Passage], encode: Encode) -> None:
        """Replace all passages of these documents by these, in one step."""
        from lancedb.expr import col

        vectors, schema = self._encode(split, encode), self.table.schema
        of_documents = {d.id: {**d.metadata, "id": d.id, "hash": d.hash, "title": d.title} for d in documents}
        rows = [
            {"passage": p.number, "start": p.start, "end": p.end, "text": p.text, **of_documents[p.document]}
            for p in split
        ]
        values: dict[str, Any] = {name: [row.get(name) for row in rows] for name in schema.names}
        values["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), self.identity.size)
        with database_errors(self.uri):
            merge = self.table.merge_insert(["id", "passage"]).when_matched_update_all().when_not_matched_insert_all()
            merge = merge.when_not_matched_by_source_delete(col("id").isin(list(of_documents)))
            merge.execute(pa.Table.from_pydict(values, schema=schema))

    def _encode(self, split: Sequence[Passage], encode: Encode) -> Vectors:
        """Vectors (passages, size). Raises ModelError where one is 0 or not finite."""
        vectors = np.empty((len(split), self.identity.size), dtype=np.float32)
        for start in range(0, len(split), ENCODE_BATCH):
            part = split[start : start + ENCODE_BATCH]
            new = np.asarray(encode([passage.read for passage in part]), dtype=np.float32)
            if new.shape != (len(part), self.identity.size):
                what = f"gave vectors of shape {new.shape} for {len(part)} texts, not of size {self.identity.size}"
                raise ModelError(Problem(self.identity.name, what, "It is not the model that made this store."))
            bad = np.flatnonzero(~(np.isfinite(new).all(axis=1) & new.any(axis=1)))
            if len(bad):
                what = f"its vector is 0 or not finite for the document {short_repr(part[bad[0]].document)}"
                raise ModelError(Problem(self.identity.name, what, "The model is damaged, or its training diverged."))
            vectors[start : start + len(part)] = new
        return vectors

    def _refresh(self, ann_from: int) -> None:
        """Update the indices, and delete old versions of the table."""
        from lancedb.index import HnswSq

        with database_errors(self.uri):
            self._add_indices()
            self.table.optimize(cleanup_older_than=_VERSION_LIFETIME)
            parts = [self.table.index_stats(i.name) for i in self.table.list_indices() if i.columns == ["vector"]]
            few = self.table.count_rows() < ann_from
            if not few and (not parts or parts[0].num_indices > _MAX_INDEX_PARTS):
                self.table.create_index("vector", config=HnswSq(distance_type="cosine"), replace=True)

    def _add_indices(self) -> None:
        """Indices of ids and of the words of texts and titles; a store whose creation was interrupted may lack them."""
        from lancedb.index import FTS, BTree

        existing = [index.columns for index in self.table.list_indices()]
        for column, config in (("id", BTree()), ("text", FTS()), ("title", FTS())):
            if [column] not in existing:
                self.table.create_index(column, config=config)


def _free(folder: Path) -> bool:
    """True if a store can be created here, including over one whose creation was interrupted."""
    if not folder.is_dir():
        return not folder.exists()
    table = folder / f"{TABLE}.lance"
    others = [entry for entry in folder.iterdir() if entry != table]
    return not others and not any(file for kind in ("_versions", "data") for file in table.glob(f"{kind}/[!.]*"))


def _absent(uri: str) -> NoStore:
    fix = f"Create one: bertkit index MODEL --documents FILE --store {uri}"
    return NoStore(Problem(uri, "is not a store of bertkit", fix))


def _identity(uri: str, table: Any) -> ModelIdentity:
    """The model that a table names. Raises DataError."""
    with database_errors(uri):
        note = (table.schema.metadata or {}).get(NOTE)
    try:
        content = json.loads(note or b"")
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}")
        return ModelIdentity(**content["model"])
    except (ValueError, KeyError, TypeError) as error:
        what = f"does not name its model, or was written by another version of bertkit ({error})"
        raise DataError(Problem(uri, what, "Index the documents into a new folder.")) from error
