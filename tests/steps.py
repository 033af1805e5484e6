"""The first optimizer step of a case or a recipe under given settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from cases import Case, encoder
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import TrainerCallback, set_seed

from bertkit.attachments.memory import MicroBatchSplit
from bertkit.attachments.muon import MuonOptimizer
from bertkit.attachments.used_rows import UsedEmbeddings
from bertkit.engine import trainer
from bertkit.engine.arguments import Arguments
from bertkit.engine.attachment import Attachment
from bertkit.engine.clock import Clock
from bertkit.engine.training_data import TaskData
from bertkit.inference.runner import Runner
from bertkit.recipe.recipe import Recipe
from bertkit.training.job import prepare_jobs
from bertkit.training.seed import make_trainer, new_runners

Step = tuple[float, dict[str, torch.Tensor]]  # loss and gradients


class NoDoubles(TorchDispatchMode):
    """Within the block, a tensor of float64 is an error: Apple's GPUs have none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        assert torch.float64 not in {leaf.dtype for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)}, func
        return made


class FirstStep(TrainerCallback):
    """Keeps the gradients of the first step."""

    def __init__(self) -> None:
        self.gradients: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if not self.gradients:
            named = model.named_parameters()
            self.gradients = {n.removeprefix("module."): p.grad.clone() for n, p in named if p.grad is not None}


def arguments(folder: Path, batch: int, accumulate: int, **more: Any) -> Arguments:
    given = {
        "max_steps": 1,
        "max_grad_norm": 1e9,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "seed": 5,
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }
    return Arguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        **{**given, **more},
    )


def first_step(
    case: Case, folder: Path, out: Path, batch: int, accumulate: int, tokens: int | None = None, **more: Any
) -> Step:
    """The first step by `trainer.Trainer`."""
    step = FirstStep()
    ours = made(case, folder, arguments(out, batch, accumulate, **more), tokens=tokens, callbacks=[step])
    ours.train()
    return next(e["loss"] for e in ours.state.log_history if "loss" in e), step.gradients


def first_step_of(recipe: Recipe, folder: Path) -> Step:
    """The first step of a recipe, as `train` takes it."""
    jobs = prepare_jobs(recipe)[0]
    args, step = jobs.arguments(folder, 5), FirstStep()
    ours = make_trainer(jobs, new_runners(jobs, args), args, [step], Clock())
    ours.train()
    return next(e["loss"] for e in ours.state.log_history if "loss" in e), step.gradients


def made(
    case: Case, folder: Path, args: Arguments, *, tokens: int | None = None, divide: bool = False, **more: Any
) -> trainer.Trainer:
    """A trainer of the case's model on its rows, with what the arguments ask for."""
    task = case.task(folder)
    set_seed(5)
    runner = Runner(task, task.model(encoder(folder)), args.device, "fp32", 8)
    attachments: list[Attachment] = [*([MuonOptimizer()] if args.muon else ())]
    attachments += [UsedEmbeddings(args.used_embeddings, None), *([MicroBatchSplit()] if divide else ())]
    data = TaskData(runner, task.features(case.rows()), tokens=tokens)
    return trainer.Trainer(data, args, attachments=attachments, **more)
