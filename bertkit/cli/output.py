"""What every command prints with: texts of data, models and files must not control the terminal."""

from __future__ import annotations

import logging
from typing import TextIO

from bertkit.text import printable


def say(*values: object, end: str = "\n", file: TextIO | None = None) -> None:
    """Print to stdout or `file`, with control characters escaped."""
    print(printable(" ".join(map(str, values))), end=end, file=file)


class LogFormatter(logging.Formatter):
    """A log record as its message, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
