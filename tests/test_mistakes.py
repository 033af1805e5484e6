"""The list of mistakes: the most confident first, and the table of all of them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import BY_ID
from finished import finished, report
from sacrebleu.metrics.chrf import CHRF
from test_report import well_formed

from bertkit.report.facts import Facts, Row, read_facts
from bertkit.report.html import write_mistakes, write_report
from bertkit.report.mistakes import DISTANCES, MAX_CONFUSIONS, MAX_MISTAKES, mistakes

LABELS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def run(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(BY_ID["single-label"], tiny_encoder, tmp_path_factory.mktemp("mistakes") / "run").folder


@pytest.fixture(scope="module")
def facts(run: Path) -> Facts:
    return read_facts(run)


def with_rows(facts: Facts, rows: list[Row]) -> Facts:
    """These facts with other rows."""
    return replace(facts, rows=tuple(rows), options={**facts.options, "labels": dict(zip(LABELS, LABELS, strict=True))})


def row_of(text: str, label: str, answer: str, score: float, **more: Any) -> Row:
    scores = dict.fromkeys(LABELS, (1 - score) / 2) | {answer: score}
    return {"text": text, "label": label, **more, "answer": {"label": answer, "score": score, "scores": scores}}


def test_the_most_confident_come_first_and_none_is_called_a_wrong_label(facts: Facts) -> None:
    """Most confident mistakes are the model's, and its answers to held-out rows do not tell these from wrong labels."""
    rows = [row_of("x", "a", "a", 0.9), row_of("y", "b", "a", 0.5), row_of("z", "a", "b", 0.99)]
    found = mistakes(with_rows(facts, rows))
    assert [each.row for each in found.every] == [3, 2]
    page = well_formed(report(with_rows(facts, rows))).text
    assert "2 of 3 rows of validation have another answer" in page
    assert "check the label" not in page


def test_generated_texts_are_listed_by_their_chrf(tiny_encoder: Path, tmp_path: Path) -> None:
    facts = read_facts(finished(BY_ID["text-to-text"], tiny_encoder, tmp_path / "run").folder)
    texts = {"a cat sat on a mat": "a cat sat on a mat", "a cat sat on the mat": "a cat sat on a mat", "": "two dogs"}
    rows = [{"text": "x", "target": t, "answer": {"generated_text": text}} for text, t in texts.items()]
    found = mistakes(replace(facts, rows=tuple(rows)))
    assert [each.row for each in found.every] == [3, 2]
    chrf = CHRF().sentence_score("a cat sat on the mat", ["a cat sat on a mat"]).score
    assert [each.measure for each in found.every] == pytest.approx([100, 100 - chrf])
    assert found.every[0].answer == "(none)"
    assert found.measure in DISTANCES  # better or worse, not right or wrong, where two runs are compared


def test_every_confusion_is_listed(facts: Facts) -> None:
    letters = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(80)]
    rows = [row_of(text, "a", "b", 0.8) for text in letters]
    rows += [row_of(text, "c", "b", 0.5 - i / 100) for i, text in enumerate(letters[:3])]
    found = mistakes(with_rows(facts, rows))
    assert [each.row for each in found.top] == [*range(1, MAX_MISTAKES + 1), 81]
    many = [row_of(f"{text}{i}", f"{text}{i}", "b", 0.8) for i in range(2) for text in letters]
    assert len(many) > MAX_CONFUSIONS
    for row in many:
        row["answer"]["scores"][row["label"]] = 0.0
    listed = mistakes(with_rows(facts, many))
    assert len(listed.top) == MAX_MISTAKES


def test_all_mistakes_are_written_beside_the_page(run: Path, facts: Facts, tmp_path: Path) -> None:
    assert write_report([run]) == run / "report.html"
    found = mistakes(facts)
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
            "text": own["text"],
        }
    assert 'href="mistakes.csv" download' in (run / "report.html").read_text(encoding="utf-8")
    write_report([run], tmp_path / "one.html")
    assert {file.name for file in tmp_path.iterdir()} == {"one.html", "one-mistakes.csv"}
    assert 'href="one-mistakes.csv"' in (tmp_path / "one.html").read_text(encoding="utf-8")
    formula = with_rows(facts, [row_of("=1+1", "a", "b", 0.9)])
    write_mistakes(formula, mistakes(formula), tmp_path / "formula.csv")
    assert (tmp_path / "formula.csv").read_text(encoding="utf-8").rstrip().endswith(",'=1+1")
