"""The config of a new encoder, as `model.config` of a recipe describes it: a BERT or a ModernBERT."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError

from bertkit.errors import ModelError, Problem
from bertkit.models.bert import bert_config
from bertkit.models.bert.bert_config import WHERE, nearest_preset, sizes, started
from bertkit.text import first_line
from bertkit.validation import did_you_mean, unknown_key

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


# Where a new one differs from transformers' defaults: the base of ModernBERT before it was extended to 8,192 tokens.
_DEFAULTS = {"global_attn_every_n_layers": 3, "global_rope_theta": 10_000.0, "local_rope_theta": 10_000.0}


def new_config(
    preset_or_fields: str | Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> PretrainedConfig:
    """The config of a preset, such as `mini` or `modernbert-mini`, or of fields, `preset` and `model_type` among them.

    Raises ModelError with everything that is wrong.
    """
    fields = {"preset": preset_or_fields} if isinstance(preset_or_fields, str) else dict(preset_or_fields)
    known: Collection[str] = [*bert_config.PRESETS, *PRESETS]
    if "model_type" in fields:
        kind = fields.pop("model_type")
        known = bert_config.PRESETS if kind == "bert" else PRESETS
    else:
        kind = "modernbert" if nearest_preset(str(fields.get("preset", "")), known) in PRESETS else "bert"
    ids: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    positions = max(512, max_length)
    if kind == "bert":
        return bert_config.config(fields, **ids, max_position_embeddings=positions, known=known)
    if kind != "modernbert":
        what = f"expected 'bert' or 'modernbert', found {kind!r}{did_you_mean(str(kind), ['bert', 'modernbert'])}"
        raise ModelError(Problem(f"{WHERE}.model_type", what))
    return _modernbert(fields, known, ids, tokenizer, positions)


def _modernbert(
    given: Mapping[str, Any],
    known: Collection[str],
    ids: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    positions: int,
) -> PretrainedConfig:
    """transformers' own with these fields, and the ids of this tokenizer in place of ModernBERT's."""
    import torch
    from transformers import AutoConfig, AutoModel

    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    ids = {**ids, "cls_token_id": first, "sep_token_id": last, "bos_token_id": first, "eos_token_id": last}
    fields, problems = started(given, PRESETS, known, ids)
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
            raise ValueError("rotary positions turn pairs of numbers: hidden_size / num_attention_heads must be even")
        with torch.device("meta"):  # finds what does not fit together
            AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, StrictDataclassError) as error:
        raise ModelError(Problem(WHERE, first_line(error), "It takes the fields of ModernBertConfig.")) from error
    return config
