"""Scores by the values of a column: those of its rows alone, in `evaluate`, in results.json and in the report."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import small
from cases import BY_ID
from datasets import Dataset
from finished import finished, report

import bertkit
from bertkit.data.disk_list import DiskList
from bertkit.errors import DataError
from bertkit.inference.evaluate import MOST_VALUES, rows_by_value, scored
from bertkit.inference.predictor import load
from bertkit.report.facts import Facts, read_facts
from bertkit.report.paired import compared
from bertkit.run import Run
from bertkit.sections import DataSpec
from bertkit.tasks import get_task
from bertkit.training.train import train

CASE = BY_ID["single-label"]
LANGUAGES = ["de", "en", None, "en", "de", "en", "en", "de"]


@pytest.fixture(scope="module")
def run(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished(CASE, tiny_encoder, tmp_path_factory.mktemp("by") / "run")


def rows() -> list[dict[str, Any]]:
    return [{**row, "language": name} for row, name in zip(CASE.rows(), LANGUAGES, strict=True)]


def test_a_value_has_the_scores_of_its_rows_alone(run: Run) -> None:
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


def test_the_command_prints_them(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = small.write_rows(tmp_path / "rows.jsonl", rows())
    told = small.said(capsys, "evaluate", run.model, "--data", file, "--by", "language")
    assert [line.split()[:2] for line in told.splitlines()[-5:]][2:] == [["en", "4"], ["de", "3"], ["(none)", "1"]]
    error = small.refused(capsys, "evaluate", run.model, "--data", file, "--by", "langage")
    assert "no column `langage`, which `data.by` names" in error
    assert "did you mean" in error


def test_rows_that_are_answered_together_have_none(tmp_path: Path) -> None:
    case, kind = BY_ID["retrieval"], get_task("retrieval")
    spec = DataSpec(source=str(small.write_rows(tmp_path / "rows.jsonl", list(case.rows()))), by="query")
    options = kind.Options.model_validate(case.options)
    small.raises(DataError, r"data\.by: scores by a column", small.read_data, spec, kind, options)


def test_values_without_end_and_numbers() -> None:
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
    some = rows_by_value(Dataset.from_dict({"length": [None, *range(100), float("nan")]}), "length")
    assert {name: len(own) for name, own in some.items()} == {
        "up to 25": 26, "up to 50": 25, "up to 75": 25, "up to 99": 24, "(none)": 2
    }  # fmt: skip
    few = rows_by_value(Dataset.from_dict({"stars": [5, 1, 5]}), "stars")
    assert few == {"5": [0, 2], "1": [1]}


def test_a_training_scores_them(tiny_encoder: Path, tmp_path: Path) -> None:
    results = train(small.recipe(tmp_path, tiny_encoder, "data.by=label"), tmp_path / "run").results
    for split in results["splits"].values():
        assert sum(part["rows"] for part in split["by"]["label"].values()) == split["rows"]


def test_a_report_shows_them_and_runs_are_compared_whatever_columns_they_have(run):
    predictor, data = load(run.model), Dataset.from_list(rows())
    answers = DiskList(predictor.task.answer(data, predictor.predict_features))
    scores = scored(predictor.task, answers, data, by="language")[1]
    facts: Facts = read_facts(run.folder)
    assert "Scores by language" not in report(facts)
    splits = {**facts.results["splits"], facts.split: json.loads(json.dumps(scores))}
    page = report(replace(facts, results={**facts.results, "splits": splits}))
    assert "Scores by language" in page
    assert "(none)" in page
    more = replace(facts, rows=tuple({**row, "language": "de"} for row in facts.rows))
    assert "Left out" not in compared(facts, more, ("one", "other")).rows
