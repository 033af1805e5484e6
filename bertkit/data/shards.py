"""Contiguous parts of the rows of a file, for the jobs of an array, which know nothing of each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bertkit.errors import DataError, Problem, UserError
from bertkit.text import counted


@dataclass(frozen=True)
class Shard:
    """One of `count` parts, by its number from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str | None) -> Shard | None:
        """The shard that `--shard i/n` names; None without it. Raises UserError."""
        if text is None:
            return None
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
        made = cls(*map(int, match.groups())) if match else cls(0, 0)
        if not 1 <= made.number <= made.count:
            what = "not a part: i/n is expected, with i from 1 to n"
            raise UserError(Problem(f"--shard {text}", what, "For example, --shard 1/4 to --shard 4/4."))
        return made

    def rows(self, file: str | Path, rows: int, chunk: int = 1) -> range:
        """The rows of this part of a file, from 0: whole chunks, about as many in each part.

        rows: how many the file has. chunk: rows that are answered together. Raises DataError for a part without rows.
        """
        chunks = -(-rows // chunk)
        if chunks < self.count:
            what = f"{file} has {counted(rows, 'row')}"
            what += f" in {counted(chunks, 'chunk')} of up to {chunk:,}, which are not divided" if chunk > 1 else ""
            fix = f"Use at most {counted(chunks, 'shard')}."
            raise DataError(Problem(f"--shard {self.number}/{self.count}", what, fix))
        first, end = (chunks * part // self.count * chunk for part in (self.number - 1, self.number))
        return range(first, min(end, rows))
