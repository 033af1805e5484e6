"""Extractive question answering: the span of a context that answers a question, or that there is none."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, final

from pydantic import Field

from bertkit.data.schema import Answer, Column, Finding, Schema
from bertkit.data.squad import check_answers
from bertkit.data.table import Problems, Table, stored
from bertkit.encoding.pieces import Pieces, tokenize
from bertkit.encoding.questions import encode_pairs
from bertkit.errors import DataError, ModelError, Problem
from bertkit.evaluation import calibration, squad
from bertkit.evaluation.hf_metrics import compute_user_metric
from bertkit.models.encoder import load_model
from bertkit.tasks.base import Batch, Predict, Task, TaskOptions
from bertkit.tasks.labels import length_findings

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from bertkit.encoding.padding import Arrays
    from bertkit.models.encoder import Encoder

NOWHERE = -1e4  # the logit of a position where no answer can be; finite, for bf16 and smoothing


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


class Kept(NamedTuple):
    """The best spans of one window, and its score for `no answer here`."""

    scores: np.ndarray  # (spans,) fp32, best first
    first: np.ndarray  # (spans,): pieces of the context
    last: np.ndarray  # (spans,)
    null: float


class Candidates(NamedTuple):
    """The best spans of a whole context, best first."""

    scores: list[float]
    spans: list[tuple[int, int]]  # characters of the context, end exclusive
    null: float


@final
@dataclass(frozen=True)
class QuestionAnswering(Task):
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

    options: QuestionAnsweringOptions
    tokenizer: PreTrainedTokenizerBase
    max_length: int

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
    def prepare(
        cls,
        options: QuestionAnsweringOptions,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        rows: Dataset,
        class_names: Sequence[str],
    ) -> Self:
        """Settle from the training rows whether there may be no answer. Raises DataError where there is never one."""
        answered = [bool(answers["text"]) for answers in rows["answers"]]
        if not any(answered):
            raise DataError(Problem("data", "no question of train has an answer: there is nothing to learn"))
        if options.unanswerable is False and not all(answered):
            what = f"task.unanswerable is false, but {answered.count(False):,} questions of train have no answer"
            raise DataError(Problem("task.unanswerable", what, "Leave it out, or remove these rows."))
        settled = {"unanswerable": not all(answered) if options.unanswerable is None else options.unanswerable}
        return cls(options.model_copy(update=settled), tokenizer, max_length)

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Self:
        """Defaults for a foreign model: there is always an answer, of 30 pieces at most; no temperature."""
        options = QuestionAnsweringOptions(name="question-answering", unanswerable=False)
        return cls(options, tokenizer, min(max_length, 384))

    @property
    def headline(self) -> str:
        return "f1"

    @property
    def emits(self) -> Sequence[str]:
        return [*squad.metric_names(self.unanswerable), *(["no_answer_auc"] if self.unanswerable else [])]

    @property
    def unanswerable(self) -> bool:
        """May there be no answer? Settled since `prepare`."""
        return bool(self.options.unanswerable)

    def describe(self) -> str:
        """Such as `answers of at most 30 word pieces, or none`."""
        most = f"answers of at most {self.options.max_answer_length} word pieces"
        return f"{most}, or none" if self.unanswerable else most

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        yield from length_findings(features, split, self.max_length, "window")

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

        logits = _masked(outputs.start_logits, outputs.end_logits, batch)
        parts = zip(logits, batch["labels"].unbind(1), strict=True)
        one, other = (F.cross_entropy(logits, gold, reduction="sum") for logits, gold in parts)
        return (one + other) / 2

    def count(self, batch: Batch) -> float:
        """Windows."""
        return float(len(batch["labels"]))

    # --- teacher -> student

    def soft(self, outputs: Any, batch: Batch) -> Tensor:
        """Start and end logits of each piece, `(windows, pieces * 2)`."""
        import torch

        return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1).float().flatten(1)

    def soft_loss(self, outputs: Any, batch: Batch, temperature: float) -> Tensor:
        """The mean of the KL of start and of end, over where an answer can be."""
        from bertkit.models.heads import soft_losses

        soft = batch["soft"].reshape(len(batch["soft"]), -1, 2)
        starts, ends = soft[:, : outputs.start_logits.shape[1]].unbind(2)
        ours = _masked(outputs.start_logits, outputs.end_logits, batch)
        one, other = (
            soft_losses.kl(*pair, temperature) for pair in zip(ours, _masked(starts, ends, batch), strict=True)
        )
        return (one + other).sum() / 2

    # --- model -> answers

    def reduce(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """The best spans of each window: `scores`, best first and -inf behind the last, `(windows, spans)`; `spans`,
        `(windows, spans, 2)`, the first and the last piece of the context; and `null`, `(windows,)`, its score for
        none. Exact; of equal spans the first in the text.
        """
        import torch
        from torch.nn import functional as F

        starts, ends = _masked(outputs.start_logits, outputs.end_logits, batch)
        pieces = torch.arange(starts.shape[1], device=starts.device) - (batch["place"] - batch["low"])[:, None]
        own = (pieces >= batch["first"][:, None]) & (pieces < batch["end"][:, None])
        inside = (pieces >= batch["low"][:, None]) & (pieces < (batch["low"] + batch["count"])[:, None])
        null, most = starts[:, 0] + ends[:, 0], self.options.n_best
        width = self.options.max_answer_length
        # Wide enough for `most` starts in windows of any width, which an exported graph takes for granted.
        starts = F.pad(starts.masked_fill(~own, -torch.inf), (0, most), value=-torch.inf)
        ends = F.pad(ends.masked_fill(~inside, -torch.inf), (0, most + width - 1), value=-torch.inf)
        # The n best spans begin at the n starts that are best with their best end. Sorts are stable: with topk, which
        # of equal spans (bf16 has many) are taken would depend on the padding.
        # In two dimensions, since torch.export takes the size that max_pool1d is given for fixed.
        best = starts + F.max_pool2d(ends[:, None], (1, width), 1)[:, 0]
        few = best.sort(dim=1, descending=True, stable=True).indices[:, :most].sort(dim=1).values
        after = few[..., None] + torch.arange(width, device=few.device)
        ends = ends.gather(1, after.flatten(1)).reshape(after.shape)
        spans = (starts.gather(1, few)[..., None] + ends).flatten(1).sort(dim=1, descending=True, stable=True)
        scores, at = spans.values[:, :most], spans.indices[:, :most]
        first = few.gather(1, at // width) - (batch["place"] - batch["low"])[:, None]
        return {"scores": scores, "spans": torch.stack([first, first + at % width], dim=-1), "null": null}

    def kept(self, arrays: Arrays) -> Sequence[Kept]:
        real = (arrays["scores"] != -math.inf).sum(axis=1).tolist()
        table = zip(arrays["scores"], arrays["spans"], arrays["null"].tolist(), real, strict=True)
        return [Kept(scores[:n], spans[:n, 0], spans[:n, 1], null) for scores, spans, null, n in table]

    def decode(self, kept: Sequence[Kept], features: Dataset, rows: Dataset) -> list[Answer]:
        """One answer per row: `answer`, `start`, `end`, `score`; `n_best`, the same four of each candidate, best first,
        equal texts once with their scores summed; `null_score`, of there being none; and `truncated`, never true.

        start, end: characters of the row's context. No answer is "" from 0 to 0. Raises ModelError when the model's
        outputs are not finite.
        """
        found = self._candidates(kept, features, rows)
        return [self._answer(each, context) for each, context in zip(found, rows["context"][:], strict=True)]

    def _candidates(self, kept: Sequence[Kept], features: Dataset, rows: Dataset) -> list[Candidates]:
        texts = rows["context"][:]
        windows: list[list[Kept]] = [[] for _ in texts]
        bad = set()
        for row, window in zip(features["row"][:], kept, strict=True):
            windows[row].append(window)
            if not (math.isfinite(window.null) and all(map(math.isfinite, window.scores.tolist()))):
                bad.add(row)
        if bad:
            what = f"its outputs are not finite for {len(bad)} of {len(texts)} rows"
            raise ModelError(Problem("the model", what, "Its weights are damaged, or its training diverged."))
        contexts = zip(windows, tokenize(self.tokenizer, texts), texts, strict=True)
        return [_ranked(*each, self.options.n_best) for each in contexts]

    def _answer(self, found: Candidates, context: str) -> Answer:
        chances, null = self._chances(found, self.options.temperature or 1.0)
        merged: dict[str, dict[str, Any]] = {}
        for (start, end), chance in zip(found.spans, chances, strict=True):
            text = context[start:end]
            first = merged.setdefault(text, {"answer": text, "start": start, "end": end, "score": 0.0})
            first["score"] = min(first["score"] + chance, 1.0)  # all candidates may be one text
        ranked = sorted(merged.values(), key=lambda each: -each["score"])
        none = {"answer": "", "start": 0, "end": 0, "score": null}
        silent = not ranked or (self.unanswerable and _log_odds(null, ranked[0]["score"]) > self._threshold)
        return {**(none if silent else ranked[0]), "n_best": ranked, "null_score": null, "truncated": False}

    @property
    def _threshold(self) -> float:
        return self.options.null_threshold or 0.0

    def _chances(self, found: Candidates, temperature: float) -> tuple[list[float], float]:
        """Softmax over the candidates, and over `none` where there may be none."""
        scores = [*found.scores, *([found.null] if self.unanswerable else [])]
        if not scores:
            return [], 0.0
        top = max(scores)
        gains = [math.exp((score - top) / temperature) for score in scores]
        total = math.fsum(gains)
        chances = [gain / total for gain in gains]
        return (chances[:-1], chances[-1]) if self.unanswerable else (chances, 0.0)

    def fit(self, rows: Dataset, predict: Predict) -> QuestionAnswering:
        """The temperature that makes the best answers' scores their chance of being right, then the null threshold of
        best F1; what the recipe fixed stays."""
        found, contexts, gold = list[Candidates](), rows["context"][:], [each["text"] for each in rows["answers"]]
        for chunk in self.chunks(rows, predict):
            found += self._candidates(*chunk)
        task: QuestionAnswering = self
        if self.options.temperature is None:
            task = task._with(temperature=task._fitted_temperature(found, contexts, gold))
        if self.unanswerable and self.options.null_threshold is None:
            eager = task._with(null_threshold=math.inf)
            answers = [eager._answer(each, context) for each, context in zip(found, contexts, strict=True)]
            odds = [_log_odds(a["null_score"], a["score"]) for a in answers]
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

    def score(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        return dict(self._graded(answers, rows).scores)

    def intervals(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, tuple[float, float] | None]:
        return dict(self._graded(answers, rows).intervals())

    def user_score(self, metric: Any, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        """A user's `evaluate.Metric` on texts, and lists of gold texts."""
        return compute_user_metric(metric, *self._graded(answers, rows).pairs())

    def details(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, Any]:
        """The threshold, the temperature, and how far the answers' scores are from their chance of being right."""
        return self._graded(answers, rows).details()

    def _graded(self, answers: Sequence[Answer], rows: Dataset) -> squad.GradedRows:
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


def _masked(start_logits: Tensor, end_logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Start and end logits `(windows, pieces)` fp32, where a context piece or the first special token stands."""
    import torch

    at = torch.arange(start_logits.shape[1], device=start_logits.device)
    place = batch["place"][:, None]
    there = ((at >= place) & (at < place + batch["count"][:, None])) | (at == 0)
    starts, ends = (logits.float().masked_fill(~there, NOWHERE) for logits in (start_logits, end_logits))
    return starts, ends


def _ranked(windows: Sequence[Kept], pieces: Pieces, context: str, most: int) -> Candidates:
    """The best spans over all windows of a context, without the blanks that some tokenizers count to their pieces."""
    import numpy as np

    scores, first, last = (np.concatenate(parts) for parts in zip(*(w[:3] for w in windows), strict=True))
    best = np.argsort(-scores, kind="stable")[:most]
    starts, ends = pieces.starts[first[best]].tolist(), pieces.ends[last[best]].tolist()
    kept, spans = [], []
    for score, start, end in zip(scores[best].tolist(), starts, ends, strict=True):
        text = context[start:end]
        bare = text.strip()
        if len(bare) < len(text):
            start += len(text) - len(text.lstrip())
            end = start + len(bare)
        if bare:
            kept.append(score)
            spans.append((start, end))
    return Candidates(kept, spans, min(window.null for window in windows))


def _log_odds(null: float, best: float) -> float:
    return math.log(max(null, 1e-300)) - math.log(max(best, 1e-300))
