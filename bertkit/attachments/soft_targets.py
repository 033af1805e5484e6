"""Soft targets: a teacher's outputs that a student is trained on, task by task (Hinton et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.encoding.padding import first_windows, greatest_of_windows, mean_of_windows
from bertkit.errors import UserError
from bertkit.models.heads import losses
from bertkit.models.heads.crf import pack_sentences
from bertkit.models.heads.forward_backward import Chain
from bertkit.models.heads.spans import masked_logits
from bertkit.models.heads.tagger import emissions, word_logits
from bertkit.tasks.base import Batch, Task
from bertkit.tasks.class_labels import weight_tensor
from bertkit.tasks.question_answering import QuestionAnswering
from bertkit.tasks.text_classification import TextClassification
from bertkit.tasks.text_ranking import TextRanking
from bertkit.tasks.token_classification import TokenClassification
from bertkit.tasks.vector_task import VectorTask
from bertkit.text import Record


class SoftTargets(NamedTuple):
    """How the models of a task learn from a teacher.

    outputs: on the device, what a teacher says of each feature, `(features, numbers)`, padded at the end.
    loss: the SUM of the losses against the teacher's `batch["soft"]`, as `Task.loss` sums and `Task.count`
    counts. Both sides' logits are divided by the temperature, and the loss is multiplied by its square.
    must_match: what teacher and student must have in common: option -> value.
    """

    outputs: Callable[[Any, Any, Batch], Tensor]
    loss: Callable[[Any, Any, Batch, float], Tensor]
    must_match: Callable[[Any], Record] = lambda task: {}


def _logits(task: Any, outputs: Any, batch: Batch) -> Any:
    """`(windows, labels)` fp32."""
    return outputs.logits.float()


def _labels_loss(task: TextClassification, outputs: Any, batch: Batch, temperature: float) -> Tensor:
    """KL of each row, or cross-entropy of each decision, with its class weight; or squared error."""
    student = mean_of_windows(outputs.logits, batch)
    teacher = mean_of_windows(batch["soft"], batch)
    if task.kind == "regression":
        return F.mse_loss(student, task.standardised(teacher), reduction="sum")
    labels = first_windows(batch["labels"], batch)
    several = task.kind == "multi-label"
    terms = (losses.binary if several else losses.kl)(student, teacher, temperature)
    weight = weight_tensor(task.options.class_weights, task.names, terms)
    if weight is None:
        return terms.sum()
    return (terms * (torch.where(labels > 0, weight, 1.0) if several else weight[labels])).sum()


def _words(task: TokenClassification, outputs: Any, batch: Batch) -> Tensor:
    """Logits of the words of each window, `(windows, words * tags)`; with a CRF preceded by the chain's:
    `tags` rows of transitions, one of start and one of end.
    """
    words = emissions(outputs["logits"], batch)
    if task.options.head == "softmax":
        return words.flatten(1)
    chain = torch.cat([part.float().reshape(-1, len(task.tags)) for part in outputs["chain"]])
    return torch.cat([chain.expand(len(words), -1, -1), words], dim=1).flatten(1)


def _words_loss(task: TokenClassification, outputs: Any, batch: Batch, temperature: float) -> Tensor:
    """KL of each word with its class weight; for a chain, cross-entropy of each word's marginals."""
    present = batch["heads"] >= 0
    tags = len(task.tags)
    soft = batch["soft"].reshape(len(present), -1, tags)
    start = tags + 2 if task.options.head == "crf" else 0
    teacher = soft[:, start : start + present.shape[1]][present]
    student = word_logits(outputs["logits"], batch).float()
    if not len(student):
        return student.sum()
    if task.options.head == "softmax":
        terms = losses.kl(student, teacher, temperature)
    else:
        packed = pack_sentences(batch)
        places = packed[:2]
        mask = packed[2]

        def side(scores: Tensor, chain: Chain) -> tuple[Tensor, Chain]:
            table = scores.new_zeros((*mask.shape, tags)).index_put(places, scores)
            return table, task.constrained(chain)

        student_side = side(student, outputs["chain"])
        teacher_side = side(teacher, Chain(soft[0, :tags], soft[0, tags], soft[0, tags + 1]))
        terms = losses.chain_cross_entropy(student_side, teacher_side, mask, temperature)[places].float()
    weight = task.weights(terms)
    return terms.sum() if weight is None else (terms * weight[batch["labels"][present]]).sum()


def _borders(task: QuestionAnswering, outputs: Any, batch: Batch) -> Tensor:
    """Start and end logits of each token, `(windows, tokens * 2)`."""
    return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1).float().flatten(1)


def _borders_loss(task: QuestionAnswering, outputs: Any, batch: Batch, temperature: float) -> Tensor:
    """The mean of the KL of start and of end, over the positions that an answer can have."""
    soft = batch["soft"].reshape(len(batch["soft"]), -1, 2)
    starts, ends = soft[:, : outputs.start_logits.shape[1]].unbind(2)
    student = masked_logits(outputs.start_logits, outputs.end_logits, batch)
    pairs = zip(student, masked_logits(starts, ends, batch), strict=True)
    start, end = (losses.kl(*pair, temperature) for pair in pairs)
    return (start + end).sum() / 2


def _vectors_loss(task: VectorTask[Any], outputs: Any, batch: Batch, temperature: float) -> Tensor:
    """1 - cosine of the student's and the teacher's vector, the mean of a row's texts, summed over rows."""
    rows = (batch["side"] == 0).sum()
    return losses.distance(outputs["vectors"], batch["soft"]).sum() * rows / len(batch["side"])


def _ranking_loss(task: TextRanking, outputs: Any, batch: Batch, temperature: float) -> Tensor:
    """Squared error of each row's logit."""
    student, teacher = (
        greatest_of_windows(logits[:, 0].float(), batch) for logits in (outputs.logits, batch["soft"])
    )
    return F.mse_loss(student, teacher, reduction="sum")


VECTORS = SoftTargets(
    lambda task, outputs, batch: outputs["vectors"].float(),
    _vectors_loss,
    lambda task: {name: getattr(task.options, name) for name in ("query_prefix", "document_prefix")},
)
SOFT_TARGETS: Mapping[str, SoftTargets] = {
    "text-classification": SoftTargets(
        _logits, _labels_loss, lambda task: {"kind": task.kind, "labels": task.names}
    ),
    "token-classification": SoftTargets(
        _words, _words_loss, lambda task: {"head": task.options.head, "tags": task.tags}
    ),
    "question-answering": SoftTargets(_borders, _borders_loss),
    "sentence-similarity": VECTORS,
    "retrieval": VECTORS,
    "text-ranking": SoftTargets(_logits, _ranking_loss, lambda task: {"activation": task.options.activation}),
}


def soft_targets_of(task: Task) -> SoftTargets:
    """Those of the table, or what another package's task offers. Raises UserError where it cannot be
    distilled.
    """
    if task.name not in SOFT_TARGETS and not task.soft_targets:
        raise UserError(
            "distillation",
            f"{task.name} cannot be distilled",
            f"Remove it. Tasks that can be distilled: {', '.join(SOFT_TARGETS)}.",
        )
    return SOFT_TARGETS.get(task.name) or SoftTargets(*task.soft_targets())
