"""Scores of tokens added up to scores of words, by their positions in the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from bertkit.encoding.pieces import tokenize


class WordShare(NamedTuple):
    """The attribution of a word, from character `start` to `end`; None if the model did not read it."""

    start: int
    end: int
    score: float | None


class Text:
    """A text that the model read, and the attributions of its words. name: its column.

    words: their positions, end exclusive; they are joined if one token reaches into several, as it does in
    `[MASK]`.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, name: str, text: str, words: Sequence[tuple[int, int]]
    ) -> None:
        (tokens,) = tokenize(tokenizer, [text])
        self.name = name
        self.text = text
        self.ids = tokens.ids
        self.shares = list[WordShare]()
        self.word_of: list[int | None] = [None] * len(tokens.ids)
        self.next = 0  # the token from which the next window is searched
        for start, end in words:
            first, last = tokens.cover(start, end) or (0, -1)
            if first <= last and self.word_of[first] is not None:
                self.shares[-1] = self.shares[-1]._replace(end=end)
            else:
                self.shares.append(WordShare(start, end, None))
            self.word_of[first : last + 1] = [len(self.shares) - 1] * (last + 1 - first)

    @property
    def read(self) -> bool:
        """Whether the model read any of its words."""
        return any(share.score is not None for share in self.shares)

    def add(self, window: Sequence[tuple[int, float]]) -> Iterator[float]:
        """Add the scores of a window's tokens, (id, score) each, to their words; yields those of no word."""
        for place, (token, score) in enumerate(window, self._first([token for token, _ in window])):
            inside = 0 <= place < len(self.ids) and self.ids[place] == token
            word = self.word_of[place] if inside else None
            if word is None:
                yield score
            else:
                self.shares[word] = self.shares[word]._replace(score=(self.shares[word].score or 0.0) + score)

    def _first(self, window: Sequence[int]) -> int:
        """The token of the text with which a window begins; negative if the window begins before the text."""
        # Sequences of ids are searched as strings of these code points.
        whole, part = ("".join(map(chr, ids)) for ids in (self.ids, window))
        at = whole.find(part, self.next)
        if at >= 0:
            self.next = at + 1
            return at
        # Repeated in each window of a longer text; or with its neighbours in a document; or truncated within
        # a word.
        return at if (at := whole.find(part)) >= 0 else -max(part.find(whole), 0)


def add_feature(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text], ids: Sequence[int], scores: Sequence[float]
) -> Iterator[float]:
    """Add the scores of a feature's tokens to the words of its texts, in order; yields those of no word."""
    special = {
        tokenizer.cls_token_id,
        tokenizer.sep_token_id,
        tokenizer.pad_token_id,
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
    } - {tokenizer.mask_token_id}
    left = [text for text in texts if text.ids]
    for outside, run in groupby(zip(ids, scores, strict=True), key=lambda pair: pair[0] in special):
        if outside or not left:
            yield from (score for _, score in run)
        else:
            yield from left.pop(0).add(list(run))
