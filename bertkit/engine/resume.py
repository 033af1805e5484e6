"""The checkpoint that training continues from, and what must then be unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peft import PeftModel, get_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME as ADAPTER
from safetensors import safe_open
from transformers import TrainerState
from transformers.utils import SAFE_WEIGHTS_NAME

from bertkit.engine.checkpoint import (
    AS_STARTED,
    OPTIMIZER,
    STATE,
    CheckpointTrainer,
    checkpoints,
    is_intact,
    step_of,
)
from bertkit.errors import ModelError, UserError
from bertkit.files import read_json


def latest_intact(folder: Path) -> tuple[Path | None, list[Path]]:
    """The newest undamaged checkpoint, and the damaged ones that are newer."""
    damaged: list[Path] = []
    for candidate in reversed(checkpoints(folder)):
        if is_intact(candidate):
            return candidate, damaged
        damaged.append(candidate)
    return None, damaged


def require_resumable(folder: Path, trainer: CheckpointTrainer) -> None:
    """Raises ModelError where the trainer cannot continue from this intact checkpoint, unless for its
    optimizer.
    """
    require_own_format(folder)
    before = len([*folder.glob("random-*.json")])
    now = trainer.args.world_size
    if now != before:  # each process has its own random states there, and its part of every step
        raise ModelError(
            folder,
            f"the number of processes was {before} when it was written, and is {now} now",
            f"Continue with {before} (torchrun --nproc-per-node), or start a new run in another folder.",
        )
    _require_weights(folder, trainer)


def require_own_format(folder: Path) -> None:
    """Raises ModelError where another version of bertkit or transformers wrote this intact checkpoint."""
    try:
        state = TrainerState.load_from_json(str(folder / STATE))
        optimizer = read_json(folder / OPTIMIZER)
        readable = state.global_step == step_of(folder) and set(optimizer) == {"plain", "scheduler", "scaler"}
    except (OSError, TypeError, ValueError, UserError):  # TypeError: a field that transformers does not know
        readable = False
    if not readable:
        raise ModelError(
            folder,
            "was written by another version of bertkit or transformers, in a format that this one does not "
            "support",
            "Finish the run with that version, or start a new run in another folder.",
        )


def _require_weights(folder: Path, trainer: CheckpointTrainer) -> None:
    """Raises ModelError where the weights have other names or shapes than those of the trainer's model.

    With LoRA, the checkpoint has the adapter alone. A tensor that several parts share is stored under one of
    its names.
    """
    model: Any = trainer.model
    lora = isinstance(model, PeftModel)
    weights = folder / (ADAPTER if lora else SAFE_WEIGHTS_NAME)
    if not weights.is_file():
        raise ModelError(
            folder, f"has no {weights.name}: it was written with another peft section", AS_STARTED
        )
    whole = model.state_dict()
    trained = get_peft_model_state_dict(model, save_embedding_layers=False) if lora else whole
    # with LoRA; peft may have written an embedding of these all the same
    not_saved = whole.keys() - trained.keys()
    with safe_open(weights, "pt") as file:
        saved = {name: file.get_slice(name).get_shape() for name in {*file.keys()} - not_saved}
    stored = {trained[name].data_ptr() for name in trained.keys() & saved.keys()}
    shapes = {
        name: [*weight.shape]
        for name, weight in trained.items()
        if name in saved or weight.data_ptr() not in stored
    }
    for name in sorted(saved.keys() | shapes.keys()):
        before = saved.get(name, "absent")
        now = shapes.get(name, "absent")
        if before != now:
            raise ModelError(
                folder, f"the weight {name} was {before} when it was written, and is {now} now", AS_STARTED
            )
