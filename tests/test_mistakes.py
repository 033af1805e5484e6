"""The list of mistakes: gold labels to check, mistakes that are alike, and the table of all of them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES
from finished import finished, report
from sacrebleu.metrics.chrf import CHRF
from test_report import well_formed

from bertkit.report.facts import Facts, Row, read_facts
from bertkit.report.html import write_report
from bertkit.report.mistakes import DISTANCES, MAX_CONFUSIONS, MAX_MISTAKES, mistakes

LABELS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def run(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = next(case for case in CASES if case.id == "single-label")
    return finished(case, tiny_encoder, tmp_path_factory.mktemp("mistakes") / "run").folder


@pytest.fixture(scope="module")
def facts(run: Path) -> Facts:
    return read_facts(run)


def with_rows(facts: Facts, rows: list[Row], error: float = 0.05) -> Facts:
    """These facts with other rows, and with this calibration error."""
    scores = {**facts.scores, "calibration": {**facts.scores["calibration"], "ece_after": error}}
    results = {**facts.results, "splits": {**facts.results["splits"], facts.split: scores}}
    return replace(
        facts,
        rows=tuple(rows),
        results=results,
        options={**facts.options, "labels": dict(zip(LABELS, LABELS, strict=True))},
    )


def row_of(text: str, label: str, answer: str, score: float, **more: Any) -> Row:
    scores = dict.fromkeys(LABELS, (1 - score) / 2) | {answer: score}
    return {"text": text, "label": label, **more, "answer": {"label": answer, "score": score, "scores": scores}}


def test_labels_to_check_are_those_of_the_confident_joint(facts: Facts) -> None:
    """Oracle: the off-diagonal rows of the confident joint (Northcutt et al. 2021, equation 1), from 0.9 on."""
    rng = np.random.default_rng(0)
    truth, table = rng.integers(0, 3, 300), rng.dirichlet([0.3, 0.3, 0.3], 300)
    sure = rng.random(300) < 0.8
    table[sure] = 0.2 * table[sure] + 0.8 * np.eye(3)[truth[sure]]
    given = np.where(rng.random(300) < 0.1, (truth + 1) % 3, truth)
    rows = [
        {
            "text": f"{chr(97 + i % 26)}{chr(97 + i // 26)}",
            "label": LABELS[label],
            "answer": {
                "label": LABELS[int(scores.argmax())],
                "score": float(scores.max()),
                "scores": dict(zip(LABELS, scores.tolist(), strict=True)),
            },
        }
        for i, (label, scores) in enumerate(zip(given, table, strict=True))
    ]
    limits = np.array([table[given == label, label].mean() for label in range(3)])
    confident = np.where(table >= limits, table, 0)
    joint = confident.argmax(axis=1)
    expected = {i + 1 for i in range(300) if confident[i].any() and joint[i] != given[i] and table[i].max() >= 0.9}
    found = mistakes(with_rows(facts, rows))
    assert found is not None
    assert {each.row for each in found.every if each.check_label} == expected
    assert 5 < found.doubtful == len(expected) < len(found.every)
    assert [each.check_label for each in found.every] == [True] * len(expected) + [False] * (
        len(found.every) - len(expected)
    )
    page = well_formed(report(with_rows(facts, rows)))
    assert f"look for them among the first {len(expected)}: the model" in page.text
    assert page.text.count("check the label") == sum(each.check_label for each in found.top)


@pytest.mark.parametrize("why", ["not calibrated", "trained on"])
def test_no_label_is_doubted_without_grounds(why: str, facts: Facts) -> None:
    rows = [row_of("x", "a", "a", 0.9), row_of("y", "b", "b", 0.9), row_of("z", "a", "b", 0.99)]
    doubted = mistakes(with_rows(facts, rows))
    assert doubted is not None
    assert doubted.doubtful == 1
    own = with_rows(facts, rows, 0.2) if why == "not calibrated" else replace(with_rows(facts, rows), split="train")
    if why == "trained on":
        own = replace(own, results={**own.results, "splits": {"train": with_rows(facts, rows).scores}})
    found = mistakes(own)
    assert found is not None
    assert found.doubtful == 0


def test_generated_texts_are_listed_by_their_chrf(tiny_encoder: Path, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.id == "text-to-text")
    facts = read_facts(finished(case, tiny_encoder, tmp_path / "run").folder)
    texts = {"a cat sat on a mat": "a cat sat on a mat", "a cat sat on the mat": "a cat sat on a mat", "": "two dogs"}
    rows = [{"text": "x", "target": t, "answer": {"generated_text": text}} for text, t in texts.items()]
    found = mistakes(replace(facts, rows=tuple(rows)))
    assert found is not None
    assert [each.row for each in found.every] == [3, 2]
    chrf = CHRF().sentence_score("a cat sat on the mat", ["a cat sat on a mat"]).score
    assert [each.measure for each in found.every] == pytest.approx([100, 100 - chrf])
    assert found.every[0].answer == "(none)"
    assert found.measure in DISTANCES  # better or worse, not right or wrong, where two runs are compared


def test_mistakes_that_are_alike_are_listed_once(facts: Facts) -> None:
    texts = ["Order 12 is late!", "order 7 is late", "ORDER  99 is late...", "order 7 is early", "12", "13"]
    rows = [row_of(text, "a", "b", 0.6 - i / 100) for i, text in enumerate(texts)]
    rows.append(row_of("order 8 is late", "c", "b", 0.5))  # another gold label
    found = mistakes(with_rows(facts, rows))
    assert found is not None
    assert [(each.row, each.alike) for each in found.top] == [(1, 2), (4, 0), (5, 0), (6, 0), (7, 0)]
    assert len(found.every) == 7
    assert "and 2 more like this" in well_formed(report(with_rows(facts, rows))).text


def test_every_confusion_is_listed(facts: Facts) -> None:
    letters = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(80)]
    rows = [row_of(text, "a", "b", 0.8) for text in letters]
    rows += [row_of(text, "c", "b", 0.5 - i / 100) for i, text in enumerate(letters[:3])]
    found = mistakes(with_rows(facts, rows))
    assert found is not None
    assert [each.row for each in found.top] == [*range(1, MAX_MISTAKES + 1), 81]
    many = [row_of(f"{text}{i}", f"{text}{i}", "b", 0.8) for i in range(2) for text in letters]
    assert len(many) > MAX_CONFUSIONS
    for row in many:
        row["answer"]["scores"][row["label"]] = 0.0
    listed = mistakes(with_rows(facts, many))
    assert listed is not None
    assert len(listed.top) == MAX_MISTAKES


def test_all_mistakes_are_written_beside_the_page(run: Path, facts: Facts, tmp_path: Path) -> None:
    assert write_report([run]) == run / "report.html"
    found = mistakes(facts)
    assert found is not None
    with (run / "mistakes.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert (run / "mistakes.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    assert len(rows) == len(found.every) > 0
    for row, each in zip(rows, found.every, strict=True):
        own = facts.rows[each.row - 1]
        assert row == {
            "row": str(each.row),
            "id": own.get("id", ""),
            "location": own["location"],
            "gold": own["label"],
            "answer": own["answer"]["label"],
            "confidence": str(own["answer"]["score"]),
            "check_label": "False",
            "text": own["text"],
        }
    assert 'href="mistakes.csv" download' in (run / "report.html").read_text(encoding="utf-8")
    write_report([run], tmp_path / "one.html")
    assert {file.name for file in tmp_path.iterdir()} == {"one.html", "one-mistakes.csv"}
    assert 'href="one-mistakes.csv"' in (tmp_path / "one.html").read_text(encoding="utf-8")


def test_no_cell_is_a_formula(run: Path, tmp_path: Path) -> None:
    file = run / "predictions" / "validation.jsonl"
    before = file.read_text(encoding="utf-8")
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " plain", "a=b"]
    rows = [json.loads(line) for line in before.splitlines()]
    for row, text in zip(rows, texts, strict=True):
        row["text"], row["label"] = text, "bad" if row["answer"]["label"] == "good" else "good"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    try:
        write_report([run], tmp_path / "one.html")
    finally:
        file.write_text(before, encoding="utf-8")
    with (tmp_path / "one-mistakes.csv").open(encoding="utf-8-sig", newline="") as lines:
        cells = [row["text"] for row in csv.DictReader(lines)]
    assert sorted(cells) == sorted([*(f"'{text}" for text in texts[:6]), *texts[6:]])
