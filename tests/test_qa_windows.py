"""Windows of questions and contexts: nothing lost, owned where context is widest, gold where the answer
stands.
"""

import random
import re
from itertools import pairwise

import pytest
import tokenizers
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small import raised, raises
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizer, PreTrainedTokenizerFast

from bertkit.data.word_spans import words
from bertkit.encoding.pieces import tokenize
from bertkit.encoding.question_windows import encode_pairs
from bertkit.encoding.word_windows import encode_words
from bertkit.errors import RowsError
from bertkit.models.encoder import load_tokenizer
from bertkit.tasks.question_answering import QuestionAnswering, QuestionAnsweringOptions

SPECIAL = "<pad> <unk> <s> </s>".split()
TOKENIZERS = ("wordpiece", "bytes", "metaspace")
WORDS = [
    *"the cat dog sat dogs running xyz é e\u0301 🙂 🏳️‍🌈 שלום العَرَبِيَّة の猫 , .".split(),
    "\u200b",
    " ",
    "\n",
    "\u3000",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join) | st.text(max_size=60)


def by_bytes():
    """As RoBERTa's: several pieces per character, blanks outside the offsets, pieces that are nothing but a
    blank.
    """
    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġc", "at", "Ġcat"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab, [("Ġ", "c"), ("a", "t"), ("Ġc", "at")], unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.RobertaProcessing(("</s>", 3), ("<s>", 2), add_prefix_space=False)
    return _fast(backend, model_input_names=["input_ids", "attention_mask"])


def by_metaspace():
    """As DeBERTa's: offsets take in the blank before a word."""
    letters = [(piece, -5.0) for piece in ["▁", *"abcdefghijklmnopqrstuvwxyz"]]
    words = [(f"▁{word}", -1.0) for word in "the cat dog sat".split()]
    backend = tokenizers.Tokenizer(models.Unigram([*((s, 0.0) for s in SPECIAL), *letters, *words], 1, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    template = {"single": "<s> $A </s>", "pair": "<s> $A </s> $B:1 </s>:1"}
    backend.post_processor = processors.TemplateProcessing(
        **template, special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    return _fast(backend, model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def _fast(backend, model_input_names):
    names = dict(zip("pad_token unk_token cls_token sep_token".split(), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=model_input_names, **names)


@pytest.fixture(scope="session")
def kinds(tiny_encoder):
    """The three kinds of tokenizers by name."""
    return {"wordpiece": load_tokenizer(tiny_encoder), "bytes": by_bytes(), "metaspace": by_metaspace()}


def encode(tokenizer, question, context, max_length=24, stride=4):
    return encode_pairs(
        tokenizer, [question], tokenize(tokenizer, [context]), max_length=max_length, stride=stride
    )


def qa(tokenizer, max_length=24, **options):
    given = {"name": "question-answering", "unanswerable": True, "stride": 4, **options}
    return QuestionAnswering(QuestionAnsweringOptions.model_validate(given), tokenizer, max_length)


# --- pieces


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize(("question", "context"), [("the cat ?", "the dog sat 🙂"), ("", "the")])
def test_a_short_pair_is_what_the_tokenizer_makes_of_it(kind, question, context, kinds):
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
def test_cover_is_the_pieces_that_reach_into_a_span(kind, text, data, kinds):
    (pieces,) = tokenize(kinds[kind], [text])
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    places = zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True)
    inside = [index for index, (low, high) in enumerate(places) if low < end and high > start]
    assert pieces.cover(start, end) == ((inside[0], inside[-1]) if inside else None)


# --- windows


@pytest.mark.parametrize(
    ("size", "stride"), [(18, 4), *((size, s) for size in (0, 19, 101) for s in (0, 4, 100))]
)
def test_every_piece_is_owned_once_where_it_has_most_context(size, stride, kinds):
    tokenizer = kinds["wordpiece"]
    context = " ".join("cat dog sat good bad one two three".split()[n * n % 8] for n in range(size))
    (pieces,) = tokenize(tokenizer, [context])
    # [CLS] the cat ? [SEP] … [SEP]: 18 are left
    columns = encode(tokenizer, "the cat ?", context, 24, stride)
    windows = [(low, low + count) for low, count in zip(columns["low"], columns["count"], strict=True)]
    own = list(zip(columns["first"], columns["end"], strict=True))
    assert [piece for first, end in own for piece in range(first, end)] == list(range(size))
    for index, (low, high) in enumerate(windows):
        assert columns["place"][index] == 5
        assert (
            tokenizer.convert_ids_to_tokens(columns["input_ids"][index][:5])
            == "[CLS] the cat ? [SEP]".split()
        )
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
def test_nothing_of_question_or_context_is_lost(kind, question, context, max_length, stride, kinds):
    tokenizer = kinds[kind]
    (asked,), (pieces,) = tokenize(tokenizer, [question]), tokenize(tokenizer, [context])
    if len(asked.ids) + tokenizer.num_special_tokens_to_add(pair=True) + 8 > max_length:
        raises(RowsError, "leaves no room", encode, tokenizer, question, context, max_length, stride)
        return
    columns = encode(tokenizer, question, context, max_length, stride)
    read = []
    for ids, place, low, count in zip(
        *(columns[c] for c in "input_ids place low count".split()), strict=True
    ):
        assert len(ids) <= max_length
        assert ids[1 : 1 + len(asked.ids)] == asked.ids
        assert low <= len(read)
        read[low:] = ids[place : place + count]
    assert read == pieces.ids
    spans = zip(columns["first"], columns["end"], strict=True)
    assert [piece for first, end in spans for piece in range(first, end)] == list(range(len(pieces.ids)))


def test_questions_that_leave_no_room_are_named_together(kinds):
    questions = ["the cat ?", "dog " * 14, "the", "sat " * 300]
    contexts = tokenize(kinds["wordpiece"], ["cat"] * 4)
    pairs = (kinds["wordpiece"], questions, contexts)
    error = raised(RowsError, encode_pairs, *pairs, max_length=24, stride=4)
    assert [(problem.where, problem.what[:22]) for problem in error.problems] == [
        ("row 2", "the question 'dog dog "),
        ("row 4", "the question 'sat sat "),
    ]
    assert "has 14 tokens, which leaves no room in windows of 24" in str(error)
    assert len(str(error)) < 500
    encode_pairs(kinds["wordpiece"], ["dog " * 13], contexts[:1], max_length=24, stride=4)


# --- gold


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=80, suppress_health_check=[HealthCheck.filter_too_much])
@given(context=TEXTS, data=st.data())
def test_gold_positions_point_at_the_answer(kind, context, data, kinds):
    """From first to last piece stands all of the answer that has a piece, and no piece more."""
    start = data.draw(st.integers(0, len(context)))
    answer = context[start : data.draw(st.integers(start, len(context)))]
    task = qa(kinds[kind], 32)
    answers = [{"text": [answer], "answer_start": [start]}]
    features = task.encode(
        Dataset.from_dict({"question": ["the ?"], "context": [context], "answers": answers})
    )
    (pieces,) = tokenize(task.tokenizer, [context])
    wanted = [
        i for i in range(len(pieces.ids)) if pieces.starts[i] < start + len(answer) and pieces.ends[i] > start
    ]
    for window in features:
        low = window["low"]
        high = window["low"] + window["count"]
        shift = window["low"] - window["place"]
        if wanted and low <= wanted[0] and wanted[-1] < high:
            assert [label + shift for label in window["labels"]] == [wanted[0], wanted[-1]]
            assert window["input_ids"][window["labels"][0]] == pieces.ids[wanted[0]]
        else:
            assert window["labels"] == [0, 0]


# --- windows over words: each is read once, at its first piece


@pytest.fixture(scope="module")
def tokenizer(tiny_encoder):
    return load_tokenizer(tiny_encoder)


def windows_of(tokenizer, *texts, **settings):
    arguments = {"max_length": 16, "stride": 4} | settings
    return encode_words(tokenizer, texts, [words(text) for text in texts], **arguments)


def test_a_word_is_read_at_its_first_piece_and_one_without_pieces_in_no_window(tokenizer):
    columns = windows_of(tokenizer, "the dogs sat")  # dog ##s
    assert tokenizer.convert_ids_to_tokens(columns["input_ids"][0]) == "[CLS] the dog ##s sat [SEP]".split()
    assert (columns["heads"], columns["words"], columns["length"]) == ([[1, 2, 4]], [[0, 1, 2]], [6])
    assert columns["token_type_ids"] == [[0] * 6]
    joined = encode_words(
        tokenizer, ["cats , dog"], [[(0, 3), (3, 4), (5, 6), (7, 10)]], max_length=16, stride=0
    )
    assert joined["heads"] == [[1, 2, 3, 4]]  # cat ##s , dog: by where they stand, as they were written
    columns = windows_of(tokenizer, "the \ue000 cat", "\ue000", "")
    assert columns["words"] == [[0, 2], [], []]
    assert columns["heads"] == [[1, 2], [], []]
    assert columns["row"] == [0, 1, 2]
    assert columns["mute"] == [1, 1, 0]
    first, *others = windows_of(tokenizer, "the \ue000 cat " * 20)["mute"]
    assert first == 20
    assert set(others) == {0}  # counted once, not in every window


def owner(head, windows, end):
    """Brute force: the window in which the piece has most context; none is missing at the sentence's own
    ends.
    """

    def context(window):
        low, high = window
        left = head - low if low else 10**6
        return min(left, high - 1 - head if high < end else 10**6)

    inside = [w for w, (low, high) in enumerate(windows) if low <= head < high]
    return max(inside, key=lambda w: (context(windows[w]), w))


@pytest.mark.parametrize("stride", [0, 1, 4, 5, 100])
def test_every_word_is_in_the_window_where_it_has_most_context(tokenizer, stride):
    rng = random.Random(stride)
    for size in (14, 15, 16, 27, 40, 111):
        text = " ".join(rng.choice("cat dogs sat running the".split()) for _ in range(size))
        columns = windows_of(tokenizer, text, stride=stride)
        whole = windows_of(tokenizer, text, max_length=10_000)
        heads = [head - 1 for head in whole["heads"][0]]
        pieces = whole["input_ids"][0][1:-1]
        lows = []
        at = 0
        for ids in columns["input_ids"]:
            inner = ids[1:-1]
            at = next(
                p
                for p in range(at, len(pieces))
                if pieces[p : p + len(inner)] == inner and (not lows or p > lows[-1])
            )
            lows.append(at)
        assert [word for own in columns["words"] for word in own] == list(range(size))
        assert all(len(ids) <= 16 for ids in columns["input_ids"])
        windows = [(low, low + len(ids) - 2) for low, ids in zip(lows, columns["input_ids"], strict=True)]
        for index, (low, own, at_heads) in enumerate(
            zip(lows, columns["words"], columns["heads"], strict=True)
        ):
            assert [head - 1 + low for head in at_heads] == [heads[word] for word in own]
            assert all(owner(heads[word], windows, len(pieces)) == index for word in own)


def test_document_context_fills_the_window_on_both_sides(tokenizer):
    texts = ["one two three four", "cat dog", "five yes no up down", "red"]
    columns = windows_of(tokenizer, *texts, max_length=10, documents="a a a b".split())
    read = [tokenizer.convert_ids_to_tokens(ids) for ids in columns["input_ids"]]
    assert read[0][1:-1] == "one two three four cat dog five yes".split()
    assert read[1][1:-1] == "two three four cat dog five yes no".split()
    assert read[2][1:-1] == "four cat dog five yes no up down".split()
    assert read[3] == ["[CLS]", "red", "[SEP]"]
    for row, text in enumerate(texts):
        assert [read[row][head] for head in columns["heads"][row]] == text.split()
    # no room for context
    columns = windows_of(tokenizer, "cat", "the dogs sat on " * 20, "dog", documents=["a"] * 3)
    own = [
        word for row, each in zip(columns["row"], columns["words"], strict=True) if row == 1 for word in each
    ]
    assert own == list(range(80))


@settings(max_examples=150)
@given(
    st.lists(st.text(max_size=60), min_size=1, max_size=4),
    st.integers(8, 20),
    st.integers(0, 30),
    st.booleans(),
)
def test_no_word_is_read_twice_whatever_the_text(texts, limit, stride, document):
    vocabulary = {word: i for i, word in enumerate("[PAD] [UNK] [CLS] [SEP] [MASK] a ##a b .".split())}
    tokenizer = BertTokenizer(vocab=vocabulary)
    documents = ["same"] * len(texts) if document else None
    columns = windows_of(tokenizer, *texts, max_length=limit, stride=stride, documents=documents)
    assert set(columns["row"]) == set(range(len(texts)))
    for row, text in enumerate(texts):
        own = [w for r, each in zip(columns["row"], columns["words"], strict=True) if r == row for w in each]
        assert own == sorted(set(own))
        assert len(own) <= len(words(text))
    for ids, heads in zip(columns["input_ids"], columns["heads"], strict=True):
        assert len(ids) <= limit
        assert all(0 < head < len(ids) - 1 for head in heads)


def test_a_space_alone_is_the_first_token_of_its_word():
    """Unigram models read a rare word as a lone ▁ and what follows; transformers labels and reads the ▁."""
    pieces = [
        ("<pad>", 0.0),
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("</s>", 0.0),
        ("▁", -5.0),
        ("▁the", -1.0),
        ("猫", -2.0),
    ]
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
