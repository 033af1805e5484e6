"""Vectors kept on disk under the model, its options and the text: a store per model and options.

A store's segments are files that are written aside, renamed and never changed: any number of processes may read and
add at once, without locks, and a process that is killed leaves nothing incomplete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
import zlib
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
from bertkit.files import read_json, write_json, written_aside
from bertkit.text import columns, counted

Vectors = np.ndarray[Any, np.dtype[np.float32]]
Digests = np.ndarray[Any, np.dtype[np.bytes_]]
Sums = np.ndarray[Any, np.dtype[np.uint32]]

CHUNK = 4096  # texts encoded before their vectors are stored: what a killed process can lose
_FAN = 16  # segments of similar size that are merged into one


def cached(texts: Sequence[str], encode: Callable[[list[str]], Vectors], *, name: str, key: dict[str, Any]) -> Vectors:
    """The vectors of the texts, float32 `(texts, size)`; only texts that are not stored are encoded, each once.

    name: the model's name in lists. key: all that determines a vector besides its text, as JSON; see `model_key`.
    encode: texts -> `(texts, size)`; called with at most CHUNK texts, whose vectors are stored after each call.
    Where the cache cannot be read or written (a full disk), vectors are returned all the same, with one warning.
    """
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return np.asarray(encode([]), dtype=np.float32)
    store, digests, usable = cache_root() / sha256_of_json(key)[:32], _digests(distinct), True
    missing, vectors = np.arange(len(distinct)), np.empty((0, 0), dtype=np.float32)
    try:
        missing, vectors = _lookup(store, digests)
    except OSError as error:
        usable = _unusable(store, error)
    for start in range(0, len(missing), CHUNK):
        part = missing[start : start + CHUNK]
        new = np.asarray(encode([distinct[index] for index in part]), dtype=np.float32)
        if not vectors.size:
            vectors = np.empty((len(distinct), new.shape[1]), dtype=np.float32)
        vectors[part] = new
        try:
            if usable:
                _add(store, {"name": name, "key": key}, digests[part], new)
        except OSError as error:
            usable = _unusable(store, error)
    index_of = {text: index for index, text in enumerate(distinct)}
    return vectors if len(distinct) == len(texts) else vectors[[index_of[text] for text in texts]]


def _digests(texts: Sequence[str]) -> Digests:
    """`(texts,)`, 16 bytes each."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype="S16")


def _unusable(store: Path, error: OSError) -> bool:
    what = f"vectors cannot be stored in {store} ({error.strerror or error}); they are computed without the cache."
    warnings.warn(f"{what} Free some space, or name another folder in BERTKIT_CACHE.", stacklevel=3)
    return False


class _Segment(NamedTuple):
    file: Path
    digests: Digests  # (texts,), sorted
    sums: Sums  # (texts,), the checksums of the vectors
    vectors: Vectors  # (texts, size), in the order of the digests, not in memory


def _segments(store: Path) -> Iterator[_Segment]:
    """The intact segments; a damaged one is skipped and removed, with a warning. Raises OSError on unreadable ones."""
    for file in sorted(store.glob("segments/[!.]*.npy")):
        try:
            with file.open("rb") as stream:
                digests, sums = np.lib.format.read_array(stream), np.lib.format.read_array(stream)
                np.lib.format.read_magic(stream)
                shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
                vectors = np.memmap(stream, dtype, "r", stream.tell(), shape)
                rest = os.fstat(stream.fileno()).st_size - vectors.offset - vectors.nbytes
            count = len(digests)
            if not count or sums.shape != (count,) or len(shape) != 2 or shape[0] != count:
                raise ValueError(f"{count} texts, but vectors of shape {shape}")
            types = [np.dtype("S16"), np.dtype(np.uint32), np.dtype(np.float32)]
            if [digests.dtype, sums.dtype, dtype] != types or rest:
                raise ValueError(f"{rest} bytes after arrays of {digests.dtype}, {sums.dtype} and {dtype}")
            yield _Segment(file, digests, sums, vectors)
        except FileNotFoundError:
            continue  # another process has just merged it: at worst its texts are encoded once more
        except (ValueError, SyntaxError, TokenError) as error:  # the last two: numpy cannot read the header
            _remove_damaged(file, error)


def _remove_damaged(file: Path, reason: object) -> None:
    warnings.warn(f"{file} is damaged ({reason}); its texts are encoded again", stacklevel=5)
    with suppress(OSError):
        file.unlink()


def _checksums(vectors: Vectors) -> Sums:
    """CRC-32 of each vector's bytes, `(texts,)`."""
    return np.fromiter((zlib.crc32(vector.tobytes()) for vector in vectors), np.uint32, len(vectors))


def _lookup(store: Path, digests: Digests) -> tuple[np.ndarray, Vectors]:
    """The texts that are not stored, by their index, and the vectors, `(texts, size)`, or `(0, 0)` where none is."""
    missing, vectors = np.arange(len(digests)), np.empty((0, 0), dtype=np.float32)
    for segment in _segments(store):
        rows = np.searchsorted(segment.digests, digests[missing]).clip(max=len(segment.digests) - 1)
        same = segment.digests[rows] == digests[missing]
        if not same.any():
            continue
        found = np.asarray(segment.vectors)[rows[same]]
        if (_checksums(found) != segment.sums[rows[same]]).any():
            _remove_damaged(segment.file, "the checksum of a vector differs")
            continue
        if not vectors.size:
            vectors = np.empty((len(digests), segment.vectors.shape[1]), dtype=np.float32)
        vectors[missing[same]] = found
        missing = missing[~same]
        if not len(missing):
            break
    if len(missing) < len(digests):
        with suppress(FileNotFoundError):  # another process has just cleared the cache
            os.utime(store / "store.json")
    return missing, vectors


def _add(store: Path, card: Mapping[str, Any], digests: Digests, vectors: Vectors) -> None:
    """Store the vectors `(texts, size)` of these texts. Raises OSError, and then stores none of them."""
    if not (store / "store.json").exists():
        store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # vectors reveal much of their texts
        write_json(store / "store.json", card)
    _write(store, digests, _checksums(vectors), vectors)
    if len(digests) >= CHUNK:
        return
    # Every lookup opens all segments: small ones of similar size are merged.
    tiers: defaultdict[int, list[_Segment]] = defaultdict(list)
    for segment in _segments(store):
        if len(segment.digests) < CHUNK:
            tiers[(len(segment.digests).bit_length() - 1) // 4].append(segment)
    for tier in tiers.values():
        if len(tier) >= _FAN:
            _, *columns = zip(*tier, strict=True)
            _write(store, *map(np.concatenate, columns))
            for segment in tier:
                segment.file.unlink(missing_ok=True)


def _write(store: Path, digests: Digests, sums: Sums, vectors: Vectors) -> None:
    digests, first = np.unique(digests, return_index=True)
    with written_aside(store / "segments" / f"{uuid4().hex}.npy") as file:
        for array in (digests, sums[first], vectors[first]):
            np.save(file.buffer, array)


class Store(NamedTuple):
    """The vectors of one model with one set of options."""

    name: str  # of the model, when the store was created
    key: dict[str, Any]
    texts: int
    bytes: int
    used: datetime
    folder: Path


def stores() -> list[Store]:
    """All stores, last used first. Raises UserError where a store.json is damaged; `clear_cache` removes it."""
    listed = []
    for card in cache_root().glob("*/store.json"):
        content, folder = read_json(card), card.parent
        if not isinstance(content, dict) or not isinstance(content.get("key"), dict):
            what = "is damaged: it does not describe its store"
            raise UserError(Problem(str(card), what, "bertkit cache clear  removes all stores."))
        texts = sum(len(segment.digests) for segment in _segments(folder))
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        used = datetime.fromtimestamp(card.stat().st_mtime, UTC)
        listed.append(Store(str(content.get("name")), content["key"], texts, size, used, folder))
    return sorted(listed, key=lambda store: store.used, reverse=True)


def cache_table() -> str:
    """The output of `bertkit cache`: a line for each store, last used first, and the totals."""
    listed = stores()
    if not listed:
        return f"no vectors are stored in {cache_root()}"
    rows = [["model", "layers", "combine", "pool", "max_length", "precision", "texts", "MB", "last used (UTC)"]]
    for store in listed:
        options = [str(store.key.get(name, "–")) for name in rows[0][1:6]]
        used = store.used.strftime("%Y-%m-%d %H:%M")
        rows.append([store.name, *options, f"{store.texts:,}", f"{store.bytes / 1e6:,.1f}", used])
    texts, size = sum(store.texts for store in listed), sum(store.bytes for store in listed)
    return f"{columns(rows)}\n\n{counted(texts, 'vector')}, {size / 1e6:,.1f} MB in {cache_root()}"


def clear_cache(days: float | None = None) -> str:
    """Remove stores, or only those last used longer ago than `days`; returns the output of `bertkit cache clear`.

    Raises UserError on an invalid number of days.
    """
    if days is not None and not 0 <= days <= timedelta.max.days:
        raise UserError(Problem("--days", f"{days:g}, where a number from 0 on is expected"))
    root, count = cache_root(), 0
    for card in root.glob("*/store.json"):
        age = datetime.now(UTC) - datetime.fromtimestamp(card.stat().st_mtime, UTC)
        if days is None or age > timedelta(days=days):
            shutil.rmtree(card.parent / "segments", ignore_errors=True)  # first: without its card it would not be found
            shutil.rmtree(card.parent, ignore_errors=True)
            count += 1
    if days is None:
        shutil.rmtree(root / "digests", ignore_errors=True)
    return f"{counted(count, 'store')} removed from {root}"
