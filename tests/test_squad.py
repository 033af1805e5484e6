"""SQuAD: its layout read, answers found in their context, and its scores by hand and against brute force."""

import copy
import json
import math
import re
from functools import reduce
from operator import add

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import example, given
from hypothesis import strategies as st
from small import message_of, raises

from bertkit.data import read_rows
from bertkit.data.problems import Problems
from bertkit.data.squad import check_answers, is_squad, read_answers, squad_rows
from bertkit.errors import DataError
from bertkit.evaluation.squad_metrics import MLQA, SQUAD, GradedAnswers, best_threshold, metric_names, rule_of
from bertkit.sections import DataSpec

SPEC = DataSpec(source="unused", format="json")
CONTEXT = "Warsaw lies on the Vistula. The Vistula is long. 😀 Ends here"


def asked(name, question, *answers):
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": question, "answers": found}


WARSAW = [asked("a", "Which city?", ("Warsaw", 0)), asked("b", "How is it?", ("long", 43), ("is long", 40))]
RIVERS = [{"context": "Empty.", "qas": []}, {"context": "The Bug.", "qas": [asked("c", "Who?", ("Bug", 4))]}]
V1 = {
    "version": "1.1",
    "data": [
        {"title": "Warsaw", "paragraphs": [{"context": CONTEXT, "qas": WARSAW}]},
        {"title": "Rivers", "paragraphs": RIVERS},
    ],
}
PLAUSIBLE = [{"text": "Bug", "answer_start": 4}]


def version_2():
    document = copy.deepcopy(V1)
    for question in document["data"][0]["paragraphs"][0]["qas"]:
        question["is_impossible"] = False
    last = document["data"][1]["paragraphs"][1]["qas"][0]
    last.update(is_impossible=True, answers=[], plausible_answers=PLAUSIBLE)
    return document


def read(tmp_path, document):
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(document))
    return list(read_rows(path, SPEC))


def fails(tmp_path, document):
    return message_of(DataError, read, tmp_path, document).replace(str(tmp_path / "dev.json"), "dev.json")


def test_version_1_is_read_as_rows_of_the_hub(tmp_path):
    rows = read(tmp_path, V1)
    assert rows == [
        (1, {"id": "a", "title": "Warsaw", "question": "Which city?", "context": CONTEXT,
             "answers": {"text": ["Warsaw"], "answer_start": [0]}}),
        (2, {"id": "b", "title": "Warsaw", "question": "How is it?", "context": CONTEXT,
             "answers": {"text": ["long", "is long"], "answer_start": [43, 40]}}),
        (3, {"id": "c", "title": "Rivers", "question": "Who?", "context": "The Bug.",
             "answers": {"text": ["Bug"], "answer_start": [4]}}),
    ]  # fmt: skip
    assert rows[0][1]["context"] is rows[1][1]["context"]
    assert all(check_answers(row["context"], row["answers"]) == (row["answers"], 0) for _, row in rows)


def test_version_2_has_no_answer_where_it_is_impossible(tmp_path):
    rows = read(tmp_path, version_2())
    assert rows[2][1]["answers"] == {"text": [], "answer_start": []}
    assert rows[:2] == read(tmp_path, V1)[:2]
    document = version_2()
    document["data"][1]["paragraphs"][1]["qas"][0]["answers"] = PLAUSIBLE
    assert read(tmp_path, document) == rows  # answers of an impossible question are not read


def change(path, value=None):
    """V1 with another value at the path; None: without that field."""
    document = copy.deepcopy(V1)
    holder = document
    for step in path[:-1]:
        holder = holder[step]
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return document


QUESTION = ["data", 1, "paragraphs", 1, "qas", 0]


def test_a_title_and_the_answers_may_be_missing(tmp_path):
    assert read(tmp_path, change(["data", 0, "title"]))[0] == (1, {**read(tmp_path, V1)[0][1], "title": None})
    assert read(tmp_path, change([*QUESTION, "answers"]))[2][1]["answers"] is None


def test_what_is_not_in_the_layout_is_named_by_its_article(tmp_path):
    for path, value, message in (
        ([*QUESTION, "question"], None, "data[1]: is not in the layout of SQuAD: KeyError('question')"),
        ([*QUESTION, "answers", 0, "answer_start"], None, "data[1]: is not in the layout of SQuAD: KeyError"),
        ([*QUESTION, "answers", 0], "Bug", "data[1]: is not in the layout of SQuAD: TypeError"),
        (QUESTION, ["x"], "data[1]: is not in the layout of SQuAD: AttributeError"),
        (
            ["data", 0, "paragraphs", 0, "context"],
            None,
            "data[0]: is not in the layout of SQuAD: KeyError('context')",
        ),
        (["data", 0], 3, "data[0]: is not in the layout of SQuAD: TypeError"),
    ):
        found = fails(tmp_path, change(path, value))
        assert found.startswith(f"dev.json, {message}")
        assert found.count("dev.json") == 1
    assert "dev.json, row 3: half of a surrogate" in fails(
        tmp_path, change([*QUESTION, "question"], "\ud83d")
    )
    assert "is empty: no rows" in fails(tmp_path, {"data": [{"title": "x", "paragraphs": []}]})


NOT_SQUAD = [
    [{"paragraphs": []}], {"data": [{"text": "x"}]}, {"data": []}, {"data": {"paragraphs": []}},
    {"rows": [{"paragraphs": []}]}, {"data": ["paragraphs"]}, None,
]  # fmt: skip


@pytest.mark.parametrize("document", NOT_SQUAD)
def test_other_json_is_not_squad(document):
    assert is_squad(V1)
    assert not is_squad(document)


IN_EVERY_LAYOUT = [
    ({"text": ["a", "b"], "answer_start": [0, 4]}, [("a", 0), ("b", 4)]),
    ({"text": ["a", "b"], "answer_start": [None, 4]}, [("a", None), ("b", 4)]),
    ({"text": ["a"], "answer_start": None}, [("a", None)]),
    ({"text": ["a"]}, [("a", None)]),
    ({"text": [], "answer_start": []}, []),
    ([{"text": "a", "answer_start": 3}, {"text": "b", "answer_start": None}], [("a", 3), ("b", None)]),
    ([{"text": "a"}, "b"], [("a", None), ("b", None)]),
    ([], []),
    ("a", [("a", None)]),
]


@pytest.mark.parametrize(("value", "answers"), IN_EVERY_LAYOUT)
def test_answers_in_every_layout(value, answers):
    assert read_answers(value) == answers


def test_anything_else_is_no_answer():
    for value, message in (
        (None, "None, where text, a list of texts"),
        ({"text": "a", "answer_start": 0}, "where text, a list of texts"),
        ({"text": ["a"], "answer_start": 0}, "where text, a list of texts"),
        ({"text": ["a"], "answer_start": []}, "1 text, but 0 answer_start"),
        ({"text": ["a", None]}, "answer 2 is {'text': None, 'answer_start': None}, where text, or an object"),
        (["a", 3], "answer 2 is 3, where text, or an object with a text, is expected"),
        ([{"text": "a", "answer_start": 3.0}], "answer 1 has the answer_start 3.0, where a whole number"),
        ([{"text": "a", "answer_start": True}], "answer 1 has the answer_start True, where a whole number"),
    ):
        assert message in str(raises(ValueError, r"where|but", read_answers, value))


def at(text, start):
    return {"text": [text], "answer_start": [start]}


def test_answers_are_found():
    for answers, spans, moved in (
        (at("Vistula", 19), [(19, 26)], 0),
        (at("Vistula", 32), [(32, 39)], 0),  # where it is said to stand, though it stands elsewhere too
        (at("Warsaw", 3), [(0, 6)], 1),
        (at("here", 57), [(56, 60)], 1),  # it would reach past the end
        (at("Warsaw", -1), [(0, 6)], 1),  # some data sets write -1 for an unknown place
        (at("here", None), [(56, 60)], 0),
        ("long", [(43, 47)], 0),
        (["long", {"text": "😀", "answer_start": 49}], [(43, 47), (49, 50)], 0),
        ([], [], 0),
    ):
        texts = [CONTEXT[a:b] for a, b in spans]
        assert check_answers(CONTEXT, answers) == (
            {"text": texts, "answer_start": [a for a, _ in spans]},
            moved,
        )


def test_answers_that_can_not_be_used():
    for answers, problem in (
        (at("Vistula", 0), "answer 1, 'Vistula', does not stand at 0, and the context has it more than once"),
        (
            at("Vistula", None),
            "answer 1, 'Vistula', has no answer_start, and the context has it more than once",
        ),
        (at("warsaw", 0), "answer 1, 'warsaw', does not stand at 0, nor elsewhere in the context"),
        (at("warsaw", None), "answer 1, 'warsaw', does not stand in the context"),
        (at("e", -1), "answer 1, 'e', does not stand at -1, and the context has it more than once"),
        (at("", 0), "answer 1, '', is empty"),
        (at(" \n", None), "answer 1, ' \\n', is empty"),
    ):
        raises(ValueError, f"^{re.escape(problem)}$", check_answers, CONTEXT, answers)


def test_all_bad_answers_are_named():
    error = raises(ValueError, "answer", check_answers, CONTEXT, ["Warsaw", "Vistula", ""])
    vistula = "answer 2, 'Vistula', has no answer_start, and the context has it more than once"
    assert error.args == (vistula, "answer 3, '', is empty")


@given(
    st.text(alphabet="ab ", max_size=8), st.text(alphabet="ab ", max_size=3), st.none() | st.integers(-2, 9)
)
@example("banana", "ana", None)  # occurrences that overlap are several
def test_every_answer_is_found_or_a_problem(context, text, start):
    there = [i for i in range(len(context)) if text.strip() and context[i : i + len(text)] == text]
    expected = [start] if start in there else there if len(there) == 1 else []
    answers = [{"text": text, "answer_start": start}]
    if not expected:
        raises(ValueError, "answer 1", check_answers, context, answers)
    else:
        located = {"text": [text], "answer_start": expected}
        assert check_answers(context, answers) == (located, start is not None and expected != [start])


some_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("text answer_start qas answers".split()), inner)
    ),
    max_leaves=6,
)


@given(st.data(), some_json)
def test_with_anything_in_one_place_there_are_rows_or_problems(data, value):
    document = copy.deepcopy(V1)
    holder = document
    key = "data"
    while isinstance(holder[key], dict | list) and holder[key] and data.draw(st.integers(0, 4)):
        holder = holder[key]
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
    unchanged = json.dumps(holder[key]) == json.dumps(value)
    holder[key] = value
    problems = Problems("x.json")
    for number, row in squad_rows(document, problems) if is_squad(document) else ():
        assert number > 0
        assert list(row) == "id title question context answers".split()
    assert not (unchanged and problems)


@given(some_json)
def test_anything_is_answers_or_a_value_error(value):
    try:
        answers = read_answers(value)
    except ValueError:
        answers = []
    assert all(isinstance(text, str) and (start is None or type(start) is int) for text, start in answers)


# --- scores

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
        assert SQUAD.tokens(text) == tokens.split()


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
        assert SQUAD.scores(predicted, gold) == (exact, pytest.approx(f1, abs=1e-12))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("在北京大学。", "在 北 京 大 学"),
        ("《Harry Potter》 （2001年）", "harry potter 2001 年"),
        ("“the” – end", "the end"),  # no English article, and all of Unicode's punctuation
        ("東京タワーに、々", "東 京 タ ワ ー に 々"),
        ("ที่กรุงเทพ ๒๕", "ที่ ก รุ ง เ ท พ ๒ ๕"),  # a character with its vowel sign and tone
        ("ភ្នំ ពេញ", "ភ្ នំ ពេ ញ"),
        ("မြန်မာ", "မြ န် မာ"),
        ("서울에서 A1", "서 울 에 서 a1"),
        ("दिल्ली।", "दिल्ली"),  # no character by itself, as MLQA has it
        ("وباريس، الكتاب", "وباريس كتاب"),
        ("۵ € 3－Ä", "۵ € 3ä"),
    ],
)
def test_tokens_of_other_scripts(text, tokens):
    assert MLQA.tokens(text) == tokens.split()


def test_the_rule_follows_the_contexts():
    for contexts, rule in (
        (["He moved to 北京 in 1999."], SQUAD),
        (["2024, 3.5"], SQUAD),
        (["Größe, Zoé, Huế, ə"], SQUAD),
        (["他去了 Paris 和大阪"], MLQA),
        (["Он живёт в Москве"], MLQA),
        (["दिल्ली"], MLQA),
        (["Paris.", "大阪は寒いです。"], MLQA),
    ):
        assert rule_of(contexts) is rule
    graded = grade([["北京大学"], ["上海"]], ["在北京大学。", "上海市"])
    assert graded.scores == {"exact_match": 0, "f1": pytest.approx((8 / 9 + 4 / 5) / 2)}


@given(some_text, some_gold, st.randoms())
def test_laws_of_the_scores(predicted, gold, random):
    exact, f1 = SQUAD.scores(predicted, gold)
    assert exact in (0, 1)
    assert exact <= f1 <= 1
    words = predicted.split()
    random.shuffle(words)
    assert SQUAD.scores(" ".join(words), gold)[1] == f1
    noisy = "".join(f" The {word.swapcase()}?, an" for word in predicted.split()) + " a"
    assert SQUAD.scores(noisy, gold) == (exact, f1)
    assert SQUAD.scores(predicted, gold[::-1]) == (exact, f1)


def grade(gold, predicted, null_scores=None):
    """These answers; with null scores those of a task that knows unanswerable questions."""
    given = [{"text": list(texts), "answer_start": [0] * len(texts)} for texts in gold]
    rows = Dataset.from_dict({"answers": given, "context": [" ".join([*texts, "."]) for texts in gold]})
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
    graded = grade([[], []], ["", "x"])
    assert (graded.scores["f1_has_answer"], graded.scores["f1_no_answer"]) == (None, 0.5)
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
    raises(ValueError, "NaN", auc, [math.nan, 0.5], [["x"], []])


def f1_at(threshold, odds, texts, gold):
    answers = ["" if odd > threshold else text for odd, text in zip(odds, texts, strict=True)]
    return np.mean([SQUAD.scores(*pair)[1] for pair in zip(answers, gold, strict=True)])


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
    found = best_threshold(odds, texts, gold, SQUAD)
    known = {*odds, min(odds) - 1}  # the answers change only where a threshold passes one of the odds
    assert f1_at(found, odds, texts, gold) == pytest.approx(
        max(f1_at(t, odds, texts, gold) for t in known), abs=1e-9
    )


def test_the_threshold_lies_midway():
    for gold, threshold in (([["x"], ["y"], []], 1.5), ([["x"], ["y"], ["z"]], 3.0), ([[]] * 3, -4.0)):
        assert best_threshold([-3.0, 1.0, 2.0], ["x", "y", "z"], gold, SQUAD) == threshold
    # Of equally good ones the middle: three are wrong with and without an answer, so -1.5, -0.5, 1 and 2.5
    # tie.
    odds = [-2.0, -1.0, 0.0, 2.0, 3.0]
    texts = "x n n n n".split()
    gold = [["x"], ["y"], ["y"], ["y"], []]
    assert best_threshold(odds, texts, gold, SQUAD) == -0.5
    # Rounding does not break a tie.
    # F1 goes up by 1, down by 1, up by ten times 0.1 and then stays: 0.5, 11.5, 12.5 and 14 tie.
    tenth = ["p" + " z" * 18]
    gold = [["p"], [], *[tenth] * 10, ["q"], ["q"]]
    assert SQUAD.scores("p", tenth)[1] == 0.1
    assert reduce(add, [0.1] * 10) < 1  # `sum` compensates rounding from Python 3.12 on
    assert best_threshold(np.arange(14.0), ["p"] * 14, gold, SQUAD) == 11.5
    for noise in (0.0, 1e-7):  # odds that are equal within rounding are not torn apart
        odds = [0.0, 1.0, 1.0, 1.0 + noise]
        gold = [["x"], ["x"], ["x"], []]
        assert best_threshold(odds, ["x"] * 4, gold, SQUAD) == pytest.approx(2.0)
