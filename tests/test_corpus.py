"""Corpora: documents streamed into memory-mapped files, held out by their text, and checked on the way."""

import gzip
import json
import lzma
import subprocess
import sys
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from small import message_of, write_rows

from bertkit.data import check, fingerprint, load, read_rows
from bertkit.data import corpus as corpus_module
from bertkit.data import sources as sources_module
from bertkit.data.python_rows import store_rows
from bertkit.data.schema import Column, Schema
from bertkit.errors import DataError
from bertkit.sections import DataSpec

SCHEMA = Schema({"text": Column("text", "a document")}, inputs=(frozenset({"text"}),), corpus=True)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/cache/vectors")
    return tmp_path / "cache/vectors"


def get(source, splits=None, **settings):
    return load(DataSpec(source=source, **settings), SCHEMA, splits=splits)


fails = partial(message_of, DataError, get)


def texts(data, split="train"):
    return data.rows[split]["text"][:]


def documents(count, start=0):
    return [f"Document {i} begins here. It has two sentences." for i in range(start, start + count)]


def write(path, values):
    """jsonl of documents; the path as text."""
    return str(write_rows(path, [{"text": value} for value in values]))


# --- formats
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", "jsonl jsonl.gz jsonl.xz parquet csv txt".split())
def test_every_format_gives_the_same_documents(tmp_path, kind):
    values = documents(30)
    path = tmp_path / f"corpus.{kind}"
    lines = "".join(json.dumps({"text": value}) + "\n" for value in values).encode()
    content = {
        "jsonl": lines,
        "jsonl.gz": gzip.compress(lines),
        "jsonl.xz": lzma.compress(lines),
        "csv": ("text\n" + "".join(f'"{value}"\n' for value in values)).encode(),
        "txt": "\n\n".join(values).encode(),
    }
    if kind == "parquet":
        pq.write_table(pa.table({"text": values}), path)
    else:
        path.write_bytes(content[kind])
    data = get({"train": str(path)})
    assert texts(data) == values
    assert data.fingerprints == {"train": fingerprint({"text": values})}
    assert (data.target, list(data.columns), data.class_names, data.corpus) == ("text", ["text"], [], True)


def test_blank_lines_part_the_documents_of_txt(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("\n\n  One.  \nStill one.\r\n \t \n\nTwo.\n\n\n\nThree.")
    assert list(read_rows(path, DataSpec(source="x"))) == [
        (3, {"text": "One.\nStill one."}),
        (7, {"text": "Two."}),
        (11, {"text": "Three."}),
    ]
    data = get({"train": str(path)})
    assert data.origins["train"][1] == f"{path}:7"


def test_rows_of_the_hub_and_from_python(monkeypatch, cache):
    title = ["x"] * 20
    for start in (0, 50):  # the second: another content of the same name
        rows = {"text": documents(20, start), "title": title}
        hub = {"train": Dataset.from_dict(rows)}
        monkeypatch.setattr(sources_module, "hub_tables", lambda spec, hub=hub: hub)
        for given, place in (({"source": "some/corpus"}, "some/corpus, "), (store_rows({"train": rows}), "")):
            data = get(**given, validation=0.3)
            assert sorted(texts(data) + texts(data, "validation")) == sorted(rows["text"])
            assert data.origins["train"][0].startswith(f"{place}train, row ")
        assert len([*cache.iterdir()]) == 1 + (start > 0)  # rows from Python leave nothing there


def test_what_cannot_be_read_is_refused(tmp_path, cache, monkeypatch):
    file = tmp_path / "a.jsonl"
    for values, settings, said in (
        (
            documents(30),
            {"validation": 0.2, "group_by": "author"},
            "group_by: documents of a corpus have no groups",
        ),
        (documents(3), {"validation": 0.001}, "0.001 of 3 documents cannot be held out"),
        (documents(9), {"validation": 0.5, "test": 0.5}, "0.5 and 0.5 of 9 documents cannot be held out"),
        (documents(9), {"test": 2}, "before their number is known\n    Write a share below 1."),
        (
            ["One.", 5, "Two.", ["x"]],
            {},
            f"{file}:2: `text` holds 5, where text is expected; also in {file}:4",
        ),
        (["", " "], {}, f"{file}: holds no documents with text"),
    ):
        assert said in fails({"train": write(file, values)}, **settings)
        assert not cache.exists() or not list(cache.iterdir()), "nothing is left of a load that fails"
    message = fails(str(sources_module.samples_folder() / "retrieval"), columns={"text": "document"})
    assert "holds judged pairs, not documents" in message
    monkeypatch.setattr("bertkit.data.readers.MAX_DOCUMENT", 40)
    (tmp_path / "book.txt").write_text("fine\n\n" + "a line of text\n" * 4)
    assert "book.txt:3: no blank line within 40 characters" in fails({"train": f"{tmp_path}/book.txt"})
    monkeypatch.setenv("BERTKIT_CACHE", f"{file}/vectors")
    said = fails({"train": write(tmp_path / "b.jsonl", documents(5))})
    assert "the corpus cannot be cached here: Not a directory" in said


def test_several_files_and_a_column_of_another_name(tmp_path):
    files = [str(write_rows(tmp_path / f"{name}.jsonl", [{"body": f"Text {name}."}])) for name in "ab"]
    data = get({"train": files}, columns={"text": "body"})
    assert texts(data) == ["Text a.", "Text b."]
    assert data.origins["train"][1] == f"{files[1]}:1"
    assert "needs a column `text`; found: 'body'" in fails({"train": files[0]})


# --- what is kept
# ----------------------------------------------------------------------------------------------------


def test_a_second_load_reads_no_document(tmp_path, cache, monkeypatch):
    rows = ["text", *documents(40), '" "', documents(1)[0], "un café"]
    source = {"train": str(write_rows(tmp_path / "a.csv", "\n".join(rows)))}
    monkeypatch.setattr(corpus_module, "CHARACTERS", 20)  # that the last document exceeds, too
    first = get(source, validation=0.2, encoding="cp1252")
    monkeypatch.setattr(corpus_module, "_texts", None)
    second = get(source, validation=0.2, encoding="cp1252")
    assert sum("UTF-8" in finding.what for finding in first.findings) == 1
    assert second.fingerprints == first.fingerprints
    assert second.findings == first.findings
    places = [
        [data.origins["train"][row] for row in range(len(data.rows["train"]))] for data in (first, second)
    ]
    assert places[1] == places[0]
    assert {split: texts(second, split) for split in second.rows} == {s: texts(first, s) for s in first.rows}
    assert len(list(cache.iterdir())) == 1


def test_other_contents_and_other_settings_are_read_again(tmp_path, cache):
    path = tmp_path / "a.jsonl"
    source = {"train": write(path, documents(40))}
    get(source)
    write(path, documents(40, 40))
    assert texts(get(source)) == documents(40, 40)
    assert len(texts(get(source, limit=7))) == 7
    assert len(list(cache.iterdir())) == 3


# --- hold-out, limit, splits
# -----------------------------------------------------------------------------------------


def test_hold_out_goes_by_the_text_alone(tmp_path):
    values = documents(400)
    one = get({"train": write(tmp_path / "a.jsonl", values)}, validation=0.1)
    held = set(texts(one, "validation"))
    assert 20 <= len(held) <= 60
    assert texts(one, "validation") == [value for value in values if value in held]
    assert texts(one) == [value for value in values if value not in held]
    turned = get({"train": write(tmp_path / "b.jsonl", [*values[::-1], *values])}, validation=0.1)
    assert set(texts(turned, "validation")) == held
    assert not {*texts(turned)} & held
    assert not [finding for finding in turned.findings if "in train too" in finding.what]
    other = get({"train": write(tmp_path / "a.jsonl", values)}, validation=0.1, seed=7)
    assert set(texts(other, "validation")) != held


def test_a_test_split_is_the_same_whatever_validation_is(tmp_path):
    source = {"train": write(tmp_path / "a.jsonl", documents(1000) * 2)}
    held = get(source, test=0.2, splits={"test"})
    for share in (0.1, 0.4):
        data = get(source, test=0.2, validation=share)
        assert data.fingerprints["test"] == held.fingerprints["test"]
        parts = [set(texts(data, split)) for split in ("train", "validation", "test")]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 1000
        assert abs(len(parts[1]) - 1000 * share) < 60
        assert abs(len(parts[2]) - 200) < 60
        alone = set(texts(get(source, validation=share), "validation"))
        assert abs(len(alone & parts[2]) - 200 * share) < 30  # neither follows the other


def test_limit_takes_the_first_and_reads_no_further(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, documents(20))
    path.write_text(path.read_text() + "this is not JSON\n")
    data = get({"train": str(path)}, limit=12)
    assert texts(data) == documents(12)
    assert "train: limited to the first 12 documents" in [finding.what for finding in data.findings]
    assert "not JSON" in fails({"train": str(path)})
    whole = get({"train": write(path, documents(12))}, limit=12)
    assert not [finding for finding in whole.findings if "limited" in finding.what]


@pytest.fixture
def source(tmp_path):
    test = write(tmp_path / "b.jsonl", documents(9, 90))
    return {"train": write(tmp_path / "a.jsonl", documents(60)), "test": test}


def test_limits_by_split_and_only_the_splits_that_are_asked_for(source):
    data = get(source, limit={"test": 4})
    assert [len(data.rows[split]) for split in ("train", "test")] == [60, 4]
    held = get(source, limit={"validation": 2, "train": 50}, validation=0.5)
    assert len(held.rows["validation"]) == 2
    assert any(f.what.startswith("validation: limited to the first 2 documents") for f in held.findings)
    assert set(texts(held)) < set(documents(50))
    assert list(get(source, splits={"test"}, validation=0.2).rows) == ["test"]
    whole = get(source, validation=0.2)
    assert list(whole.rows) == ["train", "validation", "test"]
    held = get(source, splits={"validation"}, validation=0.2)
    assert texts(held, "validation") == texts(whole, "validation")
    assert "no train split" in fails({"test": source["test"]})


# --- findings
# --------------------------------------------------------------------------------------------------------


def test_findings_count_what_is_there_and_what_is_not(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, ["One.", "", "Two!", None, " \n", "ONE. ", "Two!"])
    test = write(tmp_path / "b.jsonl", ["two! ", "Three."])
    data = get({"train": str(path), "test": test})
    assert [finding[:3] for finding in check(data)] == [
        ("note", "train: 4 documents, 17 characters", ""),
        ("warn", f"train: 3 documents without text are left out: {path}:2, {path}:4, {path}:5", ""),
        ("warn", f"train: 2 documents repeat an earlier one; e.g. {path}:6 and {path}:1", ""),
        ("note", "test: 2 documents, 11 characters", ""),
        (
            "severe",
            f"test: 1 of 2 documents (50.0%) is in train too; e.g. {test}:1",
            "Remove them from train or from test, whose scores are higher than on new rows.",
        ),
    ]
    assert [finding.inflates for finding in check(data)] == ["", "", "", "", "test"]


MEMORY = """
import sys, tracemalloc
import pyarrow as pa
from bertkit.data import check, load
from bertkit.sections import DataSpec
from bertkit.data.schema import Column, Schema
import datasets, pyarrow.parquet

schema = Schema({"text": Column("text", "a document")}, inputs=(frozenset({"text"}),), corpus=True)
tracemalloc.start()
data = load(DataSpec.model_validate({"source": {"train": sys.argv[1]}, "validation": 0.1}), schema)
check(data)
print(len(data.rows["train"]), tracemalloc.get_traced_memory()[1] + pa.default_memory_pool().max_memory())
"""


def test_memory_does_not_grow_with_the_text(tmp_path):
    paragraph = "It was a bright cold day in April, and nothing at all struck thirteen. " * 160
    path = tmp_path / "big.jsonl"
    write(path, [f"{i} {paragraph}" for i in range(3_000)])
    size = path.stat().st_size
    assert size > 30_000_000
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True
    )
    kept, peak = map(int, done.stdout.split())
    assert kept > 2_500
    assert peak < size / 3
