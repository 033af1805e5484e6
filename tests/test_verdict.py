"""The verdict of a report follows from its figures; each finding has its severity and says what to do."""

from __future__ import annotations

from typing import Any

from bertkit.data.schema import Finding, leak
from bertkit.report.verdict import BASELINES, Verdict, best_baseline, score_findings, verdict

CLEAR = Verdict("good", "Clearly better than the best baseline.")
CHANCE = Verdict("unclear", "Better than the best baseline, but this difference may be chance.")
LEAKED = Verdict("bad", "Some of these rows are in train too: expect a lower score on new texts.")


def results(
    score: float | None = 0.9,
    bounds: list[float] | None = None,
    split: str = "test",
    rows: int = 500,
    expected: Any = None,
    ece: float | None = None,
    **baselines: float | None,
) -> dict[str, Any]:
    """What results.json has of one split."""
    intervals = {"accuracy": bounds} if bounds else {}
    scores = {"rows": rows, "metrics": {"accuracy": score}, "intervals": intervals, "calibration": {"ece_after": ece}}
    simple = {split: {name: {"accuracy": value} for name, value in baselines.items()}}
    return {"headline": "accuracy", "splits": {split: scores}, "baselines": simple, "expected": expected, "seeds": [{}]}


def test_the_verdict_follows_from_the_figures() -> None:
    for made, expected in (
        (results(0.9, [0.88, 0.92], tfidf=0.8), CLEAR),
        (results(0.9, [0.88, 0.92], tfidf=0.89), CHANCE),  # inside the interval
        (results(0.9, [0.88, 0.92], tfidf=0.875), CHANCE),  # outside, but nearer than √2 times its half
        (results(0.9, [0.88, 0.92], tfidf=0.871), CLEAR),
        (results(0.9, [0.88, 0.92], tfidf=0.8, majority=0.89), CHANCE),  # the best baseline counts
        (results(0.9, None, tfidf=0.8), CHANCE),
        (results(0.9, [0.88, 0.92], tfidf=0.9), Verdict("bad", "No better than a linear model on TF-IDF.")),
        (results(0.5, [0.4, 0.6], majority=0.6), Verdict("bad", "No better than always giving the same answer.")),
        (results(0.5, [0.4, 0.6], mine=0.6), Verdict("bad", "No better than mine.")),
        (results(0.5, [0.3, 0.6], mine=0.64), Verdict("bad", "No better than mine.")),
        (results(0.5, [0.3, 0.6], mine=0.65), Verdict("bad", "Clearly worse than mine.")),
        (results(0.9, [0.88, 0.92]), Verdict("unclear", "There is no baseline to compare it with.")),
        (results(0.9, [0.88, 0.92], tfidf=None), Verdict("unclear", "There is no baseline to compare it with.")),
        (results(None, tfidf=0.8), Verdict("bad", "accuracy is not defined on these rows.")),
        (
            results(1.0, [1.0, 1.0], rows=19, majority=0.5),
            Verdict("unclear", "Better than the best baseline, but on too few rows to be sure (19)."),
        ),
        (results(1.0, [1.0, 1.0], rows=20, majority=0.5), CLEAR),
        (
            results(0.5, [0.2, 0.8], rows=19, majority=0.5),
            Verdict("bad", "No better than always giving the same answer."),
        ),
        (
            results(0.99, [0.98, 1.0], split="train", tfidf=0.5),
            Verdict("bad", "Scored on its own training rows: this says nothing about new texts."),
        ),
    ):
        assert verdict(made, []) == expected


def test_a_leak_into_the_scored_rows_decides_the_verdict() -> None:
    for found, expected in (
        (leak("test", 50, 500, "…"), LEAKED),
        (leak("test", 4, 500, "…"), CLEAR),  # under 1 %
        (leak("validation", 50, 500, "…"), CLEAR),  # not the rows that are scored
        (Finding("severe", "train: 50 rows repeat an earlier text with another target"), CLEAR),
    ):
        assert verdict(results(0.9, [0.88, 0.92], tfidf=0.8), [found]) == expected


def test_a_leak_comes_before_a_baseline_and_training_rows_before_a_leak() -> None:
    assert verdict(results(0.5, tfidf=0.9), [leak("test", 50, 500, "…")]) == LEAKED
    seen = verdict(results(0.9, split="train"), [leak("train", 50, 500, "…")])
    assert seen.text.startswith("Scored on its own training rows")
    found = best_baseline(results(majority=0.7, tfidf=0.8, none=None), "test")
    assert found == ("tfidf", BASELINES["tfidf"], 0.8)


def test_scores_that_mislead_are_findings() -> None:
    for made, level, what in (
        (results(split="train"), "severe", "these scores are on training rows"),
        (results(0.6, majority=0.6, tfidf=0.5), "severe", "the baseline majority is at least as good on test"),
        (results(ece=0.28), "warn", "the expected calibration error on test is 0.28"),
        (results(expected={"accuracy": [0.95, 1]}), "warn", "accuracy on test is 0.9000; the recipe expects 0.95 to 1"),
        (results(expected={"accuracy": [0.9, 1]}), "note", "accuracy on test is 0.9000; the recipe expects 0.9 to 1"),
    ):
        (found,) = score_findings(made)
        assert (found.level, found.what) == (level, what)
        assert bool(found.fix) == (level != "note")
    for good in (results(0.6, majority=0.59), results(ece=0.1), results(None, majority=0.5)):
        assert not [*score_findings(good)]


def test_lengths_of_generated_texts_are_findings() -> None:
    for ratio, unfinished, expected in (
        (0.79, 0, [("warn", "test: generated texts have 0.79 times as many words as their targets")]),
        (0.8, 0, [("note", "test: generated texts have 0.80 times as many words as their targets")]),
        (1.26, 0, [("warn", "test: generated texts have 1.26 times as many words as their targets")]),
        (1.0, 4, [("note", "words"), ("note", "test: 4 of 500 generated texts (0.8%) are cut at max_new_tokens")]),
        (1.0, 5, [("note", "words"), ("warn", "test: 5 of 500 generated texts (1.0%) are cut at max_new_tokens")]),
    ):
        made = results(0.9, [0.88, 0.92], tfidf=0.8)
        made["splits"]["test"] |= {"length_ratio": ratio, "unfinished": unfinished}
        found = list(score_findings(made))
        assert [each.level for each in found] == [level for level, _ in expected]
        assert all(what in each.what for each, (_, what) in zip(found, expected, strict=True))


def test_a_method_without_a_learning_rate_is_not_told_to_change_it() -> None:
    made = results(0.6, majority=0.6)
    (found,), (linear,) = score_findings(made), score_findings({**made, "seeds": [{"C": 1.0}]})
    assert "learning rate" in found.fix
    assert linear.fix == "Try another task.method, or look at the data."


def test_a_baseline_as_good_on_several_splits_is_one_finding() -> None:
    made = results(0.6, split="validation", majority=0.7)
    test = results(0.6, majority=0.6)
    both = {**made, **{key: made[key] | test[key] for key in ("splits", "baselines")}}
    assert [each.what for each in score_findings(both)] == [
        "the baseline majority is at least as good on validation and test"
    ]
