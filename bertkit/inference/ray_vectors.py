"""Vectors of texts by the workers of a Ray cluster, with a model each, for a command that writes one output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from bertkit.errors import Problem, UserError
from bertkit.inference.ray_engine import TRIES, connected, pool
from bertkit.inference.workers import Encode

TEXTS = 256  # that a worker gets at a time


class TextWorker:
    """In a process of its own: the vectors of some texts after others."""

    def __init__(self, open_model: Callable[[], Encode]) -> None:
        """open_model: called with the first texts, so that its UserError reaches the caller as it is."""
        self.open_model = cache(open_model)

    def encode(self, texts: Sequence[str]) -> Any:
        return self.open_model()(texts)


@contextmanager
def encoder(
    open_model: Callable[[], Encode], *, address: str | None = None, workers: int | None = None
) -> Iterator[Encode]:
    """A function of texts that the workers of a Ray cluster run, in the block; what it returns is in order.

    open_model: called in each worker, to which it is sent by cloudpickle. address, workers: as of `write_files`. A
    worker that is killed is started again, with the texts it had. Raises UserError where there is no cluster, and
    within the block where workers die of the same texts again and again, or where `open_model` or its encoder does.
    """
    with connected(address):
        import ray
        from ray.exceptions import RayActorError, RayTaskError
        from ray.util import ActorPool

        most, options = pool(None)
        size = min(workers or most, most)  # Ray would wait forever for a core for another
        kind = ray.remote(max_restarts=-1, max_task_retries=TRIES - 1, **options)(TextWorker)
        actors = [kind.remote(open_model) for _ in range(size)]

        def encode(texts: Sequence[str]) -> Any:
            parts = [list(texts[start : start + TEXTS]) for start in range(0, len(texts), TEXTS)]
            try:
                return np.concatenate(list(ActorPool(actors).map(lambda actor, part: actor.encode.remote(part), parts)))
            except RayTaskError as error:
                raise error.cause if isinstance(error.cause, UserError) else error from None
            except RayActorError as error:
                fix = "If there was too little memory: fewer --workers. The same command continues."
                raise UserError(
                    Problem("--engine ray", f"workers died {TRIES} times of the same texts", fix)
                ) from error

        yield encode
