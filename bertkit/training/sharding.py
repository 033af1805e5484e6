"""Answers by several processes: each runs a part of the batches, and all get what came of all of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.numpy import load, save
from torch import distributed

from bertkit.errors import Problem, UserError
from bertkit.models.encoder import quiet_logger

if TYPE_CHECKING:
    from bertkit.encoding.padding import Arrays
    from bertkit.inference.runner import Mapper


DONE, FAILED = -1, -2  # what a process tells in place of its number of batches
EXPECTED = (UserError, OSError, ModuleNotFoundError)  # what the command line says without a traceback


class RemoteError(UserError):
    """What another process could not do; every process is told."""


@contextmanager
def distributed_inference() -> Iterator[Mapper]:
    """`sharded_map`, for a command that torchrun started several times: every process runs this block.

    Process 0 speaks for all: what the others print is dropped, and an error of any process ends the block in
    each. It is raised in process 0; the others exit with 2, or with 1 and a traceback where it is a bug of theirs.
    """
    try:
        distributed.init_process_group("gloo")
    except (ValueError, distributed.DistError) as error:  # WORLD_SIZE without the rest; a port that is taken
        fix = "Start several processes with torchrun, or unset WORLD_SIZE."
        raise UserError(Problem("WORLD_SIZE", str(error).strip().splitlines()[0], fix)) from error
    first = distributed.get_rank() == 0
    # torchrun ends the others where one is gone; what is written aside is then removed.
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with ExitStack() as stack:
            if not first:
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                for silence in (redirect_stdout(nowhere), redirect_stderr(nowhere), quiet_logger("bertkit")):
                    stack.enter_context(silence)
            yield from _to_the_end()
    except Exception as error:
        if first:
            raise
        if isinstance(error, EXPECTED):
            code = 2 if _problems(error) else 0
        else:
            code = 1
            traceback.print_exception(error)
        with suppress(RuntimeError):  # torchrun ends all when one ends: not before process 0 has said why
            distributed.barrier()
        raise SystemExit(code) from error
    finally:
        signal.signal(signal.SIGTERM, before)
    distributed.destroy_process_group()


def _to_the_end() -> Iterator[Mapper]:
    """`sharded_map`, and after the block the word that it went well here, or why not."""
    try:
        yield sharded_map
        _exchanged(b" ", DONE)
    except RemoteError:
        raise
    except Exception as error:
        told = json.dumps(_problems(error)).encode()
        with suppress(RemoteError):
            _exchanged(told, FAILED)
        raise


def _problems(error: Exception) -> Sequence[Problem]:
    """What process 0 says of an error of another process; nothing where the reader of the output went away."""
    if isinstance(error, UserError):
        return error.problems
    if isinstance(error, BrokenPipeError):
        return ()
    if isinstance(error, OSError):
        return (Problem(str(error.filename or "writing"), str(error.strerror or error)),)
    return (Problem(f"process {distributed.get_rank()}", f"{type(error).__name__}: {error}"),)


def sharded_map(run: Callable[[Any], Arrays], batches: Sequence[Any]) -> list[Arrays]:
    """`run` of each batch, in the batches' order, as `map` gives it; every process must call it with the same batches.

    Process r of n runs the batches r, r + n, …: they are sorted by length, so that all have about the same to do.
    Raises RemoteError where another process failed, or had other batches.
    """
    rank, world = distributed.get_rank(), distributed.get_world_size()
    everyone = _gathered([run(batch) for batch in batches[rank::world]], len(batches))
    return [everyone[number % world][number // world] for number in range(len(batches))]


def _gathered(mine: Sequence[Arrays], batches: int) -> list[list[Arrays]]:
    """The arrays of every process, by its rank. They travel as safetensors' bytes: nothing is unpickled."""
    # safetensors writes the memory of an array as it lies there, and calls it contiguous.
    named = {f"{n}/{name}": np.ascontiguousarray(values) for n, own in enumerate(mine) for name, values in own.items()}
    return [_unpacked(content) for content in _exchanged(save(named), batches)]


def _exchanged(content: bytes, batches: int) -> list[bytes]:
    """The bytes of every process, by its rank. Raises RemoteError where one failed, is gone, or has other batches."""
    device = torch.device("cuda") if distributed.get_backend() == "nccl" else torch.device("cpu")
    head = torch.tensor([len(content), batches], device=device)
    heads = [torch.empty_like(head) for _ in range(distributed.get_world_size())]
    _all_gather(heads, head)
    sizes, counts = zip(*(each.tolist() for each in heads), strict=True)
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    contents = [torch.empty_like(padded) for _ in sizes]
    _all_gather(contents, padded)
    found = [each[:size].cpu().numpy().tobytes() for each, size in zip(contents, sizes, strict=True)]
    if FAILED in counts:
        raise RemoteError(Problem(*each) for each in json.loads(found[counts.index(FAILED)]))
    if len(set(counts)) > 1:
        what, fix = "the processes do not read the same rows", "Data and model must be the same on every machine."
        raise RemoteError(Problem("", what, fix))
    return found


def _all_gather(into: list[torch.Tensor], own: torch.Tensor) -> None:
    try:
        distributed.all_gather(into, own)
    except RuntimeError as error:
        what = f"another process is gone ({str(error).strip().splitlines()[0]})"
        raise RemoteError(
            Problem("", what, "What stands above may say why; it may have been out of memory.")
        ) from error


def _unpacked(content: bytes) -> list[Arrays]:
    found: dict[int, Arrays] = {}
    for name, values in load(content).items():
        number, _, own = name.partition("/")
        found.setdefault(int(number), {})[own] = values
    return [found[number] for number in sorted(found)]
