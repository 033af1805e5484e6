"""The configs of bertkit's BERT: transformers' own, with two more options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub.dataclasses import strict

from bertkit.errors import ModelError, Problem
from bertkit.files import read_json
from bertkit.models.bert.presets import PRE_NORM, architecture


@strict
class BertConfig(transformers.BertConfig):  # type: ignore[no-untyped-call]
    """`transformers.BertConfig` and the source of positions. Its `model_type` is `bert`: transformers opens it."""

    positions: str = "learned"
    norm: str = "post"

    def validate_options(self) -> None:
        """Raises ModelError where the weights would not be read as they were trained."""
        problems, own = [], "pre" if isinstance(self, PreNormBertConfig) else "post"
        if self.norm != own:
            fix = "Open it with bertkit.models.bert.bert.load, which takes the right class."
            problems.append(Problem("config.json", f"norm is {self.norm!r}, and {type(self).__name__} is {own!r}", fix))
        if self.positions not in ("learned", "sinusoidal"):
            problems.append(Problem("config.json", f"positions {self.positions!r}", "Write learned or sinusoidal."))
        if self.is_decoder:
            problems.append(Problem("config.json", "is_decoder is true, and this BERT reads both ways"))
        if problems:
            raise ModelError(problems)


@strict
class PreNormBertConfig(BertConfig):  # type: ignore[no-untyped-call]
    """BERT with layer norm before each sublayer, which transformers cannot compute and so must refuse."""

    model_type = PRE_NORM
    # Not the true or false it has to be: `transformers.BertModel` opens any model_type, but no such value.
    add_cross_attention: Any = "norm is pre: open it with bertkit.models.bert.bert.load"


def config(
    preset_or_fields: str | Mapping[str, Any],
    *,
    vocab_size: int,
    pad_token_id: int = 0,
    max_position_embeddings: int = 512,
) -> BertConfig:
    """The config of a preset, such as `mini`, or of `{preset: mini, norm: pre, …}`: see `presets.Architecture`.

    max_position_embeddings: where the fields leave it out. Raises ModelError with everything that is wrong.
    """
    fields = architecture(preset_or_fields, max_position_embeddings).model_dump()
    if not 0 <= pad_token_id < vocab_size:
        what = f"the padding token has id {pad_token_id}, the vocabulary {vocab_size} tokens"
        raise ModelError(Problem("tokenizer", what))
    kind = PreNormBertConfig if fields["norm"] == "pre" else BertConfig
    return kind(**fields, vocab_size=vocab_size, pad_token_id=pad_token_id)


def read_config(folder: Path) -> BertConfig:
    """The config in a folder, pre-norm or not. Raises ModelError where there is none, or it is not a BERT's."""
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(Problem(str(file), "no such file", "Name a model folder."))
    found = read_json(file).get("model_type")
    own: type[BertConfig] | None = {kind.model_type: kind for kind in (BertConfig, PreNormBertConfig)}.get(found)
    if own is None:
        fix = f"Take a BERT: {BertConfig.model_type} or {PreNormBertConfig.model_type}."
        raise ModelError(Problem(str(file), f"model_type is {found!r}", fix))
    return own.from_pretrained(folder, local_files_only=True)
