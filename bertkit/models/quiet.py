"""Log levels of packages, and progress bars of transformers, for the length of a block."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_logger(package: str) -> Iterator[None]:
    """Within the block, the loggers of this package log errors only."""
    of_package = logging.getLogger(package)
    before = of_package.level
    of_package.setLevel(logging.ERROR)
    try:
        yield
    finally:
        of_package.setLevel(before)


@contextmanager
def no_bars() -> Iterator[None]:
    """Within the block, transformers shows no progress bars for reading and writing weights."""
    from transformers.utils.logging import EmptyTqdm, set_tqdm_hook

    before = set_tqdm_hook(lambda _, args, options: EmptyTqdm(*args, **options))  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        set_tqdm_hook(before)
