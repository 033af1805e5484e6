"""The config of a new encoder, as `model.config` of a recipe describes it: a BERT or a ModernBERT."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from bertkit.errors import ModelError, Problem
from bertkit.models.bert import bert_config
from bertkit.models.bert.bert_config import WHERE, Activation, Probability, Size, Sizes, checked, nearest_preset, sizes
from bertkit.validation import did_you_mean

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

# Layers, hidden size, width of the feed-forward network. modernbert-base and -large: Warner et al. 2024 (arXiv
# 2412.13663); ettin: Weller et al. 2025 (arXiv 2507.11412). The others have the layers and the hidden size of the BERT
# of that name, and the proportions of modernbert-base.
PRESETS = {
    "modernbert-tiny": sizes(2, 128, 192),
    "modernbert-mini": sizes(4, 256, 384),
    "modernbert-small": sizes(4, 512, 768),
    "modernbert-medium": sizes(8, 512, 768),
    "modernbert-base": sizes(22, 768, 1152),
    "modernbert-large": sizes(28, 1024, 2624),
    "ettin-17m": sizes(7, 256, 384),
    "ettin-32m": sizes(10, 384, 576),
    "ettin-68m": sizes(19, 512, 768),
}


class ModernArchitecture(Sizes):
    """The architecture of a new ModernBERT; names are those of ModernBERT's published config."""

    hidden_activation: Activation = "gelu"
    max_position_embeddings: Size = Field(512, description="Tokens of the longest input; no weights depend on it.")
    global_attn_every_n_layers: Size = Field(3, description="Layers 0, n, 2n, … attend to all tokens.")
    local_attention: Annotated[int, Field(ge=2)] = Field(
        128, description="Window of the other layers: each token attends to half as many on either side."
    )
    global_rope_theta: Annotated[float, Field(gt=1)] = Field(10_000.0, description="Of layers that attend to all.")
    local_rope_theta: Annotated[float, Field(gt=1)] = 10_000.0
    embedding_dropout: Probability = 0.0
    attention_dropout: Probability = 0.0
    mlp_dropout: Probability = 0.0
    classifier_dropout: Probability = 0.0
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    norm_eps: float = Field(1e-5, gt=0)
    classifier_activation: Activation = Field("gelu", description="Of the heads.")
    classifier_bias: bool = Field(False, description="Of the heads.")
    classifier_pooling: Literal["cls", "mean"] = "cls"
    decoder_bias: bool = Field(True, description="Of the projection to the vocabulary.")
    initializer_range: float = Field(0.02, gt=0)
    initializer_cutoff_factor: float = Field(
        2.0, gt=0, description="Standard deviations at which new weights are cut off."
    )

    @field_validator("num_attention_heads")
    @classmethod
    def _pairs(cls, heads: int, info: ValidationInfo) -> int:
        if info.data.get("hidden_size", 2 * heads) // heads % 2:
            raise ValueError("rotary positions turn pairs of numbers: hidden_size / num_attention_heads must be even")
        return heads


def new_config(
    preset_or_fields: str | Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> PretrainedConfig:
    """The config of a preset, such as `mini` or `modernbert-mini`, or of fields, `preset` and `model_type` among them.

    Raises ModelError with everything that is wrong.
    """
    given = {"preset": preset_or_fields} if isinstance(preset_or_fields, str) else dict(preset_or_fields)
    known: Collection[str] = [*bert_config.PRESETS, *PRESETS]
    if "model_type" in given:
        kind = given.pop("model_type")
        known = bert_config.PRESETS if kind == "bert" else PRESETS
    else:
        kind = "modernbert" if nearest_preset(str(given.get("preset", "")), known) in PRESETS else "bert"
    ids: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    positions = max(512, max_length)
    if kind == "bert":
        return bert_config.config(given, **ids, max_position_embeddings=positions, known=known)
    if kind != "modernbert":
        what = f"expected 'bert' or 'modernbert', found {kind!r}{did_you_mean(str(kind), ['bert', 'modernbert'])}"
        raise ModelError(Problem(f"{WHERE}.model_type", what))
    return _modernbert(given, known, ids, tokenizer, positions)


def _modernbert(
    given: Mapping[str, Any],
    known: Collection[str],
    ids: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    positions: int,
) -> PretrainedConfig:
    """transformers' own, with the ids of this tokenizer in place of ModernBERT's."""
    from transformers import ModernBertConfig

    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    ids = {**ids, "cls_token_id": first, "sep_token_id": last, "bos_token_id": first, "eos_token_id": last}
    found = checked(ModernArchitecture, PRESETS, known, given, ids, max_position_embeddings=positions)
    return ModernBertConfig(**found.model_dump(), **ids)
