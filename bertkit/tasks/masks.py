"""Texts with masks of the user: the best tokens for each, and the filled text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bertkit.data.schema import Answer
from bertkit.evaluation.intervals import Floats

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BestTokens = tuple[list[int], list[float]]  # ids of the best tokens for a mask, and their probabilities

GUESSES = 5  # tokens that an answer names for each mask of the user
SPACES = ("▁", "Ġ")  # the space before a word, as SentencePiece and byte-level BPE write it in a token


class MaskedItem(NamedTuple):
    """For one feature: sums as in COUNTED, and tokens with their probabilities for each mask of the user."""

    counts: Floats
    guesses: list[BestTokens]


def filled(text: str, guesses: Sequence[BestTokens], tokenizer: PreTrainedTokenizerBase) -> Answer:
    """The answer to a text with masks: their best tokens, and the text with the first of each in its
    place.
    """
    masks = [_best_tokens(guess, tokenizer) for guess in guesses]
    mask = str(tokenizer.mask_token)
    whole, *rest = text.split(mask)
    for place, part in enumerate(rest):
        # one beyond max_length
        word = inserted(masks[place][0], whole, tokenizer) if place < len(masks) else mask
        whole += word + part
    return {"filled": whole, "masks": masks}


def _best_tokens(guess: BestTokens, tokenizer: PreTrainedTokenizerBase) -> list[Answer]:
    """The best tokens for a mask, as its answer shows them."""
    ids, probabilities = guess
    tokens = tokenizer.batch_decode([[number] for number in ids])
    return [
        {"token": token.strip(), "id": number, "score": score}
        for token, number, score in zip(tokens, ids, probabilities, strict=True)
    ]


def inserted(guess: Mapping[str, Any], before: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """What replaces a mask after this text. guess: one of an answer's `masks`."""
    word = str(guess["token"]).removeprefix("##")
    piece = str(tokenizer.convert_ids_to_tokens(guess["id"]))
    return f" {word}" if piece.startswith(SPACES) and before[-1:].strip() else word
