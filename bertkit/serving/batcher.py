"""Dynamic batching: rows that arrive while the model runs are answered together, up to a budget of tokens."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Self, TypeVar

from bertkit.data.schema import Answer
from bertkit.errors import UserError
from bertkit.serving.limits import RETRY, Limits, Refused
from bertkit.serving.prometheus import Metrics
from bertkit.text import Record

logger = logging.getLogger(__name__)

Rows = Sequence[Record]
Model = Callable[[Rows], list[Answer]]
T = TypeVar("T")


def estimated_tokens(row: Record) -> int:
    """A quarter of the row's bytes in UTF-8, at least 1.

    English has 4 to 5 characters per token, Chinese 3 bytes. The budget limits time only; memory is limited
    by the predictor's own batches.
    """
    parts = [part for value in row.values() for part in (value if isinstance(value, list) else [value])]
    return 1 + sum(len(part.encode("utf-8", "replace")) for part in parts if isinstance(part, str)) // 4


@dataclass(eq=False)
class Job:
    """The rows of one request. key: jobs with the same key may share a call; None: this one is answered
    alone.
    """

    rows: Rows
    key: Hashable | None
    sizes: list[int]  # estimated tokens of each row
    finished: asyncio.Future[None]
    taken: int = 0  # rows already given to the model
    answers: list[Answer] = field(default_factory=list)
    error: Exception | None = None  # in place of the answers

    def finish(self) -> None:
        """Let the request go on once all rows are answered, or one has failed."""
        if not self.finished.done() and (self.error or len(self.answers) == len(self.rows)):
            self.finished.set_result(None)


JobRows = tuple[Job, slice]
"""Consecutive rows of a job that are answered in one call."""


class Batcher:
    """Answers the rows of many requests with one model, in one thread, as a model uses all cores.

    Requests are served in order of arrival; the rows of one may be split over several calls. An async context
    manager: on exit it answers what it has accepted.
    """

    def __init__(self, model: Model, limits: Limits, metrics: Metrics) -> None:
        self._model = model
        self._limits = limits
        self._metrics = metrics
        self._queue: deque[Job] = deque()
        self._arrived = asyncio.Event()
        self._closing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bertkit-model")
        self._runner: asyncio.Task[None] | None = None
        self.failure: str | None = None  # why requests are no longer answered

    async def __aenter__(self) -> Self:
        self._runner = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._closing = True
        self._arrived.set()
        if self._runner is not None:
            await self._runner

    @property
    def alive(self) -> bool:
        """True while requests are answered."""
        return self._runner is not None and not self._runner.done()

    async def answers(self, rows: Rows, key: Hashable | None) -> list[Answer]:
        """One answer per row, in their order.

        Raises UserError as the model does, and Refused: 503 after a timeout in the queue or where nothing is
        answered any more, 504 after a timeout in the model, 500 when the model failed.
        """
        assert self._runner is not None  # within the context
        job = Job(
            rows, key, [estimated_tokens(row) for row in rows], asyncio.get_running_loop().create_future()
        )
        self._queue.append(job)
        self._metrics.waiting.inc()
        self._arrived.set()
        try:
            async with asyncio.timeout(self._limits.timeout):
                await asyncio.wait((job.finished, self._runner), return_when=asyncio.FIRST_COMPLETED)
            if not job.finished.done():
                raise Refused(503, "the model no longer answers", "Unhealthy")
        except TimeoutError:
            limit = f"{self._limits.timeout:g} seconds"
            if job.taken:
                raise Refused(504, f"not answered within {limit}", "Backend") from None
            raise Refused(503, f"still queued after {limit}", "Overloaded", RETRY) from None
        finally:
            job.finished.cancel()  # so that rows are not answered for a client that has left
        if job.error:
            raise job.error
        self._metrics.rows.inc(len(rows))
        self._metrics.truncated.inc(sum(bool(answer.get("truncated")) for answer in job.answers))
        return job.answers

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function in the model's thread: tokenizers are not thread-safe. Raises as `in_time`."""
        return await in_time(self._limits.timeout, self._thread, function)

    async def _run(self) -> None:
        try:
            while True:
                if batch := self._next_batch():
                    await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, batch)
                    for job, _ in batch:
                        job.finish()
                elif self._closing:
                    return
                else:
                    self._arrived.clear()
                    await self._arrived.wait()
        except Exception as error:
            logger.error("the batcher failed\n%s", traceback_without_message(error))
            self.failure = type(error).__name__

    def _next_batch(self) -> list[JobRows]:
        """The next rows that may share a call, up to the budget; always at least one row."""
        batch = list[JobRows]()
        later = list[Job]()
        room = self._limits.max_batch_tokens
        while self._queue and room > 0:
            job = self._queue.popleft()
            if job.finished.done():
                self._metrics.waiting.dec(not job.taken)
                continue
            if batch and (job.key is None or job.key != batch[0][0].key):
                later.append(job)
                continue
            stop = job.taken
            while stop < len(job.rows) and (job.sizes[stop] <= room or not (batch or stop > job.taken)):
                room -= job.sizes[stop]
                stop += 1
            if job.key is None:  # its answers depend on each other
                stop = len(job.rows)
                room = 0
            if stop > job.taken:
                self._metrics.waiting.dec(not job.taken)
                batch.append((job, slice(job.taken, stop)))
                job.taken = stop
            if stop < len(job.rows):
                later.append(job)
                break
        self._queue.extendleft(reversed(later))
        return batch

    def _answer(self, batch: list[JobRows]) -> None:
        """Give each job the answers to its part, or if the call fails, all its answers or its own error."""
        rows = [row for job, part in batch for row in job.rows[part]]
        self._metrics.batch_rows.observe(len(rows))
        self._metrics.batch_tokens.observe(sum(size for job, part in batch for size in job.sizes[part]))
        answers, error = self._call_model(rows)
        if not error:
            rest = iter(answers)
            for job, part in batch:
                job.answers += islice(rest, part.stop - part.start)
        elif len(batch) == 1 and len(rows) == len(batch[0][0].rows):
            batch[0][0].error = error
        # one job at a time, so that a bad request fails alone; all its rows, so that its message counts them
        else:
            for job, _ in batch:
                job.answers, job.error = self._call_model(job.rows)

    def _call_model(self, rows: Rows) -> tuple[list[Answer], Exception | None]:
        def call() -> list[Answer]:
            answers = self._model(rows)
            if len(answers) != len(rows):
                raise RuntimeError(f"{len(answers)} answers to {len(rows)} rows")
            return answers

        started = time.perf_counter()
        try:
            return guarded(call), None
        except (Refused, UserError) as error:  # one failed batch must not stop the server
            return [], error
        finally:
            self._metrics.model_seconds.observe(time.perf_counter() - started)


async def in_time(seconds: float, thread: Executor, function: Callable[[], T], what: str = "the model") -> T:
    """What the function returns in a thread. Raises as `guarded`, and Refused: 504 if it is late."""
    try:
        async with asyncio.timeout(seconds):  # the time that it waits for the thread included
            return await asyncio.get_running_loop().run_in_executor(thread, guarded, function, what)
    except TimeoutError:
        raise Refused(504, f"{what} did not answer in time", "Backend", RETRY) from None


def guarded(function: Callable[[], T], what: str = "the model") -> T:
    """What the function returns. Raises Refused and UserError as it does, and Refused where it fails
    otherwise.
    """
    try:
        return function()
    except (Refused, UserError):
        raise
    except BaseException as error:  # also a panic in Rust, which is not an Exception
        logger.error("%s failed\n%s", what, traceback_without_message(error))
        raise Refused(500, f"{what} failed; see the server's log", "Backend") from None


def traceback_without_message(error: BaseException) -> str:
    """The traceback and type of an exception. Its message is left out: it may quote a user's text."""
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
