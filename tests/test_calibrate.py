"""Calibrating a trained model again: thresholds by brute force, options that answers use, records that stay true."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
from cases import CASES
from finished import finished
from sklearn.metrics import f1_score, precision_score, recall_score

import bertkit
from bertkit.cli.main import main
from bertkit.errors import ModelError, UserError
from bertkit.evaluation import calibration
from bertkit.report.card import write_card
from bertkit.run import Run
from bertkit.training.train import train

BY_ID = {case.id: case for case in CASES}


@pytest.fixture(scope="module")
def trained(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    room = tmp_path_factory.mktemp("calibrate")
    return train(small.recipe(room, tiny_encoder, *small.LEARN, kind="multi-label"), room / "run")


@pytest.fixture
def single(learned: Run, tmp_path: Path) -> Run:
    """A copy, which a test may change."""
    return Run(Path(shutil.copytree(learned.folder, tmp_path / "single")))


@pytest.fixture
def run(trained: Run, tmp_path: Path) -> Run:
    """A copy, which a test may change."""
    return Run(Path(shutil.copytree(trained.folder, tmp_path / "run")))


def given(case: str, encoder: Path, folder: Path) -> tuple[Run, Path]:
    """A run of a case, and its rows as a file."""
    rows = [dict(row) for row in BY_ID[case].rows()]
    return finished(BY_ID[case], encoder, folder / "run"), small.write_rows(folder / "rows.jsonl", rows)


def levels(scores: Any) -> list[float]:
    """The scores, in ascending order, that differ by more than rounding."""
    ascending = [-1.0, *np.sort(scores).tolist()]
    return [high for low, high in pairwise(ascending) if high - low > calibration.ROUNDING]


def section(run: Run) -> dict[str, Any]:
    return dict(json.loads((run.model / "config.json").read_text(encoding="utf-8"))["bertkit"])


def test_cosines_below_zero_have_thresholds_too() -> None:
    found = calibration.thresholds_of([-0.5, -0.25, 0.5], [0, 1, 1])
    assert found.values == pytest.approx([-0.5 - calibration.ROUNDING, -0.375, 0.125], abs=1e-12)
    assert found.precision.tolist() == [2 / 3, 1, 1]
    assert found.recall.tolist() == [1, 1, 0.5]


def test_on_validation_the_same_is_fitted_as_after_training(run: Run) -> None:
    before, scores = section(run), run.results
    found = bertkit.calibrate(run.folder)
    after = section(run)
    record = after.pop("calibration")
    assert after == before
    assert record == {name: found[name] for name in ("rows", "sha256", "goal", "options", "before")}
    assert record["options"] == record["before"] == {name: before["task"][name] for name in record["options"]}
    data = json.loads((run.folder / "data.json").read_text(encoding="utf-8"))
    assert (record["rows"], record["sha256"]) == (10, data["fingerprints"]["validation"])
    assert run.results == scores | {"calibrated": record}
    metrics = scores["splits"]["validation"]["metrics"]
    for each in found["labels"]:
        assert each["threshold"] == record["options"]["thresholds"][each["label"]]
        for name in ("precision", "recall", "f1", "support"):
            assert each[name] == pytest.approx(metrics[f"{name}/{each['label']}"])


@pytest.mark.parametrize(("goal", "least"), [("precision", 0.5), ("recall", 0.9), ("recall", 0.3)])
def test_thresholds_reach_a_goal_on_rows_of_any_file(goal: str, least: float, run: Run, tmp_path: Path) -> None:
    rows = small.rows("multi-label", 24, start=40)
    file = small.write_rows(tmp_path / "new.jsonl", rows)
    found = bertkit.calibrate(run.folder, file if goal == "recall" else rows, **{goal: least})
    answers = bertkit.load(run.folder)([row["text"] for row in rows])
    for each in found["labels"]:
        scores = np.array([answer["scores"][each["label"]] for answer in answers])
        truth = np.array([each["label"] in row["labels"] for row in rows])
        assert [each["label"] in answer["labels"] for answer in answers] == (scores >= each["threshold"]).tolist()
        measures = {"precision": precision_score, "recall": recall_score, "f1": f1_score}
        ours = {
            name: measure(truth, scores >= each["threshold"], zero_division=0) for name, measure in measures.items()
        }
        assert {name: each[name] for name in ours} == pytest.approx(ours)
        assert each["support"] == truth.sum()
        candidates = [(low + high) / 2 for low, high in pairwise([0.0, *levels(scores)])]
        good = [c for c in candidates if measures[goal](truth, scores >= c, zero_division=0) >= least]
        assert each["threshold"] == pytest.approx(
            min(good) if goal == "precision" else max(good), abs=calibration.ROUNDING
        )


@pytest.mark.parametrize("kind", ["multi-label", "single-label"])
def test_what_is_out_of_reach_changes_nothing(kind, request, tmp_path):
    own = request.getfixturevalue("single" if kind == "single-label" else "run")
    column = "label" if kind == "single-label" else "labels"
    rows = [{**row, column: "bad"} for row in small.rows("single-label", 8)]
    if kind == "multi-label":
        rows = [{**row, column: labels} for row in small.rows(kind, 8) for labels in (["bad"], [])]
    before = (own.model / "config.json").read_bytes()
    with pytest.raises(UserError) as error:
        bertkit.calibrate(own.folder, small.write_rows(tmp_path / "new.jsonl", rows), precision=0.9)
    told = {problem.where: problem.what for problem in error.value.problems}
    none = dict.fromkeys(["label good"], "no row has it, so no threshold has a precision")
    low = "no threshold has a precision of at least 0.9 on these rows; the best has 0.5000"
    assert told == (none if kind == "single-label" else {**none, "label long": none["label good"], "label bad": low})
    assert (own.model / "config.json").read_bytes() == before
    assert "calibrated" not in own.results


def test_report_and_card_say_that_the_scores_are_older(run: Run, tmp_path: Path) -> None:
    scored = section(run)["task"]
    file = small.write_rows(tmp_path / "new.jsonl", small.rows("multi-label", 24, start=40))
    bertkit.calibrate(run.folder, file, recall=0.9)
    found = bertkit.calibrate(run.folder, file, recall=0.2)
    assert found["before"] == {name: scored[name] for name in found["options"]}  # what the scores are of
    assert found["options"]["thresholds"] != scored["thresholds"]
    facts = bertkit.Run(run.folder).facts
    assert facts.options["thresholds"] == scored["thresholds"]
    rows = f"24 rows (sha256 {found['sha256'][:16]}…; recall of at least 0.2)"
    said = f"from before `bertkit calibrate`, which fitted on {rows}"
    texts = [(run.folder / name).read_text(encoding="utf-8") for name in ("report.html", "model/README.md")]
    for text in texts:
        assert said in text.replace("\\", "").replace("&gt;", ">")
        for name, value in found["options"]["thresholds"].items():
            assert f"threshold of {name} {value:.4f}" in text
    card = write_card(Run(run.folder)).read_text(encoding="utf-8")
    assert card == texts[1]


def test_a_temperature_of_the_recipe_is_fitted_again(tiny_encoder: Path, tmp_path: Path) -> None:
    run = train(small.recipe(tmp_path, tiny_encoder, "task.temperature=7.0"), tmp_path / "run")
    rows = small.rows("single-label", 24, start=40)
    found = bertkit.calibrate(run.folder, small.write_rows(tmp_path / "new.jsonl", rows))
    assert found["before"] == {"temperature": 7.0, "thresholds": None}
    answers = bertkit.load(run.folder)([row["text"] for row in rows])
    table = np.array([list(answer["scores"].values()) for answer in answers])
    truth = [list(answers[0]["scores"]).index(row["label"]) for row in rows]
    assert calibration.fit_temperature(table, truth, exclusive=True) == pytest.approx(1.0, abs=1e-3)
    assert found["options"]["temperature"] != 7.0
    expected = [[row["label"] for row in rows].count(name) for name in answers[0]["scores"]]
    assert [each["support"] for each in found["labels"]] == expected
    assert {each["threshold"] for each in found["labels"]} == {None}
    with pytest.raises(UserError, match=r"gives the best label or none.*\n.*Give a precision"):
        bertkit.calibrate(run.folder, recall=0.5)


def table_of(answers: list[Any]) -> np.ndarray:
    return np.array([list(answer["scores"].values()) for answer in answers])


def test_a_precision_of_single_labels_leaves_some_rows_without(single: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice([*small.WORDS, "good", "bad"], 6)) for _ in range(40)]
    best = bertkit.load(single.folder)(texts)
    given, sure = (np.array([answer[name] for answer in best]) for name in ("label", "score"))
    unsure = sure < np.where(given == "bad", *(np.quantile(sure[given == name], 0.3) for name in ("bad", "good")))
    gold, least = np.where(unsure == (given == "bad"), "good", "bad"), 0.9  # what the model is less sure of is wrong
    rows = [{"text": text, "label": label} for text, label in zip(texts, gold.tolist(), strict=True)]
    bertkit.calibrate(single.folder, rows)
    likely = table_of(bertkit.load(single.folder)(texts)).max(axis=1)
    reach = {}
    for name in ("bad", "good"):
        scores, right = likely[given == name], gold[given == name] == name
        limits = pairwise([0.0, *np.unique(scores).tolist()])
        reach[name] = {(low + high) / 2: right[scores >= high].mean() for low, high in limits}
    found = bertkit.calibrate(single.folder, small.write_rows(tmp_path / "new.jsonl", rows), precision=least)
    answers = bertkit.load(single.folder)(texts)
    decided = np.array([str(answer["label"]) for answer in answers])
    for each in found["labels"]:
        name = each["label"]
        lowest = min(value for value, precision in reach[name].items() if precision >= least)
        assert each["threshold"] == found["options"]["thresholds"][name] == pytest.approx(lowest, abs=1e-12)
        assert each["precision"] == pytest.approx(precision_score(gold == name, decided == name))
        assert each["precision"] >= least
        assert each["f1"] == pytest.approx(f1_score(gold == name, decided == name))
        assert each["before"]["recall"] == pytest.approx(recall_score(gold == name, given == name))
        assert each["before"]["threshold"] is None
    expected = [
        label if score >= found["options"]["thresholds"][label] else "None"
        for label, score in zip(given, likely, strict=True)
    ]
    assert decided.tolist() == expected
    assert "None" in expected
    overall = found["overall"]
    assert overall["answered"] == np.mean(decided != "None") < 1 == overall["before"]["answered"]
    assert overall["accuracy"] == np.mean(decided == gold)
    assert overall["before"]["accuracy"] == np.mean(given == gold)
    scored = bertkit.evaluate(single.folder, rows)
    assert scored["metrics"]["accuracy"] == pytest.approx(overall["accuracy"])
    assert scored["answered"] == overall["answered"]
    for each in found["labels"]:
        assert scored["metrics"][f"precision/{each['label']}"] == pytest.approx(each["precision"])
    # one call may decide otherwise
    always = bertkit.load(single.folder).with_decisions(threshold=0.0)(texts)
    assert [answer["label"] for answer in always] == given.tolist()
    never = bertkit.load(single.folder).with_decisions(threshold=1.0)(texts)
    assert {answer["label"] for answer in never} == {None}
    sets = bertkit.load(single.folder).with_decisions(coverage=0.5)(texts)
    assert [a["label"] for a in sets] == [a["set"][0] if len(a["set"]) == 1 else None for a in sets]
    # and without a goal the best label is given again
    assert bertkit.calibrate(single.folder, rows)["options"]["thresholds"] is None


def test_two_labels_by_cosine(tiny_encoder: Path, tmp_path: Path) -> None:
    run, file = given("similarity-labels", tiny_encoder, tmp_path)
    found = bertkit.calibrate(run, file, recall=1.0)
    rows = small.read_rows(file)
    answers = bertkit.load(run.folder)([{name: row[name] for name in ("text_a", "text_b")} for row in rows])
    (only,) = found["labels"]
    lowest = min(answer["score"] for answer, row in zip(answers, rows, strict=True) if row["label"] == only["label"])
    assert only["recall"] == 1.0
    assert only["threshold"] == found["options"]["threshold"] <= lowest
    assert all(answer["score"] <= only["threshold"] or answer["score"] >= lowest for answer in answers)
    assert all((answer["label"] == only["label"]) == (answer["score"] >= only["threshold"]) for answer in answers)


@pytest.mark.parametrize("case", ["qa-windows-or-none", "ner-crf"])
def test_tasks_without_labels_of_rows(case: str, tiny_encoder: Path, tmp_path: Path) -> None:
    run, file = given(case, tiny_encoder, tmp_path)
    found = bertkit.calibrate(run.folder, file)
    assert found["labels"] == []
    assert found["options"] == pytest.approx(found["before"])  # the rows are those that it was fitted on
    assert section(run)["calibration"]["rows"] == len(small.read_rows(file))


def test_models_that_have_nothing_to_fit(tiny_encoder: Path, tmp_path: Path) -> None:
    run, file = given("similarity-cosent", tiny_encoder, tmp_path)
    with pytest.raises(UserError, match="neither temperature nor thresholds"):
        bertkit.calibrate(run.folder, file)
    with pytest.raises(ModelError, match="was not trained by bertkit"):
        bertkit.calibrate(tiny_encoder, file)
    with pytest.raises(ModelError, match="Name a run or a model folder"):
        bertkit.calibrate("someone/model", file)


def test_on_the_command_line(run: Run, capsys: Any, tmp_path: Path) -> None:
    file = small.write_rows(tmp_path / "new.jsonl", small.rows("multi-label", 24, start=40))
    assert main(["calibrate", str(run.folder), "--data", str(file), "--recall", "0.9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["label", "threshold", "precision", "recall", "F1", "support"]
    assert [line.split()[0] for line in lines[2:5]] == ["bad", "good", "long"]
    assert lines[5].startswith("accuracy 0.")
    assert lines[6].startswith("24 rows, recall of at least 0.9: temperature ")
    assert main(["calibrate", str(run.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["goal"] == "best F1"
    for wrong in (
        ["task.kind=null"],
        ["--recall", "0"],
        ["--precision", "1.5"],
        ["--recall", "0.5", "--precision", "0.5"],
    ):
        assert main(["calibrate", str(run.folder), *wrong]) == 2
        assert capsys.readouterr().err.startswith("error: ")
