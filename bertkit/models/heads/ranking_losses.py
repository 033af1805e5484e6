"""Losses of scored documents, some of them for the same query."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

NOWHERE = -1e4  # the score of a document that a shorter list does not have; finite, since 0 * -inf is not 0


def greatest(logits: Tensor, windows: Tensor, rows: int) -> Tensor:
    """The greatest logit of each row's windows, `(rows,)`, from logits and their rows' numbers, `(windows,)` each."""
    return logits.new_full((rows,), -torch.inf).scatter_reduce(0, windows, logits, "amax")


def listnet(scores: Tensor, targets: Tensor, sizes: Sequence[int]) -> Tensor:
    """ListNet's top-one cross-entropy (Cao et al. 2007, section 4), summed over the lists, `()`.

    scores, targets: `(rows,)` each, list after list. sizes: the rows of each list.
    """
    lists = pad_sequence(list(torch.split(scores, list(sizes))), batch_first=True, padding_value=NOWHERE)
    grades = pad_sequence(list(torch.split(targets, list(sizes))), batch_first=True, padding_value=-torch.inf)
    return F.cross_entropy(lists, grades.softmax(dim=1), reduction="sum")


def query_sizes(groups: Tensor) -> list[int]:
    """How many rows each query has. groups: `(rows,)`, the number of each row's query, those of a query adjacent."""
    sizes: list[int] = torch.unique_consecutive(groups, return_counts=True)[1].tolist()
    return sizes
