"""Answers by several processes: each runs a part of the batches, and all get what came of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.numpy import load, save
from torch import distributed

if TYPE_CHECKING:
    from bertkit.padding import Arrays


def spread(run: Callable[[Any], Arrays], batches: Sequence[Any]) -> list[Arrays]:
    """`run` of each batch, in the batches' order, as `map` gives it; every process must call it with the same batches.

    Process r of n runs the batches r, r + n, …: they are sorted by length, so that all have about the same to do.
    """
    rank, world = distributed.get_rank(), distributed.get_world_size()
    everyone = _gathered([run(batch) for batch in batches[rank::world]])
    return [everyone[number % world][number // world] for number in range(len(batches))]


def _gathered(mine: Sequence[Arrays]) -> list[list[Arrays]]:
    """The arrays of every process, by its rank. They travel as safetensors' bytes: nothing is unpickled."""
    # safetensors writes the memory of an array as it lies there, and calls it contiguous.
    named = {f"{n}/{name}": np.ascontiguousarray(values) for n, own in enumerate(mine) for name, values in own.items()}
    content = torch.frombuffer(bytearray(save(named)), dtype=torch.uint8)
    device = torch.device("cuda") if distributed.get_backend() == "nccl" else torch.device("cpu")
    size = torch.tensor([len(content)], device=device)
    sizes = [torch.empty_like(size) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, size)
    longest = max(int(each) for each in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: len(content)] = content.to(device)
    contents = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(contents, padded)
    return [_unpacked(each[: int(count)].cpu().numpy().tobytes()) for each, count in zip(contents, sizes, strict=True)]


def _unpacked(content: bytes) -> list[Arrays]:
    found: dict[int, Arrays] = {}
    for name, values in load(content).items():
        number, _, own = name.partition("/")
        found.setdefault(int(number), {})[own] = values
    return [found[number] for number in sorted(found)]
