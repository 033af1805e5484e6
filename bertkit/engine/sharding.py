"""Distributed inference: each process runs a part of the batches, and all receive all results."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load, save
from torch import distributed

from bertkit.encoding.padding import Arrays
from bertkit.errors import Problem, UserError
from bertkit.inference.workers import Encode, T, Workers
from bertkit.models.quiet import quiet_logger
from bertkit.text import first_line

DONE, FAILED, CALL = -1, -2, -3  # sent in place of a number of batches
TIMEOUT = timedelta(days=1)  # process 0 may read or write for long; the end of a process is noticed at once


class RemoteError(UserError):
    """An error of another process; it is raised in every process."""


@contextmanager
def distributed_inference() -> Iterator[Workers]:
    """For a command that torchrun started several times: every process runs this block.

    Only process 0 prints. An error of any process ends the block in all of them: it is raised in process 0; the others
    exit with 2, or with 1 and a traceback for an unexpected error.
    """
    try:
        distributed.init_process_group("gloo", timeout=TIMEOUT)
    except (ValueError, distributed.DistError) as error:  # WORLD_SIZE alone; a port in use
        fix = "Start several processes with torchrun, or unset WORLD_SIZE."
        raise UserError(Problem("WORLD_SIZE", first_line(error), fix)) from error
    first = distributed.get_rank() == 0
    # torchrun terminates the others when one ends; temporary files are then removed.
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with ExitStack() as stack:
            if not first:
                null = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                for silence in (redirect_stdout(null), redirect_stderr(null), quiet_logger("bertkit")):
                    stack.enter_context(silence)
            yield Processes()
            _exchange(b" ", DONE)
    except Exception as error:
        if not isinstance(error, RemoteError):
            with suppress(RemoteError):
                _exchange(json.dumps(_problems(error)).encode(), FAILED)
        if first:
            raise
        if isinstance(error, UserError | OSError | ModuleNotFoundError):  # reported without a traceback
            code = 2 if _problems(error) else 0
        else:
            code = 1
            traceback.print_exception(error)
        with suppress(RuntimeError):  # torchrun ends all when one ends: wait until process 0 has reported
            distributed.barrier()
        raise SystemExit(code) from error
    finally:
        signal.signal(signal.SIGTERM, before)
    distributed.destroy_process_group()


def _problems(error: Exception) -> Sequence[Problem]:
    """What process 0 reports of another process's error; nothing where the reader of the output is gone."""
    if isinstance(error, UserError):
        return error.problems
    if isinstance(error, BrokenPipeError):
        return ()
    if isinstance(error, OSError):
        return (Problem(str(error.filename or "writing"), str(error.strerror or error)),)
    return (Problem(f"process {distributed.get_rank()}", f"{type(error).__name__}: {error}"),)


class Processes(Workers):
    """Those that torchrun started. Raises RemoteError where another process failed."""

    def __init__(self) -> None:
        super().__init__(sharded_map)
        self.functions: list[Encode] = []  # in all processes the same, in the same order

    def each(self, run: Callable[[Any], T], items: Sequence[Any]) -> Iterable[T]:
        def packed(item: Any) -> Arrays:
            return {"json": np.frombuffer(json.dumps(run(item)).encode(), dtype=np.uint8)}

        return [json.loads(each["json"].tobytes()) for each in sharded_map(packed, items)]

    def shared(self, encode: Encode) -> Encode:
        number = len(self.functions)
        self.functions.append(encode)

        def everywhere(texts: Sequence[str]) -> Any:
            _exchange(json.dumps([number, list(texts)]).encode(), CALL)
            return encode(texts)

        return everywhere

    def lead(self, run: Callable[[], T]) -> T | None:
        if distributed.get_rank() == 0:
            result = run()
            _exchange(json.dumps(None).encode(), CALL)
            return result
        while call := json.loads(_exchange(b" ", CALL)[0]):
            number, texts = call
            self.functions[number](texts)
        return None


def sharded_map(run: Callable[[Any], Arrays], batches: Sequence[Any]) -> list[Arrays]:
    """`run` of each batch, in the batches' order, as `map` does; every process must call it with the same batches.

    Process r of n runs the batches r, r + n, …: they are sorted by length, so all have about the same work.
    Raises RemoteError where another process failed or had other batches.
    """
    rank, world = distributed.get_rank(), distributed.get_world_size()
    # Exchanged as safetensors, so that nothing is unpickled. `save` needs contiguous arrays, but does not check for it.
    ours = {
        f"{number}/{name}": np.ascontiguousarray(values)
        for number in range(rank, len(batches), world)
        for name, values in run(batches[number]).items()
    }
    results: list[Arrays] = [{} for _ in batches]
    for content in _exchange(save(ours), len(batches)):
        for path, values in load(content).items():
            number, _, name = path.partition("/")
            results[int(number)][name] = values
    return results


def _exchange(content: bytes, batches: int) -> list[bytes]:
    """The bytes of every process, by rank. Raises RemoteError where one failed, is gone, or has other batches."""
    device = torch.device("cuda") if distributed.get_backend() == "nccl" else torch.device("cpu")
    head = torch.tensor([len(content), batches], device=device)
    heads = [torch.empty_like(head) for _ in range(distributed.get_world_size())]
    _all_gather(heads, head)
    sizes, counts = zip(*(each.tolist() for each in heads), strict=True)
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    gathered = [torch.empty_like(padded) for _ in sizes]
    _all_gather(gathered, padded)
    contents = [each[:size].cpu().numpy().tobytes() for each, size in zip(gathered, sizes, strict=True)]
    if FAILED in counts:
        raise RemoteError(Problem(*each) for each in json.loads(contents[counts.index(FAILED)]))
    if len(set(counts)) > 1:
        what, fix = "the processes read different rows", "Data and model must be the same on every machine."
        raise RemoteError(Problem("", what, fix))
    return contents


def _all_gather(into: list[torch.Tensor], values: torch.Tensor) -> None:
    try:
        distributed.all_gather(into, values)
    except RuntimeError as error:
        what = f"another process has ended ({first_line(error)})"
        raise RemoteError(Problem("", what, "See the messages above; it may have run out of memory.")) from error
