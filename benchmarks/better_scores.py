"""Changes to a training that may score higher in the same time: each on its own, over several seeds.

Of each variant and seed: the headline metric on validation times 100, of the best checkpoint; then their mean
± sample standard deviation, and the median seconds of a training with its evaluations.

recipe           the recipe itself
longer           1.5 times its epochs, which take bertkit about as long as the recipe takes stock Trainer
layers           each layer learns 0.9 times as fast as what follows it, the embeddings too
                 (Howard & Ruder 2018)
layers-0.8       0.8 times
dropout          0.3 before the head in place of what the encoder's config says
no-dropout       none there
no-warm-up       the learning rate is highest at the first step, not after a tenth of them
r-drop           two forward passes with dropout, and the distance of their outputs in the loss
                 (Liang et al. 2021), with half of the epochs, as each takes twice as long
stock            stock Trainer with the recipe's learning rate, schedule, batches and epochs, grouped by
length

After each variant of bertkit's, the score of its soup: one model, whose weights are the mean of those of all
seeds.

Run:  python benchmarks/better_scores.py RECIPE [key=value …] [--variants recipe layers] [--seeds 1 2 3]
RECIPE is one of text classification or of token classification with a softmax.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch
import transformers
from finetune import of_task
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import TrainerCallback

from bertkit import load_recipe
from bertkit.engine.clock import Clock
from bertkit.engine.trainer import Trainer
from bertkit.inference.runner import Runner
from bertkit.models.heads.tagger import word_logits
from bertkit.recipe.recipe import Recipe
from bertkit.tasks.base import Batch, Task, evaluate
from bertkit.training.job import Job, Jobs, arguments, prepare_jobs
from bertkit.training.seed import make_trainer, new_runners, run_trainer

LAYER = re.compile(r"\.layers?\.(\d+)\.")
Apply = Callable[[Trainer], Any]


class LayerDecay(TrainerCallback):
    """Smaller updates of lower layers: an update of AdamW is proportional to its learning rate."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        layer = {name: int(found[1]) for name, _ in model.named_parameters() if (found := LAYER.search(name))}
        top = max(layer.values()) + 1
        depth = {
            p: top - layer.get(name, -1) for name, p in model.named_parameters() if self.below(name, layer)
        }
        before: dict[Tensor, Tensor] = {}

        def keep(*_: Any) -> None:
            before.update((p, p.detach().clone()) for p in depth)

        @torch.no_grad()
        def shrink(*_: Any) -> None:
            for p, old in before.items():
                p.lerp_(old, 1 - self.factor ** depth[p])

        optimizer.optimizer.register_step_pre_hook(keep)  # under accelerate's own
        optimizer.optimizer.register_step_post_hook(shrink)

    @staticmethod
    def below(name: str, layer: dict[str, int]) -> bool:
        """Whether a parameter is in a layer or in the embeddings, not in the head."""
        return name in layer or ".embeddings." in name


class RDrop:
    """A task whose loss is the mean of two passes' losses plus the distance of their outputs."""

    def __init__(self, task: Task, weight: float = 1.0) -> None:
        self.task, self.weight = task, weight
        self.learning_rate_factors, self.scheduled, self.count = (
            task.learning_rate_factors,
            task.scheduled,
            task.count,
        )

    def forward(self, model: Any, batch: Batch) -> Any:
        return self.task.forward(model, batch), self.task.forward(model, batch)

    def loss(self, outputs: Any, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        first, second = (self.logits(each, batch) for each in outputs)
        if first.shape[-1] == 1:
            distance = F.mse_loss(first, second, reduction="sum")
        else:
            a, b = first.log_softmax(-1), second.log_softmax(-1)
            distance = sum(F.kl_div(p, q, reduction="sum", log_target=True) for p, q in ((a, b), (b, a))) / 2
        losses = sum(self.task.loss(each, batch, label_smoothing) for each in outputs) / 2
        return losses + self.weight * distance

    def logits(self, outputs: Any, batch: Batch) -> Tensor:
        logits = outputs["logits"]
        return (word_logits(logits, batch) if "heads" in batch else logits).float()


def r_drop(trainer: Trainer) -> None:
    trainer.learner = RDrop(trainer.data.learner)


def before_head(dropout: float) -> Apply:
    def apply(trainer: Trainer) -> None:
        model: Any = trainer.model
        (own,) = (module for module in model.children() if isinstance(module, nn.Dropout))
        own.p = dropout

    return apply


def scaled(key: str, factor: float) -> Callable[[Recipe], Recipe]:
    return lambda recipe: recipe.with_(f"training.{key}={recipe.training[key] * factor}")


def unchanged(given: Any) -> Any:
    return given


VARIANTS: dict[str, tuple[Callable[[Recipe], Recipe], Apply]] = {
    "recipe": (unchanged, unchanged),
    "longer": (scaled("num_train_epochs", 1.5), unchanged),
    "layers": (unchanged, lambda trainer: trainer.add_callback(LayerDecay(0.9))),
    "layers-0.8": (unchanged, lambda trainer: trainer.add_callback(LayerDecay(0.8))),
    "dropout": (unchanged, before_head(0.3)),
    "no-dropout": (unchanged, before_head(0.0)),
    "no-warm-up": (lambda recipe: recipe.with_("training.warmup_steps=0"), unchanged),
    "r-drop": (scaled("num_train_epochs", 0.5), r_drop),
}


def trained(job: Job, variant: str, seed: int, folder: Path) -> Runner:
    """The model of the best checkpoint."""
    jobs = Jobs(job.recipe, {"": job})
    args = jobs.arguments(folder, seed)
    trainer = make_trainer(jobs, new_runners(jobs, args), args, [], Clock(args.seconds))
    VARIANTS[variant][1](trainer)
    run_trainer(trainer, folder)
    return trainer.data.runner


class Best(TrainerCallback):
    """Keeps the score of the best epoch."""

    def __init__(self, score: Callable[[Any], float]) -> None:
        self.score, self.best = score, 0.0

    def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.best = max(self.best, self.score(model))
        model.train()


def stock(job: Job, seed: int, folder: Path) -> tuple[Any, Best]:
    """Stock Trainer, and the score of its best epoch."""
    given = of_task(job.encoder, job.task, job.data.rows["train"])
    args = arguments(job, folder, seed)
    args.eval_strategy, args.save_strategy, args.load_best_model_at_end = "no", "no", False
    args.train_sampling_strategy, args.remove_unused_columns = "group_by_length", True
    transformers.set_seed(seed)
    model = given.model()
    best = Best(lambda trained: score(job, Runner(job.task, trained, args.device, "bf16", 32)))
    return transformers.Trainer(
        model=model, args=args, train_dataset=given.plain, data_collator=given.collator, callbacks=[best]
    ), best


def headline(job: Job) -> str:
    """The metric that selects checkpoints."""
    return str(job.recipe.training.get("metric_for_best_model") or job.task.metrics[0])


def score(job: Job, runner: Runner) -> float:
    """The headline metric on validation, times 100."""
    found = evaluate(job.task, job.data.rows["validation"], runner, fitted=True)
    return 100 * float(found[headline(job)] or 0.0)


def scored(job: Job, variant: str, seed: int, folder: Path) -> tuple[float, Runner | None]:
    """The score of a training, and bertkit's model."""
    if variant == "stock":
        trainer, best = stock(job, seed, folder)
        trainer.train()
        return best.best, None
    runner = trained(job, variant, seed, folder)
    return score(job, runner), runner


def measure(recipe: Recipe, variant: str, args: argparse.Namespace) -> None:
    """Print the score of each seed, their mean, and the score of the soup."""
    job = prepare_jobs(recipe)[0].only
    scores, times, runners, title = [], [], [], f"{args.recipe}, {variant}"
    for seed in args.seeds:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found, runner = scored(job, variant, seed, Path(folder))
        scores.append(found)
        times.append(time.monotonic() - started)
        runners += [runner] if runner else []
        print(f"{title}, seed {seed}: {found:.2f}, {times[-1]:.0f} s", flush=True)
    spread = f" ± {stdev(scores):.2f}" if len(scores) > 1 else ""
    print(f"{title}: {headline(job)} {fmean(scores):.2f}{spread}, {median(times):.0f} s", flush=True)
    if len(runners) > 1:
        states = [each.model.state_dict() for each in runners]
        mean = {
            k: torch.stack([each[k].float() for each in states]).mean(0).to(v.dtype)
            for k, v in states[0].items()
        }
        runners[0].model.load_state_dict(mean)
        print(f"{title}, soup: {score(job, runners[0]):.2f}", flush=True)


def main() -> None:
    """Train, and print each score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--variants", nargs="+", default=[*VARIANTS, "stock"], choices=[*VARIANTS, "stock"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_intermixed_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    given = load_recipe(args.recipe, args.overrides)
    for variant in args.variants:
        measure(VARIANTS[variant][0](given) if variant in VARIANTS else given, variant, args)


if __name__ == "__main__":
    main()
