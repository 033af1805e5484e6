"""Sentence similarity: one vector per text; texts of similar meaning have similar vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, final

import numpy as np
from pydantic import Field

from bertkit.data.columns import label_names
from bertkit.data.schema import Answer, Column, Finding, Schema
from bertkit.data.table import column_values, numbers, required
from bertkit.errors import DataError, Problem
from bertkit.evaluation import baselines as simple
from bertkit.evaluation import metrics, similarity
from bertkit.evaluation.graded import Graded
from bertkit.evaluation.labels import GradedLabels
from bertkit.models.encoder import Encoder
from bertkit.tasks.base import Batch, Predict
from bertkit.tasks.labels import as_targets, best_label, settle_labels, settle_range
from bertkit.tasks.vectors import TextVector, VectorOptions, VectorTask, stacked

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from transformers import PreTrainedModel

LOSSES = {  # target -> the losses it can be learned with, the default first
    "score": ("cosent", "cosine-mse"),
    "label": ("softmax", "cosent", "cosine-mse"),
    "positive": ("multiple-negatives-ranking",),
}
MIDDLE = 0.5  # the threshold where nothing fitted one


class SentenceSimilarityOptions(VectorOptions):
    """What a recipe may say under `task:`. null means: inferred from the data, or fitted on validation."""

    metrics: ClassVar[frozenset[str]] = frozenset(similarity.SELECTING)
    name: Literal["sentence-similarity"]
    loss: Literal["cosent", "cosine-mse", "softmax", "multiple-negatives-ranking"] | None = Field(
        None, description="null: cosent for `score`, softmax for `label`, multiple-negatives-ranking for `positive`."
    )
    labels: Annotated[list[str], Field(min_length=2)] | None = Field(
        None, description="Label names in order; with a cosine loss the second of two means similar. null: from train."
    )
    score_range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        None, description="cosine-mse: the scores that mean cosine 0 and 1. null: minimum and maximum of train."
    )
    threshold: float | None = Field(
        None, description="Two labels by cosine: the cosine from which a pair is similar. null: fitted on validation."
    )


@final
@dataclass(frozen=True)
class SentenceSimilarity(VectorTask[SentenceSimilarityOptions]):
    """One vector per text, compared by cosine (Reimers & Gurevych 2019).

    Learns from graded pairs (`text_a`, `text_b`, `score`), labelled pairs (`label`), or anchors with a
    `positive` and, where there is one, a `negative`. The model is transformers' own AutoModel, in the layout
    of sentence-transformers, which loads it too. With `loss: softmax` the labels come from a classifier over
    (u, v, |u - v|), saved as `classifier.safetensors`.
    """

    Options = SentenceSimilarityOptions
    name = "sentence-similarity"
    schema = Schema(
        columns={
            "text": Column("text", "a text, to be embedded"),
            "text_a": Column("text", "the first text of a pair"),
            "text_b": Column("text", "the second text of a pair"),
            "anchor": Column("text", "a text that has a positive"),
            "score": Column("number", "how similar the pair is"),
            "label": Column("label", "the relation of the two texts"),
            "positive": Column("text", "a text similar to the anchor"),
            "negative": Column("text", "a text that is not similar"),
        },
        inputs=(frozenset({"text_a", "text_b"}), frozenset({"anchor"}), frozenset({"text"})),
        targets=("score", "label", "positive"),
        context=("positive", "negative"),
    )
    sides = ("text", "text_a", "text_b", "anchor", "positive", "negative")

    # --- from a recipe

    @classmethod
    def settle(cls, options: SentenceSimilarityOptions, rows: Dataset, class_names: Sequence[str]) -> dict[str, Any]:
        """Loss, labels and range. Raises DataError on contradictions."""
        target = next(name for name in cls.schema.targets if name in rows.column_names)
        required(rows, "anchor" if target == "positive" else "text_a")
        loss = options.loss or LOSSES[target][0]
        if loss not in LOSSES[target]:
            what = f"{loss} does not learn from `{target}`, which the rows have"
            raise DataError(Problem("task.loss", what, f"Write {' or '.join(LOSSES[target])}, or leave it out."))
        settled: dict[str, Any] = {"loss": loss}
        if target == "label":
            known = settle_labels(options.labels, label_names(rows["label"][:], class_names))
            settled["labels"] = list(dict.fromkeys(known.values()))
            if loss != "softmax" and len(settled["labels"]) != 2:
                what = f"{loss} learns from two labels, but train has {', '.join(settled['labels'])}"
                raise DataError(Problem("task.loss", what, "Write loss: softmax."))
        if target == "score" and loss == "cosine-mse":
            settled["score_range"] = settle_range(options.score_range, rows["score"])
        return settled

    @property
    def metrics(self) -> Sequence[str]:
        if self.options.loss == "multiple-negatives-ranking":
            return similarity.RANKED
        if self.options.loss == "softmax":
            return metrics.selecting("single-label", self.options.labels or ())
        return similarity.LABELLED if self.options.labels else similarity.GRADED

    @property
    def known_labels(self) -> frozenset[str] | None:
        return frozenset(self.options.labels) if self.options.labels else None

    def describe(self) -> str:
        labels = f", labels {', '.join(self.options.labels)}" if self.options.labels else ""
        return f"{super().describe()}, loss {self.options.loss}{labels}"

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        yield from super().check(features, split)
        if split == "train" and self.options.loss in ("cosent", "multiple-negatives-ranking"):
            what = f"train: {self.options.loss} compares the rows of a batch, which accumulation does not make larger"
            yield Finding("note", what, "Raise per_device_train_batch_size; task.mini_batch bounds its memory.")

    # --- rows -> features -> model

    def encode(self, rows: Dataset) -> Dataset:
        features = super().encode(rows)
        for target in (name for name in self.schema.targets if name in rows.column_names):
            values = self._numbers(rows, target)
            features = features.add_column("labels", [values[row] for row in features["row"]])
        return features

    def _numbers(self, rows: Dataset, target: str) -> list[float] | list[int]:
        """What the loss compares with: a number per row; for `positive` nothing, 0."""
        if target == "positive":
            return [0] * len(rows)
        if target == "label":
            names = self.options.labels or []
            known = dict(zip(names, names, strict=True))
            known |= {str(index): name for index, name in enumerate(names) if str(index) not in known}
            ids: list[int] = as_targets(rows, "label", known).tolist()
            return ids
        low, high = self.options.score_range or (0.0, 1.0)
        return [(score - low) / ((high - low) or 1.0) for score in column_values(rows, "score")]

    def model(self, encoder: Encoder, *, new_head: bool = True) -> PreTrainedModel:
        model = super().model(encoder, new_head=new_head)
        if self.options.loss == "softmax":
            from bertkit.models.heads.vectors import attach_classifier

            size, classes = self.options.dense or model.config.hidden_size, len(self.options.labels or ())
            attach_classifier(model, size, classes, None if new_head else encoder)
        return model

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """`vectors` are `(texts, size)`: the sides of a row one after the other, rows in order."""
        import torch
        from torch.nn import functional as F

        from bertkit.models.heads import vector_losses

        if self.options.loss == "multiple-negatives-ranking":
            return super().loss(outputs, batch)
        a, b = (outputs["vectors"][batch["side"] == side] for side in (0, 1))
        targets = batch["labels"][batch["side"] == 0]
        if self.options.loss == "softmax":
            logits = F.linear(torch.cat([a, b, (a - b).abs()], dim=-1), outputs["weight"], outputs["bias"])
            return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing)
        cosines = vector_losses.cosines(a, b)
        if self.options.loss == "cosine-mse":
            return F.mse_loss(cosines, targets.float(), reduction="sum")
        return vector_losses.cosent(cosines, targets.float(), self.options.scale) * len(a)

    def decode(self, items: Sequence[TextVector], features: Dataset, rows: Dataset) -> list[Answer]:
        """`vector` of a text; `score` (cosine) of a pair, with `label` and `scores` where it learned labels; of an
        anchor `score`, `rank` of its positive among those of its rows (4,096 at a time), and `negative_score`."""
        if len(features) == len(rows):
            return super().decode(items, features, rows)
        sides = stacked(items).astype(np.float64).reshape(len(rows), -1, len(items[0].vector))
        if items[0].classifier is not None:
            answers = self._classified(sides[:, 0], sides[:, 1], *items[0].classifier)
        else:
            unit = sides / np.maximum(np.linalg.norm(sides, axis=-1, keepdims=True), 1e-12)
            answers = self._by_cosine(unit.transpose(1, 0, 2), ranked="positive" in rows.column_names)
        cut = (numbers(features, "lost").reshape(len(rows), -1).sum(axis=1) > 0).tolist()
        return [answer | {"truncated": t} for answer, t in zip(answers, cut, strict=True)]

    def _classified(self, u: np.ndarray, v: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> list[Answer]:
        """The classifier's probabilities for each pair of vectors, `(pairs, size)` each."""
        from scipy.special import softmax

        logits = np.concatenate([u, v, np.abs(u - v)], axis=1) @ weight.astype(np.float64).T + bias.astype(np.float64)
        return [best_label(self.options.labels or [], row) for row in softmax(logits, axis=1).tolist()]

    def _by_cosine(self, sides: Sequence[Any], *, ranked: bool) -> list[Answer]:
        """Answers from the unit vectors of each side, `(rows, size)` each, dense or sparse."""

        def rowwise(a: Any, b: Any) -> list[float]:
            return np.asarray(np.clip((a * b).sum(axis=1), -1, 1)).ravel().tolist()

        answers: list[Answer] = [{"score": score} for score in rowwise(sides[0], sides[1])]
        if self.options.labels and len(self.options.labels) == 2:
            labels, limit = self.options.labels, self._threshold
            answers = [answer | {"label": labels[answer["score"] >= limit]} for answer in answers]
        if ranked:
            table = sides[0] @ sides[1].T
            places = similarity.places(table if isinstance(table, np.ndarray) else table.toarray())
            answers = [answer | {"rank": place} for answer, place in zip(answers, places, strict=True)]
        if len(sides) > 2:
            worse = rowwise(sides[0], sides[2])
            answers = [answer | {"negative_score": score} for answer, score in zip(answers, worse, strict=True)]
        return answers

    @property
    def _threshold(self) -> float:
        return MIDDLE if self.options.threshold is None else self.options.threshold

    def fit(self, rows: Dataset, predict: Predict) -> dict[str, Any]:
        """The threshold of best accuracy, where two labels come from cosines and the recipe left it open."""
        if not self.options.labels or self.options.loss == "softmax" or self.options.threshold is not None:
            return {}
        cosines = [answer["score"] for answer in self.answer(rows, predict)]
        return {"threshold": similarity.best_threshold(self._numbers(rows, "label"), cosines)}

    def grade(self, answers: Sequence[Answer], rows: Dataset) -> Graded:
        required(rows, "score", "label", "positive")
        if "score" in rows.column_names or "positive" in rows.column_names:
            return similarity.of_rows(answers, rows)
        if self.options.loss == "softmax":
            return GradedLabels("single-label", self.options.labels or [], self._numbers(rows, "label"), answers)
        if not self.options.labels:
            raise DataError(Problem("column `label`", "this model learned no labels, only cosines", "Map a `score`."))
        return similarity.labelled(self._numbers(rows, "label"), similarity.of(answers, "score"), self._threshold)

    def baselines(self, train: Dataset, rows: Dataset) -> dict[str, dict[str, float | None]]:
        """What the cosine of TF-IDF vectors, learned on the texts of train, scores."""
        if self.options.loss == "softmax":
            return {}
        names = [name for name in self.sides if name in rows.column_names and name != "text"]
        train = simple.enough(train)
        sides = simple.tfidf_vectors([text for name in names for text in train[name]], [rows[n][:] for n in names])
        if sides is None:
            return {}
        starts = range(0, len(rows), self.chunk_size)  # ranks are among the rows of a chunk, as the model's are
        chunks = ([side[start : start + self.chunk_size] for side in sides] for start in starts)
        answers = [answer for chunk in chunks for answer in self._by_cosine(chunk, ranked="positive" in names)]
        if not self.options.labels:
            return {"tf-idf cosine": self.grade(answers, rows).scores}
        truth, cosines = self._numbers(rows, "label"), similarity.of(answers, "score")
        best = similarity.best_threshold(truth, cosines)
        return {"tf-idf cosine": similarity.labelled(truth, cosines, best).scores}
