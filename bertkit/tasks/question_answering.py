"""Extractive question answering: the span of a context that answers a question, or that there is none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

import numpy as np
from pydantic import Field

from bertkit.data.disk_list import DiskList
from bertkit.data.on_disk import first_features, numbers
from bertkit.data.schema import Answer, Column, Finding, Schema, weighed
from bertkit.data.squad import locate_answers
from bertkit.data.table import Checked, Table, required
from bertkit.encoding.padding import Arrays
from bertkit.encoding.pieces import tokenize
from bertkit.encoding.question_windows import Windows, encode_pairs, label_windows
from bertkit.errors import DataError, require_finite
from bertkit.evaluation import squad_metrics
from bertkit.models.encoder import Encoder, load_model
from bertkit.models.heads.spans import (
    Candidates,
    WindowSpans,
    best_of_windows,
    best_spans,
    masked_logits,
    merge_texts,
    window_spans,
)
from bertkit.tasks.base import (
    Baselines,
    Batch,
    HeldOut,
    OptionValues,
    Predict,
    Reduced,
    Restored,
    Task,
    TaskOptions,
    predicted,
)
from bertkit.tasks.fields import READ, SPAN, Decision, Key, Usage, form
from bertkit.text import counted, part_of, unique

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel

_ANSWER = (Key("answer", "span", str), *SPAN)
CANDIDATE = form("Span", "start and end are characters of the context, end exclusive.", *_ANSWER)
NULL_SCORE = Key("null_score", "score", float, "probability that the context has no answer")
BEST = "The best answer; an empty text where the context has none."
N_BEST = Key("n_best", "set", [CANDIDATE])
BEST_SPAN = form("BestSpan", BEST, *_ANSWER, N_BEST, NULL_SCORE, *READ, line="{answer}  {score}")


class QuestionAnsweringOptions(TaskOptions):
    """What a recipe may say under `task:`. null means: inferred from the data, or fitted on validation."""

    metrics = frozenset([*squad_metrics.metric_names(True), "no_answer_auc"])
    unsmoothed = "question-answering", "its targets are positions, not labels"
    name: Literal["question-answering"]
    stride: int = Field(128, ge=0)
    """Tokens of the context that adjacent windows share."""
    max_answer_length: int = Field(30, ge=1, le=1000)
    """Tokens of the longest answer."""
    n_best: int = Field(20, ge=1, le=200)
    """Candidates per window that are ranked."""
    unanswerable: bool | None = None
    """May there be no answer? null: if train has such questions."""
    null_threshold: float | None = None
    """Log odds of no answer versus the best span, above which there is none. null: fitted on validation."""
    temperature: Annotated[float, Field(ge=1e-3)] | None = None
    """Divides the scores of candidates. null: fitted on validation."""


@final
class QuestionAnswering(Task[QuestionAnsweringOptions]):
    """The span of best start and end logit over all windows of the context (Devlin et al. 2019, sections 4.2
    and 4.3).

    The model is transformers' own `…ForQuestionAnswering`. A span counts in the window in which its first
    piece has most context. Windows without the answer, and questions without one, are trained to point at the
    first special token, whose logits score `no answer`; the score of a context is the least of its windows'.
    """

    Options = QuestionAnsweringOptions
    name = "question-answering"
    schema = Schema(
        columns={
            "question": Column("text", "the question"),
            "context": Column("text", "the text that the question is about", located=True),
            "answers": Column(
                "answers",
                "its answers, which occur in the context; empty where there is none",
                answered="null_score",
            ),
            "answer_start": Column(
                "starts", "where an answer starts in the context, if `answers` do not say it"
            ),
            "id": Column("name", "a name for the question"),
        },
        inputs=(frozenset({"question", "context"}),),
        targets=("answers",),
        group_columns={"context": "splits may share texts, of which other questions are asked"},
    )
    forms = (BEST_SPAN,)
    shares_encoder = True
    pipeline = name
    usage = Usage(
        'question="…", context="…"',
        """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

model = AutoModelForQuestionAnswering.from_pretrained("PATH_OR_HUB_ID")
tokenizer = AutoTokenizer.from_pretrained("PATH_OR_HUB_ID")""",
        "the best span of a text of any length, calibrated, with the fitted threshold of no answer",
        name,
    )
    chunk_size = 2048  # a context may have many windows; 1,024 left 2.6 % of padding
    reduce_inputs = ("place", "low", "count", "first", "end")

    # --- from a recipe, or from a model not trained by bertkit

    @classmethod
    def validate_rows(cls, options: QuestionAnsweringOptions, table: Table, split: str) -> Checked:
        """Answers as {text, answer_start}, each where it occurs in its context."""
        return locate_answers(table, split) if "answers" in table.values else (table, [])

    @classmethod
    def infer_options(
        cls, options: QuestionAnsweringOptions, rows: Dataset, class_names: Sequence[str]
    ) -> OptionValues:
        """Whether there may be no answer. Raises DataError where there is never one, or the null threshold
        has no effect.
        """
        answered = [bool(answers["text"]) for answers in rows["answers"]]
        if not any(answered):
            raise DataError(
                "data", "no question of train has an answer", "Add answers, or check data.columns."
            )
        if options.unanswerable is False and not all(answered):
            without = counted(answered.count(False), "question")
            raise DataError(
                "task.unanswerable",
                f"task.unanswerable is false, but train has {without} without an answer",
                "Leave it out, or remove these rows.",
            )
        unanswerable = not all(answered) if options.unanswerable is None else options.unanswerable
        if options.null_threshold is not None and not unanswerable:
            raise DataError(
                "task.null_threshold", "has no effect: each question of train has an answer", "Leave it out."
            )
        return {"unanswerable": unanswerable}

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: Any) -> Restored:
        """Defaults: always an answer, at most 30 tokens, temperature 1."""
        return {"unanswerable": False}, 384

    @property
    def metrics(self) -> Sequence[str]:
        more = ["no_answer_auc"] if self.unanswerable else []
        return unique(["f1", *squad_metrics.metric_names(self.unanswerable), *more])

    @property
    def decision(self) -> Decision:
        return Decision(threshold="null_threshold" if self.unanswerable else "")

    @property
    def unanswerable(self) -> bool:
        """May there be no answer? Settled before training."""
        return bool(self.options.unanswerable)

    def describe(self) -> str:
        """The task in a few words, such as `answers of at most 30 tokens, or none`."""
        most = f"answers of at most {self.options.max_answer_length} tokens"
        return f"{most}, or none" if self.unanswerable else most

    # --- rows -> features -> model

    def encode(self, rows: Dataset) -> Windows:
        contexts = tokenize(self.tokenizer, rows["context"][:])
        limits = {"max_length": self.max_length, "stride": self.options.stride}
        columns = encode_pairs(self.tokenizer, rows["question"][:], contexts, **limits)
        if "answers" in rows.column_names:
            answers = rows["answers"][:]
            columns["labels"] = label_windows(columns, answers, contexts)
            pairs = zip(columns["row"], columns["labels"], strict=True)
            cut = {row for row, answer in enumerate(answers) if answer["text"]}
            cut -= {row for row, label in pairs if any(label)}
            columns["cut"] = [row in cut for row in columns["row"]]
        return Windows(columns, contexts)

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        """Lengths, and how many answers are longer than any prediction."""
        yield from super().check(features, split)
        if "labels" not in features.column_names:
            return
        cut = numbers(features, "cut")[first_features(features)]
        if count := int(cut.sum()):
            part = part_of(count, len(cut), "question")
            label = "labelled as unanswerable" if split == "train" else "never answered whole"
            what = f"{split}: {part} {label}, as no window holds the whole answer"
            yield weighed(count, len(cut), what, "Raise task.stride or model.max_length.")
        most = self.options.max_answer_length
        first, last = np.array(features["labels"][:]).T
        if count := int((last - first >= most).sum()):
            part = part_of(count, len(features), "window")
            what = f"{split}: {part} labelled with an answer longer than {most} tokens, never predicted whole"
            yield weighed(count, len(features), what, "Raise task.max_answer_length.")

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        from transformers import AutoModelForQuestionAnswering

        return load_model(encoder, AutoModelForQuestionAnswering, {"num_labels": 2}, new_head=new_head)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The mean of the cross-entropies of start and end, each `(windows, tokens)`, over where an answer
        can be.
        """
        from torch.nn import functional as F

        outputs, labels = self.loss_inputs(outputs, batch)
        pairs = zip((outputs.start_logits, outputs.end_logits), labels.unbind(1), strict=True)
        start, end = (F.cross_entropy(*pair, reduction="sum") for pair in pairs)
        return (start + end) / 2

    def loss_inputs(self, outputs: Any, batch: Batch) -> tuple[Any, Tensor]:
        """`start_logits`, `end_logits`, `(windows, tokens)`, low where no answer is; their tokens `(windows,
        2)`.
        """
        starts, ends = masked_logits(outputs.start_logits, outputs.end_logits, batch)
        return replace(outputs, start_logits=starts, end_logits=ends), batch["labels"]

    def count(self, batch: Batch) -> float:
        """Windows."""
        return float(len(batch["labels"]))

    # --- outputs -> answers -> scores

    def reduce(self, outputs: Any, batch: Batch) -> Reduced:
        """`scores`, `spans` and `null` of the best spans of each window; see `best_spans`."""
        logits = masked_logits(outputs.start_logits, outputs.end_logits, batch)
        longest = self.options.max_answer_length
        return best_spans(*logits, batch, n_best=self.options.n_best, max_answer_length=longest)

    def items(self, arrays: Arrays) -> Sequence[WindowSpans]:
        return window_spans(arrays)

    def decode(self, items: Sequence[WindowSpans], features: Dataset, rows: Dataset) -> list[Answer]:
        """One answer per row: `answer`, `start`, `end`, `score`; `n_best`, the same four of each candidate,
        best first, equal texts once with their scores summed; `null_score`, of there being none; and
        `truncated`, never true.

        start, end: characters of the row's context. No answer is "" from 0 to 0. Raises ModelError when the
        model's outputs are not finite.
        """
        limit = self.options.null_threshold or 0.0
        temperature = self.options.temperature or 1.0
        pairs = zip(self._candidates(items, features, rows), rows["context"][:], strict=True)
        return [self._answer(candidates, context, temperature, limit) for candidates, context in pairs]

    def _candidates(self, items: Sequence[WindowSpans], features: Dataset, rows: Dataset) -> list[Candidates]:
        """The best spans of each row's context. Raises ModelError where the model's outputs are not
        finite.
        """
        texts = rows["context"][:]
        by_row: list[list[WindowSpans]] = [[] for _ in texts]
        for row, window in zip(features["row"][:], items, strict=True):
            by_row[row].append(window)
        require_finite(all(map(_is_finite, windows)) for windows in by_row)
        contexts = zip(by_row, features.contexts, texts, strict=True)
        n_best = self.options.n_best
        return [best_of_windows(windows, t.starts, t.ends, text, n_best) for windows, t, text in contexts]

    def _answer(
        self, candidates: Candidates, context: str, temperature: float, null_threshold: float
    ) -> Answer:
        probabilities, null = candidates.probabilities(temperature, unanswerable=self.unanswerable)
        ranked = merge_texts(candidates.spans, probabilities, context)
        none = {"answer": "", "start": 0, "end": 0, "score": null}
        silent = not ranked or (
            self.unanswerable and squad_metrics.log_odds(null, ranked[0]["score"]) > null_threshold
        )
        return {**(none if silent else ranked[0]), "n_best": ranked, "null_score": null, "truncated": False}

    def fit(self, rows: Dataset, predict: Predict) -> OptionValues:
        """The temperature that makes the best answers' scores their chance of being right, then the null
        threshold of best F1; what the recipe fixed stays.
        """
        candidates = list[Candidates]()
        contexts = rows["context"][:]
        gold = [target["text"] for target in rows["answers"]]
        for chunk in predicted(self, rows, predict):
            candidates += self._candidates(*chunk)
        answered = [row for row, texts in enumerate(gold) if texts and candidates[row].spans]

        def best(row: int, temperature: float) -> Answer:
            return self._answer(candidates[row], contexts[row], temperature, math.inf)

        def judged(temperature: float) -> Iterator[tuple[int, str, float, float]]:
            for row in answered:
                answer = best(row, temperature)
                others = math.fsum(other["score"] for other in answer["n_best"][1:])
                yield row, answer["answer"], answer["score"], others + answer["null_score"]

        rule = squad_metrics.rule_of(contexts)
        temperature = self.options.temperature or squad_metrics.best_temperature(judged, gold, rule)
        answers = DiskList(best(row, temperature) for row in range(len(candidates)))
        unset = {"temperature": temperature, "null_threshold": self.options.null_threshold}
        graded = squad_metrics.GradedAnswers(answers, rows, self.unanswerable, unset)
        return dict(graded.after_fit().fitted)

    def grade(self, answers: Sequence[Answer], rows: Dataset) -> squad_metrics.GradedAnswers:
        required(rows, "answers")
        fitted = {
            "temperature": self.options.temperature or 1.0,
            "null_threshold": self.options.null_threshold,
        }
        return squad_metrics.GradedAnswers(answers, rows, self.unanswerable, fitted)

    def baselines(self, train: Dataset, rows: Dataset, held_out: HeldOut = ()) -> Baselines:
        """Never an answer, where some questions have none."""
        if all(answers["text"] for answers in rows["answers"]):
            return {}
        return {"no answer": self.grade([{"answer": "", "null_score": 1.0}] * len(rows), rows).scores}


def _is_finite(window: WindowSpans) -> bool:
    return math.isfinite(window.null) and bool(np.isfinite(window.scores).all())
