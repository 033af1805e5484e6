"""The configs of new encoders, as `model.config` of a recipe describes them: bertkit's BERT, and ModernBERT.

BERT's is transformers' own with one more option.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

import transformers
from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from pydantic import Field, ValidationInfo, field_validator

from bertkit.errors import ModelError, Problem
from bertkit.models.untrusted import VettedFolder, read_object
from bertkit.sections import Count, Section, Share
from bertkit.text import Json, Record, first_line
from bertkit.validation import did_you_mean, nearest, unknown_key, validate

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

WHERE = "model.config"  # its place in a recipe
MODEL_TYPE = "bert"  # of the models in `bert.py`
# Those of transformers' ACT2FN that have been used between the two layers of a feed-forward network.
Activation = Literal[
    "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "relu2", "silu", "mish", "tanh"
]


def sizes(layers: int, hidden: int, inner: int) -> Mapping[str, int]:
    """The four sizes, with 64 numbers a head. inner: width of the feed-forward network."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "intermediate_size": inner,
    }


# base and large: Devlin et al. 2019, section 3. The others: Turc et al. 2019 (arXiv 1908.08962), table 1;
# section 3 has 64 numbers a head, and a feed-forward network four times as wide.
PRESETS = {
    "tiny": sizes(2, 128, 512),
    "mini": sizes(4, 256, 1024),
    "small": sizes(4, 512, 2048),
    "medium": sizes(8, 512, 2048),
    "base": sizes(12, 768, 3072),
    "large": sizes(24, 1024, 4096),
}

# Layers, hidden size, width of the feed-forward network. modernbert-base and -large: Warner et al. 2024
# (arXiv 2412.13663); ettin: Weller et al. 2025 (arXiv 2507.11412). The others have the layers and the hidden
# size of the BERT of that name, and the proportions of modernbert-base.
MODERNBERT = {
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

# Where a new one differs from transformers' defaults: the base of ModernBERT before it was extended to 8,192
# tokens.
_DEFAULTS = {"global_attn_every_n_layers": 3, "global_rope_theta": 10_000.0, "local_rope_theta": 10_000.0}


class Architecture(Section):
    """The architecture of a new BERT; names are `transformers.BertConfig`'s, except for `positions`."""

    hidden_size: Count
    """Numbers per token."""
    num_hidden_layers: Count
    num_attention_heads: Count
    """Divides hidden_size."""
    intermediate_size: Count
    """Width inside the feed-forward network."""
    hidden_act: Activation = "gelu"
    """Activation of the feed-forward network and of the MLM head."""
    hidden_dropout_prob: Share = 0.1
    attention_probs_dropout_prob: Share = 0.1
    max_position_embeddings: Count = 512
    """Tokens of the longest input."""
    type_vocab_size: Count = 2
    """Segments."""
    initializer_range: float = Field(0.02, gt=0)
    """Standard deviation of new weights, which are normal, not truncated."""
    layer_norm_eps: float = Field(1e-12, gt=0)
    positions: Literal["learned", "sinusoidal"] = "learned"
    """sinusoidal: a fixed table, Vaswani et al. 2017, section 3.5."""

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


@strict
class BertConfig(transformers.BertConfig):  # type: ignore[no-untyped-call]
    """`transformers.BertConfig` and the source of positions. Its `model_type` is `bert`: transformers opens
    it.
    """

    positions: str = "learned"

    def validate_options(self) -> None:
        """Raises ModelError where the weights would not be read as they were trained."""
        problems = []
        if self.positions not in ("learned", "sinusoidal"):
            problems.append(
                Problem("config.json", f"positions is {self.positions!r}", "Use learned or sinusoidal.")
            )
        decoder = isinstance(self, BertDecoderConfig)
        if self.is_decoder and not decoder:
            problems.append(
                Problem("config.json", "is_decoder must be false: this is a bidirectional encoder")
            )
        if decoder and not (self.is_decoder and self.add_cross_attention):
            problems.append(
                Problem("config.json", "is_decoder and add_cross_attention must be true in a decoder")
            )
        if problems:
            raise ModelError(problems)


@strict
class BertDecoderConfig(BertConfig):  # type: ignore[no-untyped-call]
    """The config of the decoder of an encoder–decoder Transformer."""

    is_decoder: bool = True
    add_cross_attention: bool = True


def config(
    preset_or_fields: str | Record,
    *,
    vocab_size: int,
    pad_token_id: int = 0,
    max_position_embeddings: int = 512,
    offered: Collection[str] = PRESETS,
) -> BertConfig:
    """The config of a preset, such as `mini`, or of `{preset: mini, positions: sinusoidal, …}`: see
    `Architecture`.

    max_position_embeddings: where the fields leave it out. offered: as for `started`. Raises
    ModelError with everything that is wrong.
    """
    ids: Json = {"vocab_size": vocab_size, "pad_token_id": pad_token_id}
    wanted = {"preset": preset_or_fields} if isinstance(preset_or_fields, str) else preset_or_fields
    started_with, problems = started(wanted, PRESETS, offered, ids)
    fields = {"max_position_embeddings": max_position_embeddings, **started_with}
    removed = {
        "norm": "Remove it; model.config: modernbert-mini is an encoder with layer norm before each sublayer."
    }
    for path, what, fix in validate(Architecture, fields, homes=removed):
        hint = f"Write it, or choose a preset: {', '.join(offered)}." if what == "missing" else fix
        problems.append(Problem(".".join([WHERE, *map(str, path)]), what, hint))
    if problems:
        raise ModelError(problems)
    return BertConfig(**Architecture.model_validate(fields).model_dump(), **ids)


def nearest_preset(name: str, presets: Collection[str]) -> str:
    """The most similar of these presets; "" where none is close. Those of BERT are also known as
    `bert-mini`.
    """
    prefixed = [f"bert-{preset}" for preset in presets if preset in PRESETS]
    return nearest(name, [*presets, *prefixed]).removeprefix("bert-")


def started(
    fields: Record, presets: Mapping[str, Mapping[str, int]], offered: Collection[str], ids: Record
) -> tuple[Json, list[Problem]]:
    """The fields with those of their preset, and what is wrong with the preset and with ids among them.

    ids: those of the tokenizer, `vocab_size` and `pad_token_id` among them.
    offered: the presets that messages name, with those of other architectures where these may be meant.
    """
    wanted = dict(fields)
    problems = [
        Problem(f"{WHERE}.{name}", "is set by the tokenizer", "Remove it.")
        for name in ids
        if wanted.pop(name, None) is not None
    ]
    if not 0 <= ids["pad_token_id"] < ids["vocab_size"]:
        what = f"the padding token has id {ids['pad_token_id']}, the vocabulary {ids['vocab_size']} tokens"
        problems.append(Problem("tokenizer", what, "Add the padding token to its vocabulary."))
    preset = wanted.pop("preset", None)
    if preset is not None and not (isinstance(preset, str) and preset in presets):
        near = nearest_preset(str(preset), offered)
        meant = f"; did you mean {near!r}?" if near else ""
        problems.append(
            Problem(f"{WHERE}.preset", f"no preset {preset!r}{meant}", f"Choose one of {', '.join(offered)}.")
        )
        preset = next(iter(presets))  # so that the other fields are checked too
    return {**presets.get(preset or "", {}), **wanted}, problems


def read_config(folder: VettedFolder) -> BertConfig:
    """The config in a folder. Raises ModelError where there is none, or one that is refused."""
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(file, "no such file", "Use a model folder.")
    model_type = read_object(file).get("model_type")
    if model_type != MODEL_TYPE:
        raise ModelError(file, f"model_type is {model_type!r}", "Use the folder of a BERT.")
    return BertConfig.from_pretrained(folder, local_files_only=True)


def new_config(
    preset_or_fields: str | Record, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> PretrainedConfig:
    """The config of a preset, such as `mini` or `modernbert-mini`, or of fields, `preset` and `model_type`
    among them.

    Raises ModelError with everything that is wrong.
    """
    fields = {"preset": preset_or_fields} if isinstance(preset_or_fields, str) else dict(preset_or_fields)
    offered: Collection[str] = [*PRESETS, *MODERNBERT]
    if "model_type" in fields:
        kind = fields.pop("model_type")
        offered = PRESETS if kind == "bert" else MODERNBERT
    else:
        kind = (
            "modernbert" if nearest_preset(str(fields.get("preset", "")), offered) in MODERNBERT else "bert"
        )
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    positions = max(512, max_length)
    if kind == "bert":
        return config(fields, **ids, max_position_embeddings=positions, offered=offered)
    if kind != "modernbert":
        raise ModelError(
            f"{WHERE}.model_type",
            "expected 'bert' or 'modernbert', found "
            f"{kind!r}{did_you_mean(str(kind), ['bert', 'modernbert'])}",
        )
    first = tokenizer.cls_token_id
    last = tokenizer.sep_token_id
    ids |= {"cls_token_id": first, "sep_token_id": last, "bos_token_id": first, "eos_token_id": last}
    return _modernbert(fields, offered, ids, positions)


def _modernbert(settings: Record, offered: Collection[str], ids: Record, positions: int) -> PretrainedConfig:
    """transformers' own with these fields, and the ids of this tokenizer in place of ModernBERT's."""
    import torch
    from transformers import AutoConfig, AutoModel

    fields, problems = started(settings, MODERNBERT, offered, ids)
    names = AutoConfig.for_model("modernbert").to_dict().keys() | _DEFAULTS.keys()
    unknown = [unknown_key((WHERE, name), names) for name in fields if name not in names]
    problems += [Problem(".".join(map(str, path)), what, fix) for path, what, fix in unknown]
    if problems:
        raise ModelError(problems)
    try:
        config = AutoConfig.for_model(
            "modernbert", **{**_DEFAULTS, "max_position_embeddings": positions, **fields}, **ids
        )
        if config.hidden_size // config.num_attention_heads % 2:
            raise ValueError(
                "rotary positions turn pairs of numbers: hidden_size / num_attention_heads must be even"
            )
        with torch.device("meta"):  # finds what does not fit together
            AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, StrictDataclassError) as error:
        raise ModelError(
            WHERE, first_line(error), "Correct the fields, which are those of transformers' ModernBertConfig."
        ) from error
    return config
