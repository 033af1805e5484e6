"""Calibrating a trained model again: thresholds by brute force, options that answers use, records that stay
true.
"""

import json
from itertools import pairwise

import numpy as np
import pytest
import small
from cases import BY_ID
from finished import finished
from numpy.random import default_rng
from numpy.testing import assert_allclose
from scipy.special import expit, logsumexp, softmax
from sklearn.metrics import f1_score, precision_score, recall_score
from small import copy_of, problems_of, raises, read_rows, refused, write_rows

import bertkit
from bertkit.decisions.goals import LabelDecisions, ThresholdTarget, few_rows, fitted
from bertkit.errors import ModelError, UserError
from bertkit.evaluation import calibration, similarity
from bertkit.exports.program import export
from bertkit.files import read_json, write_json
from bertkit.report.card import write_card
from bertkit.run import Run
from bertkit.tasks.class_labels import assigned_labels

MEASURES = {"precision": precision_score, "recall": recall_score, "f1": f1_score}


@pytest.fixture(scope="module")
def trained(tiny_encoder, tmp_path_factory):
    room = tmp_path_factory.mktemp("calibrate")
    return small.trained(room, tiny_encoder, *small.LEARN, kind="multi-label")


@pytest.fixture
def single(learned, tmp_path):
    return copy_of(learned, tmp_path / "single")


@pytest.fixture
def run(trained, tmp_path):
    return copy_of(trained, tmp_path / "run")


def given(case, encoder, folder):
    """A run of a case, and its rows as a file."""
    rows = [dict(row) for row in BY_ID[case].rows()]
    return finished(BY_ID[case], encoder, folder / "run"), write_rows(folder / "rows.jsonl", rows)


def levels(scores):
    """The scores, in ascending order, that differ by more than rounding."""
    ascending = [-1.0, *np.sort(scores).tolist()]
    return [high for low, high in pairwise(ascending) if high - low > calibration.ROUNDING]


def places(scores):
    """The thresholds midway between these scores, and below them."""
    return [(low + high) / 2 for low, high in pairwise([0.0, *scores])]


def table_of(answers):
    return np.array([list(answer["scores"].values()) for answer in answers])


def texts_of(rng):
    return [" ".join(rng.choice([*small.WORDS, "good", "bad"], 6)) for _ in range(40)]


def labelled(texts, gold):
    return [{"text": text, "label": label} for text, label in zip(texts, gold.tolist(), strict=True)]


def section(run):
    return dict(read_json(run.model / "config.json")["bertkit"])


def test_cosines_below_zero_have_thresholds_too():
    found = calibration.thresholds_of([-0.5, -0.25, 0.5], [0, 1, 1])
    assert found.values == pytest.approx([-0.5 - calibration.ROUNDING, -0.375, 0.125], abs=1e-12)
    assert found.precision.tolist() == [2 / 3, 1, 1]
    assert found.recall.tolist() == [1, 1, 0.5]


def test_on_validation_the_same_is_fitted_as_after_training(run):
    before = section(run)
    scores = run.results
    found = bertkit.calibrate(run.folder)
    after = section(run)
    record = after.pop("calibration")
    assert after == before
    assert record == {name: found[name] for name in "rows sha256 goal options before".split()}
    assert record["options"] == record["before"] == {name: before["task"][name] for name in record["options"]}
    data = read_json(run.folder / "data.json")
    assert (record["rows"], record["sha256"]) == (10, data["fingerprints"]["validation"])
    assert run.results == scores | {"calibrated": record}
    metrics = scores["splits"]["validation"]["metrics"]
    for each in found["labels"]:
        assert each["threshold"] == record["options"]["thresholds"][each["label"]]
        for name in "precision recall f1 support".split():
            assert each[name] == pytest.approx(metrics[f"{name}/{each['label']}"])


@pytest.mark.parametrize(("goal", "least"), [("precision", 0.5), ("recall", 0.9), ("recall", 0.3)])
def test_thresholds_reach_a_goal_on_rows_of_any_file(goal, least, run, tmp_path):
    rows = small.rows("multi-label", 24, start=40)
    file = write_rows(tmp_path / "new.jsonl", rows)
    found = bertkit.calibrate(run.folder, file if goal == "recall" else rows, **{goal: least})
    answers = bertkit.load(run.folder)([row["text"] for row in rows])
    for each in found["labels"]:
        scores = np.array([answer["scores"][each["label"]] for answer in answers])
        truth = np.array([each["label"] in row["labels"] for row in rows])
        assert [each["label"] in answer["labels"] for answer in answers] == (
            scores >= each["threshold"]
        ).tolist()
        for name, measure in MEASURES.items():
            assert each[name] == pytest.approx(measure(truth, scores >= each["threshold"], zero_division=0))
        assert each["support"] == truth.sum()
        good = [
            c for c in places(levels(scores)) if MEASURES[goal](truth, scores >= c, zero_division=0) >= least
        ]
        best = min(good) if goal == "precision" else max(good)
        assert each["threshold"] == pytest.approx(best, abs=calibration.ROUNDING)


@pytest.mark.parametrize("kind", ["multi-label", "single-label"])
def test_what_is_out_of_reach_changes_nothing(kind, request, tmp_path):
    own = request.getfixturevalue("single" if kind == "single-label" else "run")
    column = "label" if kind == "single-label" else "labels"
    rows = [{**row, column: "bad"} for row in small.rows("single-label", 8)]
    if kind == "multi-label":
        rows = [{**row, column: labels} for row in small.rows(kind, 8) for labels in (["bad"], [])]
    before = (own.model / "config.json").read_bytes()
    told = {
        problem.where: problem.what
        for problem in problems_of(UserError, bertkit.calibrate, own.folder, rows, precision=0.9)
    }
    none = {"": "the model is unchanged", "label good": "no row has it, so no threshold has a precision"}
    low = "no threshold reaches a precision of at least 0.9 on these rows; the best is 0.5000"
    assert told == (
        none if kind == "single-label" else {**none, "label long": none["label good"], "label bad": low}
    )
    assert (own.model / "config.json").read_bytes() == before
    assert "calibrated" not in own.results


def test_report_and_card_say_that_the_scores_are_older(run, tmp_path):
    scored = section(run)["task"]
    file = write_rows(tmp_path / "new.jsonl", small.rows("multi-label", 24, start=40))
    bertkit.calibrate(run.folder, file, recall=0.9)
    found = bertkit.calibrate(run.folder, file, recall=0.2)
    assert found["before"] == {name: scored[name] for name in found["options"]}  # what the scores are of
    assert found["options"]["thresholds"] != scored["thresholds"]
    facts = bertkit.Run(run.folder).facts
    assert facts.options["thresholds"] == scored["thresholds"]
    rows = f"24 rows (sha256 {found['sha256'][:16]}…; recall of at least 0.2)"
    said = f"before `bertkit calibrate`, which fitted new values on {rows}"
    texts = [(run.folder / name).read_text() for name in ("report.html", "model/README.md")]
    for text in texts:
        assert said in text.replace("\\", "").replace("&gt;", ">")
        for name, value in found["options"]["thresholds"].items():
            assert f"threshold of {name} {value:.4f}" in text
    card = write_card(Run(run.folder)).read_text()
    assert card == texts[1]


def test_a_temperature_of_the_recipe_is_fitted_again(tiny_encoder, tmp_path):
    run = small.trained(tmp_path, tiny_encoder, "task.temperature=7.0")
    rows = small.rows("single-label", 24, start=40)
    found = bertkit.calibrate(run.folder, write_rows(tmp_path / "new.jsonl", rows))
    assert found["before"] == {"temperature": 7.0, "thresholds": None, "cutoffs": None}
    answers = bertkit.load(run.folder)([row["text"] for row in rows])
    table = table_of(answers)
    truth = [list(answers[0]["scores"]).index(row["label"]) for row in rows]
    assert calibration.fit_temperature(table, truth, exclusive=True) == pytest.approx(1.0, abs=1e-3)
    assert found["options"]["temperature"] != 7.0
    expected = [[row["label"] for row in rows].count(name) for name in answers[0]["scores"]]
    assert [each["support"] for each in found["labels"]] == expected
    assert {each["threshold"] for each in found["labels"]} == {None}
    raises(
        UserError,
        r"gives the best label or none.*\n.*Use precision, or recall of one label",
        bertkit.calibrate,
        run.folder,
        recall=0.5,
    )


def test_a_precision_of_single_labels_leaves_some_rows_without(single, tmp_path):
    rng = default_rng(0)
    texts = texts_of(rng)
    best = bertkit.load(single.folder)(texts)
    given, sure = (np.array([answer[name] for answer in best]) for name in ("label", "score"))
    unsure = sure < np.where(
        given == "bad", *(np.quantile(sure[given == name], 0.3) for name in ("bad", "good"))
    )
    # what the model is less sure of is wrong
    gold = np.where(unsure == (given == "bad"), "good", "bad")
    least = 0.9
    rows = labelled(texts, gold)
    bertkit.calibrate(single.folder, rows)
    likely = table_of(bertkit.load(single.folder)(texts)).max(axis=1)
    reach = {}
    for name in ("bad", "good"):
        scores = likely[given == name]
        right = gold[given == name] == name
        reach[name] = {place: right[scores >= place].mean() for place in places(np.unique(scores))}
    found = bertkit.calibrate(single.folder, write_rows(tmp_path / "new.jsonl", rows), precision=least)
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
    limits = np.array([found["options"]["thresholds"][label] for label in given])
    expected = np.where(likely >= limits, given, "None").tolist()
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
    # and without a goal the best label is given again
    assert bertkit.calibrate(single.folder, rows)["options"]["thresholds"] is None


@pytest.mark.parametrize("goal", [{"recall": 0.9}, {"precision": 0.9}, {}])
def test_one_label_has_a_threshold_of_its_own_also_below_one_half(goal, single, tmp_path, caplog):
    rng = default_rng(1)
    texts = texts_of(rng)
    before = bertkit.load(single.folder)(texts)
    scores = table_of(before)[:, list(before[0]["scores"]).index("bad")]
    noisy = scores + rng.normal(0, 0.2 * scores.std(), 40)
    gold = np.where(noisy >= np.sort(noisy)[-8], "bad", "good")  # the eight likeliest rows, but for noise
    rows = labelled(texts, gold)
    found = bertkit.calibrate(single.folder, rows, label="bad", **goal)
    assert found["options"]["temperature"] == found["before"]["temperature"]  # all else stays
    assert (
        found["goal"] == f"{'best F1' if not goal else f'{next(iter(goal))} of at least 0.9'} for label bad"
    )
    limit = found["options"]["cutoffs"]["bad"]
    reach = {name: {} for name in MEASURES}
    for place in places(levels(scores)):
        for name, measure in MEASURES.items():
            reach[name][place] = measure(gold == "bad", scores >= place, zero_division=0)
    (name, least), choose = next(iter(goal.items()), ("f1", max(reach["f1"].values()))), max
    good = [place for place, value in reach[name].items() if value >= least]
    if name == "precision":
        choose = min
    elif name == "f1":
        good.sort(key=lambda place: -abs(place - 0.5))
        good = good[-1:]
    # each end of the gap moves by one
    assert limit == pytest.approx(choose(good), abs=4 * calibration.ROUNDING)
    decided = np.where(scores >= limit, "bad", "good")
    (each,) = (each for each in found["labels"] if each["label"] == "bad")
    assert each["threshold"] == limit
    for measure, value in MEASURES.items():
        assert each[measure] == pytest.approx(value(gold == "bad", decided == "bad", zero_division=0))
    answers = bertkit.load(single.folder)(texts)
    assert [answer["label"] for answer in answers] == decided.tolist()
    assert [answer["score"] for answer in answers] == [
        answer["scores"][answer["label"]] for answer in answers
    ]
    scored = bertkit.evaluate(single.folder, rows)["metrics"]
    assert scored["recall/bad"] == pytest.approx(each["recall"])
    assert "fewer than 10 rows that have the label: bad 8" in caplog.text
    if goal == {"recall": 0.9}:
        export(single.folder, tmp_path / "onnx")
        exported = bertkit.load(tmp_path / "onnx")(texts)
        assert [answer["label"] for answer in exported] == decided.tolist()
        assert "threshold of bad" in (single.folder / "report.html").read_text()
        assert bertkit.calibrate(single.folder, rows)["options"]["cutoffs"] is None


def test_labels_with_cutoffs_come_first_where_they_reach_them():
    rng = default_rng(0)
    table = rng.dirichlet(np.ones(4), 200)
    names = list("abcd")
    cutoffs = {"b": 0.2, "d": 0.6}
    given, reached = calibration.best_labels(table, names, {"b": 0.3}, cutoffs)
    for row, label, above in zip(table.tolist(), given.tolist(), reached.tolist(), strict=True):
        first = [n for n in (1, 3) if row[n] >= cutoffs[names[n]]]
        expected = max(first or [0, 2], key=row.__getitem__)
        assert label == expected
        assert above == (expected != 1 or row[1] >= 0.3)
    assert {*given.tolist()} == {0, 1, 2, 3}
    every = calibration.best_labels(table, names, None, dict.fromkeys(names, 0.99))[0]
    assert every.tolist() == table.argmax(axis=1).tolist()


@pytest.mark.parametrize("kind", ["single-label", "multi-label"])
def test_one_threshold_has_a_precision_over_all_answers(kind, request, tmp_path):
    own = request.getfixturevalue("single" if kind == "single-label" else "run")
    rng = default_rng(0)
    texts = [row["text"] for row in small.rows(kind, 40)]
    column, others = (
        ("label", ["bad", "good"]) if kind == "single-label" else ("labels", [["bad"], ["good", "long"]])
    )
    answers = bertkit.load(own.folder)(texts)  # of which three in ten are made wrong
    golds = [answer[column] if rng.random() < 0.7 else others[rng.integers(2)] for answer in answers]
    rows = [{"text": text, column: gold} for text, gold in zip(texts, golds, strict=True)]
    bertkit.calibrate(own.folder, rows)
    table = table_of(bertkit.load(own.folder)(texts))
    names = [*bertkit.load(own.folder)(texts[0])["scores"]]
    truth = np.array([[name in row[column] for name in names] for row in rows])
    if kind == "single-label":
        best = table.argmax(axis=1)[:, None]
        table, truth = (np.take_along_axis(each, best, 1) for each in (table, truth))
    reach = {
        place: precision_score(truth.ravel(), table.ravel() >= place)
        for place in places(levels(table.ravel()))
    }
    least = float(np.quantile([*reach.values()], 0.8))
    found = bertkit.calibrate(own.folder, rows, precision=least, overall=True)
    expected = min(place for place, precision in reach.items() if precision >= least)
    assert found["options"]["thresholds"] == pytest.approx(expected, abs=calibration.ROUNDING)
    assert found["overall"]["precision"] == pytest.approx(reach[expected])
    assert found["goal"] == f"precision of at least {least:g} over all answers"


def test_thresholds_that_few_rows_decided_are_told():
    of = {"a": (0.5, 4), "b": (0.5, 5), "c": (0.5, 10), "d": (None, 1)}
    labels = [{"label": name, "threshold": limit, "support": count} for name, (limit, count) in of.items()]
    overall = ThresholdTarget("precision", 0.9, overall=True)
    for rows, goal, told in (
        (labels, ThresholdTarget(), ["a 4, b 5"]),
        (labels, ThresholdTarget(label="b"), ["b 5"]),
        (labels, ThresholdTarget(label="c"), []),
        (labels[:2], overall, ["all labels 9"]),
        (labels, overall, []),
    ):
        assert [each.what.partition("the label: ")[2] for each in few_rows(rows, goal)] == told


def test_the_threshold_of_one_label_leaves_those_of_the_others():
    scores = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
    truth = np.array([[True, False], [False, True], [False, True]])
    decided = LabelDecisions("ab", scores, truth, truth, {"a": 0.2, "b": 0.5})
    goal = ThresholdTarget("recall", 1.0, "b")
    (reached,) = fitted(decided, goal).values()
    assert reached == {"a": 0.2, "b": pytest.approx(0.25)}
    single = fitted(decided._replace(single=True, cutoffs={"a": 0.3}), goal)
    assert single == {"thresholds": {"a": 0.2}, "cutoffs": {"a": 0.3, "b": pytest.approx(0.25)}}


def test_two_labels_by_cosine(tiny_encoder, tmp_path):
    run, file = given("similarity-labels", tiny_encoder, tmp_path)
    found = bertkit.calibrate(run, file, recall=1.0)
    rows = read_rows(file)
    answers = bertkit.load(run.folder)([{name: row[name] for name in ("text_a", "text_b")} for row in rows])
    (only,) = found["labels"]
    lowest = min(
        answer["score"] for answer, row in zip(answers, rows, strict=True) if row["label"] == only["label"]
    )
    assert only["recall"] == 1.0
    assert only["threshold"] == found["options"]["threshold"] <= lowest
    assert all(answer["score"] <= only["threshold"] or answer["score"] >= lowest for answer in answers)
    assert all(
        (answer["label"] == only["label"]) == (answer["score"] >= only["threshold"]) for answer in answers
    )


@pytest.mark.parametrize("case", ["qa-windows-or-none", "ner-crf"])
def test_tasks_without_labels_of_rows(case, tiny_encoder, tmp_path):
    run, file = given(case, tiny_encoder, tmp_path)
    found = bertkit.calibrate(run.folder, file)
    assert found["labels"] == []
    assert found["options"] == pytest.approx(found["before"])  # the rows are those that it was fitted on
    assert section(run)["calibration"]["rows"] == len(read_rows(file))


def test_models_that_have_nothing_to_fit(tiny_encoder, tmp_path):
    run, file = given("similarity-cosent", tiny_encoder, tmp_path)
    raises(UserError, "neither temperature nor thresholds", bertkit.calibrate, run.folder, file)
    raises(ModelError, "was not trained by bertkit", bertkit.calibrate, tiny_encoder, file)
    raises(ModelError, "no such folder", bertkit.calibrate, "someone/model", file)


def test_on_the_command_line(run, capsys, tmp_path):
    file = write_rows(tmp_path / "new.jsonl", small.rows("multi-label", 24, start=40))
    lines = small.said(capsys, "calibrate", run.folder, "--data", file, "--recall", 0.9).splitlines()
    assert lines[0].split() == "label threshold precision recall F1 support".split()
    assert [line.split()[0] for line in lines[2:5]] == ["bad", "good", "long"]
    assert lines[5].startswith("accuracy 0.")
    assert lines[6].startswith("24 rows, recall of at least 0.9: temperature ")
    assert json.loads(small.said(capsys, "calibrate", run.folder, "--json"))["goal"] == "best F1"
    for wrong, said in (
        ("task.kind=null", "only keys of `data` can be overridden"),
        ("--recall 0", "recall: must be above 0 and at most 1, found 0"),
        ("--precision 1.5", "must be above 0 and at most 1, found 1.5"),
        ("--recall 0.5 --precision 0.5", "exclude each other"),
        ("--overall", "overall needs a precision or a recall"),
        ("--overall --recall 0.5 --label bad", "and excludes a label"),
        ("--label bda", "'bda' has no threshold; did you mean 'bad'?"),
    ):
        assert said in refused(capsys, "calibrate", run.folder, *wrong.split())
    kept = json.loads(small.said(capsys, "calibrate", run.folder, "--json"))["options"]["thresholds"]
    small.said(capsys, "calibrate", run.folder, "--data", file, "--label", "bad", "--recall", 1)
    now = section(run)["task"]["thresholds"]
    assert {name for name in now if now[name] != kept[name]} == {"bad"}


# --- what is fitted, against grids, brute force and plain loops


def smoothed_loss(logits, truth, temperature):
    """Of each row the gold label has the target (n + 1) / (n + 2), all others together the rest."""
    scaled = logits / temperature
    target = (len(truth) + 1) / (len(truth) + 2)
    others = np.where(np.arange(logits.shape[1]) == np.asarray(truth)[:, None], -np.inf, scaled)
    total = logsumexp(scaled, axis=1)
    gold = scaled[np.arange(len(truth)), truth] - total
    return -np.mean(target * gold + (1 - target) * (logsumexp(others, axis=1) - total))


def confidence(logits, temperature):
    return softmax(logits / temperature, axis=1).max(axis=1).mean()


@pytest.mark.parametrize("exclusive", [True, False])
def test_temperature_is_the_best_that_the_errors_allow(exclusive):
    """By brute force over temperatures; below 1 only those whose mean confidence the errors support."""
    colder = 0
    flawless = 0
    for seed in range(30):
        rng = default_rng(seed)
        rows = int(rng.integers(2, 40))
        labels = int(rng.integers(2, 5)) if exclusive else 2
        logits = rng.normal(size=(rows, labels)) * rng.uniform(0.1, 3)
        best = logits.argmax(axis=1)
        drawn = rng.integers(0, labels, rows)
        truth = np.where(rng.random(rows) < rng.choice([0.5, 0.9, 1.0]), best, drawn)
        sigmoid = expit(logits[:, 1] - logits[:, 0])[:, None], truth[:, None]
        given = (softmax(logits, axis=1), truth) if exclusive else sigmoid
        found = calibration.fit_temperature(*given, exclusive=exclusive)
        errors = int((best != truth).sum())
        most = (rows - errors + 1) / (rows + 2)
        grid = [1.0, *np.geomspace(0.05, 19.99, 60)]
        allowed = [t for t in grid if t >= 1 or (errors and confidence(logits, t) <= most)]
        assert (
            smoothed_loss(logits, truth, found)
            <= min(smoothed_loss(logits, truth, t) for t in allowed) + 1e-8
        )
        if found < 1:
            assert errors
            assert confidence(logits, found) <= most + 1e-9
        colder = colder + (found < 1)
        flawless = flawless + (not errors)
    assert min(colder, flawless) > 5


def test_temperatures_of_extremes_and_what_they_divide():
    sure = np.eye(2)[[0, 1, 1]]
    assert calibration.fit_temperature(sure, [0, 1, 1], exclusive=True) == pytest.approx(20, rel=1e-3)
    assert calibration.fit_temperature(sure, [1, 0, 0], exclusive=True) == pytest.approx(20, rel=1e-3)
    assert calibration.fit_temperature([[0.6, 0.4]], [0], exclusive=True) == 1.0  # no row is wrong
    assert calibration.fit_temperature([[1.0], [1.0]], [0, 0], exclusive=True) == 1.0  # one label
    assert calibration.fit_temperature([[1.0], [0.0]], [[0], [1]], exclusive=False) == pytest.approx(
        20, rel=1e-3
    )
    assert calibration.fit_temperature([[0.7], [0.3]], [[1], [0]], exclusive=False) == 1.0
    assert calibration.fit_temperature([[0.5]], [[1]], exclusive=False) == 1.0  # logit 0 has no temperature
    logits = default_rng(0).normal(size=(9, 4))
    softened = calibration.apply_temperature(logits * 2, 2.0, exclusive=True)
    assert_allclose(softened, softmax(logits, axis=1))
    assert_allclose(calibration.apply_temperature(logits * 2, 2.0, exclusive=False), expit(logits))


def brute_force_threshold(scores, truth):
    if not truth.any():
        return 0.5
    candidates = places(np.unique(scores))
    f1 = [2 * truth[scores >= c].sum() / ((scores >= c).sum() + truth.sum()) for c in candidates]
    best = [c for c, value in zip(candidates, f1, strict=True) if value >= max(f1) - 1e-12]
    return min(best, key=lambda candidate: (abs(candidate - 0.5), candidate))


def test_thresholds_are_the_best_there_are_for_special_labels_too():
    for seed in range(150):
        rng = default_rng(seed)
        scores = np.round(rng.random((int(rng.integers(1, 20)), 3)), int(rng.integers(1, 4)))
        truth = (rng.random(scores.shape) < rng.random(3)).astype(int)
        expected = [brute_force_threshold(scores[:, i], truth[:, i]) for i in range(3)]
        assert calibration.fit_thresholds(scores, truth) == expected
    assert calibration.fit_thresholds([[0.9], [0.1]], [[1], [0]]) == [0.5]
    assert calibration.fit_thresholds([[0.9], [0.1]], [[0], [0]]) == [0.5]
    assert calibration.fit_thresholds([[0.3], [0.4]], [[1], [1]]) == [0.15]  # always on
    assert calibration.fit_thresholds([[0.0], [0.0]], [[1], [0]]) == [0.0]
    ties = [[0.9], [0.8], [0.6], [0.4]]  # 0.85 and 0.2 have the same F1: the nearest to 0.5
    assert calibration.fit_thresholds(ties, [[1], [0], [0], [1]]) == [0.2]
    scores = {"a": 0.0, "b": 0.3}
    assert assigned_labels(["a", "b"], [0.0, 0.3], 0.0) == {"labels": ["a", "b"], "scores": scores}
    assert assigned_labels(["a", "b"], [0.0, 0.3], None) == {"labels": [], "scores": scores}


@pytest.mark.parametrize("noise", [-2e-6, -1e-7, 1e-7, 2e-6])
def test_no_threshold_lies_between_the_scores_of_one_row_in_two_batches(noise):
    for seed in range(20):
        rng = default_rng(seed)
        scores = np.repeat(np.unique(np.round(rng.random(9), 3)), 2)
        truth = rng.integers(0, 2, len(scores))
        moved = scores + noise * rng.random(len(scores))
        found = calibration.thresholds_of(moved, truth)
        shifts = np.subtract(found.values, calibration.thresholds_of(scores, truth).values)
        assert np.abs(shifts).max() <= abs(noise)
        for threshold, given in zip(found.values, found.assigned, strict=True):
            assert (scores >= threshold).tolist() == (moved >= threshold).tolist()
            assert given == (scores >= threshold).sum()
        threshold = similarity.best_threshold(truth, moved)
        assert (scores >= threshold).tolist() == (moved >= threshold).tolist()


def test_scores_without_gaps_have_thresholds_too():
    scores = 0.5 + np.arange(1000) / 1e6
    found = calibration.thresholds_of(scores, scores > 0.5004)
    assert len(found.values) == 100
    assert found.values[found.f1.argmax()] == pytest.approx(0.5004, abs=1.1e-5)
    assert found.assigned.tolist() == [(scores >= value).sum() for value in found.values]


def test_ece_is_guos_and_reliability_that_of_sorted_decisions_in_equal_parts():
    rng = default_rng(0)
    confidence = np.concatenate([rng.random(500), np.arange(16) / 15])  # edges belong to the bin below
    correct = rng.random(516) < confidence**2
    expected = 0.0
    for low, high in zip(np.linspace(0, 1, 16), np.linspace(0, 1, 16)[1:], strict=False):
        inside = (confidence > low) & (confidence <= high) | ((low == 0) & (confidence == 0))
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert calibration.calibration_error([(confidence, correct)]) == pytest.approx(expected, abs=1e-12)
    rng = default_rng(0)
    confidence = rng.random(503)
    correct = rng.random(503) < confidence**2
    bins = calibration.reliability(confidence, correct)
    assert [each.decisions for each in bins] == [51] * 3 + [50] * 7
    pairs = sorted(zip(confidence, correct, strict=True))
    start = 0
    for each in bins:
        own = pairs[start : start + each.decisions]
        start = start + each.decisions
        assert each.confidence == pytest.approx(np.mean([pair[0] for pair in own]))
        assert each.accuracy == pytest.approx(np.mean([pair[1] for pair in own]))
        # Wilson's bounds are the two chances p at which the accuracy is 1.96 standard errors from p.
        z = 1.959963984540054
        for bound in each.interval:
            assert (each.accuracy - bound) ** 2 == pytest.approx(z**2 * bound * (1 - bound) / each.decisions)
        assert 0 <= each.interval[0] <= each.accuracy < each.interval[1] < 1


@pytest.mark.parametrize(
    ("decisions", "counts"), [(1, [1]), (39, [39]), (40, [20, 20]), (199, [23] + [22] * 8), (200, [20] * 10)]
)
def test_few_decisions_make_few_bins(decisions, counts):
    bins = calibration.reliability(np.linspace(0, 1, decisions), np.ones(decisions))
    assert [each.decisions for each in bins] == counts
    assert all(each.accuracy == 1 and each.interval[1] == 1 > each.interval[0] for each in bins)


def test_a_label_of_no_row_says_what_can_be_done():
    none = np.zeros((1, 1), dtype=bool)
    lacking = LabelDecisions(["a"], np.ones((1, 1)), none, none, {})
    raises(UserError, r"fit the others: each \(label\)", fitted, lacking, ThresholdTarget("precision", 0.9))


def test_one_label_of_a_model_without_a_temperature(tiny_encoder, tmp_path):
    run, file = given("single-label", tiny_encoder, tmp_path)
    config = read_json(run.model / "config.json")
    config["bertkit"]["task"] |= dict.fromkeys(("temperature", "conformal"))
    write_json(run.model / "config.json", config)
    found = bertkit.calibrate(run.folder, file, label="bad", recall=0.9)
    (bad,) = (each for each in found["labels"] if each["label"] == "bad")
    assert bertkit.evaluate(run.folder, file)["metrics"]["precision/bad"] == pytest.approx(bad["precision"])
