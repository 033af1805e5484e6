"""Questions and contexts to windows of tokens: the whole question in each, the context in overlapping
parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from bertkit.data.problems import MAX_PROBLEMS
from bertkit.data.rows import Columns
from bertkit.encoding.pieces import Encoded, Tokenized, cover, template, tokenize, unread
from bertkit.errors import RowsError
from bertkit.text import Record, short_repr

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAST_ROOM = 8  # tokens of the context that must fit in a window with the question


@dataclass(frozen=True)
class Windows(Columns):
    """The features of a chunk of rows, with the contexts as they were tokenized, which decoding reads
    again.
    """

    contexts: Sequence[Tokenized]  # of each row


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    contexts: Sequence[Tokenized],
    *,
    max_length: int,
    stride: int,
) -> Encoded:
    """Features of each pair, in order; several where the context is longer than fits.

    Columns: the tokenizer's model inputs, each `(tokens,)`; `row`; `length` in tokens; `low` and `count`, the
    tokens of the context in the window; `place`, the position of the first of them; `first` and `end`, those
    that have most context in this window; `unread`, see there. Raises RowsError with the questions that leave
    no room.
    """
    (before, between, after), types = template(tokenizer, 2)
    windows = "row length low count place first end unread input_ids token_type_ids".split()
    columns: Encoded = {name: [] for name in windows}
    problems = []
    for row, (question, context) in enumerate(zip(tokenize(tokenizer, questions), contexts, strict=True)):
        head = [*before, *question.ids, *between]
        room = max_length - len(head) - len(after)
        if room < LEAST_ROOM:
            what = f"{len(question.ids)} tokens, which leaves no room in windows of {max_length}"
            fix = "Raise model.max_length, or shorten the question."
            problems.append((row, f"the question {short_repr(questions[row])} has {what}", fix))
            continue
        unreadable = unread((question.ids, context.ids), tokenizer.unk_token_id)
        for low, high, first, end in cover(len(context.ids), room, min(stride, room // 2)):
            ids = [*head, *context.ids[low:high], *after]
            kinds = [types[0]] * len(head) + [types[1]] * (len(ids) - len(head))
            window = (row, len(ids), low, high - low, len(head), first, end, unreadable, ids, kinds)
            for values, value in zip(columns.values(), window, strict=True):
                values.append(value)
    if problems:
        raise RowsError(problems[:MAX_PROBLEMS])
    if "token_type_ids" not in tokenizer.model_input_names:
        del columns["token_type_ids"]
    return columns


def label_windows(
    columns: Mapping[str, Sequence[Any]], answers: Sequence[Record], contexts: Sequence[Tokenized]
) -> list[list[int]]:
    """For each window the tokens at which the row's first answer starts and ends; twice 0, the first special
    token, where the window does not contain it.
    """
    gold = [_gold_tokens(*pair) for pair in zip(answers, contexts, strict=True)]
    labels = []
    read = itemgetter("row", "low", "count", "place")
    for row, low, count, place in zip(*read(columns), strict=True):
        first, last = gold[row] or (-1, -1)
        inside = low <= first and last < low + count
        labels.append([first - low + place, last - low + place] if inside else [0, 0])
    return labels


def _gold_tokens(answers: Record, tokens: Tokenized) -> tuple[int, int] | None:
    """The first and last token of the first answer; None where there is none."""
    if not answers["text"]:
        return None
    start = answers["answer_start"][0]
    return tokens.cover(start, start + len(answers["text"][0]))
