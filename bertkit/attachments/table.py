"""bertkit's own attachments, in the order in which their hooks run."""

from __future__ import annotations

from typing import Any

from bertkit.attachments.distillation import TeacherLoss
from bertkit.attachments.memory import MicroBatchSplit
from bertkit.attachments.muon import MuonOptimizer
from bertkit.attachments.used_rows import UsedEmbeddings
from bertkit.attachments.user_loss import UserLoss
from bertkit.engine.attachment import Attachment
from bertkit.errors import RecipeError
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
        raise RecipeError(
            "compute_loss_func",
            "expected a function of outputs, labels and num_items_in_batch, found "
            f"{describe(compute_loss_func)}",
            "Pass the function itself: compute_loss_func=my_loss.",
        )
    listed = attachments if isinstance(attachments, list | tuple) else [attachments]
    for attachment in listed:
        if not isinstance(attachment, Attachment):
            raise RecipeError(
                "attachments",
                f"expected instances of Attachment, found {describe(attachment)}",
                "attachments=[MyAttachment()], where class MyAttachment(bertkit.Attachment)",
            )
    return (*([UserLoss(compute_loss_func)] if compute_loss_func else ()), *listed)
