"""Texts and pairs of texts to tokens: truncated, windowed or refused past the length limit, and always counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from bertkit.data.table import MAX_PROBLEMS
from bertkit.errors import RowsError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Overflow = Literal["truncate", "window", "error"]


def encode_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Sequence[str]],
    *,
    max_length: int,
    overflow: Overflow,
    stride: int,
) -> dict[str, list[Any]]:
    """Features of each text, or pair of texts, in order. texts: the first ones, and of pairs the second ones.

    Columns: the tokenizer's model inputs without padding, each `(tokens,)`; `row`, the index of the text;
    `length`, the tokens of this feature; `lost`, the tokens of the whole row that no feature holds. `truncate` keeps
    the tokens that transformers keeps with `truncation=True`.
    Raises RowsError under `overflow: error`, with the rows that are too long.
    """
    if max_length < 8:
        raise ValueError(f"max_length {max_length} leaves no room for words")
    # verbose: lengths past the model's limit are reported here.
    encoded = tokenizer(*map(list, texts), return_attention_mask=False, verbose=False)
    names = [name for name in tokenizer.model_input_names if name in encoded]
    lengths = [len(ids) for ids in encoded["input_ids"]]
    if overflow == "error" and max(lengths, default=0) > max_length:
        too_long = [(row, length) for row, length in enumerate(lengths) if length > max_length]
        limit, fix = f"{max_length} are allowed", "Raise model.max_length."
        raise RowsError((row, f"{length} tokens, {limit}", fix) for row, length in too_long[:MAX_PROBLEMS])
    columns: dict[str, list[Any]] = {name: [] for name in (*names, "row", "length", "lost")}
    for row, length in enumerate(lengths):
        lost, features = 0, {name: [encoded[name][row]] for name in names}
        if length > max_length:
            from_left = tokenizer.truncation_side == "left"
            lost, kept = _cut(encoded.sequence_ids(row), max_length, overflow, stride, from_left)
            features = {n: [[whole[at] for at in places] for places in kept] for n, (whole,) in features.items()}
        for name, values in features.items():
            columns[name] += values
        sizes = [len(ids) for ids in features["input_ids"]]
        columns["row"] += [row] * len(sizes)
        columns["length"] += sizes
        columns["lost"] += [lost] * len(sizes)
    return columns


def _cut(
    sides: Sequence[int | None], max_length: int, overflow: Overflow, stride: int, from_left: bool
) -> tuple[int, list[list[int]]]:
    """The tokens lost of one row that is too long, and the positions that its features keep: one if truncated, several
    if windowed.

    sides: the text of each token, 0 or 1; None for a special token. from_left: truncation drops the first tokens.
    """
    special, *texts = ([at for at, side in enumerate(sides) if side == each] for each in (None, 0, 1))
    room = max_length - len(special)
    shorter, longer = sorted(texts, key=len)
    share = min(len(shorter), room // 2)  # the longer text is cut first
    width = room - share
    lost = len(shorter) - share
    if overflow == "window":
        # Windows run over the longer text. The other is repeated in each, and may take half of the room.
        step = width - min(stride, width - 1)
        parts = [longer[start : start + width] for start in range(0, len(longer) - width + step, step)]
    else:
        lost += len(longer) - width
        parts = [longer[len(longer) - width :] if from_left else longer[:width]]
    shorter = shorter[len(shorter) - share :] if from_left else shorter[:share]
    return lost, [sorted([*special, *shorter, *part]) for part in parts]
