"""The encoder–decoder Transformer, written to be read beside `bert.py`, whose parts it shares.

Vaswani et al. 2017, "Attention is all you need" (arXiv 1706.03762), whose sections the comments name. The
encoder is BERT, and the decoder a BERT that also attends to the source (Rothe et al. 2020, arXiv 1907.12461).
The tensors have the names of transformers' EncoderDecoderModel of two BERTs, so that weights go both ways.
Sizes are called as in `bert.py`, and:

    source    tokens per source text, padded
    target    tokens per target text in this call, padded at the end
    past      target tokens of earlier calls, whose keys and values are in the cache

>>> half = bertkit.bert.config("tiny", vocab_size=100)
>>> config = bertkit.transformer.config(half, decoder_start_token_id=1, eos_token_id=2)
>>> model = bertkit.transformer.EncoderDecoderModel(config)
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, EncoderDecoderConfig
from transformers.generation.utils import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from bertkit.errors import ModelError
from bertkit.models.bert.bert import (
    IGNORED,
    BertAttention,
    BertEmbeddings,
    BertForPreTraining,
    BertHeads,
    BertIntermediate,
    BertModel,
    BertOutput,
    BertPreTrainedModel,
    mean_loss,
)
from bertkit.models.new_config import BertConfig, BertDecoderConfig

__all__ = ["BertLMHeadModel", "EncoderDecoderModel", "config"]

NOT_FINITE = -1  # in place of the ids of a row that `generate` returns
# before transformers 5.24
CACHE = "cache" if "cache" in Seq2SeqLMOutput.__dataclass_fields__ else "past_key_values"


def config(encoder: BertConfig, *, decoder_start_token_id: int, eos_token_id: int) -> EncoderDecoderConfig:
    """The config of an encoder–decoder of two BERTs of one architecture, that of `encoder`.

    decoder_start_token_id: the first token of each target, BERT's [CLS]. eos_token_id: the last, BERT's
    [SEP].
    """
    ids = {"decoder_start_token_id": decoder_start_token_id, "eos_token_id": eos_token_id}
    decoder = copy.deepcopy(encoder)
    both = EncoderDecoderConfig.from_encoder_decoder_configs(
        encoder, decoder, pad_token_id=encoder.pad_token_id, **ids
    )
    return cast(EncoderDecoderConfig, both)


# --- the decoder


def causal_mask(target: int, past: int, device: torch.device) -> Tensor:
    """Each token attends to itself and those before it (section 3.2.3): `(target, past + target)`, true or
    false.

    The padding of a target needs no other mask, because it comes after all tokens.
    """
    return torch.ones(target, past + target, dtype=torch.bool, device=device).tril(diagonal=past)


class BertDecoderLayer(GradientCheckpointingLayer):  # type: ignore[no-untyped-call]
    """Attention to the target so far, attention to the source, the feed-forward network (sections 3.1,
    3.2.3).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = BertAttention(config)
        self.crossattention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config.intermediate_size, config)

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
        source: Tensor,
        source_mask: Tensor | None,
        index: int,
        with_weights: bool,
        past_key_values: EncoderDecoderCache | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """x: `(batch, target, hidden)`. source: `(batch, source, hidden)`. index: the layer's place in the
        cache.

        Returns x, and the weights of both attentions, `(batch, heads, target, past + target)` and `(batch,
        heads, target, source)`.
        """
        target = self.attention.self.keys_and_values(x)  # each (batch, heads, target, size)
        if past_key_values is not None:  # each (batch, heads, past + target, size)
            target = past_key_values.self_attention_cache.update(*target, index)
        x, weights = self.attention(x, mask, with_weights, target)
        # Queries are of the target, keys and values of the source.
        x, cross = self.crossattention(
            x, source_mask, with_weights, self._source(source, index, past_key_values)
        )
        return self.output(self.intermediate(x), x), weights, cross

    def _source(self, source: Tensor, index: int, cache: EncoderDecoderCache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, each `(batch, heads, source, size)`, computed once where there is a
        cache.
        """
        if cache is None:
            return self.crossattention.self.keys_and_values(source)
        if not cache.is_updated.get(index):
            cache.cross_attention_cache.update(*self.crossattention.self.keys_and_values(source), index)
            cache.is_updated[index] = True
        layer: Any = cache.cross_attention_cache.layers[index]
        return layer.keys, layer.values


class BertDecoder(BertPreTrainedModel):  # type: ignore[no-untyped-call]
    """Embeddings and layers of the decoder."""

    config_class = BertDecoderConfig

    def __init__(self, config: transformers.BertConfig) -> None:
        super().__init__(config)
        self.embeddings = BertEmbeddings(self.config)
        layers = (BertDecoderLayer(self.config) for _ in range(self.config.num_hidden_layers))
        # transformers' name of any stack of layers
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor,
        source: Tensor,
        source_mask: Tensor | None,
        cache: EncoderDecoderCache | None,
        with_weights: bool,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """What `BertLMHeadModel` returns, with the last states, `(batch, target, hidden)`, in place of the
        logits.
        """
        past = 0 if cache is None else cache.get_seq_length()
        x = self.embeddings(input_ids, None, past)  # (batch, target, hidden)
        mask = causal_mask(input_ids.shape[1], past, x.device)
        seen = None if source_mask is None else source_mask[:, None, None].bool()  # (batch, 1, 1, source)
        attentions = []
        cross_attentions = []
        for index, layer in enumerate(cast(nn.ModuleList, self.encoder["layer"])):
            x, *weights = layer(x, mask, source, seen, index, with_weights, past_key_values=cache)
            if with_weights:
                attentions.append(weights[0])
                cross_attentions.append(weights[1])
        return x, attentions, cross_attentions


class BertLMHeadModel(BertPreTrainedModel):  # type: ignore[no-untyped-call]
    """The decoder and its projection to the vocabulary, which is tied to its embeddings (section 3.4)."""

    config_class = BertDecoderConfig
    _tied_weights_keys = BertForPreTraining._tied_weights_keys

    def __init__(self, config: transformers.BertConfig) -> None:
        super().__init__(config)
        self.bert = BertDecoder(self.config)
        self.cls = BertHeads(self.config, pairs=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_output_embeddings(self) -> nn.Module:
        """The projection to the vocabulary."""
        return self.cls.predictions.decoder

    def forward(
        self,
        input_ids: Tensor,
        source: Tensor,
        source_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        position: Tensor | None = None,
        with_weights: bool = False,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The logits of each next token, `(batch, target, vocab)`, and on request each layer's attention
        weights.

        input_ids: `(batch, target)`. source: the encoder's last states, `(batch, source, hidden)`.
        source_mask: 1 where there is text, `(batch, source)`. cache: of the tokens before these; these are
        added to it. position: true where logits are wanted, `(batch, target)`; with it they are `(chosen,
        vocab)`.
        """
        states, *weights = self.bert(input_ids, source, source_mask, cache, with_weights)
        return self.cls.predictions(states if position is None else states[position]), *weights


# --- both


class EncoderDecoderModel(transformers.PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """Encoder and decoder: the weights, names and numbers of `transformers.EncoderDecoderModel` of two
    BERTs.
    """

    config: EncoderDecoderConfig
    config_class = EncoderDecoderConfig
    base_model_prefix = "encoder_decoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: EncoderDecoderConfig) -> None:
        encoder, decoder = (cast(transformers.BertConfig, half) for half in (config.encoder, config.decoder))
        if encoder.hidden_size != decoder.hidden_size:
            raise ModelError(
                "config.json",
                f"hidden_size is {encoder.hidden_size} in the encoder, {decoder.hidden_size} in the decoder",
                "Use halves of the same size.",
            )
        super().__init__(config)
        self.encoder = BertModel(encoder)
        self.encoder.get_submodule("pooler").requires_grad_(False)  # saved for transformers; nothing reads it
        self.decoder = BertLMHeadModel(decoder)
        config.encoder = self.encoder.config
        config.decoder = self.decoder.config
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """The word embeddings of the source."""
        return self.encoder.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        """The projection to the vocabulary."""
        return self.decoder.get_output_embeddings()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        labels: Tensor | None = None,
        label_smoothing: float = 0.0,
        position: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool = False,
        return_dict: bool = True,
        past_key_values: EncoderDecoderCache | None = None,
    ) -> Seq2SeqLMOutput:
        """Source texts, and target texts from their start token on; or their labels, from which these follow.

        input_ids and attention_mask: `(batch, source)`. decoder_input_ids: `(batch, target)`; None: made of
        the labels.
        encoder_outputs: of the source, computed before. labels: the ids to be predicted, `(batch, target)`,
        -100 for padding. label_smoothing: ε of section 5.4. position: without labels, true where logits are
        wanted, `(batch, target)`; None: everywhere. cache: this call's tokens are added to it; it is
        past_key_values before transformers 5.24. use_cache: whether to make one where there is none.
        return_dict: what `generate` of transformers passes; it changes nothing.

        Returns `logits`, `(batch, target, vocab)`, with a position `(chosen, vocab)`; with labels `loss`, the
        mean cross-entropy per target token; on request `decoder_attentions` and `cross_attentions`, each
        layer's weights, `(batch, heads, target, past + target or source)`, and with input_ids those of the
        source, `encoder_attentions`, before dropout. Raises ModelError on more tokens than positions,
        ValueError without a target.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, output_attentions=output_attentions)
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("decoder_input_ids or labels are needed")
            decoder_input_ids = shift_right(labels, self.config)
        cache = past_key_values if cache is None else cache
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        source = encoder_outputs.last_hidden_state  # (batch, source, hidden)
        logits, *weights = self.decoder(
            decoder_input_ids, source, attention_mask, cache, position, output_attentions
        )
        return Seq2SeqLMOutput(
            loss=mean_loss(logits, labels, label_smoothing),
            logits=logits,
            **cast(Any, {CACHE: cache}),
            decoder_attentions=tuple(weights[0]) if output_attentions else None,
            cross_attentions=tuple(weights[1]) if output_attentions else None,
            encoder_last_hidden_state=source,
            encoder_attentions=encoder_outputs.attentions,
        )


def shift_right(labels: Tensor, config: EncoderDecoderConfig) -> Tensor:
    """What the decoder reads to predict the labels: the start token, then all labels but the last (section
    3.1).
    """
    start = cast(int, config.decoder_start_token_id)
    pad = cast(int, config.pad_token_id)
    ids = F.pad(labels[:, :-1], (1, 0), value=start)  # (batch, target)
    return ids.masked_fill(ids == IGNORED, pad)


def generate(model: Any, inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> Tensor:
    """The ids after the start token, padded after the end; rows of NOT_FINITE where a logit of their source
    is not.

    options: of transformers' GenerationConfig.
    """
    finite = []  # for each step, whether the logits of each beam are finite

    def noted(ids: Tensor, scores: Tensor) -> Tensor:
        finite.append(scores.amax(-1).isfinite())  # NaN where any is; some may be -inf, which forbids a token
        return scores

    ids: Tensor = model.generate(**inputs, **options, logits_processor=[noted])[:, 1:]  # (sources, tokens)
    by_source = torch.stack(finite).all(0).view(len(ids), -1).all(1)
    return ids.where(by_source[:, None], NOT_FINITE)
