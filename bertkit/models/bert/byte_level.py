"""Byte-level BPE trained from text (Radford et al. 2019, section 2.2), as RoBERTa's: its tokens spell any text.

WordPiece forgets the spaces around punctuation and characters that it does not know, which does not matter to a model
that only reads. One that writes needs a tokenizer whose tokens spell the text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, trainers
from tokenizers.normalizers import Sequence as Nothing
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase, RobertaTokenizer

from bertkit.errors import DataError, Problem
from bertkit.models.bert.wordpiece import PART, check_settings, cut, reader, report, scan, write
from bertkit.models.encoder import load_tokenizer
from bertkit.sections import DataSpec

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # ids 0 to 4


def train_byte_level(
    files: Sequence[Path],
    output: Path,
    *,
    vocab_size: int = 30522,
    min_frequency: int = 2,
    columns: Sequence[str] = ("text",),
    max_length: int = 512,
    spec: DataSpec | None = None,
) -> PreTrainedTokenizerBase:
    """Train byte-level BPE, write a folder that AutoTokenizer opens, and return that tokenizer, a RobertaTokenizer.

    Arguments and errors are those of `train_wordpiece`. Case is kept, no text has an unknown token, and what is
    decoded is the text that was encoded.
    """
    check_settings(files, output, {"vocab_size": vocab_size, "min_frequency": min_frequency, "max_length": max_length})
    alphabet = sorted(ByteLevel.alphabet())
    if (needed := len(SPECIALS) + len(alphabet)) > vocab_size:
        what = f"{vocab_size:,} is too small: {len(SPECIALS)} are special, {len(alphabet)} are bytes"
        raise DataError(Problem("vocab_size", what, f"Take {needed:,} or more."))
    read = reader(columns, spec)
    corpus = scan(files, read, Nothing([]))
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIALS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    learned.train_from_iterator(
        (part for file in files for each in read(file) for part in cut(each.text, PART)), trainer
    )
    model = json.loads(learned.to_str())["model"]
    merges: Any = [tuple(pair) for pair in model["merges"]]  # annotated as texts
    write(RobertaTokenizer(vocab=model["vocab"], merges=merges, model_max_length=max_length), output, {})
    tokenizer = load_tokenizer(output, split_special_tokens=False)
    report(tokenizer, corpus, vocab_size)
    return tokenizer
