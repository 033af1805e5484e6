"""Text classification: one text or a pair; one label, several, or a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, final

from pydantic import Field

from bertkit.data.columns import label_names
from bertkit.encoder import load_model
from bertkit.errors import DataError, Problem
from bertkit.evaluation import baselines as simple
from bertkit.evaluation import calibration, intervals, metrics
from bertkit.tasks.base import Answer, Batch, Column, Finding, Task, TaskOptions
from bertkit.tasks.encoding import encode_texts
from bertkit.tasks.labels import length_findings, settle_labels, settle_weights

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from bertkit.encoder import Encoder

TARGETS = {"single-label": "label", "multi-label": "labels", "regression": "score"}  # kind -> its column


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
    labels: list[str] | dict[str, str] | None = Field(
        None, description="Label names in order, or {value in the data: name}. null: found in train."
    )
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
    temperature: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Softmax or sigmoid temperature. null: fitted on validation."
    )
    thresholds: float | dict[str, float] | None = Field(
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
    columns: ClassVar[Mapping[str, Column]] = {
        "text": Column("text", "the text"),
        "text_a": Column("text", "the first text of a pair"),
        "text_b": Column("text", "the second text of a pair"),
        "label": Column("label", "one class"),
        "labels": Column("labels", "any number of classes"),
        "score": Column("number", "the number to predict"),
    }
    inputs: ClassVar[Sequence[frozenset[str]]] = (frozenset({"text"}), frozenset({"text_a", "text_b"}))
    targets: ClassVar[Sequence[str]] = ("label", "labels", "score")

    options: TextClassificationOptions
    tokenizer: PreTrainedTokenizerBase
    max_length: int

    # --- before there is a model -------------------------------------------------------------------------------

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
        kind = options.kind or kinds[0]
        if kind not in kinds:
            what = f"{kind} learns from a column `{TARGETS[kind]}`, but the rows have {', '.join(rows.column_names)}"
            raise DataError(Problem("task.kind", what, f"Map it, e.g.  data: {{columns: {{{TARGETS[kind]}: …}}}}"))
        if kind == "regression":
            return cls(options.model_copy(update={"kind": kind, "labels": {}}), tokenizer, max_length)
        values = list(rows["label"]) if kind == "single-label" else list(chain.from_iterable(rows["labels"]))
        labels = settle_labels(options.labels, label_names(values, class_names))
        names = list(dict.fromkeys(labels.values()))
        counts = Counter(labels[value] for value in values)
        balanced = {name: len(values) / (len(names) * max(counts[name], 1)) for name in names}
        odds = {name: max(len(rows) - counts[name], 1) / max(counts[name], 1) for name in names}
        weights = {
            "class_weights": settle_weights("class_weights", options.class_weights, balanced),
            "pos_weight": settle_weights("pos_weight", options.pos_weight, odds),
        }
        return cls(options.model_copy(update={"kind": kind, "labels": labels} | weights), tokenizer, max_length)

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Self:
        """Defaults for a foreign model: its id2label, softmax (sigmoid if multi-label), no temperature, truncation."""
        kinds = {"multi_label_classification": "multi-label", "regression": "regression"}
        kind = kinds.get(config.problem_type or "", "regression" if config.num_labels == 1 else "single-label")
        labels = {} if kind == "regression" else {name: name for _, name in sorted(config.id2label.items())}
        return cls(TextClassificationOptions(name=cls.name, kind=kind, labels=labels), tokenizer, max_length)

    @property
    def names(self) -> list[str]:
        """Label names in the order of their ids; empty for regression."""
        labels = self.options.labels
        return list(dict.fromkeys(labels.values())) if isinstance(labels, dict) else []

    @property
    def known_labels(self) -> frozenset[str] | None:
        return frozenset([*dict(self.options.labels or {}), *self.names]) or None

    @property
    def headline(self) -> str:
        return {"single-label": "accuracy", "multi-label": "f1_micro", "regression": "spearman"}[
            self.options.kind or ""
        ]

    def describe(self) -> str:
        """Such as `single-label, 2 labels: negative, positive`."""
        shown = ", ".join(self.names[:10]) + (", …" if len(self.names) > 10 else "")
        return f"{self.options.kind}, {len(self.names)} labels: {shown}" if self.names else "regression"

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        yield from length_findings(features, split, self.max_length, self.options.overflow)

    # --- text -> features -> model -------------------------------------------------------------------------------

    def encode(self, rows: Dataset) -> Dataset:
        from datasets import Dataset

        pair = "text_b" in rows.column_names
        columns = encode_texts(
            self.tokenizer,
            rows["text_a"][:] if pair else rows["text"][:],
            rows["text_b"][:] if pair else None,
            max_length=self.max_length,
            overflow=self.options.overflow,
            stride=self.options.stride,
        )
        if any(target in rows.column_names for target in self.targets):
            targets = self._targets(rows).tolist()
            columns["labels"] = [targets[row] for row in columns["row"]]
        return Dataset.from_dict(columns)

    def _targets(self, rows: Dataset) -> np.ndarray:
        """Label ids `(rows,)`, 0/1 rows `(rows, labels)`, or numbers `(rows,)`."""
        import numpy as np

        if self.options.kind == "regression":
            return np.asarray(rows["score"][:], dtype=np.float64)
        ids = {name: index for index, name in enumerate(self.names)}
        known = ids | {value: ids[name] for value, name in dict(self.options.labels or {}).items()}
        column = TARGETS[self.options.kind or ""]
        values = rows[column][:] if column in rows.column_names else []
        strangers = {v: None for v in (values if column == "label" else chain.from_iterable(values)) if v not in known}
        if strangers or not values:
            what = f"labels that the model does not know: {', '.join(map(repr, list(strangers)[:10]))}"
            fix = f"It knows {', '.join(self.names)}."
            raise DataError(Problem(f"column `{column}`", what if values else "not in the rows", fix))
        if self.options.kind == "single-label":
            return np.asarray([known[value] for value in values], dtype=np.int64)
        table = np.zeros((len(rows), len(ids)), dtype=np.float64)
        for row, several in enumerate(values):
            table[row, [known[value] for value in several]] = 1.0
        return table

    def units(self, features: Dataset) -> Sequence[int]:
        """All windows of a row are learned together, because their logits are pooled."""
        rows: Sequence[int] = features["row"][:]
        return rows

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        from transformers import AutoModelForSequenceClassification

        problem = {"single-label": "single_label", "multi-label": "multi_label"}
        names = self.names or ["score"]
        settings = {
            "num_labels": len(names),
            "id2label": dict(enumerate(names)),
            "label2id": {name: index for index, name in enumerate(names)},
            "problem_type": f"{problem[kind]}_classification" if (kind := self.options.kind) in problem else kind,
        }
        return load_model(encoder, AutoModelForSequenceClassification, settings, new_head=new_head)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy, binary cross-entropy (over all labels) or squared error, summed; `logits` are `(windows, labels)`."""
        import torch
        from torch.nn import functional as F

        rows, first, windows = _rows(batch)
        logits = torch.zeros(len(rows), outputs.logits.shape[-1], device=outputs.logits.device)
        logits = logits.index_add(0, windows, outputs.logits.float()) / torch.bincount(windows)[:, None]
        labels = batch["labels"][first]
        if self.options.kind == "regression":
            return F.mse_loss(logits[:, 0], labels.float(), reduction="sum")
        if self.options.kind == "multi-label":
            pos_weight = self._tensor(self.options.pos_weight, logits)
            return F.binary_cross_entropy_with_logits(logits, labels.float(), pos_weight=pos_weight, reduction="sum")
        weight = self._tensor(self.options.class_weights, logits)
        return F.cross_entropy(logits, labels, weight=weight, reduction="sum", label_smoothing=label_smoothing)

    def count(self, batch: Batch) -> float:
        """Rows, each with its class weight; for multi-label, decisions."""
        _, first, _ = _rows(batch)
        labels = batch["labels"][first]
        if self.options.kind == "multi-label":
            return float(labels.numel())
        weight = self._tensor(self.options.class_weights, labels)
        return float(len(labels)) if weight is None else float(weight[labels].sum())

    def _tensor(self, weights: Any, like: Tensor) -> Tensor | None:
        import torch

        return torch.tensor([weights[name] for name in self.names], device=like.device) if weights else None

    # --- model -> answers ------------------------------------------------------------------------------------------

    def keep(self, outputs: Any, batch: Batch) -> np.ndarray:
        """Logits, `(features, labels)` fp32."""
        logits: np.ndarray = outputs.logits.float().cpu().numpy()
        return logits

    def decode(self, kept: Sequence[np.ndarray], features: Dataset, rows: Dataset) -> list[Answer]:
        """One answer per row: `label`, `scores` and `score`; or `labels` and `scores`; or `score`; and `truncated`."""
        import numpy as np

        _, starts, counts = np.unique(np.asarray(features["row"][:]), return_index=True, return_counts=True)
        logits = np.add.reduceat(np.stack(kept).astype(np.float64), starts) / counts[:, None]
        truncated = (np.asarray(features["lost"][:])[starts] > 0).tolist()
        if self.options.kind == "regression":
            return [{"score": s, "truncated": t} for s, t in zip(logits[:, 0].tolist(), truncated, strict=True)]
        single = self.options.kind == "single-label"
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
        given = [n for n, p in scores.items() if p >= (limits[n] if isinstance(limits, dict) else limits or 0.5)]
        return {"labels": given, "scores": scores}

    def fit(self, answers: Sequence[Answer], rows: Dataset) -> Self:
        """Temperature (Guo et al. 2017), then per-label thresholds of best F1; what the recipe fixed stays."""
        if self.options.kind == "regression":
            return self
        references, table = self._targets(rows), self._table(answers)
        found: dict[str, Any] = {}
        if self.options.kind == "single-label":
            if self.options.temperature is None:
                found["temperature"] = calibration.fit_temperature_softmax(table, references)
            return replace(self, options=self.options.model_copy(update=found))
        if self.options.temperature is None:
            found["temperature"] = calibration.fit_temperature_sigmoid(table, references)
            table = _tempered(table, found["temperature"], multi=True)
        if self.options.thresholds is None:
            found["thresholds"] = dict(zip(self.names, calibration.fit_thresholds(table, references), strict=True))
        return replace(self, options=self.options.model_copy(update=found))

    def score(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        scored: dict[str, float | None] = self._measure(
            answers, rows, metrics.single_label, metrics.multi_label, metrics.regression
        )
        return scored

    def intervals(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, tuple[float, float] | None]:
        found: dict[str, tuple[float, float] | None] = self._measure(
            answers,
            rows,
            intervals.intervals_single_label,
            intervals.intervals_multi_label,
            intervals.intervals_regression,
        )
        return found

    def user_score(self, metric: Any, answers: Sequence[Answer], rows: Dataset) -> dict[str, float | None]:
        """A user's `evaluate.Metric` on label ids `(rows,)`, 0/1 `(rows, labels)`, or numbers `(rows,)`."""
        from bertkit.evaluation.hf_metrics import compute_user_metric

        scored: dict[str, float | None] = self._measure(
            answers,
            rows,
            lambda references, _, names, given: compute_user_metric(metric, given, references),
            lambda references, _, given, names: compute_user_metric(metric, given, references),
            lambda references, given: compute_user_metric(metric, given, references),
        )
        return scored

    def details(self, answers: Sequence[Answer], rows: Dataset) -> dict[str, Any]:
        """Confusion matrix (rows: truth), and calibration before and after the temperature."""
        if self.options.kind == "regression":
            return {}
        temperature, table = self.options.temperature or 1.0, self._table(answers)
        multi = self.options.kind == "multi-label"
        before = _tempered(table, 1 / temperature, multi=multi)
        ece: list[float] = [
            self._measure(answers, rows, metrics.single_label, metrics.multi_label, None, table=t)["ece"]
            for t in (before, table)
        ]
        if multi:
            count = lambda references, _, given, names: metrics.multi_label_confusion_matrices(references, given)  # noqa: E731
        else:
            count = lambda references, _, names, given: metrics.confusion_matrix(references, given, len(names))  # noqa: E731
        return {
            "labels": self.names,
            "confusion_matrix": self._measure(answers, rows, count, count, None),
            "calibration": {"temperature": temperature, "ece_before": ece[0], "ece_after": ece[1]},
        }

    def baselines(self, train: Dataset, rows: Dataset) -> dict[str, dict[str, float | None]]:
        kind: Any = self.options.kind
        targets = self._targets(train), self._targets(rows)
        return simple.baselines(kind, _joined(train), targets[0], _joined(rows), targets[1], self.names)

    def _measure(
        self,
        answers: Sequence[Answer],
        rows: Dataset,
        single: Any,
        several: Any,
        number: Any,
        *,
        table: Any = None,
    ) -> Any:
        """Call the function of this kind with references, probabilities and decisions."""
        import numpy as np

        references = self._targets(rows)
        if self.options.kind == "regression":
            return number(references, np.asarray([answer["score"] for answer in answers]))
        table = self._table(answers) if table is None else table
        ids = {name: index for index, name in enumerate(self.names)}
        if self.options.kind == "single-label":
            return single(references, table, self.names, np.asarray([ids[answer["label"]] for answer in answers]))
        given = np.zeros(references.shape, dtype=np.int64)
        for row, answer in enumerate(answers):
            given[row, [ids[name] for name in answer["labels"]]] = 1
        return several(references, table, given, self.names)

    def _table(self, answers: Sequence[Answer]) -> np.ndarray:
        """Probabilities, `(rows, labels)`."""
        import numpy as np

        return np.asarray([[answer["scores"][name] for name in self.names] for answer in answers], dtype=np.float64)


def _rows(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The batch's rows `(rows,)`, each row's first window `(rows,)`, and each window's row `(windows,)`."""
    import torch

    rows, windows, counts = torch.unique_consecutive(batch["row"], return_inverse=True, return_counts=True)
    return rows, counts.cumsum(0) - counts, windows


def _tempered(table: np.ndarray, temperature: float, *, multi: bool) -> np.ndarray:
    """Probabilities `(rows, labels)` at another temperature, from those at the one in use."""
    import numpy as np
    from scipy.special import logit

    tiny = np.finfo(np.float64).tiny
    if multi:
        return calibration.apply_temperature_sigmoid(logit(np.clip(table, tiny, np.nextafter(1, 0))), temperature)
    return calibration.apply_temperature_softmax(np.log(np.maximum(table, tiny)), temperature)


def _joined(rows: Dataset) -> list[str]:
    """Each row's text, or both texts of its pair in one string."""
    if "text" in rows.column_names:
        return list(rows["text"])
    return [f"{a}\n{b}" for a, b in zip(rows["text_a"], rows["text_b"], strict=True)]
