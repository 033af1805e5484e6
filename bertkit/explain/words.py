"""Scores of tokens added up to scores of words, by their positions in the text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from bertkit.data.words import words
from bertkit.encoding.pieces import Tokenized, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]  # characters, end exclusive


class Text(NamedTuple):
    """A text that the model read, and the positions of its words."""

    name: str  # its column
    text: str
    words: list[Span]

    @classmethod
    def of(cls, name: str, text: str) -> Text:
        """A text, split into words."""
        return cls(name, text, words(text))


class Share(NamedTuple):
    """The attribution of a word; None if the model did not read it."""

    start: int
    end: int
    score: float | None


class Merger:
    """Adds scores of tokens up to words, over all features of a row; those of tokens outside of words to `rest`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text]) -> None:
        special = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
        self.special = {*special, tokenizer.bos_token_id, tokenizer.eos_token_id} - {tokenizer.mask_token_id}
        self.texts = texts
        self.tokens = tokenize(tokenizer, [each.text for each in texts])
        self.words = [_joined(each.words, tokens) for each, tokens in zip(texts, self.tokens, strict=True)]
        self.scores: list[list[float | None]] = [[None] * len(each) for each in self.words]
        self.rest = 0.0
        self.next = [0] * len(texts)  # the token of each text from which its next window is searched

    def add(self, ids: Sequence[int], scores: Sequence[float], which: Sequence[int]) -> None:
        """The tokens of a feature, `(tokens,)`, and their scores. which: the texts in it, in order."""
        left = [text for text in which if self.tokens[text].ids]
        for special, run in groupby(zip(ids, scores, strict=True), key=lambda pair: pair[0] in self.special):
            pairs = list(run)
            if special or not left:
                self.rest += sum(score for _, score in pairs)
                continue
            text = left.pop(0)
            tokens, first = self.tokens[text], self._first(text, [token for token, _ in pairs])
            for place, (token, score) in enumerate(pairs, first):
                inside = 0 <= place < len(tokens.ids) and tokens.ids[place] == token
                where = (int(tokens.starts[place]), int(tokens.ends[place])) if inside else (0, 0)
                self._add(text, *where, score)

    def _add(self, text: int, start: int, end: int, score: float) -> None:
        word = bisect_right(self.words[text], start, key=lambda span: span[1])
        if word < len(self.words[text]) and self.words[text][word][0] < end:
            self.scores[text][word] = (self.scores[text][word] or 0.0) + score
        else:
            self.rest += score

    def _first(self, text: int, window: Sequence[int]) -> int:
        """The token of the text with which a window begins; negative if the window begins before the text."""
        # Sequences of ids are searched as strings of these code points.
        whole, part = ("".join(map(chr, ids)) for ids in (self.tokens[text].ids, window))
        at = whole.find(part, self.next[text])
        if at >= 0:
            self.next[text] = at + 1
            return at
        # Repeated in each window of a longer text; or with its neighbours in a document; or truncated within a word.
        return at if (at := whole.find(part)) >= 0 else -max(part.find(whole), 0)

    def shares(self) -> dict[str, list[Share]]:
        """The words of each text, in order, with their attributions."""
        pairs = zip(self.words, self.scores, strict=True)
        shares = [[Share(a, b, s) for (a, b), s in zip(*pair, strict=True)] for pair in pairs]
        return {text.name: own for text, own in zip(self.texts, shares, strict=True)}


def _joined(found: Sequence[Span], tokens: Tokenized) -> list[Span]:
    """The words, joined if one token reaches into several, such as the three of `[MASK]`."""
    spans: list[Span] = []
    for start, end in found:
        covered = tokens.cover(start, end)
        if spans and covered and tokens.starts[covered[0]] < spans[-1][1]:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans
