"""Values as each way in has them: ids of float columns, missing values of pandas, spans from Python, late
keys.
"""

import gzip
import io
import json
import re
import unicodedata
from functools import partial
from pathlib import Path

import datasets
import numpy
import openpyxl
import pandas
import polars
import pyarrow
import pytest
from packaging.version import Version
from small import message_of, raises, read_data, write_rows

from bertkit.data import check, load
from bertkit.data.problems import FirstSeen
from bertkit.data.python_inputs import scored_section
from bertkit.data.python_rows import frame_rows
from bertkit.data.values import read_inputs
from bertkit.errors import DataError
from bertkit.retrieval.documents import read_documents
from bertkit.sections import DataSpec
from bertkit.tasks import get_task

BIG = 2**53


def get(data, task="text-classification", options=None, **settings):
    """Rows or a file as this task reads them for a test split, or as `splits` says."""
    kind = get_task(task)
    given = data if not isinstance(data, Path) else {"source": {"test": str(data)}}
    spec = DataSpec(**scored_section(given), **settings)
    return read_data(spec, kind, kind.Options(name=task, **options or {}), splits=["test"])


fails = partial(message_of, DataError, get)


def workbook(frame, path):
    """The frame as a sheet, in which numbers are floats."""
    book = openpyxl.Workbook()
    for row in [list(frame), *frame.astype(object).where(frame.notna(), None).values.tolist()]:
        book.active.append(row)
    book.save(path)
    return path


def written(frame, path, write, **how):
    getattr(frame, write)(path, **how)
    return path


WAYS = {  # what pandas has made floats of, as each way in gives it
    "pandas": lambda frame, path: frame,
    "polars": lambda frame, path: polars.from_pandas(frame),
    "pyarrow": lambda frame, path: pyarrow.Table.from_pandas(frame),
    "datasets": lambda frame, path: datasets.Dataset.from_pandas(frame),
    "rows": lambda frame, path: frame.to_dict("records"),
    "csv": lambda frame, path: written(frame, path / "t.csv", "to_csv", index=False),
    "jsonl": lambda frame, path: written(frame, path / "t.jsonl", "to_json", orient="records", lines=True),
    "parquet": lambda frame, path: written(frame, path / "t.parquet", "to_parquet"),
    "xlsx": lambda frame, path: workbook(frame, path / "t.xlsx"),
}


def floats(*ids, **columns):
    return pandas.DataFrame({"text": [f"text {n}" for n in range(len(ids))], "id": [*ids], **columns})


@pytest.mark.parametrize("way", WAYS)
def test_whole_numbers_stay_whole_in_columns_with_a_missing_value(way, tmp_path):
    frame = floats(101, None, 103, label=[1, None, 0], customer=[7, None, 7])
    assert frame["id"].dtype == frame["label"].dtype == float
    (tmp_path / "out.jsonl").write_text('{"id": 103}\n')
    read = {"by": "customer", "missing_labels": "ignore"}
    rows = get(WAYS[way](frame, tmp_path), **read).rows["test"]
    assert [rows["id"][:], rows["label"][:], rows["customer"][:]] == [["101", "103"], ["1", "0"], ["7", "7"]]
    kept = get(WAYS[way](frame, tmp_path), exclude=f"{tmp_path}/out.jsonl", **read).rows["test"]
    assert kept["id"][:] == ["101"]
    pairs = frame.rename(columns={"id": "query_id", "customer": "document_id"})
    pairs = pairs.assign(query=pairs["text"], document=["d", "e", "d"], grade=[1, 0, 2]).drop(
        columns=["label", "text"]
    )
    rows = get(WAYS[way](pairs, tmp_path), "retrieval").rows["test"]
    assert [[name or None for name in rows[side]] for side in ("query_id", "document_id")] == [
        ["101", None, "103"],
        ["7", None, "7"],
    ]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "csv"])
@pytest.mark.parametrize("column", ["id", "label", "customer"])
def test_a_whole_number_that_pandas_has_rounded_is_an_error(way, column, tmp_path):
    exact, rounded = (floats(101, None, 103, label=["a", "b", "a"], customer="x") for _ in range(2))
    exact[column] = [float(BIG - 1), None, 5.0]
    rounded[column] = [5.0, None, float(BIG) if way != "xlsx" else 2.0**60]
    data = get(WAYS[way](exact, tmp_path), by="customer", missing_labels="ignore")
    assert data.rows["test"][column][0] == str(BIG - 1)
    if way == "xlsx" and column != "id":  # any text may be a label there
        return
    said = fails(WAYS[way](rounded, tmp_path), by="customer", missing_labels="ignore")
    assert f"`{column}` holds" in said
    assert "rounded" in said
    assert "dtype={NAME: str}" in said


def test_other_ids_that_are_no_names(tmp_path):
    assert "row 1: `id` holds 1.5, a fraction" in fails(floats(1.5, 2))
    assert get(floats(1, 2, label=["a", "b"], by=[0.5, 1]), by="by").rows["test"]["by"][:] == ["0.5", "1"]
    write_rows(tmp_path / "t.csv", "id,text,label\n1.23457E+12,a,b\n")
    assert "t.csv:2: `id` holds '1.23457E+12', a number that a spreadsheet has rounded" in fails(
        tmp_path / "t.csv"
    )
    # versions, and a checksum
    write_rows(tmp_path / "t.csv", "id,text,label\n1.0,a,2.0\n1.1,b,\n2e7,c,3.0\n")
    rows = get(tmp_path / "t.csv", missing_labels="ignore").rows["test"]
    assert [rows["id"][:], rows["label"][:]] == [["1.0", "2e7"], ["2", "3"]]
    for names, expected in ((["-2", "3"], ["2", "3"]), (["2.0", "3.0"], ["2.0", "3.0"])):
        learned = {"kind": "single-label", "labels": dict(zip(names, names, strict=True))}
        read = get(tmp_path / "t.csv", options=learned, missing_labels="ignore").rows["test"]
        assert read["label"][:] == expected
    row = {"text": "a", "id": 101.0}
    ((document,),) = read_documents([("row 1", row)], FirstSeen())
    assert document.id == "101"
    for wrong in (1.5, float(BIG), [1]):
        raises(
            DataError,
            "row 1: its `id` holds",
            list,
            read_documents([("row 1", {**row, "id": wrong})], FirstSeen()),
        )


def test_groups_of_a_column_with_a_missing_value_are_those_of_whole_numbers(tmp_path):
    frame = floats(*range(8), label=["a", "b"] * 4, group=[1, 1, 2, 2, 3, 3, None, None])
    paths = [write_rows(tmp_path / "t.csv", frame.to_csv(index=False)), tmp_path / "whole.csv"]
    write_rows(paths[1], paths[0].read_text().replace(".0", ""))
    of_rows = []
    for path in paths:
        spec = DataSpec(source={"train": str(path)}, group_by="group")
        of_rows.append(load(spec, get_task("text-classification").schema).origins["train"].groups[:6])
    assert of_rows[0] == of_rows[1]
    write_rows(tmp_path / "t.jsonl", [{"text": "a", "label": "b", "group": float(BIG)}])
    spec = DataSpec(source={"train": f"{tmp_path}/t.jsonl"}, group_by="group")
    raises(
        DataError, "t.jsonl:1: `group` holds .*rounded", load, spec, get_task("text-classification").schema
    )


TRIPLES = [[[0, 3, "PER"]], [], [(4, 7, "LOC"), (numpy.int64(0), 3, "PER")]]
MARKED = {"text": ["Ada ran", "none", "Bob Ulm"], "spans": TRIPLES}
WITH_TRIPLES = {
    "rows": lambda: [dict(zip(MARKED, row, strict=True)) for row in zip(*MARKED.values(), strict=True)],
    "columns": lambda: MARKED,
    "pandas": lambda: pandas.DataFrame(MARKED),
    "texts in polars": lambda: polars.DataFrame({**MARKED, "spans": PLAIN}, strict=False),
    "objects in polars": lambda: polars.DataFrame(
        {**MARKED, "spans": polars.Series(TRIPLES, dtype=polars.Object)}
    ),
    "datasets": lambda: datasets.Dataset.from_dict({**MARKED, "spans": PLAIN}, on_mixed_types="use_json"),
    "JSON in datasets": lambda: datasets.Dataset.from_dict(
        {**MARKED, "spans": PLAIN},
        datasets.Features({"text": datasets.Value("string"), "spans": datasets.Json()}),
    ),
}
PLAIN = [[[int(span[0]), *span[1:]] for span in spans] for spans in TRIPLES]


@pytest.mark.parametrize("form", WITH_TRIPLES)
def test_spans_as_triples_from_python(form, tmp_path):
    if "datasets" in form and Version(datasets.__version__) < Version("4.8"):
        pytest.skip("datasets cannot hold them")
    data = WITH_TRIPLES[form]()
    tags = get(data, "token-classification").rows["test"]["tags"][:]
    assert tags == [["B-PER", "O"], ["O"], ["B-PER", "B-LOC"]]
    assert (
        [row["text"] for row in frame_rows(data, ())] == MARKED["text"]
        if not isinstance(data, list)
        else True
    )
    if form == "datasets":
        data.to_parquet(tmp_path / "t.parquet")
        assert get(tmp_path / "t.parquet", "token-classification").rows["test"]["tags"][:] == tags


def test_other_lists_of_several_types_are_stored_and_what_json_cannot_hold_is_an_error():
    frame = pandas.DataFrame({"text": ["a", "b"], "labels": [["x"], [1, "y"]]})
    assert get(frame).rows["test"]["labels"][:] == [["x"], ["1", "y"]]
    for values in ([["x"], [1, object()]], [["x"], [1, {"x"}]], ["x", 1]):
        assert "`labels` cannot be stored" in fails(pandas.DataFrame({"text": ["a", "b"], "labels": values}))


CONLL = "O B-PER I-PER B-LOC I-LOC".split()
NUMBERED = [{"tokens": ["Ada", "King", "ran"], "tags": [1, 2, 0]}, {"tokens": ["Ulm"], "tags": [3]}]


def settled(path, task="token-classification", **options):
    """The rows of train, and the options that they decide."""
    kind = get_task(task)
    given = kind.Options(name=task, **options)
    data = read_data(DataSpec(source={"train": str(path)}), kind, given)
    return data, kind.infer_options(given, data.rows["train"], data.class_names)


def test_numbers_of_tags_are_indices_of_the_labels_that_the_recipe_names(tmp_path):
    path = write_rows(tmp_path / "t.jsonl", NUMBERED)
    data, options = settled(path, labels=CONLL)
    assert data.rows["train"]["tags"][:] == [["B-PER", "I-PER", "O"], ["B-LOC"]]
    assert [options["labels"], options["tags"]] == [["PER", "LOC"], CONLL]
    assert "train: its tags are numbers; read as 0 O, 1 B-PER, 2 I-PER, 3 B-LOC, 4 I-LOC" in [
        f.what for f in data.findings
    ]
    again, _ = settled(path, **options)  # as a model that was trained reads new rows
    assert [finding.level for finding in again.findings if "numbers" in finding.what] == ["warn"]
    assert again.rows["train"]["tags"][:] == data.rows["train"]["tags"][:]
    data, options = settled(path, labels="DET NOUN VERB X".split(), scheme="none")
    assert data.rows["train"]["tags"][:] == [["NOUN", "VERB", "DET"], ["X"]]
    assert settled(path, scheme="none")[1]["labels"] == "0 1 2 3".split()
    for given in ({}, {"labels": ["PER", "LOC"]}):
        with pytest.raises(
            DataError, match=r"t.jsonl:1: its tags are numbers: 0, 1, 2, 3\n.*task: {labels: \[O, B-PER"
        ):
            settled(path, **given)
    raises(
        DataError,
        r"t.jsonl:2: tag 3, but task.labels names those from 0 to 2",
        settled,
        path,
        labels=CONLL[:3],
    )
    raises(DataError, "differs in: I-LOC", settled, path, labels=CONLL[:4])
    written = write_rows(
        tmp_path / "w.jsonl", [{"tokens": ["Ada"], "tags": ["B-PER"]}, {"tokens": ["Ulm"], "tags": ["B-LOC"]}]
    )
    assert settled(written, labels=CONLL)[1]["tags"] == CONLL


@pytest.mark.parametrize("names", [["bad", "good"], {"0": "bad", "1": "good"}])
@pytest.mark.parametrize(("column", "values"), [("label", [0, 1, 1.0]), ("labels", [[0], [1, 0], []])])
def test_numbers_of_labels_are_indices_or_keys(names, column, values, tmp_path):
    path = write_rows(tmp_path / "t.jsonl", [{"text": f"text {value}", column: value} for value in values])
    _, options = settled(path, "text-classification", labels=names)
    assert options["labels"] == {"0": "bad", "1": "good"}


MIXED = [
    "🎉 Ada\nmet e\u0301a 😀😀 Bob",
    "Ada 🎉 e\u0301 Bob\nBob",
    "\u00e9t\u00e9\nAda 👍 met Bob",
    "Ada met Bob",
]
COUNTS = {  # how offsets are counted -> (the text that the tool had, the size of a beginning of it)
    "code points": (str, len),
    "UTF-16": (str, lambda text: len(text.encode("utf-16-le")) // 2),
    "bytes": (str, lambda text: len(text.encode())),
    r"had \r\n where": (lambda text: text.replace("\n", "\r\n"), len),
    "NFC": (partial(unicodedata.normalize, "NFC"), len),
    "NFD": (partial(unicodedata.normalize, "NFD"), len),
}


def annotated(count, texts=MIXED):
    """Texts with all places of two names, as a tool that counts so exports them."""
    of_tool, size = COUNTS[count]
    rows = []
    for text in texts:
        theirs = of_tool(text)
        places = [
            [size(theirs[:place]) for place in match.span()] for match in re.finditer("Ada|Bob", theirs)
        ]
        rows.append({"text": text, "spans": [[*ends, "PER"] for ends in places]})
    return rows


def said(data):
    return " ".join(finding.what for finding in data.findings)


@pytest.mark.parametrize("count", COUNTS)
def test_offsets_that_other_tools_count(count, tmp_path):
    right = get(write_rows(tmp_path / "right.jsonl", annotated("code points")), "token-classification")
    assert said(right) == ""
    path = write_rows(tmp_path / "t.jsonl", annotated(count))
    if count in ("code points", "UTF-16"):
        data = get(path, "token-classification")
        assert data.rows["test"]["tags"][:] == right.rows["test"]["tags"][:]
        converted = "in 3 texts with characters such as emoji before a span, offsets are counted in UTF-16"
        assert (converted in said(data)) == (count == "UTF-16")
        return
    what = f"would fit it if their offsets were counted in .*{re.escape(count)}"
    raises(DataError, what, get, path, "token-classification")
    write_rows(path, annotated(count, [f"{text} {'and more ' * 5}" for text in MIXED]))
    assert re.search(what, said(get(path, "token-classification", {"alignment": "expand"})))


def test_offsets_that_fit_two_counts_are_read_as_python_counts_and_said(tmp_path):
    rows = [{"text": f"🎉🎉 a b c d {n}", "spans": [[7, 8, "PER"]]} for n in range(3)]
    path = write_rows(tmp_path / "t.jsonl", rows)
    data = get(path, "token-classification")
    assert data.rows["test"]["tags"][0] == "O O O O B-PER O O".split()
    assert (
        "in 3 texts with characters such as emoji before a span, offsets fit words both as Python counts"
        in said(data)
    )
    rows.append({"text": "🎉 abc", "spans": [[3, 6, "PER"]]})  # decides for JavaScript
    data = get(write_rows(path, rows), "token-classification")
    assert [tags.index("B-PER") for tags in data.rows["test"]["tags"]] == [3, 3, 3, 1]
    rows.append({"text": "🎉 abc", "spans": [[2, 5, "PER"]]})  # and this one against it
    write_rows(path, rows)
    raises(
        DataError, "t.jsonl:4: span 1 is from 3 to 6, but the text has 5", get, path, "token-classification"
    )


def test_spans_without_offsets_in_emoji_texts_are_told_as_elsewhere(tmp_path):
    marks = [{"start": start, "end": 4, "label": "X"} for start in (None, [1], True, "x", 3)]
    rows = [{"text": "🎉 a", "spans": spans} for spans in (*([mark] for mark in marks), 3)]
    message = fails(write_rows(tmp_path / "t.jsonl", rows), "token-classification")
    assert message.count("where whole numbers are expected") == 3
    assert message.count("has no start") == 1
    assert "t.jsonl:6: `spans` 3, where a list of spans is expected" in message


@pytest.mark.parametrize("suffix", ["jsonl", "json", "jsonl.gz"])
def test_a_key_that_the_first_object_lacks(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    kind = get_task("text-classification")
    rows = [
        {"text": f"text {n}", "label": "ab"[n % 2], **({"customer": n // 4} if n else {})}
        for n in range(1200)
    ]
    for row in rows[1100:]:
        row["late"] = 1
    text = json.dumps(rows) if suffix == "json" else "".join(f"{json.dumps(row)}\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())

    def read(**settings):
        return load(DataSpec(source={"train": str(path)}, **settings), kind.schema)

    groups = read(group_by="customer").origins["train"].groups
    assert len({*groups}) == 301  # the first row by itself
    data = read(columns={"id": "customer"})
    assert data.rows["train"]["id"][:5] == [None, "0", "0", "0", "1"]
    where = f"{path}, row " if suffix == "json" else f"{path}:"
    lacks = (
        f"{where}1 lacks `customer`, first in {where}2, `late`, first in {where}1101; rows without it "
        "have no value"
    )
    assert lacks in said(data)
    assert "lacks" not in said(read())
    assert read(by="customer").rows["train"]["customer"][0] is None
    assert read(by="late").rows["train"]["late"][:] == [None] * 1100 + ["1"] * 100
    message = message_of(DataError, read, group_by="custumer")
    assert (
        "no column `custumer`, which `data.group_by` names; found: text, label, customer, late; did you"
        in message
    )
    if suffix == "jsonl":
        write_rows(path, [{"label": "a"}, *rows])
        assert read().rows["train"]["text"][:2] == ["", "text 0"]
        write_rows(path, [{"text": "a"}, *rows])
        raises(DataError, "1 of 1,201 rows of train has no `label`: .*t.jsonl:1", read)


def test_what_pandas_did_with_missing_values_is_said():
    text = "text,label\na,NA\nb,DE\nNA,US\n"
    frame = pandas.read_csv(io.StringIO(text))
    kept = pandas.read_csv(io.StringIO(text), keep_default_na=False)
    assert get(kept).rows["test"]["label"][:] == ["NA", "DE", "US"]
    message = fails(frame)
    assert "1 of 3 rows of test has no `label`: test, row 1" in message
    assert (
        "pandas reads NA, None, null and nan as missing: read_csv(FILE, keep_default_na=False) keeps them"
        in message
    )
    data = get(frame, missing_labels="ignore")
    (left_out,) = [finding.what for finding in data.findings if "left out" in finding.what]
    assert "left out: test, row 1; pandas reads NA" in left_out
    (empty,) = [finding for finding in check(data) if "empty `text`" in finding.what]
    assert "test, row 3" in empty.what
    assert "keep_default_na=False" in empty.fix


@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA, pandas.NaT])
def test_every_missing_value_of_pandas_is_missing(missing, tmp_path):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": missing}, {"text": missing, "label": "x"}]
    frame = pandas.DataFrame(rows)
    for data in (rows, frame):
        assert "1 of 3 rows of test has no `label`: test, row 2" in fails(data)
        assert get(data, missing_labels="ignore").rows["test"]["text"][:] == ["a", ""]
    schema = get_task("text-classification").schema
    raises(DataError, "row 3: `text` is missing", read_inputs, rows, schema, schema.inputs, {})
    found = [finding.what for finding in check(get(frame.map(str))) if "astype(str)" in finding.fix]
    what = "test: 1 row with the text nan, <NA> or NaT in `label`: test, row 2"
    # None is "None" before pandas 3, which may be a label
    assert found == ([] if frame["label"].map(str)[1] == "None" else [what])


def test_a_row_is_read_by_the_columns_that_the_recipe_maps():
    schema = get_task("token-classification").schema
    row = {"tokens": ["a"], "text": "b c"}
    for mapped, read in (
        ({}, {"tokens", "text"}),
        ({"tokens": "tokens"}, {"tokens"}),
        ({"text": "text"}, {"text"}),
    ):
        assert {*read_inputs([row], schema, schema.inputs, mapped)} == read


def test_numbers_of_tags_without_prefixes(tmp_path):
    rows = [{"tokens": ["Ada", "King", "ran"], "tags": [1, 1, 0]}, {"tokens": ["Ulm"], "tags": [2]}]
    path = write_rows(tmp_path / "t.jsonl", rows)
    _, options = settled(path, labels=["O", "PER", "LOC"], data_scheme="IO")
    assert options["labels"] == ["PER", "LOC"]
    again, _ = settled(path, **options, data_scheme="IO")
    assert again.rows["train"]["tags"][:] == [["B-PER", "I-PER", "O"], ["B-LOC"]]
    raises(DataError, r"labels: \[O, PER, LOC", settled, path, data_scheme="IO")
    words = [{"tokens": ["Ada", "ran", "Ulm"], "tags": ["PER", "O", "LOC"]}]
    path = write_rows(tmp_path / "w.jsonl", words)
    assert settled(path, labels=CONLL, data_scheme="IO")[1]["labels"] == ["PER", "LOC"]
