"""What sentence-transformers' CrossEncoder (6.2) reads and writes besides the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertkit.errors import ModelError
from bertkit.models.untrusted import read_object
from bertkit.text import Json

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ACTIVATIONS = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "identity": "torch.nn.modules.linear.Identity",
}


def settings(activation: str) -> Json:
    """Fields of config.json that say how logits become scores, to CrossEncoder and to transformers'
    pipeline.
    """
    return {
        "problem_type": "regression"
        if activation == "identity"
        else None,  # else the pipeline takes a sigmoid
        "sentence_transformers": {"activation_fn": ACTIVATIONS[activation]},
    }


def extra_files(max_length: int) -> Json:
    """File name -> JSON with which CrossEncoder truncates at `max_length` tokens.

    The activation is not here: it stands in config.json, once, under `sentence_transformers`.
    """
    module = "sentence_transformers.base.modules.transformer.Transformer"
    return {
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": module}],
        "sentence_bert_config.json": {
            "transformer_task": "sequence-classification",
            "max_seq_length": max_length,
        },
        "config_sentence_transformers.json": {"model_type": "CrossEncoder"},
    }


def read(config: PretrainedConfig) -> tuple[Literal["sigmoid", "identity"], int | None]:
    """Activation and length limit of a model as CrossEncoder reads them: looked for where it looks, in its
    order.

    Raises ModelError on a model with several outputs, and on activations other than sigmoid and identity.
    """
    from bertkit.models.heads.vector_head import read_limits

    folder = Path(str(config.name_or_path))
    if config.num_labels != 1:
        raise ModelError(
            folder,
            f"its head has {config.num_labels} outputs; text-ranking needs one",
            "Outputs of several classes: use the task text-classification.",
        )
    settings = config.to_dict()
    file = folder / "config_sentence_transformers.json"
    current = settings.get("sentence_transformers")
    stated = read_object(file) if file.is_file() else {}
    prompts = stated.get("prompts")
    if isinstance(prompts, dict) and prompts.get(str(stated.get("default_prompt_name"))):
        fix = "Set it to null in a copy of the model, and prepend the prompt to queries."
        raise ModelError(file, "default_prompt_name is set, but bertkit prepends no prompt to queries", fix)
    path = (
        stated.get("activation_fn")
        or (current.get("activation_fn") if isinstance(current, dict) else None)
        or settings.get("sbert_ce_default_activation_function")
        or ACTIVATIONS["sigmoid"]
    )
    kind = str(path).rpartition(".")[2]
    if kind not in ("Sigmoid", "Identity"):
        raise ModelError(
            folder, f"its activation is {path}; bertkit supports Sigmoid and Identity", "Use another model."
        )
    return "sigmoid" if kind == "Sigmoid" else "identity", read_limits(folder)[0]
