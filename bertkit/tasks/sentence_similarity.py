"""Sentence similarity: one vector per text; texts of similar meaning have similar vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
from pydantic import field_validator

from bertkit.data.columns import label_names
from bertkit.data.on_disk import column_values
from bertkit.data.rows import Columns
from bertkit.data.schema import Answer, Column, Finding, Schema
from bertkit.data.table import required
from bertkit.errors import DataError
from bertkit.evaluation import baselines, similarity
from bertkit.evaluation.graded import Graded
from bertkit.tasks.base import PAIRS, Baselines, Batch, HeldOut, OptionValues, Predict
from bertkit.tasks.class_labels import Labelled, Labels, Range, as_targets, names_of, settle_labels
from bertkit.tasks.fields import READ, SCORE, Decision, Key, Usage, form
from bertkit.tasks.vector_task import VECTOR, VectorOptions, VectorTask, stacked
from bertkit.text import Json, escape_controls

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor

LOSSES = {  # target -> the losses it can be learned with, the default first
    "score": ("cosent", "cosine-mse"),
    "label": ("cosent", "cosine-mse"),
    "positive": ("multiple-negatives-ranking",),
}

SIMILARITY = form(
    "Similarity",
    "The cosine of the vectors of a pair.",
    SCORE,
    Key("label", "label", str, optional=True),
    Key("rank", "number", int, "how many positives of the request are at least as near", optional=True),
    Key("negative_score", "score", float, optional=True),
    *READ,
    line="{label}  {score}",
)


class SentenceSimilarityOptions(VectorOptions):
    """What a recipe may say under `task:`. null means: inferred from the data, or fitted on validation."""

    metrics = frozenset(similarity.SELECTING)
    unsmoothed = PAIRS
    name: Literal["sentence-similarity"]
    loss: Literal["cosent", "cosine-mse", "multiple-negatives-ranking"] | None = None
    """null: cosent for `score` and `label`, multiple-negatives-ranking for `positive`."""
    labels: Labels = None
    """Two label names, or {value in the data: name}: the second means similar. null: from train."""
    score_range: Range = None
    """cosine-mse: the scores that mean cosine 0 and 1. null: minimum and maximum of train."""
    threshold: float | None = None
    """Two labels by cosine: the cosine from which a pair is similar. null: fitted on validation."""

    @field_validator("loss", mode="before")
    @classmethod
    def _of_cosines(cls, loss: Any) -> Any:
        if loss == "softmax":
            raise ValueError(
                "softmax classifies pairs; write task: text-classification, which reads pairs with labels"
            )
        return loss


@final
class SentenceSimilarity(Labelled, VectorTask[SentenceSimilarityOptions]):
    """One vector per text, compared by cosine (Reimers & Gurevych 2019).

    Learns from graded pairs (`text_a`, `text_b`, `score`), pairs with one of two labels (`label`), or anchors
    with a `positive` and, where there is one, a `negative`. It is a sentence-transformers model.
    """

    Options = SentenceSimilarityOptions
    name = "sentence-similarity"
    schema = Schema(
        columns={
            "text": Column("text", "a text, to be embedded"),
            "text_a": Column("text", "the first text of a pair", unordered=True),
            "text_b": Column("text", "the second text of a pair", unordered=True),
            "anchor": Column("text", "a text that has a positive", unordered=True, side="query"),
            "score": Column("number", "how similar the pair is", answered="score"),
            "label": Column("label", "the relation of the two texts"),
            "positive": Column("text", "a text similar to the anchor", unordered=True, side="document"),
            "negative": Column("text", "a text that is not similar", shown=False, side="document"),
        },
        inputs=(frozenset({"text_a", "text_b"}), frozenset({"anchor"}), frozenset({"text"})),
        targets=("score", "label", "positive"),
        context=("positive", "negative"),
    )
    forms = (VECTOR, SIMILARITY)
    shares_encoder = True
    no_words = "an explanation needs two texts: the cosine between them is explained"
    usage = Usage(
        '{"text_a": "your text", "text_b": "another"}',
        """\
from sentence_transformers import SentenceTransformer

SentenceTransformer("PATH_OR_HUB_ID").encode(["your text", "another"])""",
        "scores of pairs, with labels by the fitted threshold, and with a mark on truncated texts",
        name,
    )

    # --- from a recipe

    @classmethod
    def infer_options(
        cls, options: SentenceSimilarityOptions, rows: Dataset, class_names: Sequence[str]
    ) -> OptionValues:
        """Loss, labels and range. Raises DataError on contradictions."""
        target = next(name for name in cls.schema.targets if name in rows.column_names)
        required(rows, "anchor" if target == "positive" else "text_a")
        loss = options.loss or LOSSES[target][0]
        if loss not in LOSSES[target]:
            raise DataError(
                "task.loss",
                f"{loss} does not support the rows' column `{target}`",
                f"Use {' or '.join(LOSSES[target])}, or leave it out.",
            )
        idle = ["labels", "threshold"] * (target != "label")
        idle += ["score_range"] * (target != "score" or loss != "cosine-mse")
        for key in idle:
            if getattr(options, key) is not None:
                what = f"has no effect on rows with `{target}` and loss {loss}"
                raise DataError(f"task.{key}", what, "Remove it.")
        settled: OptionValues = {"loss": loss}
        if target == "label":
            settled["labels"] = settle_labels(options.labels, label_names(rows["label"][:], class_names))
            names = names_of(settled["labels"])
            if len(names) != 2:
                raise DataError(
                    "task.labels",
                    f"{loss} needs two labels, but train has {', '.join(names)}",
                    "Use task: text-classification, which supports pairs too.",
                )
        if target == "score" and loss == "cosine-mse":
            least = min(rows["score"])
            greatest = max(rows["score"])
            settled["score_range"] = options.score_range or [least, greatest]
            low, high = settled["score_range"]
            if not low <= least <= greatest <= high:
                raise DataError(
                    "task.score_range",
                    f"[{low:.15g}, {high:.15g}], but scores of train go from {least:.15g} to {greatest:.15g}",
                    "Widen it, least first, or leave it out; make distances negative.",
                )
        return settled

    @property
    def metrics(self) -> Sequence[str]:
        if self.options.loss == "multiple-negatives-ranking":
            return similarity.RANKED
        return similarity.LABELLED if self.names else similarity.GRADED

    @property
    def decision(self) -> Decision:
        return Decision("by cosine", "threshold") if self.names else Decision()

    def describe(self) -> str:
        labels = f", labels {escape_controls(', '.join(self.names))}" if self.names else ""
        return f"{super().describe()}, loss {self.options.loss}{labels}"

    def check(self, features: Dataset, split: str) -> Iterator[Finding]:
        yield from super().check(features, split)
        if split == "train" and self.names:
            what = f"train: pairs with the label {self.names[1]!r} are trained as similar"
            yield Finding(
                "note", what, "If they are not, set task.labels, with the label of similar pairs last."
            )
        if split == "train" and self.options.loss in ("cosent", "multiple-negatives-ranking"):
            what = (
                f"train: {self.options.loss} compares the rows of a batch, which accumulation does not "
                "make larger"
            )
            yield Finding("note", what, "Raise per_device_train_batch_size.")

    # --- rows -> features -> model

    def encode(self, rows: Dataset) -> Columns:
        features = super().encode(rows)
        for target in (name for name in self.schema.targets if name in rows.column_names):
            values = self._numbers(rows, target)
            features = Columns({**features.values, "labels": [values[row] for row in features["row"]]})
        return features

    def _numbers(self, rows: Dataset, target: str) -> list[float] | list[int]:
        """What the loss compares with: a number per row; for `positive` nothing, 0."""
        if target == "positive":
            return [0] * len(rows)
        if target == "label":
            return [*as_targets(rows, "label", self.options.labels).tolist()]
        low, high = self.options.score_range or (0.0, 1.0)
        return [(score - low) / ((high - low) or 1.0) for score in column_values(rows, "score")]

    def pair_loss(self, outputs: Any, batch: Batch) -> Tensor:
        """`vectors` are `(texts, size)`: the sides of a row one after the other, rows in order."""
        from torch.nn import functional as F

        from bertkit.models.heads import losses

        if self.options.loss == "multiple-negatives-ranking":
            return super().pair_loss(outputs, batch)
        first = batch["side"] == 0
        a = outputs["vectors"][first]
        b = outputs["vectors"][batch["side"] == 1]
        cosines = F.cosine_similarity(a, b)
        grades = batch["labels"][first].float()
        if self.options.loss == "cosine-mse":
            return F.mse_loss(cosines, grades, reduction="sum")
        return losses.cosent(cosines, grades, self.options.scale) * len(a)

    def decode(self, items: Sequence[Any], features: Dataset, rows: Dataset) -> list[Answer]:
        """`vector` of a text; `score` (cosine) of a pair, with `label` where it learned labels; of an anchor
        `score`, `rank` of its positive among those of its rows (4,096 at a time; of equals the last), and
        `negative_score`.
        """
        if len(features) == len(rows):
            return super().decode(items, features, rows)
        sides = stacked(items).astype(np.float64).reshape(len(rows), -1, len(items[0]))
        pairs = similarity.unit(sides).transpose(1, 0, 2)
        return similarity.by_cosine([*pairs], rows, self.names, self.options.threshold)

    def fit(self, rows: Dataset, predict: Predict) -> OptionValues:
        """The threshold of best accuracy, where there are labels and it is left open."""
        return self.grade([*self.answer(rows, predict)], rows).calibrated() if self.names else {}

    def grade(self, answers: Sequence[Answer], rows: Dataset) -> Graded:
        required(rows, "score", "label", "positive")
        if "score" in rows.column_names or "positive" in rows.column_names:
            return similarity.of_rows(answers, rows)
        if not self.names:
            raise DataError("column `label`", "the model predicts a cosine, and no labels", "Map a `score`.")
        truth = np.asarray(self._numbers(rows, "label"))
        return similarity.LabelledPairs(truth, similarity.of(answers, "score"), self.options.threshold)

    def baselines(self, train: Dataset, rows: Dataset, held_out: HeldOut = ()) -> Baselines:
        """The cosine of TF-IDF vectors, learned on the texts of train; of positives, also that of random
        ones.

        Thresholds are their own, fitted on the held-out rows.
        """
        task = self.with_options({"threshold": None})
        scored = task._by_vectors(train, rows)
        for _, held in held_out:  # the validation rows
            fitted = task._by_vectors(train, held)
            scored = {name: replace(graded, **fitted[name].calibrated()) for name, graded in scored.items()}
        return {name: graded.scores for name, graded in scored.items()}

    def _by_vectors(self, train: Dataset, rows: Dataset) -> Json:
        """Name of a baseline -> its answers to these rows, graded."""
        train = baselines.enough(train)
        names = [name for name in self.schema.texts[1:] if name in rows.column_names]
        texts = [rows[name][:] for name in names]
        learned = [text for name in names if name in train.column_names for text in train[name]]
        vectors = baselines.tfidf_vectors(learned, texts)
        if "positive" in names:
            vectors["random"] = [*map(similarity.unit, baselines.random_vectors(texts))]
        return {name: self._of_vectors(sides, rows) for name, sides in vectors.items()}

    def _of_vectors(self, sides: Sequence[Any], rows: Dataset) -> Graded:
        """Scores of vectors of each side, `(rows, size)`, answered as a model's are: a chunk of rows at a
        time.
        """
        answers = list[Answer]()
        for start in range(0, len(rows), self.chunk_size):
            chunk = slice(start, start + self.chunk_size)
            part = rows.select(range(len(rows))[chunk])
            answers += similarity.by_cosine([side[chunk] for side in sides], part, self.names, None)
        return self.grade(answers, rows)
