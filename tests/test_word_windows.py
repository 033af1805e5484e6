"""Windows over words: every word read once, at its first piece, where it has most context."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizer, PreTrainedTokenizerFast

from bertkit.data.word_spans import words
from bertkit.encoding.word_windows import encode_words
from bertkit.models.encoder import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_encoder: Path) -> Any:
    return load_tokenizer(tiny_encoder)


def encode(tokenizer: Any, *texts: str, **settings: Any) -> dict[str, list[Any]]:
    arguments = {"max_length": 16, "stride": 4} | settings
    return encode_words(tokenizer, texts, [words(text) for text in texts], **arguments)


def test_a_word_is_read_at_its_first_piece(tokenizer: Any) -> None:
    text = "the dogs sat"  # dog ##s
    columns = encode(tokenizer, text)
    assert tokenizer.convert_ids_to_tokens(columns["input_ids"][0]) == ["[CLS]", "the", "dog", "##s", "sat", "[SEP]"]
    assert columns["heads"] == [[1, 2, 4]]
    assert columns["words"] == [[0, 1, 2]]
    assert columns["length"] == [6]
    assert columns["token_type_ids"] == [[0] * 6]


def test_words_without_pieces_are_in_no_window(tokenizer: Any) -> None:
    columns = encode(tokenizer, "the \u200b cat", "\u200b", "")
    assert columns["words"] == [[0, 2], [], []]
    assert columns["heads"] == [[1, 2], [], []]
    assert columns["row"] == [0, 1, 2]
    assert columns["mute"] == [1, 1, 0]
    first, *others = encode(tokenizer, "the \u200b cat " * 20)["mute"]
    assert first == 20
    assert set(others) == {0}  # counted once, not in every window


def test_offsets_are_those_of_the_text_and_not_of_a_guess(tokenizer: Any) -> None:
    """Pieces are found by where they stand, so that joined words read as they were written."""
    columns = encode_words(tokenizer, ["cats , dog"], [[(0, 3), (3, 4), (5, 6), (7, 10)]], max_length=16, stride=0)
    assert columns["heads"] == [[1, 2, 3, 4]]  # cat ##s , dog


def owner(head: int, windows: list[tuple[int, int]], end: int) -> int:
    """Brute force: the window in which the piece has most context; none is missing at the sentence's own ends."""

    def context(window: tuple[int, int]) -> int:
        low, high = window
        left = head - low if low else 10**6
        return min(left, high - 1 - head if high < end else 10**6)

    inside = [w for w, (low, high) in enumerate(windows) if low <= head < high]
    return max(inside, key=lambda w: (context(windows[w]), w))


@pytest.mark.parametrize("stride", [0, 1, 4, 5, 100])
def test_every_word_is_in_the_window_where_it_has_most_context(tokenizer: Any, stride: int) -> None:
    rng = random.Random(stride)
    for size in (14, 15, 16, 27, 40, 111):
        text = " ".join(rng.choice(["cat", "dogs", "sat", "running", "the"]) for _ in range(size))
        columns = encode(tokenizer, text, stride=stride)
        whole = encode(tokenizer, text, max_length=10_000)
        heads = [head - 1 for head in whole["heads"][0]]
        pieces = whole["input_ids"][0][1:-1]
        lows, at = [], 0
        for ids in columns["input_ids"]:
            inner = ids[1:-1]
            at = next(
                p for p in range(at, len(pieces)) if pieces[p : p + len(inner)] == inner and (not lows or p > lows[-1])
            )
            lows.append(at)
        assert [word for own in columns["words"] for word in own] == list(range(size))
        assert all(len(ids) <= 16 for ids in columns["input_ids"])
        windows = [(low, low + len(ids) - 2) for low, ids in zip(lows, columns["input_ids"], strict=True)]
        for index, (low, own, at_heads) in enumerate(zip(lows, columns["words"], columns["heads"], strict=True)):
            assert [head - 1 + low for head in at_heads] == [heads[word] for word in own]
            assert all(owner(heads[word], windows, len(pieces)) == index for word in own)


def test_document_context_fills_the_window_on_both_sides(tokenizer: Any) -> None:
    texts = ["one two three four", "cat dog", "five yes no up down", "red"]
    columns = encode(tokenizer, *texts, max_length=10, documents=["a", "a", "a", "b"])
    read = [tokenizer.convert_ids_to_tokens(ids) for ids in columns["input_ids"]]
    assert read[0][1:-1] == "one two three four cat dog five yes".split()
    assert read[1][1:-1] == "two three four cat dog five yes no".split()
    assert read[2][1:-1] == "four cat dog five yes no up down".split()
    assert read[3] == ["[CLS]", "red", "[SEP]"]
    for row, text in enumerate(texts):
        assert [read[row][head] for head in columns["heads"][row]] == text.split()


def test_a_long_sentence_takes_no_context_and_loses_no_word(tokenizer: Any) -> None:
    texts = ["cat", "the dogs sat on " * 20, "dog"]
    columns = encode(tokenizer, *texts, documents=["a"] * 3)
    own = [word for row, each in zip(columns["row"], columns["words"], strict=True) if row == 1 for word in each]
    assert own == list(range(80))


@settings(max_examples=150)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=4), st.integers(8, 20), st.integers(0, 30), st.booleans())
def test_no_word_is_read_twice_whatever_the_text(texts: list[str], limit: int, stride: int, document: bool) -> None:
    vocabulary = {
        word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a", "b", "."])
    }
    tokenizer = BertTokenizer(vocab=vocabulary)
    documents = ["same"] * len(texts) if document else None
    columns = encode(tokenizer, *texts, max_length=limit, stride=stride, documents=documents)
    assert set(columns["row"]) == set(range(len(texts)))
    for row, text in enumerate(texts):
        own = [w for r, each in zip(columns["row"], columns["words"], strict=True) if r == row for w in each]
        assert own == sorted(set(own))
        assert len(own) <= len(words(text))
    for ids, heads in zip(columns["input_ids"], columns["heads"], strict=True):
        assert len(ids) <= limit
        assert all(0 < head < len(ids) - 1 for head in heads)


def test_a_space_alone_is_the_first_token_of_its_word() -> None:
    """Unigram models read a rare word as a lone ▁ and what follows; transformers labels and reads the ▁."""
    pieces = [("<pad>", 0.0), ("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁", -5.0), ("▁the", -1.0), ("猫", -2.0)]
    backend = Tokenizer(models.Unigram([*pieces, ("s", -3.0), ("▁sat", -1.0)], 1, False))
    backend.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    special = [("<s>", 2), ("</s>", 3)]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    for text in ("the 猫 sat", "猫 猫s the", "the   猫   sat", "the xyz", "the猫 猫猫"):
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        columns = encode_words(tokenizer, [text], [spans], max_length=32, stride=0)
        read = tokenizer(text.split(), is_split_into_words=True)
        words_of_tokens = read.word_ids(0)
        assert columns["input_ids"] == [read["input_ids"]]
        assert columns["heads"] == [[words_of_tokens.index(word) for word in range(len(text.split()))]]
        assert "▁" in tokenizer.convert_ids_to_tokens(read["input_ids"])
