"""Muon: which weights, each step, settings, and what they are not for."""

import re
from importlib.util import find_spec
from itertools import pairwise

import pytest
import small
import torch
import transformers
from accelerate.optimizer import AcceleratedOptimizer
from cases import BY_ID, CASES
from steps import arguments, made
from torch import nn
from transformers import TrainerCallback

from bertkit.attachments.muon import layer_matrices
from bertkit.engine import checkpoint
from bertkit.engine.training_data import TaskData
from bertkit.models.bert.bert import BertForPreTraining
from bertkit.models.new_config import BertConfig
from bertkit.models.trained_parts import with_lora
from bertkit.sections import Lora

SIZES = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
}
BERT_LAYER = [
    *(f"attention.{part}.weight" for part in "self.query self.key self.value output.dense".split()),
    *("intermediate.dense.weight", "output.dense.weight"),
]


MODERNBERT_LAYER = "attn.Wqkv.weight attn.Wo.weight mlp.Wi.weight mlp.Wo.weight".split()
LORA_LAYER = [
    f"attention.self.{part}.lora_{side}.default.weight" for part in ("query", "value") for side in "AB"
]
DEBERTA_LAYER = [
    *(f"attention.self.{part}_proj.weight" for part in "query key value pos_query pos_key".split()),
    *("attention.output.dense.weight", "intermediate.dense.weight", "output.dense.weight"),
]
ALBERT_LAYER = [
    *(f"attention.{part}.weight" for part in "query key value dense".split()),
    *("ffn.weight", "ffn_output.weight"),
]


def model_of(kind):
    """A small model of this kind with two layers."""
    if kind == "bert":
        return BertForPreTraining(BertConfig(**SIZES))
    if kind == "lora":
        return with_lora(
            transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES)), Lora(r=2), {}
        )
    if kind == "encoder-decoder":
        encoder = transformers.BertConfig(**SIZES)
        decoder = transformers.BertConfig(**SIZES, is_decoder=True, add_cross_attention=True)
        both = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
        return transformers.EncoderDecoderModel(both)
    own = {
        "modernbert": {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3},
        "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "conv_kernel_size": 3},
        "albert": {"embedding_size": 4},
    }
    auto = (
        transformers.AutoModelForSequenceClassification
        if kind == "deberta-v2"
        else transformers.AutoModelForMaskedLM
    )
    return auto.from_config(transformers.AutoConfig.for_model(kind, **SIZES, **own[kind]))


@pytest.mark.parametrize(
    ("kind", "stack", "matrices", "others"),
    [
        ("bert", "bert.encoder.layer.{}.", BERT_LAYER, "word_embeddings predictions.transform.dense pooler"),
        ("modernbert", "model.layers.{}.", MODERNBERT_LAYER, "tok_embeddings head.dense"),
        (
            *("deberta-v2", "deberta.encoder.layer.{}.", DEBERTA_LAYER),
            "encoder.rel_embeddings encoder.conv.conv pooler.dense classifier",
        ),
        (
            *("encoder-decoder", "encoder.encoder.layer.{}.|decoder.bert.encoder.layer.{}.", BERT_LAYER),
            "encoder.embeddings.word_embeddings decoder.cls.predictions.transform.dense",
        ),
        (
            *("albert", "albert.encoder.albert_layer_groups.0.albert_layers.0.", ALBERT_LAYER),
            "embedding_hidden_mapping_in predictions.dense",
        ),
        ("lora", "base_model.model.bert.encoder.layer.{}.", LORA_LAYER, "classifier.modules_to_save"),
    ],
)
def test_muon_gets_the_weight_matrices_of_the_layers(kind, stack, matrices, others):
    """With the encoder's own names. The decoder to the vocabulary is tied to the embeddings."""
    model = model_of(kind)
    chosen = layer_matrices(model)
    names = {name for name, parameter in model.named_parameters() if parameter in chosen}
    stacks = [each.format(layer) for each in stack.split("|") for layer in (0, 1)]
    wanted = {each + name for each in stacks for name in matrices}
    if kind == "encoder-decoder":
        cross = [
            name.replace("attention.", "crossattention.", 1) for name in BERT_LAYER if "attention" in name
        ]
        wanted |= {f"decoder.bert.encoder.layer.{layer}.{name}" for layer in (0, 1) for name in cross}
    assert names == wanted
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert all(any(part in name for name in trained) for part in others.split()), (
        "what is left to AdamW is there"
    )


class Updates(TrainerCallback):
    """Gradients, and the weights before and after each update."""

    def __init__(self):
        self.taken = []

    def on_pre_optimizer_step(self, *_, model, **__):
        self.before = copies(model.named_parameters())
        self.gradients = copies((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)

    def on_optimizer_step(self, *_, model, **__):
        self.taken.append((self.before, self.gradients, copies(model.named_parameters())))


def copies(named):
    return {name: tensor.detach().clone() for name, tensor in named}


def by_hand(weights, rate, momentum, chain):
    """torch's own optimizers of the same parameters; of each group that Trainer makes, by names."""
    for name, weight in weights.items():
        decay = 0.0 if "bias" in name or "LayerNorm" in name else 0.3  # torch's own default is 0.1
        if re.search(r"layer\.\d", name) and weight.ndim == 2:
            settings = {"lr": rate or 1e-2, "momentum": momentum, "weight_decay": decay}
            yield torch.optim.Muon([weight], **settings, adjust_lr_fn="match_rms_adamw")
        elif name.endswith("transitions"):
            yield torch.optim.AdamW([weight], lr=1e-2 * chain, weight_decay=0.0, fused=True)
        else:
            yield torch.optim.AdamW([weight], lr=1e-2, weight_decay=decay, fused=True)


@pytest.mark.parametrize(
    ("identifier", "more"),
    [
        ("ner-crf", {}),
        ("mlm-nsp", {"muon_learning_rate": 3e-3, "muon_momentum": 0.8}),
        ("single-label", {"max_grad_norm": 0.1}),
    ],
)
def test_steps_are_those_of_torch(identifier, more, tiny_encoder, tmp_path):
    """Two steps of two accumulated micro-batches, equal to the last bit, with CRF's own learning rate and
    clipping.
    """
    settings = {
        "optim": "muon",
        "learning_rate": 1e-2,
        "weight_decay": 0.3,
        "lr_scheduler_type": "constant",
        **more,
    }
    updates = Updates()
    args = arguments(tmp_path, 2, 2, max_steps=2, **settings)
    trainer = made(BY_ID[identifier], tiny_encoder, args, callbacks=[updates])
    trainer.train()
    weights = {name: nn.Parameter(weight.clone()) for name, weight in updates.taken[0][0].items()}
    rate = more.get("muon_learning_rate")
    momentum = more.get("muon_momentum", 0.95)
    chain = max(trainer.data.learner.learning_rate_factors.values(), default=1.0)
    optimizers = list(by_hand(weights, rate, momentum, chain))
    for before, gradients, after in updates.taken:
        assert all(torch.equal(weights[name], weight) for name, weight in before.items())
        for name, weight in weights.items():
            weight.grad = gradients.get(name)
        for optimizer in optimizers:
            optimizer.step()
        for name, weight in after.items():
            assert torch.equal(weights[name], weight), name
    assert len(updates.taken) == 2
    name = "bert.encoder.layer.0.output.dense.weight"
    assert not torch.equal(weights[name], updates.taken[0][0][name])


def test_the_schedule_is_that_of_all_weights(tiny_encoder, tmp_path):
    args = arguments(tmp_path, 4, 1, max_steps=2, optim="muon", learning_rate=1e-2, muon_learning_rate=4e-2)
    trainer = made(CASES[0], tiny_encoder, args)
    trainer.train()
    assert [group["initial_lr"] for group in trainer.optimizer.param_groups] == [1e-2, 1e-2, 4e-2]
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [0.0, 0.0, 0.0], "after the last step"
    logged = [event["learning_rate"] for event in trainer.state.log_history if "learning_rate" in event]
    assert logged == [1e-2, 5e-3], "AdamW's"


def test_a_schedule_free_optimizer_is_scored_with_its_averages(tiny_encoder, tmp_path, monkeypatch):
    """Its methods `train` and `eval` switch between the weights that it trains and their averages."""
    told = []
    for mode in ("train", "eval"):
        monkeypatch.setattr(AcceleratedOptimizer, mode, lambda _, mode=mode: told.append(mode))
    scores = TaskData.evaluate
    monkeypatch.setattr(TaskData, "evaluate", lambda *given: (told.append("scored"), scores(*given))[1])
    small.trained(tmp_path, tiny_encoder)
    assert told.count("scored") == 2
    assert all(before == "eval" for before, mode in pairwise(told) if mode == "scored")
    assert told[-1] == "eval"


@pytest.mark.skipif(
    find_spec("triton") is not None and not torch.cuda.is_available(),
    reason="torch-optimi 0.3 takes its Triton kernels on CPUs too where triton is installed",
)
def test_stable_adamw_is_saved_and_loaded_too(tmp_path):
    """Its groups hold tensors, and its states values that are none."""
    kind = pytest.importorskip("optimi").StableAdamW
    weights = [nn.Parameter(torch.ones(3, 4)) for _ in range(2)]
    optimizers = [kind([weight], lr=1e-2) for weight in weights]
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: 1 / (step + 1)) for each in optimizers]

    def step(place, gradient):
        weights[place].grad = torch.arange(12.0).view(3, 4) * gradient
        optimizers[place].step()
        schedules[place].step()

    step(0, 1.0)
    checkpoint.save_optimizer(tmp_path, optimizers[0], schedules[0], None)
    weights[1].data.copy_(weights[0].data)
    checkpoint.load_optimizer(tmp_path, optimizers[1], schedules[1], None)
    for place in range(2):
        step(place, -0.3)
    assert torch.equal(*weights)


class Nesting(torch.optim.AdamW):
    """Keeps tensors where bitsandbytes 0.50 does."""

    def state_dict(self):
        state = super().state_dict()
        for number, values in state["state"].items():
            nested = {name: value for name, value in values.items() if name != "step"}
            state["state"][number] = {"step": values["step"], "__bnb_optimizer_quant_state__": nested}
        return state


def test_nested_states_are_saved_and_loaded_too(tmp_path):
    weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizers = (Nesting([weights[0]]), torch.optim.AdamW([weights[1]]))
    plans = [torch.optim.lr_scheduler.LambdaLR(each, lambda _: 1.0) for each in optimizers]
    weights[0].grad = torch.ones(3)
    optimizers[0].step()
    checkpoint.save_optimizer(tmp_path, optimizers[0], plans[0], None)
    checkpoint.load_optimizer(tmp_path, optimizers[1], plans[1], None)
    moments = [each.state[weight]["exp_avg"] for each, weight in zip(optimizers, weights, strict=True)]
    assert torch.equal(*moments)
