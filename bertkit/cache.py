"""Folders cached on disk under a hash of everything that determines their content.

A folder is written under a temporary name, renamed and never changed, so that any number of processes may
read and add at the same time, and a killed one leaves no partial folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from bertkit.files import MODEL_FILES, sha256, write_text
from bertkit.text import Record

_OF_A_MODEL = [*MODEL_FILES, "*.onnx"]
_BIG = 1 << 20  # bytes from which on the sha256 of a file is cached
_SETTLED = 2.0  # seconds after which another change gives a file another time


def cache_root() -> Path:
    """The cache folder: $BERTKIT_CACHE, or ~/.cache/bertkit/vectors."""
    return Path(os.environ.get("BERTKIT_CACHE") or "~/.cache/bertkit/vectors").expanduser()


def model_key(folder: Path) -> dict[str, str]:
    """What determines the outputs of a model folder besides options: its files, and the libraries that run
    it.
    """
    return {"model": fingerprint(folder), "torch": version("torch"), "transformers": version("transformers")}


def fingerprint(folder: Path) -> str:
    """sha256 over the names and contents of a model's weights or graph, configs and tokenizer; its modules
    included.
    """
    modules = [path for path in folder.glob("*/*") if path.suffix != ".onnx"]  # graphs of other programs
    files = sorted(filter(_is_of_a_model, [*folder.glob("*"), *modules]))
    parts = {str(file.relative_to(folder)): file_digest(file) for file in files}
    return sha256_of_json(parts)


def _is_of_a_model(path: Path) -> bool:
    return path.is_file() and any(fnmatch(path.name, pattern) for pattern in _OF_A_MODEL)


def file_digest(file: Path) -> str:
    """sha256 (hex) of a file; that of a big file is cached by its path, size, inode and times."""
    stat = file.stat()
    if stat.st_size < _BIG:
        return sha256(file)
    identity = [os.path.realpath(file), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
    cached = cache_root() / "digests" / sha256_of_json(identity)
    with suppress(OSError, UnicodeDecodeError):
        return cached.read_text(encoding="ascii")
    digest = sha256(file)
    if time.time() - max(stat.st_mtime, stat.st_ctime) > _SETTLED:
        with suppress(OSError):  # it is computed again next time
            write_text(cached, digest)
    return digest


def sha256_of_json(value: Any) -> str:
    """sha256 (hex) of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def cached_folder(
    key: Record, write: Callable[[Path], None], *, root: Path | None = None
) -> tuple[Path, bool]:
    """The folder cached under this key, and whether it existed; if not, `write` fills it.

    key: everything that determines the content, as JSON. Raises OSError if it cannot be written, and what
    `write` raises; then nothing is left.
    """
    folder = (root or cache_root()) / sha256_of_json(key)[:32]
    existed = folder.is_dir()
    if not existed:
        aside = folder.with_name(f".{uuid4().hex}")
        try:
            aside.mkdir(mode=0o700, parents=True)
            write(aside)
            aside.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder, existed
