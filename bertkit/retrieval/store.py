"""A vector store: documents as passages with their vectors in one LanceDB table, in a folder or an object store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from bertkit.data.values import replace_surrogates
from bertkit.errors import DataError, ModelError, Problem
from bertkit.retrieval.database import connect, explained, place, schema
from bertkit.retrieval.documents import OWN, Document, Placed, Reader, batches, settle
from bertkit.retrieval.passages import Passage, Window, passages
from bertkit.text import short_repr

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Vectors: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"
Encode: TypeAlias = Callable[[Sequence[str]], Vectors]
"""Texts -> float32 (texts, size), of unit length. It puts the model's prefix before the texts itself."""

ANN_FROM = 50_000  # passages from which on an approximate index is built; fewer are compared one by one
TABLE, NOTE = "passages", b"bertkit"
FORMAT = 1
ENCODED_AT_ONCE = 4096  # passages: a document may be any number of them
_MOST_PARTS = 8  # of an approximate index, each searched by itself; more are built into one
_KEPT = timedelta(hours=1)  # for which readers may go on with an older version


@dataclass(frozen=True)
class ModelIdentity:
    """What decides a passage's vector besides its text. `name` and `revision` say where the model was found."""

    name: str
    revision: str | None
    fingerprint: str  # of the model's files
    size: int  # of a vector
    max_length: int  # word pieces of a passage
    stride: int  # word pieces that neighbouring passages share, at most
    query_prefix: str = ""
    document_prefix: str = ""

    @property
    def window(self) -> Window:
        """How documents are cut."""
        return Window(self.max_length, self.stride, self.document_prefix)


class NoStore(DataError):
    """There is no store at this place."""


class Indexed(NamedTuple):
    """What became of the documents of one call, and the passages written for them."""

    added: int
    replaced: int
    unchanged: int
    repeated: int  # rows that say the same as an earlier one
    empty: int  # without any text: not kept
    passages: int


@dataclass(frozen=True)
class Store:
    """Passages and vectors of the documents of one model. Any number of processes may read while one writes."""

    uri: str
    identity: ModelIdentity
    table: Any  # lancedb.table.Table

    @classmethod
    def create(cls, uri: str | Path, identity: ModelIdentity) -> Store:
        """A new, empty store. Raises DataError where there is one, or a folder with other things."""
        import pyarrow as pa

        uri, local = place(uri)
        if local and not _free(local):
            what = "is a store already" if (local / f"{TABLE}.lance").is_dir() else "is there, and holds other things"
            raise DataError(Problem(uri, what, "Name a new folder."))
        texts = [pa.field(name, pa.string()) for name in ("id", "text", "title", "hash")]
        places = [pa.field(name, pa.int32()) for name in ("passage", "start", "end")]
        vector = pa.field("vector", pa.list_(pa.float32(), identity.size))
        note = json.dumps({"format": FORMAT, "model": asdict(identity)})
        fields = pa.schema([*texts, *places, vector], metadata={NOTE: note.encode()})
        with explained(uri):
            store = cls(uri, identity, connect(uri).create_table(TABLE, schema=fields))
            store._add_indices()
        return store

    @classmethod
    def open(cls, uri: str | Path, identity: ModelIdentity | None = None) -> Store:
        """The store at a folder or URI. Raises DataError where there is none, ModelError if `identity` is not its own.

        identity: the model that is to be used with it.
        """
        uri, local = place(uri)
        if local and not (local / f"{TABLE}.lance").is_dir():
            raise _absent(uri)
        with explained(uri):
            try:
                table = connect(uri).open_table(TABLE)
            except ValueError as error:
                raise _absent(uri) from error
            note = (table.schema.metadata or {}).get(NOTE)
        store = cls(uri, _identity(uri, note), table)
        if identity:
            store.require(identity)
        return store

    @classmethod
    def open_or_create(cls, uri: str | Path, identity: ModelIdentity) -> Store:
        """The store of this model, made where there is none. Raises as `open` and `create`."""
        try:
            return cls.open(uri, identity)
        except NoStore:
            return cls.create(uri, identity)

    def require(self, identity: ModelIdentity) -> None:
        """Raises ModelError unless vectors of this model can be compared with those here."""
        ours, theirs = asdict(self.identity), asdict(identity)
        named = [field for field in ours if field not in ("name", "revision") and ours[field] != theirs[field]]
        if not named:
            return
        made = f"{self.identity.name}" + (f" at revision {self.identity.revision}" if self.identity.revision else "")
        if "fingerprint" in named:
            what = f"was made with {made}; {identity.name} is another model (its files differ)"
        else:
            differ = ", ".join(f"{n} {ours[n]!r}, not {theirs[n]!r}" for n in named)
            what = f"was made by {made} with other options: {differ}"
        raise ModelError(Problem(self.uri, what, "Use that model and its options, or index into a new folder."))

    @property
    def columns(self) -> dict[str, type]:
        """Column of the metadata -> the type of its values, besides `title`."""
        kinds: dict[str, type] = {"bool": bool, "int64": int, "double": float, "string": str}
        return {field.name: kinds[str(field.type)] for field in self.table.schema if field.name not in OWN}

    @property
    def approximate(self) -> bool:
        """Is there an approximate index of the vectors?"""
        return any(index.columns == ["vector"] for index in self.table.list_indices())

    def __len__(self) -> int:
        """Passages."""
        with explained(self.uri):
            return int(self.table.count_rows())

    def index(
        self,
        documents: Iterable[Mapping[str, Any]],
        encode: Encode,
        tokenizer: PreTrainedTokenizerBase,
        ann_from: int = ANN_FROM,
    ) -> Indexed:
        """Add documents, and replace those whose id is here with other contents; equal ones are not encoded again.

        documents: `{"id" or "_id", "text", optional "title", further columns of text, numbers, true or false}`.
        Each batch is kept in one step with all its passages, so that a killed call loses one batch at most: call it
        again with the same documents. ann_from: passages from which on an approximate index is built.
        Raises DataError on bad rows and on a full disk, ModelError on bad vectors; batches before stay.
        """
        return self.index_placed(((f"row {n}", row) for n, row in enumerate(documents, 1)), encode, tokenizer, ann_from)

    def index_placed(
        self, rows: Iterable[Placed], encode: Encode, tokenizer: PreTrainedTokenizerBase, ann_from: int = ANN_FROM
    ) -> Indexed:
        """As `index`, for rows with the place where each stands, which messages name."""
        reader, columns, done = Reader(), self.columns, Indexed(0, 0, 0, 0, 0, 0)
        for batch in batches(reader.read(rows)):
            new = settle(batch, columns)
            if new:
                with explained(self.uri):
                    self.table.add_columns(schema(new))
                columns |= new
            known = self.hashes([document.id for document in batch])
            changed = [d for d in batch if known.get(d.id) != d.hash and (d.id in known or not d.empty)]
            cut = passages(tokenizer, [(d.id, d.title, d.text) for d in changed if not d.empty], self.identity.window)
            written = sum(map(len, cut))
            if changed:
                self._replace(changed, [p for each in cut for p in each], encode)
            fresh = [d.id in known for d in changed if not d.empty]
            unchanged = sum(known.get(d.id) == d.hash for d in batch)
            counts = (fresh.count(False), fresh.count(True), unchanged, 0, sum(d.empty for d in batch), written)
            done = Indexed(*map(sum, zip(done, counts, strict=True)))
        self._refresh(ann_from)
        return done._replace(repeated=reader.repeated)

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Remove the documents of these ids, all in one step. Returns those of the ids that were here."""
        from lancedb.expr import col

        found = list(self.hashes([replace_surrogates(name) for name in ids]))
        if found:
            with explained(self.uri):
                self.table.delete(col("id").isin(found))
        return found

    def hashes(self, ids: Sequence[str]) -> dict[str, str]:
        """Id -> hash of the contents, of those of the documents that are here."""
        from lancedb.expr import col

        if not ids:
            return {}
        with explained(self.uri):
            query = self.table.search().where(col("id").isin(ids) & (col("passage") == 0)).select(["id", "hash"])
            found = query.to_arrow()
        return dict(zip(found["id"].to_pylist(), found["hash"].to_pylist(), strict=True))

    def _replace(self, documents: Sequence[Document], cut: Sequence[Passage], encode: Encode) -> None:
        """Put these passages for all that is here of these documents, in one step."""
        import pyarrow as pa
        from lancedb.expr import col

        by_id = {document.id: document for document in documents}
        vectors = self._encode(cut, encode)
        owners = [by_id[passage.document] for passage in cut]
        values: dict[str, Any] = {name: [d.metadata.get(name) for d in owners] for name in self.columns}
        values |= {"id": [d.id for d in owners], "hash": [d.hash for d in owners], "title": [d.title for d in owners]}
        values |= {name: [getattr(p, name) for p in cut] for name in ("text", "start", "end")}
        values["passage"] = [p.number for p in cut]
        values["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), self.identity.size)
        with explained(self.uri):
            merge = self.table.merge_insert(["id", "passage"]).when_matched_update_all().when_not_matched_insert_all()
            merge = merge.when_not_matched_by_source_delete(col("id").isin(list(by_id)))
            merge.execute(pa.Table.from_pydict(values, schema=self.table.schema))

    def _encode(self, cut: Sequence[Passage], encode: Encode) -> Vectors:
        """Vectors (passages, size). Raises ModelError where one is not finite or 0."""
        vectors = np.empty((len(cut), self.identity.size), dtype=np.float32)
        for start in range(0, len(cut), ENCODED_AT_ONCE):
            part = cut[start : start + ENCODED_AT_ONCE]
            made = np.asarray(encode([passage.read for passage in part]), dtype=np.float32)
            if made.shape != (len(part), self.identity.size):
                what = f"gave vectors of shape {made.shape} for {len(part)} texts, not of size {self.identity.size}"
                raise ModelError(Problem(self.identity.name, what, "It is not the model that this store was made by."))
            bad = np.flatnonzero(~(np.isfinite(made).all(axis=1) & made.any(axis=1)))
            if len(bad):
                what = f"its vector is not finite, or 0, for the document {short_repr(part[bad[0]].document)}"
                raise ModelError(Problem(self.identity.name, what, "The model is damaged, or its training diverged."))
            vectors[start : start + len(part)] = made
        return vectors

    def _refresh(self, ann_from: int) -> None:
        """Bring the indices up to date, and drop versions that nobody reads any more."""
        from lancedb.index import HnswSq

        with explained(self.uri):
            self._add_indices()
            self.table.optimize(cleanup_older_than=_KEPT)
            parts = [self.table.index_stats(i.name) for i in self.table.list_indices() if i.columns == ["vector"]]
            few = self.table.count_rows() < ann_from
            if not few and (not parts or parts[0].num_indices > _MOST_PARTS):
                self.table.create_index("vector", config=HnswSq(distance_type="cosine"), replace=True)

    def _add_indices(self) -> None:
        """Of the ids, and of the words of texts and titles; a store that was cut off when it was made may lack them."""
        from lancedb.index import FTS, BTree

        there = [index.columns for index in self.table.list_indices()]
        for column, config in (("id", BTree()), ("text", FTS()), ("title", FTS())):
            if [column] not in there:
                self.table.create_index(column, config=config)


def _free(folder: Path) -> bool:
    """Can a store be made here? Also where a process was killed before the first version of one stood."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    begun = folder / f"{TABLE}.lance"
    others = [entry for entry in folder.iterdir() if entry != begun]
    return not others and not any(file for kind in ("_versions", "data") for file in begun.glob(f"{kind}/[!.]*"))


def _absent(uri: str) -> NoStore:
    return NoStore(
        Problem(uri, "is not a store of bertkit", f"bertkit index MODEL --documents FILE --store {uri}  makes one.")
    )


def _identity(uri: str, note: bytes | None) -> ModelIdentity:
    try:
        content = json.loads(note or b"")
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}")
        return ModelIdentity(**content["model"])
    except (ValueError, KeyError, TypeError) as error:
        what = f"does not say what model made it, or as another version of bertkit says it ({error})"
        raise DataError(Problem(uri, what, "Index the documents into a new folder.")) from error
