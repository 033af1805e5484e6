"""The numbers of the model that determine an answer, a function for each task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.data import tagging
from bertkit.data.schema import Answer
from bertkit.encoding.pieces import tokenize
from bertkit.tasks.base import Task


class Part(NamedTuple):
    """A summand from one feature. score: outputs of copies of the feature -> `(copies,)`."""

    feature: int  # among those of its row
    score: Callable[[Any], Tensor]


class Target(NamedTuple):
    """A number to explain: the sum of its parts, such as the logit of `label positive`."""

    what: str
    unit: str  # logit, value or cosine
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Read:
    """A row as the model read it: its features, the item of each that was decoded, and the answer."""

    task: Task
    row: Mapping[str, Any]
    features: Sequence[Mapping[str, Any]]
    items: Sequence[Any]
    answer: Answer


def classes(read: Read) -> list[Target]:
    """The logit of each predicted label, or of the most probable one if there is none; for regression, the number."""
    answer, windows = read.answer, len(read.features)
    if read.task.options.kind == "regression":
        return [Target("the number", "value", _means(0, windows))]
    given = [answer["label"]] if "label" in answer else answer["labels"]
    names = list(answer["scores"])
    if not given:
        best = max(names, key=answer["scores"].__getitem__)
        return [Target(f"label {best}, most probable, not predicted", "logit", _means(names.index(best), windows))]
    return [Target(f"label {name}", "logit", _means(names.index(name), windows)) for name in given]


def _means(column: int, windows: int) -> tuple[Part, ...]:
    """The logit of a row is the mean over its windows."""
    return tuple(Part(window, lambda outputs: outputs.logits[:, column].float() / windows) for window in range(windows))


def entities(read: Read) -> list[Target]:
    """The emissions of each entity's words at their tags; with a CRF, at the tags of the best path."""
    tags = [word["tag"] for word in read.answer["words"]]
    ids = {tag: index for index, tag in enumerate(read.task.options.tags)}
    targets = []
    for (kind, first, end), entity in zip(tagging.entities(tags), read.answer["entities"], strict=True):
        parts = []
        for number, feature in enumerate(read.features):
            pairs = zip(feature["words"], feature["heads"], strict=True)
            own = [(head, ids[tags[w]]) for w, head in pairs if first <= w < end and tags[w] in ids]
            if own:
                parts.append(Part(number, _emissions(*zip(*own, strict=True))))
        targets.append(Target(f"{kind} {entity['text']}", "logit", tuple(parts)))
    return [each for each in targets if each.parts]


def _emissions(heads: Sequence[int], tags: Sequence[int]) -> Callable[[Any], Tensor]:
    return lambda outputs: outputs["logits"][:, list(heads), list(tags)].float().sum(1)


def span(read: Read) -> list[Target]:
    """Start and end logit of the answer, in the window that it comes from; for no answer, those of the first token."""
    answer = read.answer
    if not answer["answer"]:
        window = min(range(len(read.items)), key=lambda index: read.items[index].null)
        return [Target("no answer", "logit", (Part(window, _borders(0, 0)),))]
    covered = tokenize(read.task.tokenizer, [read.row["context"]])[0].cover(answer["start"], answer["end"])
    if covered is None:
        return []
    owners = (i for i, feature in enumerate(read.features) if feature["first"] <= covered[0] < feature["end"])
    window = next(owners)
    shift = read.features[window]["place"] - read.features[window]["low"]
    return [
        Target(f"answer {answer['answer']}", "logit", (Part(window, _borders(covered[0] + shift, covered[1] + shift)),))
    ]


def _borders(start: int, end: int) -> Callable[[Any], Tensor]:
    return lambda outputs: outputs.start_logits[:, start].float() + outputs.end_logits[:, end].float()


def pair(read: Read) -> list[Target]:
    """The cosine of two texts, or a classifier's label, by the words of each while the other's vector is fixed."""
    if len(read.features) < 2:
        return []
    ours = [torch.from_numpy(each.vector) for each in read.items[:2]]
    if read.items[0].classifier is not None:
        label = read.answer["label"]
        column = list(read.answer["scores"]).index(label)
        return [Target(f"label {label}", "logit", (Part(side, _label(ours, side, column)),)) for side in (0, 1)]
    return [Target("cosine of the two texts", "cosine", (Part(side, _cosine(ours[1 - side])),)) for side in (0, 1)]


def _cosine(other: Tensor) -> Callable[[Any], Tensor]:
    return lambda outputs: F.cosine_similarity(outputs["vectors"].float(), other.to(outputs["vectors"].device)[None])


def _label(vectors: Sequence[Tensor], side: int, column: int) -> Callable[[Any], Tensor]:
    def score(outputs: Any) -> Tensor:
        own = outputs["vectors"].float()
        other = vectors[1 - side].to(own.device).expand_as(own)
        u, v = (own, other) if side == 0 else (other, own)
        weight, bias = outputs["weight"][column].float(), outputs["bias"][column].float()
        logits: Tensor = torch.cat([u, v, (u - v).abs()], dim=-1) @ weight + bias
        return logits

    return score


def relevance(read: Read) -> list[Target]:
    """The logit of the pair, which is that of its best window."""
    best = max(range(len(read.items)), key=read.items.__getitem__)
    return [Target("relevance", "logit", (Part(best, lambda outputs: outputs.logits[:, 0].float()),))]


def masked(read: Read) -> list[Target]:
    """The logit of the most probable token at each mask of the text."""
    masks = read.answer.get("masks", ())
    ids = [int(read.task.tokenizer.get_vocab()[guesses[0]["token"]]) for guesses in masks]
    return [
        Target(f"[MASK] {place + 1} is {guesses[0]['token']}", "logit", (Part(0, _token(place, len(ids), ids[place])),))
        for place, guesses in enumerate(masks)
    ]


def _token(place: int, masks: int, token: int) -> Callable[[Any], Tensor]:
    def score(outputs: Any) -> Tensor:
        logits: Tensor = outputs.prediction_logits.float().unflatten(0, (-1, masks))
        return logits[:, place, token]

    return score


TARGETS: Mapping[str, Callable[[Read], list[Target]]] = {
    "text-classification": classes,
    "token-classification": entities,
    "question-answering": span,
    "sentence-similarity": pair,
    "retrieval": pair,
    "text-ranking": relevance,
    "pretraining": masked,
}
