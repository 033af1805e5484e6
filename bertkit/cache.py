"""Vectors kept on disk under what decides them: the model's files, the options and the text itself.

A store is a folder per model and options. Its segments are folders that are written aside, renamed and never
changed, so that any number of processes may read and add at once, and a killed one leaves nothing half-read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from bertkit.files import MODEL_FILES, sha256, write_json, write_text

_BIG = 1 << 20  # bytes from which on the sha256 of a model's file is remembered
_SETTLED = 2.0  # seconds after which a file that changes again has another time


def cache_root() -> Path:
    """Where stores are: $BERTKIT_CACHE, or ~/.cache/bertkit/vectors."""
    return Path(os.environ.get("BERTKIT_CACHE") or "~/.cache/bertkit/vectors").expanduser()


def model_key(folder: Path, root: Path | None = None) -> dict[str, str]:
    """What decides the vectors of a model folder besides options: its files, and the libraries that run it."""
    return {"model": fingerprint(folder, root), "torch": version("torch"), "transformers": version("transformers")}


def fingerprint(folder: Path, root: Path | None = None) -> str:
    """sha256 over the names and contents of a model's weights, configs and tokenizer, with those of its modules.

    The sha256 of a big file is remembered under `root` by its path, size, inode and times.
    """
    paths = [*folder.glob("*"), *folder.glob("*/*")]
    files = sorted(p for p in paths if p.is_file() and any(fnmatch(p.name, pattern) for pattern in MODEL_FILES))
    parts = {str(file.relative_to(folder)): file_digest(file, root or cache_root()) for file in files}
    return sha256_of_json(parts)


def file_digest(file: Path, root: Path) -> str:
    """sha256 (hex) of a file; of a big one remembered under `root`, by its path, size, inode and times."""
    stat = file.stat()
    if stat.st_size < _BIG:
        return sha256(file)
    identity = [os.path.realpath(file), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
    memory = root / "digests" / sha256_of_json(identity)
    with suppress(OSError, UnicodeDecodeError):
        return memory.read_text(encoding="ascii")
    digest = sha256(file)
    if time.time() - max(stat.st_mtime, stat.st_ctime) > _SETTLED:
        with suppress(OSError):  # it is computed again next time
            write_text(memory, digest)
    return digest


def sha256_of_json(value: Any) -> str:
    """sha256 (hex) of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def cached_folder(
    key: Mapping[str, Any], name: str, write: Callable[[Path], None], *, root: Path | None = None
) -> tuple[Path, bool]:
    """The folder kept under this key, and whether it was there; if not, `write` fills it aside and it is renamed.

    key: all that decides what it holds, as JSON can write it. name: what lists call it. Like vectors it is listed and
    cleared by its store.json. Raises OSError where it can not be kept, and what `write` raises; then nothing is left.
    """
    folder = (root or cache_root()) / sha256_of_json(key)[:32]
    there = folder.is_dir()
    if not there:
        aside = folder.with_name(f".{uuid4().hex}")
        try:
            aside.mkdir(mode=0o700, parents=True)
            write(aside)
            write_json(aside / "store.json", {"name": name, "key": key})
            aside.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    with suppress(OSError):  # when it was last used
        os.utime(folder / "store.json")
    return folder, there
