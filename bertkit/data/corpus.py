"""Corpora: documents that are streamed into memory-mapped Arrow files, once, and never held in memory.

The cache has a folder for each split of a source, under the sha256 of the files and the data section, with a
folder for each split that it became: the texts, 18 bytes per document (hash and origin), and the findings.
"""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, starmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.cache import cache_root, cached_folder, file_digest
from bertkit.data.origin import Origin, locations
from bertkit.data.problems import Problems, WrongType
from bertkit.data.python_rows import RowsFolder
from bertkit.data.schema import Finding, cell, given_name, in_train_too, note, warn
from bertkit.data.sources import Part
from bertkit.data.splits import SPLITS
from bertkit.data.table import Loaded
from bertkit.data.values import folded, is_blank
from bertkit.errors import DataError, translated
from bertkit.files import read_json, write_json
from bertkit.sections import DataSpec
from bertkit.text import counted

Hashes = NDArray[np.uint64]
logger = logging.getLogger(__name__)
DOCUMENTS = "documents.arrow"  # in a folder of the split, in that of the corpus
FACTS = "facts.json"  # beside it: fingerprint and findings
RULES = 3  # version of the rules of reading and holding out; part of the cache key
CHARACTERS = 1 << 20  # of documents that are written at a time


def read_corpus(
    parts: Mapping[str, Sequence[Part]], spec: DataSpec, held_out: Mapping[str, float]
) -> tuple[dict[str, Loaded], list[Finding]]:
    """The documents of each split, memory-mapped: some 30 bytes of memory per document; and the findings.

    held_out: split -> its share of train, by a hash of the text, so that equal documents stay together.
    Documents without text are left out and counted. `data.limit` takes the first documents of each split's
    source.
    Raises DataError: a source without documents, values that are not text, with their locations.
    """
    from datasets import Dataset
    from datasets.table import MemoryMappedTable

    for part in chain.from_iterable(parts.values()):
        if not part.fingerprint and not Path(part.name).is_file():
            raise DataError(
                part.name,
                "holds judged pairs, not documents",
                "name a file of documents, such as its corpus.jsonl",
            )
    loaded = dict[str, Loaded]()
    hashes = dict[str, Hashes]()
    findings = dict[str, list[Finding]]()
    for source, parts_of_source in parts.items():
        folder = _cached(parts_of_source, spec, source, held_out if source == "train" else {})
        prefixes = [part.prefix for part in parts_of_source]
        for split in SPLITS:
            of_split = folder / split
            if of_split.is_dir():
                facts = read_json(of_split / FACTS)
                table = MemoryMappedTable.from_file(str(of_split / DOCUMENTS))
                file = array("H", _column(of_split, "file").tobytes())
                number = array("q", _column(of_split, "number").tobytes())
                fingerprint = facts["fingerprint"]
                rows = Dataset(table, fingerprint=fingerprint[:32])
                loaded[split] = Loaded(rows, Origin(prefixes, file, number), fingerprint)
                hashes[split] = _column(of_split, "hashes")
                findings[split] = list(starmap(Finding, facts["findings"]))
    notes = [finding for split in SPLITS for finding in findings.get(split, [])]
    for split in [split for split in hashes if split != "train" and "train" in hashes]:
        repeated = np.flatnonzero(np.isin(hashes[split], hashes["train"]))
        if len(repeated):
            origin = loaded[split].origin
            notes.append(
                in_train_too(split, len(repeated), len(origin), "document", origin[int(repeated[0])])
            )
    return loaded, notes


def _cached(parts: Sequence[Part], spec: DataSpec, split: str, held_out: Mapping[str, float]) -> Path:
    """The folder with the documents of these parts; they are read unless an earlier load has done so.

    It is in the cache, or goes with rows that were given from Python.
    """
    root = Path(spec.folder) if isinstance(spec.folder, RowsFolder) else cache_root()
    files = [[part.name, part.fingerprint or file_digest(Path(part.name))] for part in parts]
    key = [RULES, split, {**held_out}, files, spec.model_dump(mode="json", exclude={"source", "folder"})]

    def write(folder: Path) -> None:
        logger.info("reading the corpus of %s once, into %s", split, root)
        _read(parts, spec, split, held_out, folder)

    fix = "make room, or name another folder in BERTKIT_CACHE"
    with translated(OSError, DataError, root, "the corpus cannot be cached here", fix):
        return cached_folder({"corpus": key}, write, root=root)[0]


def _read(
    parts: Sequence[Part], spec: DataSpec, split: str, held_out: Mapping[str, float], folder: Path
) -> None:
    limit = spec.limit or {}
    limits: Mapping[Any, int] = {split: limit} if isinstance(limit, int) else limit
    prefixes = [part.prefix for part in parts]
    empty = Origin(prefixes)
    with ExitStack() as stack:
        writers = {name: _Writer(folder / name, prefixes, stack) for name in (split, *held_out)}
        for count, (file, number, text) in enumerate(_texts(parts, empty)):
            if count == limits.get(split):
                writers[split].findings.append(
                    note(f"{split}: limited to the first {counted(count, 'document')}")
                )
                break
            digest = hashlib.blake2b(folded(text).encode(), digest_size=8).digest()
            target = _target(digest, spec.seed, held_out) or split
            writer = writers[target]
            if target == split or len(writer.origin) != limits.get(target):
                writer.add(text, digest, file, number)
            elif not writer.findings:
                held = counted(limits[target], "document")
                writer.findings.append(note(f"{target}: limited to the first {held}; others are left out"))
        writers[split].findings += chain.from_iterable(part.findings for part in parts)
        if empty:
            where = locations(empty, range(len(empty)))
            be = "is" if len(empty) == 1 else "are"
            left_out = f"{split}: {counted(len(empty), 'document')} without text {be} left out: {where}"
            writers[split].findings.append(warn(left_out))
        sizes = [len(writer.origin) for writer in writers.values()]
        if held_out and 0 in sizes:
            shares = " and ".join(map(str, held_out.values()))
            raise DataError(
                " and ".join(f"data.{name}" for name in held_out),
                f"{shares} of {sum(sizes)} documents cannot be held out",
                "write other shares, add documents, or name a file of each split",
            )
        if not any(sizes):
            raise DataError(parts[0].name, "holds no documents with text", "Is the right column mapped?")
        for name, writer in writers.items():
            writer.finish(name)


def _target(digest: bytes, seed: int, held_out: Mapping[str, float]) -> str | None:
    """The split that a document is held out for, by a hash of its text for each split; or None."""
    left = 1.0
    for split, share in held_out.items():
        key = digest + (str(seed) if split == "validation" else f"{seed} {split}").encode()
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())
        if number < share / left * 2**64:  # of the documents that the splits before it have left
            return split
        left -= share
    return None


def _texts(parts: Sequence[Part], empty: Origin) -> Iterator[tuple[int, int, str]]:
    """(part, row number, text) of each document that has text; the origins of all others are added to
    `empty`.
    """
    problems = Problems()
    for index, part in enumerate(parts):
        name = given_name("text", part.mapping)
        for number, row in part.rows:
            text = cell(row, part.mapping["text"])
            if is_blank(text):
                empty.add(index, number)
            elif not isinstance(text, str):
                problems.add_error(f"{part.prefix}{number}", WrongType(text, "text"), f"`{name}` ")
            elif not problems:
                yield index, number, text
    problems.raise_if_any()


class _Writer:
    """Writes the documents of one split into a folder."""

    def __init__(self, folder: Path, prefixes: Sequence[str], stack: ExitStack) -> None:
        import pyarrow as pa

        folder.mkdir(parents=True)
        self.folder = folder
        self.origin = Origin(prefixes)
        self.findings = list[Finding]()
        self._hashes = array("Q")
        self._texts = list[str]()
        self._size = self._characters = 0
        self._encode = json.JSONEncoder(ensure_ascii=False).encode
        self._sha256 = hashlib.sha256(self._encode(["text"]).encode())  # as `table.fingerprint` computes it
        file = stack.enter_context(pa.OSFile(str(folder / DOCUMENTS), "wb"))
        self._stream = stack.enter_context(pa.ipc.new_stream(file, pa.schema({"text": pa.string()})))

    def add(self, text: str, digest: bytes, file: int, number: int) -> None:
        if self._size >= CHARACTERS:
            self._flush()
        self._texts.append(text)
        self._size += len(text)
        self._sha256.update(b"\n" + self._encode((text,)).encode())
        self._hashes.append(int.from_bytes(digest))
        self.origin.add(file, number)

    def finish(self, split: str) -> None:
        self._flush()
        hashes = np.frombuffer(self._hashes, dtype=np.uint64)
        findings = [note(f"{split}: {counted(len(hashes), 'document')}, {self._characters:,} characters")]
        order = np.argsort(hashes, kind="stable")
        repeated = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        findings += self.findings
        if len(repeated):
            first = repeated[order[repeated + 1].argmin()]
            pair = f"{self.origin[int(order[first + 1])]} and {self.origin[int(order[first])]}"
            what = f"{split}: {counted(len(repeated), 'document', 'repeat')} an earlier one; e.g. {pair}"
            findings.append(warn(what))
        for name, values in (("hashes", hashes), ("file", self.origin.file), ("number", self.origin.number)):
            np.save(self.folder / f"{name}.npy", values)
        facts = {"fingerprint": self._sha256.hexdigest(), "findings": findings}
        write_json(self.folder / FACTS, facts)

    def _flush(self) -> None:
        import pyarrow as pa

        self._stream.write_batch(pa.record_batch({"text": self._texts}))
        self._characters += self._size
        self._texts = []
        self._size = 0


def _column(folder: Path, name: str) -> Any:
    return np.load(folder / f"{name}.npy", mmap_mode="r")
