"""A new ModernBERT from a config: what is configured, and that everything works with it that works with a new
BERT.
"""

import json
import re
from pathlib import Path

import pytest
import small
import torch
import transformers
from cases import BY_ID, CASES, DOCUMENTS, DRAWN, SETTINGS, encoder, every
from small import problems_of, raises, write_rows
from test_pretraining import recipe_of
from test_task_contract import ask, numbers, reopened
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    ModernBertConfig,
    PreTrainedTokenizerFast,
)

from bertkit.errors import ModelError
from bertkit.exports.program import export
from bertkit.files import read_json
from bertkit.inference.predictor import load
from bertkit.models.encoder import resolve_encoder, save_tokenizer
from bertkit.models.new_config import _DEFAULTS, MODERNBERT, PRESETS, BertConfig
from bertkit.sections import ModelSpec
from bertkit.tasks import get_task
from bertkit.tasks.base import prepare
from bertkit.training.seed import save
from bertkit.training.train import train

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
FIELDS = {"model_type": "modernbert", **SMALL}


def new(tokenizer, config=FIELDS, max_length=32):
    return resolve_encoder(ModelSpec(config=config, tokenizer=str(tokenizer), max_length=max_length))


def fields_of(tokenizer, config, max_length=32):
    return new(tokenizer, config, max_length).config.to_dict()


# --- the config


@pytest.mark.parametrize(
    ("preset", "millions"),
    [
        ("modernbert-base", 149),
        ("modernbert-large", 395),
        ("ettin-17m", 17),
        ("ettin-32m", 32),
        ("ettin-68m", 68),
    ],
)
def test_published_sizes_have_their_parameters(preset, millions):
    """With the vocabulary of both families."""
    with torch.device("meta"):
        model = AutoModelForMaskedLM.from_config(ModernBertConfig(vocab_size=50_368, **MODERNBERT[preset]))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert abs(parameters - millions * 10**6) < 10**6  # some are published rounded, some cut off


@pytest.mark.parametrize("size", "tiny mini small medium".split())
def test_other_sizes_are_those_of_the_bert_of_that_name(size, tiny_encoder):
    ours = fields_of(tiny_encoder, f"modernbert-{size}")
    bert = fields_of(tiny_encoder, size)
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"):
        assert ours[name] == bert[name]
    assert ours["intermediate_size"] == 1.5 * ours["hidden_size"]


def test_fields_and_defaults_are_those_of_transformers(tiny_encoder):
    """But for the length, and the rotary base of the global layers, which is ModernBERT's before it was
    extended.
    """
    stock = ModernBertConfig(**SMALL).to_dict()
    ours = fields_of(tiny_encoder, FIELDS)
    changed = {name for name in ours if ours[name] != stock.get(name) and not name.endswith("token_id")}
    assert changed == {
        "vocab_size",
        "max_position_embeddings",
        "rope_parameters",
        "global_attn_every_n_layers",
    }
    assert ours["rope_parameters"]["full_attention"]["rope_theta"] == 10_000
    assert ours["rope_parameters"]["sliding_attention"] == stock["rope_parameters"]["sliding_attention"]
    assert ours["global_attn_every_n_layers"] == 3
    own = fields_of(
        tiny_encoder,
        {
            **FIELDS,
            "global_rope_theta": 160_000.0,
            "local_rope_theta": 500.0,
            "global_attn_every_n_layers": 2,
        },
    )
    assert {kind: each["rope_theta"] for kind, each in own["rope_parameters"].items()} == {
        "full_attention": 160_000,
        "sliding_attention": 500,
    }
    assert own["layer_types"] == ["full_attention", "sliding_attention"]
    assert own["max_position_embeddings"] == 512
    assert fields_of(tiny_encoder, FIELDS, 1024)["max_position_embeddings"] == 1024


def test_ids_are_those_of_the_tokenizer(tiny_encoder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder)
    ours = fields_of(tiny_encoder, FIELDS)
    expected = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        **dict.fromkeys(("cls_token_id", "bos_token_id"), tokenizer.cls_token_id),
        **dict.fromkeys(("sep_token_id", "eos_token_id"), tokenizer.sep_token_id),
    }
    assert {name: ours[name] for name in expected} == expected
    assert all(ours[name] < len(tokenizer) for name in ours if name.endswith("_token_id"))


def test_the_page_has_these_presets_and_fields():
    page = (Path(__file__).parent.parent / "docs/bert.md").read_text().partition("## ModernBERT")[2]
    page = page.partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.M)
    sizes = "num_hidden_layers hidden_size num_attention_heads intermediate_size".split()
    assert {name: [*map(int, cells)] for name, *cells in rows} == {
        n: [p[s] for s in sizes] for n, p in MODERNBERT.items()
    }
    assert set(re.findall(r"^\| `([a-z_]+)` \| `", page, re.M)) <= {*ModernBertConfig().to_dict(), *_DEFAULTS}


def test_a_preset_may_be_changed_and_is_named(tiny_encoder):
    changed = fields_of(tiny_encoder, {"preset": "ettin-17m", "num_hidden_layers": 4, "local_attention": 64})
    assert (changed["model_type"], changed["num_hidden_layers"], changed["local_attention"]) == (
        "modernbert",
        4,
        64,
    )
    names = [new(tiny_encoder, preset).name for preset in ("mini", "modernbert-mini", "ettin-17m")]
    assert names == ["a new BERT-mini", "a new modernbert-mini", "a new ettin-17m"]
    assert new(tiny_encoder).name == "a new modernbert"
    assert new(tiny_encoder, SMALL).name == "a new BERT"
    assert isinstance(new(tiny_encoder, {"model_type": "bert", "preset": "tiny"}).config, BertConfig)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model_type": "modernbrt"}, "'bert' or 'modernbert', found 'modernbrt'; did you mean 'modernbert'"),
        (
            {"model_type": "modernbert", "preset": "mini"},
            f"no preset 'mini'\n    Choose one of {', '.join(MODERNBERT)}\\.$",
        ),
        (
            {"model_type": "bert", "preset": "bert-mini"},
            f"mean 'mini'\\?\n    Choose one of {', '.join(PRESETS)}\\.$",
        ),
        ({**FIELDS, "num_attention_heads": 16}, "model.config: .*must be even"),
        ({**FIELDS, "hidden_size": -1}, "model.config: .*"),
        ({**FIELDS, "hidden_activation": "gleu"}, "model.config: .*gleu"),
        ({**FIELDS, "norm_bias": "no"}, "model.config: .*norm_bias"),
        ({**FIELDS, "norm": "pre"}, "norm: unknown key"),
        (
            {"preset": "modernbert-bse", "local_atention": 3, "vocab_size": 9, "cls_token_id": 1},
            (
                "(?s)(?=.*'modernbert-base')(?=.*'local_attention')(?=.*vocab_size: )(?=.*cls_token_id: "
                ".*tokenizer)"
            ),
        ),
    ],
)
def test_what_is_wrong_is_said(given, said, tiny_encoder):
    raises(ModelError, said, new, tiny_encoder, given)


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("bert-mni", "mini"),
        ("bert-mini", "mini"),  # as it is named: a new BERT-mini
        ("modernbert-mimi", "modernbert-mini"),
        ("mni", "mini"),
        ("etin-17m", "ettin-17m"),
        ("other", ""),
    ],
)
def test_a_misspelt_preset_may_be_of_any_architecture(misspelt, meant, tiny_encoder):
    for given, wrong in (
        (misspelt, []),
        ({"preset": misspelt, "hiden_size": 1}, ["model.config.hiden_size"]),
    ):
        first, *others = problems_of(ModelError, new, tiny_encoder, given)
        assert first.what == f"no preset {misspelt!r}" + (f"; did you mean {meant!r}?" if meant else "")
        assert first.fix == f"Choose one of {', '.join([*PRESETS, *MODERNBERT])}."
        assert [problem.where for problem in others] == wrong


# --- tasks

FINE = [case for case in CASES if case.options["name"] != "text2text-generation"]


@every([DRAWN[0], *FINE])
def test_every_task_starts_from_it_and_is_opened_again(case, tiny_encoder, tmp_path):
    kind = get_task(case.options["name"])
    fresh = new(tiny_encoder)
    tokenizer = fresh.tokenizer(split_special_tokens=not kind.schema.special_tokens)
    options = kind.Options.model_validate(case.options)
    task = prepare(kind, options, tokenizer, case.max_length, case.rows(), case.class_names)
    assert "token_type_ids" not in {*task.features(case.rows()).column_names, *tokenizer.model_input_names}
    torch.manual_seed(0)
    model = task.model(fresh)
    again = reopened(task, model, tmp_path / "model")
    assert again.task.tokenizer.model_input_names == tokenizer.model_input_names
    rows = case.rows().to_list()
    if case.options["name"] != "pretraining":
        for one, other in zip(again(rows), ask(task, model)(rows), strict=True):
            assert numbers(one) == pytest.approx(numbers(other), abs=1e-5)
    told, report = AutoModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    weights = dict(model.base_model.named_parameters())
    assert all(torch.equal(p, weights[name]) for name, p in told.named_parameters())


def test_it_is_saved_with_the_names_of_transformers_4_too(tiny_encoder, tmp_path):
    task = CASES[0].task(tiny_encoder)
    model = task.model(new(tiny_encoder, {**FIELDS, "local_rope_theta": 500.0}))
    save(model, task, tmp_path / "model", SETTINGS)
    save_tokenizer(PreTrainedTokenizerFast.from_pretrained(tiny_encoder), tmp_path, model.config)
    saved = read_json(tmp_path / "model/config.json") | read_json(tmp_path / "tokenizer_config.json")
    assert (saved["local_rope_theta"], saved["global_rope_theta"]) == (500, 10_000)
    assert saved["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert saved["model_input_names"] == ["input_ids", "attention_mask"]


def test_pairs_and_targets_are_refused(tiny_encoder):
    raises(
        ModelError,
        "'a new modernbert' is a modernbert, which has no head for pairs",
        DRAWN[1].task(tiny_encoder).model,
        new(tiny_encoder),
    )
    raises(
        ModelError,
        r"model\.config: 'a new modernbert' is a modernbert, but both halves .*\n    Use a BERT's",
        BY_ID["text-to-text"].task(tiny_encoder).model,
        new(tiny_encoder),
    )


def test_its_first_weights_are_those_of_transformers(tiny_encoder):
    task = DRAWN[0].task(tiny_encoder)
    fresh = new(tiny_encoder)
    torch.manual_seed(3)
    ours = task.model(fresh).state_dict()
    torch.manual_seed(3)
    theirs = transformers.ModernBertForMaskedLM(fresh.config).state_dict()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


# --- the whole program


@pytest.fixture(scope="module")
def recipe(tiny_encoder, tmp_path_factory):
    room = tmp_path_factory.mktemp("pretraining")
    words = "task.nsp=none task.whole_word=true verify=false explain=false".split()
    return recipe_of(room, tiny_encoder, {**FIELDS, "mlp_dropout": 0.1}).with_(*words)


@pytest.fixture(scope="module")
def pretrained(recipe, tmp_path_factory):
    return train(recipe, tmp_path_factory.mktemp("pretrained") / "run")


def test_plain_transformers_fills_its_masks(pretrained):
    ours = load(pretrained.folder, precision="fp32")("the [MASK] was good .")["masks"][0]
    theirs = transformers.pipeline("fill-mask", str(pretrained.model), device="cpu")(
        "the [MASK] was good .", top_k=5
    )
    assert [each["id"] for each in ours] == [each["token"] for each in theirs]
    assert [each["score"] for each in ours] == pytest.approx([each["score"] for each in theirs], rel=1e-4)
    tokenizer = AutoTokenizer.from_pretrained(pretrained.model)
    assert [*tokenizer("the cat", "a dog")] == ["input_ids", "attention_mask"]


def test_on_to_a_task_and_a_student(pretrained, tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, pretrained.model, "training.max_steps=1")
    tuned = train(recipe, tmp_path / "tuned")
    assert (tuned.folder / "report.html").is_file()
    student = ("~model.name", f"model.config={json.dumps(FIELDS)}", f"model.tokenizer={tiny_encoder}")
    assert train(
        recipe.with_(*student, f"distillation.teacher={tuned.folder}"), tmp_path / "student"
    ).finished


@pytest.mark.rare
def test_its_exported_graph_gives_its_answers(tiny_encoder, tmp_path):
    task = CASES[0].task(tiny_encoder)
    save(task.model(new(tiny_encoder)), task, tmp_path / "model", SETTINGS)
    rows = [{"text": text, "label": task.names[number % 2]} for number, text in enumerate(DOCUMENTS)]
    export(tmp_path / "model", tmp_path / "onnx", data=write_rows(tmp_path / "rows.jsonl", rows))
    answers = [load(tmp_path / name)(DOCUMENTS) for name in ("model", "onnx")]
    assert [*map(numbers, answers[1])] == [pytest.approx(each, abs=1e-3) for each in map(numbers, answers[0])]


def test_a_student_that_reads_less_than_its_teacher_is_refused(tiny_encoder, tmp_path):
    """A BERT reads token types, which the batches of a ModernBERT do not have."""
    case = CASES[0]
    task = case.task(tiny_encoder)
    save(task.model(encoder(tiny_encoder)), task, tmp_path / "model", SETTINGS)
    student = ("~model.name", f"model.config={json.dumps(FIELDS)}", f"model.tokenizer={tiny_encoder}")
    recipe = small.recipe(tmp_path, tiny_encoder, *student, f"distillation.teacher={tmp_path / 'model'}")
    raises(
        ModelError,
        "it reads token_type_ids, which the student does not read",
        train,
        recipe,
        tmp_path / "run",
    )
