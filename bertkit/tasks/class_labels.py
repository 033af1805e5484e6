"""Label names, targets and weights, settled from the training rows; the loss and the answers of labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer

from bertkit.data.columns import label_names
from bertkit.data.on_disk import column_values, numbers
from bertkit.data.schema import Answer, Schema
from bertkit.errors import DataError, ModelError
from bertkit.evaluation import calibration
from bertkit.evaluation.intervals import Floats
from bertkit.sections import Positive, Text, Texts
from bertkit.tasks.base import OptionValues
from bertkit.text import repeated, unique

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from transformers import PretrainedConfig

Probability = Annotated[float, Field(ge=0, le=1)]
Temperature = Annotated[float, Field(ge=1e-3)] | None
Range = Annotated[list[float], Field(min_length=2, max_length=2)] | None


def _from_pairs(value: Any) -> Any:
    pairs = isinstance(value, list) and value and all(isinstance(g, list) and len(g) == 2 for g in value)
    return dict(value) if pairs else value


def _as_pairs(labels: Any) -> Any:
    # transformers sorts the keys of config.json, and their order is that of the label ids.
    return [list(pair) for pair in labels.items()] if isinstance(labels, dict) else labels


Labels = Annotated[
    Texts | Annotated[dict[str, Text], Field(min_length=1)] | None,
    BeforeValidator(_from_pairs),
    PlainSerializer(_as_pairs, when_used="json"),
]
EXTREME = 3.0  # times the deviation that the quartiles say, beyond which extreme targets make it useless
QUARTILES = 1.349  # the distance of a normal distribution's quartiles, in standard deviations
HIGHEST_WEIGHT = 100.0  # of the positive rows of a label, where there are several: fewer than 1 % positives
Weights = Literal["auto"] | dict[str, Positive]


def flat_labels(rows: Dataset, column: str) -> Iterator[str]:
    """The labels of all rows, one after the other; `labels` holds several per row."""
    values = column_values(rows, column)
    return iter(values) if column == "label" else chain.from_iterable(values)


def output_names(config: PretrainedConfig) -> list[str]:
    """The id2label of a classifier, in the order of its outputs. Raises ModelError on a name that repeats."""
    names = [str(name) for _, name in sorted((config.id2label or {}).items())]
    if twice := repeated(names):
        raise ModelError(
            f"{config.name_or_path}/config.json",
            f"id2label gives several outputs the same name: {', '.join(map(repr, twice[:10]))}",
            "Give each output a different name.",
        )
    return names


def names_of(labels: Any) -> list[str]:
    """Label names in the order of their ids; labels: {value in the data: name}, settled; else no names."""
    return unique(labels.values()) if isinstance(labels, dict) else []


def label_ids(labels: Any) -> dict[str, int]:
    """Label name, or value in the data, -> label id; labels: {value in the data: name}, settled; else no
    ids.
    """
    values = labels if isinstance(labels, dict) else {}
    ids = {name: index for index, name in enumerate(names_of(labels))}
    return ids | {value: ids[name] for value, name in values.items()}


class Labelled:
    """What tasks whose option `labels` is {value in the data: name} have in common."""

    schema: ClassVar[Schema]
    options: Any

    @classmethod
    def schema_of(cls, options: Any) -> Schema:
        """The schema, whose labels have the names of `task.labels`, as in the recipe or settled."""
        labels = options.labels
        names = labels if isinstance(labels, dict) else {}
        if isinstance(labels, list):
            indices = {str(index): name for index, name in enumerate(labels)}
            # a value that could be either is itself
            names = indices if indices.keys().isdisjoint(labels) else {}
        columns = {
            name: column._replace(names=names) if column.holds in ("label", "labels") else column
            for name, column in cls.schema.columns.items()
        }
        return replace(cls.schema, columns=columns)

    @property
    def names(self) -> list[str]:
        """Label names in the order of their ids; empty where no labels were learned."""
        return names_of(self.options.labels)

    @property
    def known_labels(self) -> frozenset[str] | None:
        """Label names, and the values in the data that stand for them; None where no labels were learned."""
        return frozenset(label_ids(self.options.labels)) or None


def as_targets(rows: Dataset, column: str, labels: Any) -> np.ndarray:
    """Label ids `(rows,)`, or 0/1 `(rows, labels)` for `labels`, or numbers `(rows,)` for `score`.

    Raises DataError on values that `labels` lacks.
    """
    if column == "score":
        return numbers(rows, column).astype(np.float64)
    ids = label_ids(labels)
    names = names_of(labels)
    unknown = [value for value in dict.fromkeys(flat_labels(rows, column)) if value not in ids]
    if unknown:
        raise DataError(
            f"column `{column}`",
            f"labels unknown to the model: {', '.join(map(repr, unknown[:10]))}",
            f"Use the labels of the model: {', '.join(names)}.",
        )
    if column == "label":
        return np.fromiter((ids[value] for value in column_values(rows, column)), np.int64, len(rows))
    table = np.zeros((len(rows), len(names)), dtype=np.float64)
    for row, several in enumerate(column_values(rows, column)):
        table[row, [ids[value] for value in several]] = 1.0
    return table


def mean_and_deviation(targets: Iterable[float]) -> list[float]:
    """Mean and standard deviation of these targets; 1 in place of the deviation of targets that are all
    equal.

    Where a few make the deviation more than EXTREME times what the quartiles say: the median, and what they
    say.
    """
    values = np.fromiter(targets, np.float64)
    quartiles = np.percentile(values, [25, 50, 75]).tolist()
    usual = (quartiles[2] - quartiles[0]) / QUARTILES
    deviation = float(values.std())
    if 0 < EXTREME * usual < deviation:
        return [quartiles[1], usual]
    return [float(values.mean()), deviation if np.ptp(values) else 1.0]


def settle_classes(options: Any, rows: Dataset, column: str, class_names: Sequence[str]) -> OptionValues:
    """`labels` and `class_weights` of these options, settled from the training rows. Raises DataError."""
    labels = settle_labels(options.labels, label_names(flat_labels(rows, column), class_names))
    names = names_of(labels)
    if column == "label" and len(names) < 2:
        raise DataError(
            "task.labels",
            f"only one label ({names[0]})",
            "Add rows with another label, or check data.columns.",
        )
    values = column_values(rows, column)
    if column == "label":
        counts = Counter(labels[value] for value in values)
        weights = settle_weights(options.class_weights, counts, names)
    else:
        names_of_rows = ({*map(labels.__getitem__, several)} for several in values)
        counts = Counter(chain.from_iterable(names_of_rows))
        weights = settle_weights(options.class_weights, counts, names, len(rows))
    return {"labels": labels, "class_weights": weights}


def weight_tensor(by_name: Any, names: Sequence[str], like: Tensor) -> Tensor | None:
    """The weights of these labels `(labels,)`, on the device of `like`; None where there are none."""
    import torch

    return torch.tensor([by_name[name] for name in names], device=like.device) if by_name else None


def settle_labels(wanted: list[str] | dict[str, str] | None, values: Sequence[str]) -> dict[str, str]:
    """Value in the data -> label name, in the order of the label ids.

    wanted: the recipe's `task.labels`: names in order (the data hold the names, or their indices), or
    {value: name}, or None for what was found. values: the distinct values in the training rows, in order.
    Raises DataError when a value of the data has no name.
    """
    if not values:
        raise DataError(
            "data", "no row of train has a label", "Map the right column: data: {columns: {label: NAME}}"
        )
    if wanted is None:
        return {value: value for value in values}
    names = ", ".join(wanted)
    if isinstance(wanted, list):
        names += f" (or 0 to {len(wanted) - 1})"
        if set(values) <= set(wanted):
            return {name: name for name in wanted}
        wanted = {str(index): name for index, name in enumerate(wanted)}
    unknown = [value for value in values if value not in wanted]
    if unknown:
        raise DataError(
            "task.labels",
            f"train has labels that task.labels lacks: {', '.join(unknown[:10])}",
            f"It has {names}. Add them, or leave task.labels out.",
        )
    return wanted


def settle_weights(
    wanted: Weights | None, counts: Counter[str], names: Sequence[str], rows: int | None = None
) -> dict[str, float] | None:
    """Label name -> weight, for every label; None stays None. Raises DataError on a label that is not there.

    auto: n / (labels * count) for each label, as scikit-learn's `balanced`; an absent label counts as 1. Of
    so many `rows`, each with any number of labels: its rows without the label per row with it, at most
    HIGHEST_WEIGHT.
    """
    if wanted is None:
        return None
    if wanted == "auto" and rows is not None:
        odds = {name: max(rows - counts[name], 1) / max(counts[name], 1) for name in names}
        return {name: min(value, HIGHEST_WEIGHT) for name, value in odds.items()}
    if wanted == "auto":
        total = counts.total()  # once: it adds up all counts
        return {name: total / (len(names) * max(counts[name], 1)) for name in names}
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise DataError(
            "task.class_weights",
            f"no label {', '.join(map(repr, unknown))}",
            f"Choose among the labels: {', '.join(names)}.",
        )
    return {name: wanted.get(name, 1.0) for name in names}


def single_labels(
    names: Sequence[str], table: Floats, thresholds: Any = None, cutoffs: Mapping[str, float] | None = None
) -> Iterator[Answer]:
    """For each row of probabilities its `label`, the probability of that label, and the `scores` of all.

    `label` is None where its probability is below its threshold; see `best_labels`.
    """
    best, reached = calibration.best_labels(table, names, thresholds, cutoffs)
    for row, label, chosen in zip(table.tolist(), best.tolist(), reached.tolist(), strict=True):
        scores = dict(zip(names, row, strict=True))
        yield {"label": names[label] if chosen else None, "score": row[label], "scores": scores}


def assigned_labels(names: Sequence[str], probabilities: list[float], thresholds: Any) -> Answer:
    """The labels whose probability reaches the threshold (for all, by label, or 0.5), and the `scores` of
    all.
    """
    limits = calibration.label_thresholds(thresholds, names, 0.5)
    labels = [name for name, p, limit in zip(names, probabilities, limits, strict=True) if p >= limit]
    return {"labels": labels, "scores": dict(zip(names, probabilities, strict=True))}
