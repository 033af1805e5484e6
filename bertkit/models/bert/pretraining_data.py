"""Documents -> sentences -> chunks -> masked examples, as BERT is pretrained (Devlin et al. 2019, 3.1 and
A.2).

`encode_documents` does once what is not random in training: tokens, packed into chunks of one document.
`masking.Masking` does in every epoch what is: which sentence follows, and which tokens are masked.
"""

from __future__ import annotations

import hashlib
import json
import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from bertkit.cache import cached_folder
from bertkit.errors import ModelError, translated
from bertkit.models.bert.masking import Pairs, token_id
from bertkit.models.bert.sentences import pack, sentences

if TYPE_CHECKING:
    from datasets import Dataset, Features
    from transformers import PreTrainedTokenizerBase

RULES = 3  # version of sentences and packing: cached features of another version are not used
DOCUMENTS = 64  # encoded at a time
PER_PROCESS = 2_000  # documents for which another process is worth its start


def encode_documents(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    nsp: Pairs,
    short_sequences: float = 0.1,
    cache: Path | None = None,
    processes: int | None = None,
) -> Dataset:
    """Documents (column `text`) -> chunks of consecutive sentences of one document, in order.

    Columns: `input_ids` (tokens,) int32, without special tokens; `sentences` (sentences,) int32, the tokens
    of each; `row`, the index of the document; `document`, a hash of its text; `length`, tokens with special
    tokens; `lost`, tokens of the document that no feature holds. A chunk takes whole sentences up to
    max_length, or in `short_sequences` of all cases up to a number drawn from [2, max_length] with the text
    as its seed. With pairs it has at least two sentences, for which long ones are split. A document of fewer
    than two tokens gives no feature. One that spells out the mask token is a cloze: one feature, cut at
    max_length, without random masks.

    cache: folder where the features stay, memory-mapped, keyed by everything they depend on; None: in memory,
    one process. processes: by default one for every 2,000 documents, at most one per processor; features are
    the same.
    """
    from datasets import Dataset, concatenate_datasets

    encoder = _Encoder(tokenizer, max_length, nsp != "none", short_sequences)
    if cache is None:
        starts = range(0, len(rows) or 1, DOCUMENTS)
        texts = (rows[start : start + DOCUMENTS]["text"] for start in starts)
        columns = (
            encoder(part, list(range(start, start + len(part))))
            for start, part in zip(starts, texts, strict=True)
        )
        return concatenate_datasets([Dataset.from_dict(part, features=_schema()) for part in columns])
    key = {
        "rules": RULES,
        "max_length": max_length,
        "pairs": nsp != "none",
        "short_sequences": short_sequences,
        "tokenizer": hashlib.sha256(encoder.tokenizer.to_str().encode()).hexdigest(),
        "documents": rows._fingerprint,
    }
    count = processes or min(1 + len(rows) // PER_PROCESS, os.cpu_count() or 1)
    folder, _ = cached_folder(key, lambda folder: _write(rows, encoder, folder, count), root=cache)
    return concatenate_datasets([Dataset.from_file(str(file)) for file in sorted(folder.glob("*.arrow"))])


class _Encoder:
    """What `Dataset.map` calls with the texts and indices of a few documents; goes to other processes."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int, pairs: bool, short_sequences: float
    ) -> None:
        from tokenizers import Tokenizer

        mask_id = token_id(tokenizer, "mask")
        what = f"{type(tokenizer).__name__} cannot be copied, which pretraining requires"
        fix = "Use an encoder whose tokenizer is complete in tokenizer.json."
        with translated(Exception, ModelError, "model.name", what, fix):
            state = json.loads(tokenizer.backend_tokenizer.to_str())  # the tokenizer itself is unchanged
            for token in state["added_tokens"]:
                token["special"] = token["special"] and token["id"] != mask_id
            self.tokenizer = Tokenizer.from_str(json.dumps(state))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.mask = str(tokenizer.mask_token)
        self.pairs = pairs
        self.short_sequences = short_sequences
        self.cloze = max_length - 2  # tokens
        self.limit = max_length - (3 if pairs else 2)  # tokens of a chunk

    def __call__(self, texts: list[str], rows: list[int]) -> dict[str, list[Any]]:
        self.tokenizer.encode_special_tokens = True  # but the mask; set here, as pickling loses it
        columns: dict[str, list[Any]] = {
            name: [] for name in ("row", "document", "input_ids", "sentences", "lost")
        }
        cut = [[text] if self.mask in text else _spaced_sentences(text) for text in texts]
        every = [part for parts in cut for part in parts]
        encoded = iter(self.tokenizer.encode_batch_fast(every, add_special_tokens=False))
        for text, parts, row in zip(texts, cut, rows, strict=True):
            tokens = [next(encoded).ids for _ in parts]
            document = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)
            if self.mask in text:  # a cloze
                ids = tokens[0][: self.cloze]
                chunks = [(ids, [len(ids)])]
                lost = len(tokens[0]) - len(ids)
            else:
                chunks = self._chunks(tokens, document)
                lost = 0
            for ids, lengths in chunks:
                for name, value in zip(columns, (row, document, ids, lengths, lost), strict=True):
                    columns[name].append(value)
        special = [3 if self.pairs and len(lengths) > 1 else 2 for lengths in columns["sentences"]]
        columns["length"] = [len(ids) + more for ids, more in zip(columns["input_ids"], special, strict=True)]
        return columns

    def _chunks(self, parts: list[list[int]], document: int) -> list[tuple[list[int], list[int]]]:
        """The ids of each chunk, and the tokens of each of its sentences; none for fewer than two tokens."""
        ids = iter([token for part in parts for token in part])
        lengths = [len(part) for part in parts if part]
        if sum(lengths) < 2:
            return []
        packed = pack(lengths, self.limit, self.pairs, self.short_sequences, document)
        return [(list(islice(ids, sum(chunk))), chunk) for chunk in packed]


def _spaced_sentences(text: str) -> list[str]:
    """The sentences, each with one blank before it where it has any: a byte-level token may begin with it."""
    parts = []
    end = 0
    for sentence in sentences(text):
        start = text.index(sentence, end)
        parts.append(" " * (0 < end < start) + sentence)
        end = start + len(sentence)
    return parts


def _schema() -> Features:
    from datasets import Features, List, Value

    many = List(Value("int32"))
    types = {"row": Value("int64"), "document": Value("int64"), "input_ids": many, "sentences": many}
    return Features({**types, "lost": Value("int32"), "length": Value("int32")})


def _write(rows: Dataset, encoder: _Encoder, folder: Path, processes: int) -> None:
    rows.with_format(None).map(
        encoder,
        with_indices=True,
        input_columns="text",
        batched=True,
        batch_size=DOCUMENTS,
        remove_columns=rows.column_names,
        features=_schema(),
        cache_file_name=str(folder / "features.arrow"),
        load_from_cache_file=False,
        new_fingerprint=uuid4().hex,
        num_proc=processes if processes > 1 else None,
        desc="tokenizing",
    )
