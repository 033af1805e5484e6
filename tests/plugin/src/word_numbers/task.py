"""A number for each word of a text, such as the time that a reader needs for it: token-level regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

import numpy as np
from pydantic import Field

from bertkit.tasks import (
    READ,
    Answer,
    Batch,
    Column,
    Columns,
    Encoder,
    Graded,
    Key,
    Schema,
    Scored,
    Task,
    TaskOptions,
    emissions,
    encode_words,
    form,
    load_model,
    regression,
    sentences,
    window_emissions,
    word_logits,
    words_of_rows,
)

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor

METRICS = ("pearson", "spearman", "neg_mean_squared_error", "neg_mean_absolute_error")
PLACE = (Key("start", "number", int), Key("end", "number", int))
WORD = form(
    "NumberedWord",
    "A word.",
    Key("word", "text", str),
    Key("number", "number", float),
    *PLACE,
    line="{word} {number}",
)
NUMBERS = form("Numbers", "Words, each with its number.", Key("words", "span", [WORD]), *READ, line="{words}")


class WordNumbersOptions(TaskOptions):
    """The `task:` section of a recipe."""

    metrics: ClassVar[frozenset[str]] = frozenset(METRICS)
    name: Literal["word-numbers"]
    stride: int = Field(16, ge=0, description="Tokens that adjacent windows of a long text share.")


@dataclass(frozen=True)
class GradedNumbers(Graded):
    """Numbers of words compared with the right ones. predicted, numbers: of all words. row: that of each
    word.
    """

    predicted: np.ndarray[Any, Any]
    numbers: np.ndarray[Any, Any]
    row: np.ndarray[Any, Any]
    rows: int

    @property
    def scored(self) -> Scored:
        """Metrics of all words; intervals are over texts."""
        words = regression(self.numbers, self.predicted)
        return Scored(lambda weights: words.weighted(weights[self.row]), self.rows, words.exact)

    def pairs(self) -> tuple[Any, Any]:
        return self.predicted, self.numbers


@final
@dataclass(frozen=True)
class WordNumbers(Task[WordNumbersOptions]):
    """The number of a word is read at its first token; a long text is read in windows."""

    Options = WordNumbersOptions
    name = "word-numbers"
    schema = Schema(
        columns={
            "tokens": Column("words", "the words of a text", located=True),
            "text": Column("text", "a text, which is split into words", located=True),
            "numbers": Column("numbers", "one number per word"),
        },
        inputs=(frozenset({"tokens"}), frozenset({"text"})),
        targets=("numbers",),
    )
    forms = (NUMBERS,)
    padding: ClassVar = {"heads": -1, "words": -1, "labels": 0.0}
    reduce_inputs = ("heads",)
    shares_encoder = True

    @classmethod
    def infer_options(cls, options: Any, rows: Dataset, class_names: Sequence[str]) -> dict[str, Any]:
        return {}

    def describe(self) -> str:
        return "a number per word"

    def encode(self, rows: Dataset) -> Any:
        texts, words = sentences(rows)
        columns = encode_words(
            self.tokenizer, texts, words, max_length=self.max_length, stride=self.options.stride
        )
        if "numbers" in rows.column_names:
            numbers = rows["numbers"][:]
            windows = zip(columns["row"], columns["words"], strict=True)
            columns["labels"] = [[numbers[row][word] for word in window] for row, window in windows]
        return Columns(columns)

    def model(self, encoder: Encoder, *, new_head: bool = True) -> Any:
        from transformers import AutoModelForTokenClassification

        settings = {"num_labels": 1, "id2label": {0: "number"}, "label2id": {"number": 0}}
        return load_model(encoder, AutoModelForTokenClassification, settings, new_head=new_head)

    def loss_inputs(self, outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Numbers `(words,)` as predicted and as they are, for this loss and for one of the user's."""
        return word_logits(outputs.logits, batch)[:, 0].float(), batch["labels"][batch["heads"] >= 0]

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The sum of the squared errors."""
        from torch.nn import functional as F

        return F.mse_loss(*self.loss_inputs(outputs, batch), reduction="sum")

    def count(self, batch: Batch) -> float:
        return float((batch["heads"] >= 0).sum())

    def reduce(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        return {"emissions": emissions(outputs.logits, batch), "words": (batch["heads"] >= 0).sum(1)}

    def items(self, arrays: Any) -> Sequence[Any]:
        return window_emissions(arrays, 1, crf=False)

    def decode(self, items: Sequence[Any], features: Dataset, rows: Dataset) -> list[Answer]:
        """A word without a token has the number 0."""
        texts, words = sentences(rows)
        read, scores = words_of_rows(items, features, len(rows), 1)
        answers = list[Answer]()
        for text, places, with_token, table in zip(texts, words, read, scores, strict=True):
            numbers = dict(zip(with_token, table[:, 0].tolist(), strict=True))
            listed = [
                {"word": text[start:end], "number": numbers.get(place, 0.0), "start": start, "end": end}
                for place, (start, end) in enumerate(places)
            ]
            answers.append({"words": listed, "truncated": False})
        return answers

    @property
    def metrics(self) -> Sequence[str]:
        return METRICS

    def grade(self, answers: Sequence[Answer], rows: Dataset) -> GradedNumbers:
        numbers = rows["numbers"][:]
        predicted = [word["number"] for answer in answers for word in answer["words"]]
        row = np.repeat(np.arange(len(numbers)), [len(of_row) for of_row in numbers])
        return GradedNumbers(np.array(predicted), np.concatenate([*numbers, []]), row, len(numbers))

    @staticmethod
    def mistake(options: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, str, float] | None:
        """The word that is farthest off: as it is, as predicted, and by how much."""
        pairs = zip(row["numbers"], row["answer"]["words"], strict=True)
        off = [(abs(number - word["number"]), number, word) for number, word in pairs]
        distance, number, word = max(off, key=lambda item: item[0], default=(0.0, 0.0, {}))
        return (
            (f"{word['word']} {number:g}", f"{word['word']} {word['number']:.3f}", distance)
            if distance
            else None
        )
