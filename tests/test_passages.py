"""Passages hold every character of their document, in order, and fit the encoder."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_qa_windows import TEXTS, TOKENIZERS
from test_qa_windows import kinds as kinds

from bertkit.errors import ModelError
from bertkit.retrieval.passages import Passage, Window, joined, passages


def cut(tokenizer: Any, text: str, max_length: int = 24, stride: int = 6, title: str = "", prefix: str = "") -> Any:
    """The passages of one document."""
    return passages(tokenizer, [(title, text)], Window(max_length, stride, prefix))[0]


def length(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text)["input_ids"])


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, title=st.sampled_from(["", "the cat", "a very good dog and a cat " * 4]), stride=st.integers(0, 30))
def test_every_character_is_in_a_passage_that_fits(kinds: Any, kind: str, text: str, title: str, stride: int) -> None:
    made = cut(kinds[kind], text, max_length=32, stride=stride, title=title, prefix="the ")
    assert made[0].start == 0
    assert made[-1].end == len(text)
    for one, next_one in pairwise(made):
        assert one.start < next_one.start <= one.end < next_one.end
    for passage in made:
        assert passage.text == text[passage.start : passage.end]
        assert passage.read == joined(passage.title, passage.text)
        assert length(kinds[kind], "the " + passage.read) <= 32


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_document_that_fits_is_one_passage_with_its_whole_title(kinds: Any, kind: str) -> None:
    text, title = "the cat sat", "the dog"
    exact = length(kinds[kind], f"{title} {text}")
    assert cut(kinds[kind], text, exact, title=title) == [Passage(0, len(text), text, title)]


def test_passages_are_cut_between_words_and_share_the_stride(kinds: Any) -> None:
    text = "the dogs sat on running . " * 20
    apart = cut(kinds["wordpiece"], text, max_length=22, stride=0)
    assert all(one.end == next_one.start for one, next_one in pairwise(apart))
    made = cut(kinds["wordpiece"], text, max_length=22, stride=5)
    assert len(made) > 5
    for one, next_one in pairwise(made):
        for place in (one.end, next_one.start):
            assert text[place - 1] == " "
        shared = length(kinds["wordpiece"], text[next_one.start : one.end]) - 2
        assert 3 <= shared <= 5  # five, but for a word of two pieces that does not fit
        assert 17 <= length(kinds["wordpiece"], one.text) <= 22


@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
def test_a_word_longer_than_a_passage_is_cut_within(kinds: Any, kind: str) -> None:
    text = "sat " + "xyz" * 60 + " sat"
    made = cut(kinds[kind], text, stride=4)
    assert len(made) > 8
    assert all(one.end > next_one.start for one, next_one in pairwise(made[1:-1]))


def test_a_passage_before_a_long_word_starts_after_the_one_before_it(kinds: Any) -> None:
    """Also where it is no longer than the stride, half of a window."""
    draw = random.Random(0)
    for _ in range(500):
        words = [draw.choice(["the", "cats", "catss"]) for _ in range(draw.randint(14, 30))]
        made = cut(kinds["wordpiece"], " ".join([*words, "cat" + "s" * 12, "sat"]), max_length=16, stride=7)
        assert all(one.start < next_one.start for one, next_one in pairwise(made)), words


def test_pieces_of_one_character_stay_together(kinds: Any) -> None:
    text = "🙂" * 30  # four pieces each
    made = cut(kinds["bytes"], text, max_length=15, stride=4)
    assert [len(each.text) for each in made] == [3] * 14 + [2]  # of which one is shared: two more each


def test_a_long_title_is_shortened_only_where_the_document_does_not_fit(kinds: Any) -> None:
    title = "the good dog and the bad cat " * 3
    assert cut(kinds["wordpiece"], "sat", max_length=40, title=title)[0].title == title
    for each in cut(kinds["wordpiece"], "one two three " * 30, max_length=40, title=title):
        assert each.title == "the good dog and the bad cat the good dog"  # ten pieces: a quarter
    title_alone = cut(kinds["wordpiece"], "", max_length=16, title=title)
    assert [(each.text, each.title) for each in title_alone] == [("", "the good dog and")]


def test_several_documents_keep_apart(kinds: Any) -> None:
    documents = [("", "the cat"), ("", "the dog " * 40), ("", "")]
    made = passages(kinds["wordpiece"], documents, Window(24, 4))
    assert [len(each) > 1 for each in made] == [False, True, False]
    assert [each[-1].end for each in made] == [len(text) for _, text in documents]
    assert passages(kinds["wordpiece"], [], Window(24, 4)) == []


def test_a_prefix_that_leaves_no_room_is_refused(kinds: Any) -> None:
    with pytest.raises(ModelError, match=r"the prefix 'the cat .* leaves no room for text in 20 tokens"):
        cut(kinds["wordpiece"], "the dog " * 40, 20, prefix="the cat sat on the mat and it was very good and ")
