"""Texts and pairs of texts to tokens: truncated, windowed or rejected past the length limit, and always
counted; and findings about lengths and unknown tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from statistics import mode
from typing import TYPE_CHECKING, Literal

import numpy as np

from bertkit.data.on_disk import first_features, numbers
from bertkit.data.problems import MAX_PROBLEMS
from bertkit.data.schema import Finding, Schema, note, weighed
from bertkit.encoding.pieces import Encoded, tokenize, unread
from bertkit.errors import RowsError
from bertkit.text import counted, part_of, share, unique

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


Overflow = Literal["truncate", "window", "error"]
# unknown tokens, of all: a larger share is read in part, or hardly at all
WARNED = 0.05
FAILED = 0.5
# of a split, and of a text, in which unknown tokens are counted
ROWS = 1000
CHARACTERS = 2000


def encode_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Sequence[str]],
    *,
    max_length: int,
    overflow: Overflow = "truncate",
    stride: int = 0,
    prefix: str = "",
) -> Encoded:
    """Features of each text, or pair of texts, in order. texts: the first ones, and of pairs the second ones.

    prefix: prepended to each text. Columns: the tokenizer's model inputs without padding, each `(tokens,)`;
    `row`, the index of the text; `length`, the tokens of this feature; of the whole row `lost`, the tokens
    that no feature holds, and `unread`, see there. `truncate` keeps the tokens that transformers keeps with
    `truncation=True`.
    Raises RowsError under `overflow: error`, with the rows that are too long.
    """

    def prefixed(side: Sequence[str]) -> list[str]:
        return [prefix + text for text in side]

    # verbose: lengths past the model's limit are reported here.
    encoded = tokenizer(*map(prefixed, texts), return_attention_mask=False, verbose=False)
    bare, start = (
        tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        for text in (prefix, prefix.rstrip())
    )
    names = [name for name in tokenizer.model_input_names if name in encoded]
    lengths = [len(ids) for ids in encoded["input_ids"]]
    if overflow == "error" and max(lengths, default=0) > max_length:
        too_long = [(row, length) for row, length in enumerate(lengths) if length > max_length]
        raise RowsError(
            (row, f"{length} tokens; at most {max_length} are allowed", "Raise model.max_length.")
            for row, length in too_long[:MAX_PROBLEMS]
        )
    columns: Encoded = {name: [] for name in (*names, "row", "length", "lost", "unread")}
    for row, length in enumerate(lengths):
        sides = encoded.sequence_ids(row)
        parts = _of_texts(encoded["input_ids"][row], sides, len(texts))
        unprefixed = ([] if ids == bare else ids[len(start) :] for ids in parts)
        lost = 0
        kept: Sequence[Sequence[int]] = [range(length)]  # positions, of each feature
        if length > max_length:
            from_left = tokenizer.truncation_side == "left"
            lost, kept = _cut(sides, max_length, overflow, stride, from_left)
        for name in names:
            columns[name] += [list(map(encoded[name][row].__getitem__, places)) for places in kept]
        columns["length"] += map(len, kept)
        of_row = {"row": row, "lost": lost, "unread": unread(unprefixed, tokenizer.unk_token_id)}
        for name, value in of_row.items():
            columns[name] += [value] * len(kept)
    return columns


def length_findings(
    features: Dataset, split: str, max_length: int, *, has_windows: bool = True
) -> Iterator[Finding]:
    """The distribution of lengths in tokens, and what the limit cuts off.

    has_windows: whether the task has the option `overflow: window`.
    """
    starts = first_features(features)
    lengths = numbers(features, "length")
    median, high = np.percentile(lengths, [50, 95])
    what = f"{split}: tokens per window: median {median:.0f}, 95 % within {high:.0f}, at most {lengths.max()}"
    windows = "side" not in features.column_names  # else the features of a row are several texts
    if windows and len(lengths) > len(starts):
        what += f"; {counted(len(starts), 'row')} in {counted(len(lengths), 'window')}"
    yield note(what)
    if "lost" not in features.column_names:  # a task that reads everything
        return
    lost = numbers(features, "lost")  # windows repeat that of their row
    lost = lost[starts] if windows else np.add.reduceat(lost, starts)
    if cut := int((lost > 0).sum()):
        part = part_of(cut, len(starts), "row")
        tokens = counted(int(lost.sum()), "token")
        what = f"{split}: {part} truncated at {max_length} tokens: {tokens} dropped"
        windows &= has_windows and len(lengths) == len(starts)  # else pairs are cut with windows too
        fix = f"Raise model.max_length{', or set task.overflow: window' * windows}."
        yield weighed(cut, len(starts), what, fix)


def unknown_findings(
    tokenizer: PreTrainedTokenizerBase, encoder: str, rows: Dataset, schema: Schema, split: str
) -> Iterator[Finding]:
    """A finding where more than 5 % of the tokens of these rows are unknown.

    It is a failure where more than half are, unless their script is Latin, which every vocabulary has letters
    of.

    encoder: the name of what the tokenizer belongs to. Of many rows 1,000 to 1,999 are read, at equal
    distances.
    """
    read = rows.select(range(0, len(rows), len(rows) // ROWS or 1))
    texts = [" ".join(schema.shown(row).values())[:CHARACTERS] for row in read]
    words = list[str]()
    total = 0
    only = 0
    for text, tokens in zip(texts, tokenize(tokenizer, texts), strict=True):
        spans = zip(tokens.ids, tokens.starts, tokens.ends, strict=True)
        unknown = [text[start:end] for token, start, end in spans if token == tokenizer.unk_token_id]
        words += unknown
        total += len(tokens.ids)
        only += len(unknown) == len(tokens.ids) > 0
    if len(words) > WARNED * total:
        scripts = [unicodedata.name(char, "?").split()[0] for char in "".join(words) if char.isalpha()]
        script = f", mostly {mode(scripts).capitalize().replace('Cjk', 'CJK')}" if scripts else ""
        examples = ", ".join(word[:20] for word in unique(words)[:3])
        to_it = f"unknown to the tokenizer of {encoder}"
        part = f"{share(len(words), total)} of all tokens are"
        what = f"{part} {to_it}{script}: {examples}"
        if only:
            rows_of_them = f"{only:,} of {counted(len(texts), 'row')} have only tokens that are {to_it}"
            what = f"{rows_of_them}; {part} unknown{script}: {examples}"
        fix = "Choose an encoder for the language of the texts: docs/languages.md"
        fails = len(words) > FAILED * total and "Latin" not in script
        yield Finding("fail" if fails else "warn", f"{split}: {what}", fix)


def _of_texts(ids: list[int], sides: list[int | None], texts: int) -> Iterator[list[int]]:
    """The tokens of each text, which are adjacent. sides: as for `_cut`."""
    for text in range(texts):
        count = sides.count(text)
        first = sides.index(text) if count else 0
        yield ids[first : first + count]


def _cut(
    sides: Sequence[int | None], max_length: int, overflow: Overflow, stride: int, from_left: bool
) -> tuple[int, list[list[int]]]:
    """The tokens lost of one row that is too long, and the positions that its features keep: one if
    truncated, several if windowed.

    sides: the text of each token, 0 or 1; None for a special token. from_left: truncation drops the first
    tokens.
    """

    def places(text: int | None) -> list[int]:
        return [place for place, side in enumerate(sides) if side == text]

    special = places(None)
    room = max_length - len(special)
    shorter, longer = sorted(map(places, (0, 1)), key=len)
    share = min(len(shorter), room // 2)  # the longer text is cut first
    width = room - share
    lost = len(shorter) - share
    if overflow == "window":
        # Windows run over the longer text. The other is repeated in each, and may take half of the room;
        # then windows share half of themselves at most, or there would be one for each token.
        step = width - min(stride, width // 2 if share else width - 1)
        parts = [longer[start : start + width] for start in range(0, len(longer) - width + step, step)]
    else:
        lost += len(longer) - width
        parts = [longer[len(longer) - width :] if from_left else longer[:width]]
    shorter = shorter[len(shorter) - share :] if from_left else shorter[:share]
    return lost, [sorted([*special, *shorter, *part]) for part in parts]
