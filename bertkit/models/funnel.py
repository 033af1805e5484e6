"""Funnel for short texts: its blocks halve the number of tokens, and fail where too few of them are left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class _Padding:
    """Before Funnel's own class: pads a batch to the tokens that its pooling needs, and drops their states again."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        inputs_embeds: Any = None,
        **options: Any,
    ) -> Any:
        import torch

        model: Any = self
        parent: Any = super()
        given = input_ids if inputs_embeds is None else inputs_embeds
        tokens = given.shape[1]
        more = 2 ** (len(model.config.block_sizes) - 1) + 1 - tokens
        if more > 0:
            if attention_mask is None:
                attention_mask = torch.ones(given.shape[:2], dtype=torch.long, device=given.device)
            input_ids, attention_mask, token_type_ids, inputs_embeds = (
                None if each is None else torch.cat([each, each.new_zeros((len(each), more, *each.shape[2:]))], 1)
                for each in (input_ids, attention_mask, token_type_ids, inputs_embeds)
            )
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        outputs = parent.forward(**inputs, inputs_embeds=inputs_embeds, **options)
        return _of_tokens(outputs, tokens, tokens + more) if more > 0 else outputs


def _of_tokens(outputs: Any, tokens: int, padded: int) -> Any:
    """The outputs without the states of padding; those that are pooled stay."""

    def kept(states: Any) -> Any:
        return states[:, :tokens] if states.shape[1] == padded else states

    outputs["last_hidden_state"] = kept(outputs["last_hidden_state"])
    if outputs.get("hidden_states") is not None:
        outputs["hidden_states"] = tuple(map(kept, outputs["hidden_states"]))
    return outputs


def reads_short_texts(model: PreTrainedModel) -> PreTrainedModel:
    """The model, which if it is a Funnel reads texts of any length."""
    if model.config.model_type == "funnel":
        base: Any = model.base_model
        base.__class__ = type(type(base).__name__, (_Padding, type(base)), {})  # the name is written into config.json
    return model
