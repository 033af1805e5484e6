"""Texts as tokens with their offsets, and windows over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Ints = NDArray[np.int64]
Encoded = dict[str, list[Any]]  # column -> what each feature has


@dataclass(frozen=True)
class Tokenized:
    """A text as tokens, with the offsets of each: characters, end exclusive."""

    ids: list[int]
    starts: Ints  # (tokens,)
    ends: Ints  # (tokens,)

    def cover(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token that share a character with `start` to `end`; None where there is
        none.
        """
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[Tokenized]:
    """The tokens of each text. Equal texts, such as the context of several questions, are tokenized once."""
    distinct = list(dict.fromkeys(texts))
    encoded = tokenizer(
        distinct,
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=True,
        verbose=False,  # windows are for texts past the model's limit
    )
    tokenized = {}
    for text, ids, spans in zip(distinct, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        offsets = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
        tokenized[text] = Tokenized(ids, offsets[:, 0], offsets[:, 1])
    return [tokenized[text] for text in texts]


def unread(texts: Iterable[Sequence[int]], unknown: int | None) -> int:
    """2 where one of a row's texts has no token, else 1 where one has only unknown tokens, else 0.

    texts: the token ids of each, without special tokens.
    """
    return max(int({*ids} <= {unknown}) if ids else 2 for ids in texts)


def template(tokenizer: PreTrainedTokenizerBase, texts: int) -> tuple[list[list[int]], list[int]]:
    """The special tokens before, between and after so many texts (1 or 2), and the token type of each
    text.
    """
    encoded = tokenizer(*["a"] * texts, return_token_type_ids=True)
    ids = encoded["input_ids"]
    types = encoded["token_type_ids"]
    sides = encoded.sequence_ids(0)
    starts = [sides.index(side) for side in range(texts)]
    ends = [start + sides.count(side) for side, start in enumerate(starts)]
    special = [ids[end:start] for end, start in zip([0, *ends], [*starts, len(ids)], strict=True)]
    return special, [types[start] for start in starts]


def cover(length: int, room: int, stride: int) -> list[tuple[int, int, int, int]]:
    """Windows of at most `room` tokens over `length`, which share at least `stride`: (low, high, first,
    last).

    A window reads `low` to `high` and owns `first` to `last`, all ends exclusive. The border between two
    windows is the middle of what they share, so that every token is owned where it has most context.
    """
    lows = [*range(0, length - room, room - stride), max(length - room, 0)]
    bounds = [0, *((low + room + following) // 2 for low, following in pairwise(lows)), length]
    return [(low, min(low + room, length), *owned) for low, owned in zip(lows, pairwise(bounds), strict=True)]
