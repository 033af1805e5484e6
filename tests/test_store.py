"""The store keeps each document once, whatever stops it, and takes vectors of one model only."""

import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from zlib import crc32

import lancedb
import numpy as np
import pytest
from small import problems_of, raises, write_rows

import bertkit
from bertkit.data.problems import FirstSeen
from bertkit.errors import DataError, ModelError, UserError
from bertkit.retrieval import documents as documents_module
from bertkit.retrieval.documents import RESERVED, TYPE_NAMES, read_documents
from bertkit.retrieval.passages import Window
from bertkit.retrieval.store import Store, database_errors
from bertkit.retrieval.vector_models import DualEncoder, ModelFiles, unit_vectors

SIZE = 32
MODEL = ModelFiles("a/model", "c0ffee", "f" * 64)
MANY = 1200  # documents: two full batches, and a third


class ByWords:
    """A tokenizer: a piece per word, one special piece on each side."""

    def __call__(self, texts, *, add_special_tokens=True, **options):
        places = [[found.span() for found in re.finditer(r"\S+", text)] for text in texts]
        special = 2 if add_special_tokens else 0
        return {"input_ids": [[0] * (len(each) + special) for each in places], "offset_mapping": places}


class Encoder:
    """A hashed bag of words, of unit length; remembers what it was given."""

    def __init__(self):
        self.texts = []

    def __call__(self, texts):
        self.texts += texts
        vectors = np.full((len(texts), SIZE), 0.01, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                vectors[row, crc32(word.encode()) % SIZE] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def dual(encode=None, files=MODEL):
    """A model whose passages have twelve tokens."""
    tokenizer = ByWords()
    encode = encode or Encoder()
    return DualEncoder(files, SIZE, Window(12, 2), tokenizer, encode, encode)


def index(store, documents, encode=None, ann_from=10**9):
    located = ((f"row {number}", document) for number, document in enumerate(documents, 1))
    return store.index(located, dual(encode), ann_from)


def rows(store, *names):
    """What the table holds, by id and passage: values, or tuples of them."""
    table = store.table.search().to_arrow().sort_by([("id", "ascending"), ("passage", "ascending")])
    columns = [table[name].to_pylist() for name in names or ("id", "passage")]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def numbered(count, text="document number {}"):
    return [{"id": f"d{number}", "text": text.format(number)} for number in range(count)]


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store", dual())


def test_documents_become_passages_with_their_places_and_metadata(store):
    long = "one two three four five six seven eight nine ten eleven twelve thirteen"
    documents = [
        {"_id": "b", "title": "Numbers", "text": long, "year": 2020, "open": True, "metadata": {}},
        {"_id": "a", "text": "short", "year": None, "metadata": {"price": 1.5, "lang": "en"}},
        {"_id": 7, "text": "whole number as id"},
    ]
    encode = Encoder()
    assert index(store, documents, encode) == Counter(added=3, passages=4)
    assert rows(store) == [("7", 0), ("a", 0), ("b", 0), ("b", 1)]
    assert rows(store, "year", "open", "price", "lang")[1:3] == [
        (None, None, 1.5, "en"),
        (2020, True, None, None),
    ]
    for text, start, end in rows(store, "text", "start", "end")[2:]:
        assert text == long[start:end]
    assert "Numbers one two three four five six seven eight nine" in encode.texts
    kinds = [f"{name} {kind}" for name, kind in store.columns.items() if name not in RESERVED]
    assert kinds == ["year int64", "open bool", "price double", "lang string"]
    assert Store.open(store.uri, dual()).made_with == MODEL
    # as a passage's own fields
    index(store, [{"id": "c", "text": "w " * 15, "number": 7, "document": "invoice"}])
    assert rows(store, "number", "document", "passage")[-2:] == [(7, "invoice", 0), (7, "invoice", 1)]


def test_equal_documents_are_not_encoded_again_and_others_are_replaced(store):
    index(store, [{"id": "a", "text": "w " * 60}, {"id": "b", "text": "b", "n": 1}, {"id": "c", "text": "c"}])
    assert len(store) > 8
    encode = Encoder()
    changed = [{"id": "a", "text": "short now"}, {"id": "b", "text": "b", "n": 2}, {"id": "c", "text": "c"}]
    assert index(store, [*changed, {"id": "d", "text": "d"}], encode) == Counter(
        added=1, replaced=2, unchanged=1, passages=3
    )
    assert sorted(encode.texts) == ["b", "d", "short now"]
    assert rows(store, "id", "passage", "text", "n") == [
        ("a", 0, "short now", None),
        ("b", 0, "b", 2),
        ("c", 0, "c", None),
        ("d", 0, "d", None),
    ]
    assert index(store, changed, encode)["unchanged"] == 3
    assert len(encode.texts) == 3
    index(store, [{"id": "t", "title": "a title is enough", "text": ""}])
    assert index(store, [{"id": "a", "text": " \n"}, {"id": "n", "text": None}]) == Counter(empty=2)
    assert rows(store, "id") == "b c d t".split()  # without text a document takes its old passages along


AWKWARD = [
    "it's",
    'say "x"',
    "a\\",
    "ünï🙂",
    "x" * 10_000,
    "') OR ('1'='1",
    "a\nb",
    "--",
    "%_*",
    "`id`",
    "\x00",
    " a",
]


def test_awkward_ids_are_only_themselves(store):
    documents = [{"id": name, "text": f"text of {number}"} for number, name in enumerate(AWKWARD)]
    assert index(store, documents)["added"] == len(AWKWARD)
    assert index(store, documents)["unchanged"] == len(AWKWARD)
    for number, name in enumerate(AWKWARD):
        assert store.delete([name, "not there"]) == [name]
        assert len(store) == len(AWKWARD) - number - 1
    assert store.delete([]) == []
    index(store, [{"id": "a\ud83d", "text": "😀 x \ud83d"}])  # halves of surrogates
    assert store.delete(["\udcff"]) == []
    assert store.delete(["a\ud83d"]) == ["a\ufffd"]


def test_a_repeated_id_is_counted_or_refused_with_both_places(store):
    same = [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}, {"id": "a", "text": "x"}]
    assert index(store, same) == Counter(added=2, repeated=1, passages=2)
    said = r"row 3: the id 'a' has other contents at row 1\n.*Use unique ids"
    raises(DataError, said, index, store, [*same[:2], {"id": "a", "text": "z"}])
    said = f"row {MANY + 1}: the id 'd0' has other contents at row 1"
    raises(DataError, said, index, store, [*numbered(MANY), {"id": "d0", "text": "other"}])
    assert "document number 0" in rows(store, "text")  # the batches before it stay


def test_column_types_are_settled_by_the_first_batch(store):
    index(store, [{"id": "a", "text": "x", "price": 1}, {"id": "b", "text": "x", "price": 2.5, "year": 2020}])
    assert [str(kind) for kind in store.columns.values()][3:] == ["double", "int64"]
    index(store, [{"id": "c", "text": "x", "price": 7, "new": "text", "tags": ["y"], "n": [1]}])
    bad = [
        ("price", "cheap", "numbers"),
        ("year", 2020.5, "whole numbers"),
        ("new", True, "text"),
        ("tags", "y", "lists of text"),
        ("tags", [1], "lists of text"),
        ("n", [1.5], "lists of whole numbers"),
        ("new", ["y"], "text"),
    ]
    documents = [{"id": f"x{n}", "text": "x", name: value} for n, (name, value, _) in enumerate(bad)]
    places = [
        f"row {n}: `{name}` holds {value!r}, but earlier rows hold {kind}"
        for n, (name, value, kind) in enumerate(bad, 1)
    ]
    problems = problems_of(DataError, index, Store.open(store.uri), documents)
    assert [f"{problem.where}: {problem.what}" for problem in problems] == places
    assert rows(store, "id", "price") == [("a", 1.0), ("b", 2.5), ("c", 7.0)]
    for first, second, kind in ((1, "a", "whole numbers"), ([1], 2.5, "lists of whole numbers")):
        said = f"row 2: `z` holds {second!r}, but earlier rows hold {kind}"
        given = [{"id": "g", "text": "x", "z": first}, {"id": "h", "text": "x", "z": second}]
        raises(DataError, said, index, store, given)


def test_lists_are_metadata_too(store):
    index(store, [{"id": "a", "text": "x"}])
    store = Store.open(store.uri)  # from before it had lists
    tagged = {
        "id": "b",
        "text": "x",
        "tags": ["red", "\ud83d"],
        "sizes": [1, 2.5],
        "seen": [True],
        "years": [1999],
    }
    index(store, [tagged, {"id": "c", "text": "x", "tags": [], "sizes": [3], "years": [0.5]}])
    assert rows(store, "id", "tags", "sizes", "seen", "years") == [
        ("a", None, None, None, None),
        ("b", ["red", "\ufffd"], [1.0, 2.5], [True], [1999.0]),
        ("c", None, [3.0], None, [0.5]),
    ]
    again = Store.open(store.uri)
    kinds = ", ".join(TYPE_NAMES[kind].removeprefix("lists of ") for kind in list(again.columns.values())[3:])
    assert kinds == "text, numbers, true or false, numbers"
    changed = {"id": "b", "text": "x", "tags": ["blue"], "sizes": [7]}
    assert index(again, [changed, {"id": "c", "text": "x", "sizes": [3], "years": [0.5]}]) == Counter(
        replaced=1, unchanged=1, passages=1
    )
    again.delete(["c"])
    assert rows(again, "id", "tags", "sizes", "seen") == [
        ("a", None, None, None),
        ("b", ["blue"], [7.0], None),
    ]


NOT_METADATA = "metadata are text, numbers of at most 64 bits"
BAD_ROWS = [
    ({"text": "x"}, "`id`: expected text or a whole number, found None"),
    ({"id": " ", "text": "x"}, "`id`: expected text or a whole number, found ' '"),
    ({"id": True, "text": "x"}, "`id`: expected text or a whole number, found True"),
    ({"id": "a", "body": "x"}, "has no column `text`; it has id, body"),
    ({"id": "a", "text": ["x"]}, "`text`: expected text, found ['x']"),
    ({"id": "a", "text": "x", "title": 3}, "`title`: expected text, found 3"),
    (
        {"id": "a", "text": "\ud83d\ude00 x"},
        "`text` holds a character as a pair of surrogates, which shifts offsets",
    ),
    ({"id": "a", "text": "x", "n": {"m": 1}}, f"`n` holds {{'m': 1}}; {NOT_METADATA}"),
    ({"id": "a", "text": "x", "tags": ["z", ["y"]]}, f"`tags` holds ['z', ['y']]; {NOT_METADATA}"),
    ({"id": "a", "text": "x", "tags": ["y", 1]}, f"`tags` holds ['y', 1]; {NOT_METADATA}"),
    ({"id": "a", "text": "x", "tags": [None]}, f"`tags` holds [None]; {NOT_METADATA}"),
    ({"id": "a", "text": "x", "n": [2**63, 0.5]}, f"`n` holds [9223372036854775808, 0.5]; {NOT_METADATA}"),
    ({"id": "a", "text": "x", "Vector": 1}, "the column name 'Vector' is not available; rename it"),
    ({"id": "a", "text": "x", "_rowid": 1}, "the column name '_rowid' is not available"),
    ({"id": "a", "text": "x", "a.b": 1}, "the column name 'a.b' is not available"),
    (
        {"id": "a", "text": "x", "lang": "de", "metadata": {"lang": "en"}},
        "has `lang` twice, inside `metadata` and out",
    ),
]


def test_bad_rows_are_named_at_once():
    for row, what in BAD_ROWS:
        named = (("row 1", row), ("row 2", {"id": "ok", "text": "fine"}), ("row 3", {"text": "x"}))
        problems = problems_of(DataError, list, read_documents(named, FirstSeen()))
        assert [problem.where for problem in problems] == ["row 1", "row 3"]
        assert what in problems[0].what


def test_another_model_is_refused(store):
    said = "was made with a/model at revision c0ffee; b/model is another"
    other = dual(files=MODEL._replace(fingerprint="e" * 64, name="b/model"))
    raises(ModelError, said, Store.open, store.uri, other)
    moved = dual(files=MODEL._replace(name="/moved/here", revision=None))
    assert Store.open(store.uri, moved).made_with == MODEL


def test_what_is_no_store_is_refused_and_left_alone(tmp_path):
    raises(DataError, r"is not a bertkit store\n.*Index documents", Store.open, tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        raises(DataError, "is not a bertkit store", Store.open, tmp_path / name)
        raises(DataError, "exists, and is not a store", Store.open, tmp_path / name, dual())
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter.txt"]
    (tmp_path / "empty").mkdir()
    assert len(Store.open(tmp_path / "empty", dual())) == 0
    uri = f"file://{tmp_path}/store"  # what is neither created nor looked for as a folder, as s3://…
    raises(DataError, "is not a bertkit store", Store.open, uri)
    index(Store.open(uri, dual()), numbered(3))
    assert len(Store.open(uri, dual())) == len(Store.open(tmp_path / "store")) == 3
    lancedb.connect(tmp_path / "other").create_table("passages", [{"id": "a", "vector": [1.0, 2.0]}])
    raises(DataError, "has no record of its model", Store.open, tmp_path / "other")


def test_a_store_that_was_cut_off_says_so(store):
    index(store, numbered(5))
    folder = Path(store.uri) / "passages.lance"
    for spoil in ("data", "_versions"):
        copy = Path(store.uri).with_name(spoil)
        shutil.copytree(store.uri, copy)
        for file in (copy / "passages.lance" / spoil).glob("*.*"):
            os.truncate(file, 10)
        with pytest.raises(DataError, match=r"cannot be read or written: .*\n.*copy it again"):
            index(Store.open(copy), numbered(6))
    assert len(Store.open(folder.parent)) == 5


def test_a_vector_without_a_direction_is_refused():
    vectors = np.eye(3, SIZE)
    np.testing.assert_array_equal(unit_vectors(7 * vectors, list("abc")), vectors)
    for bad in (0, np.nan, np.inf):
        vectors[1] = bad
        raises(
            ModelError,
            "its vector is 0 or not finite for the text 'b'",
            unit_vectors,
            vectors,
            list("abc"),
        )


def test_batches_are_bounded(store, monkeypatch):
    """A batch is full at eight documents, or at eight pages of text."""
    monkeypatch.setattr(documents_module, "_BATCH", 8)
    encode = Encoder()
    sizes = []
    documents = numbered(20)
    documents[10]["text"] = "word " * 5000

    def sized(texts):
        sizes.append(sum("number" in text for text in texts))
        return encode(texts)

    index(store, documents, sized)
    assert sizes == [8, 2, 8, 1]


def test_an_approximate_index_is_built_from_a_size_on_and_stays_in_few_parts(store):
    index(store, numbered(40), ann_from=41)
    assert not store.approximate
    for extra in range(12):
        index(store, numbered(41 + extra), ann_from=41)
        statistics = store.table.index_stats("vector_idx")
        assert statistics.num_unindexed_rows == 0
        assert statistics.num_indices <= 9
    assert store.approximate
    assert len(store) == 52


def test_without_lancedb_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lancedb", None)
    said = r'lancedb is not installed\n.*pip install "bertkit\[retrieval\]"'
    raises(UserError, said, Store.open, tmp_path / "store", dual())


def test_a_call_that_is_stopped_is_completed_by_the_same_call(store):
    encode = Encoder()
    calls = []

    def fail_at_the_third(texts):
        calls.append(len(texts))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode(texts)

    with pytest.raises(KeyboardInterrupt):
        index(store, numbered(MANY), fail_at_the_third)
    assert len(store) == 1024
    assert index(store, numbered(MANY), encode) == Counter(
        added=MANY - 1024, unchanged=1024, passages=MANY - 1024
    )
    assert len(encode.texts) == MANY
    assert sorted(rows(store, "id")) == sorted(f"d{number}" for number in range(MANY))


CONFLICT = (
    "lance error: Retryable commit conflict for version 16: This CreateIndex was preempted. Please retry."
)
DAMAGE = "Invalid format: manifest length does not match. Expected 655, got 12, /somewhere/in/rust.rs"


def test_a_second_writer_and_damage_that_the_database_calls_a_bad_value_are_told():
    """In the words of LanceDB 0.40; the first of the slower one of two processes that make the same index."""
    for error, told in (
        (RuntimeError(CONFLICT), r"commit conflict for version 16(.|\n)*Another process was writing to it"),
        (ValueError(DAMAGE), r"cannot be read or written: Invalid format: .* got 12\n"),
    ):
        with pytest.raises(DataError, match=told), database_errors("uri"):
            raise error


def test_a_store_at_home(tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": "1", "text": "a cat"}])
    bertkit.index(tiny_encoder, "~/s.store", rows)
    assert bertkit.search("~/s.store", "cat")[0].id == "1"
    assert (tmp_path / "s.store").is_dir()
