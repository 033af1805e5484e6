"""From word pieces to one vector a text, laid out on disk as sentence-transformers does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.errors import ModelError, Problem, UserError
from bertkit.files import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Pooling: TypeAlias = Literal["mean", "cls", "max"]
DENSE = "2_Dense"  # folder of the dense layer
ACTIVATIONS: dict[str, type[nn.Module]] = {
    name: getattr(nn, name) for name in ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid")
}


class Layout(NamedTuple):
    """What stands behind the encoder: pooling, then a dense layer of so many outputs (0: none), then unit length."""

    pooling: Pooling = "mean"
    dense: int = 0
    activation: str = "Identity"
    bias: bool = True
    normalize: bool = False


class Dense(nn.Module):
    """activation(W x + b), `(texts, size)` -> `(texts, dense)`; its tensors are called as in sentence-transformers."""

    def __init__(self, size: int, layout: Layout) -> None:
        super().__init__()
        self.linear = nn.Linear(size, layout.dense, bias=layout.bias)
        self.activation = ACTIVATIONS[layout.activation]()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.activation(self.linear(x))
        return made


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """`(texts, pieces, size)` and `(texts, pieces)` of 0 and 1 -> `(texts, size)`, fp32; special pieces count."""
    hidden = hidden.float()
    if pooling == "cls":
        return hidden[:, 0]
    there = mask[..., None].to(hidden.dtype)
    if pooling == "max":
        return hidden.masked_fill(there == 0, -torch.inf).amax(1)
    return (hidden * there).sum(1) / there.sum(1).clamp(min=1e-9)


def attach(model: PreTrainedModel, layout: Layout) -> None:
    """Let the model give `{"vectors": (texts, size)}` in fp32 in place of its hidden states.

    By a hook, since it also runs inside peft's and DDP's wrappers, and leaves the class as it was.
    """
    whole: Any = model
    if layout.dense:
        whole.dense = Dense(model.config.hidden_size, layout)

    def vectors(module: Any, args: Any, kwargs: Mapping[str, Any], outputs: Any) -> dict[str, Tensor]:
        pooled = pool(outputs.last_hidden_state, kwargs["attention_mask"], layout.pooling)
        with torch.autocast(pooled.device.type, enabled=False):
            made = module.dense(pooled) if layout.dense else pooled
            return {"vectors": F.normalize(made, dim=-1) if layout.normalize else made}

    model.register_forward_hook(vectors, with_kwargs=True)


def read_layout(folder: Path) -> tuple[Layout, int | None]:
    """The layout of a model folder, and the most word pieces it reads where it says so; mean pooling where it is plain.

    Raises ModelError on modules that bertkit does not know.
    """
    if not (folder / "modules.json").is_file():
        return Layout(), None
    layout, longest = Layout(), None
    for module in _modules(folder):
        kind, inside = str(module.get("type", "")).rpartition(".")[2], folder / str(module.get("path", ""))
        if not inside.resolve().is_relative_to(folder.resolve()):
            raise ModelError(Problem(f"{folder}/modules.json", f"names {inside}, which is outside of the model"))
        if kind == "Transformer":
            said = (
                read_json(inside / "sentence_bert_config.json")
                if (inside / "sentence_bert_config.json").is_file()
                else {}
            )
            longest = said.get("max_seq_length")
        elif kind == "Pooling":
            layout = layout._replace(pooling=_pooling(inside / "config.json"))
        elif kind == "Dense" and not layout.dense:
            config = read_json(inside / "config.json")
            activation = str(config.get("activation_function", "")).rpartition(".")[2]
            if activation not in ACTIVATIONS or inside.name != DENSE:
                raise ModelError(
                    Problem(str(inside), f"bertkit reads no dense layer with {activation or 'no activation'}")
                )
            layout = layout._replace(
                dense=int(config["out_features"]), activation=activation, bias=bool(config.get("bias", True))
            )
        elif kind == "Normalize":
            layout = layout._replace(normalize=True)
        else:
            raise ModelError(Problem(f"{folder}/modules.json", f"bertkit knows no module {kind!r} at this place"))
    return layout, longest


def _modules(folder: Path) -> list[dict[str, Any]]:
    try:
        modules = read_json(folder / "modules.json")
    except UserError as error:
        raise ModelError(error.problems) from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(Problem(f"{folder}/modules.json", "not a list of modules"))
    return modules


def _pooling(file: Path) -> Pooling:
    """The one way of pooling that a config names, in the old style or in that of sentence-transformers 6."""
    config = read_json(file)
    old = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
    chosen = config.get("pooling_mode") or [way for name, way in old.items() if config.get(name)]
    strange = [name for name, on in config.items() if name.startswith("pooling_mode_") and on and name not in old]
    ways: list[Pooling] = [
        way for way in ("mean", "cls", "max") if way in ([chosen] if isinstance(chosen, str) else chosen)
    ]
    if len(ways) != 1 or strange:
        raise ModelError(Problem(str(file), "bertkit pools by mean, cls or max, and by one of them"))
    return ways[0]


def files(layout: Layout, size: int, longest: int) -> dict[str, Any]:
    """File name -> JSON with which sentence-transformers (2 to 6) opens the folder; `size`: of the hidden states."""
    at = "sentence_transformers.models"
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    kinds += [(DENSE, "Dense")] if layout.dense else []
    kinds += [(f"{len(kinds)}_Normalize", "Normalize")] if layout.normalize else []
    made: dict[str, Any] = {
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"{at}.{kind}"}
            for index, (path, kind) in enumerate(kinds)
        ],
        "sentence_bert_config.json": {"max_seq_length": longest, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": size,
            "pooling_mode_cls_token": layout.pooling == "cls",
            "pooling_mode_mean_tokens": layout.pooling == "mean",
            "pooling_mode_max_tokens": layout.pooling == "max",
        },
    }
    if layout.dense:
        home = "linear" if layout.activation == "Identity" else "activation"
        made[f"{DENSE}/config.json"] = {
            "in_features": size,
            "out_features": layout.dense,
            "bias": layout.bias,
            "activation_function": f"torch.nn.modules.{home}.{layout.activation}",
        }
    return made
