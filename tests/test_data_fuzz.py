"""Whatever bytes stand in a file: rows or a DataError, nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertkit.data import check, label_names, load, read_rows
from bertkit.data.schema import Column, Schema
from bertkit.errors import DataError
from bertkit.sections import DataSpec

SCHEMA = Schema(
    columns={
        "text": Column("text", "the text"),
        "label": Column("label", "one class"),
        "labels": Column("labels", "several classes"),
        "score": Column("number", "a number"),
    },
    inputs=(frozenset({"text"}),),
    targets=("label", "labels", "score"),
    corpus=False,
)
QUICK = settings(max_examples=75, suppress_health_check=[HealthCheck.function_scoped_fixture])

tricky = st.sampled_from(
    [b'"', b",", b"\t", b"\n", b"\r", b"\r\n", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\xe9", b"text", b"label", b"a|b",
     b"1.5", b"NaN", b"{", b"}", b"[", b"]", b":", b'{"text": "a", "label": 1}', b'"\\ud83d"', b"null", b"\xc2\x85",
     b" O\n", b"-DOCSTART-", b"# "]
)  # fmt: skip
some_bytes = st.one_of(st.binary(max_size=200), st.lists(tricky, max_size=40).map(b"".join))
some_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def read(path: Path, content: bytes, **recipe: Any) -> None:
    path.write_bytes(content)
    try:
        for number, row in read_rows(path, DataSpec.model_validate({"source": "unused", **recipe})):
            assert number > 0
            json.dumps(row, ensure_ascii=False).encode()
    except DataError:
        pass


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.json", "t.jsonl", "t.parquet", "t.conll"])
@given(
    content=some_bytes,
    extra=st.sampled_from(["error", "ignore"]),
    mark=st.none() | st.characters(exclude_categories=["Cs"], exclude_characters='"\r\n'),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-be", "utf-32", "shift_jis", "cp500"]),
)
@QUICK
def test_any_bytes(tmp_path, name, content, extra, mark, encoding):
    read(tmp_path / name, content, extra_fields=extra, delimiter=mark, encoding=encoding)


@given(
    rows=st.lists(
        st.fixed_dictionaries({}, optional=dict.fromkeys(("text", "label", "labels", "score"), some_json)), max_size=5
    ),
    validation=st.none() | st.floats(0.01, 0.99),
)
@QUICK
def test_any_values(tmp_path, rows, validation):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        data = load(DataSpec.model_validate({"source": str(path), "validation": validation}), SCHEMA)
    except DataError:
        return
    assert sum(map(len, data.rows.values())) == len(rows)
    assert check(data)
    if data.target == "label":
        names = label_names(data.rows["train"]["label"])
        assert sorted(names) == sorted(set(data.rows["train"]["label"]))
