"""Runs compared by their answers to the same rows: the statistics against their definitions, then every
task.
"""

import re
import shutil
from dataclasses import replace
from itertools import product
from math import comb

import numpy as np
import pytest
import small
from cases import BY_ID, CASES, every
from finished import finished
from numpy.random import default_rng
from test_report import well_formed

import bertkit
from bertkit.evaluation import metrics
from bertkit.evaluation.paired_tests import RESAMPLES, Difference, differences, mcnemar, randomisation
from bertkit.files import read_json, write_json
from bertkit.inference.predictor import load
from bertkit.report.comparison import pairs
from bertkit.report.facts import read_facts
from bertkit.report.html import compare, page_of
from bertkit.report.paired import MAX_LISTED, Pair, compared
from bertkit.report.rankings import query_of

NAMES = ("one", "other")


def labels_of(rows, seed):
    """Truth, and the probabilities of a good and of a bad system."""
    rng = default_rng(seed)
    truth = rng.integers(0, 3, rows)
    tables = [np.eye(3)[truth] * strength + rng.random((rows, 3)) for strength in (0.9, 0.3)]
    good, bad = (table / table.sum(axis=1, keepdims=True) for table in tables)
    return truth, good, bad


def accuracy(truth, given):
    return float(np.mean(truth == given))


def f1(truth, given):
    return float(2 * (truth & given).sum() / max(1, truth.sum() + given.sum()))


def score(truth, table):
    return metrics.scored("single-label", truth, table, ["a", "b", "c"])


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 0), (1, 0), (3, 9), (9, 3), (10, 10), (0, 6)])
def test_mcnemar_is_the_exact_binomial_test(only_first, only_second):
    n = only_first + only_second
    k = min(only_first, only_second)
    tail = 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n  # as statsmodels' mcnemar(exact=True)
    assert mcnemar(only_first, only_second) == pytest.approx(min(1, tail))


def test_each_resample_is_scored_for_both():
    truth, good, bad = labels_of(30, 1)
    found = differences(score(truth, bad), score(truth, good))
    rng = default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        rows = rng.integers(0, 30, 30)
        drawn.append([accuracy(truth[rows], table[rows].argmax(axis=1)) for table in (bad, good)])
    before, after = np.array(drawn).T
    assert found["accuracy"].interval == pytest.approx(np.quantile(after - before, [0.025, 0.975]))
    exact = [accuracy(truth, table.argmax(axis=1)) for table in (bad, good)]
    assert (found["accuracy"].first, found["accuracy"].second) == pytest.approx(exact)
    assert found["accuracy"].value == pytest.approx(exact[1] - exact[0])
    assert exact[1] > exact[0]


def test_randomisation_approaches_the_exact_permutation_test():
    truth, good, bad = labels_of(10, 3)
    both = score(np.tile(truth, 2), np.concatenate([bad, good]))
    first = bad.argmax(axis=1)
    second = good.argmax(axis=1)

    def gap(exchanged):
        sides = np.where(exchanged, second, first), np.where(exchanged, first, second)
        return abs(np.subtract(*(np.mean([f1(truth == k, side == k) for k in range(3)]) for side in sides)))

    observed = gap((False,) * 10)
    exact = np.mean([gap(each) >= observed - 1e-12 for each in product((False, True), repeat=10)])
    assert 0.01 < exact < 0.5
    error = np.sqrt(exact * (1 - exact) / RESAMPLES)  # the standard error of a sampled share
    assert randomisation(both, "f1_macro") == pytest.approx(exact, abs=4 * error)
    same = score(np.tile(truth, 2), np.concatenate([good, good]))
    assert randomisation(same, "f1_macro") == 1.0


# --- every task


TASKS = (
    "single-label multi-label regression qa-windows-or-none similarity-mse similarity-labels "
    "similarity-in-batch"
)
TASKS += " retrieval ner-document ranking-binary ranking-graded-windows text-to-text"


@every([case for case in CASES if case.id in TASKS.split()])
def test_runs_of_every_task_are_compared(case, tiny_encoder, tmp_path):
    first, second = (
        read_facts(finished(case, tiny_encoder, tmp_path / f"{seed}", seed=seed).folder) for seed in (3, 4)
    )
    pair = compared(first, second, NAMES)
    same = compared(first, first, NAMES)
    for found, sides in ((pair, (first, second)), (same, (first, first))):
        scores = [each.scores["metrics"] for each in sides]
        for name, each in found.metrics.items():
            assert (each.first, each.second) == pytest.approx((scores[0][name], scores[1][name])), name
        assert set(found.metrics) >= {name for name in (first.headline,) if scores[0][name] is not None}
        assert 0 < sum(found.counts.values()) <= int(found.units.split()[0])
        assert sum(found.counts[kind] for kind in {each.kind for each in found.every}) == len(found.every)
        page = well_formed(page_of(sides, [found]))
        assert found.verdict in page.text
        assert all(kind in page.text for kind in found.counts)
    assert not same.every
    assert all(each.value == 0 for each in same.metrics.values())
    assert same.verdict.startswith("No difference in") == (first.headline in same.metrics)
    if same.test:
        assert same.test[1] == 1.0
    assert pair.every or case.id != "regression"  # labels of two models may all be alike, numbers are not
    assert all(
        len(set(each.answers)) == 2 and each.where and each.gold and all(each.texts) for each in pair.every
    )


def test_the_verdict_needs_interval_and_test():
    pair = Pair(
        NAMES, "", "f1", "90 rows", {"f1": Difference(0.5, 0.6, (0.02, 0.18))}, ("McNemar's exact test", 0.01)
    )
    assert pair.verdict == (
        "other is better: its f1 is higher by 0.1000 (95 % interval 0.0200 … 0.1800; McNemar's exact test: "
        "p = 0.010) on 90 rows."
    )
    lower = replace(pair, metrics={"f1": Difference(0.6, 0.5, (-0.18, -0.02))})
    assert lower.verdict.startswith(
        "one is better: its f1 is higher by 0.1000 (95 % interval 0.0200 … 0.1800;"
    )
    unsure = "No difference in f1 can be shown with these 90 rows: other − one is +0.1000 (95 % interval "
    assert replace(pair, test=("x", 0.05)).verdict.startswith(unsure)
    for bounds in ((-0.01, 0.2), (0.0, 0.2), (-0.2, 0.0)):
        edge = replace(pair, metrics={"f1": Difference(0.5, 0.6, bounds)})
        assert (edge.better, edge.verdict.startswith(unsure)) == ("", True)


# --- which rows


def answered(labels, answers, texts=""):
    return tuple(
        {
            "text": text,
            "label": label,
            "location": f"test.csv:{line}",
            "answer": {"label": answer, "score": 0.9, "scores": {"a": 0.1, "b": 0.1, "c": 0.1, answer: 0.8}},
        }
        for line, (label, answer, text) in enumerate(
            zip(labels, answers, texts or map(str, range(99)), strict=False), 2
        )
    )


@pytest.fixture(scope="module")
def facts(tiny_encoder, tmp_path_factory):
    facts = read_facts(
        finished(BY_ID["single-label"], tiny_encoder, tmp_path_factory.mktemp("paired") / "run").folder
    )
    return replace(facts, options={**facts.options, "labels": {"a": "a", "b": "b", "c": "c"}})


def test_rows_are_counted_by_who_is_right(facts):
    first = replace(facts, rows=answered("aaaabbbb", "aabcbbba"))
    second = replace(facts, rows=answered("aaaabbbb", "abbbbaaa"))
    pair = compared(first, second, NAMES)
    assert pair.counts == {
        "both are correct": 2,
        "only one is correct": 3,
        "both are incorrect, with the same answer": 2,
        "both are incorrect, with different answers": 1,
    }
    assert [(each.where, each.gold, each.answers) for each in pair.every] == [
        ("test.csv:3", "a", ("a", "b")),
        ("test.csv:7", "b", ("b", "a")),
        ("test.csv:8", "b", ("b", "a")),
        ("test.csv:5", "a", ("c", "b")),
    ]
    assert pair.test == ("McNemar's exact test", 0.25)
    many = compared(
        replace(facts, rows=answered("a" * 2 * MAX_LISTED, "a" * 2 * MAX_LISTED, "x" * 2 * MAX_LISTED)),
        replace(facts, rows=answered("a" * 2 * MAX_LISTED, "b" * 2 * MAX_LISTED, "x" * 2 * MAX_LISTED)),
        NAMES,
    )
    assert (len(many.every), len(many.listed)) == (2 * MAX_LISTED, MAX_LISTED)
    assert "p < 0.001" in many.verdict


def test_rows_that_one_run_lacks_are_left_out_and_counted(facts):
    first = replace(facts, rows=answered("aabbc", "aabbb", "stuvw"))
    # in another order, with other targets for w, u
    second = replace(facts, rows=answered("bacab", "bacab", "xwtsu"))
    tested = replace(second, split="test", results={**second.results, "splits": {"test": second.scores}})
    pair = compared(first, tested, NAMES)
    assert pair.counts == {"both are correct": 2}
    split = f"{facts.split} and test"
    assert pair.rows == (
        f"Compared on 2 rows of {split} that both runs predicted. Left out, because the other run has "
        "no row with the same texts and target: 3 of one and 3 of other."
    )
    none = compared(first, replace(facts, rows=answered("a", "a", "z")), NAMES)
    assert none.verdict == f"one and other cannot be compared: they share no row of {facts.split}."
    assert none.verdict in well_formed(page_of([first, second], [none])).text
    often, twice = (replace(facts, rows=answered(n * "a", n * "a", n * "x")) for n in (3, 2))
    assert compared(often, twice, NAMES).units == "2 rows"


def test_rankings_of_other_documents_are_not_compared(tiny_encoder, tmp_path):
    ranked = read_facts(finished(BY_ID["retrieval"], tiny_encoder, tmp_path / "run").folder)
    pair = compared(ranked, replace(ranked, rows=ranked.rows[1:]), NAMES)
    assert pair.verdict == (
        "one and other cannot be compared: they ranked different documents (1 of one and 0 of other differ)."
    )
    assert not pair.metrics


# --- the command


@pytest.fixture(scope="module")
def runs(tiny_encoder, tmp_path_factory):
    """Two runs of one recipe, the second with other answers to two of its rows."""
    room = tmp_path_factory.mktemp("runs")
    first = finished(BY_ID["single-label"], tiny_encoder, room / "base").folder
    second = shutil.copytree(first, room / "tuned")
    rows = small.read_rows(second / "predictions/validation.jsonl")
    for row in rows[:2]:
        other = "good" if row["answer"]["label"] == "bad" else "bad"
        row["answer"] |= {"label": other, "scores": {"bad": 0.25, "good": 0.25, other: 0.75}}
    small.write_rows(second / "predictions/validation.jsonl", rows)
    return [first, second]


def test_the_command_says_which_run_is_better(runs, tmp_path, capsys):
    page = tmp_path / "both.html"
    said = small.said(capsys, "report", *runs, "--output", page)
    (pair,) = pairs([read_facts(run) for run in runs])
    assert len(pair.every) == 2
    assert pair.names == ("base", "tuned")
    assert pair.verdict in said
    assert re.search(r"^metric +base +tuned +tuned − base +95 % interval$", said, re.MULTILINE)
    assert said.splitlines()[-1] == str(page)
    text = well_formed(page.read_text()).text
    assert pair.verdict in text
    assert "2 answers differ" in text
    parameters = sum(p.numel() for p in load(runs[0]).model.parameters())
    assert f"parameters {parameters:,} {parameters:,}" in text


def test_pretraining_runs_have_no_answers_to_compare(tiny_encoder, tmp_path):
    run = finished(BY_ID["mlm-nsp"], tiny_encoder, tmp_path / "run").folder
    small.raises(bertkit.UserError, "Add another run", compare, [run])
    page, found = compare([run, run], tmp_path / "both.html")
    assert found == []
    text = well_formed(page.read_text()).text
    assert "Differences on the same rows" not in text
    assert "The highest" in text


def test_runs_of_different_tasks_are_refused(runs, tiny_encoder, tmp_path, capsys):
    other = finished(BY_ID["ner-softmax"], tiny_encoder, tmp_path / "tagger").folder
    page = tmp_path / "both.html"
    told = small.refused(capsys, "report", runs[0], other, "--output", page)
    assert (
        "runs of different tasks cannot be compared (base: text-classification, tagger: token-classification)"
        in told
    )
    assert not page.exists()


def test_the_split_that_all_runs_have_is_compared(runs, tmp_path):
    """One of them has a test split, too."""
    both = shutil.copytree(runs[1], tmp_path / "tested")
    results = read_json(both / "results.json")
    results["splits"]["test"] = results["splits"]["validation"]
    write_json(both / "results.json", results)
    data = read_json(both / "data.json")
    data["fingerprints"]["test"] = "1" * 64
    data["rows"]["test"] = 8
    write_json(both / "data.json", data)
    _, (pair,) = compare([runs[0], both], tmp_path / "page.html")
    assert pair.rows == "Compared on 8 rows of validation that both runs predicted."


def test_rankings_are_tested_also_if_a_document_without_a_query_is_first(tiny_encoder, tmp_path):
    ranked = read_facts(finished(BY_ID["retrieval"], tiny_encoder, tmp_path / "run").folder)
    lone = {**ranked.rows[0], "query": "", "grade": 0.0, "answer": {}}
    for rows in (ranked.rows, ranked.rows[:-1]):
        both = replace(ranked, rows=(lone, *rows))
        assert compared(both, both, NAMES).test[1] == 1.0


def test_a_score_that_shared_rows_do_not_define_is_not_compared(tiny_encoder, tmp_path, capsys):
    run = finished(BY_ID["regression"], tiny_encoder, tmp_path / "one").folder
    other = shutil.copytree(run, tmp_path / "other")
    file = other / "predictions/validation.jsonl"
    small.write_rows(file, small.read_rows(file)[:1])
    told = small.said(capsys, "report", run, "--output", tmp_path / "page.html", other)
    assert "these runs cannot be compared. Compared on 1 row" in told


def test_a_query_is_shown_whatever_the_order_of_its_rows():
    answer = {"score": 0.9, "rank": 1, "found": [{"id": "a", "score": 0.9}]}
    first = {"query": "q", "document": "a", "grade": 1, "answer": answer}
    second = {"query": "q", "document": "b", "grade": 0, "answer": {"score": 0.1, "rank": 2}}
    assert query_of(1, [second, first], {"a": "a", "b": "b"}).hits == [("a", 0.9)]
    with pytest.raises(ValueError, match="not enough values"):
        query_of(1, [second], {})
