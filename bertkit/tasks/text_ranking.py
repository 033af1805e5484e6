"""Text ranking: how well a document answers a query, by a cross-encoder that reads both at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, final

from pydantic import Field

from bertkit.data.schema import Answer, Column, Finding, Schema
from bertkit.data.table import Problems, Table, column_values, numbers
from bertkit.encoding.texts import encode_texts
from bertkit.errors import DataError, ModelError, Problem, RowsError
from bertkit.evaluation import baselines as simple
from bertkit.evaluation import reranking, similarity
from bertkit.evaluation.hf_metrics import compute_user_metric
from bertkit.models.encoder import load_model
from bertkit.tasks import cross_encoder
from bertkit.tasks.base import Batch, Predict, Task, TaskOptions
from bertkit.tasks.labels import length_findings

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from numpy.typing import ArrayLike
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from bertkit.encoding.padding import Arrays
    from bertkit.evaluation.intervals import Floats, Ints
    from bertkit.evaluation.reranking import RankedRows
    from bertkit.models.encoder import Encoder


class TextRankingOptions(TaskOptions):
    """What a recipe may say under `task:`. null means: found from the rows of train."""

    metrics: ClassVar[frozenset[str]] = frozenset(
        [*reranking.metric_names(True, True), *reranking.metric_names(True, False)]
    )
    name: Literal["text-ranking"]
    loss: Literal["binary", "mse", "listwise"] | None = Field(
        None, description="null: binary where targets are 0 and 1, else mse. listwise: over the documents of a query."
    )
    activation: Literal["sigmoid", "identity"] | None = Field(
        None, description="Makes scores of logits, here and in CrossEncoder. null: sigmoid; for listwise, identity."
    )
    score_range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        None, description="binary, mse: the targets that are learned as 0 and 1. null: least and greatest of train."
    )
    graded: bool | None = Field(None, description="Are there targets beside 0 and 1? null: by train.")
    grouped: bool | None = Field(
        None, description="Is it the order of a query's documents that counts? null: if one of train has several."
    )
    overflow: Literal["truncate", "window", "error"] = Field(
        "truncate", description="Pairs past max_length: the longer text cut and counted, read in windows, or refused."
    )
    stride: int = Field(32, ge=0, description="Word pieces that neighbouring windows share.")


@final
@dataclass(frozen=True)
class TextRanking(Task):
    """One score for a query and a document, read together (Nogueira & Cho 2019).

    The model is transformers' own `…ForSequenceClassification` with one output. Under `overflow: window` a row's
    logit is the greatest of its windows' (MaxP, Dai & Callan 2019), in training as in prediction. Rows of one
    `group`, or without that of one query's text, are ranked together.
    """

    Options: ClassVar[type[TaskOptions]] = TextRankingOptions
    name: ClassVar[str] = "text-ranking"
    schema: ClassVar[Schema] = Schema(
        columns={
            "query": Column("text", "what is asked"),
            "document": Column("text", "what may answer it"),
            "label": Column("number", "1 where the document is relevant, else 0"),
            "score": Column("number", "how relevant it is, or how similar"),
            "group": Column("name", "a name for the query; rows that share it are ranked together"),
        },
        inputs=(frozenset({"query", "document"}),),
        targets=("label", "score"),
        group_columns={"query": "queries lose documents, and splits share queries"},
    )

    options: TextRankingOptions
    tokenizer: PreTrainedTokenizerBase
    max_length: int

    # --- before there is a model

    @classmethod
    def refine(cls, options: TextRankingOptions, table: Table, split: str) -> tuple[Table, list[Finding]]:
        """The rows as they are; labels are checked, and queries counted."""
        allowed = (0, 1, -1) if split == "test" else (0, 1)  # -1: GLUE's mark of a secret label
        problems, grades = Problems(), "grades are scores; map them so:  data: {columns: {score: …}}"
        for row, label in enumerate(table.values.get("label", ())):
            if label is not None and label not in allowed:
                problems.add(table.origin[row], f"`label` holds {label:g}, where 0 or 1 is expected", grades)
        problems.raise_if_any()
        target = next((table.values[name] for name in cls.schema.targets if name in table.values), None)
        if target is None or options.grouped is False:
            return table, []
        return table, list(
            _noticed(split, reranking.query_numbers(table.values["query"], table.values.get("group")), target)
        )

    @classmethod
    def prepare(
        cls,
        options: TextRankingOptions,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        rows: Dataset,
        class_names: Sequence[str],
    ) -> Self:
        """Settle loss, activation and what is scored from the training rows. Raises DataError on contradictions."""
        truth, groups = _targets(rows).tolist(), _queries(rows).tolist()
        low, high = options.score_range or (min(truth), max(truth))
        graded = not set(truth) <= {0.0, 1.0}
        several = len(set(groups)) < len(groups)
        loss = options.loss or ("mse" if graded else "binary")
        problems = []
        if min(truth) == max(truth):
            what = f"every row of train has the target {low:g}; there is nothing to learn"
            problems.append(Problem("data", what, "Add documents that are less relevant, or more."))
        elif not low <= min(truth) < max(truth) <= high:
            what = f"[{low:g}, {high:g}], but targets of train go from {min(truth):g} to {max(truth):g}"
            problems.append(Problem("task.score_range", what, "Widen it, or leave it out."))
        if options.grouped and not several:
            what = "true, but every query of train has one document"
            problems.append(Problem("task.grouped", what, "Map `group`, or leave it out."))
        if loss == "listwise" and len(set(zip(groups, truth, strict=True))) == len(set(groups)):
            what = "listwise compares a query's documents, but none of train has two with different targets"
            problems.append(Problem("task.loss", what, "Map `group`, or leave it out."))
        if problems:
            raise DataError(problems)
        settled = {
            "loss": loss,
            "activation": options.activation or ("identity" if loss == "listwise" else "sigmoid"),
            "score_range": [low, high],
            "graded": graded if options.graded is None else options.graded,
            "grouped": several if options.grouped is None else options.grouped,
        }
        return cls(options.model_copy(update=settled), tokenizer, max_length)

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Self:
        """Defaults for a foreign model: the activation and the length that CrossEncoder takes, truncation.

        Raises ModelError on a model of several outputs, and on activations beside sigmoid and identity.
        """
        folder = Path(str(config.name_or_path))
        if config.num_labels != 1:
            what = f"its head has {config.num_labels} outputs; text-ranking is for models with one"
            raise ModelError(Problem(str(folder), what, "Several are classes: --task text-classification."))
        options = TextRankingOptions(name="text-ranking", activation=cross_encoder.read_activation(config, folder))
        return cls(options, tokenizer, min(max_length, cross_encoder.read_length(folder) or max_length))

    @property
    def headline(self) -> str:
        return self.emits[0]

    @property
    def emits(self) -> Sequence[str]:
        return reranking.metric_names(self._is_grouped, bool(self.options.graded))

    @property
    def _is_grouped(self) -> bool:
        return self.options.grouped is not False

    def describe(self) -> str:
        """Such as `documents ranked within their query, loss listwise, scores by identity`."""
        what = "documents ranked within their query" if self._is_grouped else "pairs that stand alone"
        return f"{what}, loss {self.options.loss}, scores by {self.options.activation}"

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        yield from length_findings(features, split, self.max_length, self.options.overflow)

    # --- text -> features -> model

    def encode(self, rows: Dataset) -> Dataset:
        """Targets come scaled to `score_range`; for listwise as they are."""
        from datasets import Dataset

        columns = encode_texts(
            self.tokenizer,
            rows["query"][:],
            rows["document"][:],
            max_length=self.max_length,
            overflow=self.options.overflow,
            stride=self.options.stride,
        )
        if not any(name in rows.column_names for name in self.schema.targets):
            return Dataset.from_dict(columns)
        targets = _targets(rows)
        if self.options.loss != "listwise":
            low, high = self.options.score_range or (0.0, 1.0)
            targets = (targets - low) / (high - low)
        columns["labels"] = targets[columns["row"]].tolist()
        return Dataset.from_dict(columns)

    def features(self, rows: Dataset) -> Dataset:
        """For listwise, a query's rows one after the other, with `group`, the number of the query."""
        import numpy as np

        if self.options.loss != "listwise":
            return super().features(rows)
        queries = _queries(rows)
        order = np.argsort(queries, kind="stable")
        try:
            features = super().features(rows.select(order))
        except RowsError as error:
            raise RowsError(sorted(error.renumbered(lambda row: int(order[row])).found)) from None
        read = order[numbers(features, "row")]
        features = features.remove_columns("row").add_column("row", read)
        return features.add_column("group", queries[read])

    def units(self, features: Dataset) -> ArrayLike:
        """All windows of a row are learned together; for listwise, all rows of a query."""
        return numbers(features, "group" if "group" in features.column_names else "row")

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        """CrossEncoder and transformers' pipeline find in the config how logits become scores."""
        from transformers import AutoModelForSequenceClassification

        activation = self.options.activation or "sigmoid"
        settings = {
            "num_labels": 1,
            "id2label": {0: "score"},
            "label2id": {"score": 0},
            "problem_type": "regression" if activation == "identity" else None,  # else the pipeline takes a sigmoid
            "sentence_transformers": {"activation_fn": cross_encoder.ACTIVATIONS[activation]},
        }
        return load_model(encoder, AutoModelForSequenceClassification, settings, new_head=new_head)

    def extra_files(self, model: Any) -> Mapping[str, Any]:
        return cross_encoder.extra_files(self.max_length)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Binary cross-entropy, squared error of scores, or ListNet's top-one cross-entropy (Cao et al. 2007).

        `logits` are `(windows, 1)`. ListNet's targets are a softmax over the grades of a query's rows.
        """
        from torch.nn import functional as F

        from bertkit.models.heads import ranking_losses

        first, windows = _rows(batch)
        logits = ranking_losses.greatest(outputs.logits[:, 0].float(), windows, len(first))
        targets = batch["labels"][first].float()
        if self.options.loss == "listwise":
            return ranking_losses.listnet(logits, targets, _sizes(batch, first))
        if self.options.loss == "mse":
            scores = logits.sigmoid() if self.options.activation == "sigmoid" else logits
            return F.mse_loss(scores, targets, reduction="sum")
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")

    def count(self, batch: Batch) -> float:
        """Rows; for listwise, queries of several rows: one row alone has no loss."""
        first, _ = _rows(batch)
        if self.options.loss == "listwise":
            return float(sum(size > 1 for size in _sizes(batch, first)))
        return float(len(first))

    # --- teacher -> student

    @property
    def shared(self) -> Mapping[str, Any]:
        return {"activation": self.options.activation}

    def soft(self, outputs: Any, batch: Batch) -> Tensor:
        """Logits, `(windows, 1)`."""
        logits: Tensor = outputs.logits.float()
        return logits

    def soft_loss(self, outputs: Any, batch: Batch, temperature: float) -> Tensor:
        """Squared error of each row's logit; for listwise KL over the rows of a query."""
        from torch.nn import functional as F

        from bertkit.models.heads import ranking_losses

        first, windows = _rows(batch)
        ours, theirs = (
            ranking_losses.greatest(logits[:, 0].float(), windows, len(first))
            for logits in (outputs.logits, batch["soft"])
        )
        if self.options.loss == "listwise":
            return ranking_losses.soft_listnet(ours, theirs, _sizes(batch, first), temperature)
        return F.mse_loss(ours, theirs, reduction="sum")

    # --- model -> answers

    def reduce(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`logits`, `(features,)` fp32."""
        return {"logits": outputs.logits[:, 0].float()}

    def kept(self, arrays: Arrays) -> Any:
        return arrays["logits"]

    def decode(self, kept: Sequence[np.float32], features: Dataset, rows: Dataset) -> list[Answer]:
        """One answer per row: `score`, as the activation gives it, and `truncated`.

        Raises ModelError when the model's outputs are not finite.
        """
        import numpy as np
        from scipy.special import expit

        of, logits = np.asarray(features["row"][:]), np.asarray(kept, dtype=np.float64)
        bad = len(set(of[~np.isfinite(logits)].tolist()))
        if bad:
            what = f"its outputs are not finite for {bad} of {len(rows)} rows"
            raise ModelError(Problem("the model", what, "Its weights are damaged, or its training diverged."))
        best, cut = np.full(len(rows), -np.inf), np.zeros(len(rows), dtype=bool)
        np.maximum.at(best, of, logits)
        cut[of] = np.asarray(features["lost"][:]) > 0
        scores = best if self.options.activation == "identity" else expit(best)
        return [{"score": s, "truncated": t} for s, t in zip(scores.tolist(), cut.tolist(), strict=True)]

    def fit(self, rows: Dataset, predict: Predict) -> Self:
        """Nothing is fitted."""
        return self

    def score(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        """`ndcg@10` and `mrr@10` are means over queries with a relevant document and another one; see `RankedRows`."""
        return dict(self._ranked(similarity.of(answers, "score"), rows).scores)

    def intervals(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, tuple[float, float] | None]:
        """Bootstrap over queries, where they have several rows; else over rows."""
        return self._ranked(similarity.of(answers, "score"), rows).intervals()

    def user_score(self, metric: Any, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        """A user's `evaluate.Metric` on scores and targets, `(rows,)` both."""
        return compute_user_metric(metric, similarity.of(answers, "score").tolist(), _targets(rows).tolist())

    def details(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, Any]:
        """The queries of least nDCG@10, the worst first."""
        ranked = self._ranked(similarity.of(answers, "score"), rows)
        return ranked.details()

    def baselines(self, train: Dataset, rows: Dataset) -> dict[str, dict[str, float | None]]:
        """Random scores, and the cosine of query and document as TF-IDF vectors, learned on the texts of train."""
        import numpy as np

        train = simple.enough(train)
        given = {"random": np.random.default_rng(0).random(len(rows)).tolist()}
        sides = simple.tfidf_vectors([*train["query"], *train["document"]], [rows["query"][:], rows["document"][:]])
        if sides is not None:
            given["tf-idf cosine"] = np.asarray(sides[0].multiply(sides[1]).sum(axis=1)).ravel().tolist()
        return {name: dict(self._ranked(scores, rows).scores) for name, scores in given.items()}

    def _ranked(self, scores: ArrayLike, rows: Dataset) -> RankedRows:
        options = self.options
        numbers, texts = _queries(rows), rows["query"]
        return reranking.RankedRows.of(_targets(rows), scores, numbers, options.grouped, options.graded, texts)


def _targets(rows: Dataset) -> Floats:
    """Targets `(rows,)`. Raises DataError where there are none."""
    import numpy as np

    column = next((name for name in TextRanking.schema.targets if name in rows.column_names), None)
    if column is None:
        what = f"neither is in the rows, which have {', '.join(rows.column_names)}"
        raise DataError(Problem("columns `label` and `score`", what))
    return np.fromiter(column_values(rows, column), np.float64, len(rows))


def _queries(rows: Dataset) -> Ints:
    names = column_values(rows, "group") if "group" in rows.column_names else None
    return reranking.query_numbers(column_values(rows, "query"), names)


def _noticed(split: str, groups: Ints, targets: Sequence[float | None]) -> Iterator[Finding]:
    grades: dict[int, set[float | None]] = {}
    for group, target in zip(groups.tolist(), targets, strict=True):
        grades.setdefault(group, set()).add(target)
    if len(grades) == len(targets):
        yield Finding("note", f"{split}: every query has one document; pairs are scored by themselves")
        return
    yield Finding("note", f"{split}: {len(targets):,} documents for {len(grades):,} queries")
    idle = sum(len(values) == 1 for values in grades.values())
    if idle:
        what = f"{split}: {idle:,} of {len(grades):,} queries have one document, or equal targets: nothing to order"
        yield Finding("warn", what, "Add documents that are less relevant.")


def _rows(batch: Batch) -> tuple[Tensor, Tensor]:
    """Each row's first window `(rows,)`, and each window's row `(windows,)`."""
    import torch

    _, windows, counts = torch.unique_consecutive(batch["row"], return_inverse=True, return_counts=True)
    return counts.cumsum(0) - counts, windows


def _sizes(batch: Batch, first: Tensor) -> list[int]:
    """How many rows each query has."""
    import torch

    sizes: list[int] = torch.unique_consecutive(batch["group"][first], return_counts=True)[1].tolist()
    return sizes
