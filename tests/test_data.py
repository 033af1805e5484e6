"""`load`: sources, columns, values, labels, hold-out, limit, unseen labels, fingerprints; and `check`."""

import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from unicodedata import category

import datasets
import pytest
from cases import SIMILAR
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets.exceptions import DatasetGenerationError
from small import change_json, message_of, problems_of, raises, read_as, read_data
from small import write_rows as write

from bertkit.data import check, label_names, load
from bertkit.data.origin import Origin
from bertkit.data.schema import Column, Schema
from bertkit.data.splits import hold_out, match_splits, names_of
from bertkit.data.table import Table
from bertkit.data.values import folded, read_inputs
from bertkit.errors import DataError
from bertkit.report.score_tables import scores_table
from bertkit.sections import DataSpec
from bertkit.tasks import get_task
from bertkit.tasks.class_labels import as_targets
from bertkit.text import listed

SCHEMA = Schema(
    columns={
        "text": Column("text", "the text"),
        "text_a": Column("text", "the first text"),
        "text_b": Column("text", "the second text"),
        "label": Column("label", "one class"),
        "labels": Column("labels", "several classes"),
        "score": Column("number", "a number"),
    },
    inputs=(frozenset({"text"}), frozenset({"text_a", "text_b"})),
    targets=("label", "labels", "score"),
    corpus=False,
)


def get(source, **settings):
    arguments = {name: settings.pop(name) for name in ("splits", "known_labels") if name in settings}
    source = str(source) if isinstance(source, Path) else source
    return load(DataSpec(source=source, **settings), SCHEMA, **arguments)


fails = partial(message_of, DataError, get)


def written(folder, files):
    """The folder with these files."""
    for name, rows in files.items():
        write(folder / name, rows)
    return folder


def labelled(*labels):
    return [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]


# --- rows
# -------------------------------------------------------------------------------------------------------------


VALUES = [
    ("label", ["b", "a"], ["b", "a"]),
    ("label", [1, 0], ["1", "0"]),
    ("label", [True, False], ["true", "false"]),
    ("label", [1.0, 0.0], ["1", "0"]),
    ("labels", [["a", "b"], []], [["a", "b"], []]),
    ("labels", [[1, 2], [3]], [["1", "2"], ["3"]]),
    ("labels", ["a|b ", ""], [["a", "b"], []]),
    ("labels", ["[a]|b", "[b"], [["[a]", "b"], ["[b"]]),
    ("score", [1, 2.5], [1.0, 2.5]),
    ("score", ["1", " -2.5e0"], [1.0, -2.5]),
]
CELLS = [["a", "b"], ["a"], [], ["c", "a"]]
# files, which of them is read (all: a folder), columns of each split (the last: target); settings, findings
READ = [
    ({"t.csv": "x,label\ngood,1\nbad,0\n"}, "t.csv",
     {"train": {"text_a": ["good", "bad"], "text_b": ["good", "bad"], "label": ["1", "0"]}},
     {"columns": {"text_a": "x", "text_b": "x"}}),
    ({"t.csv": "text,label,stars\na,b,1\nc,d,2.5\n"}, "t.csv",
     {"train": {"text": ["a", "c"], "score": [1.0, 2.5]}}, {"columns": {"score": "stars"}}),
    *(({"t.jsonl": [{"text": "x", name: value} for value in given]}, "t.jsonl",
       {"train": {"text": ["x"] * len(given), name: expected}}) for name, given, expected in VALUES),
    *(({"t.jsonl": [{"text": "x", "labels": mark.join(labels)} for labels in CELLS]}, "t.jsonl",
       {"train": {"text": ["x"] * 4, "labels": CELLS}}, {"labels_separator": mark}) for mark in (",", ";", " / ")),
    ({"train.jsonl": labelled("a", "b"), "test.jsonl": [{"text": "x", "label": None}, {"text": "y"}]}, "",
     {"train": {"text": ["text 0", "text 1"], "label": ["a", "b"]}, "test": {"text": ["x", "y"]}}, {},
     "test has no `label`"),
    ({"t.jsonl": [{"text": None, "label": "a"}, {"label": "b", "text": " "}, {"label": "b"}]}, "t.jsonl",
     {"train": {"text": ["", " ", ""], "label": ["a", "b", "b"]}}),
    ({"train.csv": "text,label\na,x\nb,y\n", "dev.jsonl": labelled("x"), "README.md": "not data"}, "",
     {"train": {"text": ["a", "b"], "label": ["x", "y"]}, "validation": {"text": ["text 0"], "label": ["x"]}}),
    ({"train.csv": "text,label\na,x\nb,y\n", "dev.jsonl": labelled("x")}, "",
     {"validation": {"text": ["text 0"], "label": ["x"]}}, {"splits": ["validation"]}),
    ({f"train-0000{n}-of-00002.jsonl": labelled("xy"[n]) for n in (0, 1)}, "",
     {"train": {"text": ["text 0", "text 0"], "label": ["x", "y"]}}),
]  # fmt: skip


def test_what_is_read(tmp_path, subtests):
    for number, (files, name, expected, *more) in enumerate(READ):
        with subtests.test(f"{number}: {[*files]}"):
            folder = written(tmp_path / str(number), files)
            data = get(folder / name, **dict(*more[:1]))
            assert {split: rows.to_dict() for split, rows in data.rows.items()} == expected
            assert data.target == [*next(iter(expected.values()))][-1]
            found = [finding.what for finding in data.findings]
            assert len(found) == len(more[1:])
            assert all(part in what for part, what in zip(more[1:], found, strict=True))


def test_only_canonical_columns_come_back_and_know_where_they_stood(tmp_path):
    path = write(tmp_path / "t.jsonl", labelled("a", None, None, "b"))
    data = get(path, missing_labels="ignore")
    assert [data.origins["train"][row] for row in range(2)] == [f"{path}:1", f"{path}:4"]
    for number in (0, 1):
        write(tmp_path / f"train-0000{number}-of-00002.jsonl", labelled("x"))
    assert get(tmp_path).origins["train"][1] == f"{tmp_path}/train-00001-of-00002.jsonl:1"
    data = get(write(tmp_path / "t.csv", "id,review,label\n7,good,1\n8,bad,0\n"), columns={"text": "review"})
    assert data.rows["train"][0] == {"text": "good", "label": "1", "id": "7"}
    assert data.origins["train"][1] == f"{tmp_path / 't.csv'}:3, id 8"
    assert data.origins["train"].public(1) == "t.csv:3"
    assert data.target == "label"
    assert list(data.columns) == ["text", "label", "id"]


# --- columns
# ---------------------------------------------------------------------------------------------------------


def test_problems_name_the_column_that_the_user_has(tmp_path):
    mapped = {"text": "body", "label": "topic"}
    missing = write(tmp_path / "a.jsonl", [{"body": "a", "topic": "x"}, {"body": "b", "topic": None}])
    assert "1 of 2 rows of train has no `topic`: " in fails(missing, columns=mapped)
    told = says(get(missing, columns=mapped, missing_labels="ignore"), "note")
    assert f"1 of 2 rows of train has no `topic`; left out: {missing}:2" in told
    unlabelled = write(tmp_path / "test.jsonl", [{"body": "a", "topic": None}])
    source = {
        "train": str(write(tmp_path / "b.jsonl", [{"body": "a", "topic": "x"}])),
        "test": str(unlabelled),
    }
    assert "test has no `topic`: it can be predicted, but not scored" in says(
        get(source, columns=mapped), "note"
    )
    wrong = write(tmp_path / "c.jsonl", [{"body": 3, "topic": "x"}])
    assert "`body` holds 3, where text is expected" in fails(wrong, columns=mapped)
    wrong = write(tmp_path / "d.jsonl", [{"body": "a", "topic": {}}])
    assert "`topic` holds {}, where a class" in fails(wrong, columns=mapped)
    for row, what in (({"body": None}, "missing"), ({"body": 3}, "holds 3"), ({"text": 3}, "holds 3")):
        name = next(iter(row))
        raises(
            DataError,
            f"row 2: `{name}` .*{what}",
            read_inputs,
            [{"body": "a"}, row],
            SCHEMA,
            SCHEMA.inputs,
            mapped,
        )


@pytest.mark.parametrize("count", [1, 5, 6, 1205])
def test_of_many_names_and_rows_the_first_are_named_and_the_others_counted(count, tmp_path):
    names = [str(n) for n in range(count)]
    some = ", ".join(names[:5]) + {1: "", 5: "", 6: " and 1 more", 1205: " and 1,200 more"}[count]
    assert listed(names, 5) == listed(names[:5], total=count) == some
    path = write(tmp_path / "a.jsonl", [*labelled("x"), *labelled(*[None] * count)])
    (told,) = (each for each in says(get(path, missing_labels="ignore"), "note") if "left out" in each)
    places = re.sub(
        re.escape(f"{path}:") + r"(\d+)", lambda match: str(int(match[1]) - 2), told.partition("out: ")[2]
    )
    assert places == some


@pytest.mark.parametrize("count", [5, 6, 100])
def test_a_column_of_the_wrong_type_is_one_problem(count, tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.data.problems.MAX_ALIKE", 30)
    path = write(tmp_path / "a.jsonl", [{"text": n, "score": "x" if n else 1} for n in range(count)])
    more = {5: "", 6: " and 1 more so far", 100: " and 26 more so far"}[count]
    others = ", ".join(f"{path}:{n}" for n in range(2, 6))
    assert fails(path) == f"{path}:1: `text` holds 0, where text is expected; also in {others}{more}"
    rows = [{"text_a": n, "text_b": None} for n in range(count)] + [{"text_a": "a"}]
    told = [problem.what for problem in problems_of(DataError, read_inputs, rows, SCHEMA, SCHEMA.inputs, {})]
    others = "also in row 2, row 3, row 4, row 5"
    assert told[:2] == [
        f"`text_a` holds 0, where text is expected; {others}{more}",
        f"`text_b` is missing; {others}{more if count < 100 else ' and 25 more so far'}",
    ]
    assert told[2:] == (["no text_b in this row; it has text_a"] if count < 100 else [])


def test_other_problems_of_a_column_are_told_row_by_row(tmp_path):
    path = write(
        tmp_path / "a.jsonl", [{"text": "a", "labels": value} for value in (["x", "x"], 3, ["y", "y"], 4)]
    )
    assert [what.partition(": ")[2] for what in fails(path).splitlines()] == [
        "`labels` holds ['x', 'x'], with a label twice; write the names of the labels, not 0 and 1",
        f"`labels` holds 3, where a list of labels, or text such as a|b, is expected; also in {path}:4",
        "`labels` holds ['y', 'y'], with a label twice; write the names of the labels, not 0 and 1",
    ]


def test_an_id_follows_its_row(tmp_path):
    rows = [
        {"text": f"text {n}", "label": "ab"[n % 2], "ticket": None if n == 3 else 100 + n} for n in range(20)
    ]
    path = write(tmp_path / "t.jsonl", rows)
    parts = {"train": str(path), "test": str(write(tmp_path / "u.jsonl", labelled("a")))}
    assert get(parts, columns={"id": "ticket"}).rows["test"].column_names == ["text", "label"]
    data = get(path, columns={"id": "ticket"}, validation=0.5, limit={"train": 6})
    for split, own in data.rows.items():
        for index, row in enumerate(own):
            number = int(row["text"].removeprefix("text "))
            assert row["id"] == (None if number == 3 else str(100 + number))
            shown = "" if number == 3 else f", id {100 + number}"
            assert data.origins[split][index] == f"{path}:{number + 1}{shown}"


def test_a_column_that_is_only_called_id_may_hold_anything(tmp_path):
    for given, kept, shown in (
        *((value, None, "") for value in ([1, 2], {"a": 1}, float("nan"))),
        ("", "", ""),
        (0, "0", ", id 0"),
        (True, "True", ", id True"),
        ("x" * 200, "x" * 200, ", id " + "x" * 80),
    ):
        path = write(tmp_path / "t.jsonl", [{**row, "id": given} for row in labelled("a", "b", "a", "b")])
        data = get(path)
        assert data.rows["train"]["id"][:] == [kept] * 4
        assert data.origins["train"][0] == f"{path}:1{shown}"
        if isinstance(given, list | dict):
            assert "`id` holds" in fails(path, columns={"id": "id"})
    for first in (1, 1500):  # the first rows lack it: those of a block, or of more
        rows = [
            {"text": f"text {n}", "label": "ab"[n % 2], **({"id": n} if n >= first else {})}
            for n in range(1510)
        ]
        (tmp_path / "t.json").write_text(json.dumps(rows))
        for file in (write(tmp_path / "t.jsonl", rows), tmp_path / "t.json"):
            data = get({"test": str(file)}, splits=["test"])
            assert data.rows["test"]["id"][:] == [str(n) if n >= first else None for n in range(1510)]
            assert data.origins["test"][1509].endswith("1510, id 1509")
    # mapped to another column, it is no id
    for column, value in (
        ("text", "a text"),
        ("labels", ["a", "b"]),
    ):
        rows = [{"text": "a text", "labels": ["a", "b"], "id": value}] * 3
        rows = [{name: own for name, own in row.items() if name != column} for row in rows]
        data = get(write(tmp_path / "t.jsonl", rows), columns={column: "id"})
        assert set(data.columns) == {"text", "labels"}
        assert data.origins["train"][0] == f"{tmp_path}/t.jsonl:1"
        assert data.rows["train"][column][:] == [value] * 3


def test_what_is_no_row_or_has_no_words_is_refused():
    for task, expected in (
        ("text-classification", "expected a text, or columns such as {'text': …}, found ('a', 'b')"),
        ("text-ranking", "expected columns such as {'document': …, 'query': …}, found ('a', 'b')"),
    ):
        schema = get_task(task).schema
        raises(
            DataError, re.escape(f"row 1: {expected}"), read_inputs, [("a", "b")], schema, schema.inputs, {}
        )
    schema = get_task("token-classification").schema
    rows = [{"tokens": ["a"], "document": "1"}, {"tokens": ["a"], "document": None}]
    assert read_inputs(rows, schema, schema.inputs, {})["document"] == ["1", None]
    rows.append({"tokens": None, "document": None})
    raises(DataError, "row 3: `tokens` is missing", read_inputs, rows, schema, schema.inputs, {})


def test_text_columns_are_joined_but_not_with_spans(tmp_path):
    lines = "subject,body,label\nHello,How are you?,a\n,only a body,b\nonly a subject,,a\n,,b\n"
    data = get(write(tmp_path / "t.csv", lines), columns={"text": ["subject", "body"]})
    texts = ["Hello\nHow are you?", "only a body", "only a subject", ""]
    assert data.rows["train"]["text"][:] == texts
    read = partial(read_inputs, schema=SCHEMA, inputs=SCHEMA.inputs, mapped={"text": ["subject", "body"]})
    absent = {"subject": None, "body": None}
    rows = [
        {"subject": "Hello", "body": "How are you?"},
        {**absent, "body": "only a body"},
        {"text": "as it is"},
    ]
    assert read(rows) == {"text": [*texts[:2], "as it is"]}
    # body is not there: nothing is joined
    assert read([{"text": "as it is", "subject": "no part of it"}]) == {"text": ["as it is"]}
    raises(DataError, "in this row; it has subject", read, [{"subject": "Hello"}])
    raises(DataError, "row 2: `text` is missing", read, [{**absent, "body": ""}, absent])
    spans = [{"subject": "Hello", "body": "Bob is here", "spans": [{"start": 0, "end": 3, "label": "PER"}]}]
    task = get_task("token-classification")
    spec = {"source": str(write(tmp_path / "s.jsonl", spans)), "columns": {"text": ["subject", "body"]}}
    said = "`text` is joined from several columns, but the offsets of spans count in one"
    raises(DataError, said, load, DataSpec.model_validate(spec), task.schema)


MISSING = [  # a csv file, what the message says; settings
    ("Text,label\na,b\n", ["needs a column `text`, or `text_a` and `text_b`", "columns: {text: Text}"]),
    ("id,sentence,label\n1,a,b\n", ["found: 'id', 'sentence', 'label'", "columns: {text: sentence}"]),
    ("text,lable\na,b\n", ["needs a column `label`, or `labels`, or `score`", "columns: {label: lable}"]),
    ("text,my label\na,b\n", ['columns: {label: "my label"}']),
    ("text_a,second,label\na,b,c\n", ["columns: {text_b: second}"]),
    ("text\tlabel\na\tb\n", [r'delimiter: "\t"']),
    ("text,label\na,b\n", ["no column `txet`", "columns: {text: text}"], {"columns": {"text": "txet"}}),
    ("text,label\na,b\n", ["no column `txt`; did you mean 'text'?"], {"columns": {"txt": "text"}}),
    ("a,b,label\na,b,c\n", ["`text` and `text_b` do not go together"], {"columns": {"text": "a", "text_b": "b"}}),
    ("x,text,label\na,b,c\n", ["needs a column `text_a` and `text_b`"], {"columns": {"text_a": "x"}}),
    ("text,label,score\na,b,1\n", ["`label`, or `score`: only one", "columns: {label: label}"]),
    (",".join(f"c{n}" for n in range(2000)) + "\n" + "," * 1999, ["found: 'c0', 'c1',", "'c19' and 1,980 more"]),
]  # fmt: skip
BAD_VALUES = [  # a column, its values, and what the message says, with {} for the file
    (
        "label",
        ["a", "  "],
        "1 of 2 rows of train has no `label`: {}:2\n    fill it in, or leave these rows out:  data: "
        "{missing_labels: ignore}",
    ),
    ("label", [None, None], "2 of 2 rows of train have no `label`"),
    (
        "label",
        [1, 3.8],
        "{}:2: `label` holds numbers such as 3.8\n    for regression map the column as the score",
    ),
    ("label", ["1.0", "3.8"], "{}:2: `label` holds numbers such as '3.8'"),
    ("label", ["a|b", "a"], "{}:1: `label` holds several labels, 'a|b'; map the column as `labels`"),
    ("label", ['["a"]', '["a", "b"]'], "{}:1: `label` holds several labels, '[\"a\"]'; map the column"),
    ("score", ["1,234"], 'thousands=","'),
    ("labels", [["a|b", "c"]], "{}:1: `labels` holds ['a|b', 'c']; a label cannot contain |"),
    ("label", ["a", ["b"]], "{}:2: `label` holds several labels"),
    ("label", ["a", {"b": 1}], "{}:2: `label` holds {'b': 1}, where a class"),
    ("labels", [["a"], None], "1 of 2 rows of train has no `labels`: {}:2"),
    (
        "labels",
        ["a|b", "['a', 'b']"],
        "{}:2: `labels` holds a list written as text, \"['a', 'b']\"; write a|b",
    ),
    ("labels", ['["a"]'], "{}:1: `labels` holds a list written as text, '[\"a\"]'"),
    ("labels", ["[1, 0]", "[]"], "{}:1: `labels` holds a list written as text, '[1, 0]'"),
    ("labels", [["a"], 3], "{}:2: `labels` holds 3, where a list"),
    ("labels", [["a"], [0, 0, 1]], "{}:2: `labels` holds [0, 0, 1], with a label twice"),
    ("labels", [[0.0, 1.0], ["a"]], "{}:1: `labels` holds [0.0, 1.0]; write the names"),
    ("labels", [["a"], ["a", ""]], "{}:2: `labels` holds ['a', ''], with an empty label"),
    ("score", [1, "high"], "{}:2: `score` holds 'high', where a number is expected"),
    ("score", [1, float("nan")], "{}:2: `score` holds nan, which is not a finite number"),
    ("score", [1, "inf"], "{}:2: `score` holds 'inf', which is not a finite number"),
    ("score", [1, "1_0"], "{}:2: `score` holds '1_0', where a number is expected"),
    ("score", [1, True], "{}:2: `score` holds True, where a number is expected"),
    ("score", [1, 10**400], "{}:2: `score` holds 1000"),
    ("score", [1, None], "1 of 2 rows of train has no `score`: {}:2"),
]
REFUSED = [  # files, which of them is read (all, as a folder), what the message says in this order; settings
    ({"train-00000-of-00002.jsonl": labelled("a")}, "", ["1 files for train, of 2 shards"]),
    *(({"t.csv": content}, "t.csv", parts, *settings) for content, parts, *settings in MISSING),
    *(({"t.jsonl": [{"text": "x", name: value} for value in given]}, "t.jsonl", [part])
      for name, given, part in BAD_VALUES),
    *(({"t.jsonl": [{"subject": "Hello", "body": 0, "label": "a"}]}, "t.jsonl", [part], {"columns": columns})
      for columns, part in (
        ({"text": ["subject", "body"]}, "`text` holds 0, where text is expected"),
        ({"text": ["subject", "boddy"]}, "no column `boddy`, which `data.columns` names for `text`"),
        ({"text": "subject", "label": ["label", "body"]}, "`label` cannot be read from several columns"),
        ({"text": "subject", "score": ["body", "label"]}, "`score` cannot be read"))),
    ({"train.csv": "text,label\na,x\n", "dev.csv": "text,label\na,x\n", "val.csv": "text,label\na,x\n"}, "",
     ["two names for validation: val, dev"]),
    ({"train.jsonl": labelled("x"), "train.csv": "text,label\na,x\n"}, "",
     ["two files for train: train.csv, train.jsonl"]),
    ({"sts-train.csv": "x"}, "", ["the folder holds: sts-train.csv", "data: {source: {train: FILE}}"]),
    ({"train.jsonl": labelled("a")}, "", ["no test split; available: train", "data: {test: 0.1}"], {"splits": ["test"]}),
    ({"train.jsonl": labelled("a"), "test.jsonl": labelled("a")}, "",
     ["data.test: the source has a test split", "remove `test:`"], {"test": 0.5}),
    ({"t.jsonl": labelled(*"ab" * 5)}, "t.jsonl", ["data.test: 10 of 10 rows of train cannot be"], {"test": 10}),
    ({"t.jsonl": labelled(*"ab" * 5)}, "t.jsonl",
     ["data.validation: 0.5 of 10 rows of train, of which 5 are left, cannot be held out", "hold out fewer"], {"test": 5, "validation": 0.5}),
    ({"train.jsonl": labelled("a")}, "", ["cannot be held out"], {"validation": 0.5}),
    ({"train.jsonl": labelled("a"), "dev.jsonl": labelled("a")}, "", ["remove `validation:`"], {"validation": 0.5}),
    ({"t.jsonl": [{"text": "a", "score": 1}]}, "t.jsonl",
     ["0.5 of 1 rows of train cannot be held out: each label"], {"validation": 0.5}),
    ({"t.jsonl": [*labelled("x", "y"), *[{"text": "twice", "label": "z"}] * 2]}, "t.jsonl",
     ["0.5 of 4 rows of train cannot be held out: each label must keep a row in train"], {"validation": 0.5}),
    ({"t.jsonl": labelled("x", "y") * 20}, "t.jsonl",
     ["keep a row in train, and rows of the same texts or group (`data.group_by`) stay together"], {"validation": 0.5}),
    ({"train.csv": "text,label\n" + "a,x\n" * 200 + "b,rare\n", "dev.csv": "text,label\na,x\nb,other\n"}, "",
     ["correct these labels, add rows with them to train, or raise a `data.limit`; to leave"], {"limit": {"train": 1}}),
    ({"u.csv": "text,label\na,\n"}, "u.csv",
     ["1 of 1 row of train has no `label`: {}:2\n    is the right column mapped?"], {"missing_labels": "ignore"}),
    ({"train.jsonl": labelled("a"), "test.jsonl": [{"text": "x"}, {"text": "y", "label": "a"}]}, "",
     ["1 of 2 rows of test has no `label`"]),
    ({"train.jsonl": labelled("a"), "validation.jsonl": [{"text": "x"}]}, "",
     ["validation.jsonl: needs a column `label`"]),
]  # fmt: skip


def test_what_cannot_be_read_is_refused_with_the_reason(tmp_path, subtests):
    for number, (files, name, parts, *settings) in enumerate(REFUSED):
        with subtests.test(parts[0]):
            file = written(tmp_path / str(number), files) / name
            message = fails(file, **dict(*settings))
            parts = [part.replace("{}", str(file)) for part in parts]
            assert re.search(".*".join(map(re.escape, parts)), message, re.DOTALL), message


def test_a_column_without_a_name_does_not_stand_for_one_that_is_missing(tmp_path):
    shards = ("id,text,label\nq1,a,b\n", ",text,label\n0,c,d\n")  # the second: as pandas writes its index
    written(tmp_path, {f"train-0000{number}-of-00002.csv": rows for number, rows in enumerate(shards)})
    schema = replace(SCHEMA, columns={**SCHEMA.columns, "id": Column("text", "a name")})
    data = load(DataSpec(source=str(tmp_path)), schema)
    assert data.rows["train"]["id"][:] == ["q1", ""]


def test_columns_are_checked_in_all_splits_before_rows_are_read(tmp_path):
    message = fails(written(tmp_path, dict.fromkeys(("train.csv", "dev.csv"), "txt,label\na,b\na\n")))
    assert message.count("needs a column") == 2
    assert "fields" not in message


# --- values
# ----------------------------------------------------------------------------------------------------------


def test_label_names_have_one_order():
    for values, names, order in (
        (["b", "a", "b"], [], ["a", "b"]),
        (["10", "9", "-1"], [], ["-1", "9", "10"]),
        (["1", "x", "10"], [], ["1", "10", "x"]),
        (["neg", "pos"], ["pos", "neg", "none"], ["pos", "neg", "none"]),
        (["new"], ["pos"], ["pos", "new"]),
        ([], [], []),
    ):
        assert label_names(values, names) == order


# --- sources
# ---------------------------------------------------------------------------------------------------------


def test_split_names_can_be_mapped(tmp_path):
    written(
        tmp_path, {f"{name}.jsonl": labelled("x", "y") for name in ("train", "dev_matched", "dev_mismatched")}
    )
    spec = DataSpec(source=str(tmp_path), splits={"validation": "dev_matched"})
    assert list(load(spec, SCHEMA).rows) == ["train", "validation"]
    spec = DataSpec(source=str(tmp_path), splits={"validation": "dev_mached"})
    raises(DataError, "did you mean 'dev_matched'", load, spec, SCHEMA)


def test_files_by_split(tmp_path):
    a = write(tmp_path / "a.jsonl", labelled("x"))
    b = write(tmp_path / "b.csv", "label,text\ny,b\n")
    data = get({"train": [str(a), str(b)], "test": str(b)})
    assert data.rows["train"]["label"][:] == ["x", "y"]
    assert data.rows["test"][0] == {"text": "b", "label": "y"}
    message = fails({"train": "nowhere.csv", "test": str(tmp_path), "dev": str(a)})
    assert "nowhere.csv: no such file" in message
    assert "is a folder; a file is needed" in message
    assert "no split 'dev'; did you mean validation?" in message
    assert "no train split; available: test" in fails({"test": str(b)})
    assert list(get({"test": str(b)}, splits=["test"]).rows) == ["test"]


def test_what_is_neither_here_nor_on_the_hub():
    assert "did you mean 'sentiment'" in fails("sample:sentimant")
    for source in "./nope nope.csv a/b/c /nope nope.csv.gz".split():  # what looks like a path
        assert "no such file or folder (looked from" in fails(source)
    assert "the Hub cannot be reached" in fails("nobody/nothing")  # offline, at once
    assert "nor a name that the Hub allows" in fails("what is this?")


# --- the Hub
# ---------------------------------------------------------------------------------------------------------


def hub(monkeypatch, answer):
    def load_dataset(path, name=None, revision=None):
        assert (path, name, revision) == ("some/data", "cola", "abc")
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


HUB = {"source": "some/data", "subset": "cola", "revision": "abc"}


@pytest.fixture
def named():
    features = Features(
        {"idx": Value("int64"), "sentence": Value("string"), "label": ClassLabel(names=["no", "go"])}
    )
    rows = {"idx": [0, 1, 2, 3], "sentence": "a b c d".split(), "label": [1, 0, 1, 0]}
    train = Dataset.from_dict(rows, features=features)
    test = Dataset.from_dict({"idx": [0, 1], "sentence": ["x", "y"], "label": [-1, -1]}, features=features)
    return DatasetDict({"train": train, "dev": train.select([0, 1]), "test": test, "unsupervised": test})


def test_a_hub_data_set_keeps_its_names(monkeypatch, named):
    hub(monkeypatch, named)
    data = get(**HUB, columns={"text": "sentence"})
    assert data.class_names == ["no", "go"]
    assert data.rows["train"]["label"][:] == "go no go no".split()
    assert list(data.rows) == ["train", "validation", "test"]
    assert data.rows["test"].column_names == ["text"]
    assert data.origins["validation"][1] == "some/data, dev, row 2"
    grouped = check(get(**HUB, columns={"text": "sentence"}, group_by="idx"))
    assert any("2 of 2 rows (100.0%) are of a group" in finding.what for finding in grouped)
    assert "found: 'idx', 'sentence', 'label'" in fails(**HUB)
    assert "no extra split; available: train, dev, test, unsupervised" in fails(**HUB, splits=["extra"])
    named["train"] = datasets.concatenate_datasets([named["train"], named["test"]])
    message = fails(**HUB, columns={"text": "sentence"})
    assert "2 of 6 rows of train have no `label`: some/data, train, row 5, some/data, train, row 6" in message


def test_what_datasets_saves_to_disk(tmp_path, named):
    shards = {name: 2 for name in named}
    named.save_to_disk(tmp_path / "all", num_shards=shards)
    left = tmp_path / "all/train/data-00000-of-00009.arrow"  # of an earlier save
    left.write_bytes((tmp_path / "all/train/data-00000-of-00002.arrow").read_bytes())
    data = get(tmp_path / "all", columns={"text": "sentence"})
    assert data.class_names == ["no", "go"]
    assert {name: rows["text"][:] for name, rows in data.rows.items()} == {
        "train": "a b c d".split(),
        "validation": ["a", "b"],
        "test": ["x", "y"],
    }
    assert data.rows["train"]["label"][:] == "go no go no".split()
    assert data.origins["train"][2] == f"{tmp_path / 'all'}, train, row 3"
    spec = {"source": f"{tmp_path}/all", "columns": {"text": "sentence"}, "splits": {"train": "dev"}}
    swapped = load(DataSpec.model_validate(spec), SCHEMA)
    assert swapped.rows["train"]["text"][:] == ["a", "b"]
    named["dev"].save_to_disk(tmp_path / "one")
    one = get(tmp_path / "one", columns={"text": "sentence"})
    assert {name: rows["label"][:] for name, rows in one.rows.items()} == {"train": ["go", "no"]}
    spans = [{"text": "Ada ran", "entities": [{"start": 0, "end": 3, "label": "PER"}]}]
    Dataset.from_list(spans).save_to_disk(tmp_path / "spans")
    task = get_task("token-classification")
    spec = DataSpec(source=f"{tmp_path}/spans")
    [read] = load(spec, task.schema_of(task.Options(name=task.name))).rows["train"]["spans"]
    assert [*map(dict, read)] == spans[0]["entities"]
    (tmp_path / "link").symlink_to("one")
    assert get(tmp_path / "link", columns={"text": "sentence"}).rows["train"]["label"][:] == ["go", "no"]


def test_a_saved_data_set_that_is_damaged(tmp_path, named):
    named.save_to_disk(tmp_path)
    (file,), refused = (tmp_path / "train").glob("*.arrow"), 0
    sound = file.read_bytes()
    for start in range(0, len(sound), 40):  # offsets, lengths, texts, and bytes that nothing reads
        file.write_bytes(sound[:start] + b"\xff" * 8 + sound[start + 8 :])
        with suppress(DataError):
            get(tmp_path, columns={"text": "sentence"})
            continue
        refused += 1
    assert refused > 10
    file.write_bytes(sound)
    file.rename(tmp_path.parent / "one.arrow")
    change_json(tmp_path / "train/state.json", _data_files=[{"filename": "../../one.arrow"}])
    assert "names files outside the folder" in fails(tmp_path, columns={"text": "sentence"})
    for file, content in (("train/state.json", "{}"), ("train/state.json", "{"), ("dataset_dict.json", "{}")):
        (tmp_path / file).write_text(content)
        assert f"{tmp_path}: not a data set as datasets saves it" in fails(
            tmp_path, columns={"text": "sentence"}
        )


def test_a_folder_as_on_the_hub_has_its_files_in_data(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "LICENSE.txt").write_text("mine")
    names = "train-00000-of-00002", "train-00001-of-00002", "dev-00000-of-00001-a09b74b3ef9c3b56"
    for number, name in enumerate(names):
        rows = {"text": [f"{number}a", f"{number}b"], "label": ["x", "y"]}
        Dataset.from_dict(rows).to_parquet(tmp_path / "data" / f"{name}.parquet")
    data = get(tmp_path)
    assert data.rows["train"]["text"][:] == "0a 0b 1a 1b".split()
    assert data.rows["validation"]["text"][:] == ["2a", "2b"]
    (tmp_path / "train.csv").write_text("text,label\nown,x\nother,y\n")
    assert get(tmp_path).rows["train"]["text"][:] == ["own", "other"]


def test_hub_errors_are_told_in_one_message_without_secrets(monkeypatch):
    damaged = DatasetGenerationError("An error occurred while generating the dataset")
    damaged.__cause__ = ValueError("Expected 3 fields in line 7, saw 4")
    lost = "Revision 'abc' doesn't exist for dataset 'some/data' on the Hub."
    for error, part in (
        (damaged, "in line 7"),
        (ConnectionError("Couldn't reach 'me/aggregated' on the Hub"), "the Hub cannot be reached"),
        (ValueError("Config name is missing. load_dataset('me/transcripts', 'en')"), "pick one"),
        (RuntimeError("1 new columns ({'description'})"), "cannot be loaded: 1 new columns"),
        (FileNotFoundError(lost), "cannot be loaded: Revision"),
        (FileNotFoundError("No data files matching the patterns for config 'x'"), "config 'x'"),
        (
            FileNotFoundError("No (supported) data files found in some/data"),
            "cannot be loaded: No (supported)",
        ),
        (
            ConnectionError("Couldn't reach https://u:p@hf.co/x?sig=1 with hf_SECRET"),
            "the Hub cannot be reached",
        ),
        (RuntimeError("Dataset scripts are no longer supported, but found glue.py"), "refs/convert/parquet"),
        (FileNotFoundError("Dataset 'some/data' doesn't exist"), "nor a data set on the Hub"),
        (ValueError("No (supported) data files found"), "No (supported) data files found"),
        (ValueError("BuilderConfig 'x' not found. Available: ['cola'] hf_SECRET"), "pick one"),
        (ValueError("is a gated dataset on the Hub"), "hf auth login"),
    ):
        hub(monkeypatch, error)
        message = fails(**HUB)
        assert message.startswith("some/data: ")
        assert part in message
        assert not any(secret in message for secret in ("hf_SECRET", "sig=1", "u:p"))


# --- hold-out, limit, unseen labels
# ----------------------------------------------------------------------------------


@pytest.fixture
def skewed(tmp_path):
    return write(tmp_path / "t.jsonl", labelled(*["common"] * 80, *["rare"] * 20, *["twice"] * 2, "once"))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_hold_out_is_stratified_seeded_and_disjoint(skewed, share):
    data = get(skewed, validation=share, splits=["train", "validation"])
    train = data.rows["train"]
    held = data.rows["validation"]
    assert sorted([*train["text"], *held["text"]]) == sorted(f"text {i}" for i in range(103))
    counts = Counter(held["label"])
    left = Counter(train["label"])
    assert abs(counts["common"] - 80 * share) <= 1
    assert abs(counts["rare"] - 20 * share) <= 1
    assert left["twice"] >= 1
    assert left["once"] == 1
    assert held["text"][:] == sorted(held["text"], key=lambda text: int(text.split()[1]))
    again = get(skewed, validation=share)
    assert again.fingerprints == data.fingerprints
    assert get(skewed, validation=share, seed=1).fingerprints != data.fingerprints
    assert list(get(skewed, validation=share, splits=["validation"]).rows) == ["validation"]
    assert any("rows of train" in finding.what for finding in data.findings)


def test_the_hold_out_is_the_same_on_every_machine(skewed):
    held = get(skewed, validation=0.05).rows["validation"]["text"][:]
    assert held == ["text 1", "text 9", "text 12", "text 19", "text 89"]


def test_the_test_split_is_the_same_whatever_validation_is(skewed):
    """Oracle: the shares of labels; and for validation, the hold-out of the rows that test leaves."""
    first = get(skewed, test=0.2, splits=["test"])
    assert [*first.rows] == ["test"]
    counts = Counter(first.rows["test"]["label"])
    assert abs(counts["common"] - 16) <= 1
    assert abs(counts["rare"] - 4) <= 1
    assert counts["once"] == 0
    train = get(skewed, test=0.2).rows["train"]
    left = Table({"text": train["text"][:], "label": train["label"][:]}, Origin(["f:"]))
    for row in range(len(train)):
        left.origin.add(0, row)
    for size, count in ((0.1, 10), (0.2, 21), (7, 7)):
        data = get(skewed, test=0.2, validation=size)
        assert [*data.rows] == ["train", "validation", "test"]
        assert data.fingerprints["test"] == first.fingerprints["test"]
        assert {*Counter(data.rows["train"]["label"])} == {"common", "rare", "twice", "once"}
        assert len(data.rows["validation"]) == count
        held = hold_out(
            left, "validation", size, 103, 42, "label", names_of(SCHEMA.columns["label"]), ["text"], 0
        )
        assert [part.values["text"] for part in held] == [
            data.rows[split]["text"][:] for split in ("train", "validation")
        ]
        assert sorted(text for rows in data.rows.values() for text in rows["text"]) == sorted(
            f"text {n}" for n in range(103)
        )
    assert get(skewed, test=0.2, seed=1).fingerprints["test"] != first.fingerprints["test"]
    assert (
        get(skewed, test=0.2).fingerprints["test"] != get(skewed, validation=0.2).fingerprints["validation"]
    )


def test_a_number_of_rows_is_held_out_exactly_while_each_label_keeps_one(skewed):
    labels = {"common", "rare", "twice", "once"}
    for count in (1, 2, 50, 98, 99):
        data = get(skewed, test=count)
        assert len(data.rows["test"]) == count
        assert {*data.rows["train"]["label"]} == labels
        assert any(f"test: {count} of 103 rows of train" == finding.what for finding in data.findings)
    assert len(get(skewed, test=100).rows["test"]) == 99


@pytest.mark.parametrize("seed", range(5))
def test_rows_with_the_same_text_are_held_out_together(seed, tmp_path):
    """Oracle: the leak check, and sets of texts."""
    texts = [f"text {n}" for n in range(60)] + [f"Text  {n}" for n in range(20)] + ["", " ", "\u00a0"]
    rows = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(texts)]
    data = get(write(tmp_path / "t.jsonl", rows), validation=0.3, seed=seed)
    train, held = (
        {" ".join(text.casefold().split()) for text in part["text"]} for part in data.rows.values()
    )
    assert train & held <= {""}
    assert len(data.rows["validation"]) == round(0.3 * len(rows))
    assert not any("in train too" in finding.what for finding in check(data))
    pairs = [(text, f"like {text}") for text in texts[:40]]
    rows = [
        {"text_a": a, "text_b": b, "score": n}
        for n, (a, b) in enumerate([*pairs, *(pair[::-1] for pair in pairs)])
    ]
    path = write(tmp_path / "pairs.jsonl", rows)
    data = read_as(SIMILAR, path, validation=0.1, seed=seed)
    train, held = ({frozenset([row["text_a"], row["text_b"]]) for row in part} for part in data.rows.values())
    assert len(held) == 4
    assert not train & held


def test_groups_are_held_out_together(tmp_path):
    """A customer stays whole; a text of two customers joins them; rows without a customer stand alone."""
    rows = [{"text": f"text {n}", "label": "ab"[n % 2], "customer": n // 3} for n in range(60)]
    rows += [{"text": f"alone {n}", "label": "a", "customer": None} for n in range(20)]
    rows[1]["text"] = rows[30]["text"] = "Thanks!"
    path = write(tmp_path / "t.jsonl", rows)
    held_out = set()
    alone = set()
    for seed in range(20):
        data = get(path, validation=0.2, group_by="customer", seed=seed)
        by_text = {row["text"]: row["customer"] for row in rows}
        sides = [{by_text[text] for text in data.rows[split]["text"]} for split in ("train", "validation")]
        assert sides[0] & sides[1] <= {None}
        assert ({0, 10} <= sides[1]) == bool({0, 10} & sides[1])
        assert abs(len(data.rows["validation"]) - 16) <= 2
        held_out |= sides[1]
        alone |= {text for text in data.rows["validation"]["text"] if text.startswith("alone")}
        assert not any("that train has too" in finding.what for finding in check(data))
        three = get(path, validation=0.2, test=16, group_by="customer", seed=seed).rows
        sides = [{by_text[text] for text in rows["text"]} - {None} for rows in three.values()]
        assert sum(map(len, sides)) == 20
        assert abs(len(three["test"]) - 16) <= 2
    assert {0, 10} <= held_out
    assert len(alone) > 10


def test_a_hold_out_is_stratified_by_rows_and_spread_over_numbers(tmp_path):
    rows = [{"text": f"twice {n // 2}" if n < 40 else f"once {n}", "label": "ab"[n // 40]} for n in range(80)]
    data = get(write(tmp_path / "t.jsonl", rows), validation=0.25)
    assert Counter(data.rows["validation"]["label"]) == {"a": 10, "b": 10}
    path = write(tmp_path / "t.jsonl", [{"text": str(i), "score": i / 10} for i in range(100)])
    held = get(path, validation=0.2).rows["validation"]["score"][:]
    assert Counter(int(score) for score in held) == dict.fromkeys(range(10), 2)


def test_a_share_that_no_group_fits_holds_out_the_smallest(tmp_path):
    """By the name of the group's column in the data, or by that which the task gives it."""
    rows = [{"text": f"text {n}", "label": "x", "customer": c} for n, c in enumerate("aaaaabbbcccc")]
    path = write(tmp_path / "t.jsonl", rows)
    for names in ({"group_by": "customer"}, {"columns": {"id": "customer"}, "group_by": "id"}):
        data = get(path, validation=0.1, **names)
        assert data.rows["validation"]["text"][:] == ["text 5", "text 6", "text 7"]


@pytest.mark.parametrize("missing", [None, "", " ", float("nan")])
def test_a_row_without_a_group_is_on_its_own(missing, tmp_path):
    rows = [{"text": f"text {n}", "label": "ab"[n % 2], "customer": missing} for n in range(20)]
    data = get(write(tmp_path / "t.jsonl", rows), validation=0.2, group_by="customer")
    assert len(data.rows["validation"]) == 4
    shards = [write(tmp_path / name, [{**rows[0], "text": name}]) for name in ("a.jsonl", "b.jsonl")]
    data = get({"train": [*map(str, shards)]}, validation=0.5, group_by="customer")
    assert len(data.rows["train"]) == 1


def test_a_text_that_one_split_lacks_does_not_tell_rows_apart(tmp_path):
    columns = {**SCHEMA.columns, "tokens": Column("words", "words"), "more": Column("text", "another text")}
    schema = replace(SCHEMA, columns=columns, inputs=(frozenset({"tokens"}),))
    rows = [{"tokens": ["text", str(n // 2)], "more": str(n), "label": "x"} for n in range(20)]
    new = write(tmp_path / "u.jsonl", [{"tokens": ["new"], "label": "x"}])
    source = {"train": str(write(tmp_path / "t.jsonl", rows)), "test": str(new)}
    data = load(DataSpec(source=source, validation=0.3), schema)
    sides = [{tuple(words) for words in data.rows[split]["tokens"]} for split in ("train", "validation")]
    assert not sides[0] & sides[1]


def test_groups_that_cannot_be_divided_are_said(tmp_path):
    rows = [{"text": f"text {n}", "label": "ab"[n % 2], "customer": "one"} for n in range(20)]
    path = write(tmp_path / "t.jsonl", rows)
    assert "0.2 of 20 rows of train cannot be held out: each" in fails(
        path, validation=0.2, group_by="customer"
    )
    assert "no column `custmer`, which `data.group_by` names" in fails(
        path, validation=0.2, group_by="custmer"
    )
    named = {"train": str(path), "test": str(write(tmp_path / "v.jsonl", labelled("a")))}
    assert len(get(named, group_by="customer").rows["test"]) == 1  # only train is divided
    new = write(tmp_path / "u.jsonl", [{**rows[0], "text": text} for text in ("new", "newer")])
    parts = {"train": str(path), "test": str(new)}
    found = [finding.what for finding in check(get(parts, group_by="customer"))]
    assert "test: 2 of 2 rows (100.0%) are of a group (`data.group_by`) that train has too" in found


def test_a_label_that_only_comes_second_keeps_a_row_in_train(tmp_path):
    """One of the two rows of `b`, where both are drawn: the other stays in validation."""
    rows = [{"text": str(i), "labels": ["a", "b"] if i < 2 else ["a"]} for i in range(40)]
    sizes = set()
    for seed in range(20):
        data = get(write(tmp_path / "t.jsonl", rows), validation=0.9, seed=seed)
        assert any("b" in labels for labels in data.rows["train"]["labels"])
        sizes.add(len(data.rows["validation"]))
    assert sizes == {35, 36}


def test_a_limit_is_stratified_and_keeps_every_label(skewed, tmp_path):
    counts = Counter(get(skewed, limit=30).rows["train"]["label"])
    assert counts["once"] == counts["twice"] == 1
    assert abs(counts["common"] - 30 * 80 / 103) <= 2
    assert len(set(get(skewed, limit=4).rows["train"]["label"])) == 4
    rows = [{"text": str(n), "labels": ["a", "b"] if n == 30 else ["a"]} for n in range(40)]
    path = write(tmp_path / "t.jsonl", rows)  # with a label that only comes second
    for seed in range(10):
        assert "30" in get(path, limit=2, seed=seed).rows["train"]["text"]


def test_limit_is_seeded_by_split_and_keeps_the_order(skewed, tmp_path):
    written(tmp_path, dict.fromkeys(("train.jsonl", "test.jsonl"), labelled(*["a"] * 100)))
    train, test = (rows["text"][:] for rows in get(tmp_path, limit=10).rows.values())
    assert train != test
    data = get(skewed, limit=30)
    kept = [int(text.split()[1]) for text in data.rows["train"]["text"]]
    assert len(kept) == 30
    assert kept == sorted(kept)
    assert get(skewed, limit=30).fingerprints == data.fingerprints
    assert get(skewed, limit=30, seed=1).fingerprints != data.fingerprints
    assert any("limited to 30 of 103 rows" in finding.what for finding in data.findings)
    both = get(skewed, limit={"validation": 5}, validation=0.2, unseen_labels="ignore")
    assert len(both.rows["validation"]) == 5
    assert len(both.rows["train"]) == 82
    assert len(get(skewed, limit=1000).rows["train"]) == 103


def test_unseen_labels_stop_or_are_left_out(tmp_path):
    files = {"train": labelled("a", "b"), "dev": labelled("a", "c", "c"), "test": labelled("a", "d")}
    message = fails(written(tmp_path, {f"{split}.jsonl": rows for split, rows in files.items()}))
    assert (
        f"{tmp_path}/dev.jsonl:2: validation has 2 rows with the label 'c', which train does not have"
        in message
    )
    assert f"{tmp_path}/test.jsonl:2: test has 1 row with the label 'd'" in message
    assert message.endswith("(on the command line: 'data.unseen_labels=ignore')")
    assert "\n    correct these labels" in message  # a line of its own would be printed as a further error
    data = get(tmp_path, unseen_labels="ignore")
    assert {split: len(rows) for split, rows in data.rows.items()} == {"train": 2, "validation": 1, "test": 1}
    assert [f.level for f in data.findings] == ["note", "note"]
    assert "2 rows with the label 'c'" in data.findings[0].what
    assert len(get(tmp_path, splits=["test"]).rows["test"]) == 2
    assert "the label 'd'" in fails(tmp_path, splits=["test"], known_labels=["a", "b"])
    assert len(get(tmp_path, known_labels="abcd").rows["test"]) == 2
    write(tmp_path / "test.jsonl", labelled("d"))
    assert "test: all rows were dropped" in fails(tmp_path, unseen_labels="ignore")


MERGED = {"pos": "pos", "Pos": "pos", "neg": "neg"}


def merged(source, labels=MERGED, **settings):
    options = get_task("text-classification").Options(name="text-classification", labels=labels)
    spec = DataSpec(source=str(source), **settings)
    return read_data(spec, get_task("text-classification"), options), options


def test_values_with_one_name_are_one_label(tmp_path):
    rows = labelled(*["pos", "neg"] * 10)
    write(
        tmp_path / "train.jsonl",
        [*rows, {"text": "text 0", "label": "Pos"}, {"text": "text 1", "label": "Pos"}],
    )
    write(tmp_path / "dev.jsonl", [{"text": "new", "label": "Pos"}, {"text": "newer", "label": "neg"}])
    train = f"{tmp_path}/train.jsonl"
    data, options = merged(tmp_path)
    assert says(data, "warn") == [f"train: 1 row repeats an earlier row; e.g. {train}:21 and {train}:1"]
    said = f"train: 1 row repeats an earlier text with another target; e.g. {train}:22 and {train}:2"
    assert says(data, "severe") == [said]
    assert "train: pos 12 (54.5%), neg 10 (45.5%)" in says(data, "note")
    assert "validation: pos 1 (50.0%), neg 1 (50.0%)" in says(data, "note")
    options = options.model_copy(update={"class_weights": "auto"})
    settled = get_task("text-classification").infer_options(options, data.rows["train"], data.class_names)
    assert settled["class_weights"] == pytest.approx({"pos": 22 / 24, "neg": 22 / 20})


def test_a_value_without_a_name_is_still_unseen_and_indices_are_counted_by_name(tmp_path):
    written(tmp_path, {"train.jsonl": labelled("pos", "neg"), "dev.jsonl": labelled("POS", "Pos", "neg")})
    raises(DataError, "validation has 1 row with the label 'POS'", merged, tmp_path)
    assert merged(tmp_path, unseen_labels="ignore")[0].rows["validation"]["label"][:] == ["Pos", "neg"]
    written(tmp_path, {"train.jsonl": labelled(*[0, 1] * 10), "dev.jsonl": labelled("pos", 0, 2)})
    said = "validation has 1 row with the label '2', which train does not have"
    raises(DataError, said, merged, tmp_path, ["neg", "pos"])
    data, options = merged(tmp_path, ["neg", "pos"], unseen_labels="ignore")
    assert "train: neg 10 (50.0%), pos 10 (50.0%)" in says(data, "note")
    assert "validation: pos 1 (50.0%), neg 1 (50.0%)" in says(data, "note")
    settled = get_task("text-classification").infer_options(options, data.rows["train"], data.class_names)
    assert as_targets(data.rows["validation"], "label", settled["labels"]).tolist() == [1, 0]


def test_swapped_values_are_read_once_and_two_of_one_name_count_once(tmp_path):
    data, options = merged(write(tmp_path / "t.jsonl", labelled("a", "a", "b")), {"a": "b", "b": "a"})
    assert "train: b 2 (66.7%), a 1 (33.3%)" in says(data, "note")
    settled = get_task("text-classification").infer_options(options, data.rows["train"], [])
    assert as_targets(data.rows["train"], "label", settled["labels"]).tolist() == [0, 0, 1]
    rows = [
        {"text": "a", "labels": ["pos", "Pos"]},
        {"text": "b", "labels": ["neg"]},
        {"text": "c", "labels": []},
    ]
    data, _ = merged(write(tmp_path / "t.jsonl", rows))
    assert "train: pos 1 (33.3%), neg 1 (33.3%)" in says(data, "note")


def test_the_hold_out_is_stratified_by_names(tmp_path):
    labels = [label for _ in range(20) for label in ("pos", "Pos", "neg")]
    data, _ = merged(
        write(tmp_path / "t.jsonl", labelled(*labels, "once")), MERGED | {"once": "neg"}, validation=0.1
    )
    held = Counter(MERGED.get(label, "neg") for label in data.rows["validation"]["label"])
    assert held == {"pos": 4, "neg": 2}
    rows = [*labelled(*["neg"] * 20), {"text": "x", "label": "Pos"}, {"text": "y", "label": "pos"}]
    held_out = {
        label
        for seed in range(20)
        for label in merged(write(tmp_path / "u.jsonl", rows), validation=0.5, seed=seed)[0].rows[
            "validation"
        ]["label"]
    }
    assert held_out == {"neg", "pos", "Pos"}


def test_rows_of_groups_say_what_sampling_loses_and_what_helps(tmp_path):
    schema = replace(SCHEMA, group_columns={"text_a": "splits share them"})
    rows = [{"text_a": f"text {n // 2}", "text_b": str(n), "label": "ab"[n % 2]} for n in range(20)]
    path = write(tmp_path / "t.jsonl", rows)
    hint = "data.group_by=text_a holds out whole groups"
    for settings, fixes in [
        ({"validation": 0.2}, [hint]),
        ({"validation": 0.2, "group_by": "text_a"}, []),
        ({"validation": 0.2, "group_by": "text_a", "limit": 4}, [""]),
        ({"limit": 4}, [""]),
        ({}, []),
    ]:
        assert sampled(path, schema, **settings) == fixes
    both = replace(SCHEMA, group_columns=dict.fromkeys(("text_a", "text_b"), "splits share them"))
    write(path, [{**row, "text_b": row["text_a"]} for row in rows])  # of the same groups: one warning
    assert sampled(path, both, validation=0.2) == ["data.group_by=text_b holds out whole groups"]
    assert sampled(path, both, validation=0.2, group_by="text_a") == []


def sampled(path, schema, **settings):
    """How each finding is mended that says that rows are sampled."""
    found = load(DataSpec(source=str(path), **settings), schema).findings
    return [each.fix for each in found if "rows are sampled individually" in each.what]


# --- fingerprints and checks
# -----------------------------------------------------------------------------------------


def test_the_fingerprint_knows_every_value_and_the_order(tmp_path):
    rows = labelled("a", "b", "a")
    path = tmp_path / "t.jsonl"
    first = get(write(path, rows)).fingerprints["train"]
    assert first == "22e52a889a63914d69dbb3ee1042575bdc0a9bba53f61eb12ab938e569cc0c81"
    assert (
        get(write(tmp_path / "u.csv", "label,text\na,text 0\nb,text 1\na,text 2\n")).fingerprints["train"]
        == first
    )
    changed = [
        [*rows[1:], rows[0]],
        rows[:2],
        labelled("a", "b", "b"),
        [*rows[:2], {"text": "text 2 ", "label": "a"}],
    ]
    prints = {get(write(path, other)).fingerprints["train"] for other in changed}
    assert len(prints | {first}) == 5
    two = get(write(path, [{"text_a": "x", "text_b": "yz", "label": "a"}]))
    other = get(write(path, [{"text_a": "xy", "text_b": "z", "label": "a"}]))
    assert two.fingerprints != other.fingerprints


def says(data, level):
    return [finding.what for finding in check(data) if finding.level == level]


def test_a_label_of_two_lines_stays_in_its_line(tmp_path):
    write(tmp_path / "train.jsonl", labelled(*["two\nlines"] * 5, *["tab\there"] * 10))
    data = get(tmp_path)
    assert says(data, "note")[1] == r"train: tab\there 10 (66.7%), two\nlines 5 (33.3%)"
    assert r"train: labels with fewer than 10 rows: two\nlines 5" in says(data, "warn")
    scores = {"split": "test", "rows": 2, "metrics": {"f1/two\nlines": 0.5}, "intervals": {}}
    assert scores_table(scores).splitlines()[2].split() == [r"f1/two\nlines", "0.5000"]


@pytest.mark.parametrize(("count", "level"), [(1, "warn"), (2, "severe")])
def test_one_percent_of_the_rows_in_train_too_is_severe(tmp_path, count, level):
    write(tmp_path / "train.jsonl", labelled(*"ab" * 10))
    new = [{"text": f"new {n}", "label": "a"} for n in range(150 - count)]
    write(tmp_path / "test.jsonl", [*labelled(*"ab" * 10)[:count], *new])
    (found,) = [finding for finding in check(get(tmp_path)) if finding.inflates]
    assert (found.level, found.inflates) == (level, "test")


def test_check_finds_duplicates_overlap_and_few_rows(tmp_path):
    rows = [*labelled(*"ab" * 10), {"text": " TEXT 1", "label": "a"}, {"text": "text 2", "label": "a"}]
    write(tmp_path / "train.jsonl", [*rows, {"text": "", "label": "Ab"}, {"text": " ", "label": "ab "}])
    write(tmp_path / "test.jsonl", [{"text": "text 3 ", "label": "a"}, {"text": "new", "label": "a"}])
    data = get(tmp_path)
    warnings = says(data, "warn")
    train = f"{tmp_path}/train.jsonl"
    test = f"{tmp_path}/test.jsonl"
    assert warnings == [
        f"train: 2 rows with an empty `text`: {train}:23, {train}:24",
        "train: labels with fewer than 10 rows: Ab 1, ab  1",
        "train: 2 labels differ only in case, blanks or Unicode form: 'Ab' 1 = 'ab ' 1",
        f"train: 1 row repeats an earlier row; e.g. {train}:22 and {train}:3",
        "test: every row has the label 'a'; some of its scores are not defined or always the same",
    ]
    assert says(data, "severe") == [
        f"train: 1 row repeats an earlier text with another target; e.g. {train}:21 and {train}:2",
        f"test: 1 of 2 rows (50.0%) is in train too; e.g. {test}:1 is {train}:4",
    ]
    assert all(finding.fix for finding in check(data) if finding.level != "note")
    assert says(data, "note")[:2] == [
        "train: 24 rows",
        "train: a 12 (50.0%), b 10 (41.7%), Ab 1 (4.2%), ab  1 (4.2%)",
    ]
    assert not says(data, "fail")


@pytest.mark.parametrize(
    ("names", "warned"),
    [
        (("négatif", "ne\u0301gatif"), r"'n\xe9gatif' 10 = 'ne\u0301gatif' 10"),
        (("ｇｏｏｄ", "good", "bad"), r"'\uff47\uff4f\uff4f\uff44' 10 = 'good' 10"),
        (
            ("می\u200cشود", "میشود"),
            r"'\u0645\u06cc\u200c\u0634\u0648\u062f' 10 = '\u0645\u06cc\u0634\u0648\u062f' 10",
        ),
        (("Ärger", "ärger"), "'Ärger' 10 = 'ärger' 10"),
        (("情感，服务", "情感，价格"), "'情感，服务' look like several labels"),
        (("情感，服务", "情感、价格"), "'情感、价格' look like several labels"),
        *(((f"情感{s}服务", f"情感{s}价格"), f"'情感{s}服务' look like several labels") for s in "；｜؛"),
        (("جودة،سعر", "سعر"), "'جودة،سعر' look like several labels"),
    ],
)
def test_labels_that_differ_in_form_or_are_several_are_noticed_in_any_script(names, warned, tmp_path):
    write(tmp_path / "train.jsonl", labelled(*names * 10))
    assert any(warned in what for what in says(get(tmp_path), "warn"))


COPIES = {  # of "the café file is 1 mm", as a tokenizer reads it, or not
    "the  caf\u00e9\tfile\nis 1 mm": True,
    "the caf\u00e9\u00a0file is 1\u202fmm": True,
    "the cafe\u0301 \ufb01le is \uff11 \u339c": True,
    "the ca\u200bf\u00e9\ufeff file is\u200d 1 m\u00adm": True,
    " THE CAF\u00c9 FILE IS 1 MM ": True,
    "thecaf\u00e9 file is 1 mm": False,
    "the caf\u00e9 file is 1 mm.": False,
    "the caf\u00e9 file is 2 mm": False,
}


def test_copies_that_a_tokenizer_reads_alike_are_in_train_too(tmp_path):
    write(
        tmp_path / "train.jsonl", [*labelled("a", "b"), {"text": "the caf\u00e9 file is 1 mm", "label": "a"}]
    )
    where = f"{tmp_path}/test.jsonl:2 is {tmp_path}/train.jsonl:3"
    for text, copy in COPIES.items():
        write(tmp_path / "test.jsonl", [{"text": "other", "label": "b"}, {"text": text, "label": "a"}])
        found = [f"test: 1 of 2 rows (50.0%) is in train too; e.g. {where}"]
        assert says(get(tmp_path), "severe") == found * copy, text
    path = write(tmp_path / "t.jsonl", [{"text": "\u200b\ufeff", "label": "a"}, *labelled("a", "b")])
    assert f"train: 1 row with an empty `text`: {path}:1" in says(get(path), "warn")


def test_pairs_of_test_without_a_target_have_none(tmp_path):
    file = write(tmp_path / "test.jsonl", [{"text_a": "a", "text_b": "b"}])
    data = read_as(SIMILAR, {"test": file}, splits={"test"})
    assert data.target is None
    assert data.rows["test"].column_names == ["text_a", "text_b"]


PAIRS = [{"text_a": a, "text_b": b, "label": "xy"[n % 2]}
         for n, (a, b) in enumerate([("ab", "c"), ("a", "bc"), ("same", ""), ("same", "")])]  # fmt: skip
SEVERAL = "train: labels such as {!r} look like several labels"
LIKE = [{"anchor": f"text {number}", "positive": f"like {number}", "negative": "not"} for number in range(3)]
GRADED = [{"text_a": "one", "text_b": "two", "score": 1}, {"text_a": "x", "text_b": "y", "score": 2}]
MIRRORED = [{"text_a": "Two", "text_b": "one ", "score": 3}]
SINGERS = [{"tokens": [word, "sings"], "tags": ["B-PER", "O"]} for word in ("Ada", "Bob")]
TWICE = [{"text": f"text {n % 40}", "label": "ab"[n % 2]} for n in range(80)]
# task, the rows of each split, level and what of its findings: those that contain the part; settings
FOUND = [
    *(("text-classification", {"train": labelled(*labels)}, "warn", "look like several", found)
      for labels, found in (
        (["Billing", "urgent", "Billing, urgent"], [SEVERAL.format("Billing, urgent")]),
        (["a; b", "b; c"], [SEVERAL.format("a; b")]),
        (["Paris, France", "Oslo, Norway"], []))),
    ("text-classification", {"train": [{"text": text, "labels": labels} for text, labels in (
        ("x", ["a", "b"]), ("x", ["b", "a"]), ("y", []))]}, "severe", "repeat", []),
    ("text-classification", {"train": PAIRS}, "severe", "repeat", [
        ("train: 1 row repeats an earlier text with another target; e.g. {0}/train.jsonl:4 and "
         "{0}/train.jsonl:3")]),
    ("text-classification", {"train": TWICE}, "warn", "repeat", [
        "train and validation: 40 rows repeat an earlier row; e.g. "], {"validation": 0.3}),
    ("sentence-similarity", {"train": LIKE, "validation": [{"anchor": "text 1", "positive": "like 1"},
     {"anchor": "new", "positive": "x"}]}, "severe", "in train too", [
        "validation: 1 of 2 rows (50.0%) is in train too"]),
    ("sentence-similarity", {"train": GRADED, "validation": MIRRORED}, "severe", "", [
        "validation: 1 of 1 row (100.0%) is in train too; e.g. {0}/validation.jsonl:1 is {0}/train.jsonl:1"]),
    ("sentence-similarity", {"train": [*GRADED, *MIRRORED]}, "severe", "", [
        ("train: 1 row repeats an earlier text with another target; e.g. {0}/train.jsonl:3 and "
         "{0}/train.jsonl:1")]),
    *(("sentence-similarity", {"train": [*LIKE, {"anchor": "like 1", "positive": "Text 1", "negative": "not"}]},
       level, "repeats", [what] * (level == "warn"))
      for level, what in (("severe", ""), ("warn", ("train: 1 row repeats an earlier row; e.g. "
                                                    "{0}/train.jsonl:4 and")))),
    ("text-classification", {"train": PAIRS, "validation": [{"text_a": "c", "text_b": "ab", "label": "x"}]},
     "severe", "in train too", []),
    ("token-classification", {"train": SINGERS}, "fail", "", []),
    *(("text-classification", {"train": [{"text": "x", column: value} for value in values]}, "fail", "", found)
      for column, values, found in (
        ("label", ["a", "a"], ["train: every row has the label 'a'"]),
        ("labels", [[], []], ["train: no row has a label"]),
        ("labels", [["a"], []], []),
        ("score", [1.7e9, 1.7e9 + 1], []),
        ("score", [1, 1], ["train: every row has the number 1"]),
        ("labels", [[1, 0], [0, 1]], ["train: every row has the labels '0', '1'"]))),
]  # fmt: skip


def test_what_a_check_finds(tmp_path, subtests):
    for number, (task, splits, level, part, expected, *settings) in enumerate(FOUND):
        with subtests.test(f"{number}: {expected}"):
            folder = written(
                tmp_path / str(number), {f"{split}.jsonl": rows for split, rows in splits.items()}
            )
            data = read_as({"name": task}, folder, **dict(*settings))
            found = [what for what in says(data, level) if part in what]
            assert len(found) == len(expected)
            assert all(
                what.startswith(start.format(folder)) for what, start in zip(found, expected, strict=True)
            )


@pytest.mark.parametrize(
    ("task", "row", "shown"),
    [
        ("text-classification", {"text_b": "2", "text_a": "1", "label": "x"}, ["text_a", "text_b"]),
        ("token-classification", {"tokens": ["1"], "text": "1", "document": "d"}, ["text"]),
        ("question-answering", {"id": "q", "context": "2", "question": "1"}, ["question", "context"]),
        ("sentence-similarity", {"negative": "3", "positive": "2", "anchor": "1"}, ["anchor", "positive"]),
        (
            "retrieval",
            {"query_id": "q", "query": "", "negative": "3", "document": "2"},
            ["query", "document"],
        ),
        ("text-ranking", {"document": "2", "query": "1", "text": "t"}, ["query", "document"]),
        ("text2text-generation", {"target": "2", "text": "1"}, ["text"]),
    ],
)
def test_the_texts_of_a_row_that_are_shown(task, row, shown):
    assert list(get_task(task).schema.shown(row).items()) == [(name, row[name]) for name in shown]


def test_the_columns_of_a_new_task_are_shown_unless_they_say_otherwise():
    columns = {
        "title": Column("text", "a"),
        "words": Column("words", "b"),
        "key": Column("text", "c", shown=False),
    }
    schema = Schema({**columns, "size": Column("number", "d")}, [frozenset({"title"})])
    assert schema.shown({"key": "x", "words": ["a", "b"], "title": "t", "size": 2.0}) == {"title": "t"}
    assert schema.shown({"words": ["a", "b"], "title": None}) == {"text": "a b"}
    assert schema.shown({"key": "x"}) == {}


def test_texts_that_differ_in_invisible_characters_are_equal():
    codes = [0xAD, 0x61C, 0x180E, *range(0x200B, 0x2070), 0xFEFF]
    marks = [chr(code) for code in codes if category(chr(code)) == "Cf"]
    assert len(marks) > 20
    assert {folded(f"a{mark}b") for mark in marks} == {"ab"}


def test_every_usual_name_of_validation_is_known():
    for name in ("validation", "valid", "val", "dev"):
        matched = match_splits(["train", name], DataSpec(source="x"))
        assert matched == {"train": "train", "validation": name}
