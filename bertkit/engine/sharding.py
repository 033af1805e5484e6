"""Evaluation during training by several processes: each runs a part of the batches, and all receive all
results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load, save
from torch import distributed

from bertkit.encoding.padding import Arrays
from bertkit.errors import UserError, translated
from bertkit.models.heads.losses import all_gathered


def sharded_map(run: Callable[[Any], Arrays], batches: Sequence[Any]) -> list[Arrays]:
    """`run` of each batch, in the batches' order, as `map` does; every process must call it with the same
    batches.

    Process r of n runs the batches r, r + n, …: they are sorted by length, so all have about the same work.
    Raises UserError where another process has ended, or has other batches.
    """
    # Exchanged as safetensors, so that nothing is unpickled. `save` needs contiguous arrays, but does not
    # check for it.
    ours = {
        f"{number}/{name}": np.ascontiguousarray(values)
        for number in range(distributed.get_rank(), len(batches), distributed.get_world_size())
        for name, values in run(batches[number]).items()
    }
    results: list[Arrays] = [{} for _ in batches]
    for content in _exchange(save(ours), len(batches)):
        for path, values in load(content).items():
            number, name = path.split("/", 1)
            results[int(number)][name] = values
    return results


def _exchange(content: bytes, batches: int) -> list[bytes]:
    """The bytes of every process, by rank. Raises UserError where one has ended, or has other batches."""
    device = torch.device("cuda") if distributed.get_backend() == "nccl" else torch.device("cpu")
    head = torch.tensor([len(content), batches], device=device)
    fix = "Read its messages above; it may have run out of memory."
    with translated(RuntimeError, UserError, "", "another process has ended", fix):
        heads = all_gathered(head, distributed.get_world_size())
        sizes, counts = torch.stack(heads).T.tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
        padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
        gathered = all_gathered(padded, len(sizes))
    if len(set(counts)) > 1:
        raise UserError(
            "", "the processes read different rows", "Use the same data and model on every machine."
        )
    return [part[:size].cpu().numpy().tobytes() for part, size in zip(gathered, sizes, strict=True)]
