"""Texts as word pieces with their places, and windows over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Pieces:
    """A text as word pieces, and where each stands: characters, end exclusive."""

    ids: list[int]
    starts: Ints  # (pieces,)
    ends: Ints  # (pieces,)

    def cover(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last piece that share a character with `start` to `end`; None where there is none."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[Pieces]:
    """The pieces of each text. Equal texts, such as the context of several questions, are read once."""
    distinct = list(dict.fromkeys(texts))
    encoded = tokenizer(
        distinct,
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=True,
        verbose=False,  # lengths past the model's limit are what windows are for
    )
    known = {}
    for text, ids, offsets in zip(distinct, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        places = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
        known[text] = Pieces(ids, places[:, 0], places[:, 1])
    return [known[text] for text in texts]


def cover(length: int, room: int, stride: int) -> list[tuple[int, int, int, int]]:
    """Windows of at most `room` over `length` pieces, that share at least `stride`: (low, high, first, last).

    A window reads `low` to `high` and owns `first` to `last`, all ends exclusive. The border between two windows is
    the middle of what they share, so that every piece is owned where it has most context.
    """
    lows = [*range(0, length - room, room - stride), max(length - room, 0)]
    bounds = [0, *((here + room + following) // 2 for here, following in pairwise(lows)), length]
    return [(low, min(low + room, length), *own) for low, own in zip(lows, pairwise(bounds), strict=True)]
