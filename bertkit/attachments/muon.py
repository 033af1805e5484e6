"""Muon, an optimizer that transformers does not have."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn
from torch.optim import Muon, Optimizer

from bertkit.engine.attachment import Attachment, Draft, Steps
from bertkit.errors import RecipeError


@final
class MuonOptimizer(Attachment):
    """Trains the weight matrices of the layers by Muon, all other parameters by the engine's optimizer."""

    def join(self, draft: Draft) -> bool:
        if draft.args.muon and not layer_matrices(draft.model):
            raise RecipeError(
                "training.optim",
                "no weight matrix of a layer is trained, and muon trains nothing else",
                "Remove it, or freeze fewer layers.",
            )
        return draft.args.muon

    def wrap_optimizer(self, optimizer: Any, trainer: Steps) -> MuonWith:
        args = trainer.args
        rate = args.muon_learning_rate or args.learning_rate
        return MuonWith(optimizer, layer_matrices(trainer.model), lr=rate, momentum=args.muon_momentum)


class MuonWith(Optimizer):
    """Muon (Jordan et al. 2024) for weight matrices of layers, another optimizer for all other parameters.

    For schedules and checkpoints it is one optimizer: it has the groups of both, those of the other first.
    """

    def __init__(self, other: Optimizer, matrices: set[Tensor], **settings: Any) -> None:
        """other: of all parameters; it loses the matrices. settings: of Muon. Raises ValueError without a
        matrix.
        """
        groups = []
        for group in other.param_groups:
            chosen = [parameter for parameter in group["params"] if parameter in matrices]
            group["params"] = [parameter for parameter in group["params"] if parameter not in matrices]
            groups.append({"params": chosen, "weight_decay": group["weight_decay"]})
        # Updates as large as AdamW's (Liu et al. 2025, section 2.2), so that both can have the same learning
        # rate.
        muon = Muon(
            [group for group in groups if group["params"]], **settings, adjust_lr_fn="match_rms_adamw"
        )
        self.parts = (other, muon)
        rate = {"lr": other.defaults["lr"]}  # which schedules of transformers read
        super().__init__([group for part in self.parts for group in part.param_groups], rate)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for part in self.parts:
            # Loading a state replaces groups and states, and the task adds groups.
            part.param_groups = [g for g in self.param_groups if ("ns_steps" in g) == isinstance(part, Muon)]
            part.state = self.state
            part.step()


def layer_matrices(model: Any) -> set[Tensor]:
    """The weight matrices of the linear modules in the model's lists of layers, LoRA's among them, that are
    trained.

    Not embeddings, nor the head, a decoder to the vocabulary or a pooler, which are not in such a list.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    linear = {module for layer in layers for module in layer.modules() if isinstance(module, nn.Linear)}
    return {module.weight for module in linear if module.weight.requires_grad}
