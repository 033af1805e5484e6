"""BERT of our own against transformers', which it must equal in weights, names and numbers."""

import json
import math
import re
from pathlib import Path
from typing import get_args

import pytest
import torch
import transformers
from small import problems_of, raises, recompute_activations
from torch.testing import assert_close

from bertkit.errors import ModelError
from bertkit.files import read_json
from bertkit.models.bert import bert
from bertkit.models.encoder import Encoder, load_tokenizer, resolve_encoder
from bertkit.models.new_config import Activation, Architecture, BertConfig
from bertkit.sections import ModelSpec
from bertkit.tasks import get_task

VOCAB = 45
SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24}
SIZES["max_position_embeddings"] = 20
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
# name: (encoder with pooler, with both heads), of the vocabulary of bert-base-uncased
PARAMETERS = {
    "tiny": (4_385_920, 4_433_468),
    "mini": (11_170_560, 11_267_900),
    "small": (28_763_648, 29_058_876),
    "medium": (41_373_184, 41_668_412),
    "base": (109_482_240, 110_106_428),
    "large": (335_141_888, 336_226_108),
}


def ours(seed=0, **options):
    """A small BERT with large random weights, biases and layer norms, so that no term of it is near 0."""
    return perturbed(bert.BertForPreTraining(bert.config({**SIZES, **options}, vocab_size=VOCAB)), seed)


def perturbed(model, seed=0):
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=0.3)
    return model.eval()


def theirs(model, attention="eager"):
    """transformers' own with the same weights, strictly; `eager` computes attention by the formula."""
    kind = getattr(transformers, type(model).__name__)
    other = kind(kind.config_class.from_dict(model.config.to_dict(), attn_implementation=attention)).eval()
    other.load_state_dict(model.state_dict(), strict=True)
    return other


def batch(seed=0):
    """Five texts of up to 11 word pieces, the second half of each the second segment."""
    noise = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([11, 1, 6, 11, 3])[:, None]
    places = torch.arange(11)[None]
    ids = torch.randint(5, VOCAB, (5, 11), generator=noise) * (places < lengths)
    return {
        "input_ids": ids,
        "attention_mask": (places < lengths).long(),
        "token_type_ids": ((places >= lengths // 2) & (places < lengths)).long(),
    }


def labelled():
    """The batch with labels at 7 word pieces, none of them in the last two texts."""
    labels = torch.full((5, 11), -100)
    labels[[0, 0, 0, 1, 2, 2, 2], [0, 4, 10, 0, 1, 2, 5]] = torch.tensor([7, 8, 9, 10, 11, 12, 7])
    return {**batch(), "labels": labels, "next_sentence_label": torch.tensor([0, 1, 1, 0, 1])}


def draw_alike(ours, theirs, config):
    """With one seed, both kinds of model have the same first weights."""
    states = []
    for kind, settings in ((ours, config), (theirs, theirs.config_class.from_dict(config.to_dict()))):
        torch.manual_seed(3)
        states.append(kind(settings).state_dict())
    assert_close(*states, rtol=0, atol=0)


def compute_twice(model, texts, layers):
    """With recomputed activations, these layers run twice, and the gradient stays."""
    model.train()(**texts).loss.backward()
    wanted = gradients(model)
    model.zero_grad()
    recompute_activations(model)
    calls = []
    for layer in layers:
        layer.intermediate.register_forward_hook(lambda *_: calls.append(1))
    model(**texts).loss.backward()
    assert len(calls) == 2 * len(layers), "each layer is computed again"
    assert_close(gradients(model), wanted, **CLOSE)


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# --- sizes and options


@pytest.mark.parametrize("preset", PARAMETERS)
def test_presets_have_exactly_these_parameters(preset):
    config = bert.config(preset, vocab_size=30_522)
    with torch.device("meta"):
        models = bert.BertModel(config), bert.BertForPreTraining(config)
    assert tuple(sum(p.numel() for p in model.parameters()) for model in models) == PARAMETERS[preset]


def test_the_page_has_these_numbers_and_fields():
    assert PARAMETERS.keys() == bert.PRESETS.keys()
    page = (Path(__file__).parent.parent / "docs/bert.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \|$", page, re.M)
    written = {name: [int(cell.replace(",", "")) for cell in cells] for name, *cells in rows}
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    assert written == {n: [*(bert.PRESETS[n][s] for s in sizes), *counts] for n, counts in PARAMETERS.items()}
    fields = re.findall(
        r"^\| `(\w+)` \| (\S*) ?\|", page.partition("## Options")[2].partition("\n## ")[0], re.M
    )
    defaults = {name: default.strip("`") for name, default in fields}
    own = {name: "" if f.is_required() else str(f.default) for name, f in Architecture.model_fields.items()}
    assert defaults == own


def test_a_config_is_a_preset_and_what_is_said_beside_it():
    config = bert.config({"preset": "mini", "hidden_dropout_prob": 0, "num_hidden_layers": 3}, vocab_size=99)
    assert (config.hidden_size, config.num_attention_heads, config.intermediate_size) == (256, 4, 1024)
    assert (config.num_hidden_layers, config.hidden_dropout_prob, config.vocab_size) == (3, 0, 99)
    assert (config.attention_probs_dropout_prob, config.max_position_embeddings) == (0.1, 512)
    longer = bert.config({"preset": "mini"}, vocab_size=99, pad_token_id=3, max_position_embeddings=1024)
    assert (longer.max_position_embeddings, longer.pad_token_id) == (1024, 3)
    own = bert.config(
        {"preset": "mini", "max_position_embeddings": 64}, vocab_size=99, max_position_embeddings=1024
    )
    assert own.max_position_embeddings == 64


FIELDS = {  # name of a field -> a value that is an error, and its message
    "preset": ("bse", "did you mean 'base'"),
    "hiden_size": (3, "did you mean 'hidden_size'"),
    "num_attention_heads": (3, "is not a multiple of 3 heads"),
    "norm": ("pre", "modernbert-mini is an encoder with layer norm before"),
    "hidden_act": ("gleu", "did you mean 'gelu'"),
    "hidden_dropout_prob": (1.0, "less than 1"),
    "num_hidden_layers": ("4", "\n    Write 4 without quotes"),
    "vocab_size": (9, "tokenizer"),
}
WRONG = [
    ("minii", 3, "did you mean 'mini'"),
    ({"hidden_size": 16}, 3, "num_hidden_layers: missing\n    Write it, or choose a preset"),
    (
        {"preset": "mini", "positions": "sinusoidal", "hidden_size": 15, "num_attention_heads": 3},
        3,
        "must be even",
    ),
    ({"preset": ["mini"]}, 3, r"no preset \['mini'\]"),
    ({"preset": "mini", "layer_norm_eps": math.nan}, 3, "layer_norm_eps"),
    ({"preset": "mini", "pad_token_id": 0}, 3, "pad_token_id: is set by the tokenizer"),
    ("tiny", VOCAB, "id 45, the vocabulary 45"),
]


@pytest.mark.parametrize(("given", "padding", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_what_is_wrong_with_a_config_is_said(given, padding, said):
    raises(ModelError, said, bert.config, given, vocab_size=VOCAB, pad_token_id=padding)


def test_what_is_wrong_with_a_config_is_said_at_once():
    found = {
        problem.where.removeprefix("model.config."): str(problem)
        for problem in problems_of(
            ModelError, bert.config, {name: value for name, (value, _) in FIELDS.items()}, vocab_size=VOCAB
        )
    }
    assert found.keys() == FIELDS.keys()
    assert [name for name, (_, said) in FIELDS.items() if said not in found[name]] == []


# --- the oracle


@pytest.mark.parametrize("activation", get_args(Activation))
def test_weights_go_both_ways_and_all_numbers_agree(activation):
    model = ours(hidden_act=activation)
    other = theirs(model)
    back = bert.BertForPreTraining(model.config).eval()
    back.load_state_dict(other.state_dict(), strict=True)
    asked = {**labelled(), "output_hidden_states": True, "output_attentions": True}
    wanted = other(**asked)
    full = {name: value for name, value in asked.items() if name != "labels"}
    for made in (model(**full), back(**full)):
        assert_close(made.prediction_logits, wanted.prediction_logits, **CLOSE)
        assert_close(made.seq_relationship_logits, wanted.seq_relationship_logits, **CLOSE)
        assert_close(made.hidden_states, wanted.hidden_states, **CLOSE)
        assert_close(made.attentions, wanted.attentions, **CLOSE)
        assert len(made.hidden_states) == 4
        assert len(made.attentions) == 3
    assert_close(model(**asked).loss, wanted.loss, **CLOSE)


def test_without_mask_and_segments_all_is_text_of_the_first_segment():
    model = ours()
    ids = batch()["input_ids"]
    made = model(ids)
    assert_close(made.prediction_logits, theirs(model)(ids).prediction_logits, **CLOSE)
    told = model(ids, torch.ones_like(ids), torch.zeros_like(ids))
    assert_close(made.prediction_logits, told.prediction_logits, **CLOSE)


def test_the_masked_language_model_is_theirs():
    model = bert.BertForMaskedLM(bert.config(SIZES, vocab_size=VOCAB)).eval()
    other = theirs(model, "sdpa")
    asked = {name: value for name, value in labelled().items() if name != "next_sentence_label"}
    made = model(**asked)
    wanted = other(**asked)
    assert_close(made.loss, wanted.loss, **CLOSE)
    chosen = asked["labels"] != -100
    assert_close(made.prediction_logits, wanted.logits[chosen], **CLOSE)
    assert made.seq_relationship_logits is None


@pytest.mark.parametrize("kind", ["BertForPreTraining", "BertForMaskedLM", "BertModel"])
def test_one_seed_draws_the_weights_that_theirs_draws(kind):
    config = bert.config(SIZES, vocab_size=VOCAB, pad_token_id=7)
    draw_alike(getattr(bert, kind), getattr(transformers, kind), config)


def test_bf16_autocast_is_within_its_rounding():
    model = bert.BertForPreTraining(bert.config(SIZES, vocab_size=VOCAB)).eval()
    wanted = model(**labelled())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = model(**labelled())
    assert made.prediction_logits.dtype == torch.bfloat16
    assert made.loss.dtype == torch.float32
    assert_close(made.prediction_logits.float(), wanted.prediction_logits, rtol=2e-2, atol=2e-2)
    assert_close(made.loss, wanted.loss, rtol=1e-2, atol=0)
    assert model.bfloat16()(**labelled()).loss.dtype == torch.float32


# --- attention


def test_attention_is_shown_before_dropout():
    model = ours(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5)
    wanted = model(**batch(), output_attentions=True)
    made = model.train()(**batch(), output_attentions=True)
    assert_close(made.attentions[0], wanted.attentions[0], **CLOSE)
    assert not torch.allclose(made.attentions[1], wanted.attentions[1], **CLOSE)


def test_a_text_of_padding_alone_gives_numbers_and_one_that_is_too_long_is_refused():
    model = ours()
    texts = batch()
    wanted = model(**texts).prediction_logits
    texts["attention_mask"][1] = 0
    for asked in (False, True):
        made = model(**texts, output_attentions=asked).prediction_logits
        assert torch.isfinite(made).all()
        assert_close(made[[0, 2, 3, 4]], wanted[[0, 2, 3, 4]], **CLOSE)
    raises(
        ModelError, "21 tokens, but the model has 20 positions", ours(), torch.ones(1, 21, dtype=torch.long)
    )


# --- what is predicted


def test_only_the_chosen_word_pieces_meet_the_vocabulary():
    model = ours()
    texts = labelled()
    every = model(**batch()).prediction_logits
    assert every.shape == (5, 11, VOCAB)
    chosen = texts["labels"] != -100
    flat = chosen.flatten().nonzero()[:, 0]
    assert_close(model(**batch(), position=chosen).prediction_logits, every[chosen], **CLOSE)
    reordered = model(**batch(), position=flat.flip(0)).prediction_logits
    assert_close(reordered, every[chosen].flip(0), **CLOSE)
    losses = [
        model(**texts, position=position).loss for position in (None, chosen, flat, torch.ones_like(chosen))
    ]
    assert_close(torch.stack(losses), losses[0].expand(4), **CLOSE)


def test_each_loss_counts_where_its_labels_are_given_and_is_0_where_nothing_is_masked():
    model = ours()
    texts = batch()
    labels, pairs = (labelled()[name] for name in ("labels", "next_sentence_label"))
    words = model(**texts, labels=labels).loss
    follows = model(**texts, next_sentence_label=pairs).loss
    both = model(**texts, labels=labels, next_sentence_label=pairs).loss
    assert_close(words + follows, both)
    assert model(**texts).loss is None
    made = model(**texts, labels=torch.full((5, 11), -100))
    assert made.loss.item() == 0.0
    assert made.prediction_logits.shape == (0, VOCAB)
    made.loss.backward()
    assert all(torch.isfinite(gradient).all() for gradient in gradients(model).values())


# --- training


@pytest.mark.parametrize("probabilities", [(0.3, 0.0), (0.0, 0.3), (0.1, 0.4)])
def test_one_seed_drops_what_theirs_drops(probabilities):
    hidden, attention = probabilities
    model = ours(hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention).train()
    other = theirs(model, "sdpa").train()
    for step in (model, other):
        torch.manual_seed(4)
        step(**labelled()).loss.backward()
    assert gradients(model).keys() == dict(model.named_parameters()).keys()
    assert_close(gradients(model), gradients(other), **CLOSE)


def test_checkpointing_keeps_the_gradient():
    model = ours(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    compute_twice(model, labelled(), model.bert.encoder.layer)


# --- saved and opened


OPENED = [
    (transformers.AutoModel, {"cls."}),
    (transformers.AutoModelForPreTraining, set()),
    (transformers.BertForPreTraining, set()),
    (transformers.AutoModelForMaskedLM, {"bert.pooler.", "cls.seq_relationship."}),
    (transformers.AutoModelForNextSentencePrediction, {"cls.predictions."}),
    (bert.BertForPreTraining, set()),
    (bert.BertForMaskedLM, {"bert.pooler.", "cls.seq_relationship."}),
    (bert.BertModel, {"cls."}),
]


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize(("kind", "left"), OPENED, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_saved_opens_without_us(kind, left, positions, tmp_path):
    model = ours(positions=positions)
    model.save_pretrained(tmp_path)
    saved = read_json(tmp_path / "config.json")
    assert (saved["model_type"], saved["architectures"]) == ("bert", ["BertForPreTraining"])
    assert saved["positions"] == positions
    other, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    assert all(any(name.startswith(part) for part in left) for name in report["unexpected_keys"])
    states = other(**batch(), output_hidden_states=True).hidden_states
    assert_close(states, model(**batch(), output_hidden_states=True).hidden_states, **CLOSE)


def test_theirs_opens_here(tmp_path):
    other = theirs(ours())
    other.save_pretrained(tmp_path)
    for opened in (bert.BertForPreTraining.from_pretrained(tmp_path), bert.load(tmp_path)):
        assert isinstance(opened.config, BertConfig)
        assert_close(opened.eval()(**labelled()).loss, other(**labelled()).loss, **CLOSE)


@pytest.mark.parametrize("options", [{}, {"positions": "sinusoidal"}], ids=str)
def test_load_gives_back_what_was_saved(options, tmp_path):
    model = ours(**options)
    model.save_pretrained(tmp_path)
    again = bert.load(str(tmp_path)).eval()
    assert type(again.config) is type(model.config)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(again(**batch()).prediction_logits, model(**batch()).prediction_logits)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, parameter in again.named_parameters() if parameter.requires_grad}
    again.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again/config.json").read_bytes() == (tmp_path / "config.json").read_bytes()


def test_a_folder_that_would_be_computed_wrongly_is_refused(tmp_path):
    raises(ModelError, "no such file", bert.load, tmp_path)
    ours().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = read_json(file)
    for other, said in (
        (config | {"model_type": "roberta"}, "model_type is 'roberta'"),
        (config | {"is_decoder": True}, "is_decoder must be false"),
        (config | {"positions": "rotary"}, "positions is 'rotary'"),
        (config | {"attn_implementation": "someone/kernel"}, "does not fetch code that a model names"),
        ([], r"config\.json: is not a JSON object"),
    ):
        file.write_text(json.dumps(other))
        raises(ModelError, said, bert.load, tmp_path)
    raises(
        ModelError,
        r"config\.json: is not a JSON object",
        bert.load_for_pretraining,
        Encoder("it", tmp_path, "folder"),
        pairs=True,
        new_head=True,
    )


# --- the options that transformers' BERT does not have


def test_sinusoids_are_the_papers_and_made_where_a_checkpoint_lacks_them(tmp_path):
    model = bert.BertModel(
        bert.config({**SIZES, "positions": "sinusoidal", "initializer_range": 0.5}, vocab_size=9)
    )
    table = model.embeddings.position_embeddings.weight
    for position in (0, 1, 7, 19):
        for pair in range(8):
            angle = position / 10_000 ** (2 * pair / 16)
            wanted = torch.tensor([math.sin(angle), math.cos(angle)]) / 2
            assert_close(table[position, 2 * pair : 2 * pair + 2], wanted)
    assert not table.requires_grad
    model = ours(positions="sinusoidal")
    weights = {name: value for name, value in model.state_dict().items() if "position_embeddings" not in name}
    again = bert.BertForPreTraining.from_pretrained(None, config=model.config, state_dict=weights)
    made, wanted = (each.bert.embeddings.position_embeddings.weight for each in (again, model))
    assert torch.equal(made, wanted)


def test_sinusoids_are_refused_where_transformers_would_learn_positions(tiny_encoder):
    spec = ModelSpec(config={**SIZES, "positions": "sinusoidal"}, tokenizer=str(tiny_encoder), max_length=32)
    kind = get_task("text-classification")
    options = kind.Options(name=kind.name, kind="single-label", labels={"a": "a", "b": "b"})
    task = kind(options, load_tokenizer(tiny_encoder), 32)
    raises(ModelError, "model.config.positions: has an effect only", task.model, resolve_encoder(spec))
