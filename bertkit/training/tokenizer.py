"""`train_tokenizer`: a tokenizer from the texts of files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.models.bert.train_tokenizer import train_byte_level, train_wordpiece
from bertkit.recipe.recipe import parse_layout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def train_tokenizer(
    input: Sequence[str | Path],
    output: str | Path,
    *,
    vocab_size: int = 30522,
    byte_level: bool = False,
    cased: bool = False,
    min_frequency: int = 2,
    limit_alphabet: int = 1000,
    columns: Sequence[str] = ("text",),
    max_length: int = 512,
    overrides: Sequence[str] = (),
) -> PreTrainedTokenizerBase:
    """Train a tokenizer on the texts of files: WordPiece, or BPE of bytes, as RoBERTa's, which keeps texts as they are.

    input: txt, csv, tsv, xlsx, json, jsonl or parquet. output: a new folder, which AutoTokenizer opens.
    cased: keep case and accents. overrides: how the files are written, such as `data.delimiter=";"`. All else as for
    `train_wordpiece`. Raises RecipeError, and DataError with all that is wrong with settings or files.

    >>> len(bertkit.train_tokenizer(["reviews.csv"], "tokenizer", vocab_size=60))
    34
    """
    train = (
        train_byte_level if byte_level else partial(train_wordpiece, lowercase=not cased, limit_alphabet=limit_alphabet)
    )
    return train(
        [Path(file) for file in input],
        Path(output),
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        columns=columns,
        max_length=max_length,
        spec=parse_layout(overrides),
    )
