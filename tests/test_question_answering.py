"""Question answering from files to answers: exact against brute force, and every way to score a model agrees."""

import json
import math
import shutil
from collections import Counter
from itertools import takewhile
from types import SimpleNamespace
from typing import Any
from unicodedata import category

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from cases import QA
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from small import raises, read_as, read_rows, refused, said, write_rows
from test_qa_windows import TEXTS, TOKENIZERS, kinds, qa
from test_task_contract import ask, opened
from transformers.modeling_outputs import QuestionAnsweringModelOutput

import bertkit
from bertkit.attachments.soft_targets import SOFT_TARGETS
from bertkit.encoding.padding import Collator
from bertkit.encoding.pieces import tokenize
from bertkit.errors import DataError, ModelError
from bertkit.evaluation import squad_metrics
from bertkit.files import read_json
from bertkit.models.encoder import load_tokenizer
from bertkit.models.heads.spans import WindowSpans, best_of_windows
from bertkit.recipe.recipe import load_recipe
from bertkit.tasks.base import calibrate, prepare
from bertkit.tasks.question_answering import QuestionAnswering, QuestionAnsweringOptions
from bertkit.training.train import train

__all__ = ["kinds"]  # fixtures
CONTEXTS = [
    "the cat was good and the dog was bad",
    "",
    " \n ",
    "🙂",
    "🏳️‍🌈 the 👩‍👩‍👧 sat",
    "cafe\u0301 e\u0301",
    "שלום the العَرَبِيَّة cat",
    "cat cat cat cat",
    "の猫  sat ,\u3000dog",
    "\u200b\u200b",
    "the cat sat on the mat . " * 9,
]
Span = tuple[float, int, int]  # score, first and last piece of the context


def rows_of(contexts, question="the cat ?"):
    return Dataset.from_dict({"question": [question] * len(contexts), "context": contexts})


def draw_logits(features, seed, ties):
    """Start and end logits (2, pieces) of each window; `ties`: whole numbers, so that many spans are equal."""
    rng = default_rng(seed)
    shapes = [(2, length) for length in features["length"]]
    return [(rng.integers(-2, 3, s) if ties else 3 * rng.normal(size=s)).astype(np.float32) for s in shapes]


def keep(
    task,
    features,
    logits,
    size=3,
    padding=0,
    fill=9.0,
):
    """What the task keeps of these logits in batches of `size`, with `fill` where there is only padding."""
    kept = []
    for start in range(0, len(features), size):
        inputs = features[start : start + size]
        batch = Collator.of(task.tokenizer, task.padding)({n: v for n, v in inputs.items() if n != "labels"})
        width = batch["input_ids"].shape[1] + padding
        both = torch.full((2, len(inputs["row"]), width), fill)
        for place, each in enumerate(logits[start : start + size]):
            both[:, place, : each.shape[1]] = torch.from_numpy(each)
        reduced = task.reduce(SimpleNamespace(start_logits=both[0], end_logits=both[1]), batch)
        kept += task.items({name: values.numpy() for name, values in reduced.items()})
    return kept


def spans(task, window, logits):
    """Brute force: every span that may be an answer in this window."""
    shift = window["place"] - window["low"]
    for first in range(window["first"], window["end"]):
        for last in range(
            first, min(first + task.options.max_answer_length, window["low"] + window["count"])
        ):
            yield (
                float(np.float32(logits[0, first + shift]) + np.float32(logits[1, last + shift])),
                first,
                last,
            )


def by_hand(task, features, logits, row, context):
    """(candidates as {text: (start, end, score)} in the order of their best span, score of none), without any
    code of the task.
    """
    own = [i for i, of in enumerate(features["row"]) if of == row]
    (pieces,) = tokenize(task.tokenizer, [context])
    every = [span for i in own for span in spans(task, features[i], logits[i])]
    found = sorted(every, key=lambda span: (-span[0], span[1], span[2]))
    null = min(float(np.float32(logits[i][0, 0] + logits[i][1, 0])) for i in own)
    merged = {}
    for score, first, last in found[: task.options.n_best]:
        text = context[pieces.starts[first] : pieces.ends[last]]
        start = int(pieces.starts[first]) + len(text) - len(text.lstrip())
        if text.strip():
            end = start + len(text.strip())
            end += len([*takewhile(lambda char: category(char)[0] == "M", context[end:])])
            merged.setdefault(context[start:end], [start, end, []])[2].append(score)
    temperature = task.options.temperature or 1.0
    whole = [null] * task.unanswerable + [score for *_, scores in merged.values() for score in scores]
    top = max(whole, default=0.0)
    total = sum(math.exp((score - top) / temperature) for score in whole)
    chance = {
        text: (start, end, sum(math.exp((score - top) / temperature) for score in scores) / total)
        for text, (start, end, scores) in merged.items()
    }
    return chance, math.exp((null - top) / temperature) / total if task.unanswerable else 0.0


# --- keep and decode


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    contexts=st.lists(st.sampled_from(CONTEXTS) | TEXTS, min_size=1, max_size=4),
    seed=st.integers(0, 2**20),
    ties=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "unanswerable": st.booleans(),
            "n_best": st.sampled_from([1, 2, 20]),
            "max_answer_length": st.sampled_from([1, 4, 30]),
            "temperature": st.sampled_from([None, 0.5, 3.0]),
            "null_threshold": st.sampled_from([None, -2.0, 3.0]),
        }
    ),
)
def test_answers_are_those_of_brute_force(kind, contexts, seed, ties, options, kinds):
    task = qa(kinds[kind], **options)
    rows = rows_of(contexts)
    features = task.encode(rows)
    logits = draw_logits(features, seed, ties)
    answers = task.decode(keep(task, features, logits), features, rows)
    assert len(answers) == len(contexts)
    for row, (answer, context) in enumerate(zip(answers, contexts, strict=True)):
        expected, null = by_hand(task, features, logits, row, context)
        given = {each["answer"]: (each["start"], each["end"], each["score"]) for each in answer["n_best"]}
        assert len(given) == len(answer["n_best"])
        assert given.keys() == expected.keys()
        for text, (start, end, score) in expected.items():
            assert given[text][:2] == (start, end)
            assert given[text][2] == pytest.approx(score, rel=1e-9, abs=1e-12)
            assert context[start:end] == text == text.strip() != ""
        scores = [each["score"] for each in answer["n_best"]]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score <= 1 for score in [*scores, answer["null_score"]])
        assert sum(scores) + answer["null_score"] == pytest.approx(
            1 if expected or task.unanswerable else 0, abs=1e-9
        )
        assert answer["null_score"] == pytest.approx(null, rel=1e-9, abs=1e-12)
        odds = math.log(null / scores[0]) if null and scores else -math.inf
        if not scores or (task.unanswerable and odds > (options["null_threshold"] or 0) + 1e-9):
            assert [answer[k] for k in "answer start end score".split()] == ["", 0, 0, answer["null_score"]]
        elif odds < (options["null_threshold"] or 0) - 1e-9:
            assert {k: answer[k] for k in "answer start end score".split()} == answer["n_best"][0]
        assert answer["truncated"] is False


def test_each_context_is_tokenized_once(kinds, monkeypatch):
    """From rows to answers, for encoding and for decoding, however many questions are asked of it."""
    task = qa(kinds["wordpiece"])
    rows = rows_of(CONTEXTS * 3)
    read = Counter[str]()
    tokenizer = type(task.tokenizer)
    tokenized = tokenizer.__call__

    def counted(self, texts, *rest, **options):
        read.update([texts] if isinstance(texts, str) else texts)
        return tokenized(self, texts, *rest, **options)

    monkeypatch.setattr(tokenizer, "__call__", counted)
    answers = list(task.answer(rows, lambda features: keep(task, features, draw_logits(features, 0, False))))
    assert len(answers) == len(rows)
    assert [read[context] for context in CONTEXTS] == [1] * len(CONTEXTS)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("ties", [False, True])
def test_neither_batch_nor_padding_nor_question_changes_what_is_kept(kind, ties, kinds):
    """Also of many equal spans, as bf16 makes them, always the same are taken: the first."""
    task = qa(kinds[kind], n_best=5)
    features = task.encode(rows_of([*CONTEXTS, "cat " * 100]))
    logits = draw_logits(features, 1, ties)
    alone = keep(task, features, logits, 1)
    for each, window, own in zip(alone, features, logits, strict=True):
        best = sorted(spans(task, window, own), key=lambda span: (-span[0], span[1], span[2]))[:5]
        assert list(zip(each.scores, each.first, each.last, strict=True)) == best
    for place, each in zip(features["place"], logits, strict=True):
        each[:, 1:place] = 1e4  # the question, and special tokens
        each[:, -1] = 1e4
    for size, padding, fill in ((1, 40, 0.0), (3, 0, 1e4), (len(features), 7, math.nan)):
        for one, other in zip(alone, keep(task, features, logits, size, padding, fill), strict=True):
            assert all(map(np.array_equal, one, other))


def test_scores_stay_within_0_and_1_however_many_candidates_are_one_text_and_however_far_logits_are_apart(
    kinds,
):
    task = qa(kinds["wordpiece"], 40, unanswerable=False, max_answer_length=1)
    rows = rows_of(["cat " * 20])
    features = task.encode(rows)
    (answer,) = task.decode(keep(task, features, [np.zeros((2, 26), np.float32)]), features, rows)
    assert [each["answer"] for each in answer["n_best"]] == ["cat"]
    assert answer["score"] == 1.0  # added up, twenty times a twentieth is more
    task = qa(kinds["wordpiece"], temperature=0.05)
    rows = rows_of(["cat dog", "cat dog"])
    features = task.encode(rows)
    logits = [np.zeros((2, length), np.float32) for length in features["length"]]
    logits[0][:, 0] = 5000
    logits[1][:, 5] = 5000
    none, cat = task.decode(keep(task, features, logits), features, rows)
    assert (none["answer"], none["score"], none["n_best"][0]["score"]) == ("", 1.0, 0.0)
    assert (cat["answer"], cat["score"], cat["null_score"]) == ("cat", 1.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 5, 7])
def test_a_model_whose_outputs_are_not_finite_says_so(bad, place, kinds):
    task = qa(kinds["wordpiece"])
    rows = rows_of(["cat sat on", "dog"])
    features = task.encode(rows)
    logits = draw_logits(features, 0, False)
    logits[0][1, place] = bad
    if bad == -math.inf and place:  # no span ends there, and that is all
        assert task.decode(keep(task, features, logits), features, rows)
        return
    raises(
        ModelError,
        "NaN or infinite for 1 of 2 rows",
        task.decode,
        keep(task, features, logits),
        features,
        rows,
    )


def test_the_loss_is_that_of_torch_over_where_an_answer_can_be(kinds):
    task = qa(kinds["wordpiece"])
    answers = [{"text": ["sat on"], "answer_start": [4]}, {"text": [], "answer_start": []}]
    rows = rows_of(["cat sat on", "dog"]).add_column("answers", answers)
    features = task.encode(rows)
    batch = Collator.of(task.tokenizer, task.padding)(features[:])
    logits = draw_logits(features, 3, False)
    both = torch.full((2, 2, 9), 50.0)
    for place, each in enumerate(logits):
        both[:, place, : each.shape[1]] = torch.from_numpy(each)
    total = 0.0
    for each, gold, there in zip(logits, ([6, 7], [0, 0]), ([0, 5, 6, 7], [0, 5]), strict=True):
        for side in (0, 1):
            total -= torch.from_numpy(each[side, there]).log_softmax(0)[there.index(gold[side])].item() / 2
    outputs = QuestionAnsweringModelOutput(start_logits=both[0], end_logits=both[1])
    assert float(task.loss(outputs, batch)) == pytest.approx(total, rel=1e-6)
    assert task.count(batch) == 2


# --- data


CAT = "the cat was good and the dog was bad and the cat sat"


def asked(name, answers, context=CAT, **more):
    return {"id": name, "question": "the cat ?", "context": context, "answers": answers, **more}


def get(path, *rows, **options):
    source = {"train": write_rows(path / "rows.jsonl", list(rows))}
    return read_as({**QA, **options}, source)


@pytest.mark.parametrize(
    ("answers", "starts", "located"),
    [
        ("cat", 45, [45]),
        ("cat", "45", [45]),
        ("cat", 45.0, [45]),
        ("cat", [45], [45]),
        (["cat", "good"], [45, 12], [45, 12]),
        ("good", None, [12]),
        ("good", " ", [12]),
        ("", -1, []),
        ([], [], []),
        ({"text": ["cat"], "answer_start": [4]}, 45, [4]),
        ([{"text": "cat", "answer_start": 4}], 45, [4]),
        ({"text": ["good"], "answer_start": [3]}, None, [12]),
    ],
)
def test_a_column_says_where_answers_start(answers, starts, located, tmp_path):
    """Also one that the first row lacks; answers that stand elsewhere are found."""
    data = get(tmp_path, asked("1", []), asked("2", answers, answer_start=starts))
    assert data.rows["train"]["answers"][0] == {"text": [], "answer_start": []}
    assert data.rows["train"]["answers"][1]["answer_start"] == located
    assert "answer_start" not in {*data.rows["train"].column_names, *data.columns}
    moved = located == [12] and isinstance(answers, dict)
    assert [finding.what for finding in data.findings if finding.level == "warn"] == moved * [
        "train: `answer_start` is wrong for 1 answer, found elsewhere in the context"
    ]


def test_the_column_of_starts_in_csv_and_under_another_name(tmp_path):
    (tmp_path / "rows.csv").write_text(
        f"question,context,answers,start\nwho ?,{CAT},cat,45\nwhat ?,{CAT},,\n"
    )
    (tmp_path / "test.csv").write_text(f"question,context,start\nwho ?,{CAT},45\n")
    source = {"train": tmp_path / "rows.csv", "test": tmp_path / "test.csv"}
    data = read_as(QA, source, columns={"answer_start": "start"})
    assert data.rows["train"]["answers"][:] == [
        {"text": ["cat"], "answer_start": [45]},
        {"text": [], "answer_start": []},
    ]
    assert data.rows["test"].column_names == ["question", "context"]


@pytest.mark.parametrize(
    ("answers", "starts", "what"),
    [
        ("cat", 17, "answer 1, 'cat', does not stand at 17, and the context has it more than once"),
        ("cat", [4, 45], "1 text, but 2 answer_start"),
        (["cat", "good"], 4, "2 texts, but 1 answer_start"),
        ("cat", 4.5, "`answer_start` holds 4.5, where a whole number, or a list of them, is expected"),
        (7, None, "`answers` holds 7, where text, a list of texts or of"),
    ],
)
def test_wrong_answers_are_named_by_file_line_and_id(answers, starts, what, tmp_path):
    wrong = [asked(name, answers, answer_start=starts) for name in ("q-17", "q-18")]
    fine = asked("fine", ["good"], answer_start=None)
    error = raises(DataError, None, get, tmp_path, fine, *wrong)
    places = [problem.where.rpartition("/")[2] for problem in error.problems]
    early = "`answer_start` holds" in what  # said of the first row that is not read
    assert places == (["rows.jsonl:2"] if early else ["rows.jsonl:2, id q-17", "rows.jsonl:3, id q-18"])
    assert what in str(error)


def test_ids_that_are_there_twice_are_a_warning_and_none_are_needed(tmp_path):
    data = get(tmp_path, asked("a", ["good"]), asked("a", ["bad"]), asked("b", ["bad"]), asked("a", []))
    (fix,) = [each.fix for each in data.findings if each[:2] == ("warn", "train: 2 ids occur more than once")]
    assert fix.startswith("Give each question an id of its own")
    bare = [{k: v for k, v in asked("", ["good"]).items() if k != "id"}]
    data = get(tmp_path, *bare)
    assert "id" not in data.rows["train"].column_names
    assert not [finding for finding in data.findings if finding.level == "warn"]


def test_whether_there_may_be_no_answer_is_settled_by_train(tiny_encoder):
    def prepared(*texts, **options):
        answers = [{"text": each, "answer_start": [0] * len(each)} for each in texts]
        rows = Dataset.from_dict(
            {"question": ["?"] * len(texts), "context": ["cat"] * len(texts), "answers": answers}
        )
        given = QuestionAnsweringOptions(name="question-answering", **options)
        return prepare(QuestionAnswering, given, load_tokenizer(tiny_encoder), 32, rows, [])

    assert prepared(["cat"], []).options.unanswerable is True
    assert prepared(["cat"], ["cat"]).options.unanswerable is False
    assert prepared(["cat"], unanswerable=True).options.unanswerable is True
    assert "or none" in prepared(["cat"], []).describe()
    assert "no_answer_auc" not in prepared(["cat"]).metrics
    said = r"task\.unanswerable is false, but train has 2 questions without an answer"
    raises(DataError, said, prepared, ["cat"], [], [], unanswerable=False)
    raises(DataError, "no question of train has an answer", prepared, [], [])
    raises(DataError, "null_threshold: has no effect", prepared, ["cat"], null_threshold=1.0)


def test_answers_longer_than_any_that_is_given_are_counted(kinds):
    answers = [{"text": ["cat sat on"], "answer_start": [4]}, {"text": ["cat"], "answer_start": [4]}]
    rows = rows_of(["the cat sat on"] * 2).add_column("answers", answers)
    for most, expected in (
        (
            2,
            [
                "train: 1 of 2 windows (50.0%) is labelled with an answer longer than 2 tokens, never predicted whole"
            ],
        ),
        (3, []),
    ):
        task = qa(kinds["wordpiece"], max_answer_length=most)
        told = [finding.what for finding in task.check(task.features(rows), "train")]
        assert [what for what in told if "never predicted" in what] == expected


@pytest.mark.parametrize(
    ("context", "start", "end", "answer"), [("cafe\u0301 a", 0, 4, "cafe\u0301"), ("यह है", 3, 4, "है")]
)
def test_an_answer_keeps_the_marks_that_a_tokenizer_strips(context, start, end, answer):
    window = WindowSpans(np.ones(1), np.zeros(1, int), np.zeros(1, int), 0.0)
    ((first, last),) = best_of_windows([window], np.array([start]), np.array([end]), context, 1).spans
    assert context[first:last] == answer


# --- fitting


@pytest.mark.parametrize("shift", [-6, 0, 12])
def test_scores_are_those_at_the_fitted_null_threshold_and_the_recipe_goes_first(shift, kinds):
    """`shift` makes the model too sure, or not sure enough, that there are answers."""
    contexts = ["cat sat on the mat", "dog was very bad", "one two three", "red blue green", "yes", "no"] * 3
    texts = [[context.split()[-1]] if row % 3 else [] for row, context in enumerate(contexts)]
    pairs = zip(texts, contexts, strict=True)
    answers = [
        {"text": own, "answer_start": [context.rindex(text) for text in own]} for own, context in pairs
    ]
    rows = rows_of(contexts).add_column("answers", answers)
    task = qa(kinds["wordpiece"], temperature=1.0)
    features = task.encode(rows)
    logits = draw_logits(features, 5, False)
    for window, each in zip(features, logits, strict=True):  # a model that knows something
        each[:, window["labels"]] += 3
        each[0, 0] += shift
    kept = keep(task, features, logits)
    fitted = calibrate(task, rows, lambda _: kept).options
    assert fitted.temperature == 1.0

    def decode(threshold):
        return qa(kinds["wordpiece"], temperature=1.0, null_threshold=threshold).decode(kept, features, rows)

    graded = task.grade(task.decode(kept, features, rows), rows).after_fit()
    reported = task.grade(decode(fitted.null_threshold), rows)
    assert graded.fitted == {"temperature": 1.0, "null_threshold": fitted.null_threshold}
    assert graded.scores == reported.scores
    assert graded.pairs() == reported.pairs()
    fixed = qa(kinds["wordpiece"], temperature=2.0, null_threshold=0.25)
    as_fixed = fixed.grade(fixed.decode(kept, features, rows), rows)
    assert as_fixed.after_fit().pairs() == as_fixed.pairs()
    assert calibrate(fixed, rows, lambda _: kept).options == fixed.options
    certain = qa(kinds["wordpiece"], unanswerable=False)
    assert calibrate(certain, rows, lambda _: kept).options.null_threshold is None


@pytest.mark.parametrize("wrong", [0, 20])
def test_scores_are_no_surer_than_the_share_of_right_answers(wrong, kinds):
    contexts = ["cat sat on the mat", "dog ran down the mat"] * 30
    answers = [{"text": [context[:3]], "answer_start": [0]} for context in contexts]
    rows = rows_of(contexts).add_column("answers", answers)
    task = qa(kinds["wordpiece"], unanswerable=False, max_answer_length=1)
    logits = [np.full((2, length), -10, np.float32) for length in task.encode(rows)["length"]]
    for row, each in enumerate(logits):
        each[:, 6 if row < wrong else 5] = 0.0
    fitted = calibrate(task, rows, lambda given: keep(task, given, logits))
    found = list(fitted.answer(rows, lambda given: keep(task, given, logits)))
    assert np.mean([answer["score"] for answer in found]) == pytest.approx((61 - wrong) / 62, abs=1e-3)
    calibration = fitted.grade(found, rows).details()["calibration"]
    assert (calibration["decisions"], calibration["errors"]) == (60, wrong)


def test_odds_of_just_the_threshold_give_an_answer(kinds):
    rows = rows_of(["cat dog"])
    features = qa(kinds["wordpiece"]).encode(rows)
    kept = keep(qa(kinds["wordpiece"]), features, draw_logits(features, 0, False))

    def answered(threshold):
        (answer,) = qa(kinds["wordpiece"], null_threshold=threshold).decode(kept, features, rows)
        return answer

    best = answered(1e9)
    odds = squad_metrics.log_odds(best["null_score"], best["score"])
    assert answered(odds) == best
    assert best["answer"]
    assert answered(math.nextafter(odds, -math.inf))["answer"] == ""


def test_the_null_threshold_is_fitted_to_the_scores_at_the_fitted_temperature(kinds):
    """Against every threshold for the odds of a model that is far too sure of its answers."""
    count = 60
    rng = default_rng(0)
    is_answerable = np.arange(count) % 3 > 0
    is_right = np.arange(count) % 4 > 0
    answers = [{"text": ["cat"], "answer_start": [0]} if each else {"text": [], "answer_start": []}
               for each in is_answerable]  # fmt: skip
    rows = rows_of(["cat sat on the mat"] * count).add_column("answers", answers)
    task = qa(kinds["wordpiece"], max_answer_length=1)
    features = task.encode(rows)
    logits = []
    nulls = rng.normal(np.where(is_answerable, -12, -5), 3).astype(np.float32)
    for right, null, length in zip(is_right, nulls, features["length"], strict=True):
        each = np.full((2, length), -30, np.float32)
        each[:, 5:7] = (0, -4) if right else (-4, 0)  # cat, sat; both of start and end
        each[:, 0] = null / 2
        logits.append(each)
    fitted = calibrate(task, rows, lambda given: keep(task, given, logits))
    temperature = fitted.options.temperature
    threshold = fitted.options.null_threshold
    assert temperature > 2
    odds = nulls.astype(np.float64) / temperature  # the best answer has logits of 0

    def f1(threshold):
        return float(np.where(odds <= threshold, is_answerable & is_right, ~is_answerable).mean())

    best = max(map(f1, [odds.min() - 1, *(odds + 1e-6)]))
    found = fitted.decode(keep(fitted, features, logits), features, rows)
    pairs = zip(found, rows["answers"], strict=True)
    scores = [squad_metrics.SQUAD.scores(answer["answer"], gold["text"])[1] for answer, gold in pairs]
    assert float(np.mean(scores)) == pytest.approx(best)
    assert f1(threshold * temperature) < best, "a threshold for the scores at 1"


# --- runs


ANIMALS = ("cat", "dog", "mat")
SENSES = "good bad fine awful".split()


def small_squad(numbers, unanswerable):
    """Questions that a small model can learn: how was it? Each seventh has a wrong answer, so that no score
    is perfect.

    With `unanswerable`, each third text does not say.
    """
    articles = []
    for number in numbers:
        animal = ANIMALS[number % 3]
        sense = SENSES[number % 4]
        sense = f"very {sense}" if number // 2 % 2 else sense
        before = "it ran up and " * (number % 5 % 3)
        after = " and it sat on , up and down" * (number % 7 % 3)
        silent = unanswerable and number // 3 % 3 == 0
        context = f"{before}the {animal} {'sat' if silent else f'was {sense}'}{after}"
        gold = [animal] if number % 7 == 6 else [sense, sense.removeprefix("very ")]
        answers = [
            {"text": text, "answer_start": context.index(text)} for text in dict.fromkeys(gold) if not silent
        ]
        question = {"id": f"{number}-a", "question": f"the {animal} ?", "answers": answers}
        questions = [question, {**question, "id": f"{number}-b", "question": f"was the {animal} good ?"}]
        questions = [{**each, "is_impossible": silent} for each in questions] if unanswerable else questions
        articles.append({"title": str(number), "paragraphs": [{"context": context, "qas": questions}]})
    return {"version": "v2.0" if unanswerable else "1.1", "data": articles}


def write_recipe(folder, encoder, unanswerable):
    write_rows(folder / "train.json", [small_squad(range(36), unanswerable)])
    write_rows(folder / "dev.json", [small_squad(range(36, 54), unanswerable)])
    file = folder / "qa.yaml"
    file.write_text(
        "task: {name: question-answering, stride: 4}\n"
        f"model: {{name: {encoder}, max_length: 24}}\n"
        "data: {source: {train: train.json, validation: dev.json}}\n"
        "training: {num_train_epochs: 8, per_device_train_batch_size: 4, learning_rate: 1e-2, "
        "eval_strategy: no}\n"
        "verify: false\nexplain: false\n",
    )
    return file


@pytest.fixture(scope="module")
def runs(tiny_encoder, tmp_path_factory):
    """A finished run of each kind of data."""
    made = {}
    for version in ("v1", "v2"):
        folder = tmp_path_factory.mktemp(version)
        made[version] = train(
            load_recipe(write_recipe(folder, tiny_encoder, version == "v2")), folder / "run"
        )
    return made


def test_scores_are_those_of_squad_and_of_version_2_also_by_whether_there_is_an_answer(runs):
    found = {}
    for version, run in runs.items():
        scores = found[version] = run.results["splits"]["validation"]["metrics"]
        assert run.results["headline"] == "f1"
        assert 0.5 < scores["f1"] < 1
    assert set(found["v1"]) == {"exact_match", "f1"}
    scores = found["v2"]
    assert set(scores) == {*squad_metrics.metric_names(True), "no_answer_auc"}
    assert scores["f1"] == pytest.approx((2 * scores["f1_has_answer"] + scores["f1_no_answer"]) / 3)
    assert 0.6 < scores["no_answer_auc"] <= 1
    silent = {"exact_match": 1 / 3, "f1": 1 / 3, "exact_match_has_answer": 0, "f1_has_answer": 0}
    silent |= {"exact_match_no_answer": 1, "f1_no_answer": 1, "no_answer_auc": 0.5}
    assert runs["v2"].results["baselines"]["validation"] == {"no answer": pytest.approx(silent)}
    assert not any(runs["v1"].results["baselines"].values())  # where every question has an answer
    low, high = runs["v2"].results["splits"]["validation"]["intervals"]["f1"]
    assert low <= scores["f1"] <= high


def test_the_fitted_threshold_travels_in_config_json(runs, tmp_path):
    run = runs["v2"]
    section = read_json(run.model / "config.json")["bertkit"]["task"]
    options = run.load().task.options
    assert (section["null_threshold"], section["temperature"]) == (
        options.null_threshold,
        options.temperature,
    )
    assert section["unanswerable"] is True
    calibration = run.results["splits"]["validation"]["calibration"]
    assert calibration["null_threshold"] == section["null_threshold"]
    assert calibration["temperature"] == section["temperature"]
    file = run.folder.parent / "dev.json"
    answered = {}
    for threshold in (-1e9, 1e9):
        folder = tmp_path / str(threshold)
        shutil.copytree(run.model, folder)
        config = read_json(folder / "config.json")
        config["bertkit"]["task"]["null_threshold"] = threshold
        (folder / "config.json").write_text(json.dumps(config))
        scores = bertkit.evaluate(folder, data=file)["metrics"]
        answered[threshold] = scores["f1_no_answer"]
        assert scores["f1"] < run.results["splits"]["validation"]["metrics"]["f1"]
        bertkit.predict(folder, file, tmp_path / "out.jsonl")
        lines = read_rows(tmp_path / "out.jsonl")
        assert {bool(line["answer"]["answer"]) for line in lines} == {threshold > 0}
    assert answered == {-1e9: 1.0, 1e9: 0.0}
    assert read_json(runs["v1"].model / "config.json")["bertkit"]["task"]["null_threshold"] is None


def test_plain_transformers_loads_it_without_a_warning(runs, capfd):
    run = runs["v1"]
    model = opened(transformers.AutoModelForQuestionAnswering, run.model, capfd)
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.model)
    assert type(model).__name__ == "BertForQuestionAnswering"
    question = "dog ?"
    context = "the cat was good and the dog was bad"
    predictor = bertkit.load(run.folder, precision="fp32")
    inputs = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        outputs = model.eval()(**inputs)
    found = max(
        (float(outputs.start_logits[0, a] + outputs.end_logits[0, b]), offsets[a][0], offsets[b][1])
        for a in range(4, len(offsets) - 1) for b in range(a, len(offsets) - 1)
    )  # fmt: skip
    task = QuestionAnswering(
        predictor.task.options.model_copy(update={"n_best": 1}), predictor.task.tokenizer, 24
    )
    (only,) = ask(task, predictor.model)(question=question, context=context)["n_best"]
    assert (only["start"], only["end"]) == found[1:]


def test_a_question_is_asked_by_its_columns(runs):
    predictor = bertkit.load(runs["v1"].folder)
    row = {"question": "dog ?", "context": "the dog was bad"}
    assert predictor(**row) == predictor(row) == predictor([row])[0]
    raises(DataError, "no context, question in this row", predictor, "cat ?")
    raises(DataError, "question 'cat cat", predictor, question="cat " * 40, context="the cat was good")


def test_the_command_line_answers_questions_on_a_file(runs, tmp_path, capsys):
    run = runs["v1"]
    context = "the cat was good\r\nand the dog was bad"
    (tmp_path / "context.txt").write_bytes(context.encode("utf-8-sig"))
    arguments = ("predict", run.folder, "dog ?", "cat ?", "--context", tmp_path / "context.txt")
    told = [json.loads(line) for line in said(capsys, *arguments, "--json").splitlines()]
    rows = [{"question": question, "context": context} for question in ("dog ?", "cat ?")]
    assert told == [{"text": r["question"], "answer": a} for r, a in zip(rows, run.load()(rows), strict=True)]
    lines = said(capsys, *arguments).splitlines()
    assert [line.split("  ")[0] for line in lines] == [each["answer"]["answer"] for each in told]
    assert "this model reads question and context together" in refused(capsys, "predict", run.folder, "dog ?")
    assert "absent.txt: cannot be read" in refused(
        capsys, "predict", run.folder, "dog ?", "--context", tmp_path / "absent.txt"
    )
    out = tmp_path / "out.csv"
    said(capsys, "predict", run.folder, "--input", write_rows(tmp_path / "rows.jsonl", rows), "--output", out)
    header = out.read_text().splitlines()[0]
    assert all(f"answer.{name}" in header for name in "answer start end score n_best null_score".split())


def test_a_foreign_model_always_answers(tiny_encoder, tmp_path):
    transformers.AutoModelForQuestionAnswering.from_pretrained(tiny_encoder).save_pretrained(tmp_path)
    load_tokenizer(tiny_encoder).save_pretrained(tmp_path)
    predictor = bertkit.load(tmp_path, task="question-answering")
    context = "the cat was good and the dog was bad"
    answer = predictor(question="cat ?", context=context)
    assert answer["answer"] == context[answer["start"] : answer["end"]] != ""
    assert answer["null_score"] == 0.0
    assert predictor.task.options == QuestionAnsweringOptions(name="question-answering", unanswerable=False)
    file = write_rows(tmp_path / "dev.json", [small_squad(range(5), True)])
    scores = bertkit.evaluate(tmp_path, data=file, task="question-answering")["metrics"]
    assert scores["f1_no_answer"] == 0.0
    raises(ModelError, "was not trained by bertkit", bertkit.load, tmp_path)
    # it has no head
    raises(ModelError, "lacks 2 tensors", bertkit.load, tiny_encoder, task="question-answering")


def test_soft_targets_cost_the_mean_of_what_start_and_end_cost():
    torch.manual_seed(4)
    student = torch.randn(2, 6, 2)
    teacher = torch.randn(2, 6, 2)
    outputs = SimpleNamespace(start_logits=student[..., 0], end_logits=student[..., 1])
    batch = {"soft": teacher.flatten(1), "place": torch.tensor([2, 3]), "count": torch.tensor([3, 2])}
    found = SOFT_TARGETS["question-answering"].loss(Any, outputs, batch, 2.0)
    expected = 0.0
    for row, places in enumerate(([0, 2, 3, 4], [0, 3, 4])):
        for side in (0, 1):
            ours, theirs = (logits[row, places, side] / 2 for logits in (student, teacher))
            expected += 4 * F.kl_div(ours.log_softmax(0), theirs.softmax(0), reduction="sum").item() / 2
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_answers_that_no_window_holds_are_counted(kinds):
    context = "the cat sat on the mat . " * 9  # 63 tokens; 18 fit
    answers = [{"text": [context.strip()], "answer_start": [0]}, {"text": ["cat"], "answer_start": [4]}]
    rows = rows_of([context] * 2).add_column("answers", answers)
    task = qa(kinds["wordpiece"], max_answer_length=1000)
    for split, label in (("train", "labelled as unanswerable"), ("test", "never answered whole")):
        whats = [finding.what for finding in task.check(task.features(rows), split)]
        assert any(f"1 of 2 questions (50.0%) is {label}" in what for what in whats)
