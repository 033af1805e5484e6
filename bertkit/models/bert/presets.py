"""The sizes of BERT, and the validation of a new model's architecture. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from bertkit.errors import ModelError, Problem
from bertkit.validation import did_you_mean, validate

WHERE = "model.config"  # its place in a recipe
PRE_NORM = "bertkit-pre-norm-bert"  # a model type that transformers does not have
MODEL_TYPES = ("bert", PRE_NORM)  # of the models in `bert.py`
Size = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
# Those of transformers' ACT2FN that have been used between the two layers of a feed-forward network.
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "relu2", "silu", "mish", "tanh"]


def _sizes(layers: int, hidden: int) -> Mapping[str, int]:
    # 64 numbers a head, and a feed-forward network four times as wide (Turc et al. 2019, section 3).
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
    }
    return MappingProxyType(sizes)


# base and large: Devlin et al. 2019, section 3. The others: Turc et al. 2019 (arXiv 1908.08962), table 1.
PRESETS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "tiny": _sizes(2, 128),
        "mini": _sizes(4, 256),
        "small": _sizes(4, 512),
        "medium": _sizes(8, 512),
        "base": _sizes(12, 768),
        "large": _sizes(24, 1024),
    }
)


class Architecture(BaseModel):
    """The architecture of a new BERT; names are `transformers.BertConfig`'s, except for `positions` and `norm`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    hidden_size: Size = Field(description="Numbers per token.")
    num_hidden_layers: Size
    num_attention_heads: Size = Field(description="Divides hidden_size.")
    intermediate_size: Size = Field(description="Width inside the feed-forward network.")
    hidden_act: Activation = Field("gelu", description="Activation of the feed-forward network and of the MLM head.")
    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1
    max_position_embeddings: Size = Field(512, description="Tokens of the longest input.")
    type_vocab_size: Size = Field(2, description="Segments.")
    initializer_range: float = Field(0.02, gt=0, description="Standard deviation of new weights.")
    layer_norm_eps: float = Field(1e-12, gt=0)
    positions: Literal["learned", "sinusoidal"] = Field(
        "learned", description="sinusoidal: a fixed table, Vaswani et al. 2017, section 3.5."
    )
    norm: Literal["post", "pre"] = Field(
        "post", description="pre: layer norm before each sublayer. Only bertkit opens such a model."
    )

    @field_validator("num_attention_heads")
    @classmethod
    def _divides(cls, heads: int, info: ValidationInfo) -> int:
        hidden = info.data.get("hidden_size", heads)
        if hidden % heads:
            raise ValueError(f"hidden_size {hidden} is not a multiple of {heads} heads")
        return heads

    @field_validator("positions")
    @classmethod
    def _pairs(cls, positions: str, info: ValidationInfo) -> str:
        if positions == "sinusoidal" and info.data.get("hidden_size", 2) % 2:
            raise ValueError("sinusoidal positions are pairs of sine and cosine: hidden_size must be even")
        return positions


def architecture(preset_or_fields: str | Mapping[str, Any], max_position_embeddings: int = 512) -> Architecture:
    """`mini`; or fields, with `preset: mini` among them for the sizes that they leave out.

    max_position_embeddings: where the fields leave it out. Raises ModelError with every problem.
    """
    given = {"preset": preset_or_fields} if isinstance(preset_or_fields, str) else dict(preset_or_fields)
    presets = f"presets: {', '.join(PRESETS)}"
    problems = [
        Problem(f"{WHERE}.{name}", "is given by the tokenizer", "remove it")
        for name in ("vocab_size", "pad_token_id")
        if given.pop(name, None) is not None
    ]
    preset = given.pop("preset", None)
    if preset is not None and not (isinstance(preset, str) and preset in PRESETS):
        meant = did_you_mean(preset, PRESETS) if isinstance(preset, str) else ""
        problems.append(Problem(f"{WHERE}.preset", f"no preset {preset!r}{meant}", presets))
        preset = next(iter(PRESETS))  # so that the other fields are checked too
    fields = {"max_position_embeddings": max_position_embeddings, **PRESETS.get(preset or "", {}), **given}
    for path, what, fix in validate(Architecture, fields):
        hint = f"write it, or name a preset; {presets}" if what == "missing" else fix
        problems.append(Problem(".".join([WHERE, *map(str, path)]), what.removeprefix("Value error, "), hint))
    if problems:
        raise ModelError(problems)
    return Architecture.model_validate(fields)
