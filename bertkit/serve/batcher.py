"""Dynamic batching: requests wait while the model answers; then they go together, up to a budget of tokens."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from bertkit.data.schema import Answer
from bertkit.errors import UserError
from bertkit.serve.limits import Limits, Refused
from bertkit.serve.meters import Meters

logger = logging.getLogger(__name__)

Rows = Sequence[Mapping[str, Any]]
Model = Callable[[Rows], list[Answer]]
T = TypeVar("T")


def tokens(row: Mapping[str, Any]) -> int:
    """About how many word pieces a row has: a quarter of its bytes in UTF-8, at least one.

    English has 4 to 5 characters a piece, Chinese 3 bytes a character and piece. It costs nothing, and the budget
    that it is held against is one of time; memory is bounded by the predictor's own batches.
    """
    parts = [part for value in row.values() for part in (value if isinstance(value, list) else [value])]
    return 1 + sum(len(part.encode("utf-8", "replace")) for part in parts if isinstance(part, str)) // 4


@dataclass(eq=False)
class Job:
    """The rows of one request. key: rows of jobs with the same key may share a call; None: with nobody."""

    rows: Rows
    key: Hashable | None
    done: asyncio.Future[
        list[Answer] | Exception
    ]  # a value: of an exception that nobody fetches, asyncio tells the log
    sizes: list[int]
    taken: int = 0  # rows that were given to the model
    answers: list[Answer] = field(default_factory=list)


class Piece(NamedTuple):
    """Rows of a job that are answered in one call."""

    job: Job
    rows: Rows
    tokens: int


class Batcher:
    """Answers rows of many requests with one model, which only its one thread calls.

    Requests are taken in the order in which they came; the rows of one may be spread over several calls. The
    predictor sorts the rows of a call by length. Used as `async with`; on exit it finishes what it has.
    """

    def __init__(self, model: Model, limits: Limits, meters: Meters) -> None:
        self._model, self._limits, self._meters = model, limits, meters
        self._waiting: deque[Job] = deque()
        self._arrived = asyncio.Event()
        self._closing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bertkit-model")
        self._runner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._runner = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._closing = True
        self._arrived.set()
        if self._runner is not None:
            await self._runner
        self._thread.shutdown()

    @property
    def alive(self) -> bool:
        """Is anybody there who answers?"""
        return self._runner is not None and not self._runner.done()

    async def answers(self, rows: Rows, key: Hashable | None) -> list[Answer]:
        """One answer per row, in their order.

        Raises UserError as the model does, and Refused: 503 when its turn did not come in time, 504 when it took
        too long, 500 when the model failed.
        """
        if not rows:
            return []
        job = Job(rows, key, asyncio.get_running_loop().create_future(), [tokens(row) for row in rows])
        self._waiting.append(job)
        self._meters.waiting.inc()
        self._arrived.set()
        try:
            async with asyncio.timeout(self._limits.timeout):
                found = await job.done
        except TimeoutError:
            waited = f"{self._limits.timeout:g} seconds"
            if job.taken:
                raise Refused(504, f"not answered within {waited}", "Backend") from None
            raise Refused(503, f"its turn did not come within {waited}", "Overloaded", retry_after=1) from None
        finally:
            job.done.cancel()  # what nobody waits for any more is not answered
        if isinstance(found, Exception):
            raise found
        self._meters.rows.inc(len(found))
        self._meters.truncated.inc(sum(bool(answer.get("truncated")) for answer in found))
        return found

    async def call(self, function: Callable[[], T]) -> T:
        """Run this on the model's thread, between its calls: tokenizers do not bear two threads."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _run(self) -> None:
        while True:
            pieces = self._take()
            if pieces:
                outcomes = await self.call(partial(self._work, pieces))
                for piece, outcome in zip(pieces, outcomes, strict=True):
                    _deliver(piece, outcome)
            elif self._closing:
                return
            else:
                self._arrived.clear()
                await self._arrived.wait()

    def _take(self) -> list[Piece]:
        """The rows that are next and may share a call, up to the budget; the first of them always."""
        pieces, later, room = list[Piece](), list[Job](), self._limits.max_batch_tokens
        while self._waiting and room > 0:
            job = self._waiting.popleft()
            if job.done.done():
                self._meters.waiting.dec(not job.taken)
                continue
            if pieces and (job.key is None or job.key != pieces[0].job.key):
                later.append(job)
                continue
            stop = job.taken
            while stop < len(job.rows) and (job.sizes[stop] <= room or not (pieces or stop > job.taken)):
                room -= job.sizes[stop]
                stop += 1
            if job.key is None:  # its answers depend on each other
                stop, room = len(job.rows), 0
            if stop > job.taken:
                self._meters.waiting.dec(not job.taken)
                pieces.append(Piece(job, job.rows[job.taken : stop], sum(job.sizes[job.taken : stop])))
                job.taken = stop
            if stop < len(job.rows):
                later.append(job)
                break
        self._waiting.extendleft(reversed(later))
        return pieces

    def _work(self, pieces: list[Piece]) -> list[list[Answer] | Exception]:
        """On the model's thread: the answers of each piece; where the call fails, all of a job's, or its failure."""
        rows = [row for piece in pieces for row in piece.rows]
        self._meters.batch_rows.observe(len(rows))
        self._meters.batch_tokens.observe(sum(piece.tokens for piece in pieces))
        found = self._tried(rows)
        if isinstance(found, list):
            answers = iter(found)
            return [[next(answers) for _ in piece.rows] for piece in pieces]
        if len(pieces) == 1 and len(rows) == len(pieces[0].job.rows):
            return [found]
        # One by one, so that a bad request fails alone; and whole, so that its message counts its own rows.
        return [self._tried(piece.job.rows) for piece in pieces]

    def _tried(self, rows: Rows) -> list[Answer] | Exception:
        started = time.perf_counter()
        try:
            answers = self._model(rows)
            if len(answers) != len(rows):
                raise RuntimeError(f"{len(answers)} answers to {len(rows)} rows")
        except UserError as error:
            return error
        except Exception as error:  # whatever happens to one batch, the server goes on
            logger.error("the model failed\n%s", failure(error))
            return Refused(500, "the model failed; the server's log has more", "Backend")
        finally:
            self._meters.model_seconds.observe(time.perf_counter() - started)
        return answers


def _deliver(piece: Piece, outcome: list[Answer] | Exception) -> None:
    job = piece.job
    if job.done.done():  # nobody waits for it any more
        return
    if isinstance(outcome, Exception):
        job.done.set_result(outcome)
        return
    job.answers = [*job.answers, *outcome] if len(outcome) == len(piece.rows) < len(job.rows) else outcome
    if len(job.answers) == len(job.rows):
        job.done.set_result(job.answers)


def failure(error: BaseException) -> str:
    """Where an exception came from, and its type. Not its message, which may hold a user's text."""
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
