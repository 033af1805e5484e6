"""Answers: for files of every format in constant memory, and for whatever Python code passes in."""

import contextlib
import csv
import gzip
import io
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small
import torch
import transformers
from cases import BY_ID, encoder
from datasets import Dataset
from finished import finished
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bertkit
from bertkit.cli.main import main
from bertkit.errors import DataError, ModelError
from bertkit.inference import progress
from bertkit.inference.display import answer_line
from bertkit.inference.evaluate import evaluate
from bertkit.inference.predict_file import like_data
from bertkit.inference.predictor import Predictor, load
from bertkit.sections import DataSpec
from bertkit.tasks.text_classification import TextClassification

COUNT = 13


@pytest.fixture(scope="module")
def predictor(learned):
    """In fp32, where different texts have different scores."""
    return load(learned.folder, precision="fp32")


@pytest.fixture(autouse=True)
def fp32(monkeypatch):
    """Files are answered in the precision of `predictor`."""
    monkeypatch.setattr("bertkit.inference.multitask_predictor.load", partial(load, precision="fp32"))


@pytest.fixture(scope="module")
def pairs(tiny_encoder):
    """A predictor of pairs whose recipe maps the columns to names of its own."""
    task = BY_ID["pair"].task(tiny_encoder)
    transformers.set_seed(1)
    model = task.model(encoder(tiny_encoder)).eval()
    return Predictor(task, model, torch.device("cpu"), "fp32", 4, {"text_a": "q", "text_b": "p"})


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(TextClassification, "chunk_size", 5)


def made():
    """Rows with columns that the model does not know, as text."""
    return [{"id": f"row {n}", "text": small.text(n, n % 2).strip(), "empty": ""} for n in range(COUNT)]


def write(path):
    """`made()` as the format that the file's name says."""
    frame = pd.DataFrame(made())
    kind = path.suffixes[0]
    if kind == ".parquet":
        frame.to_parquet(path)
    elif kind in (".csv", ".tsv"):
        frame.to_csv(path, sep="," if kind == ".csv" else "\t", index=False)
    else:
        frame.to_json(path, orient="records", lines=kind == ".jsonl")
    return path


def answer_file(learned, file, output, **columns):
    return bertkit.predict(learned.folder, file, output, columns=columns)


# --- files


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", "a.tsv a.json a.parquet a.csv.gz a.jsonl".split())
def test_every_format_in_and_out(name, predictor, learned, tmp_path):
    """Order is kept over three chunks, other columns pass through, and the answers are those of a call."""
    suffix = ".csv" if name == "a.jsonl" else ".jsonl"
    out = tmp_path / f"out{suffix}"
    assert answer_file(learned, write(tmp_path / name), out) == COUNT
    told = predictor([row["text"] for row in made()])
    # as many as different texts: a wrong order would show
    assert len({answer["score"] for answer in told}) >= 8
    if suffix == ".jsonl":
        assert small.read_rows(out) == [
            {**row, "answer": answer} for row, answer in zip(made(), told, strict=True)
        ]
        return
    rows = small.read_csv(out)
    assert [{name: row[name] for name in made()[0]} for row in rows] == made()
    assert [row["answer.label"] for row in rows] == [answer["label"] for answer in told]
    assert [float(row["answer.scores.bad"]) for row in rows] == [answer["scores"]["bad"] for answer in told]
    assert {row["answer.truncated"] for row in rows} == {"False"}


def test_the_sheet_is_that_of_the_run():
    of_run = DataSpec(source="a.xlsx", sheet="Reviews", delimiter=";")
    assert like_data(of_run, "b.xlsx").sheet == "Reviews"
    assert like_data(of_run, "b.xlsx", ["data.sheet=Notes"]).sheet == "Notes"
    assert like_data(of_run, "b.xlsx").delimiter is None


def test_dates_of_a_parquet_file_are_written_in_every_format(learned, tmp_path):
    at = datetime(2026, 11, 28, 9, tzinfo=UTC)
    pq.write_table(pa.table({"text": ["a cat"], "at": [at], "days": [[at.date()]]}), tmp_path / "a.parquet")
    for suffix in (".jsonl", ".csv", ".xlsx"):
        out = tmp_path / f"out{suffix}"
        answer_file(learned, tmp_path / "a.parquet", out)
        reader = pd.read_excel if suffix == ".xlsx" else pd.read_csv
        row = small.read_rows(out)[0] if suffix == ".jsonl" else reader(out).iloc[0]
        assert str(row["at"]) == "2026-11-28 09:00:00+00:00"
        assert row["days"] in (["2026-11-28"], '["2026-11-28"]')


@pytest.mark.parametrize("raw_cells", [False, True])
def test_no_cell_of_a_csv_is_a_formula(raw_cells, predictor, learned, tmp_path, caplog):
    """Numbers and their signs stay, and so does every cell if that is asked for. The log says how many do
    not.
    """
    caplog.set_level("INFO", "bertkit")
    texts = ["=1+1", "+49 30 1", "@SUM(A1)", "- a cat", "'=1", "\ta cat", "a\x1bcat\r\ndog", "a=b"]
    rows = [{"text": text, "score": "-3,5", "count": "+4"} for text in texts]
    source = small.write_rows(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "out.csv"
    bertkit.predict(learned.folder, source, out, raw_cells=raw_cells)
    told = small.read_csv(out)
    safe = [*(f"'{text}" for text in texts[:6]), r"a\x1bcat" + "\r\ndog", texts[7]]
    assert [row["text"] for row in told] == (texts if raw_cells else safe)
    assert {(row["score"], row["count"]) for row in told} == {("-3,5", "+4")}
    assert ("out.csv: 6 cells begin with an apostrophe now" in caplog.text) == (not raw_cells)


def test_a_line_of_stdin_is_answered_before_the_next_is_written(learned):
    # A test suite in the background of a script ignores SIGINT, and so would its children.
    words = ["env", "--default-signal=INT", sys.executable, "-m", "bertkit", "predict", str(learned.folder)]
    predictor = learned.load().with_decisions(top_k=1)
    row = {"id": "7", "text": "the dog was bad"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    started = subprocess.Popen([*words, "--input", "-", "--top-k", "1"], text=True, **pipes)
    with started as process:
        try:
            for line, expected in (
                ("the cat was good", {"text": "the cat was good"}),
                (json.dumps(row), row),
            ):
                process.stdin.write(line + "\n")
                process.stdin.flush()
                told = json.loads(process.stdout.readline())
                answer = told.pop("answer")
                same = predictor(expected)
                assert (told, answer["label"], list(answer)) == (expected, same["label"], list(same))
                # another process rounds otherwise
                assert answer["scores"] == pytest.approx(same["scores"], abs=1e-6)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert process.stderr.read() == "\ninterrupted\n"
        finally:
            process.kill()


def test_a_bad_line_of_stdin_ends_the_answers(predictor, learned, monkeypatch, capsys):
    for bad, said in (
        (b"{smile}", "stdin:2: not JSON"),
        (b'{"text": 5}', "row 2: `text` holds 5, where text is"),
    ):
        monkeypatch.setattr(
            sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"the cat\n" + bad + b"\nthe dog\n"))
        )
        small.raises(DataError, re.escape(said), answer_file, learned, "-", None)
        assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["the cat"]


@pytest.mark.parametrize("name", ["texts.txt", "texts.txt.gz"])
def test_in_txt_each_line_is_a_text(name, predictor, learned, tmp_path):
    """An empty line too: the answers stand beside the lines."""
    lines = [small.text(1, 1), small.text(2, 0), "", "  a line with blanks "]
    opener = gzip.open if name.endswith(".gz") else open
    with opener(tmp_path / name, "wt", newline="") as file:
        file.write("\r\n".join(lines))
    assert bertkit.predict(learned.folder, tmp_path / name, tmp_path / "out.jsonl") == 4
    rows = small.read_rows(tmp_path / "out.jsonl")
    assert [row["text"] for row in rows] == lines
    assert [row["answer"] for row in rows] == predictor(lines)


def refused(predictor, learned, file, output, **columns):
    """The message of a DataError, after which there is no output and nothing half-written."""
    before = set(output.parent.iterdir())
    message = small.message_of(DataError, answer_file, learned, file, output, **columns)
    assert set(output.parent.iterdir()) == before
    return message


@pytest.mark.usefixtures("small_chunks")
def test_what_can_not_be_answered_leaves_no_output(predictor, learned, tmp_path):
    file = tmp_path / "rows.jsonl"
    out = tmp_path / "out.jsonl"
    rows = made()
    missing = [{"text": text} for text in ("a", None, "b", None)]
    for wrong, part in (
        ([{"sentence": "a"}], "no text in this row"),
        ([*rows, {"id": "no text"}], "row 14"),
        ([*rows[:7], {"text": 3}], "row 8"),
        ([{"text": "a", "answer": 42}], "a column `answer` already"),
        (missing, "row 2: `text` is missing; also in row 4"),
        ([], "no rows"),
    ):
        assert part in refused(predictor, learned, small.write_rows(file, wrong), out)
    assert "cannot write .txt" in refused(predictor, learned, file, tmp_path / "out.txt")
    assert "no such" in refused(predictor, learned, tmp_path / "nowhere.jsonl", out).lower()
    pq.write_table(pa.table({"text": [None, "a"]}), tmp_path / "a.parquet")
    assert "row 1: `text` is missing" in refused(predictor, learned, tmp_path / "a.parquet", out)
    answer_file(learned, write(tmp_path / "a.csv"), out)
    before = out.read_bytes()  # which stays when the new one fails
    refused(predictor, learned, small.write_rows(file, [{"text": "a"}, {}]), out)
    assert out.read_bytes() == before


def test_a_csv_is_not_answered_over_its_own_answers(predictor, learned, tmp_path):
    """What predict wrote can be its input again only where no column would be lost."""
    answer_file(learned, write(tmp_path / "a.csv"), tmp_path / "once.csv")
    assert "answer.label" in refused(predictor, learned, tmp_path / "once.csv", tmp_path / "twice.csv")
    answer_file(learned, tmp_path / "once.csv", tmp_path / "twice.jsonl")
    assert "answer.label" in small.read_rows(tmp_path / "twice.jsonl")[0]
    # rows that differ
    file = small.write_rows(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "b", "more": 1}])
    assert "more" in refused(predictor, learned, file, tmp_path / "out.csv")
    assert answer_file(learned, file, tmp_path / "out.jsonl") == 2


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("first", ["good", "bad"])
@pytest.mark.parametrize("suffix", [".csv", ".xlsx"])
def test_each_label_has_a_column_whatever_the_best_labels_are(first, suffix, predictor, learned, tmp_path):
    """The best label of the first row is in turn each of the two."""
    rows = sorted(made(), key=lambda row: predictor(row["text"])["label"] != first)
    file = small.write_rows(tmp_path / "a.jsonl", rows)
    out = tmp_path / f"out{suffix}"
    best = predictor.with_decisions(top_k=1)
    told = [answer["scores"] for answer in best([row["text"] for row in rows])]
    assert [*told[0]] == [first] != [*told[-1]]
    assert bertkit.predict(learned.folder, file, out, top_k=1) == COUNT
    if suffix == ".csv":
        with out.open(newline="") as stream:
            header, *cells = csv.reader(stream)
        expected = [[str(scores.get(name, "")) for name in ("bad", "good")] for scores in told]
    else:
        sheet = pytest.importorskip("openpyxl").load_workbook(out).active
        header, *cells = [list(row) for row in sheet.values]
        assert {
            cell.data_type for row in sheet.iter_rows(min_row=2, min_col=6, max_col=7) for cell in row
        } == {"n"}
        expected = [[scores.get(name) for name in ("bad", "good")] for scores in told]
    assert header[3:] == [
        f"answer.{name}" for name in "label score scores.bad scores.good truncated empty unreadable".split()
    ]
    assert [row[5:7] for row in cells] == expected


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_a_full_disk_names_the_output(predictor, learned, tmp_path, name):
    file = write(tmp_path / "a.jsonl")
    out = tmp_path / name
    with pytest.raises(OSError, match="File too large") as error, small.largest_file(500):
        answer_file(learned, file, out)
    assert error.value.filename == str(out)
    assert sorted(tmp_path.iterdir()) == [file]


def test_texts_that_are_odd(predictor, learned, tmp_path):
    texts = ["🙂", "🏳️‍🌈 の猫", "\x00", "a\u2028b\u0085c", "x" * 100_000, "cat " * 25_000, "", " "]
    texts.append('a "quoted", text\r\nb')
    file = small.write_rows(tmp_path / "odd.jsonl", [{"text": text} for text in texts])
    for name in ("out.jsonl", "out.csv"):
        assert answer_file(learned, file, tmp_path / name) == len(texts)
    told = small.read_rows(tmp_path / "out.jsonl")
    assert [row["text"] for row in told] == texts
    assert [row["answer"]["truncated"] for row in told].count(True) == 1


@pytest.mark.usefixtures("small_chunks")
def test_reading_is_lazy_and_no_more_than_a_chunk_ahead(predictor):
    read = []

    def source():
        for number in range(1_000_000_000):
            read.append(number)
            yield f"cat {number}"

    stream = predictor.stream(source())
    assert not read
    next(stream)
    assert len(read) == 5
    for _ in range(4):
        next(stream)
    assert len(read) == 5
    next(stream)
    assert len(read) == 10


# --- calls


def test_one_in_one_out_and_many_in_many_out(predictor):
    one = predictor("the cat was good")
    assert isinstance(one, dict)
    assert set(one) == {"label", "score", "scores", "truncated", "empty", "unreadable"}
    assert one["score"] == max(one["scores"].values()) == one["scores"][one["label"]]
    assert predictor({"text": "the cat was good"}) == one
    assert predictor(["the cat was good"]) == [one]
    assert predictor([{"text": "the cat was good", "id": 3}]) == [one]
    assert predictor(("the cat was good",)) == [one]
    assert predictor(text for text in ["the cat was good"]) == [one]
    assert predictor(["the cat was good", {"text": "the dog was bad"}])[0]["label"] == "good"
    assert predictor([]) == []
    assert predictor(iter(())) == []
    shown = "single texts, single-label, 2 labels: bad, good; bert, cpu, fp32"
    assert repr(predictor) == f"Predictor(text-classification: {shown})"


UNREAD = {  # case -> columns of a row, each a text
    "pair": ("text_a", "text_b"),
    "regression": ("text",),
    "windows": ("text",),
    "qa-windows-or-none": ("question", "context"),
    "ner-crf-windows-bioes": ("text",),
    "ner-document": ("text",),
    "similarity-labels": ("text_a", "text_b"),
    "similarity-in-batch": ("anchor", "positive"),
    "retrieval": ("text",),
    "ranking-graded-windows": ("query", "document"),
}


@pytest.mark.parametrize("case", UNREAD)
def test_every_task_marks_texts_that_it_cannot_read(case, tiny_encoder, tmp_path):
    columns = UNREAD[case]
    predictor = finished(BY_ID[case], tiny_encoder, tmp_path / "run").load()
    readable = dict.fromkeys(columns, "the cat zzz sat")
    rows = [readable]
    for column in columns:
        many = "zzz " * (2 if column == "question" else 60)
        rows += [readable | {column: text} for text in ("", " \u200b", "zzz qqq", many, ".", "zzz .")]
    answers = predictor(rows)
    empty = [True, True, False, False, False, False]
    unreadable = [False, False, True, True, False, False]
    assert [answer["empty"] for answer in answers] == [False, *empty * len(columns)]
    assert [answer["unreadable"] for answer in answers] == [False, *unreadable * len(columns)]


def test_a_prefix_is_no_text(tiny_encoder, tmp_path):
    task = finished(BY_ID["retrieval"], tiny_encoder, tmp_path / "run").load().task
    features = task.encode_sides(
        {"query": ["", " ", "zzz", "the", "cat"], "document": ["", " ", "zzz", "the", "cat"]}
    )
    assert features["unread"][:] == [2, 2, 2, 2, 1, 1, 0, 0, 0, 0]


def test_texts_without_a_token_are_counted(predictor, learned, tmp_path, caplog):
    texts = ["", "   ", "\u200b\t\n", ".", "zzz", "a cat", "a cat " * 50]
    answers = predictor(texts)
    assert [answer["truncated"] for answer in answers] == [False] * 6 + [True]
    assert answer_line(answers[0]).endswith("  (empty)")
    assert answer_line(answers[4]).endswith("  (unreadable)")
    file = small.write_rows(tmp_path / "rows.jsonl", [{"text": text} for text in texts])
    with caplog.at_level("WARNING", "bertkit"):
        answer_file(learned, file, tmp_path / "answers.csv")
    assert caplog.messages == [
        (
            "3 of 7 rows (42.9%) are empty: a text has no token, so nothing of it is read; `empty` is true "
            "in the answer"
        ),
        "1 of 7 rows (14.3%) is unreadable: a text has only tokens that are unknown to the model, so "
        "nothing of it is read; `unreadable` is true in the answer",
    ]
    rows = small.read_csv(tmp_path / "answers.csv")
    assert [row["answer.empty"] for row in rows] == ["True"] * 3 + ["False"] * 4


def test_a_model_is_not_trained_on_what_it_cannot_read_and_its_scores_say_so(learned, tiny_encoder, caplog):
    rows = [{"text": f"ខ្មែរ{n}", "label": "good bad".split()[n % 2]} for n in range(30)]
    recipe = {"task": {"name": "text-classification"}, "model": {"name": str(tiny_encoder), "max_length": 32}}
    small.raises(
        DataError,
        "30 of 30 rows have only tokens .* Khmer.*\n.*docs/languages.md",
        bertkit.check,
        recipe,
        data=rows,
    )
    caplog.clear()
    bertkit.evaluate(learned.folder, rows)
    assert [message.split(":")[:2] for message in caplog.messages if "unknown" in message] == [
        ["warn", " test"]
    ]


def test_pairs(pairs):
    one = pairs({"text_a": "the cat", "text_b": "was good"})
    assert pairs([{"q": "the cat", "p": "was good"}]) == [one]  # the recipe's own names
    assert pairs({"text_a": "was good", "text_b": "the cat"}) != one
    for wrong in ("the cat", {"text": "the cat"}, {"text_a": "the cat"}):
        small.raises(DataError, "text_", pairs, wrong)


def test_rows_that_are_none(predictor):
    many = [[1], [None], [["the", "cat"]], ["a", 3], ["a", None], [b"a"], [{"text": b"a"}]]
    single = [{}, {"sentence": "a"}, {"text": 3}, {"text": ["a"]}, {"text": None}, 3, None, b"a"]
    for wrong in (*many, *single):
        small.raises(DataError, r"row [12]" if wrong in many else None, predictor, wrong)


def test_a_missing_text_is_not_answered_as_an_empty_one(predictor):
    columns = {"text": ["the cat was good", None]}
    list_of_rows = [{"text": text} for text in columns["text"]]
    other = pd.DataFrame({"text": ["the cat was good", float("nan")]})
    for rows in (list_of_rows, pa.table(columns), pd.DataFrame(columns), other, Dataset.from_dict(columns)):
        for answers in (predictor, predictor.frame):
            small.raises(
                DataError,
                r"^row 2: `text` is missing\n    Fill it in, or leave the row out\.$",
                answers,
                rows,
            )
    assert predictor([{"text": "the cat was good"}, {"text": ""}])[1]["empty"]


def test_answers_for_people(predictor):
    assert (
        answer_line({"label": "good", "score": 0.98765, "scores": {}, "truncated": False}, "a cat")
        == "good  0.988  a cat"
    )
    assert answer_line({"labels": [], "scores": {}, "truncated": True}, "a cat") == "none  a cat  (truncated)"
    assert answer_line({"labels": ["a", "b"], "scores": {}, "truncated": False}, "a cat") == "a, b  a cat"
    assert answer_line({"score": -1.5, "truncated": False}, "a cat") == "-1.500  a cat"
    filled = {"filled": "a cat", "masks": [[{"token": "cat", "score": 0.75}, {"token": "dog", "score": 0.2}]]}
    entities = [
        {"label": "PER", "text": "Ada", "score": 0.75},
        {"label": "LOC", "text": "Bath", "score": 0.5},
    ]
    assert answer_line({"words": [], "entities": entities}) == "PER Ada (0.750), LOC Bath (0.500)"
    assert answer_line({"words": [], "entities": []}, "a cat") == "no entities  a cat"
    assert answer_line(filled, "a [MASK]") == "a cat  (cat 0.750, dog 0.200)  a [MASK]"


anything = st.text(st.characters(exclude_categories=()), max_size=60)  # lone surrogates too


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(texts=st.lists(anything, max_size=6))
def test_any_texts_are_answered(texts, predictor):
    answers = predictor(texts)
    assert len(answers) == len(texts)
    for answer in answers:
        assert all(0 <= score <= 1 for score in answer["scores"].values())
        assert math.isclose(sum(answer["scores"].values()), 1, abs_tol=1e-9)
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer


values = st.one_of(anything, st.integers(), st.none(), st.lists(anything))


@settings(max_examples=60)
@given(
    rows=st.lists(st.one_of(anything, st.none(), st.dictionaries(st.sampled_from(["text", "id"]), values)))
)
def test_any_rows_are_answered_or_refused(rows, predictor):
    with contextlib.suppress(DataError):
        assert len(predictor(rows)) == len(rows)


def classifier(encoder, folder, **config):
    """A classifier that bertkit did not train."""
    transformers.set_seed(1)
    more = {"initializer_range": 1.0, **config}
    transformers.AutoModelForSequenceClassification.from_pretrained(encoder, **more).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(encoder).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("problem", [None, "multi_label_classification", "regression"])
def test_a_foreign_model_with_one_output_answers_as_the_pipeline(problem, tiny_encoder, tmp_path):
    folder = classifier(tiny_encoder, tmp_path, num_labels=1, id2label={0: "spam"}, problem_type=problem)
    texts = [small.text(n, n % 2).strip() for n in range(COUNT)]
    theirs = [
        each["score"]
        for each in transformers.pipeline("text-classification", str(folder), device="cpu")(texts)
    ]
    answers = load(folder, task="text-classification", precision="fp32")(texts)
    if problem == "regression":
        assert [answer["score"] for answer in answers] == pytest.approx(theirs, abs=1e-5)
        return
    assert [answer["scores"]["spam"] for answer in answers] == pytest.approx(theirs, abs=1e-5)
    assert [answer["labels"] for answer in answers] == [["spam"] * (score >= 0.5) for score in theirs]
    file = small.write_rows(
        tmp_path / "new.jsonl", [{"text": "the cat", "labels": n * ["spam"]} for n in (0, 1)]
    )
    scores = evaluate(folder, data=file, task="text-classification")["metrics"]
    assert scores["subset_accuracy"] == 0.5


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"id2label": {0: "bad", 1: "good", 2: "bad"}}, r"config.json: id2label .* the same name: 'bad'\n"),
        ({"problem_type": "regression"}, r"config.json: problem_type is regression, with 3 outputs"),
    ],
)
def test_a_foreign_model_whose_outputs_are_no_labels_is_refused(config, said, tiny_encoder, tmp_path):
    folder = classifier(tiny_encoder, tmp_path, num_labels=3, **config)
    small.raises(ModelError, said, load, folder, task="text-classification")


def test_progress_is_logged_now_and_then(monkeypatch, caplog):
    """Every ten seconds at most, of items that take four each."""
    caplog.set_level("INFO", "bertkit")
    clock = itertools.count(step=4)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert [*progress.progress("abcdefg", "batch", 28, 4)] == [*"abcdefg"]
    assert [*progress.progress(iter("abcdefg"), "query")] == [*"abcdefg"]
    assert caplog.messages == [
        "8 of 28 batches (29%), 30 s left",
        "20 of 28 batches (71%), 10 s left",
        "2 queries in 12 s",
        "5 queries in 24 s",
    ]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert [*progress.progress("abcdefg", "text", 7)] == [*"abcdefg"]
    assert len(caplog.messages) == 4


def test_every_command_that_may_take_long_says_how_far_it_is(
    learned, tiny_encoder, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr("bertkit.vectors.embed.CHUNK", 1)
    file = small.write_rows(tmp_path / "rows.jsonl", [{"id": n, "text": f"the cat {n}"} for n in "abc"])
    to = tmp_path / "out.jsonl"
    store = ("--store", tmp_path / "store")
    for noun, *words in (
        ("rows", "predict", learned.folder, "--input", file, "--output", to),
        ("batch", "evaluate", learned.folder),
        ("batch", "export", learned.folder, "--output", tmp_path / "onnx"),
        ("of 3 texts", "embed", tiny_encoder, "--input", file, "--output", tmp_path / "out.npy"),
        ("documents", "index", tiny_encoder, "--documents", file, *store),
        ("of 3 queries", "search", store[1], "--input", file, "--output", to),
    ):
        assert main([str(word) for word in words]) == 0
        assert re.search(rf"(?m)^\d+ .*{noun}.* (in \d+ s|left)$", capfd.readouterr().err)


def test_a_pipe_is_read_once(learned, tmp_path):
    os.mkfifo(tmp_path / "rows.csv")
    text = "text\n" + "".join(f"number {number}\n" for number in range(1000))
    with ThreadPoolExecutor() as pool:
        written = pool.submit((tmp_path / "rows.csv").write_text, text)
        assert bertkit.predict(learned.folder, tmp_path / "rows.csv", tmp_path / "o.csv") == 1000
        assert written.result() == len(text)


def test_a_txt_holds_texts_though_the_run_learned_from_conll(tmp_path):
    of_run = DataSpec(source={"train": "eng.train"}, format="conll", header=["tokens", "tags"])
    assert like_data(of_run, "a.txt").format is None
    assert like_data(of_run, "eng.testb").format == "conll"
    for source in ({"train": "train.txt"}, str(tmp_path)):
        assert like_data(DataSpec(source=source, format="conll"), "a.txt").format == "conll"


def test_a_folder_has_no_revisions(tiny_encoder):
    what = "is a folder, without revision 'v2'"
    small.raises(ModelError, what, bertkit.load, tiny_encoder, task="fill-mask", revision="v2")


def test_no_row_of_a_file_is_left_out_though_the_run_ignored_some():
    of_run = DataSpec(source="a.csv", missing_fields="ignore")
    assert like_data(of_run, "b.csv").missing_fields == "error"


def test_a_missing_number_is_null(learned, tmp_path):
    pq.write_table(pa.table({"text": ["a cat"], "price": [math.nan]}), tmp_path / "a.parquet")
    answer_file(learned, tmp_path / "a.parquet", tmp_path / "out.jsonl")
    assert '"price": null' in (tmp_path / "out.jsonl").read_text()
    answer_file(learned, tmp_path / "a.parquet", tmp_path / "out.csv")
    assert "nan" not in (tmp_path / "out.csv").read_text()
