"""The attachments that a training may have, in the order in which their hooks run."""

from __future__ import annotations

from typing import Any

from bertkit.attachments.distillation import TeacherLoss
from bertkit.attachments.memory import MicroBatchSplit
from bertkit.attachments.muon import MuonOptimizer
from bertkit.attachments.used_rows import UsedEmbeddings
from bertkit.engine.attachment import Attachment, Draft
from bertkit.recipe.recipe import Recipe

ATTACHMENTS: tuple[type[Attachment], ...] = (
    MuonOptimizer,
    UsedEmbeddings,  # after Muon: its hook is the optimizer's that steps
    MicroBatchSplit,
    TeacherLoss,
)


def build(recipe: Recipe, model: Any) -> Any:
    """The untrained model as the attachments want it."""
    for kind in ATTACHMENTS:
        model = kind.build(recipe, model)
    return model


def attachments(draft: Draft) -> tuple[Attachment, ...]:
    """The attachments of a training. Raises UserError with what they do not support."""
    return tuple(each for kind in ATTACHMENTS if (each := kind.of(draft)))
