"""Word pieces back to the words of the user's own text, by their places in it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from bertkit.data.words import words
from bertkit.encoding.pieces import Pieces, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]  # characters, end exclusive


class Text(NamedTuple):
    """A text that the model read, and where its words stand."""

    name: str  # its column
    text: str
    words: list[Span]

    @classmethod
    def of(cls, name: str, text: str) -> Text:
        """A text whose words are found."""
        return cls(name, text, words(text))


class Share(NamedTuple):
    """What a word adds; None where the model did not read it."""

    start: int
    end: int
    score: float | None


class Merger:
    """Adds pieces' scores up to words, over all features of a row; what is in no word to `rest`: nothing is lost."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text]) -> None:
        special = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
        self.special = {*special, tokenizer.bos_token_id, tokenizer.eos_token_id} - {tokenizer.mask_token_id}
        self.texts = texts
        self.pieces = tokenize(tokenizer, [each.text for each in texts])
        self.words = [_whole(each.words, own) for each, own in zip(texts, self.pieces, strict=True)]
        self.scores: list[list[float | None]] = [[None] * len(each) for each in self.words]
        self.rest = 0.0
        self.begun: dict[int, int] = {}  # text -> the piece from which on its next window is looked for

    def add(self, ids: Sequence[int], scores: Sequence[float], which: Sequence[int]) -> None:
        """The pieces of a feature, `(pieces,)`, and what each adds. which: the texts in it, in order."""
        left = [text for text in which if self.pieces[text].ids]
        for special, run in groupby(range(len(ids)), key=lambda place: ids[place] in self.special):
            places = list(run)
            if special or not left:
                self.rest += sum(scores[place] for place in places)
                continue
            text = left.pop(0)
            own = self.pieces[text]
            shift = self._shift(text, [ids[place] for place in places])
            for number, place in enumerate(places, shift):
                inside = 0 <= number < len(own.ids) and own.ids[number] == ids[place]
                where = (int(own.starts[number]), int(own.ends[number])) if inside else (0, 0)
                self._count(text, where, scores[place])

    def _count(self, text: int, piece: Span, score: float) -> None:
        word = bisect_right(self.words[text], piece[0], key=lambda span: span[1])
        if word < len(self.words[text]) and self.words[text][word][0] < piece[1]:
            self.scores[text][word] = (self.scores[text][word] or 0.0) + score
        else:
            self.rest += score

    def _shift(self, text: int, run: list[int]) -> int:
        """The piece of the text with which the run begins; less than 0 where it begins before it."""
        ids, begun = self.pieces[text].ids, self.begun.get(text, 0)
        at = _find(ids, run, begun)
        if at is None:  # repeated beside each window of a longer text; or a part of a document; or cut within a word
            at, before = _find(ids, run, 0), _find(run, ids, 0)
            return at if at is not None else -before if before is not None else 0
        self.begun[text] = at + 1
        return at

    def shares(self) -> dict[str, list[Share]]:
        """Of each text its words, in order, with what they add."""
        pairs = zip(self.words, self.scores, strict=True)
        shares = [[Share(a, b, s) for (a, b), s in zip(*pair, strict=True)] for pair in pairs]
        return {text.name: own for text, own in zip(self.texts, shares, strict=True)}


def _find(whole: Sequence[Any], part: list[Any], begin: int) -> int | None:
    places = range(begin, len(whole) - len(part) + 1)
    return next((place for place in places if list(whole[place : place + len(part)]) == part), None)


def _whole(found: Sequence[Span], pieces: Pieces) -> list[Span]:
    """The words, with those joined that one piece reaches into, such as the three of `[MASK]`."""
    starts, ends = [start for start, _ in found], [end for _, end in found]
    joined = [False] * len(found)
    for start, end in zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True):
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        joined[first + 1 : last] = [True] * max(last - first - 1, 0)
    whole: list[Span] = []
    for (start, end), to_last in zip(found, joined, strict=True):
        if to_last:
            whole[-1] = (whole[-1][0], end)
        else:
            whole.append((start, end))
    return whole
