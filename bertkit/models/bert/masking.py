"""The random part of a pretraining example: which segment follows, and which tokens are masked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertkit.data.scripts import UNSPACED
from bertkit.errors import ModelError

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

Pairs = Literal["nsp", "none"]

CANDIDATES = 4  # chunks of other documents from which the second segment of a NotNext pair is taken
ROUNDS = 8  # draws of candidates before a pair stays a real one: there may be a single document

_CONTINUATION = re.compile(rf"##[^{UNSPACED}].*", re.DOTALL)
_UNUSED = re.compile(r"\[unused\d+\]")


def token_id(tokenizer: PreTrainedTokenizerBase, name: str) -> int:
    """The id of a special token: `cls`, `sep` or `mask`. Raises ModelError where there is none."""
    token = tokenizer.special_tokens_map.get(f"{name}_token")
    if token is None:
        raise ModelError(
            "model.name",
            f"the tokenizer has no {name.upper()} token, which pretraining needs",
            "Use a tokenizer of the BERT family.",
        )
    return int(tokenizer.get_vocab()[token])


class Masking:
    """Chunks -> masked examples, drawn again in every epoch (Devlin et al. 2019, 3.1)."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        nsp: Pairs,
        mask_probability: float = 0.15,
        whole_word: bool = False,
        keep_order: bool = False,
    ) -> None:
        """whole_word: whether the tokens of a word are masked together. Without blanks between words (Thai,
        Chinese), where what is between blanks may be a whole text, each token is a word. keep_order: whether
        examples have a column `mask_order`.

        Raises ModelError: no [CLS], [SEP] or [MASK]; or whole words, and no tokens that begin with ## and
        continue one.
        """
        vocabulary = tokenizer.get_vocab()
        special = np.zeros(max(vocabulary.values()) + 1, dtype=bool)
        continuation = np.zeros_like(special)
        ordinary = np.zeros_like(special)
        special[tokenizer.all_special_ids] = True
        for token, index in vocabulary.items():
            continuation[index] = _CONTINUATION.fullmatch(token) is not None
            ordinary[index] = not special[index] and not _UNUSED.fullmatch(token)
        if whole_word and not continuation.any():
            raise ModelError(
                "task.whole_word",
                "whole words can be masked only where tokens that continue a word begin with ##, "
                "in scripts with blanks between words",
                "Set whole_word: false, which does the same in Chinese, Japanese and Thai.",
            )
        self.nsp = nsp
        self.mask_probability = mask_probability
        self.whole_word = whole_word
        self.keep_order = keep_order
        self.cls_id = token_id(tokenizer, "cls")
        self.sep_id = token_id(tokenizer, "sep")
        self.mask_id = token_id(tokenizer, "mask")
        self.token_types = "token_type_ids" in tokenizer.model_input_names
        self.special = special
        self.continuation = continuation
        self.ordinary = np.flatnonzero(ordinary)  # possible replacements: neither special nor [unusedN]

    def __call__(
        self, features: Dataset, indices: Sequence[int], seed: int, epoch: int
    ) -> dict[str, list[Any]]:
        """Examples: each a pure function of (seed, epoch, index) and the features, whatever else is drawn.

        features: of `encode_documents`; they are read faster in the format `arrow`.
        Columns: `input_ids`, `token_type_ids` and `labels` (tokens,), -100 where nothing is to be predicted;
        with keep_order `mask_order` (tokens,), the smallest number of masked tokens at which this token is
        masked, 0 for tokens that never are; `next_sentence_label`, 0 where the second segment follows, else
        1, -100 where there is no pair; `row`; `length`. A pair is [CLS] A [SEP] B [SEP], no longer than its
        chunk.
        """
        arrow = features if features.format["type"] == "arrow" else features.with_format("arrow")
        rngs = [np.random.default_rng((seed, epoch, int(index))) for index in indices]
        chunks = Chunks(arrow, indices)
        bounds = [self._bound(chunks, i, rng) for i, rng in enumerate(rngs)]
        turned = [bound > 0 and rng.random() < 0.5 for bound, rng in zip(bounds, rngs, strict=True)]
        sizes = np.diff(chunks.bounds).tolist()
        rooms = {i: sizes[i] - bounds[i] for i, other in enumerate(turned) if other}
        unrelated = _unrelated(arrow, chunks, rooms, rngs, self.mask_id)
        segments = []
        labels = []
        for i, bound in enumerate(bounds):
            ids = chunks.ids[chunks.bounds[i] : chunks.bounds[i + 1]]
            segments.append([ids[:bound], unrelated.get(i, ids[bound:])] if bound else [ids])
            labels.append(int(i in unrelated) if bound else -100)
        columns = self._masked(segments, rngs)
        lengths = list(map(len, columns["input_ids"]))
        return {**columns, "next_sentence_label": labels, "row": chunks.rows.tolist(), "length": lengths}

    def _bound(self, chunks: Chunks, index: int, rng: np.random.Generator) -> int:
        """Tokens of the first segment; 0 where there is only one segment."""
        first = chunks.first[index]
        last = chunks.first[index + 1]
        if self.nsp == "none" or last - first < 2:
            return 0
        return int(chunks.ends[rng.integers(first + 1, last)] - chunks.ends[first])

    def _masked(
        self, segments: Sequence[Sequence[Integers]], rngs: Sequence[np.random.Generator]
    ) -> dict[str, list[list[int]]]:
        """Segments between special tokens, masked; a cloze is unchanged."""
        sizes = [1 + len(pair) + sum(map(len, pair)) for pair in segments]
        ids = np.full((len(sizes), max(sizes)), self.sep_id)
        ids[:, 0] = self.cls_id
        types = np.zeros_like(ids)
        chance = np.ones((3, *ids.shape))
        for i, (pair, size, rng) in enumerate(zip(segments, sizes, rngs, strict=True)):
            start = 1
            for number, segment in enumerate(pair):
                end = start + len(segment)
                ids[i, start:end] = segment
                types[i, start : end + 1] = number
                start = end + 1
            chance[:, i, :size] = rng.random((3, size))
        order = chance[0]
        kind = chance[1]
        free = ~self.special[ids] & (ids != self.mask_id).all(axis=1, keepdims=True)
        if self.whole_word:
            mask_order = self._words_in_order(ids, free, order, kind)
        else:
            mask_order = np.where(free, np.where(free, order, 1.0).argsort(axis=1).argsort(axis=1) + 1, 0)
        budgets = np.rint(self.mask_probability * free.sum(axis=1)).clip(min=1)
        chosen = free & (mask_order <= budgets[:, None])
        labels = np.where(chosen, ids, -100)
        replaced = self.ordinary[
            (chance[2] * len(self.ordinary)).astype(int).clip(max=len(self.ordinary) - 1)
        ]
        ids = np.where(chosen & (kind < 0.8), self.mask_id, np.where(chosen & (kind >= 0.9), replaced, ids))
        columns = {"input_ids": ids, "token_type_ids": types, "labels": labels}
        if not self.token_types:
            del columns["token_type_ids"]
        if self.keep_order:
            columns["mask_order"] = mask_order
        return {name: _unpadded(table, sizes) for name, table in columns.items()}

    def _words_in_order(self, ids: Integers, free: Flags, order: Floats, kind: Floats) -> Integers:
        """`mask_order` of whole words, (examples, tokens); sets `kind` to be the same in each of them.

        Words come in random order. A word is masked where at least half of it is within the number of tokens
        to mask, so that on average this number is met; the first one always is.
        """
        begins = free & ~self.continuation[ids]
        begins[:, 1:] |= free[:, 1:] & ~free[:, :-1]
        mask_order = np.zeros_like(ids)
        for i in range(len(ids)):
            inside = np.flatnonzero(free[i])
            heads = np.flatnonzero(begins[i])
            word = begins[i, inside].cumsum() - 1
            words = order[i, heads].argsort()
            sizes = np.bincount(word)[words]
            needed = np.empty_like(words)
            needed[words] = sizes.cumsum() - sizes // 2
            needed[words[:1]] = 1
            mask_order[i, inside] = needed[word]
            kind[i, inside] = kind[i, heads][word]
        return mask_order


def _unpadded(table: Integers, sizes: Sequence[int]) -> list[list[int]]:
    return [row[:size].tolist() for row, size in zip(table, sizes, strict=True)]


class Chunks:
    """Some chunks end to end. Chunk i has ids[bounds[i]:bounds[i + 1]] and the sentences first[i] to first[i
    + 1].
    """

    def __init__(self, arrow: Dataset, indices: Sequence[int] | Integers) -> None:
        """These features of `encode_documents`, in the format `arrow`."""
        table = arrow[[int(index) for index in indices]]
        ids, sentences = (table.column(name).combine_chunks() for name in ("input_ids", "sentences"))
        self.ids = ids.flatten().to_numpy()
        self.rows, self.documents = (table.column(name).to_numpy() for name in ("row", "document"))
        # Where each sentence begins in `ids`, and the last one ends.
        self.ends = np.concatenate([[0], np.cumsum(sentences.flatten().to_numpy())])
        self.bounds, self.first = (
            lists.offsets.to_numpy() - lists.offsets[0].as_py() for lists in (ids, sentences)
        )


def _unrelated(
    arrow: Dataset,
    chunks: Chunks,
    rooms: Mapping[int, int],
    rngs: Sequence[np.random.Generator],
    mask_id: int,
) -> dict[int, Integers]:
    """For chunks with room for so many tokens: sentences of a document of another text, if any was drawn."""
    unrelated = {}
    left = list(rooms)
    for _ in range(ROUNDS):
        if not left:
            break
        drawn = np.concatenate([rngs[i].integers(len(arrow), size=CANDIDATES) for i in left])
        others = Chunks(arrow, drawn)
        allowed = others.documents != np.repeat(chunks.documents[left], CANDIDATES)
        allowed &= ~np.logical_or.reduceat(others.ids == mask_id, others.bounds[:-1])
        room = np.repeat([rooms[i] for i in left], CANDIDATES)
        for i, start, end in _fitting(others, allowed, room, left, rngs):
            real = chunks.ids[chunks.bounds[i + 1] - rooms[i] : chunks.bounds[i + 1]]
            if not np.array_equal(others.ids[start:end], real):  # short sentences recur
                unrelated[i] = others.ids[start:end]
        left = [i for i in left if i not in unrelated]
    return unrelated


def _fitting(
    others: Chunks, allowed: Flags, room: Integers, left: Sequence[int], rngs: Sequence[np.random.Generator]
) -> list[tuple[int, int, int]]:
    """(example, start, end) of the run of whole sentences that best fills its room, so that neither its
    length nor a cut distinguishes it from a real one; where no sentence is short enough, of a part of one.
    """
    chunk = np.repeat(np.arange(len(room)), np.diff(others.first))
    starts = others.ends[:-1]
    stops = others.ends[np.searchsorted(others.ends, starts + room[chunk], side="right") - 1]
    stops = np.minimum(stops, others.bounds[1:][chunk])
    filled = np.where(allowed[chunk], stops - starts, -1)
    runs = []
    for number, i in enumerate(left):
        first = others.first[number * CANDIDATES]
        last = others.first[(number + 1) * CANDIDATES]
        best = first + filled[first:last].argmax()
        start = int(starts[best])
        stop = int(stops[best])
        if filled[best] == 0:
            size = int(room[number * CANDIDATES])
            end = int(others.ends[best + 1])
            start, stop = (start, start + size) if rngs[i].random() < 0.5 else (end - size, end)
        if filled[best] >= 0:
            runs.append((i, start, stop))
    return runs


def fewer_masks(batch: Mapping[str, Tensor], mask_probability: float) -> dict[str, Tensor]:
    """The batch as if `Masking` had drawn it at this lower `mask_probability`, without its column
    `mask_order`.
    """
    rest = dict(batch)
    order = rest.pop("mask_order")  # (batch, length), as the next two
    labels = batch["labels"]
    ids = batch["input_ids"]
    # (batch, 1)
    budgets = (mask_probability * (order > 0).sum(1, keepdim=True).double()).round().clamp(min=1)
    restored = (labels != -100) & (order > budgets)
    return {**rest, "input_ids": labels.where(restored, ids), "labels": labels.masked_fill(restored, -100)}
