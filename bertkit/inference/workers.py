"""The processes that run a command together. Here it is one; `engine.sharding` has several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
Encode = Callable[[Sequence[str]], Any]
T = TypeVar("T")


class Encoders(NamedTuple):
    """A function of texts, which so many processes run together."""

    encode: Encode
    workers: int


class Workers:
    """One process. Several run the same command, each on its own, up to the call of `lead`.

    mapper: applies a function to all batches, and gives its arrays in order; each process runs a part of them.
    """

    def __init__(self, mapper: Mapper = map) -> None:
        self.mapper = mapper

    def each(self, run: Callable[[Any], T], items: Sequence[Any]) -> Iterable[T]:
        """As `mapper`, for a function that gives JSON."""
        return map(run, items)

    def shared(self, encode: Encode) -> Encode:
        """A function of texts: process 0 calls it within `lead`, and then all processes run it."""
        return encode

    def lead(self, run: Callable[[], T]) -> T | None:
        """What `run` returns, in process 0. The others only take part in what is `shared`, and get None."""
        return run()


ALONE = Workers()
