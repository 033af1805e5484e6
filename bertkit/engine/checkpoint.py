"""Checkpoints without pickle: tensors in safetensors, everything else in JSON, complete or absent."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer
from transformers.trainer_callback import ExportableState

from bertkit.errors import ModelError, RecipeError, UserError
from bertkit.files import read_json, sha256, write_json, write_text
from bertkit.text import Json

MANIFEST = "manifest.json"
OPTIMIZER = "optimizer.json"
STATE = "trainer_state.json"
AS_STARTED = "Use the recipe, data and encoder that the run was started with, or start a new run."


class CheckpointTrainer(Trainer):
    """Trainer whose checkpoints hold no pickle and take their name only when they are complete."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:  # by accelerate's configuration
            raise RecipeError(
                "training",
                "DeepSpeed and FSDP, which shard a model across processes, are not supported",
                "Start it with torchrun: each process holds the whole model.",
            )

    def checkpoint_files(self) -> Iterable[tuple[str, Any]]:
        """More files of a checkpoint: names, each with JSON, or of a .safetensors file, its tensors."""
        return ()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.store_flos()
        parent = Path(str(self.args.output_dir))
        aside = parent / f".writing-{self.state.global_step}"
        if self.args.should_save:  # files of a process that was killed are not part of this checkpoint
            shutil.rmtree(aside, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        aside.mkdir(parents=True, exist_ok=True)
        save_random(aside, self.args.process_index)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self.save_model(str(aside), _internal_call=True)
            save_optimizer(aside, self.optimizer, self.lr_scheduler, self.accelerator.scaler)
            states = Json()
            for callback in [*self.callback_handler.callbacks, self.control]:
                if isinstance(callback, ExportableState):
                    states.setdefault(type(callback).__name__, []).append(callback.state())
            self.state.stateful_callbacks = states  # type: ignore[assignment]
            self.state.save_to_json(str(aside / STATE))
            for name, content in self.checkpoint_files():
                if (aside / name).exists():
                    raise UserError(
                        "attachments",
                        f"two attachments would save {name}",
                        "Rename what `save_files` returns.",
                    )
                if name.endswith(".safetensors"):
                    save_file(content, aside / name)
                else:
                    write_json(aside / name, content)
            publish(aside, parent / f"checkpoint-{self.state.global_step}")
            # transformers' own rotation takes checkpoint-2.old for a checkpoint
            present = checkpoints(parent)
            removable = [p for p in present[:-1] if step_of(p) != self.state.best_global_step]
            excess = len(present) - (self.args.save_total_limit or len(present))
            for old in removable[: max(excess, 0)]:
                shutil.rmtree(old)

    def _determine_best_metric(self, metrics: Any, trial: Any) -> bool:
        """A new best model is saved at once, because it is loaded at the end."""
        best = super()._determine_best_metric(metrics, trial)
        self.control.should_save |= best and self.args.load_best_model_at_end
        return bool(best or self.control.should_save)  # `save_strategy: best` sets should_save to it

    @property
    def undecided(self) -> Json | None:
        """The selection metric, its only score and the number of evaluations; None where it has compared
        models.

        The score is None where it was never defined.
        """
        metric = str(self.args.metric_for_best_model or "").removeprefix("eval_")
        logged = [event[f"eval_{metric}"] for event in self.state.log_history if f"eval_{metric}" in event]
        scores = {score if math.isfinite(score) else None for score in logged}
        defined = scores - {None}
        if not logged or (len(scores) > 1 and scores != {None, 0.0}) or (len(logged) == 1 and defined):
            return None
        return {"metric": metric, "score": next(iter(defined), None), "evaluations": len(logged)}

    def _load_best_model(self) -> None:
        if self.undecided:  # of equal checkpoints the last is trained longest
            self.state.best_global_step = self.state.global_step
            return
        best = Path(str(self.state.best_model_checkpoint))
        if not is_intact(best):
            raise ModelError(
                best,
                "the best checkpoint is damaged or missing",
                "Restore it and resume the run, or start a new one.",
            )
        super()._load_best_model()

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write only the model: Trainer would also pickle its arguments.

        Its weights have their own names, by which Trainer loads them, not those of the encoder on the Hub.
        """
        if self.args.should_save:
            model: Any = self.model
            folder = output_dir or self.args.output_dir
            model.save_pretrained(folder, state_dict=state_dict, save_original_format=False)

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        if checkpoint_folder is not None:
            load_optimizer(
                Path(checkpoint_folder), self.optimizer, self.lr_scheduler, self.accelerator.scaler
            )

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        if checkpoint_folder is not None:
            load_random(Path(checkpoint_folder), self.args.process_index)


def save_optimizer(folder: Path, optimizer: Any, scheduler: Any, scaler: Any) -> None:
    """Write the state of the optimizer, the learning-rate schedule and fp16's loss scaler into `folder`."""
    state = optimizer.state_dict()
    for values in state["state"].values():  # bitsandbytes nests its tensors
        values.update(values.pop("__bnb_optimizer_quant_state__", {}))
    plain = {
        f"{part}.{index}.{name}": value
        for part, entries in (("state", state["state"].items()), ("groups", enumerate(state["param_groups"])))
        for index, values in entries
        for name, value in values.items()
    }
    names = [name for name, value in plain.items() if isinstance(value, torch.Tensor)]
    save_file(
        {name: plain.pop(name).detach().cpu().contiguous() for name in names},
        folder / "optimizer.safetensors",
    )
    states = {"scheduler": scheduler.state_dict(), "scaler": scaler.state_dict() if scaler else None}
    # A plateau schedule holds infinity, which Python's JSON reads back.
    write_text(folder / OPTIMIZER, json.dumps({"plain": plain, **states}))


def load_optimizer(folder: Path, optimizer: Any, scheduler: Any, scaler: Any) -> None:
    """Restore what `save_optimizer` wrote. Raises ModelError on the state of another optimizer."""
    rest = read_json(folder / OPTIMIZER)
    parts: dict[str, dict[int, Json]] = {"state": {}, "groups": {}}
    # aligned
    tensors = {name: value.clone() for name, value in load_file(folder / "optimizer.safetensors").items()}
    for key, value in {**tensors, **rest["plain"]}.items():
        part, entry = key.split(".", 1)
        index, name = entry.split(".", 1)
        parts[part].setdefault(int(index), {})[name] = value
    groups = [group for _, group in sorted(parts["groups"].items())]
    current = optimizer.param_groups  # which may be without what the optimizer adds to them in its first step
    kinds = ("lr_lambdas", "max_lrs")  # of LambdaLR, of GreedyLR
    other = any((key in scheduler.state_dict()) != (key in rest["scheduler"]) for key in kinds)
    if (
        other
        or len(current) != len(groups)
        or any(
            len(group["params"]) != len(saved["params"]) or group.keys() - saved.keys()
            for group, saved in zip(current, groups, strict=True)
        )
    ):
        raise other_optimizer(folder)
    optimizer.load_state_dict({"state": parts["state"], "param_groups": groups})
    scheduler.load_state_dict(rest["scheduler"])
    # of the recipe, which may have changed since the checkpoint
    names = {"weight_decay", "initial_lr", "betas", "eps", "momentum"}
    for group, stated in zip(optimizer.param_groups, current, strict=True):
        group.update({name: stated[name] for name in names & stated.keys()})
    if isinstance(scheduler, LambdaLR):
        scheduler.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        factors = (factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas)
        rates = [base * factor for base, factor in zip(scheduler.base_lrs, factors, strict=True)]
        scheduler._last_lr = rates  # what is logged next
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
    if scaler and rest.get("scaler"):
        scaler.load_state_dict(rest["scaler"])


def other_optimizer(folder: Path) -> ModelError:
    """The error about a checkpoint from which the optimizer cannot continue."""
    return ModelError(
        folder,
        "the checkpoint has another optimizer, schedule or trained weights (training.optim, "
        "lr_scheduler_type, freeze, peft)",
        AS_STARTED,
    )


def save_random(folder: Path, rank: int) -> None:
    """Write this process's random states: Python's, numpy's, torch's (CPU and accelerator)."""
    state = np.random.get_state(legacy=False)
    keys = state["state"]["key"]
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(keys.astype(np.int64))}
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        tensors[accelerator.type] = torch.get_device_module(accelerator).get_rng_state()
    numpy = [state["bit_generator"], state["state"]["pos"], state["has_gauss"], state["gauss"]]
    plain = {"python": random.getstate(), "numpy": numpy}
    save_file(tensors, folder / f"random-{rank}.safetensors")
    write_json(folder / f"random-{rank}.json", plain)


def load_random(folder: Path, rank: int) -> None:
    """Restore what `save_random` wrote."""
    tensors = load_file(folder / f"random-{rank}.safetensors")
    plain = read_json(folder / f"random-{rank}.json")
    version, *state = plain["python"]
    random.setstate((version, tuple(state[0]), state[1]))
    name, *rest = plain["numpy"]
    np.random.set_state((name, tensors["numpy"].numpy().astype(np.uint32), *rest))
    torch.set_rng_state(tensors["torch"])
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None and accelerator.type in tensors:
        torch.get_device_module(accelerator).set_rng_state(tensors[accelerator.type])


def publish(aside: Path, folder: Path) -> None:
    """Rename a folder that is completely written, after its files are listed in a manifest and flushed to
    disk.
    """
    files = _files(aside)
    write_json(aside / MANIFEST, files)
    for name in files:
        with (aside / name).open("rb") as file:
            os.fsync(file.fileno())
    if folder.exists():
        shutil.rmtree(folder)
    aside.replace(folder)


def is_intact(folder: Path) -> bool:
    """Whether the files of this checkpoint are those of its manifest, with the same sizes and sha256.

    An additional file is as bad as a missing one: Trainer would load a scaler.pt, which is a pickle.
    """
    try:
        return bool(read_json(folder / MANIFEST) == _files(folder))
    except (OSError, UserError):
        return False


def _files(folder: Path) -> dict[str, Json]:
    """Size and sha256 of each file in a checkpoint, except for the manifest, by its path there."""
    files = sorted(path for path in folder.rglob("*") if not path.is_dir() and path != folder / MANIFEST)
    return {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": sha256(path)} for path in files
    }


def step_of(folder: Path) -> int:
    """The step in a checkpoint folder's name, `checkpoint-STEP`."""
    return int(folder.name.rsplit("-", 1)[1])


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first."""
    return sorted((p for p in folder.glob("checkpoint-*") if p.name[11:].isdigit()), key=step_of)
