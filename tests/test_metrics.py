"""Scores are exactly scikit-learn's and scipy's; what is undefined is None; HF metrics say the same.

Scores of weighted rows equal those of the repeated rows; intervals are the bootstrap's; baselines are
scikit-learn's.
"""

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unicodedata import category, normalize
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from scipy import stats
from scipy.special import expit, logit, softmax
from sklearn import metrics as sk
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils.class_weight import compute_class_weight
from small import raises
from test_calibrate import brute_force_threshold

import bertkit
from bertkit.errors import RecipeError, UserError
from bertkit.evaluation import calibration, intervals, metrics
from bertkit.evaluation.baselines import TextRows, _tfidf, baselines, tfidf_vectors
from bertkit.evaluation.graded import compute_user_metric
from bertkit.evaluation.graded_labels import GradedLabels
from bertkit.tasks.class_labels import assigned_labels, settle_weights

LABELS = ["a", "b", "c"]


def softmax_rows(rng, rows, labels):
    scores = np.exp(2 * rng.normal(size=(rows, labels)))
    return scores / scores.sum(axis=1, keepdims=True)


def json_ready(scores):
    json.dumps(scores, allow_nan=False)
    return all(value is None or type(value) is float for value in scores.values())


def of_decisions(truth, chosen, **how):
    """scikit-learn's scores of single labels."""
    expected = {"accuracy": sk.accuracy_score(truth, chosen)}
    for name in "f1_macro f1_micro f1_weighted precision_macro recall_macro".split():
        measure, average = name.split("_")
        expected[name] = getattr(sk, f"{measure}_score")(truth, chosen, average=average, **how)
    return {**expected, "matthews_correlation": sk.matthews_corrcoef(truth, chosen)}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_single_label_is_scikit_learns(count):
    rng = default_rng(count)
    probabilities = softmax_rows(rng, 200, count)
    truth = rng.integers(0, count, 200)
    labels = [f"l{i}" for i in range(count)]
    chosen = probabilities.argmax(axis=1)
    scores = metrics.scored("single-label", truth, probabilities, labels).scores
    assert list(scores) == metrics.metric_names("single-label", labels)
    assert json_ready(scores)
    area = sk.roc_auc_score(truth, probabilities[:, 1] if count == 2 else probabilities, multi_class="ovr")
    expected = of_decisions(truth, chosen)
    assert {name: scores[name] for name in expected} == expected
    assert scores["roc_auc"] == pytest.approx(area, abs=1e-12)
    assert scores["neg_log_loss"] == pytest.approx(-sk.log_loss(truth, probabilities), abs=1e-12)
    report = sk.classification_report(truth, chosen, target_names=labels, output_dict=True)
    for label in labels:
        for ours, theirs in [("f1", "f1-score"), ("support", "support"), ("recall", "recall")]:
            assert scores[f"{ours}/{label}"] == report[label][theirs]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_rows_without_a_label_are_wrong_rows_of_another_class(count):
    rng = default_rng(count)
    probabilities = softmax_rows(rng, 200, count)
    truth = rng.integers(0, count, 200)
    labels = [f"l{i}" for i in range(count)]
    likely = probabilities.argmax(axis=1)
    chosen = np.where(probabilities.max(axis=1) < 0.6, -1, (likely + (rng.random(200) < 0.2)) % count)
    scores = metrics.scored("single-label", truth, probabilities, labels, chosen).scores
    expected = of_decisions(truth, chosen, labels=range(count), zero_division=0)
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    usual = metrics.scored("single-label", truth, probabilities, labels).scores
    assert {name: scores[name] for name in metrics.PROBABILISTIC} == {
        n: usual[n] for n in metrics.PROBABILISTIC
    }


@pytest.mark.parametrize("count", [1, 2, 4])
def test_multi_label_is_scikit_learns(count):
    rng = default_rng(count)
    probabilities = rng.random((150, count))
    truth = rng.integers(0, 2, (150, count))
    chosen = (probabilities > 0.4).astype(int)
    labels = [f"l{i}" for i in range(count)]
    scores = metrics.scored("multi-label", truth, probabilities, labels, chosen).scores
    assert list(scores) == metrics.metric_names("multi-label", labels)
    assert json_ready(scores)
    columns = range(count)
    f1 = [sk.f1_score(truth[:, i], chosen[:, i]) for i in columns]
    assert [scores[f"f1/{label}"] for label in labels] == f1
    assert scores["f1_macro"] == np.mean(f1)
    assert scores["f1_micro"] == sk.f1_score(truth.ravel(), chosen.ravel())
    assert scores["f1_weighted"] == pytest.approx(np.average(f1, weights=truth.sum(axis=0)), abs=1e-15)
    assert scores["precision_macro"] == np.mean(
        [sk.precision_score(truth[:, i], chosen[:, i]) for i in columns]
    )
    assert scores["subset_accuracy"] == np.mean((truth == chosen).all(axis=1))
    assert scores["roc_auc"] == np.mean([sk.roc_auc_score(truth[:, i], probabilities[:, i]) for i in columns])
    losses = [sk.log_loss(truth[:, i], probabilities[:, i]) for i in columns]
    assert scores["neg_log_loss"] == pytest.approx(-np.mean(losses), abs=1e-12)
    if count > 1:
        assert scores["f1_weighted"] == sk.f1_score(truth, chosen, average="weighted")
        assert scores["roc_auc"] == sk.roc_auc_score(truth, probabilities)


def test_regression_is_scipys():
    rng = default_rng(0)
    truth = rng.integers(0, 6, 100).astype(float)  # ties
    given = truth + rng.normal(size=100)
    scores = metrics.regression(truth, given).scores
    assert list(scores) == metrics.metric_names("regression", LABELS)
    assert json_ready(scores)
    assert scores == {
        "pearson": stats.pearsonr(truth, given).statistic,
        "spearman": stats.spearmanr(truth, given).statistic,
        "neg_mean_squared_error": -sk.mean_squared_error(truth, given),
        "neg_mean_absolute_error": -sk.mean_absolute_error(truth, given),
    }


@pytest.mark.parametrize(
    ("truth", "given"),
    [([1.0], [2.0]), ([1, 2, 3], [2, 2, 2]), ([0, 0], [1, 2]), ([0.1] * 7, range(7)), (range(7), [0.1] * 7)],
)
def test_correlations_of_constants_are_none(truth, given):
    scores = metrics.regression(truth, given).scores
    assert scores["pearson"] is None
    assert scores["spearman"] is None
    assert scores["neg_mean_squared_error"] is not None
    # rounding noise
    assert metrics.regression([1, 2, 3], 1e9 + np.array([0, 1e-7, 0])).scores["pearson"] is None
    assert metrics.regression([1, 2], [4, 3]).scores["pearson"] == -1.0


def test_a_label_without_rows_counts_as_zero():
    scores = metrics.scored("single-label", [0, 0, 1], np.eye(3)[[0, 0, 1]], LABELS).scores
    assert scores["accuracy"] == 1
    assert scores["f1_macro"] == pytest.approx(2 / 3)
    assert scores["support/c"] == 0
    assert scores["roc_auc"] == 1  # over a and b, which alone have both classes


@pytest.mark.parametrize("labels", [["a"], ["a", "b"], LABELS])
def test_one_class_only_or_no_label_at_all(labels):
    scores = metrics.scored("single-label", [0, 0], np.eye(len(labels))[[0, 0]], labels).scores
    assert scores["roc_auc"] is None
    assert scores["matthews_correlation"] == 0
    assert scores["accuracy"] == scores["recall/a"] == 1
    assert scores["neg_log_loss"] == pytest.approx(0, abs=1e-15)
    nothing = np.zeros((3, 2), dtype=int)
    scores = metrics.scored("multi-label", nothing, nothing, ["a", "b"], nothing).scores
    assert scores["subset_accuracy"] == 1
    assert scores["f1_micro"] == scores["f1_macro"] == scores["f1_weighted"] == scores["ece"] == 0
    assert scores["roc_auc"] is None


def test_ece_is_of_the_decision():
    assert metrics.scored("single-label", [0, 1], [[0.7, 0.3], [0.7, 0.3]], ["a", "b"]).scores[
        "ece"
    ] == pytest.approx(0.2)
    multi = metrics.scored("multi-label", [[0], [0]], [[0.1], [0.3]], ["a"], [[0], [0]]).scores
    assert multi["ece"] == pytest.approx((0.1 + 0.3) / 2)


def test_confusion():
    scores = {"scores": {"a": 0.5, "b": 0.3, "c": 0.2}}
    single = GradedLabels.of(
        "single-label", LABELS, np.array([0, 1, 1]), [{"label": name} | scores for name in "aab"]
    )
    assert single.details()["confusion_matrix"] == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    truth = np.array([[1, 0], [1, 1], [0, 1]])
    chosen = np.array([[1, 1], [0, 1], [0, 1]])
    answers = [{"labels": labels, "scores": {"a": 0.5, "b": 0.5}} for labels in ("ab", "b", "b")]
    ours = GradedLabels.of("multi-label", ["a", "b"], truth, answers).details()["confusion_matrix"]
    assert ours == sk.multilabel_confusion_matrix(truth, chosen).tolist()
    assert type(ours[0][0][0]) is int


@pytest.mark.parametrize("kind", ["single-label", "multi-label"])
def test_scores_are_the_same_however_many_rows_are_worked_on_at_a_time(kind, monkeypatch):
    rng = default_rng(3)
    if kind == "single-label":
        table = softmax_rows(rng, 50, 3)
        truth = rng.integers(0, 3, 50)
        answers = [
            {"label": LABELS[row.argmax()], "scores": dict(zip(LABELS, row, strict=True))} for row in table
        ]
    else:
        table = rng.random((50, 3))
        truth = rng.integers(0, 2, (50, 3))
        answers = [assigned_labels(LABELS, row, 0.4) for row in table.tolist()]
    # no sets of sets
    known = {"rows": 99, "gold": np.linspace(1, 0, 99).tolist()} if kind == "single-label" else None

    def reported():
        graded = GradedLabels.of(kind, LABELS, truth, answers)
        graded = replace(graded, temperature=2.0, thresholds=0.4, conformal=known)
        return graded.scores, graded.intervals(), graded.details()

    whole = reported()
    assert len(whole[2].get("coverage", [])) == (3 if known else 0)
    assert whole[2]["calibration"]["ece_before"] != whole[2]["calibration"]["ece_after"]
    monkeypatch.setattr(intervals, "ROWS", 7)
    assert reported() == whole


@pytest.mark.parametrize("fixed", [0.3, {"a": 0.2, "c": 0.9}])
def test_fixed_thresholds_decide_again_at_the_fitted_temperature(fixed):
    rng = default_rng(5)
    table = rng.beta(0.2, 0.2, (60, 3))
    truth = rng.integers(0, 2, (60, 3))
    answers = [assigned_labels(LABELS, row, fixed) for row in table.tolist()]
    graded = replace(GradedLabels.of("multi-label", LABELS, truth, answers), thresholds=fixed)
    fitted = graded.after_fit()
    assert fitted.temperature > 2
    again = [assigned_labels(LABELS, row, fixed) for row in fitted.table.tolist()]
    assert again != answers
    expected = GradedLabels.of("multi-label", LABELS, truth, again)
    assert fitted.chosen.tolist() == expected.chosen.tolist()
    assert fitted.scores == expected.scores
    assert fitted.calibrated() == {}
    assert replace(graded, temperature=1.0).after_fit().chosen.tolist() == [
        [int(name in answer["labels"]) for name in LABELS] for answer in answers
    ]


def test_user_metric():
    def computed(result):
        metric = SimpleNamespace(compute=lambda *, predictions, references: result)
        return compute_user_metric(metric, [1], [1])

    found = computed({"a": np.float32(0.5), "b": 1, "c": np.nan})
    assert found == {"a": 0.5, "b": 1.0, "c": None}
    assert json_ready(found)
    for wrong in [None, 0.5, {"a": [1, 2]}, {"a": "1"}, {1: 1.0}]:
        raises(UserError, "the metric returned", computed, wrong)


def test_balanced_weights_are_scikit_learns_and_add_up_the_counts_once():
    """Adding them up for every label takes minutes where there are 100,000."""
    values = ["a"] * 5 + ["b"] * 2 + ["c"]
    counts = Counter(values)
    counts.total = Mock(wraps=counts.total)
    expected = compute_class_weight("balanced", classes=np.array(LABELS), y=values)
    weights = settle_weights("auto", counts, LABELS)
    assert list((weights or {}).values()) == pytest.approx(expected.tolist())
    assert counts.total.call_count == 1


GOOD = ["a lovely film", "what a lovely day", "great food", "a great lovely walk", "great"]
BAD = ["an awful film", "awful food again", "boring walk", "boring and awful"]
TEXTS = GOOD + BAD
IDS = [1] * 5 + [0] * 4
NAMES = ["bad", "good"]


def features(texts):
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(TEXTS)
    return vectorizer.transform(texts)


def test_baselines_of_single_labels_are_scikit_learns():
    texts = ["lovely food", "awful day", "unknown"]
    targets = [1, 0, 0]
    found = baselines("single-label", TextRows(TEXTS, IDS), TextRows(texts, targets), NAMES)
    dummy = DummyClassifier(strategy="prior").fit(TEXTS, IDS)
    assert (
        found["majority"] == metrics.scored("single-label", targets, dummy.predict_proba(texts), NAMES).scores
    )
    assert found["majority"]["accuracy"] == np.mean(dummy.predict(texts) == targets)
    linear = LogisticRegression(max_iter=1000).fit(features(TEXTS), IDS)
    expected = metrics.scored("single-label", targets, linear.predict_proba(features(texts)), NAMES).scores
    assert found["tfidf"] == expected
    assert found["tfidf"]["roc_auc"] == 1
    assert baselines("single-label", TextRows(TEXTS, IDS), TextRows(texts, targets), NAMES) == found


SCRIPTS = {  # whether the n-grams are of characters
    "zh": (True, ["这家餐厅很好吃", "味道很好", "服务太糟糕了", "太难吃了"], ["好吃", "糟糕"]),
    "th": (True, ["อาหารอร่อยมาก", "อร่อยดี", "บริการแย่มาก", "แย่จริงๆ"], ["อร่อย", "แย่"]),
    "ko": (True, ["음식이 맛있다", "맛있는 집", "서비스가 나쁘다", "나쁜 집"], ["맛있어요", "나빠요"]),
    "hi": (False, ["यह अच्छी है", "बहुत अच्छी", "यह बुरी है", "बहुत बुरी"], ["अच्छी", "बुरी में"]),
    "nfd": (
        False,
        [normalize("NFD", t) for t in ("très réussi", "été réussi", "très raté", "raté")],
        ["réussi", "raté"],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_baselines_in_other_scripts_are_scikit_learns(name):
    characters, texts, asked = SCRIPTS[name]
    options = {"analyzer": "char", "ngram_range": (1, 3)} if characters else {"ngram_range": (1, 2)}
    if not characters:
        marks = "".join({c for text in texts + asked for c in text if category(c)[0] == "M"})
        options["token_pattern"] = rf"\w[\w{marks}]+"
    oracle = TfidfVectorizer(**options, sublinear_tf=True)
    linear = LogisticRegression(max_iter=1000).fit(oracle.fit_transform(texts), [1, 1, 0, 0])
    table = linear.predict_proba(oracle.transform(asked))
    found = baselines("single-label", TextRows(texts, [1, 1, 0, 0]), TextRows(asked, [1, 0]), NAMES)
    unit = " of characters" if characters else ""
    expected = metrics.scored("single-label", [1, 0], table, NAMES).scores
    assert found[f"tfidf{unit}"] == pytest.approx(expected, nan_ok=True)
    vectors = tfidf_vectors(texts, [asked])
    assert list(vectors) == [f"tf-idf cosine{unit}"]
    assert abs(vectors[f"tf-idf cosine{unit}"][0] - oracle.transform(asked)).max() < 1e-12


@given(st.lists(st.text("ab1_ .,'-éßд", max_size=12), min_size=1, max_size=4))
def test_words_without_marks_are_scikit_learns(texts):
    fitted = _tfidf(["lovely day", *texts])
    default = TfidfVectorizer(ngram_range=(1, 2)).build_analyzer()
    for text in texts:
        assert fitted[1].build_analyzer()(text) == default(text)


def test_baselines_of_several_labels_are_scikit_learns():
    train = np.array([[i, 1 - i, j % 2] for j, i in enumerate(IDS)])
    texts = ["lovely food", "awful day"]
    targets = np.array([[1, 0, 1], [0, 1, 0]])
    labels = ["good", "bad", "odd"]
    found = baselines("multi-label", TextRows(TEXTS, train), TextRows(texts, targets), labels)
    linear = OneVsRestClassifier(LogisticRegression(max_iter=1000)).fit(features(TEXTS), train)
    probabilities = linear.predict_proba(features(texts))
    expected = metrics.scored("multi-label", targets, probabilities, labels).scores
    assert found["tfidf"] == pytest.approx(expected, nan_ok=True)
    assert found["majority"]["subset_accuracy"] == 0
    assert found["majority"]["f1/good"] == pytest.approx(2 / 3)


def test_baselines_have_class_weights_and_thresholds_as_the_model_has():
    rng = default_rng(0)
    words = [f"word{n}" for n in range(12)]
    labels = ["one", "two"]
    weights = {"one": 3.0, "two": 7.0}
    texts = [" ".join(rng.choice(words, 5)) for _ in range(360)]
    truth = np.array([[f"{word} " in text for word in words[:2]] for text in texts]).astype(int)
    truth[rng.random(truth.shape) < 0.05] = 1
    train, held, asked = (slice(start, start + 120) for start in (0, 120, 240))
    parts = [TextRows(texts[part], truth[part]) for part in (train, held, asked)]
    found = baselines("multi-label", parts[0], parts[2], labels, [(parts[0], parts[1])], weights=weights)
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(texts[train])
    x = [vectors.transform(texts[part]) for part in (train, held, asked)]
    tables = np.empty((2, 120, 2))
    for label, weight in enumerate(weights.values()):
        model = LogisticRegression(max_iter=1000, class_weight={0: 1, 1: weight}).fit(
            x[0], truth[train, label]
        )
        tables[:, :, label] = [model.predict_proba(part)[:, 1] for part in x[1:]]
    tables = expit(logit(tables) / calibration.fit_temperature(tables[0], truth[held], exclusive=False))
    decided = np.empty((120, 2))
    for label, scores in enumerate(tables[0].T):
        decided[:, label] = tables[1, :, label] >= brute_force_threshold(scores, truth[held, label])
    assert found["tfidf"]["f1_macro"] == pytest.approx(sk.f1_score(truth[asked], decided, average="macro"))
    assert found["tfidf"]["roc_auc"] == pytest.approx(sk.roc_auc_score(truth[asked], tables[1]))
    constant = sk.f1_score(truth[asked], np.ones((120, 2)), average="macro")
    assert found["majority"]["f1_macro"] == pytest.approx(constant)
    plain = baselines("multi-label", parts[0], parts[2], labels)
    assert plain["tfidf"]["f1_macro"] < found["tfidf"]["f1_macro"]
    fixed = baselines("multi-label", parts[0], parts[2], labels, [(parts[0], parts[1])], thresholds=1.0)
    assert fixed["tfidf"]["f1_macro"] == 0
    # of one label: parts of rows, each answered by a model of the others; the weights of rows
    ids = truth[:, 0]
    one = {"no": 1.0, "yes": 3.0}
    folds = [TextRows(texts[part], ids[part]) for part in (train, held, asked)]
    found = baselines(
        "single-label", *folds[:2], list(one), [(folds[0], folds[1]), (folds[1], folds[0])], weights=one
    )
    model = LogisticRegression(max_iter=1000, class_weight={0: 1, 1: 3}).fit(x[0], ids[train])
    assert found["tfidf"]["f1/yes"] == pytest.approx(sk.f1_score(ids[held], model.predict(x[1])))
    other = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(texts[held])
    back = LogisticRegression(max_iter=1000, class_weight={0: 1, 1: 3}).fit(
        other.transform(texts[held]), ids[held]
    )
    both = [model.predict_proba(x[1]), back.predict_proba(other.transform(texts[train]))]
    t = calibration.fit_temperature(np.concatenate(both), [*ids[held], *ids[train]], exclusive=True)
    cooled = softmax(np.log(both[0]) / t, axis=1)
    assert found["tfidf"]["neg_log_loss"] == pytest.approx(-sk.log_loss(ids[held], cooled))
    # where it is reached
    first = baselines("single-label", *folds[:2], list(one), cutoffs={"yes": 0.0})["tfidf"]
    assert (first["recall/yes"], first["recall/no"]) == (1, 0)


def test_regression_is_scikit_learns():
    train = np.arange(9.0)
    texts = ["lovely food", "awful day"]
    targets = [1.0, 7.0]
    found = baselines("regression", TextRows(TEXTS, train), TextRows(texts, targets), [])
    ridge = Ridge().fit(features(TEXTS), train)
    assert found["tfidf"] == metrics.regression(targets, ridge.predict(features(texts))).scores
    mean = DummyRegressor().fit(TEXTS, train).predict(texts)
    assert found["majority"] == metrics.regression(targets, mean).scores
    assert found["majority"]["pearson"] is None


def test_texts_without_words_or_of_one_class_have_a_majority_only():
    for texts in (["", "  ", "😀"], ["a", "!", "?"]):
        found = baselines("single-label", TextRows(texts, [0, 1, 1]), TextRows(["lovely"], [1]), NAMES)
        assert (list(found), found["majority"]["accuracy"]) == (["majority"], 1)
    # to be scored
    without = baselines("single-label", TextRows(TEXTS, IDS), TextRows(["", "😀"], [1, 0]), NAMES)
    assert without["tfidf"]["accuracy"] == 0.5
    assert list(baselines("single-label", TextRows(TEXTS, [1] * 9), TextRows(TEXTS, IDS), NAMES)) == [
        "majority"
    ]
    assert list(baselines("regression", TextRows(TEXTS, [2.0] * 9), TextRows(TEXTS, IDS), [])) == ["majority"]
    assert list(
        baselines("multi-label", TextRows(TEXTS, np.ones((9, 2))), TextRows(TEXTS, np.ones((9, 2))), NAMES)
    ) == ["majority"]


def test_labels_that_do_not_vary_or_are_not_in_train():
    train = np.array([[i, 1, 0] for i in IDS])
    found = baselines(
        "multi-label", TextRows(TEXTS, train), TextRows(TEXTS, train), ["good", "always", "never"]
    )
    assert found["tfidf"]["f1/always"] == 1
    assert found["tfidf"]["support/never"] == found["tfidf"]["f1/never"] == 0
    three = baselines(
        "single-label", TextRows(TEXTS, IDS), TextRows([*TEXTS, "lovely"], [*IDS, 2]), [*NAMES, "new"]
    )
    assert three["tfidf"]["recall/new"] == 0
    one = baselines(
        "multi-label",
        TextRows(TEXTS, np.array(IDS)[:, None]),
        TextRows(TEXTS, np.array(IDS)[:, None]),
        ["good"],
    )
    assert one["tfidf"]["f1_macro"] == 1


def check(score, arrays, weights):
    """Each column of weights (rows, resamples) scores as the rows repeated so often."""
    values = score(*arrays).weighted(weights.astype(float))
    for column in range(weights.shape[1]):
        expected = score(*(np.repeat(array, weights[:, column], axis=0) for array in arrays)).scores
        assert list(values) == list(expected)
        for name in expected:
            wanted = np.nan if expected[name] is None else expected[name]
            assert values[name][column] == pytest.approx(wanted, rel=1e-9, abs=1e-9, nan_ok=True), name


def draw(rng, rows):
    """Weights (rows, 3) with many zeros, at least one row each."""
    weights = rng.integers(0, 4, (rows, 3)) * rng.integers(0, 2, (rows, 3))
    weights[rng.integers(0, rows)] += 1
    return weights


def one_hot_or_softmax(rng, rows, labels):
    scores = np.exp(2 * rng.normal(size=(rows, labels)))
    if rng.random() < 0.5:  # ties, within a row and between rows
        scores = np.round(scores) + 1
    if rng.random() < 0.2:  # probabilities of exactly 0 and 1
        scores = np.where(scores == scores.max(axis=1, keepdims=True), 1.0, 0.0)
    return scores / scores.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["single-label", "multi-label"])
def test_weights_of_labels_are_repeated_rows(kind):
    for case in range(100):
        rng = default_rng(case)
        rows = int(rng.integers(1, 25))
        count = int(rng.integers(1, 6))
        if kind == "single-label":
            truth = rng.choice(rng.integers(0, count, rng.integers(1, count + 1)), rows)  # some labels absent
            given = one_hot_or_softmax(rng, rows, count)
            chosen = given.argmax(axis=1) if rng.random() < 0.8 else rng.integers(0, count, rows)
        else:
            truth = (rng.random((rows, count)) < rng.choice([0, 0.3, 1], count, p=[0.1, 0.8, 0.1])).astype(
                int
            )
            given = np.round(rng.random((rows, count)), int(rng.integers(0, 3)))
            chosen = (given >= rng.random(count)).astype(int)
        score = partial(metrics.scored, kind, labels=[str(i) for i in range(count)])
        check(lambda t, g, c, score=score: score(t, g, decisions=c), [truth, given, chosen], draw(rng, rows))


def test_regression_weights_are_repeated_rows():
    for case in range(100):
        rng = default_rng(case)
        rows = int(rng.integers(1, 25))
        truth = np.round(rng.normal(size=rows) * 10.0 ** rng.integers(-3, 4), int(rng.integers(0, 3)))
        given = truth * rng.normal() + rng.normal(size=rows) + 100 * rng.normal()
        if rng.random() < 0.5:
            given = np.round(given)
        check(metrics.regression, [truth, given], draw(rng, rows))


def test_equals_the_plain_bootstrap_by_seed_and_in_chunks(monkeypatch):
    rng = default_rng(2)
    truth = rng.normal(size=40)
    given = truth + rng.normal(size=40)
    found = metrics.regression(truth, given).intervals(resamples=70, seed=5)
    rng = default_rng(5)
    samples = [rng.integers(0, 40, 40) for _ in range(70)]
    for name in found:
        values = [metrics.regression(truth[rows], given[rows]).scores[name] for rows in samples]
        assert found[name] == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])), abs=1e-12)
    rng = default_rng(3)
    arrays = rng.normal(size=30), rng.normal(size=30)
    scored = metrics.regression(*arrays)
    found = scored.intervals(resamples=50)
    assert scored.intervals(resamples=50) == found
    assert scored.intervals(resamples=50, seed=1) != found
    monkeypatch.setattr(intervals, "CHUNK", 1)
    assert scored.intervals(resamples=50)["spearman"] == pytest.approx(found["spearman"])


@pytest.mark.parametrize(
    ("share", "defined"), [(0.0, False), (0.3, False), (0.495, False), (0.5, True), (0.7, True)]
)
def test_an_interval_is_of_half_of_the_resamples_at_least(share, defined):
    values = iter(np.where(np.arange(200) < 200 * share, np.arange(200.0), np.nan))

    def weighted(weights):
        return {"score": np.asarray([next(values) for _ in range(weights.shape[1])])}

    found = intervals.bootstrap(weighted, 3, resamples=200)["score"]
    assert (found is not None) == defined
    assert not defined or found == pytest.approx(np.quantile(np.arange(200 * share), [0.025, 0.975]))


def test_weights_of_several_labels_are_odds_of_at_most_100():
    counts = Counter(a=1, b=50)
    assert settle_weights("auto", counts, ["a", "b", "c"], 1000) == {"a": 100.0, "b": 19.0, "c": 100.0}
    assert settle_weights("auto", counts, ["b"], 50) == {"b": 1 / 50}


def test_metrics_that_are_no_list_are_refused_at_once():
    message = r"metrics: expected a list(?s:.*)metrics=\[…\]"
    raises(RecipeError, message, bertkit.evaluate, "any", metrics=object())
