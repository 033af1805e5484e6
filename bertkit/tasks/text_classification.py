"""Text classification: one text or a pair; one label, several, or a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final, get_args

import numpy as np
from pydantic import Field

from bertkit.data.disk_list import DiskList
from bertkit.data.on_disk import column_values, numbers
from bertkit.data.rows import Columns
from bertkit.data.schema import Answer, Column, Schema
from bertkit.data.table import required
from bertkit.encoding.padding import first_windows, mean_of_windows
from bertkit.encoding.texts import encode_texts
from bertkit.errors import DataError, ModelError, require_finite
from bertkit.evaluation import baselines, metrics
from bertkit.evaluation.calibration import apply_temperature
from bertkit.evaluation.conformal import Conformal
from bertkit.evaluation.graded_labels import GradedLabels
from bertkit.evaluation.metrics import Kind
from bertkit.models.encoder import Encoder, classifier, load_and_report
from bertkit.models.untrusted import read_object
from bertkit.tasks import class_labels
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
)
from bertkit.tasks.class_labels import Labels, Probability, Range, Temperature, Weights
from bertkit.tasks.fields import NUMBER, PIPELINE, READ, SCORE, AnswerForm, Decision, Key, Usage, form
from bertkit.text import Record, escape_controls

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel

TARGETS: dict[Kind, str] = {"single-label": "label", "multi-label": "labels", "regression": "score"}
OnVectors = Literal["head", "contrastive"]  # methods whose model is linear in the vectors of its encoder
LABEL = Key("label", "label", str | None, "null where its probability is below its threshold")
LABELS = Key("labels", "label", list[str])
SCORES = Key("scores", "score", dict[str, float], "label -> calibrated probability")
FORMS: dict[Kind, AnswerForm] = {
    "single-label": form("Label", "The most probable label.", LABEL, SCORE, SCORES, *READ),
    "multi-label": form("Labels", "The labels above their thresholds.", LABELS, SCORES, *READ),
    "regression": NUMBER,
}


class _Example(NamedTuple):
    """Inputs as bertkit, transformers' pipeline and sentence-transformers read them."""

    row: str
    pipeline: str
    texts: str


_TEXT = _Example('"your text"', '"your text"', '["your text", "another"]')
_PAIR = _Example(
    '{"text_a": "your text", "text_b": "another"}',
    '{"text": "your text", "text_pair": "another"}',
    '[["your text", "another"]]',
)
PROBLEMS = {kind: f"{kind.replace('-', '_')}_classification" for kind in TARGETS} | {
    "regression": "regression"
}


class TextClassificationOptions(TaskOptions):
    """What a recipe may say under `task:`. null means: inferred from the data, or fitted on validation."""

    metrics = metrics.SELECTING
    head_settings = "pooling", "dropout"
    untrained = get_args(OnVectors)
    name: Literal["text-classification"]
    kind: Literal["single-label", "multi-label", "regression"] | None = None
    """null: from the columns (`label`, `labels`, `score`)."""
    pair: bool | None = None
    """null: by the columns, `text` or `text_a` and `text_b`."""
    labels: Labels = None
    """Label names in order, or {value in the data: name}. null: from train."""
    method: Literal[OnVectors, "full"] | None = Field(
        None,
        description="For few rows. head: a linear model on the frozen encoder. contrastive: contrastive "
        "fine-tuning of "
        "encoder and head. full: fine-tuning, with defaults for few rows. null: fine-tuning.",
    )
    overflow: Literal["truncate", "window", "error"] = "truncate"
    """Texts longer than max_length: truncated and counted, pooled over windows, or refused."""
    stride: int = Field(32, ge=0)
    """Tokens that adjacent windows share."""
    class_weights: Weights | None = Field(
        None,
        description="auto: n / (labels * count), scikit-learn's `balanced`. With several labels per row: "
        "weights of a "
        "label's positive rows; auto: negatives / positives, at most 100.",
    )
    temperature: Temperature = None
    """Softmax or sigmoid temperature. null: fitted on validation."""
    thresholds: Probability | dict[str, Probability] | None = Field(
        None,
        description="Probability from which a label is assigned. null: for multi-label fitted on "
        "validation, for "
        "single-label none: the label is always given.",
    )
    cutoffs: dict[str, Probability] | None = Field(
        None,
        description="Single-label: the probability from which a label is given even where another is more "
        "probable; "
        "below it the best other label is.",
    )
    target_scale: Range = Field(
        None,
        description="regression: the mean and the standard deviation of the targets, which are learned as "
        "0 and 1. "
        "null: those of train, or median and quartiles where a few targets are extreme.",
    )
    conformal: Conformal | None = None
    """What sets and intervals with a coverage are taken from. null: fitted on validation."""

    def pairs(self, rows: Dataset) -> bool:
        """Whether the rows are pairs of texts. Raises DataError where `pair` says otherwise."""
        pairs = "text_b" in rows.column_names
        if self.pair not in (None, pairs):
            raise DataError(
                "task.pair",
                f"task.pair is {str(self.pair).lower()}, but the rows have {', '.join(rows.column_names)}",
                "Map `text`, or `text_a` and `text_b`, under data.columns.",
            )
        return pairs


@final
class TextClassification(class_labels.Labelled, Task[TextClassificationOptions]):
    """Labels for texts, from the pooled first token (Devlin et al. 2019, section 4.1).

    The model is transformers' own `…ForSequenceClassification`, or an encoder with a linear head, where a
    method of `OnVectors` needs one. Under `overflow: window` a row's logits are the mean of its windows'
    logits, in training as in prediction.
    """

    Options = TextClassificationOptions
    name = "text-classification"
    schema = Schema(
        columns={
            "text": Column("text", "the text"),
            "text_a": Column("text", "the first text of a pair"),
            "text_b": Column("text", "the second text of a pair"),
            "label": Column("label", "one class", answered="scores"),
            "labels": Column("labels", "any number of classes", answered="scores"),
            "score": Column("number", "the number to predict", answered="score"),
        },
        inputs=(frozenset({"text"}), frozenset({"text_a", "text_b"})),
        targets=("label", "labels", "score"),
    )
    forms = tuple(FORMS.values())
    shares_encoder = True
    pipeline = name

    # --- from a recipe, or from a model not trained by bertkit

    @classmethod
    def schema_of(cls, options: TextClassificationOptions) -> Schema:
        """The schema, whose labels have the names of `task.labels`, with the target of `task.kind` alone."""
        schema = super().schema_of(options)
        if options.kind is None:
            return schema
        target = TARGETS[options.kind]
        values = options.labels if isinstance(options.labels, dict) else ()
        whole = bool(values) and all(value.removeprefix("-").isdecimal() for value in values)
        verbatim = options.kind == "single-label" and not whole  # 1.0 is read as 1 where 1 was learned
        column = schema.columns[target]._replace(verbatim=verbatim)
        return replace(schema, targets=(target,), columns={**schema.columns, target: column})

    @classmethod
    def infer_options(
        cls, options: TextClassificationOptions, rows: Dataset, class_names: Sequence[str]
    ) -> OptionValues:
        """Kind, labels and weights. Raises DataError on contradictions."""
        kinds = [kind for kind, column in TARGETS.items() if column in rows.column_names]
        kind = options.kind or kinds[0]
        pair = options.pairs(rows)
        if kind not in kinds:
            raise DataError(
                "task.kind",
                f"{kind} needs a column `{TARGETS[kind]}`, but the rows have {', '.join(rows.column_names)}",
                f"Map it: data: {{columns: {{{TARGETS[kind]}: NAME}}}}",
            )
        if kind == "regression" and options.method == "contrastive":
            raise DataError(
                "task.method", "contrastive needs labels; the rows have scores", "Use method: head."
            )
        trained = kind == "regression" and options.method != "head"
        if options.target_scale and not (trained and options.target_scale[1] > 0):
            raise DataError(
                "task.target_scale",
                "expected a mean and a standard deviation above 0, of a regression without method: head",
                "Remove it.",
            )
        if kind == "regression":
            scale = options.target_scale or class_labels.mean_and_deviation(column_values(rows, "score"))
            return {"kind": kind, "pair": pair, "target_scale": scale if trained else None}
        classes = class_labels.settle_classes(options, rows, TARGETS[kind], class_names)
        return {"kind": kind, "pair": pair, **classes}

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: Any) -> Restored:
        """Its id2label; softmax; as in transformers' pipeline a sigmoid if it is multi-label, or has one
        output and does not regress; no temperature, truncation.

        Raises ModelError on label names that repeat, and on a regression of several numbers.
        """
        kinds = {problem: kind for kind, problem in PROBLEMS.items() if kind != "single-label"}
        kind = kinds.get(
            str(config.problem_type), "multi-label" if config.num_labels == 1 else "single-label"
        )
        if kind != "regression":
            names = class_labels.output_names(config)
            return {"kind": kind, "labels": dict(zip(names, names, strict=True))}, None
        if config.num_labels != 1:
            raise ModelError(
                f"{config.name_or_path}/config.json",
                f"problem_type is regression, with {config.num_labels} outputs; bertkit supports one",
                "Correct problem_type, or use a model with one output.",
            )
        return {"kind": kind}, None

    def describe(self) -> str:
        shown = escape_controls(", ".join(self.names[:10])) + (", …" if len(self.names) > 10 else "")
        inputs = "pairs of texts" if self.options.pair else "single texts"
        return f"{inputs}, {self.kind}" + (f", {len(self.names)} labels: {shown}" if self.names else "")

    @property
    def kind(self) -> Kind:
        """What the targets are; settled before training."""
        return self.options.kind or "single-label"

    @property
    def answers(self) -> Sequence[AnswerForm]:
        return (FORMS[self.kind],)

    @classmethod
    def usage_of(cls, options: TextClassificationOptions) -> Usage:
        example = _PAIR if options.pair else _TEXT
        plain = f'{PIPELINE}pipeline("text-classification", model="PATH_OR_HUB_ID")({example.pipeline})'
        if options.method in options.untrained:
            function = {"single-label": "softmax(-1)", "multi-label": "sigmoid()"}.get(str(options.kind))
            probabilities = f"""\
temperature = model.config.bertkit["task"]["temperature"] or 1.0
probabilities = (logits / temperature).{function}  # a column for each of model.config.id2label"""
            plain = f"""\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH_OR_HUB_ID")
logits = model.encode({example.texts}, convert_to_tensor=True)
{probabilities if function else "scores = logits[:, 0]"}"""
        adds = (
            "calibrated, with the fitted thresholds of multi-label models, and with a mark on truncated texts"
        )
        return Usage(example.row, plain, adds, cls.name)

    @property
    def decision(self) -> Decision:
        return Decision(self.kind, "" if self.kind == "regression" else "thresholds")

    @property
    def inputs(self) -> Sequence[frozenset[str]]:
        return self.schema.inputs if self.options.pair is None else (self.schema.inputs[self.options.pair],)

    # --- rows -> features

    def encode(self, rows: Dataset) -> Columns:
        names = ("text_a", "text_b") if self.options.pairs(rows) else ("text",)
        columns = encode_texts(
            self.tokenizer,
            [rows[name][:] for name in names],
            max_length=self.max_length,
            overflow=self.options.overflow,
            stride=self.options.stride,
        )
        if any(target in rows.column_names for target in self.schema.targets):
            columns["labels"] = self.standardised(self._targets(rows))[columns["row"]].tolist()
        return Columns(columns)

    def _targets(self, rows: Dataset) -> np.ndarray:
        """Label ids `(rows,)`, 0/1 `(rows, labels)`, or numbers `(rows,)`. Raises DataError."""
        return class_labels.as_targets(rows, required(rows, TARGETS[self.kind]), self.options.labels)

    def standardised(self, targets: Any) -> Any:
        """An array of targets as the model learns them: while a regression is trained, by `target_scale`."""
        if not self.options.target_scale:
            return targets
        mean, deviation = self.options.target_scale
        return (targets - mean) / deviation

    def units(self, features: Dataset) -> np.ndarray:
        """All windows of a row are trained on together, because their logits are pooled."""
        return numbers(features, "row")

    # --- features -> model -> loss

    @property
    def method(self) -> str | None:
        return self.options.method if self.options.method in self.options.untrained else None

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        from transformers import AutoModelForSequenceClassification

        from bertkit.models.output_layer import output_layers, rescale

        settings = classifier(self.names or ["score"]) | {"problem_type": PROBLEMS[self.kind]}
        if self.method and (new_head or (encoder.folder / "modules.json").is_file()):
            from bertkit.models.heads.linear_head import linear_classifier

            unit = self.options.method == "contrastive"
            return linear_classifier(encoder, settings, new_head=new_head, unit=unit)
        model, drawn = load_and_report(
            encoder, AutoModelForSequenceClassification, settings, new_head=new_head
        )
        scale = self.options.target_scale
        loaded = drawn.isdisjoint(f"{name}.weight" for name in output_layers(model))
        if scale and new_head and loaded:
            stated = read_object(encoder.folder / "config.json")
            if stated.get("problem_type") == PROBLEMS["regression"]:  # its output is the numbers themselves
                rescale(model, 1 / scale[1], -scale[0] / scale[1])
        return model

    def extra_modules(self, model: Any) -> Mapping[str, Module]:
        from bertkit.models.heads.linear_head import linear_modules

        return linear_modules(model)

    def extra_tensors(self, model: Any) -> Mapping[str, Tensor]:
        from bertkit.models.heads.linear_head import linear_tensors

        return linear_tensors(model)

    def extra_files(self, model: Any) -> Record:
        from bertkit.models.heads.linear_head import linear_files

        return linear_files(model, self.max_length)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy, binary cross-entropy over all labels, or squared error; `logits` are `(windows,
        labels)`.

        Class weights are those of rows, or with several labels the `pos_weight` of torch's BCEWithLogitsLoss.
        """
        from torch.nn import functional as F

        outputs, labels = self.loss_inputs(outputs, batch)
        logits = outputs.logits
        if self.kind == "regression":
            return F.mse_loss(logits[:, 0], labels, reduction="sum")
        weight = class_labels.weight_tensor(self.options.class_weights, self.names, logits)
        if self.kind == "multi-label":
            return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum", pos_weight=weight)
        return F.cross_entropy(
            logits, labels, weight=weight, reduction="sum", label_smoothing=label_smoothing
        )

    def loss_inputs(self, outputs: Any, batch: Batch) -> tuple[Any, Tensor]:
        """`logits`, `(rows, labels)`; label ids `(rows,)`, 0.0 or 1.0 `(rows, labels)`, or `standardised`."""
        labels = first_windows(batch["labels"], batch)
        logits = mean_of_windows(outputs.logits, batch)
        return replace(outputs, logits=logits), labels if self.kind == "single-label" else labels.float()

    def count(self, batch: Batch) -> float:
        """Rows, each with its class weight; for multi-label, decisions."""
        labels = first_windows(batch["labels"], batch)
        if self.kind == "multi-label":
            return float(labels.numel())
        weight = class_labels.weight_tensor(self.options.class_weights, self.names, labels)
        return float(len(labels)) if weight is None else float(weight[labels].sum())

    def finished(self, model: Any) -> TextClassification:
        """After it has learned standardised targets, the model of a regression gives the numbers
        themselves.
        """
        if not self.options.target_scale:
            return self
        from bertkit.models.output_layer import rescale

        mean, deviation = self.options.target_scale
        rescale(model, deviation, mean)
        return self.with_options({"target_scale": None})

    # --- outputs -> answers

    def reduce(self, outputs: Any, batch: Batch) -> Reduced:
        """`logits`, `(features, labels)` fp32."""
        return {"logits": outputs.logits.float()}

    def extra_outputs(self, reduced: Reduced) -> Reduced:
        """`scores`, `(features, labels)`: calibrated probabilities; for regression, the number."""
        if self.kind == "regression":
            return {"scores": reduced["logits"].clone()}
        logits = reduced["logits"] / (self.options.temperature or 1)
        return {"scores": logits.softmax(-1) if self.kind == "single-label" else logits.sigmoid()}

    def decode(self, items: Sequence[np.ndarray], features: Dataset, rows: Dataset) -> list[Answer]:
        """`label` (None below its threshold), `score` and `scores`; or `labels` and `scores`; or `score`.
        Raises ModelError.
        """
        starts, counts = np.unique(numbers(features, "row"), return_index=True, return_counts=True)[1:]
        logits = np.add.reduceat(np.stack(items).astype(np.float64), starts) / counts[:, None]
        require_finite(np.isfinite(row).all() for row in logits)
        if self.kind == "regression":
            mean, deviation = self.options.target_scale or (0.0, 1.0)
            return [{"score": score} for score in (mean + deviation * logits[:, 0]).tolist()]
        exclusive = self.kind == "single-label"
        thresholds = self.options.thresholds
        table = apply_temperature(logits, self.options.temperature or 1.0, exclusive=exclusive)
        if exclusive:
            return [*class_labels.single_labels(self.names, table, thresholds, self.options.cutoffs)]
        return [class_labels.assigned_labels(self.names, row, thresholds) for row in table.tolist()]

    # --- answers -> scores

    @property
    def metrics(self) -> Sequence[str]:
        return metrics.selecting(self.kind, self.names)

    def fit(self, rows: Dataset, predict: Predict) -> OptionValues:
        """Temperature (Guo et al. 2017), thresholds of best F1 and the calibration of sets, where left
        open.
        """
        return self.grade(DiskList(self.answer(rows, predict)), rows).calibrated()

    def grade(self, answers: Sequence[Answer], rows: Dataset) -> GradedLabels:
        fixed = {
            name: getattr(self.options, name)
            for name in ("temperature", "thresholds", "cutoffs", "conformal")
        }
        return replace(GradedLabels.of(self.kind, self.names, self._targets(rows), answers), **fixed)

    def baselines(self, train: Dataset, rows: Dataset, held_out: HeldOut = ()) -> Baselines:
        def read(part: Dataset) -> baselines.TextRows:
            return baselines.TextRows(baselines.joined_texts(part), self._targets(part))

        learned = read(baselines.enough(train))
        pairs = [
            (learned if part is train else read(baselines.enough(part)), read(held))
            for part, held in held_out
        ]
        settings = self.options.model_dump(include={"thresholds", "cutoffs"})
        weights = None if self.kind == "regression" else self.options.class_weights  # settled: not "auto"
        return baselines.baselines(
            self.kind, learned, read(rows), self.names, pairs, weights=weights, **settings
        )
