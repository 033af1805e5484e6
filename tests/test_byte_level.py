"""Byte-level BPE trained from text: against the library's own, exact in both directions, and opened again by
others.
"""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import raises, refused, said, write_rows
from test_wordpiece import HARD, TIES, sentiment
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoTokenizer, RobertaTokenizer

from bertkit.errors import DataError
from bertkit.models.encoder import load_tokenizer
from bertkit.tokenizer.train import BYTE_LEVEL_SPECIALS, train_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer of 1,000 tokens, of the sample's training texts."""
    home = tmp_path_factory.mktemp("byte-level")
    texts = write_rows(home / "texts.jsonl", [{"text": text} for text in sentiment("train")])
    train_tokenizer([texts], home / "out", vocab_size=1000, byte_level=True, max_length=77)
    return home / "out"


@pytest.fixture(scope="module")
def tokenizer(folder):
    return load_tokenizer(folder)


def test_tokens_are_those_of_the_library_and_others_open_it(tokenizer, folder):
    theirs = ByteLevelBPETokenizer()
    theirs.train_from_iterator(
        sentiment("train"), vocab_size=1000, special_tokens=list(BYTE_LEVEL_SPECIALS), show_progress=False
    )
    assert tokenizer.get_vocab() == theirs.get_vocab()
    for text in (*HARD, *sentiment("test")):
        assert tokenizer.tokenize(text) == theirs.encode(text, add_special_tokens=False).tokens
    opened = AutoTokenizer.from_pretrained(folder)
    assert type(opened) is RobertaTokenizer
    assert opened.convert_tokens_to_ids(list(BYTE_LEVEL_SPECIALS)) == [0, 1, 2, 3, 4]
    assert opened.model_max_length == 77
    one, other = (opened.encode(text, add_special_tokens=False) for text in "ab")
    assert opened("a", "b")["input_ids"] == [0, *one, 2, 2, *other, 2]


def decoded(tokenizer, text):
    return tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"], skip_special_tokens=True)


@settings(max_examples=50)
@given(st.text())
def test_what_is_decoded_is_what_was_encoded(tokenizer, text):
    assert decoded(tokenizer, text) == text


@pytest.mark.parametrize(
    "text", [*HARD, "don't , do ' t .", " two  spaces ", "</s> <mask> <unk>", "a\r\n\tb"]
)
def test_hard_texts_come_back(tokenizer, text):
    assert decoded(tokenizer, text) == text
    assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


def test_the_same_bytes_each_time(tmp_path):
    """Every pair is as frequent as many others."""
    (tmp_path / "ties.txt").write_text(TIES + "\n" + TIES[::-1] + "\n")
    for name in ("one", "other"):
        train_tokenizer(
            [tmp_path / "ties.txt"], tmp_path / name, vocab_size=400, byte_level=True, min_frequency=1
        )
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "other" / file.name).read_bytes()


@pytest.mark.parametrize("kind", [[], ["--byte-level"]])
def test_the_command_reads_several_columns(kind, capsys, tmp_path):
    rows = [{"en": "a dog and a dog", "de": "ein Hund, ein Hund"}] * 3
    file = write_rows(tmp_path / "pairs.jsonl", rows)
    command = ("tokenizer", "train", *kind, "--vocab-size", "320", "--min-frequency", "1", "--output")
    said(capsys, *command, tmp_path / "both", "--input", file, "--column", "en", "de")
    known = load_tokenizer(tmp_path / "both").get_vocab()
    words = {"Ġdog", "ĠHund"} if kind else {"dog", "hund"}
    assert words <= known.keys()
    assert "no column 'fr'" in refused(
        capsys, *command, tmp_path / "none", "--input", file, "--column", "en", "fr"
    )
    assert not (tmp_path / "none").exists()


def test_what_is_wrong_is_said_before_anything_is_written(tmp_path):
    (tmp_path / "texts.txt").write_text("a dog\n")
    for setting, said_so in (
        ({"vocab_size": 3}, "vocab_size: 3 is too small"),
        ({"vocab_size": 260}, "5 are special, 256 are bytes"),
        ({"limit_alphabet": 50}, "limit_alphabet: has no effect with byte_level"),
    ):
        raises(
            DataError,
            said_so,
            train_tokenizer,
            [tmp_path / "texts.txt"],
            tmp_path / "out",
            byte_level=True,
            **setting,
        )
    assert not (tmp_path / "out").exists()
    smallest = train_tokenizer([tmp_path / "texts.txt"], tmp_path / "out", vocab_size=261, byte_level=True)
    assert decoded(smallest, "Größe") == "Größe"


def test_it_reports_what_it_learned(tmp_path, caplog):
    (tmp_path / "texts.txt").write_text("dog dog dog\n")
    with caplog.at_level(logging.INFO, "bertkit"):
        train_tokenizer([tmp_path / "texts.txt"], tmp_path / "out", vocab_size=1000, byte_level=True)
    assert "1 texts, 3 words, 3 characters" in caplog.text
    assert "of 1,000 requested" in caplog.text
