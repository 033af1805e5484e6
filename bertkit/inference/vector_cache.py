"""Vectors kept on disk under the model, its options and the text: a store per model and options.

Its segments are folders that are written aside, renamed and never changed: any number of processes may read and add
at once, without locks, and a process that is killed leaves nothing incomplete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from bertkit.cache import cache_root, sha256_of_json
from bertkit.errors import Problem, UserError
from bertkit.files import read_json, write_json

Vectors = np.ndarray[Any, np.dtype[np.float32]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Digests = np.ndarray[Any, np.dtype[np.bytes_]]

CHUNK = 4096  # texts encoded before their vectors are stored: what a killed process can lose
_FAN = 16  # segments of similar size that are merged into one


class Store(NamedTuple):
    """The vectors of one model with one set of options."""

    name: str  # of the model, when the store was created
    key: dict[str, Any]
    texts: int
    bytes: int
    used: datetime
    folder: Path


def cached(
    texts: Sequence[str],
    encode: Callable[[list[str]], Vectors],
    *,
    name: str,
    key: Mapping[str, Any],
    root: Path | None = None,
) -> Vectors:
    """The vectors of the texts, float32 `(texts, size)`; only texts that are not stored are encoded, each once.

    name: the model's name in lists. key: all that determines a vector besides its text, as JSON; see `model_key`.
    encode: texts -> `(texts, size)`; called with at most CHUNK texts, whose vectors are stored after each call.
    Where the cache cannot be read or written (a full disk), vectors are returned all the same, with one warning.
    """
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return np.asarray(encode([]), dtype=np.float32)
    store, usable = VectorCache(root or cache_root(), name, key), True
    known, vectors = np.zeros(len(distinct), dtype=bool), None
    try:
        known, vectors = store.lookup(distinct)
    except OSError as error:
        usable = _unusable(store.folder, error)
    missing = np.flatnonzero(~known)
    for start in range(0, len(missing), CHUNK):
        part = missing[start : start + CHUNK]
        chosen = [distinct[index] for index in part]
        new = np.asarray(encode(chosen), dtype=np.float32)
        if vectors is None:
            vectors = np.empty((len(distinct), new.shape[1]), dtype=np.float32)
        vectors[part] = new
        try:
            if usable:
                store.add(chosen, new)
        except OSError as error:
            usable = _unusable(store.folder, error)
    assert vectors is not None
    if len(distinct) == len(texts):
        return vectors
    index_of = {text: index for index, text in enumerate(distinct)}
    return vectors[[index_of[text] for text in texts]]


def _unusable(folder: Path, error: OSError) -> bool:
    what = f"vectors cannot be stored in {folder} ({error.strerror or error}); they are computed without the cache."
    warnings.warn(f"{what} Free some space, or name another folder in BERTKIT_CACHE.", stacklevel=3)
    return False


class _Segment(NamedTuple):
    folder: Path
    digests: Digests  # (texts,), sorted
    vectors: Vectors  # (texts, size), in the order of the digests


class VectorCache:
    """The store of one model and one set of options: a dictionary from texts to vectors that only grows."""

    def __init__(self, root: Path, name: str, key: Mapping[str, Any]) -> None:
        self.name, self.key = name, dict(key)
        self.folder = root / sha256_of_json(self.key)[:32]

    def lookup(self, texts: Sequence[str]) -> tuple[Flags, Vectors | None]:
        """Which texts are stored, `(texts,)`, and the vectors, `(texts, size)`, 0 for others; None where none is.

        A damaged segment is skipped and removed, with a warning. Raises OSError where nothing can be read.
        """
        wanted, known = _digests(texts), np.zeros(len(texts), dtype=bool)
        vectors: Vectors | None = None
        for segment in _segments(self.folder):
            left = np.flatnonzero(~known)
            rows = np.searchsorted(segment.digests, wanted[left]).clip(max=len(segment.digests) - 1)
            same = segment.digests[rows] == wanted[left]
            if vectors is None:
                vectors = np.zeros((len(texts), segment.vectors.shape[1]), dtype=np.float32)
            vectors[left[same]] = segment.vectors[rows[same]]
            known[left[same]] = True
            if known.all():
                break
        if known.any():
            with suppress(FileNotFoundError):  # another process has just cleared the cache
                os.utime(self.folder / "store.json")
        return known, vectors

    def add(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Store the vectors `(texts, size)` of these texts. Raises OSError, and then stores none of them."""
        card = self.folder / "store.json"
        if not card.exists():
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # vectors reveal much of their texts
            write_json(card, {"name": self.name, "key": self.key})
        digests, first = np.unique(_digests(texts), return_index=True)
        self._write(digests, vectors[first])
        self._merge()

    def _write(self, digests: Digests, vectors: Vectors) -> None:
        aside = self.folder / "segments" / f".{uuid4().hex}"
        aside.mkdir(parents=True)
        try:
            for name, array in (("digests", digests), ("vectors", vectors)):
                with (aside / f"{name}.npy").open("wb") as file:
                    np.save(file, array)
                    file.flush()
                    os.fsync(file.fileno())
            aside.rename(aside.with_name(aside.name.removeprefix(".")))
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _merge(self) -> None:
        """Merge small segments of similar size: every lookup opens all segments."""
        tiers: defaultdict[int, list[_Segment]] = defaultdict(list)
        for segment in _segments(self.folder):
            if len(segment.digests) < CHUNK:
                tiers[(len(segment.digests).bit_length() - 1) // 4].append(segment)
        for tier in tiers.values():
            if len(tier) >= _FAN:
                digests, first = np.unique(np.concatenate([each.digests for each in tier]), return_index=True)
                self._write(digests, np.concatenate([each.vectors for each in tier])[first])
                for each in tier:
                    shutil.rmtree(each.folder, ignore_errors=True)


def _segments(store: Path) -> Iterator[_Segment]:
    for folder in sorted(store.glob("segments/[!.]*")):
        try:
            digests, vectors = (
                np.lib.format.open_memmap(folder / f"{name}.npy", mode="r") for name in ("digests", "vectors")
            )
            if vectors.ndim != 2 or len(digests) != len(vectors):
                raise ValueError(f"{len(digests)} texts, but vectors of shape {vectors.shape}")
            yield _Segment(folder, np.asarray(digests), vectors)
        except FileNotFoundError:
            continue  # another process has just merged it: at worst its texts are encoded once more
        except (ValueError, TokenError) as error:  # TokenError: numpy cannot read the header
            warnings.warn(f"{folder} is damaged ({error}); its texts are encoded again", stacklevel=4)
            shutil.rmtree(folder, ignore_errors=True)


def _digests(texts: Sequence[str]) -> Digests:
    """`(texts,)`, 16 bytes each."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype="S16")


def stores(root: Path | None = None) -> list[Store]:
    """All stores, last used first. Raises UserError where a store.json is damaged; `clear` removes it."""
    listed = []
    for card in (root or cache_root()).glob("*/store.json"):
        content, folder = read_json(card), card.parent
        if not isinstance(content, dict) or not isinstance(content.get("key"), dict):
            what = "is damaged: it does not describe its store"
            raise UserError(Problem(str(card), what, "bertkit cache clear  removes all stores."))
        texts = sum(len(segment.digests) for segment in _segments(folder))
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        used = datetime.fromtimestamp(card.stat().st_mtime, UTC)
        listed.append(Store(str(content.get("name")), content["key"], texts, size, used, folder))
    return sorted(listed, key=lambda store: store.used, reverse=True)


def clear(older_than: timedelta | None = None, root: Path | None = None) -> int:
    """Remove stores, or only those last used longer ago than this. Returns how many."""
    root, count = root or cache_root(), 0
    for card in root.glob("*/store.json"):
        age = datetime.now(UTC) - datetime.fromtimestamp(card.stat().st_mtime, UTC)
        if older_than is None or age > older_than:
            shutil.rmtree(card.parent / "segments", ignore_errors=True)  # first: without its card it would not be found
            shutil.rmtree(card.parent, ignore_errors=True)
            count += 1
    if older_than is None:
        shutil.rmtree(root / "digests", ignore_errors=True)
    return count
