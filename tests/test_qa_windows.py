"""Windows of questions and contexts: nothing lost, owned where context is widest, gold where the answer stands."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_word_windows import owner
from tokenizers import models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from bertkit.encoding.pieces import tokenize
from bertkit.encoding.question_windows import encode_pairs
from bertkit.errors import RowsError
from bertkit.models.encoder import load_tokenizer
from bertkit.tasks.question_answering import QuestionAnswering, QuestionAnsweringOptions

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
TOKENIZERS = ("wordpiece", "bytes", "metaspace")
WORDS = [
    *"the cat dog sat dogs running xyz é e\u0301 🙂 🏳️‍🌈 שלום العَرَبِيَّة の猫 , .".split(),
    "\u200b",
    " ",
    "\n",
    "\u3000",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join) | st.text(max_size=60)


def by_bytes() -> Any:
    """As RoBERTa's: several pieces per character, blanks outside the offsets, pieces that are nothing but a blank."""
    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġc", "at", "Ġcat"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("Ġ", "c"), ("a", "t"), ("Ġc", "at")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.RobertaProcessing(("</s>", 3), ("<s>", 2), add_prefix_space=False)
    return _fast(backend, model_input_names=["input_ids", "attention_mask"])


def by_metaspace() -> Any:
    """As DeBERTa's: offsets take in the blank before a word."""
    letters = [(piece, -5.0) for piece in ["▁", *"abcdefghijklmnopqrstuvwxyz"]]
    words = [(f"▁{word}", -1.0) for word in ("the", "cat", "dog", "sat")]
    backend = tokenizers.Tokenizer(models.Unigram([*((s, 0.0) for s in SPECIAL), *letters, *words], 1, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    template = {"single": "<s> $A </s>", "pair": "<s> $A </s> $B:1 </s>:1"}
    backend.post_processor = processors.TemplateProcessing(**template, special_tokens=[("<s>", 2), ("</s>", 3)])
    return _fast(backend, model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def _fast(backend: Any, model_input_names: list[str]) -> Any:
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=model_input_names, **names)


@pytest.fixture(scope="session")
def kinds(tiny_encoder: Path) -> dict[str, Any]:
    """The three kinds of tokenizers by name."""
    return {"wordpiece": load_tokenizer(tiny_encoder), "bytes": by_bytes(), "metaspace": by_metaspace()}


def encode(tokenizer: Any, question: str, context: str, max_length: int = 24, stride: int = 4) -> dict[str, list[Any]]:
    return encode_pairs(tokenizer, [question], tokenize(tokenizer, [context]), max_length=max_length, stride=stride)


def qa(tokenizer: Any, max_length: int = 24, **options: Any) -> QuestionAnswering:
    given = {"name": "question-answering", "unanswerable": True, "stride": 4, **options}
    return QuestionAnswering(QuestionAnsweringOptions.model_validate(given), tokenizer, max_length)


# --- pieces


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize(("question", "context"), [("the cat ?", "the dog sat 🙂"), ("", "the")])
def test_a_short_pair_is_what_the_tokenizer_makes_of_it(
    kind: str, question: str, context: str, kinds: dict[str, Any]
) -> None:
    tokenizer = kinds[kind]
    expected = tokenizer(question, context, return_token_type_ids=True)
    columns = encode(tokenizer, question, context, 64)
    assert columns["input_ids"] == [expected["input_ids"]]
    assert columns["length"] == [len(expected["input_ids"])]
    if kind == "bytes":
        assert "token_type_ids" not in columns
    else:
        assert columns["token_type_ids"] == [expected["token_type_ids"]]


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=60)
@given(text=TEXTS, data=st.data())
def test_cover_is_the_pieces_that_reach_into_a_span(kind: str, text: str, data: Any, kinds: dict[str, Any]) -> None:
    (pieces,) = tokenize(kinds[kind], [text])
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    places = zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True)
    inside = [index for index, (low, high) in enumerate(places) if low < end and high > start]
    assert pieces.cover(start, end) == ((inside[0], inside[-1]) if inside else None)


# --- windows


@pytest.mark.parametrize(("size", "stride"), [(18, 4), *((size, s) for size in (0, 19, 101) for s in (0, 4, 100))])
def test_every_piece_is_owned_once_where_it_has_most_context(size: int, stride: int, kinds: dict[str, Any]) -> None:
    tokenizer = kinds["wordpiece"]
    context = " ".join("cat dog sat good bad one two three".split()[n * n % 8] for n in range(size))
    (pieces,) = tokenize(tokenizer, [context])
    columns = encode(tokenizer, "the cat ?", context, 24, stride)  # [CLS] the cat ? [SEP] … [SEP]: 18 are left
    windows = [(low, low + count) for low, count in zip(columns["low"], columns["count"], strict=True)]
    own = list(zip(columns["first"], columns["end"], strict=True))
    assert [piece for first, end in own for piece in range(first, end)] == list(range(size))
    for index, (low, high) in enumerate(windows):
        assert columns["place"][index] == 5
        assert tokenizer.convert_ids_to_tokens(columns["input_ids"][index][:5]) == "[CLS] the cat ? [SEP]".split()
        assert columns["input_ids"][index][5:-1] == pieces.ids[low:high]
        assert tokenizer.convert_ids_to_tokens(columns["input_ids"][index])[-1] == "[SEP]"
        assert columns["token_type_ids"][index] == [0] * 5 + [1] * (high - low + 1)
        assert columns["length"][index] == len(columns["input_ids"][index]) <= 24
        assert all(owner(piece, windows, size) == index for piece in range(*own[index]))
    overlaps = [one[1] - other[0] for one, other in pairwise(windows)]
    assert all(overlap >= min(stride, 9) for overlap in overlaps)
    assert len(windows) == 1 or size > 18


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=60)
@given(question=TEXTS, context=TEXTS, max_length=st.integers(20, 60), stride=st.integers(0, 80))
def test_nothing_of_question_or_context_is_lost(
    kind: str, question: str, context: str, max_length: int, stride: int, kinds: dict[str, Any]
) -> None:
    tokenizer = kinds[kind]
    (asked,), (pieces,) = tokenize(tokenizer, [question]), tokenize(tokenizer, [context])
    if len(asked.ids) + tokenizer.num_special_tokens_to_add(pair=True) + 8 > max_length:
        with pytest.raises(RowsError, match="leaves no room"):
            encode(tokenizer, question, context, max_length, stride)
        return
    columns = encode(tokenizer, question, context, max_length, stride)
    read: list[int] = []
    for ids, place, low, count in zip(*(columns[c] for c in ("input_ids", "place", "low", "count")), strict=True):
        assert len(ids) <= max_length
        assert ids[1 : 1 + len(asked.ids)] == asked.ids
        assert low <= len(read)
        read[low:] = ids[place : place + count]
    assert read == pieces.ids
    spans = zip(columns["first"], columns["end"], strict=True)
    assert [piece for first, end in spans for piece in range(first, end)] == list(range(len(pieces.ids)))


def test_questions_that_leave_no_room_are_named_together(kinds: dict[str, Any]) -> None:
    questions = ["the cat ?", "dog " * 14, "the", "sat " * 300]
    contexts = tokenize(kinds["wordpiece"], ["cat"] * 4)
    with pytest.raises(RowsError) as caught:
        encode_pairs(kinds["wordpiece"], questions, contexts, max_length=24, stride=4)
    assert [problem.where for problem in caught.value.problems] == ["row 2", "row 4"]
    assert [problem.what[:22] for problem in caught.value.problems] == [
        "the question 'dog dog ",
        "the question 'sat sat ",
    ]
    assert "has 14 tokens, which leaves no room in windows of 24" in str(caught.value)
    assert len(str(caught.value)) < 500
    encode_pairs(kinds["wordpiece"], ["dog " * 13], contexts[:1], max_length=24, stride=4)


# --- gold


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=80, suppress_health_check=[HealthCheck.filter_too_much])
@given(context=TEXTS, data=st.data())
def test_gold_positions_point_at_the_answer(kind: str, context: str, data: Any, kinds: dict[str, Any]) -> None:
    """From first to last piece stands all of the answer that has a piece, and no piece more."""
    start = data.draw(st.integers(0, len(context)))
    answer = context[start : data.draw(st.integers(start, len(context)))]
    task = qa(kinds[kind], 32)
    answers = [{"text": [answer], "answer_start": [start]}]
    features = task.encode(Dataset.from_dict({"question": ["the ?"], "context": [context], "answers": answers}))
    (pieces,) = tokenize(task.tokenizer, [context])
    wanted = [i for i in range(len(pieces.ids)) if pieces.starts[i] < start + len(answer) and pieces.ends[i] > start]
    for window in features:
        low, high, shift = window["low"], window["low"] + window["count"], window["low"] - window["place"]
        if wanted and low <= wanted[0] and wanted[-1] < high:
            assert [label + shift for label in window["labels"]] == [wanted[0], wanted[-1]]
            assert window["input_ids"][window["labels"][0]] == pieces.ids[wanted[0]]
        else:
            assert window["labels"] == [0, 0]
