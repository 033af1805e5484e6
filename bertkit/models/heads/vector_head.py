"""From hidden states to one vector per text, in the folder layout of sentence-transformers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.errors import ModelError
from bertkit.files import read_json
from bertkit.models.encoder import Encoder, load_extra_module, load_model
from bertkit.models.untrusted import CORRECT, read_object
from bertkit.text import Json, Record, listed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Pooling = Literal["mean", "cls", "max"]
DENSE = "2_Dense"  # folder of the dense layer
LARGEST = 65_536  # outputs of a dense layer: a damaged file must not exhaust memory
OTHER = "Use another model; bertkit supports the usual layout of sentence-transformers."
_KNOWN = re.compile("Transformer Pooling( Dense)?( Normalize)?")
ACTIVATIONS: dict[str, type[nn.Module]] = {
    name: getattr(nn, name) for name in ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid")
}


class Layout(NamedTuple):
    """What follows the encoder: pooling, a dense layer of so many outputs (0: none), unit length, the first
    numbers.
    """

    pooling: Pooling = "mean"
    dense: int = 0
    activation: str = "Identity"
    bias: bool = True
    normalize: bool = False
    truncate_dim: int | None = None


class Dense(nn.Module):
    """activation(W x + b), `(texts, size)` -> `(texts, dense)`; tensors are named as in
    sentence-transformers.
    """

    def __init__(self, size: int, layout: Layout) -> None:
        super().__init__()
        self.linear = nn.Linear(size, layout.dense, bias=layout.bias)
        self.activation = ACTIVATIONS[layout.activation]()

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.activation(self.linear(x))
        return activated


def pool(hidden: Tensor, mask: Tensor | None, pooling: Pooling) -> Tensor:
    """`(texts, tokens, size)` and `(texts, tokens)` of 0 and 1 -> `(texts, size)`, fp32; special tokens
    count.

    mask: None where no text is padded.
    """
    hidden = hidden.float()
    if pooling == "cls":
        return hidden[:, 0]
    real = (hidden.new_ones(hidden.shape[:2]) if mask is None else mask)[..., None].to(hidden.dtype)
    if pooling == "max":
        return hidden.masked_fill(real == 0, -torch.inf).amax(1)
    return (hidden * real).sum(1) / real.sum(1).clamp(min=1e-9)


def load_with_layout(encoder: Encoder, settings: Json, layout: Layout, *, new_head: bool) -> PreTrainedModel:
    """AutoModel with the layout behind it: it gives `{"vectors": (texts, size)}` in fp32 in place of its
    hidden states.

    settings, new_head: as for `load_model`.
    """
    from transformers import AutoModel

    model: Any = load_model(encoder, AutoModel, settings, new_head=new_head)
    if "pooler" in dict(model.named_children()):
        model.pooler.requires_grad_(False)  # nothing reads it
    if layout.dense:
        # peft finds modules by the end of their name: `dense` would be layers of the encoder too
        model.vector_dense = Dense(model.config.hidden_size, layout)
        stored = encoder.folder / DENSE / "config.json"
        if not new_head or (stored.is_file() and read_object(stored).get("out_features") == layout.dense):
            load_extra_module(encoder, f"{DENSE}/model", model.vector_dense)

    def vectors(module: Any, args: Any, kwargs: Record, outputs: Any) -> dict[str, Tensor]:
        pooled = pool(outputs.last_hidden_state, kwargs.get("attention_mask"), layout.pooling)
        with torch.autocast(pooled.device.type, enabled=False):
            pooled = module.vector_dense(pooled) if layout.dense else pooled
            pooled = F.normalize(pooled, dim=-1) if layout.normalize else pooled
            return {"vectors": pooled[:, : layout.truncate_dim]}

    # A hook, since it also runs inside peft's and DDP's wrappers, and leaves the class as it was.
    model.register_forward_hook(vectors, with_kwargs=True)
    return model  # type: ignore[no-any-return]


def head_folder(layout: Layout) -> str:
    """The folder of a LinearHead: the last of the modules."""
    return f"{2 + (layout.dense > 0) + layout.normalize}_Dense"


def read_layout(folder: Path, *, head: bool = False) -> tuple[Layout, int | None, bool]:
    """The layout of a model folder, its limit in tokens where it states one, and whether its texts are
    lowercased.

    Mean pooling for a plain encoder. head: whether the last module is a LinearHead, which is not part of the
    layout.
    Raises ModelError on modules that bertkit does not know.
    """
    if not (folder / "modules.json").is_file():
        return Layout(), None, False
    modules = _modules(folder, head)
    if not _KNOWN.fullmatch(" ".join(modules)):
        raise ModelError(
            f"{folder}/modules.json",
            f"its modules are {', '.join(modules) or 'none'}",
            "Use a model of Transformer, Pooling, and optionally Dense and Normalize, in this order.",
        )
    if modules["Transformer"] != folder:
        raise ModelError(f"{folder}/modules.json", "its Transformer is not in the folder itself", OTHER)
    layout = Layout(_pooling(modules["Pooling"] / "config.json"), normalize="Normalize" in modules)
    if "Dense" in modules:
        layout = _dense(modules["Dense"], layout)
    return layout, *read_limits(folder)


def read_limits(folder: Path) -> tuple[int | None, bool]:
    """The limit in tokens that a model folder's own files set, if any, and whether its texts are lowercased.

    Raises ModelError.
    """
    file = folder / "sentence_bert_config.json"
    if not file.is_file():  # older ones are called after the architecture
        file = next(iter(sorted(folder.glob("sentence_*_config.json"))), file)
    # Without modules.json, sentence-transformers reads no other file of its own.
    settings = read_object(file) if file.is_file() and (folder / "modules.json").is_file() else {}
    longest = settings.get("max_seq_length")
    if longest is not None and not _is_integer(longest, 8):
        raise ModelError(
            file, f"max_seq_length: expected a whole number from 8 on, found {longest!r}", CORRECT
        )
    return longest, settings.get("do_lower_case") is True


def _is_integer(value: Any, least: int, most: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _modules(folder: Path, head: bool) -> dict[str, Path]:
    """Kind -> folder, in order, without a head; a module of another library by its full name. Raises
    ModelError.
    """
    file = folder / "modules.json"
    listed = read_json(file)
    if not isinstance(listed, list) or not all(isinstance(module, dict) for module in listed):
        raise ModelError(file, "not a list of modules", "Download the model again.")
    folders = {}
    for module in listed[: len(listed) - head]:
        name = str(module.get("type", ""))
        inside = folder / str(module.get("path", ""))
        if not inside.resolve().is_relative_to(folder.resolve()):
            raise ModelError(file, f"names {inside}, which is outside of the model", OTHER)
        kind = name.rpartition(".")[2] if name.startswith("sentence_transformers.") else name
        if kind in folders:
            raise ModelError(file, f"names two modules {kind}; bertkit supports one", OTHER)
        folders[kind] = inside
    return folders


def _dense(folder: Path, layout: Layout) -> Layout:
    file = folder / "config.json"
    config = read_object(file)
    activation = str(config.get("activation_function", "")).rpartition(".")[2]
    size: Any = config.get("out_features")
    if activation not in ACTIVATIONS or folder.name != DENSE:
        raise ModelError(
            folder, f"a dense layer with {activation or 'no activation'} is not supported", OTHER
        )
    if not _is_integer(size, 1, LARGEST):
        raise ModelError(
            file, f"out_features: expected a whole number from 1 to {LARGEST}, found {size!r}", CORRECT
        )
    places = {config.get(f"module_{end}put_name") for end in ("in", "out")}
    if config.get("use_residual") or not places <= {None, "sentence_embedding"}:
        raise ModelError(file, "is a residual layer, or does not read the pooled vector", OTHER)
    return layout._replace(dense=size, activation=activation, bias=bool(config.get("bias", True)))


def _pooling(file: Path) -> Pooling:
    """The one way of pooling that a config names, in the old style or in that of sentence-transformers 6."""
    config = read_object(file)
    old = {
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
    }
    chosen = config.get("pooling_mode") or [way for name, way in old.items() if config.get(name)]
    ways = [chosen] if isinstance(chosen, str) else chosen
    unknown = [
        name for name, on in config.items() if on and name.startswith("pooling_mode_") and name not in old
    ]
    if unknown or ways not in (["mean"], ["cls"], ["max"]):
        named = (
            listed([*map(str, ways if isinstance(ways, list) else [ways]), *unknown]) or "no way of pooling"
        )
        raise ModelError(file, f"expected exactly one of mean, cls and max, found {named}", OTHER)
    if config.get("include_prompt") is False:
        raise ModelError(file, "include_prompt is false, but bertkit pools over the prompt too", OTHER)
    only: Pooling = ways[0]
    return only


def files(layout: Layout, size: int, longest: int, labels: int = 0) -> Json:
    """File name -> JSON with which sentence-transformers (2 to 6) opens the folder.

    size: of the hidden states. labels: outputs of a LinearHead; 0: none.
    """
    at = "sentence_transformers.models"
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    kinds += [(DENSE, "Dense")] if layout.dense else []
    kinds += [(f"{len(kinds)}_Normalize", "Normalize")] if layout.normalize else []
    kinds += [(head_folder(layout), "Dense")] if labels else []
    contents = {
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
        contents[f"{DENSE}/config.json"] = _dense_config(size, layout)
    if labels:
        contents[f"{head_folder(layout)}/config.json"] = _dense_config(
            layout.dense or size, Layout(dense=labels)
        )
    return contents


def _dense_config(size: int, layout: Layout) -> Json:
    home = "linear" if layout.activation == "Identity" else "activation"
    return {
        "in_features": size,
        "out_features": layout.dense,
        "bias": layout.bias,
        "activation_function": f"torch.nn.modules.{home}.{layout.activation}",
    }
