"""BERT, written to be read: embeddings, attention, layers, pooler, and the two heads of its pretraining.

Vaswani et al. 2017, "Attention is all you need" (arXiv 1706.03762), and Devlin et al. 2019, "BERT" (arXiv
1810.04805), whose sections the docstrings name. The tensors have the names of transformers' BERT, so that
weights go both ways; they are called by these sizes:

    batch     texts in the batch              hidden   numbers per token (H in Devlin et al., d_model)
    length    tokens per text, padded         heads    attention heads (A, h)
    chosen    tokens to be predicted          size     numbers per head: hidden / heads (d_k)
    vocab     size of the vocabulary          inner    width of the feed-forward network (4 H, d_ff)

>>> model = bertkit.bert.BertForPreTraining(bertkit.bert.config("tiny", vocab_size=100))
>>> model.num_parameters()
509030
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
import transformers
import transformers.initialization as init
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput

from bertkit.errors import ModelError
from bertkit.models.encoder import Encoder, load_model
from bertkit.models.new_config import MODEL_TYPE, PRESETS, BertConfig, config, read_config
from bertkit.models.untrusted import vet

__all__ = [
    "PRESETS",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertModel",
    "config",
    "load",
    "load_for_pretraining",
]

IGNORED = -100  # the label of a token that is not predicted


# --- tokens -> vectors


class BertEmbeddings(nn.Module):
    """The sum of three vectors: of the token, its segment and its position (Devlin et al. 2019, figure 2)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id
        )
        learned = config.positions == "learned"
        positions = (
            nn.Embedding(config.max_position_embeddings, config.hidden_size) if learned else Sinusoids(config)
        )
        self.position_embeddings = positions
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None, start: int = 0) -> Tensor:
        """start: the position of the first token."""
        end = start + input_ids.shape[1]
        positions = self.position_embeddings.weight  # (max_position_embeddings, hidden)
        if end > len(positions):
            raise ModelError(
                "input_ids",
                f"{end} tokens, but the model has {len(positions)} positions",
                "Truncate the texts, or build the model with more positions.",
            )
        if token_type_ids is None:
            segments = self.token_type_embeddings.weight[0]  # (hidden,)
        else:
            segments = self.token_type_embeddings(token_type_ids)  # (batch, length, hidden)
        x = self.word_embeddings(input_ids) + segments + positions[start:end]  # (batch, length, hidden)
        return cast(Tensor, self.dropout(self.LayerNorm(x)))


class Sinusoids(nn.Module):
    """The positions of Vaswani et al., section 3.5, under the name of BERT's learned ones, and never
    trained.
    """

    weight: Tensor

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.scale = config.initializer_range
        self.register_buffer("weight", torch.empty(config.max_position_embeddings, config.hidden_size))

    def table(self) -> Tensor:
        """`(positions, hidden)`: sin(p / 10000^(2i / hidden)) at 2i, its cosine at 2i + 1.

        Section 3.4 scales the words up by √hidden. The layer norm sees no difference where the table is
        scaled down.
        """
        positions, hidden = self.weight.shape
        frequencies = 10_000.0 ** (-torch.arange(0, hidden, 2, dtype=torch.float64) / hidden)  # (hidden / 2,)
        # (positions, hidden / 2)
        angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
        return self.scale * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


# --- attention


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q Kᵀ / √size): how much each token attends to each other one (Vaswani et al., section 3.2.1).

    query and key: `(batch, heads, length, size)`. mask: `(batch, 1, 1, length)`, true at tokens that are
    attended to.
    Returns `(batch, heads, length, length)`; the last axis sums to 1.
    """
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (batch, heads, length, length)
    if mask is not None:
        # The lowest number, not -inf: a text of padding alone gets finite weights.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1)


class BertSelfAttention(nn.Module):
    """Each token attends to all, or to those of another text, in several heads (Vaswani et al., section
    3.2.2).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.probability = float(config.attention_probs_dropout_prob)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """K and V of section 3.2.1, each `(batch, heads, length, size)`."""
        return self._split(self.key(x)), self._split(self.value(x))

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        with_weights: bool,
        keys_and_values: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """keys_and_values: of the tokens that are attended to. None: of x itself."""
        query = self._split(self.query(x))  # (batch, heads, length, size)
        key, value = keys_and_values or self.keys_and_values(x)
        if with_weights:
            weights = attention_weights(query, key, mask)  # (batch, heads, length, length)
            context = F.dropout(weights, self.probability, self.training) @ value
        else:
            # The same equation in one kernel, which does not keep the weights.
            weights = None
            dropped = self.probability if self.training else 0.0
            context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropped)
        return context.transpose(1, 2).flatten(2), weights  # (batch, length, hidden)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)  # (batch, heads, length, size)


# --- layers


class BertOutput(nn.Module):
    """The end of a sublayer: projection, dropout, residual, layer norm (Vaswani et al., sections 3.1 and
    5.4).
    """

    def __init__(self, inputs: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """y: what it made, `(batch, length, inputs)`. x: what came in, `(batch, length, hidden)`."""
        return cast(Tensor, self.LayerNorm(x + self.dropout(self.dense(y))))  # (batch, length, hidden)


class BertAttention(nn.Module):
    """The first sublayer: attention, and the projection that joins its heads (W^O of Vaswani et al., section
    3.2.2).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertOutput(config.hidden_size, config)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        with_weights: bool,
        keys_and_values: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        context, weights = self.self(x, mask, with_weights, keys_and_values)
        return self.output(context, x), weights


class BertIntermediate(nn.Module):
    """The first half of the position-wise feed-forward network (Vaswani et al., section 3.3)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.activation(self.dense(x)))  # (batch, length, inner)


class BertLayer(GradientCheckpointingLayer):  # type: ignore[no-untyped-call]
    """Attention, then the feed-forward network (Vaswani et al., section 3.1)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config.intermediate_size, config)

    def forward(self, x: Tensor, mask: Tensor | None, with_weights: bool) -> tuple[Tensor, Tensor | None]:
        x, weights = self.attention(x, mask, with_weights)  # (batch, length, hidden)
        return self.output(self.intermediate(x), x), weights


class BertEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self, x: Tensor, mask: Tensor | None, with_weights: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What goes into each layer and comes out of the last, `(batch, length, hidden)`; each layer's
        weights.
        """
        states = [x]
        attentions = []
        for layer in self.layer:
            x, weights = layer(x, mask, with_weights)
            states.append(x)
            if with_weights:
                attentions.append(weights)
        return states, attentions


class BertPooler(nn.Module):
    """The text as one vector: tanh of a projection of [CLS], the first token (Devlin et al., section 3.1,
    NSP).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.dense(x[:, 0]))  # (batch, hidden)


# --- heads


class BertPredictionHeadTransform(nn.Module):
    """A projection, activation and layer norm before the vocabulary."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.LayerNorm(self.activation(self.dense(x))))  # (…, hidden)


class BertLMPredictionHead(nn.Module):
    """Which token was masked (Devlin et al., section 3.1, task 1): products with the embeddings, and a
    bias.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)  # both its tensors are tied
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.decoder(self.transform(x)))  # (…, vocab)


class BertHeads(nn.Module):
    """The tasks of Devlin et al., section 3.1: the masked words, and does the second segment follow the
    first.
    """

    def __init__(self, config: BertConfig, pairs: bool) -> None:
        super().__init__()
        self.predictions = BertLMPredictionHead(config)
        if pairs:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)


# --- models


class BertPreTrainedModel(transformers.PreTrainedModel):  # type: ignore[no-untyped-call]
    """What makes them transformers' models: names, saving and loading, first weights."""

    config: BertConfig
    config_class = BertConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _input_embed_layer = "word_embeddings"

    def __init__(self, config: transformers.BertConfig) -> None:
        # AutoConfig gives transformers' own class, which does not check our options.
        kind = self.config_class
        super().__init__(config if isinstance(config, kind) else kind.from_dict(config.to_dict()))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # Normal with 0.02, not truncated, biases 0, layer norms 1, as transformers' own.
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, BertLMPredictionHead):
            init.zeros_(module.bias)
        elif isinstance(module, Sinusoids):
            init.copy_(module.weight, module.table())


class BertModel(BertPreTrainedModel):  # type: ignore[no-untyped-call]
    """The encoder and its pooler: the weights, names and numbers of `transformers.BertModel`."""

    def __init__(self, config: transformers.BertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = BertEmbeddings(self.config)
        self.encoder = BertEncoder(self.config)
        self.pooler = BertPooler(self.config) if add_pooling_layer else None
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        return_dict: bool = True,
    ) -> BaseModelOutputWithPooling:
        """Ids, mask (1 where there is text; None: everywhere) and segments (None: all 0), each `(batch,
        length)`.

        return_dict: what `generate` of transformers passes, always true.

        Returns `last_hidden_state` `(batch, length, hidden)`, `pooler_output` `(batch, hidden)`, on request
        `hidden_states`, layers + 1 of `(batch, length, hidden)`, the embeddings first, and `attentions`,
        layers of `(batch, heads, length, length)`, before dropout. Raises ModelError on more tokens than
        positions.
        """
        # (batch, 1, 1, length)
        mask = None if attention_mask is None else attention_mask[:, None, None].bool()
        x = self.embeddings(input_ids, token_type_ids)  # (batch, length, hidden)
        states, attentions = self.encoder(x, mask, output_attentions)
        return BaseModelOutputWithPooling(
            last_hidden_state=states[-1],
            pooler_output=None if self.pooler is None else self.pooler(states[-1]),
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )


class BertForPreTraining(BertPreTrainedModel):  # type: ignore[no-untyped-call]
    """BERT with both heads of its pretraining: the weights, names and numbers of
    `transformers.BertForPreTraining`.
    """

    pairs = True
    _tied_weights_keys = {  # noqa: RUF012  # transformers declares it so
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: transformers.BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(self.config, add_pooling_layer=self.pairs)
        self.cls = BertHeads(self.config, pairs=self.pairs)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_output_embeddings(self) -> nn.Module:
        """The projection to the vocabulary."""
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Take another projection, of another vocabulary."""
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> BertForPreTrainingOutput:
        """What `BertModel` returns, and the logits of the heads.

        position: which tokens are to be predicted, `(batch, length)` true or false, or their flat indices
        `(chosen,)`. None: those with a label; without labels, all. labels: the ids to find, `(batch,
        length)`, -100 where there is none. next_sentence_label: `(batch,)`, 0 if the second segment follows
        the first.

        Returns `prediction_logits`, `(chosen, vocab)`, or `(batch, length, vocab)` for all;
        `seq_relationship_logits`, `(batch, 2)`; and `loss`, the sum of the mean cross-entropies of what has
        labels.
        """
        states = self.bert(input_ids, attention_mask, token_type_ids, output_attentions, output_hidden_states)
        x = states.last_hidden_state  # (batch, length, hidden)
        if position is None and labels is not None:
            position = labels != IGNORED
        if position is not None:
            # The vocabulary is the widest projection by far: it sees the chosen tokens only.
            # (chosen,)
            flat = position.flatten().nonzero()[:, 0] if position.dtype == torch.bool else position
            x = x.flatten(0, 1).index_select(0, flat)  # (chosen, hidden)
            labels = None if labels is None else labels.flatten()[flat]  # (chosen,)
        words = self.cls.predictions(x)  # (chosen, vocab)
        follows = self.cls.seq_relationship(states.pooler_output) if self.pairs else None  # (batch, 2)
        losses = [mean_loss(words, labels), mean_loss(follows, next_sentence_label)]
        defined = [loss for loss in losses if loss is not None]
        return BertForPreTrainingOutput(
            loss=torch.stack(defined).sum() if defined else None,
            prediction_logits=words,
            seq_relationship_logits=follows,
            hidden_states=states.hidden_states,
            attentions=states.attentions,
        )


class BertForMaskedLM(BertForPreTraining):  # type: ignore[no-untyped-call]
    """BERT without pooler and pairs, as RoBERTa trained it: the weights, names and numbers of transformers'
    own.
    """

    pairs = False


def mean_loss(logits: Tensor | None, labels: Tensor | None, label_smoothing: float = 0.0) -> Tensor | None:
    """Mean cross-entropy of `(…, classes)` where the labels `(…)` are not -100; None without logits or
    labels.
    """
    if logits is None or labels is None:
        return None
    rows = logits.float().flatten(0, -2), labels.flatten()
    total = F.cross_entropy(*rows, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing)
    return total / (labels != IGNORED).sum().clamp(min=1)  # 0, not nan, where nothing was masked


def load_for_pretraining(encoder: Encoder, *, pairs: bool, new_head: bool) -> transformers.PreTrainedModel:
    """Our BERT where the encoder is one; else transformers' masked language model. Raises ModelError on pairs
    there.
    """
    if encoder.model_type == MODEL_TYPE:
        ours = BertForPreTraining if pairs else BertForMaskedLM
        own_config = None if encoder.config else read_config(encoder.folder)
        return load_model(encoder, ours, {}, new_head=new_head, own_config=own_config)
    if pairs:
        raise ModelError(
            "task.nsp",
            f"{encoder.name!r} is a {encoder.model_type}, which has no head for pairs of sentences",
            "Set task: {name: pretraining, nsp: none}.",
        )
    return load_model(encoder, transformers.AutoModelForMaskedLM, {}, new_head=new_head)


def load(folder: str | Path) -> BertForPreTraining:
    """The model in a folder, in fp32. Raises ModelError if it is not a BERT with both heads."""
    encoder = Encoder(str(folder), vet(Path(folder).expanduser()), "folder")
    own_config = read_config(encoder.folder)
    model = load_model(encoder, BertForPreTraining, {}, new_head=False, own_config=own_config)
    return cast(BertForPreTraining, model)
