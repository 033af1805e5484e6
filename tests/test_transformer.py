"""The encoder–decoder of our own against transformers', which it must equal in weights, names and numbers."""

import pytest
import torch
import transformers
from small import raises
from test_bert import SIZES, VOCAB, compute_twice, draw_alike, gradients, perturbed, theirs
from torch.testing import assert_close
from transformers import DynamicCache, EncoderDecoderCache, EncoderDecoderConfig

from bertkit.errors import ModelError
from bertkit.files import read_json
from bertkit.models.bert import bert, transformer
from bertkit.models.new_config import BertConfig, BertDecoderConfig

PAD = 0
START = 2
END = 3
CLOSE = {"rtol": 1e-5, "atol": 2e-5}  # fp32 sums in another order, through all layers and back
LENGTHS = [6, 1, 8, 3]  # of the target texts
# transformers warns of a change in its release 4.12 wherever it computes this loss.
THEIR_LOSS = pytest.mark.filterwarnings("ignore:Version v4.12.0:FutureWarning")


def ours(**options):
    """A small encoder–decoder with large random weights, biases and layer norms, so that no term of it is
    near 0.
    """
    one = bert.config({**SIZES, **options}, vocab_size=VOCAB)
    config = transformer.config(one, decoder_start_token_id=START, eos_token_id=END)
    return perturbed(transformer.EncoderDecoderModel(config))


def texts(lengths, seed):
    """Random ids, padded, and where there is text."""
    here = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, VOCAB, here.shape, generator=torch.Generator().manual_seed(seed))
    return ids * here, here


def batch():
    """Four sources of up to 9 tokens and the labels of targets of up to 8."""
    source, text = texts([5, 9, 2, 7], seed=1)
    target, known = texts(LENGTHS, seed=2)
    target[range(4), [length - 1 for length in LENGTHS]] = END
    return {"input_ids": source, "attention_mask": text.long(), "labels": target.masked_fill(~known, -100)}


def source_and_target():
    """The batch with targets of 8 tokens each, none of them padding."""
    given = batch()
    given["decoder_input_ids"] = texts([8] * 4, seed=3)[0]
    del given["labels"]
    return given


def new_cache():
    return EncoderDecoderCache(DynamicCache(), DynamicCache())


# --- the oracle


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@THEIR_LOSS
def test_logits_loss_and_gradient_are_theirs(attention, positions):
    model = ours(positions=positions)
    other = theirs(model, attention)
    made = model(**batch())
    wanted = other(**batch())
    known = batch()["labels"] != -100
    assert_close(made.logits[known], wanted.logits[known], **CLOSE)
    assert_close(made.encoder_last_hidden_state, wanted.encoder_last_hidden_state, **CLOSE)
    assert_close(made.loss, wanted.loss, **CLOSE)
    made.loss.backward()
    wanted.loss.backward()
    wanted_gradients = gradients(other)
    if positions == "sinusoidal":  # which transformers trains
        for half in ("encoder", "decoder.bert"):
            del wanted_gradients[f"{half}.embeddings.position_embeddings.weight"]
    assert_close(gradients(model), wanted_gradients, **CLOSE)


def test_attention_weights_are_theirs_and_logits_where_they_are_wanted_those_of_all():
    model = ours()
    asked = {**source_and_target(), "output_attentions": True}
    made = model(**asked)
    wanted = theirs(model)(**asked)
    for name, columns in (("encoder_attentions", 9), ("decoder_attentions", 8), ("cross_attentions", 9)):
        assert made[name][2].shape[-1] == columns
        assert_close(made[name], wanted[name], **CLOSE)
    assert_close(made.logits, wanted.logits, **CLOSE)
    plain = model(**source_and_target())
    assert_close(plain.logits, wanted.logits, **CLOSE)
    assert plain.cross_attentions is plain.loss is None
    where = torch.rand(plain.logits.shape[:2], generator=torch.Generator().manual_seed(4)) < 0.5
    chosen = model(**source_and_target(), position=where).logits
    assert chosen.shape == (int(where.sum()), VOCAB)
    assert_close(chosen, plain.logits[where], **CLOSE)


def test_one_seed_draws_the_weights_that_theirs_draws():
    draw_alike(transformer.EncoderDecoderModel, transformers.EncoderDecoderModel, ours().config)


def test_one_seed_drops_what_theirs_drops():
    model = ours(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2).train()
    other = theirs(model, "sdpa").train()
    made = []
    for each in (model, other):
        torch.manual_seed(4)
        made.append(each(**source_and_target()).logits)
    assert_close(*made, **CLOSE)
    assert not torch.allclose(made[0], model(**source_and_target()).logits)


@pytest.fixture(scope="module")
def learned():
    """A model that has learned the batch by heart."""
    config = ours(hidden_dropout_prob=0.0).config
    torch.manual_seed(0)
    model = transformer.EncoderDecoderModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(60):
        optimizer.zero_grad()
        model(**batch()).loss.backward()
        optimizer.step()
    return model.eval()


def test_every_parameter_but_the_poolers_learns(learned):
    assert learned(**batch()).loss < 0.2
    torch.manual_seed(0)
    first = dict(transformer.EncoderDecoderModel(learned.config).named_parameters())
    still = [name for name, p in learned.named_parameters() if torch.equal(p, first[name])]
    assert still == ["encoder.pooler.dense.weight", "encoder.pooler.dense.bias"]
    assert still == [name for name, p in learned.named_parameters() if not p.requires_grad]


def test_checkpointing_keeps_the_gradient():
    model = ours(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    compute_twice(model, batch(), [*model.encoder.encoder.layer, *model.decoder.bert.encoder["layer"]])


# --- one token after another


@pytest.mark.parametrize("steps", [[1] * 8, [3, 1, 4], [8]], ids=str)
def test_with_a_cache_the_logits_are_those_of_the_whole_target(steps):
    """And the keys of the source are computed once."""
    model = ours()
    given = source_and_target()
    calls = []
    for layer in model.decoder.bert.encoder["layer"]:
        layer.crossattention.self.key.register_forward_hook(lambda *_: calls.append(1))
    target = given.pop("decoder_input_ids")
    wanted = model(**given, decoder_input_ids=target)
    assert wanted.past_key_values is None
    calls.clear()
    encoded = model.encoder(given["input_ids"], given["attention_mask"])
    cache = new_cache()
    made = []
    for part in target.split(steps, dim=1):
        mask = given["attention_mask"]
        step = model(
            attention_mask=mask, encoder_outputs=encoded, decoder_input_ids=part, past_key_values=cache
        )
        made.append(step.logits)
        assert step.past_key_values is cache
    assert_close(torch.cat(made, dim=1), wanted.logits, **CLOSE)
    assert len(calls) == 3
    asked_for = model(**given, decoder_input_ids=target[:, :-1], use_cache=True).past_key_values
    assert asked_for.get_seq_length() == target.shape[1] - 1
    last = model(**given, decoder_input_ids=target[:, -1:], past_key_values=asked_for).logits
    assert_close(last, wanted.logits[:, -1:], **CLOSE)


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}], ids=str)
@pytest.mark.parametrize("use_cache", [True, False])
def test_generate_gives_what_theirs_gives_and_what_was_learned(options, use_cache, learned):
    given = batch()
    labels = given.pop("labels")
    asked = {**given, **options, "max_new_tokens": 12, "use_cache": use_cache}
    found = learned.generate(**asked)
    assert torch.equal(found, theirs(learned).generate(**asked))
    answers = [row[1 : row.index(END) + 1] for row in found.tolist()]
    assert answers == [row[:length] for row, length in zip(labels.tolist(), LENGTHS, strict=True)]


# --- loss


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
@THEIR_LOSS
def test_the_smoothed_loss_is_that_of_transformers_trainer(smoothing):
    model = ours()
    given = batch()
    wanted = transformers.trainer_pt_utils.LabelSmoother(epsilon=smoothing)(
        theirs(model)(**given), given["labels"]
    )
    assert_close(model(**given, label_smoothing=smoothing).loss, wanted, **CLOSE)


# --- saved and opened


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("kind", [transformers.EncoderDecoderModel, transformers.AutoModelForSeq2SeqLM])
def test_what_is_saved_opens_and_generates_without_us(kind, positions, tmp_path):
    model = ours(positions=positions)
    given = batch()
    model.save_pretrained(tmp_path)
    saved = read_json(tmp_path / "config.json")
    assert (saved["model_type"], saved["architectures"]) == ("encoder-decoder", ["EncoderDecoderModel"])
    other, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    del given["labels"]
    for options in ({}, {"num_beams": 4}):
        found = other.generate(**given, max_new_tokens=8, **options)
        assert torch.equal(found, model.generate(**given, max_new_tokens=8, **options))
    wanted = model(**source_and_target()).logits
    assert_close(other(**source_and_target()).logits, wanted, **CLOSE)
    back, report = transformer.EncoderDecoderModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert torch.equal(back(**source_and_target()).logits, wanted)


def test_theirs_opens_here(tmp_path):
    config = EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertConfig(vocab_size=VOCAB, **SIZES),
        transformers.BertConfig(vocab_size=VOCAB, **{**SIZES, "num_hidden_layers": 1}),
        decoder_start_token_id=START,
        pad_token_id=PAD,
    )
    other = transformers.EncoderDecoderModel(config).eval()
    other.save_pretrained(tmp_path)
    model = transformer.EncoderDecoderModel.from_pretrained(tmp_path)
    assert len(model.decoder.bert.encoder["layer"]) == 1
    assert_close(model(**source_and_target()).logits, other(**source_and_target()).logits, **CLOSE)


def test_both_halves_have_the_sinusoids_of_a_bert():
    model = transformer.EncoderDecoderModel(ours(positions="sinusoidal").config)
    wanted = bert.BertModel(model.config.encoder).embeddings.position_embeddings.weight
    for half in (model.encoder, model.decoder.bert):
        assert torch.equal(half.embeddings.position_embeddings.weight, wanted)


# --- what is refused


def test_what_cannot_be_is_refused():
    raises(ValueError, "decoder_input_ids or labels", ours(), batch()["input_ids"])
    for kind, fields in (
        (BertDecoderConfig, {"is_decoder": False}),
        (BertDecoderConfig, {"add_cross_attention": False}),
        (BertConfig, {"is_decoder": True}),
    ):
        raises(ModelError, "is_decoder", kind, **fields)
    model = ours()
    cache = new_cache()
    for _ in range(2):
        model(**source_and_target(), past_key_values=cache)
    raises(
        ModelError,
        "24 tokens, but the model has 20 positions",
        model,
        **source_and_target(),
        past_key_values=cache,
    )
    config = ours().config
    config.decoder.hidden_size = 32
    raises(
        ModelError,
        "hidden_size is 16 in the encoder, 32 in the decoder",
        transformer.EncoderDecoderModel,
        config,
    )
