"""The attachments that a training may have, in the order in which their hooks run."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any

from bertkit.attachments.distillation import TeacherLoss
from bertkit.attachments.memory import MicroBatchSplit
from bertkit.attachments.muon import MuonOptimizer
from bertkit.attachments.used_rows import UsedEmbeddings
from bertkit.attachments.user_loss import UserLoss
from bertkit.engine.attachment import Attachment, Draft
from bertkit.errors import Problem, RecipeError
from bertkit.recipe.recipe import Recipe
from bertkit.validation import describe

ATTACHMENTS: tuple[Attachment, ...] = (
    MuonOptimizer(),
    UsedEmbeddings(),  # after Muon: its hook is the optimizer's that steps
    MicroBatchSplit(),
    TeacherLoss(),
)


def of_user(compute_loss_func: Any, attachments: Any) -> tuple[Attachment, ...]:
    """A user's own attachments, after their loss. Raises RecipeError where one is something else."""
    if compute_loss_func is not None and not callable(compute_loss_func):
        what = f"expected a function of outputs, labels and num_items_in_batch, found {describe(compute_loss_func)}"
        raise RecipeError(Problem("compute_loss_func", what))
    listed = attachments if isinstance(attachments, list | tuple) else [attachments]
    for each in listed:
        if not isinstance(each, Attachment):
            fix = "attachments=[MyAttachment()], where class MyAttachment(bertkit.Attachment)"
            raise RecipeError(Problem("attachments", f"expected instances of Attachment, found {describe(each)}", fix))
    return (*([UserLoss(compute_loss_func)] if compute_loss_func else ()), *listed)


def build(recipe: Recipe, model: Any, added: Iterable[Attachment] = ()) -> Any:
    """The untrained model as the attachments want it. added: a user's own."""
    for each in (*ATTACHMENTS, *added):
        model = each.build_model(recipe, model)
    return model


def joined(draft: Draft, added: Iterable[Attachment] = ()) -> tuple[Attachment, ...]:
    """The attachments of a training. Raises UserError with what they do not support."""
    return tuple(each for each in map(copy, (*ATTACHMENTS, *added)) if each.join(draft))
