"""Memory that this process has freed: kept for the next step of training, or given back to the system.

glibc's malloc by itself gives back only what lies at the end of its memory. Where tensors have ever new
sizes, as those of batches of texts have, the pieces that fit none of them add up.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGEST = 1 << 30  # bytes that one tensor may take from memory that stays mapped
DEFAULT = 128 << 10  # glibc's own value of both


def give_back() -> None:
    """Give all freed memory back to the system; on systems without glibc nothing."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def memory_kept() -> Iterator[Callable[[], None]]:
    """Within the block, glibc's malloc keeps freed memory: mapping pages again takes a quarter of a small
    step.

    Yields a function to be called every few steps. It gives all freed memory back once the process holds more
    than twice as much as at an earlier call.
    """
    if platform.libc_ver()[0] != "glibc":
        yield lambda: None
        return
    libc = ctypes.CDLL(None)
    least = 0

    def bound() -> None:
        nonlocal least
        held = _held()
        least = min(least, held) or held
        if held > 2 * least:
            give_back()
            least = 0  # the next call sees what the steps need

    libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield bound
    finally:
        libc.mallopt(M_MMAP_THRESHOLD, DEFAULT)
        libc.mallopt(M_TRIM_THRESHOLD, DEFAULT)
        give_back()


def _held() -> int:
    """Pages of memory that this process has; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1])
    except OSError:
        return 0
