"""The store keeps each document once, whatever stops it, and takes vectors of one model only."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from bertkit.errors import DataError, ModelError, UserError
from bertkit.retrieval.documents import BATCH_CHARACTERS, BATCH_DOCUMENTS, Document, batches
from bertkit.retrieval.store import Indexed, ModelIdentity, Store

SIZE = 32
MODEL = ModelIdentity("a/model", "c0ffee", "f" * 64, SIZE, max_length=12, stride=2)
MANY = 1200  # documents: two full batches, and a third


class ByWords:
    """A tokenizer: a piece per word, one special piece on each side."""

    def __call__(self, texts: Sequence[str], *, add_special_tokens: bool = True, **options: Any) -> dict[str, Any]:
        places = [[found.span() for found in re.finditer(r"\S+", text)] for text in texts]
        special = 2 if add_special_tokens else 0
        return {"input_ids": [[0] * (len(each) + special) for each in places], "offset_mapping": places}


class Encoder:
    """A hashed bag of words, of unit length; remembers what it was given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> Any:
        self.texts += texts
        vectors = np.full((len(texts), SIZE), 0.01, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                vectors[row, crc32(word.encode()) % SIZE] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def index(store: Store, documents: Any, encode: Any = None, ann_from: int = 10**9) -> Indexed:
    tokenizer: Any = ByWords()
    return store.index(documents, encode or Encoder(), tokenizer, ann_from)


def rows(store: Store, *names: str) -> list[Any]:
    """What the table holds, by id and passage: values, or tuples of them."""
    table = store.table.search().to_arrow().sort_by([("id", "ascending"), ("passage", "ascending")])
    columns = [table[name].to_pylist() for name in names or ("id", "passage")]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def numbered(count: int, text: str = "document number {}") -> list[dict[str, Any]]:
    return [{"id": f"d{number}", "text": text.format(number)} for number in range(count)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", MODEL)


def test_documents_become_passages_with_their_places_and_metadata(store: Store) -> None:
    long = "one two three four five six seven eight nine ten eleven twelve thirteen"
    documents = [
        {"_id": "b", "title": "Numbers", "text": long, "year": 2020, "open": True, "metadata": {}},
        {"_id": "a", "text": "short", "year": None, "metadata": {"price": 1.5, "lang": "en"}},
        {"_id": 7, "text": "whole number as id"},
    ]
    encode = Encoder()
    assert index(store, documents, encode) == Indexed(3, 0, 0, 0, 0, 4)
    assert rows(store) == [("7", 0), ("a", 0), ("b", 0), ("b", 1)]
    assert rows(store, "year", "open", "price", "lang")[1:3] == [(None, None, 1.5, "en"), (2020, True, None, None)]
    for text, start, end in rows(store, "text", "start", "end")[2:]:
        assert text == long[start:end]
    assert "Numbers one two three four five six seven eight nine" in encode.texts
    assert store.columns == {"year": int, "open": bool, "price": float, "lang": str}
    assert Store.open(store.uri, MODEL).identity == MODEL


def test_metadata_may_be_called_as_the_fields_of_a_passage(store: Store) -> None:
    documents = [
        {"id": "a", "text": "w " * 15, "number": 7, "document": "invoice"},
        {"id": "b", "text": "w " * 15},
    ]
    index(store, documents)
    assert rows(store, "number", "document") == [(7, "invoice")] * 2 + [(None, None)] * 2
    assert rows(store, "passage") == [0, 1, 0, 1]


@pytest.mark.parametrize("locations", [["f:1", "f:2"], ["f:1", "f:2", "f:3", "f:4"], []])
def test_every_document_has_a_location_or_none_has(store: Store, locations: list[str]) -> None:
    tokenizer: Any = ByWords()
    with pytest.raises(ValueError, match="argument 2 is"):
        store.index(numbered(3), Encoder(), tokenizer, locations=locations)
    bad = [*numbered(1), {"id": "d0", "text": "other"}]
    with pytest.raises(DataError, match="f:2: the id 'd0' has other contents at f:1"):
        store.index(bad, Encoder(), tokenizer, locations=iter(["f:1", "f:2"]))


def test_equal_documents_are_not_encoded_again_and_others_are_replaced(store: Store) -> None:
    index(store, [{"id": "a", "text": "w " * 60}, {"id": "b", "text": "b", "n": 1}, {"id": "c", "text": "c"}])
    assert len(store) > 8
    encode = Encoder()
    changed = [{"id": "a", "text": "short now"}, {"id": "b", "text": "b", "n": 2}, {"id": "c", "text": "c"}]
    assert index(store, [*changed, {"id": "d", "text": "d"}], encode) == Indexed(1, 2, 1, 0, 0, 3)
    assert sorted(encode.texts) == ["b", "d", "short now"]
    assert rows(store, "id", "passage", "text", "n") == [
        ("a", 0, "short now", None),
        ("b", 0, "b", 2),
        ("c", 0, "c", None),
        ("d", 0, "d", None),
    ]
    assert index(store, changed, encode).unchanged == 3
    assert len(encode.texts) == 3


def test_documents_without_text_are_counted_and_take_their_old_passages_along(store: Store) -> None:
    index(store, [{"id": "a", "text": "something"}, {"id": "t", "title": "a title is enough", "text": ""}])
    assert rows(store, "id") == ["a", "t"]
    assert index(store, [{"id": "a", "text": " \n"}, {"id": "n", "text": None}]) == Indexed(0, 0, 0, 0, 2, 0)
    assert rows(store, "id") == ["t"]


AWKWARD = ["it's", 'say "x"', "a\\", "ünï🙂", "x" * 10_000, "') OR ('1'='1", "a\nb", "--", "%_*", "`id`", "\x00", " a"]


def test_awkward_ids_are_only_themselves(store: Store) -> None:
    documents = [{"id": name, "text": f"text of {number}"} for number, name in enumerate(AWKWARD)]
    assert index(store, documents).added == len(AWKWARD)
    assert index(store, documents).unchanged == len(AWKWARD)
    for number, name in enumerate(AWKWARD):
        assert store.delete([name, "not there"]) == [name]
        assert len(store) == len(AWKWARD) - number - 1
    assert store.delete([]) == []


def test_a_repeated_id_is_counted_or_refused_with_both_places(store: Store) -> None:
    same = [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}, {"id": "a", "text": "x"}]
    assert index(store, same) == Indexed(2, 0, 0, 1, 0, 2)
    with pytest.raises(DataError, match=r"row 3: the id 'a' has other contents at row 1\n.*its own id"):
        index(store, [*same[:2], {"id": "a", "text": "z"}])
    with pytest.raises(DataError, match=f"row {MANY + 1}: the id 'd0' has other contents at row 1"):
        index(store, [*numbered(MANY), {"id": "d0", "text": "other"}])
    assert "document number 0" in rows(store, "text")  # the batches before it stay


def test_column_types_are_settled_by_the_first_batch(store: Store) -> None:
    index(store, [{"id": "a", "text": "x", "price": 1}, {"id": "b", "text": "x", "price": 2.5, "year": 2020}])
    assert store.columns == {"price": float, "year": int}
    index(store, [{"id": "c", "text": "x", "price": 7, "new": "text"}])
    bad = [
        {"id": "d", "text": "x", "price": "cheap"},
        {"id": "e", "text": "x", "year": 2020.5},
        {"id": "f", "text": "x", "new": True},
    ]
    with pytest.raises(DataError) as error:
        index(Store.open(store.uri), bad)
    assert [(p.where, p.what) for p in error.value.problems] == [
        ("row 1", "`price` holds 'cheap', but earlier rows hold numbers"),
        ("row 2", "`year` holds 2020.5, but earlier rows hold whole numbers"),
        ("row 3", "`new` holds True, but earlier rows hold text"),
    ]
    assert rows(store, "id", "price") == [("a", 1.0), ("b", 2.5), ("c", 7.0)]
    with pytest.raises(DataError, match="row 2: `z` holds 'a', but earlier rows hold whole numbers"):
        index(store, [{"id": "g", "text": "x", "z": 1}, {"id": "h", "text": "x", "z": "a"}])


def test_lists_are_metadata_too(store: Store) -> None:
    index(store, [{"id": "a", "text": "x"}])
    store = Store.open(store.uri)  # from before it had lists
    tagged = {"id": "b", "text": "x", "tags": ["red", "\ud83d"], "sizes": [1, 2.5], "seen": [True], "years": [1999]}
    index(store, [tagged, {"id": "c", "text": "x", "tags": [], "sizes": [3], "years": [0.5]}])
    assert rows(store, "id", "tags", "sizes", "seen", "years") == [
        ("a", None, None, None, None),
        ("b", ["red", "\ufffd"], [1.0, 2.5], [True], [1999.0]),
        ("c", None, [3.0], None, [0.5]),
    ]
    again = Store.open(store.uri)
    assert again.columns == {"tags": list[str], "sizes": list[float], "seen": list[bool], "years": list[float]}
    changed = {"id": "b", "text": "x", "tags": ["blue"], "sizes": [7]}
    assert index(again, [changed, {"id": "c", "text": "x", "sizes": [3], "years": [0.5]}]) == Indexed(0, 1, 1, 0, 0, 1)
    again.delete(["c"])
    assert rows(again, "id", "tags", "sizes", "seen") == [("a", None, None, None), ("b", ["blue"], [7.0], None)]


def test_a_column_is_of_lists_or_of_values_but_not_of_both(store: Store) -> None:
    with pytest.raises(DataError, match=r"row 2: `n` holds 2\.5, but earlier rows hold lists of whole numbers"):
        index(store, [{"id": "a", "text": "x", "n": [1]}, {"id": "b", "text": "x", "n": 2.5}])
    index(store, [{"id": "a", "text": "x", "tags": ["y"], "n": [1], "one": "y"}])
    bad = [
        {"id": "b", "text": "x", "tags": "y"},
        {"id": "c", "text": "x", "tags": [1]},
        {"id": "d", "text": "x", "n": [1.5]},
        {"id": "e", "text": "x", "one": ["y"]},
    ]
    with pytest.raises(DataError) as error:
        index(Store.open(store.uri), bad)
    assert [(p.where, p.what) for p in error.value.problems] == [
        ("row 1", "`tags` holds 'y', but earlier rows hold lists of text"),
        ("row 2", "`tags` holds [1], but earlier rows hold lists of text"),
        ("row 3", "`n` holds [1.5], but earlier rows hold lists of whole numbers"),
        ("row 4", "`one` holds ['y'], but earlier rows hold text"),
    ]
    assert rows(store, "id") == ["a"]


def test_a_column_that_another_program_added_is_refused(store: Store) -> None:
    import pyarrow as pa

    store.table.add_columns(pa.schema({"day": pa.date32()}))
    with pytest.raises(DataError, match=r"`day` has the type date32\[day\], which bertkit does not write"):
        index(Store.open(store.uri), numbered(1))


BAD_ROWS = {
    "id": ({"text": "x"}, "its `id` is None, where a text or a whole number is expected"),
    "blank id": ({"id": " ", "text": "x"}, "its `id` is ' '"),
    "flag as id": ({"id": True, "text": "x"}, "its `id` is True"),
    "no text": ({"id": "a", "body": "x"}, "has no column `text`; it has id, body"),
    "text": ({"id": "a", "text": ["x"]}, "`text` holds ['x'], where text is expected"),
    "title": ({"id": "a", "text": "x", "title": 3}, "`title` holds 3, where text is expected"),
    "object": ({"id": "a", "text": "x", "n": {"m": 1}}, "`n` holds {'m': 1}; metadata are text, numbers"),
    "list of lists": ({"id": "a", "text": "x", "tags": ["z", ["y"]]}, "`tags` holds ['y']; metadata are text, numbers"),
    "mixed list": (
        {"id": "a", "text": "x", "tags": ["y", 1]},
        "`tags` holds ['y', 1]; a list must hold values of one",
    ),
    "flags and numbers": (
        {"id": "a", "text": "x", "tags": [True, 1]},
        "`tags` holds [True, 1]; a list must hold values of",
    ),
    "hole in a list": (
        {"id": "a", "text": "x", "tags": ["y", None]},
        "`tags` holds ['y', None]; a list must hold values of",
    ),
    "list of nothing": ({"id": "a", "text": "x", "tags": [None]}, "`tags` holds [None]; a list must hold values of"),
    "huge in a list": ({"id": "a", "text": "x", "n": [2**63, 0.5]}, "a number of more than 64 bits; write it as text"),
    "name of a list": ({"id": "a", "text": "x", "a.b": ["y", "z"]}, "the column name 'a.b' is not available"),
    "huge": ({"id": "a", "text": "x", "n": 2**63}, "a number of more than 64 bits; write it as text"),
    "own": ({"id": "a", "text": "x", "Vector": 1}, "the column name 'Vector' is not available; rename it"),
    "hidden": ({"id": "a", "text": "x", "_rowid": 1}, "the column name '_rowid' is not available"),
    "dot": ({"id": "a", "text": "x", "a.b": 1}, "the column name 'a.b' is not available"),
    "nested": ({"id": "a", "text": "x", "metadata": {"a": {}}}, "`a` holds {}; metadata are"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_rows_are_named(store: Store, kind: str) -> None:
    row, what = BAD_ROWS[kind]
    with pytest.raises(DataError) as error:
        index(store, [{"id": "ok", "text": "fine"}, row])
    assert [problem.where for problem in error.value.problems] == ["row 2"]
    assert what in error.value.problems[0].what


def test_all_bad_rows_are_named_at_once(store: Store) -> None:
    with pytest.raises(DataError) as error:
        index(store, [BAD_ROWS["id"][0], {"id": "ok", "text": "fine"}, BAD_ROWS["text"][0]])
    assert [problem.where for problem in error.value.problems] == ["row 1", "row 3"]
    assert len(store) == 0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"fingerprint": "e" * 64, "name": "b/model"}, "was made with a/model at revision c0ffee; b/model is another"),
        ({"document_prefix": "passage: "}, r"other options: document_prefix '', not 'passage: '"),
        (
            {"query_prefix": "q: ", "max_length": 99},
            r"other options: max_length 12, not 99, query_prefix '', not 'q: '",
        ),
    ],
)
def test_another_model_is_refused(store: Store, other: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Store.open(store.uri, replace(MODEL, **other))
    assert Store.open(store.uri, replace(MODEL, name="/moved/here", revision=None)).identity == MODEL


@pytest.mark.parametrize("name", [field.name for field in fields(ModelIdentity)])
def test_every_field_of_a_model_but_its_place_decides_its_vectors(name: str, store: Store) -> None:
    value = getattr(MODEL, name)
    other = replace(MODEL, **{name: value + (1 if isinstance(value, int) else "x")})
    if name in ("name", "revision"):
        store.require(other)
        return
    with pytest.raises(ModelError, match=r"was made with a/model at revision c0ffee"):
        store.require(other)


def test_what_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a store of bertkit\n.*bertkit index MODEL"):
        Store.open(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with pytest.raises(DataError, match="is not a store of bertkit"):
            Store.open(tmp_path / name)
        with pytest.raises(DataError, match="exists, and is not a store"):
            Store.open_or_create(tmp_path / name, MODEL)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter.txt"]
    Store.create(tmp_path / "store", MODEL)
    with pytest.raises(DataError, match="is already a store"):
        Store.create(tmp_path / "store", MODEL)


@pytest.mark.parametrize("begun", ["", "_transactions/0-a.txn", "_versions/.tmp_1"])
def test_a_store_that_was_killed_before_it_stood_is_made_anew(tmp_path: Path, begun: str) -> None:
    folder = tmp_path / "store" / "passages.lance"
    (folder / begun).parent.mkdir(parents=True)
    (folder / begun).write_text("half") if begun else folder.mkdir()
    index(Store.open_or_create(tmp_path / "store", MODEL), numbered(3))
    assert len(Store.open(tmp_path / "store")) == 3


def test_what_is_left_of_a_store_is_not_written_over(tmp_path: Path) -> None:
    folder = Path(Store.create(tmp_path / "store", MODEL).uri) / "passages.lance"
    shutil.rmtree(folder / "_versions")
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "rows.lance").write_text("rows")
    with pytest.raises(DataError, match="is already a store"):
        Store.open_or_create(tmp_path / "store", MODEL)


def test_two_that_make_a_store_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertkit.retrieval.store._free", lambda folder: True)  # as it was a moment ago
    Store.create(tmp_path / "store", MODEL)
    with pytest.raises(DataError, match=r"another process is creating a store here\n.*run the same command again"):
        Store.create(tmp_path / "store", MODEL)


def test_damage_that_the_database_calls_a_bad_value_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(self: Any, **options: Any) -> None:
        raise ValueError("Invalid format: manifest length does not match. Expected 655, got 12, /somewhere/in/rust.rs")

    monkeypatch.setattr(type(store.table), "optimize", damaged)
    with pytest.raises(DataError, match=r"cannot be read or written: Invalid format: .* got 12\n"):
        index(store, numbered(3))


def test_metadata_do_not_hide_each_other(store: Store) -> None:
    with pytest.raises(DataError, match="row 1: has `lang` twice, inside `metadata` and outside"):
        index(store, [{"id": "a", "text": "x", "lang": "de", "metadata": {"lang": "en"}}])


def test_halves_of_surrogates_find_nothing_to_delete(store: Store) -> None:
    index(store, [{"id": "a\ud83d", "text": "x"}])
    assert store.delete(["\udcff"]) == []
    assert store.delete(["a\ud83d"]) == ["a\ufffd"]


def test_a_pair_of_surrogates_would_shift_the_offsets_of_passages(store: Store) -> None:
    with pytest.raises(DataError, match="`text` holds a character as a pair of surrogates"):
        index(store, [{"id": "a", "text": "\ud83d\ude00 x"}])
    index(store, [{"id": "a", "text": "😀 x \ud83d"}])


def test_a_store_has_a_uri_too(tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()  # what is neither created nor looked for as a folder, as s3://…
    with pytest.raises(DataError, match="is not a store of bertkit"):
        Store.open(uri)
    index(Store.open_or_create(uri, MODEL), numbered(3))
    assert len(Store.open_or_create(uri, MODEL)) == len(Store.open(tmp_path / "store")) == 3


def test_a_table_of_another_program_is_refused(tmp_path: Path) -> None:
    import lancedb

    lancedb.connect(tmp_path / "store").create_table("passages", [{"id": "a", "vector": [1.0, 2.0]}])
    with pytest.raises(DataError, match="does not name its model"):
        Store.open(tmp_path / "store")


def test_a_store_that_was_cut_off_says_so(store: Store) -> None:
    index(store, numbered(5))
    folder = Path(store.uri) / "passages.lance"
    for spoil in ("data", "_versions"):
        copy = Path(store.uri).with_name(spoil)
        shutil.copytree(store.uri, copy)
        for file in (copy / "passages.lance" / spoil).glob("*.*"):
            os.truncate(file, 10)
        with pytest.raises(DataError, match=r"the store cannot be read or written: .*\n.*copy it again"):
            index(Store.open(copy), numbered(6))
    assert len(Store.open(folder.parent)) == 5


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda n: np.ones((n, SIZE + 1)), r"gave vectors of shape \(5, 33\) for 5 texts, not of size 32"),
        (lambda n: np.full((n, SIZE), np.nan), "its vector is 0 or not finite for the document 'd0'"),
        (lambda n: np.eye(n, SIZE) * (np.arange(n) != 3)[:, None], "0 or not finite for the document 'd3'"),
    ],
)
def test_bad_vectors_are_refused(store: Store, made: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        index(store, numbered(5), lambda texts: made(len(texts)))
    assert len(store) == 0


def test_batches_are_bounded() -> None:
    def documents() -> Iterator[Document]:
        for number in range(2 * BATCH_DOCUMENTS + 7):
            drawn.append(number)
            size = BATCH_CHARACTERS + 5 if number == BATCH_DOCUMENTS + 3 else 10
            yield Document("", str(number), "", "x" * size, {}, "")

    drawn: list[int] = []
    sizes = []
    for batch in batches(documents()):
        sizes.append(len(batch))
        assert len(drawn) <= sum(sizes) + 1
    assert sizes == [BATCH_DOCUMENTS, 3, 1, BATCH_DOCUMENTS, 3]


def test_an_approximate_index_is_built_from_a_size_on_and_stays_in_few_parts(store: Store) -> None:
    index(store, numbered(40), ann_from=41)
    assert not store.approximate
    for extra in range(12):
        index(store, numbered(41 + extra), ann_from=41)
        statistics = store.table.index_stats("vector_idx")
        assert statistics.num_unindexed_rows == 0
        assert statistics.num_indices <= 9
    assert store.approximate
    assert len(store) == 52


def test_without_lancedb_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(UserError, match=r'needs lancedb, which is not installed\n.*pip install "bertkit\[retrieval\]"'):
        Store.create(tmp_path / "store", MODEL)


def child(how: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `index_in_a_child` in a process of its own."""
    command = f"import test_store; test_store.index_in_a_child({how!r}, {str(folder)!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, timeout=300)


def index_in_a_child(how: str, folder: str) -> None:
    """Index MANY documents; die while the third batch is encoded or the second written, or find no room for it."""
    store, encode, calls = Store.create(folder, MODEL), Encoder(), []

    def die_when_written() -> None:
        data = Path(folder) / "passages.lance" / "data"
        before = len(list(data.iterdir()))
        while len(list(data.iterdir())) == before:
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    def encode_or_die(texts: Sequence[str]) -> Any:
        calls.append(len(texts))
        if how == "encoding" and len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "writing" and len(calls) == 2:
            threading.Thread(target=die_when_written, daemon=True).start()
        if how == "no room" and len(calls) == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        return encode(texts)

    index(store, numbered(MANY), encode_or_die)


@pytest.mark.parametrize("how", ["encoding", "writing", "no room"])
def test_a_call_that_is_stopped_is_finished_by_the_next_without_duplicates(tmp_path: Path, how: str) -> None:
    stopped = child(how, tmp_path / "store")
    if how == "no room":
        assert stopped.returncode == 1
        assert "the disk is full" in stopped.stderr
        assert "The documents indexed so far are safe." in stopped.stderr
    else:
        assert stopped.returncode == -signal.SIGKILL
    store, encode = Store.open(tmp_path / "store", MODEL), Encoder()
    kept = len(store)
    assert kept in {"encoding": (1024,), "writing": (512, 1024), "no room": (512,)}[how]
    done = index(store, numbered(MANY), encode)
    assert done == Indexed(MANY - kept, 0, kept, 0, 0, MANY - kept)
    assert len(encode.texts) == MANY - kept
    assert sorted(rows(store, "id")) == sorted(f"d{number}" for number in range(MANY))
