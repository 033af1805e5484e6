"""The scores of question answering: by hand, by their laws, and against brute force."""

from __future__ import annotations

import math
from functools import reduce
from operator import add

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from bertkit.evaluation.squad_metrics import (
    GradedAnswers,
    best_threshold,
    metric_names,
    normalized_tokens,
    question_scores,
)

WORDS = ["cat", "Cat", "dog", "the", "a", "An", "théâtre", "b-c", "bc", "…", "1,000", "U.S.", ""]
some_text = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
some_gold = st.lists(some_text, max_size=3)


def test_normalisation():
    for text, tokens in (
        ("The Eiffel Tower", "eiffel tower"),
        ("An apple, a day; theatre and banana.", "apple day theatre and banana"),
        ("U.S. $1,000 (approx.)", "us 1000 approx"),
        ("well-known_name", "wellknownname"),
        ("  tabs\tand\nlines\u00a0too ", "tabs and lines too"),
        ("“curly” – dash… ¿qué?", "“curly” – dash… ¿qué"),  # only ASCII punctuation goes
        ("the–end", "–end"),  # an article ends at a dash that stays
        ("dogs…the…cats", "dogs… …cats"),  # and leaves a blank behind
        ("the-end", "theend"),  # an article does not end at a hyphen, which went
        ("L'a", "la"),
        ("a", ""),
        ("The, a; AN!", ""),
        ("...", ""),
        ("", ""),
        ("ÉCOLE İ", "école i̇"),
    ):
        assert normalized_tokens(text) == tokens.split()


def test_scores_by_hand():
    for predicted, gold, exact, f1 in (
        ("Denver Broncos", ["the Denver Broncos!"], 1, 1),
        ("denver", ["Denver Broncos"], 0, 2 / 3),  # precision 1, recall 1/2
        ("the big red dog", ["red dog barks loudly"], 0, 4 / 7),  # 2 shared of 3 and 4
        ("cat dog", ["dog cat"], 0, 1),  # a bag has no order
        ("cat cat cat", ["cat"], 0, 1 / 2),  # a repeated token counts once: precision 1/3, recall 1
        ("cat cat", ["cat cat dog"], 0, 4 / 5),
        ("cat", ["dog", "a cat", "cat dog"], 1, 1),
        ("big cat", ["cat", "big dog barks"], 0, 2 / 3),  # the best of 2/3 and 2/5
        ("cat", ["dog"], 0, 0),
        ("", ["dog"], 0, 0),
        ("the", ["dog"], 0, 0),
        ("", [], 1, 1),
        ("the", [], 1, 1),  # no token is no answer
        ("dog", [], 0, 0),
        ("", ["the", "dog"], 0, 0),  # a gold answer without a token does not count beside one that has some
        ("", ["the"], 1, 1),
        ("a", ["the"], 1, 1),
        ("dog", ["the"], 0, 0),
        ("“dog”", ["dog"], 0, 0),
        ('"dog"', ["dog"], 1, 1),
    ):
        assert question_scores(predicted, gold) == (exact, pytest.approx(f1, abs=1e-12))


@given(some_text, some_gold, st.randoms())
def test_laws_of_the_scores(predicted, gold, random):
    exact, f1 = question_scores(predicted, gold)
    assert exact in (0, 1)
    assert exact <= f1 <= 1
    words = predicted.split()
    random.shuffle(words)
    assert question_scores(" ".join(words), gold)[1] == f1
    noisy = "".join(f" The {word.swapcase()}?, an" for word in predicted.split()) + " a"
    assert question_scores(noisy, gold) == (exact, f1)
    assert question_scores(predicted, gold[::-1]) == (exact, f1)


def grade(gold, predicted, null_scores=None):
    """These answers; with null scores those of a task that knows unanswerable questions."""
    rows = Dataset.from_dict({"answers": [{"text": list(texts), "answer_start": [0] * len(texts)} for texts in gold]})
    scores = [0.0] * len(predicted) if null_scores is None else null_scores
    answers = [{"answer": text, "null_score": score} for text, score in zip(predicted, scores, strict=True)]
    return GradedAnswers(answers, rows, null_scores is not None, {})


def test_graded_answers_without_unanswerable_questions():
    graded = grade([["cat"], ["dog", "red dog"], ["x y"]], ["the cat", "red", "z"])
    assert graded.scores == {"exact_match": pytest.approx(1 / 3), "f1": pytest.approx((1 + 2 / 3 + 0) / 3)}
    assert list(graded.scores) == metric_names(False) == list(graded.intervals())


def test_graded_answers_with_unanswerable_questions():
    graded = grade([["cat"], ["red dog"], [], [], []], ["cat", "dog", "", "x", ""])
    assert graded.scores == {
        "exact_match": pytest.approx(3 / 5),
        "f1": pytest.approx((1 + 2 / 3 + 2) / 5),
        "exact_match_has_answer": pytest.approx(1 / 2),
        "f1_has_answer": pytest.approx(5 / 6),
        "exact_match_no_answer": pytest.approx(2 / 3),
        "f1_no_answer": pytest.approx(2 / 3),
    }
    assert list(graded.scores) == metric_names(True) == list(graded.intervals())
    assert graded.pairs() == (["cat", "dog", "", "x", ""], [["cat"], ["red dog"], [], [], []])


def test_where_no_question_can_be_answered():
    graded = grade([[], []], ["", "x"])
    assert graded.scores["f1_has_answer"] is None
    assert graded.scores["f1_no_answer"] == 0.5
    assert graded.intervals()["exact_match_has_answer"] is None


def test_weights_are_repeated_questions():
    gold = [["cat"], ["red dog"], [], ["dog"], []]
    predicted = ["cat", "dog", "", "x", "y"]
    repeats = np.array([3, 1, 0, 2, 4])
    weighted = grade(gold, predicted).scored.weighted(repeats[:, None].astype(float))
    again = [i for i, n in enumerate(repeats) for _ in range(n)]
    expected = grade([gold[i] for i in again], [predicted[i] for i in again]).scores
    assert {name: value[0] for name, value in weighted.items()} == pytest.approx(expected)


def test_auc_of_no_answer():
    def auc(null_scores, gold):
        return grade(gold, [""] * len(gold), null_scores).scores["no_answer_auc"]

    gold = [["x"], [], ["y"], []]
    assert auc([0.1, 0.9, 0.2, 0.8], gold) == 1
    assert auc([0.1, 0.9, 0.5, 0.5], gold) == pytest.approx(3.5 / 4)  # of 4 pairs one is tied
    assert auc([0.9, 0.1, 0.8, 0.2], gold) == 0
    assert auc([0.1, 0.9], [[], []]) is None
    assert auc([0.1, 0.9], [["x"], ["y"]]) is None
    with pytest.raises(ValueError, match="NaN"):
        auc([math.nan, 0.5], [["x"], []])


def f1_at(threshold, odds, texts, gold):
    answers = ["" if odd > threshold else text for odd, text in zip(odds, texts, strict=True)]
    return np.mean([question_scores(*pair)[1] for pair in zip(answers, gold, strict=True)])


some_questions = st.lists(
    st.tuples(
        st.sampled_from([-2.0, -0.5, 0.0, 0.25, 0.5, 3.0]) | st.integers(-5000, 5000).map(lambda n: n / 100),
        some_text,
        some_gold,
    ),
    min_size=1,
    max_size=12,
)


@given(some_questions)
def test_the_threshold_is_as_good_as_any(questions):
    odds, texts, gold = zip(*questions, strict=True)
    found = best_threshold(odds, texts, gold)
    known = {*odds, min(odds) - 1}  # the answers change only where a threshold passes one of the odds
    assert f1_at(found, odds, texts, gold) == pytest.approx(max(f1_at(t, odds, texts, gold) for t in known), abs=1e-9)


def test_the_threshold_lies_midway():
    assert best_threshold([-3.0, 1.0, 2.0], ["x", "y", "z"], [["x"], ["y"], []]) == 1.5
    assert best_threshold([-3.0, 1.0, 2.0], ["x", "y", "z"], [["x"], ["y"], ["z"]]) == 3.0
    assert best_threshold([-3.0, 1.0, 2.0], ["x", "y", "z"], [[], [], []]) == -4.0
    # Of equally good ones the middle: three are wrong with and without an answer, so -1.5, -0.5, 1 and 2.5 tie.
    odds, texts, gold = [-2.0, -1.0, 0.0, 2.0, 3.0], ["x", "n", "n", "n", "n"], [["x"], ["y"], ["y"], ["y"], []]
    assert best_threshold(odds, texts, gold) == -0.5
    # Rounding does not break a tie.
    # F1 goes up by 1, down by 1, up by ten times 0.1 and then stays: 0.5, 11.5, 12.5 and 14 tie.
    tenth = ["p" + " z" * 18]
    gold = [["p"], [], *[tenth] * 10, ["q"], ["q"]]
    assert question_scores("p", tenth)[1] == 0.1
    assert reduce(add, [0.1] * 10) < 1  # `sum` compensates rounding from Python 3.12 on
    assert best_threshold(np.arange(14.0), ["p"] * 14, gold) == 11.5


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_odds_that_are_equal_within_rounding_are_not_torn_apart(noise):
    odds, texts, gold = [0.0, 1.0, 1.0, 1.0 + noise], ["x", "x", "x", "x"], [["x"], ["x"], ["x"], []]
    assert best_threshold(odds, texts, gold) == pytest.approx(2.0)
