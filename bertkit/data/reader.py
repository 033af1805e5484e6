"""What reads a format of files: one value, also of another package, which announces it as an entry point."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from bertkit.data.decoding import Lines, text_lines
from bertkit.data.problems import Problems
from bertkit.data.table import NumberedRows
from bertkit.errors import DataError, translated
from bertkit.sections import DataSpec

COMPRESSIONS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
GROUP = "bertkit.readers"  # of entry points: format -> module:READER


@dataclass(frozen=True)
class OpenFile:
    """A file whose rows are read. stream: its bytes, decompressed. spec: how the recipe's `data:` says it is
    written.

    problems: collects what is wrong with rows: `file.problems.add(line, what, fix)`, with the number of the
    line, or a location as text. After the first problem no more rows are used, but the rest of the file is
    checked too.
    """

    path: Path
    stream: IO[bytes]
    spec: DataSpec
    problems: Problems

    def lines(self) -> Lines:
        """Its lines as (number from 1, text with its line end), decoded as `data.encoding` says."""
        return text_lines(self.stream, self.spec.encoding, self.problems)

    def beside(self, suffix: str) -> str:
        """The text of the file of this name with another suffix, such as txt, plain or compressed, decoded
        likewise.

        Line ends are kept. Raises DataError where it does not exist, or is not in this encoding.
        """
        return read_text(packed(uncompressed(self.path).with_suffix(f".{suffix}")), self.spec)


class Reader(NamedTuple):
    """A format of files. Another package announces one as an entry point of the group `bertkit.readers`.

    rows: yields (number from 1, {column: value}) of each row. suffixes: of files that have the format,
    without the dot; in `data.format` it has the name of the entry point. unit: what the numbers count, in
    messages. columns: `any`: a row may have columns that the first lacks; `fixed`: all have the same;
    `header`: `data.header` can name them, too.
    beside: suffixes of files that go with one of these, and are not read as files of a split.

    >>> def pipes(file: OpenFile) -> Iterator[tuple[int, dict[str, Any]]]:
    ...     for number, line in file.lines():
    ...         label, bar, text = line.rstrip().partition("|")
    ...         if not bar:
    ...             file.problems.add(number, "no |", "write LABEL|TEXT")
    ...         yield number, {"text": text, "label": label}
    >>> READER = Reader("pipes", pipes, ["pipes"])
    """

    name: str
    rows: Callable[[OpenFile], NumberedRows]
    suffixes: Sequence[str] = ()
    unit: Literal["line", "row"] = "line"
    columns: Literal["any", "fixed", "header"] = "any"
    beside: Sequence[str] = ()

    def prefix(self, name: str) -> str:
        """What is before the numbers of a file's rows in messages: `train.csv:` of lines, `x.json, row ` of
        rows.
        """
        return f"{name}:" if self.unit == "line" else f"{name}, row "


def by_lines(
    rows: Callable[[Lines, DataSpec, Problems], NumberedRows],
) -> Callable[[OpenFile], NumberedRows]:
    """The `rows` of a reader, of a function of lines."""
    return lambda file: rows(file.lines(), file.spec, file.problems)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, and for the block DataErrors in place of the errors of reading it."""
    where = str(path)
    fix = "copy or download the file again"
    damage = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
    with (
        translated(OSError, DataError, where, "cannot be read"),
        translated(damage, DataError, where, "the archive is damaged or incomplete", fix),
        COMPRESSIONS.get(path.suffix, open)(path, "rb") as stream,
    ):
        yield stream


def read_text(path: Path, spec: DataSpec) -> str:
    """The text of a file, decoded as `data.encoding` says, with its line ends."""
    problems = Problems(str(path))
    with opened(path) as stream:
        text = "".join(line for _, line in text_lines(stream, spec.encoding, problems))
    problems.raise_if_any()
    return text


def uncompressed(path: Path) -> Path:
    """The name without that of a compression: a.csv of a.csv.gz."""
    return path.with_suffix("") if path.suffix in COMPRESSIONS else path


def packed(path: Path) -> Path:
    """The file of this name, plain or compressed; this name where there is none."""
    files = [path, *(Path(f"{path}{end}") for end in COMPRESSIONS)]
    return next((file for file in files if file.is_file()), path)
