"""Scores of tokens added up to scores of words, by their positions in the text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from bertkit.encoding.pieces import Tokenized, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]  # characters, end exclusive


class Text(NamedTuple):
    """A text that the model read, and the positions of its words. name: its column."""

    name: str
    text: str
    words: list[Span]


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
        self.names = [each.name for each in texts]
        tokenized = tokenize(tokenizer, [each.text for each in texts])
        self.ids = [each.ids for each in tokenized]
        pairs = [_joined(each.words, tokens) for each, tokens in zip(texts, tokenized, strict=True)]
        self.words, self.word_of = [words for words, _ in pairs], [word_of for _, word_of in pairs]
        self.scores: list[list[float | None]] = [[None] * len(words) for words in self.words]
        self.rest = 0.0
        self.next = [0] * len(texts)  # the token of each text from which its next window is searched

    def add(self, ids: Sequence[int], scores: Sequence[float], which: Sequence[int]) -> None:
        """The tokens of a feature, `(tokens,)`, and their scores. which: the texts in it, in order."""
        left = [text for text in which if self.ids[text]]
        for special, run in groupby(zip(ids, scores, strict=True), key=lambda pair: pair[0] in self.special):
            pairs = list(run)
            if special or not left:
                self.rest += sum(score for _, score in pairs)
                continue
            text = left.pop(0)
            whole, own = self.ids[text], self.scores[text]
            for place, (token, score) in enumerate(pairs, self._first(text, [token for token, _ in pairs])):
                inside = 0 <= place < len(whole) and whole[place] == token
                word = self.word_of[text][place] if inside else None
                if word is None:
                    self.rest += score
                else:
                    own[word] = (own[word] or 0.0) + score

    def _first(self, text: int, window: Sequence[int]) -> int:
        """The token of the text with which a window begins; negative if the window begins before the text."""
        # Sequences of ids are searched as strings of these code points.
        whole, part = ("".join(map(chr, ids)) for ids in (self.ids[text], window))
        at = whole.find(part, self.next[text])
        if at >= 0:
            self.next[text] = at + 1
            return at
        # Repeated in each window of a longer text; or with its neighbours in a document; or truncated within a word.
        return at if (at := whole.find(part)) >= 0 else -max(part.find(whole), 0)

    def shares(self) -> dict[str, list[Share]]:
        """The words of each text that the model read, in order, with their attributions."""
        named = zip(self.names, self.words, self.scores, strict=True)
        shares = {name: [Share(*pair, s) for pair, s in zip(words, own, strict=True)] for name, words, own in named}
        return {name: own for name, own in shares.items() if any(share.score is not None for share in own)}


def _joined(found: Sequence[Span], tokens: Tokenized) -> tuple[list[Span], list[int | None]]:
    """The words, joined if one token reaches into several, as it does in `[MASK]`; and the word of each token."""
    words = list[Span]()
    word_of: list[int | None] = [None] * len(tokens.ids)
    for start, end in found:
        first, last = tokens.cover(start, end) or (0, -1)
        if words and first <= last and word_of[first] is not None:
            words[-1] = (words[-1][0], end)
        else:
            words.append((start, end))
        word_of[first : last + 1] = [len(words) - 1] * (last + 1 - first)
    return words, word_of
