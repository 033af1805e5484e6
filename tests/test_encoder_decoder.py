"""What surrounds a task, for a model of two stacks: parts that are trained, students, reports, hostile
folders.
"""

import pytest
import torch
import transformers
from cases import BY_ID, TEXTS, encoder
from conftest import WORDS, build_encoder
from small import change_json, raises, stir
from starlette.testclient import TestClient

from bertkit.encoding.padding import Collator
from bertkit.errors import ModelError
from bertkit.files import read_json
from bertkit.inference.predictor import load
from bertkit.models.trained_parts import freeze, merged, with_lora
from bertkit.sections import Freeze, Lora
from bertkit.serving.app import model_app
from bertkit.serving.limits import Limits
from bertkit.serving.service import Service

CASE = BY_ID["text-to-text"]
BATCH = {
    "input_ids": torch.tensor([[2, 6, 7, 20, 3]]),
    "attention_mask": torch.ones(1, 5, dtype=torch.long),
    "decoder_input_ids": torch.tensor([[2, 8, 9]]),
}


@pytest.fixture
def model(tmp_path):
    """Both halves from one BERT of three layers, with large random weights."""
    folder = build_encoder(tmp_path / "bert", layers=3)
    made = CASE.task(folder).model(encoder(folder)).eval()
    stir(made.parameters())
    return made


def saved(model, folder):
    """The model as transformers' own class loads it."""
    model.save_pretrained(folder)
    again, report = transformers.EncoderDecoderModel.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return again.eval()


# --- the parts that are trained


def test_both_halves_are_frozen_but_not_the_attention_between_them(model):
    before = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    freeze(model, Freeze(embeddings=True, layers=2))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad} - before
    stacks = ("encoder.", "decoder.bert.")
    wanted = tuple(
        f"{half}{part}." for half in stacks for part in ("embeddings", "encoder.layer.0", "encoder.layer.1")
    )
    names = [name for name, _ in model.named_parameters()]
    assert frozen == {name for name in names if name.startswith(wanted) and "crossattention" not in name}
    assert len(frozen) == 2 * (5 + 2 * 16)


def test_lora_adapts_both_halves_and_trains_what_is_between_them(model, tmp_path):
    adapted = with_lora(model, Lora(r=2), {}).eval()
    trained = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    # query and value, three layers, two halves
    assert len([name for name in trained if "lora_A" in name]) == 2 * 3 * 2
    whole = {name for name in trained if "lora_" not in name}
    assert all(
        ".crossattention.modules_to_save." in name or ".cls.modules_to_save." in name for name in whole
    )
    assert len(whole) == 3 * 10 + 5  # and not the projection, which is tied to the embeddings
    stir(trained.values())
    wanted = adapted(**BATCH).logits
    again = saved(merged(adapted), tmp_path / "merged")
    torch.testing.assert_close(again(**BATCH).logits, wanted, rtol=1e-4, atol=1e-4)


# --- models that bertkit has not trained


def theirs(folder, seed=0, **ids):
    """Two BERTs as transformers' users save them, in a folder with a tokenizer. ids: of their config."""
    bert = str(build_encoder(folder))
    made = transformers.EncoderDecoderModel.from_encoder_decoder_pretrained(bert, bert)
    torch.manual_seed(seed)
    stir(made.parameters())
    made.config.update(ids)
    made.save_pretrained(folder)
    # before transformers 5.15, what is made of two models has tensors that hold nothing
    return transformers.EncoderDecoderModel.from_pretrained(folder).eval()


START_AND_END = {"decoder_start_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}


@pytest.mark.parametrize("ids", [{}, START_AND_END, {**START_AND_END, "decoder_start_token_id": 4}])
def test_two_berts_saved_by_transformers_answer_as_there(ids, tmp_path):
    other = theirs(tmp_path, **ids)
    predictor = load(tmp_path, task="text2text-generation", precision="fp32")
    inputs = predictor.task.tokenizer(
        TEXTS[:3], return_tensors="pt", padding=True, return_token_type_ids=False
    )
    wanted = other.generate(**inputs, **{**START_AND_END, **ids}, max_new_tokens=64)
    texts = predictor.task.tokenizer.batch_decode(wanted, skip_special_tokens=True)
    assert all(texts)
    assert [answer["generated_text"] for answer in predictor(TEXTS[:3])] == texts

    with TestClient(model_app(Service(predictor, "two", Limits()))) as client:
        assert client.post("/", json={"inputs": TEXTS[0]}).json()[0]["generated_text"] == texts[0]


def test_of_the_generation_settings_of_another_program_only_the_ids_are_kept(tmp_path):
    theirs(tmp_path, **START_AND_END)
    more = {
        "early_stopping": True,
        "length_penalty": 2.0,
        "min_length": 30,
        "do_sample": True,
        "num_beams": 4,
    }
    change_json(tmp_path / "generation_config.json", **more)
    made = CASE.task(tmp_path).model(encoder(tmp_path))
    made.save_pretrained(tmp_path / "again")  # refuses beams' settings without beams
    kept = read_json(tmp_path / "again" / "generation_config.json")
    assert not {*more} & {*kept} - {"num_beams"}
    assert START_AND_END.items() <= kept.items()


def test_two_berts_saved_by_transformers_are_trained_further(tmp_path):
    theirs(tmp_path)
    task = CASE.task(tmp_path)
    model = task.model(encoder(tmp_path))
    batch = Collator.of(task.tokenizer, task.padding)(task.examples(task.features(CASE.rows()), range(8)))
    loss = task.loss(task.forward(model, batch), batch)
    loss.backward()
    assert loss.isfinite()
    again = saved(model, tmp_path / "again")
    assert {name: getattr(again.generation_config, name) for name in START_AND_END} == START_AND_END


@pytest.mark.parametrize("kind", [transformers.BertModel, transformers.BertForPreTraining])
def test_the_pooler_of_a_bert_is_kept(kind, tmp_path):
    folder = build_encoder(tmp_path)
    kind.from_pretrained(folder).save_pretrained(folder)
    model = CASE.task(folder).model(encoder(folder))
    pooler = transformers.BertModel.from_pretrained(folder).pooler
    assert all(
        torch.equal(own, model.encoder.pooler.get_parameter(name)) for name, own in pooler.named_parameters()
    )


def test_a_bert_alone_and_halves_that_are_no_berts_of_one_vocabulary_are_refused(tmp_path):
    folder = build_encoder(tmp_path)
    transformers.BertForMaskedLM.from_pretrained(folder).save_pretrained(folder)
    raises(
        ModelError, "is a BERT alone: its decoder would be random", load, folder, task="text2text-generation"
    )
    folder = build_encoder(tmp_path / "pair")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    bert = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes)
    for decoder, what in (
        (
            transformers.RobertaConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes),
            "contains a roberta",
        ),
        (
            transformers.BertConfig(vocab_size=99, max_position_embeddings=64, **sizes),
            "reads 42 tokens and writes 99",
        ),
    ):
        config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(bert, decoder)
        transformers.EncoderDecoderModel(config).save_pretrained(folder)
        raises(ModelError, what, load, folder, task="text2text-generation")
