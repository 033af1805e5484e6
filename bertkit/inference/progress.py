"""A line in the log now and then, while many rows are read, encoded or answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from bertkit import processes
from bertkit.text import counted

logger = logging.getLogger(__name__)

EVERY = 10.0  # seconds
T = TypeVar("T")


def progress(items: Iterable[T], noun: str, total: int | None = None, size: int = 1) -> Iterator[T]:
    """The items, unchanged; the first process logs every ten seconds how much is done when one is requested.

    total: how many there are, if that is known, for the time that is left.
    size: how many things one item counts for.
    """
    started = reported = time.monotonic()
    for number, item in enumerate(items):
        now = time.monotonic()
        done = number * size
        if done and now - reported >= EVERY and processes.first():
            reported = now
            seconds = now - started
            if total is None:
                logger.info("%s in %.0f s", counted(done, noun), seconds)
            else:
                left = seconds / done * (total - done)
                logger.info(
                    "%s of %s (%.0f%%), %.0f s left",
                    f"{done:,}",
                    counted(total, noun),
                    100 * done / total,
                    left,
                )
        yield item
