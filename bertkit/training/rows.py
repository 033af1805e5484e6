"""AdamW that steps through the rows of an embedding that a text has used, and no others.

Half of a small encoder's weights are its word embeddings, and few of their rows are in any text of the training data.
Without a gradient and without moments a row only decays: what is left out is clearing, measuring, clipping and
stepping through zeros. Steps are those of AdamW (Loshchilov & Hutter 2019, algorithm 2). Measured by
benchmarks/finetune.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.adamw import adamw

MOST = 0.5  # share of used rows from which the whole table is as fast


class RowsAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`, fused, that also takes sparse gradients of embeddings. Its states are AdamW's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "fused": True})
        self.used: dict[torch.Tensor, torch.Tensor] = {}  # table -> (rows,) booleans: which have moments
        self.register_load_state_dict_post_hook(lambda _: self.used.clear())

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None and table.grad.is_sparse:
                    table.grad = self._step_rows(table, table.grad.coalesce(), group)
                elif table.grad is not None:
                    self.used.pop(table, None)
        return super().step(closure)

    def _step_rows(self, table: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> torch.Tensor | None:
        """Step through the used rows; where those are most, return the whole table's gradient for AdamW to step."""
        state = self.state[table]
        if not state:  # as AdamW begins
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(table), torch.zeros_like(table)
        whole = [table, state["exp_avg"], state["exp_avg_sq"]]
        if table not in self.used:
            self.used[table] = (whole[1] != 0).any(-1) | (whole[2] != 0).any(-1)
        used, given = self.used[table], gradient.indices()[0]
        used[given] = True
        rows = used.nonzero()[:, 0]
        if len(rows) > MOST * len(used):
            return gradient.to_dense()
        parts = [each.index_select(0, rows) for each in whole]
        gradients = torch.zeros_like(parts[0]).index_copy_(0, torch.searchsorted(rows, given), gradient.values())
        if group["weight_decay"]:
            table.add_(table, alpha=-group["lr"] * group["weight_decay"])
        adamw(
            parts[:1],
            [gradients],
            parts[1:2],
            parts[2:],
            max_exp_avg_sqs=[],
            state_steps=[state["step"]],
            fused=True,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            **{name: group[name] for name in ("lr", "weight_decay", "eps", "amsgrad", "maximize")},
        )
        for each, part in zip(whole, parts, strict=True):
            each.index_copy_(0, rows, part)
        return None


@contextlib.contextmanager
def sparse(embedding: torch.nn.Embedding) -> Iterator[None]:
    """Inside it, gradients of the embedding are sparse."""
    embedding.sparse = True
    try:
        yield
    finally:
        embedding.sparse = False


def clip(parameters: Iterable[torch.Tensor], largest: float) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_`, which does not know sparse gradients."""
    gradients = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # the same row is one term of the norm
            gradients.append(parameter.grad.values())
        elif parameter.grad is not None:
            gradients.append(parameter.grad)
    norm = torch.nn.utils.get_total_norm(gradients)
    times = largest / (norm + 1e-6)
    if times < 1:
        for gradient in gradients:
            gradient.mul_(times)
    return norm
