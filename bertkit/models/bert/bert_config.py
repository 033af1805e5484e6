"""The configs of bertkit's BERT: presets, the validation of new ones, and transformers' own with one more option."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import transformers
from huggingface_hub.dataclasses import strict
from pydantic import Field, ValidationInfo, field_validator

from bertkit.errors import ModelError, Problem
from bertkit.models.untrusted import read_object, vet
from bertkit.sections import Section
from bertkit.validation import nearest, validate

WHERE = "model.config"  # its place in a recipe
MODEL_TYPE = "bert"  # of the models in `bert.py`
Size = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
# Those of transformers' ACT2FN that have been used between the two layers of a feed-forward network.
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "relu2", "silu", "mish", "tanh"]


def sizes(layers: int, hidden: int, inner: int) -> Mapping[str, int]:
    """The four sizes, with 64 numbers a head. inner: width of the feed-forward network."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "intermediate_size": inner,
    }


# base and large: Devlin et al. 2019, section 3. The others: Turc et al. 2019 (arXiv 1908.08962), table 1; section 3 has
# 64 numbers a head, and a feed-forward network four times as wide.
PRESETS = {
    "tiny": sizes(2, 128, 512),
    "mini": sizes(4, 256, 1024),
    "small": sizes(4, 512, 2048),
    "medium": sizes(8, 512, 2048),
    "base": sizes(12, 768, 3072),
    "large": sizes(24, 1024, 4096),
}


class Architecture(Section):
    """The architecture of a new BERT; names are `transformers.BertConfig`'s, except for `positions`."""

    hidden_size: Size = Field(description="Numbers per token.")
    num_hidden_layers: Size
    num_attention_heads: Size = Field(description="Divides hidden_size.")
    intermediate_size: Size = Field(description="Width inside the feed-forward network.")
    hidden_act: Activation = Field("gelu", description="Activation of the feed-forward network and of the MLM head.")
    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1
    max_position_embeddings: Size = Field(512, description="Tokens of the longest input.")
    type_vocab_size: Size = Field(2, description="Segments.")
    initializer_range: float = Field(
        0.02, gt=0, description="Standard deviation of new weights, which are normal, not truncated."
    )
    layer_norm_eps: float = Field(1e-12, gt=0)
    positions: Literal["learned", "sinusoidal"] = Field(
        "learned", description="sinusoidal: a fixed table, Vaswani et al. 2017, section 3.5."
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


@strict
class BertConfig(transformers.BertConfig):  # type: ignore[no-untyped-call]
    """`transformers.BertConfig` and the source of positions. Its `model_type` is `bert`: transformers opens it."""

    positions: str = "learned"

    def validate_options(self) -> None:
        """Raises ModelError where the weights would not be read as they were trained."""
        problems = []
        if self.positions not in ("learned", "sinusoidal"):
            problems.append(Problem("config.json", f"positions {self.positions!r}", "Write learned or sinusoidal."))
        decoder = isinstance(self, BertDecoderConfig)
        if self.is_decoder and not decoder:
            problems.append(Problem("config.json", "is_decoder is true, and this BERT reads both ways"))
        if decoder and not (self.is_decoder and self.add_cross_attention):
            problems.append(Problem("config.json", "is_decoder and add_cross_attention must be true in a decoder"))
        if problems:
            raise ModelError(problems)


@strict
class BertDecoderConfig(BertConfig):  # type: ignore[no-untyped-call]
    """The config of the decoder of an encoder–decoder Transformer."""

    is_decoder: bool = True
    add_cross_attention: bool = True


def config(
    preset_or_fields: str | Mapping[str, Any],
    *,
    vocab_size: int,
    pad_token_id: int = 0,
    max_position_embeddings: int = 512,
    known: Collection[str] = PRESETS,
) -> BertConfig:
    """The config of a preset, such as `mini`, or of `{preset: mini, positions: sinusoidal, …}`: see `Architecture`.

    max_position_embeddings: where the fields leave it out. known: as for `started`. Raises ModelError with everything
    that is wrong.
    """
    ids: dict[str, Any] = {"vocab_size": vocab_size, "pad_token_id": pad_token_id}
    wanted = {"preset": preset_or_fields} if isinstance(preset_or_fields, str) else preset_or_fields
    started_with, problems = started(wanted, PRESETS, known, ids)
    fields = {"max_position_embeddings": max_position_embeddings, **started_with}
    removed = {"norm": "remove it; model.config: modernbert-mini is an encoder with layer norm before each sublayer"}
    for path, what, fix in validate(Architecture, fields, homes=removed):
        hint = f"write it, or name a preset; presets: {', '.join(known)}" if what == "missing" else fix
        problems.append(Problem(".".join([WHERE, *map(str, path)]), what, hint))
    if problems:
        raise ModelError(problems)
    return BertConfig(**Architecture.model_validate(fields).model_dump(), **ids)


def nearest_preset(name: str, known: Collection[str]) -> str:
    """The most similar of the known presets; "" where none is close. Those of BERT are also known as `bert-mini`."""
    prefixed = [f"bert-{preset}" for preset in known if preset in PRESETS]
    return nearest(name, [*known, *prefixed]).removeprefix("bert-")


def started(
    fields: Mapping[str, Any], presets: Mapping[str, Mapping[str, int]], known: Collection[str], ids: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Problem]]:
    """The fields with those of their preset, and what is wrong with the preset and with ids among them.

    ids: those of the tokenizer, `vocab_size` and `pad_token_id` among them.
    known: the presets that messages name, with those of other architectures where these may be meant.
    """
    wanted = dict(fields)
    problems = [
        Problem(f"{WHERE}.{name}", "is given by the tokenizer", "remove it")
        for name in ids
        if wanted.pop(name, None) is not None
    ]
    if not 0 <= ids["pad_token_id"] < ids["vocab_size"]:
        what = f"the padding token has id {ids['pad_token_id']}, the vocabulary {ids['vocab_size']} tokens"
        problems.append(Problem("tokenizer", what))
    preset = wanted.pop("preset", None)
    if preset is not None and not (isinstance(preset, str) and preset in presets):
        near = nearest_preset(str(preset), known)
        meant = f"; did you mean {near!r}?" if near else ""
        problems.append(Problem(f"{WHERE}.preset", f"no preset {preset!r}{meant}", f"presets: {', '.join(known)}"))
        preset = next(iter(presets))  # so that the other fields are checked too
    return {**presets.get(preset or "", {}), **wanted}, problems


def read_config(folder: Path) -> BertConfig:
    """The config in a folder. Raises ModelError where there is none, or one that is refused."""
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(Problem(str(file), "no such file", "Name a model folder."))
    vet(folder)
    found = read_object(file).get("model_type")
    if found != MODEL_TYPE:
        raise ModelError(Problem(str(file), f"model_type is {found!r}", "Name the folder of a BERT."))
    return BertConfig.from_pretrained(folder, local_files_only=True)
