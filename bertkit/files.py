"""Files are written under a temporary name and renamed, so that no reader sees a partial file."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from glob import escape
from pathlib import Path
from secrets import token_hex
from typing import Any, TextIO

from bertkit.errors import DataError, ModelError, Problem, translated
from bertkit.text import Json, listed, shell_word

LARGEST_JSON = 64_000_000  # bytes
ABANDONED = 24 * 60 * 60  # seconds
REPLACE = "Restore the file from a copy, or make it again."
# patterns of what is downloaded: no pickles, no code
MODEL_FILES = [
    "*.json",
    "*.safetensors",
    "*.txt",
    "*.model",
]


@contextmanager
def written_aside(path: Path, encoding: str = "utf-8") -> Iterator[TextIO]:
    """A text file that gets its name only when the block ends without an error, in place of what a link
    names.

    It has the mode of the file that it replaces. A device or a FIFO is written into. What killed processes
    left of the same file is removed, once it is a day old. Raises OSError, which names the file.
    """
    if is_special(path):
        with errors_naming(path), path.open("w", encoding=encoding, newline="") as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in path.parent.glob(f".{escape(path.name)}.*.writing"):
        with suppress(OSError):
            if time.time() - abandoned.stat().st_mtime > ABANDONED:
                abandoned.unlink()
    aside = path.with_name(f".{path.name}.{token_hex(4)}.writing")
    try:
        with errors_naming(path):
            with aside.open("w", encoding=encoding, newline="") as file:
                if path.exists():
                    shutil.copymode(path, aside)
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)  # closed before, as Windows requires
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def folder_aside(output: Path) -> Iterator[Path]:
    """An empty folder that gets its name only when the block ends without an error. Raises OSError, which
    names it.
    """
    output = Path(os.path.realpath(output))
    aside = output.with_name(f".{output.name}.{os.getpid()}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with errors_naming(output):
            aside.mkdir(parents=True)
            yield aside
            if output.is_dir():
                output.rmdir()
            aside.replace(output)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def is_taken(path: Path) -> bool:
    """Whether there is something at this path other than an empty folder."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def is_special(path: Path) -> bool:
    """Whether this is neither a regular file nor a folder, but a device, a FIFO or a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def errors_naming(path: Path) -> Iterator[None]:
    """While the block writes `path`: an OSError that names no file, such as that of a full disk, then names
    `path`.
    """
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` in one step."""
    with written_aside(path) as file:
        file.write(text)


def write_lines(path: Path, values: Iterable[Any]) -> None:
    """Write `values` as jsonl to `path` in one step."""
    with written_aside(path) as file:
        file.writelines(json.dumps(value) + "\n" for value in values)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON to `path` in one step. Raises ValueError on NaN and infinity."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, largest: int = LARGEST_JSON) -> Any:
    """The value of a JSON file. Raises ModelError if it is not JSON, or has more than `largest` bytes."""
    if (size := path.stat().st_size) > largest:
        raise ModelError(path, f"expected a few kB of JSON, found {size / 1e6:,.0f} MB", REPLACE)
    with translated(
        (ValueError, RecursionError), ModelError, path, "is damaged: it is not JSON that can be read", REPLACE
    ):
        return json.loads(path.read_text(encoding="utf-8"))


def lines_of(path: Path, *, appended: bool = False) -> Iterator[Json]:
    """The objects of a jsonl file; none where it does not exist. Raises ModelError on a damaged line.

    appended: the file grows by a line at a time; if a full disk or a crash cut the last one short, it is left
    out.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                if appended and next(file, None) is None:
                    return
                raise ModelError(
                    f"{path}:{number}", f"is damaged: not valid JSON ({error})", REPLACE
                ) from error
            yield value


def require_suffix(output: Path, *suffixes: str) -> None:
    """Raises DataError where the name of an output file ends with none of these suffixes."""
    if output.suffix not in suffixes:
        kind = output.suffix or "a file without a suffix"
        raise DataError(output, f"cannot write {kind}", f"Use {' or '.join(suffixes)}.")


def require_no_pipe(path: Path) -> None:
    """Raises DataError where a file that is read twice is a pipe."""
    if is_special(path):
        raise DataError(path, "is a pipe, and would be read twice", "Write the rows to a file first.")


def not_a_run(folder: Path, lacking: str = "results.json") -> Problem:
    """What keeps a folder from being a finished run; where there is none, which runs are beside it."""
    recipe = folder / "recipe.yaml"
    if recipe.is_file():
        resume = f"bertkit train {shell_word(recipe)} --output-dir {shell_word(folder)} --resume"
        return Problem(str(folder), f"training has not finished: no {lacking}", resume)
    if folder.exists():
        return Problem(str(folder), f"is not a run: no {lacking}", "Use a folder that `bertkit train` wrote.")
    names = [file.parent.name for file in folder.parent.glob("*/recipe.yaml")]
    near = get_close_matches(folder.name, names, len(names) or 1, 0)
    runs = f"Runs in {folder.parent}: {listed(near) or 'none'}."
    return Problem(str(folder), f"no such folder (looked from {Path.cwd()})", runs)


def sha256(path: Path) -> str:
    """The file's sha256 (hex), read in chunks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
