"""Checkpoints without pickle: tensors in safetensors, everything else in JSON, complete or not there."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from bertkit.errors import UserError
from bertkit.files import read_json, sha256, write_json, write_text

MANIFEST = "manifest.json"


def save_optimizer(folder: Path, optimizer: Any, scheduler: Any, scaler: Any = None) -> None:
    """Write the optimizer's and the learning-rate schedule's state into `folder`, and fp16's loss scaler's."""
    state = optimizer.state_dict()
    tensors, plain = {}, {}
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{index}.{name}"] = value.detach().cpu().contiguous()
            else:
                plain[f"{index}.{name}"] = value
    save_file(tensors, folder / "optimizer.safetensors")
    groups = {"groups": state["param_groups"], "plain": plain, "scheduler": scheduler.state_dict()}
    groups["scaler"] = scaler.state_dict() if scaler else None
    # A plateau schedule holds infinity, which Python's JSON reads back.
    write_text(folder / "optimizer.json", json.dumps(groups))


def load_optimizer(folder: Path, optimizer: Any, scheduler: Any, scaler: Any = None) -> None:
    """Put back what `save_optimizer` wrote."""
    rest = read_json(folder / "optimizer.json")
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**load_file(folder / "optimizer.safetensors"), **rest["plain"]}.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": rest["groups"]})
    scheduler.load_state_dict(rest["scheduler"])
    if scaler and rest.get("scaler"):
        scaler.load_state_dict(rest["scaler"])


def save_random(folder: Path, rank: int) -> None:
    """Write this process's random states: Python's, numpy's, torch's (CPU and accelerator)."""
    version, state, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64))}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    plain = {
        "python": [version, list(state), gauss],
        "numpy": [name, int(position), int(has_gauss), float(cached)],
    }
    save_file(tensors, folder / f"random-{rank}.safetensors")
    write_json(folder / f"random-{rank}.json", plain)


def load_random(folder: Path, rank: int) -> None:
    """Put back what `save_random` wrote."""
    tensors = load_file(folder / f"random-{rank}.safetensors")
    plain = read_json(folder / f"random-{rank}.json")
    version, state, gauss = plain["python"]
    random.setstate((version, tuple(state), gauss))
    name, position, has_gauss, cached = plain["numpy"]
    np.random.set_state((name, tensors["numpy"].numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


def publish(aside: Path, folder: Path) -> None:
    """Give a folder that is completely written its name: list its files, flush them to disk, rename."""
    files = sorted(path for path in aside.rglob("*") if path.is_file())
    write_json(
        aside / MANIFEST,
        {str(p.relative_to(aside)): {"size": p.stat().st_size, "sha256": sha256(p)} for p in files},
    )
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if folder.exists():
        shutil.rmtree(folder)
    aside.replace(folder)


def whole(folder: Path) -> bool:
    """Are the files of this checkpoint those of its manifest, each with the size and sha256 that it says?

    A file more is as bad as one less: Trainer would load a scaler.pt, which is a pickle, if it found one.
    """
    try:
        manifest = read_json(folder / MANIFEST)
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
        return found == {*manifest, MANIFEST} and all(
            (folder / name).stat().st_size == entry["size"] and sha256(folder / name) == entry["sha256"]
            for name, entry in manifest.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError):
        return False


def step_of(folder: Path) -> int:
    """The step in a checkpoint folder's name, `checkpoint-STEP`."""
    return int(folder.name.rsplit("-", 1)[1])


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first."""
    return sorted((p for p in folder.glob("checkpoint-*") if p.name[11:].isdigit()), key=step_of)


def latest_intact(folder: Path) -> tuple[Path | None, list[Path]]:
    """The newest undamaged checkpoint, and the damaged ones that are newer."""
    damaged: list[Path] = []
    for candidate in reversed(checkpoints(folder)):
        if whole(candidate):
            return candidate, damaged
        damaged.append(candidate)
    return None, damaged
