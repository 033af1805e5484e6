"""Vectors of texts by the workers of a Ray cluster, with a model each, for a command that writes one output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from bertkit.errors import Problem, UserError
from bertkit.inference.ray_engine import TRIES, connected, pool
from bertkit.inference.workers import Encode, Encoders
from bertkit.text import first_line

MOST = 256  # texts that a worker gets at a time

logger = logging.getLogger(__name__)


class TextWorker:
    """In a process of its own: encodes lists of texts, one after the other."""

    def __init__(self, open_model: Callable[[], Encode]) -> None:
        """open_model: called with the first texts, so that its UserError reaches the caller as it is."""
        self.open_model = cache(open_model)

    def encode(self, texts: Sequence[str]) -> Any:
        """The model's vectors of these texts, `(texts, size)`. Raises what the model raises."""
        return self.open_model()(texts)


@contextmanager
def encoders(
    open_model: Callable[[], Encode], *, address: str | None = None, workers: int | None = None
) -> Iterator[Encoders]:
    """The encoders of a Ray cluster, for the block; the vectors are in the order of the texts.

    open_model: called in each worker, to which it is sent by cloudpickle. address, workers: as of `write_files`, but
    never more than the cluster has cores or GPUs. A worker that is killed is started again, with its texts. Raises
    UserError where there is no cluster; `encode` raises what `open_model` and its function raise, and UserError where a
    worker cannot be started, or dies TRIES times of the same texts.
    """
    with connected(address):
        import ray
        from ray.exceptions import RayError, RayTaskError
        from ray.util import ActorPool

        most, options = pool(None)
        if workers and workers > most:
            logger.warning("the cluster has room for %d of %d workers", most, workers)
        kind = ray.remote(max_restarts=-1, max_task_retries=TRIES - 1, **options)(TextWorker)
        actors = [kind.remote(open_model) for _ in range(min(workers or most, most))]

        def encode(texts: Sequence[str]) -> Any:
            size = min(MOST, max(1, -(-len(texts) // len(actors))))
            parts = [list(texts[start : start + size]) for start in range(0, max(1, len(texts)), size)]
            try:
                return np.concatenate(list(ActorPool(actors).map(lambda actor, part: actor.encode.remote(part), parts)))
            except RayTaskError as error:
                raise error.cause from error
            except RayError as error:
                fix = "If there was too little memory: fewer --workers. The same command continues."
                raise UserError(Problem("--engine ray", f"a worker failed: {first_line(error)}", fix)) from error

        try:
            yield Encoders(encode, len(actors))
        finally:
            for actor in actors:
                ray.kill(actor)
