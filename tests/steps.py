"""The first optimizer step of a case or a recipe under given settings, and trainings by a clock that steps
move on.
"""

from __future__ import annotations

import torch
from cases import BY_ID, encoder
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import TrainerCallback, set_seed

import bertkit
from bertkit.attachments.memory import MicroBatchSplit
from bertkit.attachments.muon import MuonOptimizer
from bertkit.attachments.used_rows import UsedEmbeddings
from bertkit.engine import trainer
from bertkit.engine.arguments import ENDLESS, Arguments
from bertkit.engine.clock import Clock
from bertkit.engine.training_data import TaskData
from bertkit.inference.runner import Runner
from bertkit.training.job import Extensions, prepare_jobs
from bertkit.training.seed import make_trainer, new_runners

Step = tuple[float, dict[str, torch.Tensor]]  # loss and gradients


class NoDoubles(TorchDispatchMode):
    """Within the block, a tensor of float64 is an error: Apple's GPUs have none."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        assert torch.float64 not in {
            leaf.dtype for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)
        }, func
        return made


class FirstStep(TrainerCallback):
    """Keeps the gradients of the first step."""

    def __init__(self):
        self.gradients = {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        if not self.gradients:
            named = model.named_parameters()
            self.gradients = {
                n.removeprefix("module."): p.grad.clone() for n, p in named if p.grad is not None
            }


def arguments(folder, batch, accumulate, **more):
    sizes = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulate,
        "max_steps": 1,
        "seed": 5,
    }
    given = {
        "max_grad_norm": 1e9,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return Arguments(output_dir=str(folder), remove_unused_columns=False, **{**sizes, **given, **more})


def first_step(case, folder, out, batch, accumulate, tokens=None, **more):
    """The first step by `trainer.Trainer`."""
    step = FirstStep()
    ours = made(case, folder, arguments(out, batch, accumulate, **more), tokens=tokens, callbacks=[step])
    ours.train()
    return next(e["loss"] for e in ours.state.log_history if "loss" in e), step.gradients


def focal(outputs, labels, num_items_in_batch, gamma=2.0):
    """Focal loss (Lin et al. 2017, equation 4)."""
    losses = F.cross_entropy(outputs.logits, labels, reduction="none")
    return ((1 - torch.exp(-losses)) ** gamma * losses).sum() / num_items_in_batch


def mean(outputs, labels, num_items_in_batch):
    """Divides by a count of its own."""
    return F.cross_entropy(outputs.logits, labels)


class Lookahead(bertkit.Attachment):
    """That of docs/python.md, on the CPU."""

    def start(self, trainer, checkpoint):
        self.weights = dict(trainer.model.named_parameters())
        slow = load_file(checkpoint / "slow.safetensors") if checkpoint else self.weights
        self.slow = {name: tensor.detach().clone() for name, tensor in slow.items()}

    def wrap_optimizer(self, optimizer, trainer):
        optimizer.register_step_post_hook(self.look)
        return optimizer

    def look(self, *_):
        for name, weight in self.weights.items():
            weight.data.lerp_(self.slow[name].lerp_(weight.data, 0.1), 0.5)

    def save_files(self):
        return {"slow.safetensors": self.slow}


OWN = {  # what a user adds to `train`
    "focal": {"compute_loss_func": focal},
    "mean": {"compute_loss_func": mean},
    "lookahead": {"attachments": [Lookahead()]},
}


def trainer_of(recipe, folder, *callbacks, **own):
    """The trainer of a recipe, as `train` makes it. own: a user's code."""
    jobs = prepare_jobs(recipe, Extensions(**own))[0]
    args = jobs.arguments(folder, 5)
    return make_trainer(jobs, new_runners(jobs, args), args, callbacks, Clock())


def first_step_of(recipe, folder, **own):
    """The first step of a recipe, as `train` takes it."""
    step = FirstStep()
    ours = trainer_of(recipe, folder, step, **own)
    ours.train()
    return next(e["loss"] for e in ours.state.log_history if "loss" in e), step.gradients


def made(case, folder, args, *, tokens=None, divide=False, **more):
    """A trainer of the case's model on its rows, with what the arguments ask for."""
    task = case.task(folder)
    set_seed(5)
    runner = Runner(task, task.model(encoder(folder)), args.device, "fp32", 8)
    attachments = [*([MuonOptimizer()] if args.muon else ())]
    attachments += [UsedEmbeddings(), *([MicroBatchSplit()] if divide else ())]
    data = TaskData(runner, task.features(case.rows()), tokens=tokens)
    return trainer.Trainer(data, args, attachments=attachments, **more)


class Time(TrainerCallback):
    """Moves on by so many seconds, which may depend on the step."""

    def __init__(self, step=lambda _: 5.0, evaluation=0.0):
        self.seconds = 1000.0
        self.step = step
        self.evaluation = evaluation

    def __call__(self):
        return self.seconds

    def on_step_end(self, args, state, control, **_):
        self.seconds += self.step(state.global_step)

    def on_evaluate(self, args, state, control, **_):
        self.seconds += self.evaluation


def trained(folder, out, batch, seconds):
    """Train for 30 seconds with steps that take so many; OUT/PROCESS-STEPS.safetensors has the weights."""
    time = Time(lambda _: seconds)
    args = arguments(out, batch, 2, max_steps=ENDLESS, learning_rate=0.1, optim="sgd")
    trainer = made(BY_ID["class-weights"], folder, args, clock=Clock(30, now=time), callbacks=[time])
    trainer.train()
    save_file(
        trainer.model.state_dict(), out / f"{args.process_index}-{trainer.state.global_step}.safetensors"
    )
