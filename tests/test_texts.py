"""Texts and pairs to tokens, as transformers truncates and windows them; and documents to passages that
fit.
"""

import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_qa_windows import TEXTS, TOKENIZERS, by_metaspace
from test_qa_windows import kinds as kinds
from tokenizers import normalizers
from transformers import BertTokenizer

from bertkit.data.rows import Columns
from bertkit.encoding.texts import encode_texts, length_findings, unknown_findings
from bertkit.errors import ModelError, RowsError
from bertkit.models.encoder import load_tokenizer
from bertkit.retrieval.passages import Passage, Window, joined, passages
from bertkit.tasks import get_task

KINDS = "wordpiece bytes metaspace stripped".split()
LIMITS = st.integers(8, 20)
MORE = st.lists(st.sampled_from("the cat dogs xyz の猫 ﷺ ½ 🙂 .".split()), max_size=30).map(" ".join) | TEXTS


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request, kinds):
    """Three kinds of tokens; and one that drops spaces at the end and reads one character as many, as XLM-R's
    does.
    """
    if request.param != "stripped":
        return kinds[request.param]
    made = by_metaspace()
    made.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    return made


@pytest.mark.parametrize("side", ["right", "left"])
@settings(max_examples=80)
@given(texts=st.lists(MORE, min_size=1, max_size=2), limit=LIMITS)
def test_what_is_kept_is_what_transformers_keeps(tokenizer, side, texts, limit):
    tokenizer.truncation_side = side
    try:
        columns = encode_texts(
            tokenizer, [[text] for text in texts], max_length=limit, overflow="truncate", stride=0
        )
        expected = tokenizer(*([text] for text in texts), truncation=True, max_length=limit)
    finally:
        tokenizer.truncation_side = "right"
    whole = tokenizer(*([text] for text in texts), verbose=False)
    for name in set(tokenizer.model_input_names) - {"attention_mask"}:
        assert columns[name] == expected[name]
    assert columns["length"] == [len(expected["input_ids"][0])]
    assert columns["lost"] == [len(whole["input_ids"][0]) - len(expected["input_ids"][0])]


@settings(max_examples=80)
@given(text=MORE, limit=LIMITS, stride=st.integers(0, 30))
def test_windows_are_those_of_transformers(tokenizer, text, limit, stride):
    columns = encode_texts(tokenizer, [[text]], max_length=limit, overflow="window", stride=stride)
    shared = min(stride, limit - tokenizer.num_special_tokens_to_add() - 1)
    wanted = tokenizer(text, truncation=True, max_length=limit, stride=shared, return_overflowing_tokens=True)
    assert columns["input_ids"] == wanted["input_ids"]
    assert columns["row"] == [0] * len(wanted["input_ids"])
    assert columns["lost"] == [0] * len(wanted["input_ids"])


@settings(max_examples=80)
@given(texts=st.tuples(MORE, MORE), limit=LIMITS, stride=st.integers(0, 30))
def test_windows_of_a_pair_run_over_the_longer_text(tokenizer, texts, limit, stride):
    columns = encode_texts(
        tokenizer, [[text] for text in texts], max_length=limit, overflow="window", stride=stride
    )
    whole = tokenizer(*texts, verbose=False)
    sides = whole.sequence_ids(0)
    ids = whole["input_ids"]
    own = [[i for i, side in zip(ids, sides, strict=True) if side == each] for each in (0, 1)]
    room = limit - sides.count(None)
    longer = int(len(own[1]) >= len(own[0]))
    share = min(len(own[1 - longer]), room // 2)
    cut = len(ids) > limit
    assert columns["lost"] == [len(own[1 - longer]) - share if cut else 0] * len(columns["lost"])
    # Each window without its special tokens and the shorter text is a part of the longer one; together they
    # are all.
    special = {i for i, side in zip(ids, sides, strict=True) if side is None}
    seen = 0
    for window in columns["input_ids"]:
        assert len(window) <= limit
        inner = [i for i in window if i not in special]
        part = inner[share:] if longer else inner[: len(inner) - share]
        at = next(at for at in range(seen, -1, -1) if own[longer][at : at + len(part)] == part)
        seen = max(seen, at + len(part))
    assert seen == len(own[longer])


def test_a_row_that_is_too_long_is_named(tokenizer):
    with pytest.raises(RowsError) as caught:
        encode_texts(tokenizer, [["cat", "the cat " * 20]], max_length=8, overflow="error", stride=0)
    ((row, what, fix),) = caught.value.by_row
    assert (row, fix) == (1, "Raise model.max_length.")
    assert what.endswith("tokens; at most 8 are allowed")


# --- passages of documents


def cut(tokenizer, text, max_length=24, stride=6, title="", prefix=""):
    """The passages of one document."""
    return passages(tokenizer, [(title, text)], Window(max_length, stride, prefix))[0]


def length(tokenizer, text):
    return len(tokenizer(text)["input_ids"])


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=TEXTS,
    title=st.sampled_from(["", "the cat", "a very good dog and a cat " * 4]),
    stride=st.integers(0, 30),
)
def test_every_character_is_in_a_passage_that_fits(kinds, kind, text, title, stride):
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
def test_a_document_that_fits_is_one_passage_with_its_whole_title(kinds, kind):
    text = "the cat sat"
    title = "the dog"
    exact = length(kinds[kind], f"{title} {text}")
    assert cut(kinds[kind], text, exact, title=title) == [Passage(0, len(text), text, title)]


def test_passages_are_cut_between_words_and_share_the_stride(kinds):
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
def test_a_word_longer_than_a_passage_is_cut_within(kinds, kind):
    text = "sat " + "xyz" * 60 + " sat"
    made = cut(kinds[kind], text, stride=4)
    assert len(made) > 8
    assert all(one.end > next_one.start for one, next_one in pairwise(made[1:-1]))
    made = cut(kinds["bytes"], "🙂" * 30, max_length=15, stride=4)  # of four pieces each, which stay together
    assert [len(each.text) for each in made] == [3] * 14 + [2]  # of which one is shared: two more each


def test_a_passage_before_a_long_word_starts_after_the_one_before_it(kinds):
    """Also where it is no longer than the stride, half of a window."""
    draw = random.Random(0)
    for _ in range(500):
        words = [draw.choice(["the", "cats", "catss"]) for _ in range(draw.randint(14, 30))]
        made = cut(kinds["wordpiece"], " ".join([*words, "cat" + "s" * 12, "sat"]), max_length=16, stride=7)
        assert all(one.start < next_one.start for one, next_one in pairwise(made)), words


def test_a_long_title_is_shortened_only_where_the_document_does_not_fit(kinds):
    title = "the good dog and the bad cat " * 3
    assert cut(kinds["wordpiece"], "sat", max_length=40, title=title)[0].title == title
    for each in cut(kinds["wordpiece"], "one two three " * 30, max_length=40, title=title):
        assert each.title == "the good dog and the bad cat the good dog"  # ten pieces: a quarter
    title_alone = cut(kinds["wordpiece"], "", max_length=16, title=title)
    assert [(each.text, each.title) for each in title_alone] == [("", "the good dog and")]


def test_several_documents_keep_apart(kinds):
    documents = [("", "the cat"), ("", "the dog " * 40), ("", "")]
    made = passages(kinds["wordpiece"], documents, Window(24, 4))
    assert [len(each) > 1 for each in made] == [False, True, False]
    assert [each[-1].end for each in made] == [len(text) for _, text in documents]
    assert passages(kinds["wordpiece"], [], Window(24, 4)) == []
    with pytest.raises(ModelError, match=r"the prefix 'the cat .* leaves no room for text in 20 tokens"):
        cut(
            kinds["wordpiece"], "the dog " * 40, 20, prefix="the cat sat on the mat and it was very good and "
        )


@pytest.mark.parametrize(("unknown", "level"), [(5, None), (6, "warn"), (50, "warn"), (51, "fail")])
@pytest.mark.parametrize(
    ("word", "script"),
    [
        ("ខ្មែរ", ", mostly Khmer: ខ្មែរ"),
        ("汉", ", mostly CJK: 汉"),
        ("🙂", ": 🙂"),
        ("bc", ", mostly Latin: bc"),
    ],
)
def test_texts_in_a_script_that_the_tokenizer_does_not_know_are_noticed(unknown, level, word, script):
    tokenizer = BertTokenizer(
        vocab={token: i for i, token in enumerate("[PAD] [UNK] [CLS] [SEP] [MASK] a".split())}
    )
    rows = Columns({"text_a": ["a " * (97 - unknown), f"{word} " * (unknown - 1)], "text_b": ["a a a", word]})
    found = list(
        unknown_findings(tokenizer, "some/bert", rows, get_task("text-classification").schema, "test")
    )
    assert [finding.level for finding in found] == ["warn" if level and word == "bc" else level] * (
        level is not None
    )
    for finding in found:
        assert finding.what.startswith(
            "test: 1 of 2 rows have only tokens that are unknown to the tokenizer of some/bert; "
            f"{unknown}.0% of all tokens are unknown{script}"
        )


@pytest.mark.parametrize(("count", "read"), [(1_999, 1_999), (2_000, 1_000), (50_000, 1_000)])
def test_many_rows_are_looked_at_in_part(count, read, kinds):
    rows = Columns({"text": ["zzz"] * count})
    (found,) = unknown_findings(
        kinds["wordpiece"], "bert", rows, get_task("text-classification").schema, "train"
    )
    assert f"{read:,} of {read:,} rows have" in found.what
    assert not [
        *unknown_findings(kinds["bytes"], "roberta", rows, get_task("text-classification").schema, "train")
    ]


def test_windows_of_a_pair_share_half_of_themselves_at_most(kinds):
    pair = [["the cat " * 20], ["dogs " * 100]]
    assert (
        len(encode_texts(kinds["wordpiece"], pair, max_length=32, overflow="window", stride=20)["row"]) < 40
    )


def test_windows_of_pairs_are_not_advised_again(tiny_encoder):
    texts = [["a " * 40], ["b " * 50]]
    options = {"max_length": 16, "overflow": "window", "stride": 2}
    features = Columns(encode_texts(load_tokenizer(tiny_encoder), texts, **options))
    *_, finding = length_findings(features, "train", 16)
    assert "truncated" in finding.what
    assert finding.fix == "Raise model.max_length."
