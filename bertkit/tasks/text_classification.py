"""Text classification: one text or a pair; one label, several, or a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, final

from pydantic import Field, field_serializer, field_validator

from bertkit.data.columns import label_names
from bertkit.data.disk_list import DiskList
from bertkit.data.schema import Answer, Column, Finding, Schema
from bertkit.data.table import column_values, numbers
from bertkit.encoding.texts import encode_texts
from bertkit.errors import DataError, ModelError, Problem
from bertkit.evaluation import baselines as simple
from bertkit.evaluation import calibration, metrics
from bertkit.evaluation.hf_metrics import compute_user_metric
from bertkit.evaluation.labels import GradedLabels
from bertkit.models.encoder import load_model
from bertkit.tasks.base import Batch, Predict, Task, TaskOptions
from bertkit.tasks.labels import length_findings, settle_labels, settle_weights

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from numpy.typing import ArrayLike
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from bertkit.encoding.padding import Arrays
    from bertkit.evaluation.metrics import Kind
    from bertkit.models.encoder import Encoder

Name = Annotated[str, Field(min_length=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
TARGETS: dict[Kind, str] = {
    "single-label": "label",
    "multi-label": "labels",
    "regression": "score",
}  # kind -> its column


class TextClassificationOptions(TaskOptions):
    """What a recipe may say under `task:`. null means: found from the data, or fitted on validation."""

    metrics: ClassVar[frozenset[str]] = frozenset(
        {
            *("accuracy", "f1_macro", "f1_micro", "f1_weighted", "precision_macro", "recall_macro", "roc_auc"),
            *("matthews_correlation", "neg_log_loss", "pearson", "spearman", "subset_accuracy"),
            *("neg_mean_squared_error", "neg_mean_absolute_error", "precision/", "recall/", "f1/"),
        }
    )
    name: Literal["text-classification"]
    kind: Literal["single-label", "multi-label", "regression"] | None = Field(
        None, description="null: from the columns (`label`, `labels`, `score`) and what they hold."
    )
    pair: bool | None = Field(None, description="null: by the columns, `text` or `text_a` and `text_b`.")
    labels: Annotated[list[Name], Field(min_length=1)] | Annotated[dict[str, Name], Field(min_length=1)] | None = Field(
        None, description="Label names in order, or {value in the data: name}. null: found in train."
    )

    @field_validator("labels", mode="before")
    @classmethod
    def _from_pairs(cls, given: Any) -> Any:
        pairs = isinstance(given, list) and given and all(isinstance(g, list) and len(g) == 2 for g in given)
        return dict(given) if pairs else given

    @field_serializer("labels", when_used="json")
    def _as_pairs(self, labels: list[str] | dict[str, str] | None) -> Any:
        # transformers sorts the keys of config.json, and their order is that of the label ids.
        return [list(pair) for pair in labels.items()] if isinstance(labels, dict) else labels

    overflow: Literal["truncate", "window", "error"] = Field(
        "truncate", description="Texts past max_length: cut and counted, pooled over windows, or refused."
    )
    stride: int = Field(32, ge=0, description="Word pieces that neighbouring windows share.")
    class_weights: Literal["auto"] | dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        None, description="auto: n / (labels * count), as scikit-learn's `balanced`."
    )
    pos_weight: Literal["auto"] | dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        None, description="multi-label: weight of the positive class. auto: negatives / positives."
    )
    temperature: Annotated[float, Field(ge=1e-3)] | None = Field(
        None, description="Softmax or sigmoid temperature. null: fitted on validation."
    )
    thresholds: Probability | dict[str, Probability] | None = Field(
        None, description="multi-label: probability from which a label is given. null: fitted on validation."
    )


@final
@dataclass(frozen=True)
class TextClassification(Task):
    """Labels for texts, from the pooled first word piece (Devlin et al. 2019, section 4.1).

    The model is transformers' own `…ForSequenceClassification`. Under `overflow: window` a row's logits are
    the mean of its windows' logits, in training as in prediction.
    """

    Options: ClassVar[type[TaskOptions]] = TextClassificationOptions
    name: ClassVar[str] = "text-classification"
    schema: ClassVar[Schema] = Schema(
        columns={
            "text": Column("text", "the text"),
            "text_a": Column("text", "the first text of a pair"),
            "text_b": Column("text", "the second text of a pair"),
            "label": Column("label", "one class"),
            "labels": Column("labels", "any number of classes"),
            "score": Column("number", "the number to predict"),
        },
        inputs=(frozenset({"text"}), frozenset({"text_a", "text_b"})),
        targets=("label", "labels", "score"),
    )

    options: TextClassificationOptions
    tokenizer: PreTrainedTokenizerBase
    max_length: int

    # --- before there is a model

    @classmethod
    def prepare(
        cls,
        options: TextClassificationOptions,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        rows: Dataset,
        class_names: Sequence[str],
    ) -> Self:
        """Settle kind, labels and weights from the training rows. Raises DataError on contradictions."""
        kinds = [kind for kind, column in TARGETS.items() if column in rows.column_names]
        kind, pair = options.kind or kinds[0], "text_b" in rows.column_names
        if options.pair not in (None, pair):
            what = f"task.pair is {str(options.pair).lower()}, but the rows have {', '.join(rows.column_names)}"
            raise DataError(Problem("task.pair", what, "Map `text`, or `text_a` and `text_b`; or leave task.pair out."))
        if kind not in kinds:
            what = f"{kind} learns from a column `{TARGETS[kind]}`, but the rows have {', '.join(rows.column_names)}"
            raise DataError(Problem("task.kind", what, f"Map it, e.g.  data: {{columns: {{{TARGETS[kind]}: …}}}}"))
        values = [] if kind == "regression" else list(_flat(rows[TARGETS[kind]], kind))
        labels = {} if kind == "regression" else settle_labels(options.labels, label_names(values, class_names))
        counts = Counter(labels[value] for value in values)
        names = list(dict.fromkeys(labels.values()))
        if kind == "single-label" and len(names) < 2:
            raise DataError(Problem("task.labels", f"only one label, {', '.join(names)}: there is nothing to learn"))
        balanced = {name: len(values) / (len(names) * max(counts[name], 1)) for name in names}
        odds = {name: max(len(rows) - counts[name], 1) / max(counts[name], 1) for name in names}
        settled = {
            "kind": kind,
            "pair": pair,
            "labels": labels or None,
            "class_weights": settle_weights("class_weights", options.class_weights, balanced),
            "pos_weight": settle_weights("pos_weight", options.pos_weight, odds),
        }
        return cls(options.model_copy(update=settled), tokenizer, max_length)

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Self:
        """Defaults for a foreign model: its id2label, softmax (sigmoid if multi-label), no temperature, truncation."""
        kinds = {"multi_label_classification": "multi-label", "regression": "regression"}
        kind = kinds.get(str(config.problem_type), "regression" if config.num_labels == 1 else "single-label")
        names = [] if kind == "regression" else [str(name) for _, name in sorted((config.id2label or {}).items())]
        options = {"name": cls.name, "kind": kind, "labels": dict(zip(names, names, strict=True)) or None}
        return cls(TextClassificationOptions.model_validate(options), tokenizer, max_length)

    @property
    def kind(self) -> Kind:
        """What the targets are; settled since `prepare`."""
        return self.options.kind or "single-label"

    @property
    def values(self) -> dict[str, str]:
        """Value in the data -> label name; settled since `prepare`, empty for regression."""
        return self.options.labels if isinstance(self.options.labels, dict) else {}

    @property
    def names(self) -> list[str]:
        """Label names in the order of their ids; empty for regression."""
        return list(dict.fromkeys(self.values.values()))

    @property
    def inputs(self) -> Sequence[frozenset[str]]:
        return self.schema.inputs if self.options.pair is None else (self.schema.inputs[self.options.pair],)

    @property
    def known_labels(self) -> frozenset[str] | None:
        return frozenset([*self.values, *self.names]) or None

    @property
    def headline(self) -> str:
        return {"single-label": "accuracy", "multi-label": "f1_micro", "regression": "spearman"}[self.kind]

    @property
    def emits(self) -> Sequence[str]:
        lower_is_better = ("ece", "support/")
        return [n for n in metrics.metric_names(self.kind, self.names) if not n.startswith(lower_is_better)]

    def describe(self) -> str:
        """Such as `single texts, single-label, 2 labels: negative, positive`."""
        shown = ", ".join(self.names[:10]) + (", …" if len(self.names) > 10 else "")
        inputs = "pairs of texts" if self.options.pair else "single texts"
        return f"{inputs}, {self.kind}" + (f", {len(self.names)} labels: {shown}" if self.names else "")

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        yield from length_findings(features, split, self.max_length, self.options.overflow)

    # --- text -> features -> model

    def encode(self, rows: Dataset) -> Dataset:
        from datasets import Dataset

        pair = "text_b" in rows.column_names
        if self.options.pair not in (None, pair):
            what = f"the model reads {', '.join(sorted(self.inputs[0]))}, the rows have {', '.join(rows.column_names)}"
            raise DataError(Problem("columns", what, "Map them, e.g.  data: {columns: {text_a: …, text_b: …}}"))
        columns = encode_texts(
            self.tokenizer,
            rows["text_a"][:] if pair else rows["text"][:],
            rows["text_b"][:] if pair else None,
            max_length=self.max_length,
            overflow=self.options.overflow,
            stride=self.options.stride,
        )
        if any(target in rows.column_names for target in self.schema.targets):
            targets = self._targets(rows).tolist()
            columns["labels"] = [targets[row] for row in columns["row"]]
        return Dataset.from_dict(columns)

    def _targets(self, rows: Dataset) -> np.ndarray:
        """Label ids `(rows,)`, 0/1 rows `(rows, labels)`, or numbers `(rows,)`."""
        import numpy as np

        column = TARGETS[self.kind]
        if column not in rows.column_names:
            raise DataError(
                Problem(f"column `{column}`", f"not in the rows, which have {', '.join(rows.column_names)}")
            )
        if self.kind == "regression":
            return np.fromiter(column_values(rows, column), np.float64, len(rows))
        ids = {name: index for index, name in enumerate(self.names)}
        known = ids | {value: ids[name] for value, name in self.values.items()}
        values = dict.fromkeys(_flat(column_values(rows, column), self.kind))
        unknown = [value for value in values if value not in known]
        if unknown:
            what = f"labels that the model does not know: {', '.join(map(repr, unknown[:10]))}"
            raise DataError(Problem(f"column `{column}`", what, f"It knows {', '.join(self.names)}."))
        if self.kind == "single-label":
            return np.fromiter((known[value] for value in column_values(rows, column)), np.int64, len(rows))
        table = np.zeros((len(rows), len(ids)), dtype=np.float64)
        for row, several in enumerate(column_values(rows, column)):
            table[row, [known[value] for value in several]] = 1.0
        return table

    def units(self, features: Dataset) -> ArrayLike:
        """All windows of a row are learned together, because their logits are pooled."""
        return numbers(features, "row")

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        from transformers import AutoModelForSequenceClassification

        problems = {"single-label": "single_label_classification", "multi-label": "multi_label_classification"}
        names = self.names or ["score"]
        settings = {
            "num_labels": len(names),
            "id2label": dict(enumerate(names)),
            "label2id": {name: index for index, name in enumerate(names)},
            "problem_type": problems.get(self.kind, self.kind),
        }
        return load_model(encoder, AutoModelForSequenceClassification, settings, new_head=new_head)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy, binary cross-entropy over all labels, or squared error; `logits` are `(windows, labels)`."""
        from torch.nn import functional as F

        _, first, _ = _rows(batch)
        logits, labels = _pooled(outputs.logits, batch), batch["labels"][first]
        if self.kind == "regression":
            return F.mse_loss(logits[:, 0], labels.float(), reduction="sum")
        if self.kind == "multi-label":
            pos_weight = self._tensor(self.options.pos_weight, logits)
            return F.binary_cross_entropy_with_logits(logits, labels.float(), pos_weight=pos_weight, reduction="sum")
        weight = self._tensor(self.options.class_weights, logits)
        return F.cross_entropy(logits, labels, weight=weight, reduction="sum", label_smoothing=label_smoothing)

    def count(self, batch: Batch) -> float:
        """Rows, each with its class weight; for multi-label, decisions."""
        _, first, _ = _rows(batch)
        labels = batch["labels"][first]
        if self.kind == "multi-label":
            return float(labels.numel())
        weight = self._tensor(self.options.class_weights, labels)
        return float(len(labels)) if weight is None else float(weight[labels].sum())

    def _tensor(self, weights: Any, like: Tensor) -> Tensor | None:
        import torch

        return torch.tensor([weights[name] for name in self.names], device=like.device) if weights else None

    # --- teacher -> student

    @property
    def shared(self) -> Mapping[str, Any]:
        return {"kind": self.kind, "labels": self.names}

    def soft(self, outputs: Any, batch: Batch) -> Tensor:
        """Logits, `(windows, labels)`."""
        logits: Tensor = outputs.logits.float()
        return logits

    def soft_loss(self, outputs: Any, batch: Batch, temperature: float) -> Tensor:
        """KL of each row with its class weight, cross-entropy of each decision, or squared error."""
        from torch.nn import functional as F

        from bertkit.models.heads import soft_losses

        ours, theirs = _pooled(outputs.logits, batch), _pooled(batch["soft"], batch)
        if self.kind == "regression":
            return F.mse_loss(ours, theirs, reduction="sum")
        if self.kind == "multi-label":
            return soft_losses.binary(ours, theirs, temperature)
        losses = soft_losses.kl(ours, theirs, temperature)
        weight = self._tensor(self.options.class_weights, losses)
        return losses.sum() if weight is None else (losses * weight[batch["labels"][_rows(batch)[1]]]).sum()

    # --- model -> answers

    def reduce(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`logits`, `(features, labels)` fp32."""
        return {"logits": outputs.logits.float()}

    def kept(self, arrays: Arrays) -> Any:
        return arrays["logits"]

    def decode(self, kept: Sequence[np.ndarray], features: Dataset, rows: Dataset) -> list[Answer]:
        """One answer per row: `label`, `scores` and `score`; or `labels` and `scores`; or `score`; and `truncated`.

        Raises ModelError when the model's outputs are not finite.
        """
        import numpy as np

        _, starts, counts = np.unique(np.asarray(features["row"][:]), return_index=True, return_counts=True)
        logits = np.add.reduceat(np.stack(kept).astype(np.float64), starts) / counts[:, None]
        if not np.isfinite(logits).all():
            what = f"its outputs are not finite for {int((~np.isfinite(logits)).any(axis=1).sum())} of {len(rows)} rows"
            raise ModelError(Problem("the model", what, "Its weights are damaged, or its training diverged."))
        truncated = (np.asarray(features["lost"][:])[starts] > 0).tolist()
        if self.kind == "regression":
            return [{"score": s, "truncated": t} for s, t in zip(logits[:, 0].tolist(), truncated, strict=True)]
        single = self.kind == "single-label"
        squash = calibration.apply_temperature_softmax if single else calibration.apply_temperature_sigmoid
        table = squash(logits, self.options.temperature or 1.0)
        decide = self._one if single else self._several
        return [decide(row) | {"truncated": t} for row, t in zip(table.tolist(), truncated, strict=True)]

    def _one(self, probabilities: list[float]) -> Answer:
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        scores = dict(zip(self.names, probabilities, strict=True))
        return {"label": self.names[best], "score": probabilities[best], "scores": scores}

    def _several(self, probabilities: list[float]) -> Answer:
        scores = dict(zip(self.names, probabilities, strict=True))
        limits = self.options.thresholds
        given = [
            n for n, p in scores.items() if p >= (limits.get(n, 0.5) if isinstance(limits, dict) else limits or 0.5)
        ]
        return {"labels": given, "scores": scores}

    def fit(self, rows: Dataset, predict: Predict) -> Self:
        """Temperature (Guo et al. 2017), then per-label thresholds of best F1; what the recipe fixed stays."""
        if self.kind == "regression":
            return self
        found = self._graded(DiskList(self.answer(rows, predict)), rows).calibrated()
        return replace(self, options=self.options.model_copy(update=found))

    def score(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        return dict(self._graded(answers, rows).scores)

    def intervals(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, tuple[float, float] | None]:
        return self._graded(answers, rows).intervals()

    def user_score(self, metric: Any, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        """A user's `evaluate.Metric` on label ids `(rows,)`, 0/1 `(rows, labels)`, or numbers `(rows,)`."""
        return compute_user_metric(metric, *self._graded(answers, rows).pairs())

    def details(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, Any]:
        """Confusion matrix (rows: truth), and calibration before and after the temperature."""
        return self._graded(answers, rows).details()

    def baselines(self, train: Dataset, rows: Dataset) -> dict[str, dict[str, float | None]]:
        train = simple.enough(train)
        targets = self._targets(train), self._targets(rows)
        return simple.baselines(self.kind, _joined(train), targets[0], _joined(rows), targets[1], self.names)

    def _graded(self, answers: Sequence[Answer], rows: Dataset) -> GradedLabels:
        options = self.options
        targets = self._targets(rows)
        return GradedLabels.of(self.kind, self.names, targets, answers, options.temperature, options.thresholds)


def _rows(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The batch's rows `(rows,)`, each row's first window `(rows,)`, and each window's row `(windows,)`."""
    import torch

    rows, windows, counts = torch.unique_consecutive(batch["row"], return_inverse=True, return_counts=True)
    return rows, counts.cumsum(0) - counts, windows


def _pooled(logits: Tensor, batch: Batch) -> Tensor:
    """The mean of the logits of each row's windows, `(windows, labels)` -> `(rows, labels)` fp32."""
    import torch

    rows, _, windows = _rows(batch)
    table = torch.zeros(len(rows), logits.shape[-1], device=logits.device)
    return table.index_add(0, windows, logits.float()) / torch.bincount(windows)[:, None]


def _flat(values: Iterable[Any], kind: Kind) -> Iterable[str]:
    """The labels of all rows, one after the other."""
    return values if kind == "single-label" else chain.from_iterable(values)


def _joined(rows: Dataset) -> list[str]:
    """Each row's text, or both texts of its pair in one string."""
    if "text" in rows.column_names:
        return list(rows["text"])
    return [f"{a}\n{b}" for a, b in zip(rows["text_a"], rows["text_b"], strict=True)]
