"""The scores of entities equal seqeval's; the bootstrap is the plain one; errors are told apart as
promised.
"""

import numpy as np
import pytest
import seqeval.metrics
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from seqeval.scheme import IOB2, IOBES

from bertkit.data.tagging import entities, invalid, tag_names
from bertkit.evaluation.entities import GradedEntities, counts_by_sentence, lookup_baseline, metric_names

TYPES = ["LOC", "ORG", "x-y"]
SCHEMES = {"BIO": IOB2, "BIOES": IOBES}


def corpus(rng, scheme):
    """Gold and predicted tags, often malformed or empty, of few or many entities and errors."""
    tags = tag_names(TYPES[: rng.integers(1, 4)], scheme)
    outside, noise = rng.choice([0.1, 0.5, 0.9, 1.0], 2)
    chances = np.array([outside] + [(1 - outside) / (len(tags) - 1)] * (len(tags) - 1))
    lengths = rng.integers(0, 9, rng.integers(1, 6))
    gold = [rng.choice(tags, n, p=chances).tolist() for n in lengths]
    return gold, [
        [str(rng.choice(tags, p=chances)) if rng.random() < noise else tag for tag in s] for s in gold
    ]


def grade(gold, predicted, scheme="BIO"):
    """One sentence of space-separated tags."""
    return GradedEntities([gold.split()], [predicted.split()], TYPES, scheme=scheme)


def triple(report, row):
    return tuple(report[row][score] for score in ("precision", "recall", "f1-score"))


def of(scores, ending):
    return tuple(scores[score + ending] for score in ("precision", "recall", "f1"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_equals_seqeval(scheme):
    """To the last digit, on 600 corpora; where there is no entity at all, seqeval says 0 and we None."""
    for case in range(300):
        gold, predicted = corpus(default_rng(case), scheme)
        graded = GradedEntities(gold, predicted, TYPES, scheme=scheme)
        scores = graded.scores
        assert scores == graded.scored.scores  # seqeval's, and the sums that the bootstrap weights
        how = {"output_dict": True, "zero_division": 0}
        for ending, more in (("", {}), ("_strict", {"mode": "strict", "scheme": SCHEMES[scheme]})):
            if of(scores, ending) == (None, None, None):
                names = "precision_score recall_score f1_score".split()
                parts = [getattr(seqeval.metrics, name) for name in names]
                assert [part(gold, predicted, zero_division=0, **more) for part in parts] == [0, 0, 0]
                continue
            report = seqeval.metrics.classification_report(gold, predicted, **how, **more)
            assert of(scores, ending) == triple(report, "micro avg")
            if not ending:
                check_types(scores, {name: row for name, row in report.items() if not name.endswith(" avg")})
        assert scores["accuracy"] == (seqeval.metrics.accuracy_score(gold, predicted) if any(gold) else None)


def check_types(scores, types):
    """types: those of seqeval's report, which has the types with gold or predicted entities."""
    for name in TYPES:
        expected = triple(types, name) if name in types else (None, None, None)
        assert of(scores, f"/{name}") == expected
        assert scores[f"support/{name}"] == (types[name]["support"] if name in types else 0)
    supported = [row["f1-score"] for row in types.values() if row["support"]]
    assert scores["f1_macro"] == (np.mean(supported) if supported else None)


def test_names():
    graded = grade("B-LOC", "B-ORG")
    assert metric_names(TYPES) == [n for n in graded.scores if not n.startswith(("support/", "invalid_tags"))]
    assert metric_names(TYPES) == list(graded.intervals(resamples=3))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_invalid_tags_are_counted_in_the_predictions(scheme):
    bad = ["I-LOC", "O", "I-ORG"]
    good = ["O", "O", "O"]
    assert GradedEntities([bad], [good], TYPES, scheme=scheme).scores["invalid_tags"] == 0
    expected = invalid(bad, scheme)
    assert expected >= 2
    assert (
        GradedEntities([good, good], [bad, bad], TYPES, scheme=scheme).scores["invalid_tags"] == 2 * expected
    )


def test_intervals_equal_the_plain_bootstrap_where_most_is_undefined_too():
    rng = default_rng(3)
    gold = []
    predicted = []
    for _ in range(12):
        pair = corpus(rng, "BIO")
        gold = gold + pair[0]
        predicted = predicted + pair[1]
    count = len(gold)
    gold = [*gold, ["B-x-y"]]
    predicted = [*predicted, ["B-x-y"]]
    found = GradedEntities(gold, predicted, TYPES).intervals(resamples=70, seed=5)
    draws = default_rng(5)
    values = {name: [] for name in found}
    for _ in range(70):
        rows = draws.integers(0, count + 1, count + 1)
        scores = GradedEntities([gold[i] for i in rows], [predicted[i] for i in rows], TYPES).scores
        for name in found:
            values[name].append(np.nan if scores[name] is None else scores[name])
    for name, interval in found.items():
        assert interval == pytest.approx(tuple(np.nanquantile(values[name], [0.025, 0.975])), abs=1e-12), name
        assert interval[0] <= interval[1]
    assert found["f1"][0] < found["f1"][1]
    found = GradedEntities([["B-LOC"]] + [["O"]] * 9, [["B-LOC"]] + [["O"]] * 9, TYPES).intervals(
        resamples=200
    )
    assert found["f1"] == found["f1/LOC"] == found["accuracy"] == (1, 1)  # 65 % of the resamples have it
    assert found["f1/ORG"] is None
    assert GradedEntities([["O"], []], [["O"], []], TYPES).intervals(resamples=9)["f1"] is None


def test_errors_by_hand_are_told_apart_within_a_sentence():
    for gold, predicted, errors in (
        ("B-LOC I-LOC", "B-LOC I-LOC", {"correct": 1}),
        ("B-LOC I-LOC", "I-LOC I-LOC", {"correct": 1}),
        ("B-LOC I-LOC O", "B-LOC I-LOC I-LOC", {"boundary": 1}),
        ("B-LOC I-LOC I-LOC", "O B-LOC O", {"boundary": 1}),
        ("B-LOC I-LOC", "B-ORG I-ORG", {"type": 1}),
        ("B-LOC I-LOC", "O B-ORG", {"both": 1}),
        ("B-LOC I-LOC", "B-ORG B-LOC", {"boundary": 1}),  # the right type counts before the wrong one
        ("B-LOC I-LOC", "B-ORG B-x-y", {"both": 1}),
        ("B-LOC O O", "O O O", {"missed": 1}),
        ("B-LOC O O", "O B-LOC O", {"missed": 1, "spurious": 1}),
        ("O O O O", "B-LOC B-LOC O B-ORG", {"spurious": 3}),
        ("B-LOC B-LOC", "B-LOC I-LOC", {"boundary": 2}),  # one predicted entity, over two
        ("B-LOC B-ORG", "B-LOC I-LOC", {"boundary": 1, "both": 1}),
        ("B-LOC O B-ORG O B-LOC", "B-LOC O B-LOC O O", {"correct": 1, "type": 1, "missed": 1}),
        ("", "", {}),
    ):
        none = dict.fromkeys("correct boundary type both missed spurious".split(), 0)
        assert grade(gold, predicted).errors() == none | errors
    errors = GradedEntities([["B-LOC"], ["O"]], [["O"], ["B-LOC"]], TYPES).errors()
    assert {error: count for error, count in errors.items() if count} == {"missed": 1, "spurious": 1}


@st.composite
def graded_entities(draw):
    scheme = draw(st.sampled_from(sorted(SCHEMES)))
    tag = st.sampled_from(tag_names(TYPES, scheme=scheme))
    sentences = draw(st.lists(st.lists(st.tuples(tag, tag), max_size=6), min_size=1, max_size=5))
    gold, predicted = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
    return GradedEntities(gold, predicted, TYPES, scheme=scheme)


@given(graded_entities())
def test_what_has_to_add_up(graded):
    errors = graded.errors()
    scores = graded.scores
    confusion = graded.confusion()
    support = sum(len(entities(tags)) for tags in graded.gold)
    assert (
        sum(errors.values()) - errors["spurious"]
        == support
        == sum(scores[f"support/{name}"] for name in TYPES)
    )
    assert (scores["recall"] or 0.0) == (errors["correct"] / support if support else 0.0)
    assert errors["spurious"] <= sum(len(entities(tags)) for tags in graded.predicted) - errors["correct"]
    swapped = GradedEntities(graded.predicted, graded.gold, TYPES, scheme=graded.scheme)
    assert (swapped.scores["precision"], swapped.scores["recall"]) == (scores["recall"], scores["precision"])
    assert swapped.errors()["type"] == errors["type"]
    assert np.array_equal(np.transpose(swapped.confusion()["matrix"]), confusion["matrix"])
    assert np.sum(confusion["matrix"]) == sum(map(len, graded.gold))
    assert np.trace(confusion["matrix"]) >= (scores["accuracy"] or 0) * np.sum(confusion["matrix"]) - 1e-9


def test_confusion_by_hand():
    assert grade("B-LOC I-LOC O B-ORG B-x-y", "I-LOC B-ORG B-ORG B-ORG O").confusion() == {
        "labels": "O LOC ORG x-y".split(),
        "matrix": [[0, 0, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0], [1, 0, 0, 0]],
    }
    assert grade("", "").confusion()["matrix"] == [[0] * 4] * 4
    assert grade("S-LOC B-ORG E-ORG", "S-LOC O O", "BIOES").confusion()["matrix"][2] == [2, 0, 0, 0]


def test_counts_by_sentence():
    rng = default_rng(0)
    names = ["a", "b", "c"]
    found = [[rng.choice(["a", "c"], rng.integers(0, 5)).tolist() for _ in range(3)] for _ in range(100)]
    found[7][2] = ["c"] * 300  # more than a byte can count
    weights = rng.integers(0, 4, (len(found), 2)).astype(float)
    expected = np.zeros((3, 3, 2))
    for sentence, weight in zip(found, weights, strict=True):
        for block, own in enumerate(sentence):
            for name in own:
                expected[block, names.index(name)] += weight
    assert (counts_by_sentence(found, names) @ weights == expected.reshape(9, 2)).all()


def test_lookup_baseline():
    train = [["York", "is", "York"], "may May may York".split(), []]
    tags = [["B-LOC", "O", "I-LOC"], "O B-x-y B-LOC I-LOC".split(), []]
    words = [["York", "york"], [], "may May is was".split()]
    assert lookup_baseline(train, tags, words) == [["I-LOC", "O"], [], "O B-x-y O O".split()]
    assert lookup_baseline([], [], words) == [["O", "O"], [], ["O"] * 4]
