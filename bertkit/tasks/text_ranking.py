"""Text ranking: how well a document answers a query, by a cross-encoder that reads both at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
from pydantic import Field

from bertkit.data.judged import check_labels, contradictions, query_findings
from bertkit.data.on_disk import first_features, numbers
from bertkit.data.rows import Columns
from bertkit.data.schema import Answer, Column, Schema
from bertkit.data.table import Checked, Table
from bertkit.encoding.padding import first_windows, greatest_of_windows
from bertkit.encoding.texts import encode_texts
from bertkit.errors import DataError, RowsError, require_finite
from bertkit.evaluation import baselines, reranking, similarity
from bertkit.models.encoder import Encoder, classifier, load_model
from bertkit.tasks import cross_encoder
from bertkit.tasks.base import (
    PAIRS,
    Baselines,
    Batch,
    HeldOut,
    OptionValues,
    Reduced,
    Restored,
    Task,
    TaskOptions,
)
from bertkit.tasks.class_labels import Range
from bertkit.tasks.fields import NUMBER, Usage

if TYPE_CHECKING:
    from datasets import Dataset
    from numpy.typing import ArrayLike
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel


class TextRankingOptions(TaskOptions):
    """What a recipe may say under `task:`. null means: inferred from train."""

    metrics = frozenset(reranking.metric_names(True, True) + reranking.metric_names(True, False))
    unsmoothed = PAIRS
    head_settings = "pooling", "dropout"
    name: Literal["text-ranking"]
    loss: Literal["binary", "mse", "listwise"] | None = None
    """null: binary where targets are 0 and 1, else mse. listwise: over the documents of a query."""
    activation: Literal["sigmoid", "identity"] | None = None
    """From logits to scores, here and in CrossEncoder. null: sigmoid; for listwise, identity."""
    score_range: Range = None
    """binary, mse: the targets that are learned as 0 and 1. null: minimum and maximum of train."""
    graded: bool | None = None
    """Are there targets other than 0 and 1? null: from train."""
    grouped: bool | None = None
    """Score the order of each query's documents? null: if a query of train has several."""
    overflow: Literal["truncate", "window", "error"] = "truncate"
    """Pairs longer than max_length: the longer text truncated and counted, windows, or refused."""
    stride: int = Field(32, ge=0)
    """Tokens that adjacent windows share."""


@final
class TextRanking(Task[TextRankingOptions]):
    """One score for a query and a document, read together (Nogueira & Cho 2019).

    The model is transformers' own `…ForSequenceClassification` with one output. Under `overflow: window` a
    row's logit is the greatest of its windows' (MaxP, Dai & Callan 2019), in training as in prediction. Rows
    of one `group`, or without that of one query's text, are ranked together.
    """

    Options = TextRankingOptions
    name = "text-ranking"
    schema = Schema(
        columns={
            "query": Column("text", "what is asked"),
            "document": Column("text", "what may answer it"),
            "label": Column("number", "1 where the document is relevant, else 0"),
            "score": Column("number", "how relevant it is, or how similar"),
            "group": Column("name", "a name for the query; rows that share it are ranked together"),
        },
        inputs=(frozenset({"query", "document"}),),
        targets=("label", "score"),
        group_columns=dict.fromkeys(("query", "group"), "queries lose documents, and splits share queries"),
    )

    forms = (NUMBER,)
    pipeline = name
    usage = Usage(
        'query="your query", document="a document"',
        """\
from sentence_transformers import CrossEncoder

CrossEncoder("PATH_OR_HUB_ID").rank("your query", ["a document", "another"])""",
        "the same scores, for documents of any length, with a mark on truncated texts",
        name,
    )

    # --- from a recipe, or from a model not trained by bertkit

    @classmethod
    def validate_rows(cls, options: TextRankingOptions, table: Table, split: str) -> Checked:
        """The rows as they are; labels are checked, and queries counted."""
        check_labels(table, split)
        target = next((table.values[name] for name in cls.schema.targets if name in table.values), None)
        if target is None or options.grouped is False:
            return table, []
        queries = reranking.query_numbers(table.values["query"], table.values.get("group"))
        return table, list(query_findings(split, queries.tolist(), target))

    @classmethod
    def infer_options(
        cls, options: TextRankingOptions, rows: Dataset, class_names: Sequence[str]
    ) -> OptionValues:
        """Loss, activation and what is scored. Raises DataError on contradictions."""
        truth = reranking.targets(rows).tolist()
        groups = reranking.queries(rows).tolist()
        graded = not set(truth) <= {0.0, 1.0}
        several = len(set(groups)) < len(groups)
        loss = options.loss or ("mse" if graded else "binary")
        if problems := list(contradictions(options, loss, truth, groups)):
            raise DataError(problems)
        return {
            "loss": loss,
            "activation": options.activation or ("identity" if loss == "listwise" else "sigmoid"),
            "score_range": options.score_range or [min(truth), max(truth)],
            "graded": graded if options.graded is None else options.graded,
            "grouped": several if options.grouped is None else options.grouped,
        }

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: Any) -> Restored:
        """The activation and the length that CrossEncoder takes, truncation."""
        activation, longest = cross_encoder.read(config)
        return {"activation": activation}, longest

    @property
    def metrics(self) -> Sequence[str]:
        return reranking.metric_names(self.options.grouped is not False, bool(self.options.graded))

    def describe(self) -> str:
        grouped = self.options.grouped is not False
        what = "documents ranked within their query" if grouped else "independent pairs"
        return f"{what}, loss {self.options.loss}, scores by {self.options.activation}"

    # --- rows -> features -> model

    def encode(self, rows: Dataset) -> Columns:
        """Targets are scaled to `score_range`, except for listwise."""
        columns = encode_texts(
            self.tokenizer,
            [rows["query"][:], rows["document"][:]],
            max_length=self.max_length,
            overflow=self.options.overflow,
            stride=self.options.stride,
        )
        if any(name in rows.column_names for name in self.schema.targets):
            score_range = None if self.options.loss == "listwise" else self.options.score_range
            low, high = score_range or (0.0, 1.0)
            columns["labels"] = ((reranking.targets(rows) - low) / (high - low))[columns["row"]].tolist()
        return Columns(columns)

    def features(self, rows: Dataset) -> Dataset:
        """For listwise, a query's rows one after the other, with `group`, the number of the query."""
        if self.options.loss != "listwise":
            return super().features(rows)
        queries = reranking.queries(rows)
        order = np.argsort(queries, kind="stable")
        try:
            features = super().features(rows.select(order))
        except RowsError as error:
            raise RowsError(sorted(error.renumbered(lambda row: int(order[row])).by_row)) from None
        read = order[numbers(features, "row")]
        return features.remove_columns("row").add_column("row", read).add_column("group", queries[read])

    def units(self, features: Dataset) -> np.ndarray:
        """All windows of a row are trained on together; for listwise, all rows of a query."""
        return numbers(features, "group" if "group" in features.column_names else "row")

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        from transformers import AutoModelForSequenceClassification

        settings = classifier(["score"]) | cross_encoder.settings(self.options.activation or "sigmoid")
        return load_model(encoder, AutoModelForSequenceClassification, settings, new_head=new_head)

    def extra_files(self, model: Any) -> Mapping[str, Any]:
        return cross_encoder.extra_files(self.max_length)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Binary cross-entropy, squared error, or ListNet's top-one cross-entropy (Cao et al. 2007) with a
        softmax over the grades of a query's rows as its targets. `logits` are `(windows, 1)`.
        """
        from torch.nn import functional as F

        from bertkit.models.heads import losses

        logits, targets = self._scored(outputs, batch)
        if self.options.loss == "listwise":
            return losses.listnet(logits, targets, self._query_sizes(batch))
        if self.options.loss == "mse":
            scores = logits.sigmoid() if self.options.activation == "sigmoid" else logits
            return F.mse_loss(scores, targets, reduction="sum")
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")

    def loss_inputs(self, outputs: Any, batch: Batch) -> tuple[Any, Tensor] | None:
        """`logits`, `(rows, 1)`; targets from 0 to 1, `(rows,)`."""
        if self.options.loss == "listwise":
            return None
        logits, targets = self._scored(outputs, batch)
        return replace(outputs, logits=logits[:, None]), targets

    def _scored(self, outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logit and target of each row, `(rows,)` fp32."""
        targets = first_windows(batch["labels"], batch)
        return greatest_of_windows(outputs.logits[:, 0].float(), batch), targets.float()

    def _query_sizes(self, batch: Batch) -> list[int]:
        """How many rows each query has; those of a query are adjacent."""
        import torch

        queries = first_windows(batch["group"], batch)
        return [*torch.unique_consecutive(queries, return_counts=True)[1].tolist()]

    def count(self, batch: Batch) -> float:
        """Rows; for listwise, queries of several rows: one row alone has no loss."""
        if self.options.loss == "listwise":
            return float(sum(size > 1 for size in self._query_sizes(batch)))
        return float(len(first_windows(batch["row"], batch)))

    # --- outputs -> answers -> scores

    def reduce(self, outputs: Any, batch: Batch) -> Reduced:
        """`logits`, `(features,)` fp32."""
        return {"logits": outputs.logits[:, 0].float()}

    def extra_outputs(self, reduced: Reduced) -> Reduced:
        """`scores`, `(features,)`, after the activation."""
        logits = reduced["logits"]
        return {"scores": logits.clone() if self.options.activation == "identity" else logits.sigmoid()}

    def decode(self, items: Sequence[np.float32], features: Dataset, rows: Dataset) -> list[Answer]:
        """`score`, as the activation gives it. Raises ModelError."""
        from scipy.special import expit

        starts = first_features(features)
        logits = np.asarray(items, dtype=np.float64)
        require_finite(np.logical_and.reduceat(np.isfinite(logits), starts))
        best = np.maximum.reduceat(logits, starts)
        scores = best if self.options.activation == "identity" else expit(best)
        return [{"score": score} for score in scores.tolist()]

    def grade(self, answers: Sequence[Answer], rows: Dataset) -> reranking.RankedRows:
        return self._ranked(similarity.of(answers, "score"), rows)

    def baselines(self, train: Dataset, rows: Dataset, held_out: HeldOut = ()) -> Baselines:
        """Random scores, and the cosine of query and document as TF-IDF vectors, learned on the texts of
        train.
        """
        train = baselines.enough(train)
        scores = {"random": np.random.default_rng(0).random(len(rows))}
        texts = [rows["query"][:], rows["document"][:]]
        for name, sides in baselines.tfidf_vectors([*train["query"], *train["document"]], texts).items():
            scores[name] = np.asarray(sides[0].multiply(sides[1]).sum(axis=1)).ravel()
        return {name: self._ranked(column, rows).scores for name, column in scores.items()}

    def _ranked(self, scores: ArrayLike, rows: Dataset) -> reranking.RankedRows:
        fixed = self.options.grouped, self.options.graded
        return reranking.RankedRows(reranking.targets(rows), scores, reranking.queries(rows), *fixed)
