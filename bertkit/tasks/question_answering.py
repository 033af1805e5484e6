"""Extractive question answering: the span of a context that answers a question, or that there is none."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, final

from pydantic import Field

from bertkit.data.schema import Answer, Column, Finding, Schema
from bertkit.data.squad import check_answers
from bertkit.data.table import Problems, Table, required, stored
from bertkit.encoding.pieces import Pieces, tokenize
from bertkit.encoding.questions import encode_pairs
from bertkit.errors import DataError, Problem
from bertkit.evaluation import calibration, squad
from bertkit.models.encoder import load_model
from bertkit.models.heads.spans import (
    Candidates,
    WindowSpans,
    best_of_windows,
    best_spans,
    log_odds,
    masked_logits,
    window_spans,
)
from bertkit.tasks.base import Batch, Predict, Task, TaskOptions, predicted
from bertkit.tasks.checks import require_finite

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from bertkit.encoding.padding import Arrays
    from bertkit.models.encoder import Encoder


class QuestionAnsweringOptions(TaskOptions):
    """What a recipe may say under `task:`. null means: found from the data, or fitted on validation."""

    metrics: ClassVar[frozenset[str]] = frozenset([*squad.metric_names(True), "no_answer_auc"])
    name: Literal["question-answering"]
    stride: int = Field(128, ge=0, description="Word pieces of the context that neighbouring windows share.")
    max_answer_length: int = Field(30, ge=1, description="Word pieces of the longest answer.")
    n_best: int = Field(20, ge=1, description="Candidates that are kept of each window and ranked.")
    unanswerable: bool | None = Field(None, description="May there be no answer? null: if train has such questions.")
    null_threshold: float | None = Field(
        None, description="No answer from these log odds of none against the best on. null: fitted on validation."
    )
    temperature: Annotated[float, Field(ge=1e-3)] | None = Field(
        None, description="Divides the scores of candidates. null: fitted on validation."
    )


@final
@dataclass(frozen=True)
class QuestionAnswering(Task[QuestionAnsweringOptions]):
    """The span of best start and end logit over all windows of the context (Devlin et al. 2019, sections 4.2 and 4.3).

    The model is transformers' own `…ForQuestionAnswering`. A span counts in the window in which its first piece
    has most context. Windows without the answer, and questions without one, are trained to point at the first
    special token, whose logits score `no answer`; the score of a context is the least of its windows'.
    """

    Options: ClassVar[type[TaskOptions]] = QuestionAnsweringOptions
    name: ClassVar[str] = "question-answering"
    schema: ClassVar[Schema] = Schema(
        columns={
            "question": Column("text", "the question"),
            "context": Column("text", "the text that it is asked of"),
            "answers": Column("answers", "its answers, which stand in the context; none, where there is none"),
            "id": Column("name", "a name for the question"),
        },
        inputs=(frozenset({"question", "context"}),),
        targets=("answers",),
        group_columns={"context": "splits may share texts, of which other questions are asked"},
    )
    chunk_size: ClassVar[int] = 2048  # a context may have many windows; 1,024 left 2.6 % of padding
    reduce_inputs: ClassVar[Sequence[str]] = ("place", "low", "count", "first", "end")

    # --- before there is a model

    @classmethod
    def refine(cls, options: QuestionAnsweringOptions, table: Table, split: str) -> tuple[Table, list[Finding]]:
        """Answers as {text, answer_start}, each where it stands in its context."""
        if "answers" not in table.values:
            return table, []
        names, problems, moved = table.values.get("id", [None] * len(table)), Problems(), 0

        def located() -> Iterator[dict[str, Any] | None]:
            nonlocal moved
            read = zip(table.values["context"], table.values["answers"], names, strict=True)
            for row, (context, given, own) in enumerate(read):
                if given is None:
                    yield None
                    continue
                name = "" if own is None else f", id {own}"
                try:
                    found = check_answers(context, given)
                except ValueError as error:
                    problems.add(table.origin[row] + name, f"`answers` holds {error}")
                    continue
                for what in found.problems:
                    problems.add(table.origin[row] + name, what)
                moved += found.moved
                starts = [start for start, _ in found.spans]
                yield {"text": [context[a:b] for a, b in found.spans], "answer_start": starts}

        answers = stored(located(), "answers")
        problems.raise_if_any()
        return Table({**table.values, "answers": answers}, table.origin), list(_noticed(split, names, answers, moved))

    @classmethod
    def settle(
        cls, options: QuestionAnsweringOptions, rows: Dataset, class_names: Sequence[str]
    ) -> QuestionAnsweringOptions:
        """Settle from the training rows whether there may be no answer. Raises DataError where there is never one."""
        answered = [bool(answers["text"]) for answers in rows["answers"]]
        if not any(answered):
            raise DataError(Problem("data", "no question of train has an answer: there is nothing to learn"))
        if options.unanswerable is False and not all(answered):
            what = f"task.unanswerable is false, but {answered.count(False):,} questions of train have no answer"
            raise DataError(Problem("task.unanswerable", what, "Leave it out, or remove these rows."))
        settled = {"unanswerable": not all(answered) if options.unanswerable is None else options.unanswerable}
        return options.model_copy(update=settled)

    @classmethod
    def from_config(
        cls, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[QuestionAnsweringOptions, int | None]:
        """Defaults for a foreign model: there is always an answer, of 30 pieces at most; no temperature."""
        options = QuestionAnsweringOptions(name="question-answering", unanswerable=False)
        return options, 384

    @property
    def metrics(self) -> Sequence[str]:
        names = [*squad.metric_names(self.unanswerable), *(["no_answer_auc"] if self.unanswerable else [])]
        return ["f1", *(name for name in names if name != "f1")]

    @property
    def unanswerable(self) -> bool:
        """May there be no answer? Settled before training."""
        return bool(self.options.unanswerable)

    def describe(self) -> str:
        """Such as `answers of at most 30 word pieces, or none`."""
        most = f"answers of at most {self.options.max_answer_length} word pieces"
        return f"{most}, or none" if self.unanswerable else most

    # --- text -> features -> model

    def encode(self, rows: Dataset) -> Dataset:
        from datasets import Dataset

        contexts = tokenize(self.tokenizer, rows["context"][:])
        columns = encode_pairs(
            self.tokenizer, rows["question"][:], contexts, max_length=self.max_length, stride=self.options.stride
        )
        if "answers" in rows.column_names:
            golden = [_gold_pieces(*pair) for pair in zip(rows["answers"][:], contexts, strict=True)]
            windows = zip(*(columns[name] for name in ("row", "low", "count", "place")), strict=True)
            columns["labels"] = [_inside(golden[row], *window) for row, *window in windows]
        return Dataset.from_dict(columns)

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        from transformers import AutoModelForQuestionAnswering

        return load_model(encoder, AutoModelForQuestionAnswering, {"num_labels": 2}, new_head=new_head)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The mean of the cross-entropies of start and end, each `(windows, pieces)`, over where an answer can be."""
        from torch.nn import functional as F

        logits = masked_logits(outputs.start_logits, outputs.end_logits, batch)
        parts = zip(logits, batch["labels"].unbind(1), strict=True)
        one, other = (F.cross_entropy(logits, gold, reduction="sum") for logits, gold in parts)
        return (one + other) / 2

    def count(self, batch: Batch) -> float:
        """Windows."""
        return float(len(batch["labels"]))

    # --- model -> answers

    def reduce(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`scores`, `spans` and `null` of the best spans of each window; see `best_spans`."""
        logits = masked_logits(outputs.start_logits, outputs.end_logits, batch)
        most, longest = self.options.n_best, self.options.max_answer_length
        return best_spans(*logits, batch, n_best=most, max_answer_length=longest)

    def items(self, arrays: Arrays) -> Sequence[WindowSpans]:
        return window_spans(arrays)

    def decode(self, items: Sequence[WindowSpans], features: Dataset, rows: Dataset) -> list[Answer]:
        """One answer per row: `answer`, `start`, `end`, `score`; `n_best`, the same four of each candidate, best first,
        equal texts once with their scores summed; `null_score`, of there being none; and `truncated`, never true.

        start, end: characters of the row's context. No answer is "" from 0 to 0. Raises ModelError when the model's
        outputs are not finite.
        """
        found = self._candidates(items, features, rows)
        return [self._answer(each, context) for each, context in zip(found, rows["context"][:], strict=True)]

    def _candidates(self, items: Sequence[WindowSpans], features: Dataset, rows: Dataset) -> list[Candidates]:
        """The best spans of each row's context. Raises ModelError where the model's outputs are not finite."""
        import numpy as np

        texts = rows["context"][:]
        windows: list[list[WindowSpans]] = [[] for _ in texts]
        for row, window in zip(features["row"][:], items, strict=True):
            windows[row].append(window)
        require_finite(all(math.isfinite(w.null) and np.isfinite(w.scores).all() for w in each) for each in windows)
        contexts = zip(windows, tokenize(self.tokenizer, texts), texts, strict=True)
        n_best = self.options.n_best
        return [best_of_windows(each, t.starts, t.ends, text, n_best) for each, t, text in contexts]

    def _answer(self, found: Candidates, context: str) -> Answer:
        chances, null = found.probabilities(self.options.temperature or 1.0, unanswerable=self.unanswerable)
        merged: dict[str, dict[str, Any]] = {}
        for (start, end), chance in zip(found.spans, chances, strict=True):
            text = context[start:end]
            first = merged.setdefault(text, {"answer": text, "start": start, "end": end, "score": 0.0})
            first["score"] = min(first["score"] + chance, 1.0)  # all candidates may be one text
        ranked = sorted(merged.values(), key=lambda each: -each["score"])
        limit = self.options.null_threshold or 0.0
        none = {"answer": "", "start": 0, "end": 0, "score": null}
        silent = not ranked or (self.unanswerable and log_odds(null, ranked[0]["score"]) > limit)
        return {**(none if silent else ranked[0]), "n_best": ranked, "null_score": null, "truncated": False}

    def fit(self, rows: Dataset, predict: Predict) -> QuestionAnswering:
        """The temperature that makes the best answers' scores their chance of being right, then the null threshold of
        best F1; what the recipe fixed stays."""
        found, contexts, gold = list[Candidates](), rows["context"][:], [each["text"] for each in rows["answers"]]
        for chunk in predicted(self, rows, predict):
            found += self._candidates(*chunk)
        task: QuestionAnswering = self
        if self.options.temperature is None:
            task = task._with(temperature=task._fitted_temperature(found, contexts, gold))
        if self.unanswerable and self.options.null_threshold is None:
            eager = task._with(null_threshold=math.inf)
            answers = [eager._answer(each, context) for each, context in zip(found, contexts, strict=True)]
            odds = [log_odds(a["null_score"], a["score"]) for a in answers]
            task = task._with(null_threshold=squad.best_threshold(odds, [a["answer"] for a in answers], gold))
        return task

    def _with(self, **settled: float) -> QuestionAnswering:
        return replace(self, options=self.options.model_copy(update=settled))

    def _fitted_temperature(
        self, found: Sequence[Candidates], contexts: Sequence[str], gold: Sequence[Sequence[str]]
    ) -> float:
        eager = self._with(null_threshold=math.inf)
        rows = [row for row, each in enumerate(found) if gold[row] and each.spans]

        @cache  # of a row's candidates few become the best at any temperature
        def right(row: int, answer: str) -> float:
            return squad.question_scores(answer, gold[row])[0]

        def loss(temperature: float) -> float:
            task, total = eager._with(temperature=temperature), 0.0
            for row in rows:
                answer = task._answer(found[row], contexts[row])
                chance = min(max(answer["score"], 1e-9), 1 - 1e-9)
                total -= math.log(chance if right(row, answer["answer"]) else 1 - chance)
            return total

        return calibration.best_temperature(loss)

    def grade(self, answers: Sequence[Answer], rows: Dataset) -> squad.GradedRows:
        required(rows, "answers")
        fitted = {"temperature": self.options.temperature or 1.0, "null_threshold": self.options.null_threshold}
        return squad.GradedRows(answers, rows, self.unanswerable, fitted)


def _noticed(split: str, names: Sequence[Any], located: Sequence[Any], moved: int) -> Iterator[Finding]:
    texts = (len(answers["text"]) for answers in located if answers is not None)
    given = Counter(count > 0 for count in texts)
    if given:
        what = f"{split}: {given[False]:,} of {given.total():,} questions have no answer in their context"
        yield Finding("note", what)
    if moved:
        what = f"{split}: {moved:,} answers do not stand where `answer_start` says; found elsewhere in their context"
        yield Finding("warn", what)
    known = array("q", (hash(name) for name in names if name is not None))
    if len(set(known)) < len(known):
        yield Finding("warn", f"{split}: {len(known) - len(set(known)):,} ids are there more than once")


def _gold_pieces(answers: Mapping[str, Any], pieces: Pieces) -> tuple[int, int] | None:
    """The first and last word piece of the first answer; None where there is none."""
    if not answers["text"]:
        return None
    start = answers["answer_start"][0]
    return pieces.cover(start, start + len(answers["text"][0]))


def _inside(gold: tuple[int, int] | None, low: int, count: int, place: int) -> list[int]:
    """Where the answer stands in a window; twice 0, the first special token, where it does not."""
    if gold is None or gold[0] < low or gold[1] >= low + count:
        return [0, 0]
    return [gold[0] - low + place, gold[1] - low + place]
