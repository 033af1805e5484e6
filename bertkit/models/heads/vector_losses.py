"""Losses over pairs of vectors. Those that compare rows with each other compare the rows of all processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def cosent(scores: Tensor, targets: Tensor, scale: float) -> Tensor:
    """CoSENT (Su 2022): log(1 + sum of exp(scale (score_i - score_j)) over pairs with target_i < target_j), `()`.

    scores, targets: `(pairs,)` of one process. Its value is of the pairs of all processes.
    """
    scores, targets = across_processes(scores), across_processes(targets)
    differences = scale * (scores[:, None] - scores[None, :])
    wrong = differences[targets[:, None] < targets[None, :]]
    return torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), dim=0)


def in_batch(anchors: Tensor, positives: Tensor, negatives: Tensor, texts: Tensor, scale: float) -> Tensor:
    """Multiple-negatives ranking (Henderson et al. 2017, section 4): cross-entropy of the own positives, summed.

    Every other positive and every negative, of all processes, is a candidate; but not a text that is the anchor's
    own positive, nor the positive of an anchor of the same text. anchors, positives: `(rows, size)`; negatives:
    `(any, size)`; texts: a number for the text of each anchor, positive and negative, in this order. Returns `()`.
    """
    rows = len(anchors)
    query, positive, other = texts[:rows], texts[rows : 2 * rows], texts[2 * rows :]
    candidates = torch.cat([across_processes(positives), across_processes(negatives)])
    known = torch.cat([across_processes(positive), across_processes(other)])
    queries = torch.cat([across_processes(query), across_processes(torch.full_like(other, -1))])
    sizes, rank = _sizes(rows, anchors.device)
    own = torch.arange(rows, device=anchors.device) + sum(sizes[:rank])  # after the rows of the processes before
    scores = scale * F.normalize(anchors, dim=-1) @ F.normalize(candidates, dim=-1).T
    twins = (positive[:, None] == known[None, :]) | (query[:, None] == queries[None, :])
    twins[torch.arange(rows, device=own.device), own] = False
    return F.cross_entropy(scores.masked_fill(twins, -torch.inf), own, reduction="sum")


def across_processes(part: Tensor) -> Tensor:
    """The rows of all processes in their order, `(any, …)`; gradients flow back to the process that owns them."""
    sizes, _ = _sizes(len(part), part.device)
    if len(sizes) == 1:
        return part
    from torch.distributed.nn.functional import all_gather

    padded = torch.cat([part, part.new_zeros(max(sizes) - len(part), *part.shape[1:])])
    gather: Any = all_gather
    gathered = gather(padded) if part.is_floating_point() else _gathered(padded, len(sizes))
    return torch.cat([rows[:size] for rows, size in zip(gathered, sizes, strict=True)])


def _gathered(padded: Tensor, world: int) -> list[Tensor]:
    parts = [torch.empty_like(padded) for _ in range(world)]
    torch.distributed.all_gather(parts, padded)
    return parts


def _sizes(rows: int, device: torch.device) -> tuple[list[int], int]:
    """How many rows each process has, and which of them this one is."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [rows], 0
    mine = torch.tensor([rows], device=device)
    sizes = [int(size) for size in _gathered(mine, torch.distributed.get_world_size())]
    return sizes, torch.distributed.get_rank()
