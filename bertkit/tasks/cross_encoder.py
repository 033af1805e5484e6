"""What sentence-transformers' CrossEncoder (6.2) reads and writes besides the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertkit.errors import ModelError, Problem
from bertkit.files import read_json

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LEAST = 8  # tokens of a text, special tokens included
ACTIVATIONS = {"sigmoid": "torch.nn.modules.activation.Sigmoid", "identity": "torch.nn.modules.linear.Identity"}


def settings(activation: str) -> dict[str, Any]:
    """Fields of config.json that say how logits become scores, to CrossEncoder and to transformers' pipeline."""
    return {
        "problem_type": "regression" if activation == "identity" else None,  # else the pipeline takes a sigmoid
        "sentence_transformers": {"activation_fn": ACTIVATIONS[activation]},
    }


def extra_files(max_length: int) -> dict[str, Any]:
    """File name -> JSON with which CrossEncoder truncates at `max_length` tokens.

    The activation is not here: it stands in config.json, once, under `sentence_transformers`.
    """
    module = "sentence_transformers.base.modules.transformer.Transformer"
    return {
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": module}],
        "sentence_bert_config.json": {"transformer_task": "sequence-classification", "max_seq_length": max_length},
        "config_sentence_transformers.json": {"model_type": "CrossEncoder"},
    }


def read(config: PretrainedConfig) -> tuple[Literal["sigmoid", "identity"], int | None]:
    """Activation and length limit of a model as CrossEncoder reads them.

    Raises ModelError on a model with several outputs, and on activations other than sigmoid and identity.
    """
    folder = Path(str(config.name_or_path))
    if config.num_labels != 1:
        what = f"its head has {config.num_labels} outputs; text-ranking is for models with one"
        raise ModelError(Problem(str(folder), what, "Several are classes: --task text-classification."))
    return read_activation(config, folder), read_length(folder)


def read_length(folder: Path) -> int | None:
    """The limit in tokens that a model folder's own files set; None where they set none. Raises ModelError."""
    if not (folder / "modules.json").is_file():  # without it, CrossEncoder reads no other file of its own
        return None
    length = _read(folder / "sentence_bert_config.json").get("max_seq_length")
    if length is None:
        return None
    if type(length) is not int or length < LEAST:
        what = f"max_seq_length is {length!r}"
        raise ModelError(Problem(f"{folder}/sentence_bert_config.json", what, f"It is a whole number from {LEAST} on."))
    return length


def read_activation(config: PretrainedConfig, folder: Path) -> Literal["sigmoid", "identity"]:
    """How CrossEncoder would make scores of logits: looked for where it looks, in its order; else a sigmoid.

    Raises ModelError on another activation than these two.
    """
    known = config.to_dict()
    path = (
        _read(folder / "config_sentence_transformers.json").get("activation_fn")
        or _mapping(known.get("sentence_transformers")).get("activation_fn")
        or known.get("sbert_ce_default_activation_function")
        or ACTIVATIONS["sigmoid"]
    )
    kind = str(path).rpartition(".")[2]
    if kind == "Sigmoid":
        return "sigmoid"
    if kind == "Identity":
        return "identity"
    raise ModelError(Problem(str(folder), f"its scores are made by {path}; bertkit knows Sigmoid and Identity"))


def _read(file: Path) -> dict[str, Any]:
    return _mapping(read_json(file)) if file.is_file() else {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
