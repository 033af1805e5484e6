"""Corpora: documents that are streamed into memory-mapped Arrow files, once, and never held in memory.

What is kept is in the cache, under the sha256 of the files and the data section.
A folder has one folder per split: the texts, 18 bytes per document (hash and place), and what was found.
"""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.cache import cache_root, cached_folder, file_digest
from bertkit.data.columns import choose_columns
from bertkit.data.sources import Part, open_source
from bertkit.data.splits import SPLITS
from bertkit.data.table import Data, Origin, Problems, rows_named
from bertkit.errors import DataError, Problem
from bertkit.files import read_json, write_json
from bertkit.text import counted, part_of, short_repr

if TYPE_CHECKING:
    from datasets import Dataset

    from bertkit.data.schema import Finding, Schema
    from bertkit.sections import DataSpec

    Hashes = np.ndarray[Any, np.dtype[np.uint64]]

logger = logging.getLogger(__name__)

RULES = 1  # of reading and holding out: what was kept under others is not taken for this
CHARACTERS = 1 << 20  # of documents that are written at a time


@dataclass(frozen=True)
class _Documents:
    rows: Dataset
    hashes: Hashes  # (documents,)
    origin: Origin
    fingerprint: str
    findings: list[tuple[str, str]]  # level, what


def load_corpus(spec: DataSpec, schema: Schema, splits: Collection[str] | None) -> Data:
    """The documents of a recipe's `data:` section, memory-mapped; memory is some 30 bytes a document.

    Documents without text are left out and counted. `data.validation` holds out by a hash of the text, so equal
    documents stay together. `data.limit` takes the first so many documents of each split's source.
    Raises DataError: a source or columns that will not do, values that are not text, with their places.
    """
    wanted = splits is None or bool({"train", "validation"} & {*splits})
    share = spec.validation if wanted else None
    opened = splits if splits is None or share is None else {*splits, "train"} - {"validation"}
    parts = open_source(spec, opened, {spec.columns.get("text", "text")})
    if splits is None and "train" not in parts:
        raise DataError(Problem(str(spec.source), f"no train split; there is: {', '.join(parts)}"))
    names = _column_names(parts, spec, schema)
    found: dict[str, _Documents] = {}
    for split, own in parts.items():
        folder = _kept(own, names, spec, split, share if split == "train" else None)
        for each in SPLITS:
            if (folder / each).is_dir():
                found[each] = _open(folder / each, [part.prefix for part in own])
    findings = [finding for own in parts.values() for part in own for finding in part.findings]
    findings += [_finding(*each) for split in SPLITS if split in found for each in found[split].findings]
    findings += _shared(found)
    found = {split: found[split] for split in SPLITS if split in found and (splits is None or split in splits)}
    return Data(
        rows={split: documents.rows for split, documents in found.items()},
        columns={"text": schema.columns["text"]},
        target="text",
        class_names=[],
        fingerprints={split: documents.fingerprint for split, documents in found.items()},
        findings=findings,
        origins={split: documents.origin for split, documents in found.items()},
        corpus=True,
    )


def _column_names(parts: Mapping[str, Sequence[Part]], spec: DataSpec, schema: Schema) -> dict[str, str]:
    """Name of a part -> its column of documents."""
    names, problems = dict[str, str](), list[Problem]()
    for part in (part for own in parts.values() for part in own):
        try:
            chosen = choose_columns(
                part.columns, spec, schema.columns, inputs=[["text"]], targets=[], where=part.name, needs_target=False
            )
        except DataError as error:
            problems += [problem for problem in error.problems if problem not in problems]
            continue
        names[part.name] = chosen["text"]
        if not part.fingerprint and not Path(part.name).is_file():
            what = "holds judged pairs, not documents"
            problems.append(Problem(part.name, what, "name a file of documents, such as its corpus.jsonl"))
    if problems:
        raise DataError(problems)
    return names


def _kept(parts: Sequence[Part], names: Mapping[str, str], spec: DataSpec, split: str, share: float | None) -> Path:
    """The folder with the documents of these parts; they are read where no earlier load has done so."""
    root = cache_root()
    files = [[part.name, part.fingerprint or file_digest(Path(part.name), root)] for part in parts]
    key = [RULES, split, share, files, spec.model_dump(mode="json", exclude={"source"})]

    def write(folder: Path) -> None:
        logger.info("reading the corpus of %s once, into %s", split, root)
        _read(parts, names, spec, split, share, folder)

    try:
        return cached_folder({"corpus": key}, f"documents: {', '.join(Path(part.name).name for part in parts)}", write)[
            0
        ]
    except OSError as error:
        what = f"the corpus can not be kept here: {error.strerror or error}"
        fix = "make room, or name another folder in BERTKIT_CACHE"
        raise DataError(Problem(str(root), what, fix)) from error


def _read(
    parts: Sequence[Part], names: Mapping[str, str], spec: DataSpec, split: str, share: float | None, folder: Path
) -> None:
    given = spec.limit or {}
    limits: Mapping[Any, int] = {split: given} if isinstance(given, int) else given
    prefixes = [part.prefix for part in parts]
    empty = Origin(prefixes)
    with ExitStack() as stack:
        writer = stack.enter_context(_Writer(folder / split, prefixes))
        held = stack.enter_context(_Writer(folder / "validation", prefixes)) if share is not None else None
        for count, (file, number, text) in enumerate(_texts(parts, names, empty)):
            if count == limits.get(split):
                writer.say("note", f"{split}: limited to the first {count:,} documents")
                break
            digest = hashlib.blake2b(text.strip().casefold().encode(), digest_size=8).digest()
            if held is None or not _held_out(digest, share or 0, spec.seed):
                writer.add(text, digest, file, number)
            elif len(held.origin) != limits.get("validation"):
                held.add(text, digest, file, number)
        if empty:
            where, be = rows_named(empty, range(len(empty))), "is" if len(empty) == 1 else "are"
            writer.say("warn", f"{split}: {counted(len(empty), 'document')} without text {be} left out: {where}")
        if held is not None and not (len(writer.origin) and len(held.origin)):
            what = f"{share} of {len(writer.origin) + len(held.origin)} documents can not be held out"
            raise DataError(Problem("data.validation", what, "add documents, or name a validation file"))
        if not len(writer.origin):
            raise DataError(Problem(parts[0].name, "holds no documents with text"))
        writer.finish(split)
        if held is not None:
            held.finish("validation")


def _texts(parts: Sequence[Part], names: Mapping[str, str], empty: Origin) -> Iterator[tuple[int, int, str]]:
    """(part, place in it, text) of each document that has any; those that have none are added to `empty`."""
    problems = Problems()
    for index, part in enumerate(parts):
        for number, row in part.rows:
            text = row.get(names[part.name])
            if text is None or (isinstance(text, str) and not text.strip()):
                empty.file.append(index)
                empty.number.append(number)
            elif not isinstance(text, str):
                problems.add(f"{part.prefix}{number}", f"`text` holds {short_repr(text)}, where text is expected")
            elif not problems:
                yield index, number, text
    problems.raise_if_any()


def _held_out(digest: bytes, share: float, seed: int) -> bool:
    drawn = hashlib.blake2b(digest + str(seed).encode(), digest_size=8).digest()
    return int.from_bytes(drawn) < share * 2**64


class _Writer:
    """The documents of one split on their way to a folder."""

    def __init__(self, folder: Path, prefixes: Sequence[str]) -> None:
        self.folder, self.origin = folder, Origin(list(prefixes))
        self._hashes = array("Q")
        self._texts: list[str] = []
        self._size = self._characters = 0
        self._encode = json.JSONEncoder(ensure_ascii=False).encode
        self._sha256 = hashlib.sha256(self._encode(["text"]).encode())  # as `loading.fingerprint` has it
        self._findings: list[tuple[str, str]] = []

    def __enter__(self) -> _Writer:
        import pyarrow as pa

        self.folder.mkdir(parents=True)
        schema = pa.schema({"text": pa.string()})
        self._file = pa.OSFile(str(self.folder / "documents.arrow"), "wb")
        self._stream = pa.ipc.new_stream(self._file, schema)
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()
        self._file.close()

    def add(self, text: str, digest: bytes, file: int, number: int) -> None:
        self._texts.append(text)
        self._size += len(text)
        self._sha256.update(b"\n" + self._encode((text,)).encode())
        self._hashes.append(int.from_bytes(digest))
        self.origin.file.append(file)
        self.origin.number.append(number)
        if self._size >= CHARACTERS:
            self._flush()

    def say(self, level: str, what: str) -> None:
        self._findings.append((level, what))

    def finish(self, split: str) -> None:
        self._flush()
        hashes = np.frombuffer(self._hashes, dtype=np.uint64)
        count = f"{split}: {counted(len(hashes), 'document')}, {self._characters:,} characters"
        self._findings.insert(0, ("note", count))
        order = np.argsort(hashes, kind="stable")
        again = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        if len(again):
            first = again[order[again + 1].argmin()]
            pair = f"{self.origin[int(order[first + 1])]} and {self.origin[int(order[first])]}"
            self.say("warn", f"{split}: {counted(len(again), 'document', 'repeat')} an earlier one; e.g. {pair}")
        for name, values in (("hashes", hashes), ("file", self.origin.file), ("number", self.origin.number)):
            np.save(self.folder / f"{name}.npy", values)
        facts = {"fingerprint": self._sha256.hexdigest(), "findings": self._findings}
        write_json(self.folder / "facts.json", facts)

    def _flush(self) -> None:
        import pyarrow as pa

        self._stream.write_batch(pa.record_batch({"text": self._texts}))
        self._characters += self._size
        self._texts, self._size = [], 0


def _open(folder: Path, prefixes: Sequence[str]) -> _Documents:
    from datasets import Dataset
    from datasets.table import MemoryMappedTable

    facts = read_json(folder / "facts.json")
    table = MemoryMappedTable.from_file(str(folder / "documents.arrow"))
    hashes, file, number = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("hashes", "file", "number"))
    origin = Origin(list(prefixes))
    origin.file.frombytes(file.tobytes())
    origin.number.frombytes(number.tobytes())
    rows = Dataset(table, fingerprint=facts["fingerprint"][:32])
    return _Documents(rows, hashes, origin, facts["fingerprint"], facts["findings"])


def _shared(found: Mapping[str, _Documents]) -> Iterator[Finding]:
    """Documents of validation and test that are in train too."""
    for split, documents in found.items():
        if split == "train" or "train" not in found:
            continue
        there = np.flatnonzero(np.isin(documents.hashes, found["train"].hashes))
        if len(there):
            part = part_of(len(there), len(documents.rows), "document")
            what = f"{split}: {part} in train too; e.g. {documents.origin[int(there[0])]}"
            yield _finding("warn", what, "scores will look better than they are")


def _finding(level: Any, what: str, fix: str = "") -> Finding:
    from bertkit.data.schema import Finding

    return Finding(level, what, fix)
