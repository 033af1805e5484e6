"""Texts and pairs to tokens: truncated and windowed between tokens, as transformers does it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_qa_windows import TEXTS, by_metaspace
from test_qa_windows import kinds as kinds
from tokenizers import normalizers

from bertkit.encoding.texts import encode_texts
from bertkit.errors import RowsError

KINDS = ("wordpiece", "bytes", "metaspace", "stripped")
LIMITS = st.integers(8, 20)
MORE = st.lists(st.sampled_from("the cat dogs xyz の猫 ﷺ ½ 🙂 .".split()), max_size=30).map(" ".join) | TEXTS


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, kinds: dict[str, Any]) -> Any:
    """Three kinds of tokens; and one that drops spaces at the end and reads one character as many, as XLM-R's does."""
    if request.param != "stripped":
        return kinds[request.param]
    made = by_metaspace()
    made.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    return made


@pytest.mark.parametrize("side", ["right", "left"])
@settings(max_examples=80)
@given(texts=st.lists(MORE, min_size=1, max_size=2), limit=LIMITS)
def test_what_is_kept_is_what_transformers_keeps(tokenizer: Any, side: str, texts: list[str], limit: int) -> None:
    tokenizer.truncation_side = side
    try:
        columns = encode_texts(tokenizer, [[text] for text in texts], max_length=limit, overflow="truncate", stride=0)
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
def test_windows_are_those_of_transformers(tokenizer: Any, text: str, limit: int, stride: int) -> None:
    columns = encode_texts(tokenizer, [[text]], max_length=limit, overflow="window", stride=stride)
    shared = min(stride, limit - tokenizer.num_special_tokens_to_add() - 1)
    wanted = tokenizer(text, truncation=True, max_length=limit, stride=shared, return_overflowing_tokens=True)
    assert columns["input_ids"] == wanted["input_ids"]
    assert columns["row"] == [0] * len(wanted["input_ids"])
    assert columns["lost"] == [0] * len(wanted["input_ids"])


@settings(max_examples=80)
@given(texts=st.tuples(MORE, MORE), limit=LIMITS, stride=st.integers(0, 30))
def test_windows_of_a_pair_run_over_the_longer_text(
    tokenizer: Any, texts: tuple[str, str], limit: int, stride: int
) -> None:
    columns = encode_texts(tokenizer, [[text] for text in texts], max_length=limit, overflow="window", stride=stride)
    whole = tokenizer(*texts, verbose=False)
    sides, ids = whole.sequence_ids(0), whole["input_ids"]
    own = [[i for i, side in zip(ids, sides, strict=True) if side == each] for each in (0, 1)]
    room = limit - sides.count(None)
    longer = int(len(own[1]) >= len(own[0]))
    share = min(len(own[1 - longer]), room // 2)
    cut = len(ids) > limit
    assert columns["lost"] == [len(own[1 - longer]) - share if cut else 0] * len(columns["lost"])
    # Each window without its special tokens and the shorter text is a part of the longer one; together they are all.
    special = {i for i, side in zip(ids, sides, strict=True) if side is None}
    seen = 0
    for window in columns["input_ids"]:
        assert len(window) <= limit
        inner = [i for i in window if i not in special]
        part = inner[share:] if longer else inner[: len(inner) - share]
        at = next(at for at in range(seen, -1, -1) if own[longer][at : at + len(part)] == part)
        seen = max(seen, at + len(part))
    assert seen == len(own[longer])


def test_a_row_that_is_too_long_is_named(tokenizer: Any) -> None:
    with pytest.raises(RowsError) as caught:
        encode_texts(tokenizer, [["cat", "the cat " * 20]], max_length=8, overflow="error", stride=0)
    ((row, what, fix),) = caught.value.by_row
    assert (row, fix) == (1, "Raise model.max_length.")
    assert what.endswith("tokens, 8 are allowed")
