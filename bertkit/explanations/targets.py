"""The numbers of the model that determine an answer, a function for each task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.data import tagging
from bertkit.data.schema import Answer
from bertkit.encoding.pieces import tokenize
from bertkit.tasks.base import Task
from bertkit.text import Record

Score = Callable[[Any], Tensor]
"""Outputs of copies of one feature -> a number from each, `(copies,)`."""


class Target(NamedTuple):
    """A number to explain: the sum of its parts, such as the logit of `label positive`."""

    what: str
    unit: str  # logit, value or cosine
    parts: Mapping[int, Score]  # by feature, among those of its row


class Read(NamedTuple):
    """A row as the model read it: its features, the item of each that was decoded, and the answer."""

    task: Task
    row: Record
    features: Sequence[Record]
    items: Sequence[Any]
    answer: Answer


def classes(read: Read) -> list[Target]:
    """The logit of each predicted label, or of the most probable one if there is none; for regression, the
    number.
    """
    answer = read.answer
    windows = len(read.features)
    if read.task.options.kind == "regression":
        return [Target("the number", "value", _means(0, windows))]
    names = list(answer["scores"])
    predicted = [name for name in names if name in answer.get("labels", [answer.get("label")])]
    what = {name: f"label {name}" for name in predicted}
    if not predicted:
        best = max(names, key=answer["scores"].__getitem__)
        what[best] = f"label {best}, most probable, not predicted"
    return [Target(text, "logit", _means(names.index(name), windows)) for name, text in what.items()]


def _means(column: int, windows: int) -> dict[int, Score]:
    """The logit of a row is the mean over its windows."""
    return dict.fromkeys(range(windows), lambda outputs: outputs.logits[:, column].float() / windows)


def tagged(read: Read) -> list[Target]:
    """The emissions of each entity's words at their tags; with a CRF, at the tags of the best path.

    Where tags are labels of words, the emission of each word, the least certain first.
    """
    words = read.answer["words"]
    options = read.task.options
    tags = [word["tag"] for word in words]
    ids = {tag: index for index, tag in enumerate(options.tags)}
    answered: Any = read.answer.get("entities", words)
    predicted = list(zip(tagging.labelled(tags, options.scheme), answered, strict=True))
    if options.scheme == "none":
        predicted.sort(key=lambda item: item[1]["score"])
    targets = []
    for (kind, first, end), decision in predicted:
        parts = {}
        for number, feature in enumerate(read.features):
            groups = zip(feature["words"], feature["ends"], feature["heads"], strict=True)
            tagged_heads = [(head, tagging.of_group(tags[w:e])) for w, e, head in groups if first <= w < end]
            if cells := [(head, ids[tag]) for head, tag in tagged_heads if tag in ids]:
                parts[number] = _emissions(*map(list, zip(*cells, strict=True)))
        if parts:
            text = decision.get("text", decision.get("word"))
            targets.append(Target(f"{kind} {text}", "logit", parts))
    return targets


def _emissions(heads: list[int], tags: list[int]) -> Score:
    return lambda outputs: outputs["logits"][:, heads, tags].float().sum(1)


def span(read: Read) -> list[Target]:
    """Start and end logit of the answer, in the window that it comes from; for no answer, those of the first
    token.
    """
    answer = read.answer
    if answer["answer"]:
        covered = tokenize(read.task.tokenizer, [read.row["context"]])[0].cover(
            answer["start"], answer["end"]
        )
        if covered is None:
            return []
        features = enumerate(read.features)
        window = next(place for place, part in features if part["first"] <= covered[0] < part["end"])
        shift = read.features[window]["place"] - read.features[window]["low"]
        what = f"answer {answer['answer']}"
        start = covered[0] + shift
        end = covered[1] + shift
    else:
        window = min(range(len(read.items)), key=lambda index: read.items[index].null)
        what = "no answer"
        start = 0
        end = 0
    parts = {window: lambda out: out.start_logits[:, start].float() + out.end_logits[:, end].float()}
    return [Target(what, "logit", parts)]


def pair(read: Read) -> list[Target]:
    """The cosine of two texts, by the words of each while the other's vector is fixed."""
    if len(read.features) < 2:
        return []
    vectors = [torch.from_numpy(item) for item in read.items[:2]]
    return [
        Target("cosine of the two texts", "cosine", {side: partial(_cosine, vectors, side)})
        for side in (0, 1)
    ]


def _cosine(vectors: Sequence[Tensor], side: int, outputs: Any) -> Tensor:
    copies = outputs["vectors"].float()
    return F.cosine_similarity(copies, vectors[1 - side].to(copies.device)[None])


def relevance(read: Read) -> list[Target]:
    """The logit of the pair, which is that of its best window."""
    best = max(range(len(read.items)), key=read.items.__getitem__)
    return [Target("relevance", "logit", {best: lambda outputs: outputs.logits[:, 0].float()})]


TARGETS: Mapping[str, Callable[[Read], list[Target]]] = {
    "text-classification": classes,
    "token-classification": tagged,
    "question-answering": span,
    "sentence-similarity": pair,
    "retrieval": pair,
    "text-ranking": relevance,
}


def targets_of(task: type[Task] | Task) -> Callable[[Read], list[Target]] | None:
    """The function of the table, or that of another package's task; None: answers are not explained."""
    if task.name in TARGETS or not task.explained:
        return TARGETS.get(task.name)
    return lambda read: [Target(*target) for target in task.explained(read)]
