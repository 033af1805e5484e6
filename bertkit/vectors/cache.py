"""Vectors kept on disk under the model, its options and the text: one SQLite file per model and options.

SQLite's transactions let any number of processes read and add at once, and a killed process leaves nothing
incomplete.
"""

from __future__ import annotations

import hashlib
import sqlite3
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.cache import cache_root, sha256_of_json

Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str]], Vectors]  # texts -> float32 (texts, size)

CHUNK = 4096  # texts encoded before their vectors are stored: what a killed process can lose
_FILE = "vectors.sqlite"
_QUERY = 500  # texts looked up at once
_WAIT = 60.0  # seconds for another process to finish writing
_TABLE = "CREATE TABLE IF NOT EXISTS vectors (text BLOB PRIMARY KEY, checksum INTEGER, vector BLOB)"


def cached(texts: Sequence[str], encode: Callable[[list[str]], Vectors], *, key: dict[str, Any]) -> Vectors:
    """The vectors of the texts, float32 `(texts, size)`; only texts that are not stored are encoded, each
    once.

    key: all that determines a vector besides its text, as JSON; see `model_key`.
    encode: texts -> `(texts, size)`; called with at most CHUNK texts, whose vectors are stored after each
    call. Where the cache cannot be read or written (a full disk), vectors are returned all the same, with one
    warning.
    """
    index_of = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    distinct = list(index_of)
    if not distinct:
        return np.asarray(encode([]), dtype=np.float32)
    store = cache_root() / sha256_of_json(key)[:32]
    usable = True
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in distinct]
    missing = list(range(len(distinct)))
    vectors = np.empty((0, 0), dtype=np.float32)
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
                _add(store, [digests[index] for index in part], new)
        except OSError as error:
            usable = _unusable(store, error)
    return vectors if len(distinct) == len(texts) else vectors[[index_of[text] for text in texts]]


def _checksum(digest: bytes, vector: bytes) -> int:
    return zlib.crc32(vector, zlib.crc32(digest))


def _unusable(store: Path, error: OSError) -> bool:
    what = (
        f"vectors cannot be stored in {store} ({error.strerror or error}); they are computed without "
        "the cache."
    )
    fix = "If this happens again, free some space, or set BERTKIT_CACHE to another folder."
    warnings.warn(f"{what} {fix}", stacklevel=3)
    return False


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """The database, in one transaction."""
    # the default rollback journal: write-ahead logging does not work across the hosts of a network file
    # system
    with closing(sqlite3.connect(file, timeout=_WAIT, isolation_level="IMMEDIATE")) as database, database:
        database.text_factory = bytes  # a damaged column is not decoded
        database.execute("PRAGMA page_size = 16384")  # of a new file: rows of some kB waste less of a page
        database.execute(_TABLE)
        yield database


@contextmanager
def _repaired(file: Path) -> Iterator[None]:
    """Damage ends the block, and the file is removed, with a warning. Raises OSError on other errors of
    SQLite.
    """
    try:
        yield
    except (
        sqlite3.DatabaseError,
        UnicodeDecodeError,
    ) as error:  # the latter: of a message that quotes the damage
        # of OperationalError, only the general code speaks of the content, such as of a table that is not
        # there
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise OSError(str(error)) from error
        warnings.warn(f"{file} is damaged ({error}); its texts are encoded again", stacklevel=4)
        with suppress(OSError):
            file.unlink()


def _lookup(store: Path, digests: Sequence[bytes]) -> tuple[list[int], Vectors]:
    """The texts that are not stored, by their index, and the vectors, `(texts, size)`, or `(0, 0)` where none
    is.
    """
    vectors = np.empty((0, 0), dtype=np.float32)
    missing = {digest: index for index, digest in enumerate(digests)}
    if not (store / _FILE).is_file():
        return list(missing.values()), vectors
    with _repaired(store / _FILE), _opened(store / _FILE) as database:
        for start in range(0, len(digests), _QUERY):
            part = digests[start : start + _QUERY]
            marks = ", ".join("?" * len(part))
            query = f"SELECT text, checksum, vector FROM vectors WHERE text IN ({marks})"
            for digest, checksum, vector in database.execute(query, part):
                if not isinstance(vector, bytes) or checksum != _checksum(digest, vector):
                    raise sqlite3.DatabaseError("the checksum of a vector differs")
                if not vectors.size:
                    vectors = np.empty((len(digests), len(vector) // 4), dtype=np.float32)
                vectors[missing.pop(digest)] = np.frombuffer(vector, dtype="<f4")
    return list(missing.values()), vectors


def _add(store: Path, digests: Sequence[bytes], vectors: Vectors) -> None:
    """Store the vectors `(texts, size)` of these texts. Raises OSError, and then stores none of them."""
    store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # vectors reveal much of their texts
    store.mkdir(exist_ok=True)
    blobs = [vector.astype("<f4").tobytes() for vector in vectors]
    rows = [(digest, _checksum(digest, blob), blob) for digest, blob in zip(digests, blobs, strict=True)]
    with _repaired(store / _FILE), _opened(store / _FILE) as database:
        database.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?, ?)", rows)
