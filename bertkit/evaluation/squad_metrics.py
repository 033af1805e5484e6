"""The scores of extractive question answering, as the official scripts of SQuAD and MLQA define them, in [0,
1].

SQuAD: Rajpurkar et al. 2016 (version 1.1) and 2018 (version 2.0). MLQA: Lewis et al. 2020. They differ in the
tokens of an answer, a `Rule`, which the script of the contexts decides. Where the scripts of 1.1 and 2.0
differ, over a gold answer that is nothing but articles and punctuation, this is the script of 2.0: such an
answer does not count.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from bertkit.data.disk_list import DiskList
from bertkit.data.on_disk import column_values
from bertkit.data.scripts import HANGUL, LATIN, UNSPACED, share
from bertkit.evaluation import calibration, similarity
from bertkit.evaluation.calibration import calibration_error
from bertkit.evaluation.graded import Decisions, Graded, Scored
from bertkit.evaluation.intervals import Floats, Scores, Values, floats, ratio
from bertkit.evaluation.metrics import exact_roc_auc
from bertkit.text import Json, Record

if TYPE_CHECKING:
    from datasets import Dataset


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# with its vowel signs and tones
_CHARACTER = re.compile(rf"((?=\w)[{UNSPACED}{HANGUL}](?:(?!\w)[{UNSPACED}])*)")
_TIE = 1e-9  # sums of F1 that differ by less do so by rounding


def metric_names(unanswerable: bool) -> list[str]:
    """The scores of data with or without unanswerable questions, in the order in which they are emitted."""
    groups = ("", "_has_answer", "_no_answer") if unanswerable else ("",)
    return [f"{score}{group}" for group in groups for score in ("exact_match", "f1")]


class Rule(NamedTuple):
    """How answers are compared: the name of its script, and an answer -> its tokens that count."""

    name: str
    tokens: Callable[[str], list[str]]

    def scores(self, predicted: str, gold: Sequence[str]) -> tuple[float, float]:
        """Exact match and F1 of one answer, each the best over the gold answers; "" and [] stand for no
        answer.
        """
        answer = self.tokens(predicted)
        wanted = list(filter(None, map(self.tokens, gold))) or [[]]
        if answer in wanted:
            return 1.0, 1.0
        return 0.0, max(_f1(answer, tokens) for tokens in wanted)


def _squad_tokens(text: str) -> list[str]:
    """The words that count: lower case, without ASCII punctuation, then without a, an and the."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _mlqa_tokens(text: str) -> list[str]:
    """Words, and single characters of scripts without blanks: lower case, without punctuation and the Arabic
    article.

    MLQA's script does so with ideographs; here also with kana, Thai, Khmer and others, a character with its
    marks, and with Hangul, as KorQuAD's script does. It removes the article's letters wherever they are.
    """
    kept = (code for code in text.lower().translate(_PUNCTUATION) if unicodedata.category(code)[0] != "P")
    return _CHARACTER.sub(r" \1 ", "".join(kept).replace("ال", " ")).split()


SQUAD = Rule("SQuAD", _squad_tokens)
MLQA = Rule("MLQA", _mlqa_tokens)


def rule_of(contexts: Iterable[str]) -> Rule:
    """The rule for answers in such contexts: MLQA where most letters are not Latin."""
    return MLQA if share(contexts, f"^{LATIN}") > 0.5 else SQUAD


def log_odds(null: float, best: float) -> float:
    """Log odds of no answer against the best one."""
    return math.log(max(null, 1e-300)) - math.log(max(best, 1e-300))


class GradedAnswers(Graded):
    """Answers as they are written, compared with the `answers` of their rows; a row without any is
    unanswerable.

    unanswerable: whether the task knows such questions; it then has `no_answer_auc`, the area under the ROC
    curve of detecting them. fitted: the calibration in use, for `details`.
    values: (2, questions), exact match and F1 of each.
    """

    def __init__(self, answers: Sequence[Record], rows: Dataset, unanswerable: bool, fitted: Record) -> None:
        self.answers = answers
        self.rows = rows
        self.unanswerable = unanswerable
        self.fitted = fitted
        self.rule = rule_of(column_values(rows, "context"))
        pairs = zip(answers, self._gold(), strict=True)
        graded = ((*self.rule.scores(answer["answer"], gold), bool(gold)) for answer, gold in pairs)
        table: Floats = np.fromiter(graded, np.dtype((np.float64, 3)), len(rows))
        self.values = table.T[:2].copy()
        self.answerable = table[:, 2] > 0

    @cached_property
    def scored(self) -> Scored:
        """`exact_match` and `f1`, means over questions, as a function of question weights (questions,
        resamples).

        Where some questions are unanswerable, also both over the rest, `..._has_answer` (undefined where
        there is no rest), and over them, `..._no_answer`: both are the share of them that got no answer.
        Questions of one paragraph are not independent, so the true intervals are somewhat wider than those of
        the bootstrap.
        """
        names = metric_names(not self.answerable.all())
        members = np.stack([np.ones(len(self.answerable)), self.answerable, ~self.answerable])[
            : len(names) // 2
        ]
        values = members[:, None] * self.values

        def scores(weights: Floats) -> Values:
            sums = values @ weights
            totals = np.broadcast_to((members @ weights)[:, None], sums.shape)
            means = ratio(sums, totals, undefined=np.nan)
            return dict(zip(names, means.reshape(-1, weights.shape[1]), strict=True))

        return Scored(scores, len(self.answerable))

    @cached_property
    def scores(self) -> Scores:
        """Those of `scored`; a task that knows unanswerable questions has all of them, maybe None."""
        scores = {**dict.fromkeys(metric_names(self.unanswerable)), **super().scores}
        if self.unanswerable:
            scores["no_answer_auc"] = exact_roc_auc(
                ~self.answerable[:, None], similarity.of(self.answers, "null_score")[:, None]
            )
        return scores

    def after_fit(self) -> Self:
        """These candidates, at their temperature, with the null threshold of best F1 where none is set."""
        if not self.unanswerable or self.fitted["null_threshold"] is not None:
            return self
        best = [next(iter(a["n_best"]), {"answer": "", "score": a["null_score"]}) for a in self.answers]
        pairs = zip(similarity.of(self.answers, "null_score"), best, strict=True)
        odds = [log_odds(null, candidate["score"]) for null, candidate in pairs]
        texts = [candidate["answer"] for candidate in best]
        threshold = best_threshold(odds, texts, list(self._gold()), self.rule)
        none = {"answer": "", "start": 0, "end": 0}
        answers = DiskList(
            {**answer, **({**none, "score": answer["null_score"]} if odd > threshold else candidate)}
            for answer, odd, candidate in zip(self.answers, odds, best, strict=True)
        )
        return type(self)(answers, self.rows, True, {**self.fitted, "null_threshold": threshold})

    def details(self) -> Json:
        """The rule, threshold and temperature, and how far the answers' scores are from their chance of being
        right.

        decisions: questions with an answer and a candidate. errors: those whose best candidate is not an
        exact match.
        """
        pairs = zip(self.answers, self._gold(), strict=True)
        right = [
            self.rule.scores(a["n_best"][0]["answer"], gold)[0] for a, gold in pairs if gold and a["n_best"]
        ]
        calibrated = {
            **self.fitted,
            "decisions": len(right),
            "errors": right.count(0.0),
            "ece": calibration_error([self.decisions()["after"]]),
        }
        return {"rule": self.rule.name, "calibration": calibrated}

    def decisions(self) -> Decisions:
        """The answer to each question, by exact match."""
        return {"after": (similarity.of(self.answers, "score"), self.values[0])}

    def pairs(self) -> tuple[list[str], list[list[str]]]:
        """Predicted texts, and lists of gold texts."""
        return [answer["answer"] for answer in self.answers], list(self._gold())

    def _gold(self) -> Iterator[list[str]]:
        return (answers["text"] for answers in column_values(self.rows, "answers"))


def best_threshold(
    null_odds: ArrayLike, best_texts: Sequence[str], gold: Sequence[Sequence[str]], rule: Rule
) -> float:
    """The threshold of best F1 over questions, where an answer is "" if its null odds are above the
    threshold.

    Candidates lie midway between neighbouring odds that are `calibration.apart`, and 1 beyond the lowest and
    the highest. Of equally good ones the middle one is taken, the lower of two.

    null_odds: (questions,) score of no answer minus score of the best span, in nats. best_texts: (questions,)
    texts.
    gold: (questions, answers) texts; a question without any is unanswerable.
    """
    odds = floats(null_odds)
    gains = [
        rule.scores(text, answers)[1] - rule.scores("", answers)[1]
        for text, answers in zip(best_texts, gold, strict=True)
    ]
    distinct, place = np.unique(odds, return_inverse=True)
    first = calibration.apart(distinct)
    group = (np.cumsum(first) - 1)[place]
    # F1 over that of answering nothing, when 0, 1, 2 … of these groups of odds are at or below the threshold.
    sums = np.concatenate([[0.0], np.cumsum(np.bincount(group, weights=gains))])
    between = ((distinct[:-1] + distinct[1:]) / 2)[first[1:]]
    candidates = np.concatenate([[distinct[0] - 1], between, [distinct[-1] + 1]])
    best = candidates[sums >= sums.max() - _TIE]
    return float(best[(len(best) - 1) // 2])


def _f1(tokens: list[str], wanted: list[str]) -> float:
    """F1 of two bags of tokens, of which one at most is empty."""
    shared = sum((Counter(tokens) & Counter(wanted)).values())
    return 2 * shared / (len(tokens) + len(wanted))


def best_temperature(
    answers: Callable[[float], Iterable[tuple[int, str, float, float]]],
    gold: Sequence[Sequence[str]],
    rule: Rule,
) -> float:
    """The temperature at which scores fit whether their answers are exact matches; see `calibration`.

    answers: temperature -> question, best answer, its score, and that of everything else. gold: (questions,
    answers).
    """

    @cache  # few of a question's candidates become the best at any temperature
    def matches(question: int, answer: str) -> float:
        return rule.scores(answer, gold[question])[0]

    def decide(temperature: float) -> calibration.BinaryDecisions:
        judged = [(*scores, matches(question, answer)) for question, answer, *scores in answers(temperature)]
        table = floats(judged).reshape(-1, 3).T
        score = table[0]
        right = table[2]
        gold_first = np.where(right, table[:2], table[1::-1])
        return calibration.BinaryDecisions(score, right > 0, *gold_first)

    return calibration.best_temperature(decide)
