"""Answers on disk are scored as answers in a list; what grading keeps of rows is small, and all that counts."""

import copy
import json
import pickle
import tempfile
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
from cases import BY_ID, NAME
from datasets import Dataset
from finished import finished, report
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from small import memory, raises, read_as, refused, said, write_rows

import bertkit
from bertkit.data.disk_list import DiskList
from bertkit.data.on_disk import column_values, features_of, on_disk, release
from bertkit.data.python_rows import store_rows
from bertkit.errors import DataError, UserError
from bertkit.evaluation import intervals, ranking, reranking
from bertkit.evaluation.conformal import Conformal
from bertkit.evaluation.entities import PackedTags
from bertkit.inference.evaluate import MOST_VALUES, rows_by_value, scored
from bertkit.inference.predictor import load
from bertkit.report.facts import read_facts
from bertkit.report.paired import compared
from bertkit.tasks import get_task

NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**60), 2**60) | st.booleans() | st.none()
VALUES = st.recursive(
    NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


class Made(Sequence[Any]):
    """So many answers, each made when it is read."""

    def __init__(self, count, make):
        self.count = count
        self.make = make

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError
        return self.make(index)


def share(*numbers):
    """A number from 0 to 1 that looks random, the same each time."""
    return hash(numbers) % 9973 / 9973


def single(row):
    scores = {"a": share(row), "b": 1 - share(row)}
    return {"label": max(scores, key=scores.__getitem__), "score": max(scores.values()), "scores": scores}


def words(row):
    return [{"tag": "O" if (7 * row + n) % 4 else "B-PER", "score": share(row, n)} for n in range(12)]


def sentence(row):
    return {"words": words(row), "entities": [{"score": share(row, n)} for n in range(3)]}


def spans(row):
    none = {"answer": "", "start": 0, "end": 0, "score": share(row)}
    best = [{"answer": f"w{n}", "start": n, "end": n + 2, "score": share(row, n) / 20} for n in range(20)]
    return {**(none if row % 3 else best[0]), "n_best": best, "null_score": share(row), "truncated": False}


# Task: options, the answer and the targets of a row, and bytes of memory that grading may take for each row.
GRADED = {
    "text-classification": (
        {"labels": {"a": "a", "b": "b"}, "kind": "single-label",
         "conformal": Conformal(rows=200, gold=[1 - n / 250 for n in range(200)])},
        single, lambda row: {"label": "ab"[row % 2]}, 170),
    "token-classification": (
        {"labels": ["PER"]}, sentence, lambda row: {"tags": [word["tag"] for word in words(row + 1)]}, 220),
    "question-answering": (
        {"unanswerable": True, "null_threshold": 0.0}, spans,
        lambda row: {
            "context": "w1", "answers": {"text": ["w1"] * (row % 4 > 0), "answer_start": [0] * (row % 4 > 0)}
        }, 200),
    "text-ranking": (
        {"graded": False, "grouped": True}, lambda row: {"score": share(row)},
        lambda row: {"query": f"q{row // 10}", "label": float(row % 10 == 3)}, 120),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADED)
def test_grading_holds_few_bytes_of_a_row(name, monkeypatch):
    """Of all that is allocated while answers are scored, with intervals and details, at its highest."""
    options, answer, target, most = GRADED[name]
    kind = get_task(name)
    task = kind(kind.Options(name=kind.name, **options), None, 16)
    monkeypatch.setattr(intervals, "ROWS", 200)
    monkeypatch.setattr("bertkit.data.on_disk.AT_A_TIME", 200)

    def peak(count):
        rows = Dataset.from_list([target(row) for row in range(count)])
        tracemalloc.start()
        graded = task.grade(Made(count, answer), rows)
        assert graded.scores
        assert graded.intervals(resamples=1)
        graded.details()
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    few = peak(600)
    many = peak(1800)
    assert (many - few) / 1200 < most


def test_vectors_of_documents_are_on_the_disk(tiny_encoder, monkeypatch):
    """300 of 40 kB each, twelve at a time."""
    task = BY_ID["retrieval"].task(tiny_encoder)
    monkeypatch.setattr(type(task), "chunk_size", 12)
    rows = Dataset.from_list([{"query": "a cat", "document": f"the {number}"} for number in range(300)])
    predict = lambda features: [np.ones(10_000, np.float32)] * len(features)  # noqa: E731
    tracemalloc.start()
    answers = list(task.answer(rows, predict))
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(answers[0]["found"]) == 100
    assert highest < 300 * 40_000 / 2


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says what is mapped")
def test_rows_that_were_read_leave_memory():
    text = "x" * 1000
    rows = on_disk(({"text": [text] * 1000} for _ in range(32)), features_of({"text": "text"}), "x")
    before = memory("RssFile")
    whole = rows.select(range(len(rows)))
    assert len(whole["text"][:]) == len(rows)
    assert memory("RssFile") > before + 25_000
    release(rows)
    assert memory("RssFile") < before + 5_000
    assert set(column_values(rows, "text")) == {text}
    assert memory("RssFile") < before + 5_000
    release(whole)  # has nothing of its own to release
    assert whole["text"][:2] == [text] * 2


def test_rows_on_disk_can_be_pickled_and_copied():
    rows = on_disk([{"text": ["a", "b"]}], features_of({"text": "text"}), "x")
    for same in (pickle.loads(pickle.dumps(rows)), copy.deepcopy(rows)):
        release(same)
        assert same["text"][:] == ["a", "b"]
        assert same._fingerprint == rows._fingerprint


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=5))
def test_answers_come_back_as_they_were(answers):
    spooled = DiskList(iter(answers))
    assert len(spooled) == len(answers)
    assert list(spooled) == answers
    assert [spooled[place - len(answers)] for place in range(len(answers))] == answers
    assert spooled[1:] == answers[1:]
    assert spooled[::-2] == answers[::-2]
    assert list(spooled.select(range(len(answers))[::-1]).select([-1] * len(answers))) == answers[:1] * len(
        answers
    )
    spooled.extend(answers)  # after it was read
    assert list(spooled) == [*answers, *answers]
    assert list(pairwise(spooled)) == list(pairwise([*answers, *answers]))  # two readers of one file
    with pytest.raises(IndexError):
        spooled[2 * len(answers)]


@given(st.lists(st.lists(st.sampled_from("O B-LOC I-LOC E-x-y".split()), max_size=5), max_size=5))
def test_packed_tags_are_the_tags(sentences):
    packed = PackedTags(iter(sentences))
    assert list(packed) == list(packed) == sentences
    assert len(packed) == len(sentences)
    assert all(tags in packed for tags in sentences)
    assert ["S-LOC"] not in packed


def test_resamples_of_many_rows_are_taken_some_at_a_time(monkeypatch):
    """To rounding: sums over more columns may be made in another order."""
    rng = default_rng(4)
    truth = rng.integers(0, 2, 60).astype(float)
    groups = np.sort(rng.integers(0, 9, 60))
    given = truth, rng.random(60), groups, True, False
    whole = reranking.RankedRows(*given).intervals()
    monkeypatch.setattr(reranking, "CHUNK", 1)
    parts = reranking.RankedRows(*given).intervals()
    assert list(parts) == list(whole)
    for name, interval in whole.items():
        assert parts[name] == pytest.approx(interval, abs=1e-12)
        assert interval[0] < interval[1]


def torn_queries():
    """Rows of three queries in turn, and of documents that nobody asks for; unit vectors of both."""
    names = [f"q{row % 3}" if row % 4 else "" for row in range(20)]
    rows = {
        "query_id": names,
        "query": [f"text of {name}" if name else "" for name in names],
        "document_id": [f"d{row % 11}" for row in range(20)],
        "document": [f"text of d{row % 11}" for row in range(20)],
        "grade": [float(row % 3) for row in range(20)],
    }
    rng = default_rng(0)
    asked, there = (rng.normal(size=(count, 4)) for count in (3, 11))
    unit = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (asked, there)]
    return Dataset.from_dict(rows), unit[0], unit[1]


QUERIES = ["q1", "q2", "q0"]
DOCUMENTS = [f"d{number}" for number in range(11)]


def test_rows_of_a_query_need_not_stand_together_and_queries_are_measured_one_by_one(monkeypatch):
    """Scores and ranks are those of all pairs at once; what a query found stands in its first row."""
    rows, asked, there = torn_queries()
    answers = list(ranking.searched(rows, QUERIES, DOCUMENTS, asked, there))
    cosines = asked @ there.T
    seen = set()
    for row, answer in zip(rows, answers, strict=True):
        if not row["query"]:
            assert answer == {}
            continue
        own = cosines[QUERIES.index(row["query_id"])]
        place = DOCUMENTS.index(row["document_id"])
        assert answer["score"] == pytest.approx(own[place])
        assert answer["rank"] == (own >= own[place]).sum()
        assert ("found" in answer) == (row["query_id"] not in seen)
        seen.add(row["query_id"])
    assert len(seen) == 3
    together = ranking.GradedSearches(answers, rows).per_query
    monkeypatch.setattr(ranking, "QUERIES", 1)
    alone = ranking.GradedSearches(answers, rows).per_query
    assert alone == together
    assert [list(values) for values in alone.values()] == [QUERIES] * len(together)
    assert 0 < np.mean(list(alone["ndcg@10"].values())) < 1


def read(source, at_a_time, monkeypatch, **settings):
    """The file's rows for text classification, so many of them read at a time."""
    monkeypatch.setattr("bertkit.data.on_disk.AT_A_TIME", at_a_time)
    return read_as(NAME, source, **settings)


@pytest.mark.parametrize("settings", [{}, {"validation": 0.3}, {"limit": 7}], ids=str)
def test_rows_are_the_same_however_many_are_read_at_a_time(settings, tmp_path, monkeypatch):
    source = write_rows(tmp_path / "rows.jsonl", small.rows("multi-label", 20))
    whole, parts = (read(source, count, monkeypatch, **settings) for count in (1000, 3))
    assert {split: list(rows) for split, rows in whole.rows.items()} == {
        k: list(r) for k, r in parts.rows.items()
    }
    assert whole.fingerprints == parts.fingerprints
    for split, rows in whole.rows.items():
        own = [
            {name: row[name] for name in ("text", "labels", "id")} for row in small.rows("multi-label", 20)
        ]
        places = list(whole.origins[split].number)
        assert list(rows) == [own[place - 1] for place in places]
        assert places == list(parts.origins[split].number)


def test_labels_are_judged_as_a_whole(tmp_path, monkeypatch):
    """A fraction among names is a name, though the rows that are read with it hold nothing else."""
    rows = [
        {"text": f"a {number}", "label": label} for number, label in enumerate("1.5 2.5 good bad".split())
    ]
    found = read(write_rows(tmp_path / "rows.jsonl", rows), 2, monkeypatch)
    assert found.rows["train"]["label"][:] == "1.5 2.5 good bad".split()


@pytest.mark.parametrize("count", [1, 10_000])  # the disk is full when what is left is written, or before
def test_a_full_disk_is_said(count, tmp_path, monkeypatch):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    source = write_rows(tmp_path / "rows.jsonl", small.rows("single-label", 4))
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "w+b"))
    raises(
        UserError, r"(?s)No space left on device.*TMPDIR", DiskList, ({"label": "good"} for _ in range(count))
    )
    raises(DataError, "No space left on device", read, source, 2, monkeypatch)


def test_what_goes_wrong_while_rows_are_read_is_not_called_a_full_disk():
    def blocks():
        yield {"text": ["a"]}
        raise ConnectionResetError("the Hub is gone")

    raises(ConnectionResetError, "the Hub is gone", on_disk, blocks(), features_of({"text": "text"}), "x")
    raises(ConnectionResetError, "the Hub is gone", DiskList, blocks())


CASE = BY_ID["single-label"]
LANGUAGES = ["de", "en", None, "en", "de", "en", "en", "de"]


@pytest.fixture(scope="module")
def run(tiny_encoder, tmp_path_factory):
    return finished(CASE, tiny_encoder, tmp_path_factory.mktemp("by") / "run")


def rows():
    return [{**row, "language": name} for row, name in zip(CASE.rows(), LANGUAGES, strict=True)]


def test_a_value_has_the_scores_of_its_rows_alone(run):
    scores = bertkit.evaluate(run.model, rows(), by="language")
    plain = bertkit.evaluate(run.model, rows())
    assert "by" not in plain
    assert {name: value for name, value in scores.items() if name != "by"} == plain
    assert list(scores["by"]["language"]) == ["en", "de", "(none)"]  # the most frequent first
    for value, part in scores["by"]["language"].items():
        own = [row for row in rows() if (row["language"] or "(none)") == value]
        alone = bertkit.evaluate(run.model, own)
        assert part["rows"] == alone["rows"] == len(own)
        assert part["metrics"] == pytest.approx(alone["metrics"])  # other batches
        assert part["intervals"].keys() == alone["intervals"].keys()
    by_label = bertkit.evaluate(run.model, rows(), by="label")["by"]["label"]
    assert sum(part["rows"] for part in by_label.values()) == 8


def test_the_command_prints_them(run, tmp_path, capsys):
    file = write_rows(tmp_path / "rows.jsonl", rows())
    told = said(capsys, "evaluate", run.model, "--data", file, "--by", "language")
    assert [line.split()[:2] for line in told.splitlines()[-5:]][2:] == [
        ["en", "4"],
        ["de", "3"],
        ["(none)", "1"],
    ]
    error = refused(capsys, "evaluate", run.model, "--data", file, "--by", "langage")
    assert "no column `langage`, which `data.by` names" in error
    assert "did you mean" in error


def test_rows_that_are_answered_together_have_none(tmp_path):
    case = BY_ID["retrieval"]
    file = write_rows(tmp_path / "rows.jsonl", list(case.rows()))
    raises(DataError, r"data\.by: scores by a column", read_as, case.options, file, by="query")


def test_values_without_end_and_numbers():
    names = Dataset.from_dict({"name": [f"n{n}" for n in (*range(60), 7)]})
    found = rows_by_value(names, "name")
    assert next(iter(found.items())) == ("n7", [7, 60])
    assert len(found) == MOST_VALUES + 1
    assert len(found["10 other values"]) == 10
    assert sorted(chain.from_iterable(found.values())) == list(range(61))
    lengths = rows_by_value(Dataset.from_dict({"length": [*range(99), 98.5]}), "length")
    assert {name: len(own) for name, own in lengths.items()} == dict.fromkeys(
        ("up to 25", "up to 50", "up to 75", "up to 98.5"), 25
    ) | {"up to 25": 26, "up to 98.5": 24}
    assert "up to 1700000099" in rows_by_value(
        Dataset.from_dict({"n": [*range(1_700_000_000, 1_700_000_100)]}), "n"
    )
    some = rows_by_value(Dataset.from_dict({"length": [None, *range(100), float("nan")]}), "length")
    assert {name: len(own) for name, own in some.items()} == {
        "up to 25": 26, "up to 50": 25, "up to 75": 25, "up to 99": 24, "(none)": 2
    }  # fmt: skip
    cells = Dataset.from_dict({"length": ["", *map(str, range(100)), " "]})  # as csv has them
    found = rows_by_value(cells, "length")
    assert (len(found), found["(none)"]) == (5, [0, 101])
    few = rows_by_value(Dataset.from_dict({"stars": [5, 1, 5]}), "stars")
    assert few == {"5": [0, 2], "1": [1]}


def test_a_training_scores_them(tiny_encoder, tmp_path):
    results = small.trained(tmp_path, tiny_encoder, "data.by=label").results
    for split in results["splits"].values():
        assert sum(part["rows"] for part in split["by"]["label"].values()) == split["rows"]


def test_a_report_shows_them_and_runs_are_compared_whatever_columns_they_have(run):
    predictor = load(run.model)
    data = Dataset.from_list(rows())
    answers = DiskList(predictor.task.answer(data, predictor.predict_features))
    scores = scored(predictor.task, answers, data, by="language")[1]
    facts = read_facts(run.folder)
    assert "Scores by <bdi>language<" not in report(facts)
    splits = {**facts.results["splits"], facts.split: json.loads(json.dumps(scores))}
    page = report(replace(facts, results={**facts.results, "splits": splits}))
    assert "Scores by <bdi>language<" in page
    assert "(none)" in page
    more = replace(facts, rows=tuple({**row, "language": "de"} for row in facts.rows))
    assert "Left out" not in compared(facts, more, ("one", "other")).rows


def test_a_file_is_read_whatever_rows_the_run_learned(tiny_encoder, tmp_path):
    case = BY_ID["mlm"]
    stored = store_rows({"train": case.rows()})  # the folder goes with it
    section = {key: str(value) for key, value in stored.items()}
    run = finished(case, tiny_encoder, tmp_path / "run", data=section)
    cat, dog = (
        bertkit.evaluate(run.folder, write_rows(tmp_path / "a.txt", f"{text} was good\n"))
        for text in ("the cat", "the dog")
    )
    assert cat != dog


def test_a_number_that_is_none_is_among_the_missing():
    found = rows_by_value(Dataset.from_dict({"n": [*map(str, range(100)), "NaN"]}), "n")
    assert (len(found), found["(none)"]) == (5, [100])
    assert [*rows_by_value(Dataset.from_dict({"language": ["nan", "nan", "en"]}), "language")] == [
        "nan",
        "en",
    ]


def test_numbers_of_numpy_are_kept_as_numbers():
    values = [{"a": np.float32(0.5), "b": np.bool_(False), "c": np.arange(2)}]
    assert list(DiskList(values)) == [{"a": 0.5, "b": False, "c": [0, 1]}]
