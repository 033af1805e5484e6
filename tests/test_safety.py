"""Nothing is unpickled, no code that comes with a model runs, and damaged models are messages, not tracebacks."""

from __future__ import annotations

import builtins
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from safetensors.torch import load_file, save_file

from bertkit.cli.main import main
from bertkit.engine import checkpoint
from bertkit.errors import DataError, ModelError, RecipeError, UserError
from bertkit.files import read_json, sha256, write_json
from bertkit.inference.features import Features
from bertkit.inference.predictor import load, load_as
from bertkit.models.encoder import load_tokenizer, resolve_encoder
from bertkit.models.untrusted import vet
from bertkit.recipe.recipe import load_recipe
from bertkit.run import Run
from bertkit.sections import ModelSpec
from bertkit.training.train import train


@pytest.fixture(scope="module")
def run(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    room = tmp_path_factory.mktemp("safety")
    return train(small.recipe(room, tiny_encoder), room / "run")


@pytest.fixture
def model(run: Run, tmp_path: Path) -> Path:
    """A copy of a trained model, to be spoiled."""
    return shutil.copytree(run.model, tmp_path / "model")


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The file that is there if anybody's code was run."""
    return tmp_path / "I WAS RUN"


class Malicious:
    """Unpickled, it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def test_the_malicious_pickle_works(marker: Path) -> None:
    """Else the tests below would show nothing."""
    pickle.loads(pickle.dumps(Malicious(marker)))
    assert marker.exists()


def bomb(path: Path, marker: Path, *, archive: bool = True) -> None:
    """The pickle at `path`, as torch.save writes it or bare."""
    if archive:
        torch.save({"weights": Malicious(marker)}, path)
    else:
        path.write_bytes(pickle.dumps(Malicious(marker)))


# --- pickles


@pytest.mark.parametrize("archive", [True, False])
def test_a_folder_whose_weights_are_a_pickle_is_refused(archive: bool, model: Path, marker: Path) -> None:
    (model / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "adapter_model.bin", "training_args.bin", "model.pt"):
        bomb(model / name, marker, archive=archive)
    with pytest.raises(ModelError, match="does not unpickle"):
        resolve_encoder(ModelSpec(name=str(model)))
    with pytest.raises(ModelError, match="does not unpickle"):
        load(model)
    assert main(["predict", str(model), "a text"]) == 2
    assert not marker.exists()


def test_safetensors_win_over_pickles_beside_them(model: Path, marker: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        bomb(model / name, marker)
    assert load(model)("a cat")
    assert not marker.exists()


def unpickled(*_: Any, **__: Any) -> None:
    raise AssertionError("torch.load was called")


@pytest.mark.parametrize("peft", ["null", "{r: 2}"])
def test_pickles_in_a_checkpoint_are_never_read_on_resume(
    peft: str, tiny_encoder_with_dropout: Path, tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertkit.engine.trainer import Trainer

    recipe = small.recipe(tmp_path / "data", tiny_encoder_with_dropout, f"peft={peft}")
    whole = train(recipe, tmp_path / "whole")
    real, steps = Trainer.training_step, iter(range(1, 100))

    def dying(self: Trainer, *given: Any) -> torch.Tensor:
        if next(steps) == 6:  # of 8, after the checkpoint at 4
            raise KeyboardInterrupt
        return real(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", dying)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "run")
    (folder,) = checkpoint.checkpoints(tmp_path / "run" / "checkpoints" / "seed-42")
    names = ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", "rng_state_0.pth", "training_args.bin")
    for name in (*names, "pytorch_model.bin", "adapter_model.bin", "optimizer.bin"):
        bomb(folder / name, marker)
    assert not checkpoint.is_intact(folder)
    monkeypatch.setattr(torch, "load", unpickled)
    resumed = train(recipe, tmp_path / "run", resume=True)
    assert not marker.exists()
    assert sha256(resumed.model / "model.safetensors") == sha256(whole.model / "model.safetensors")


# --- code that comes with a model

EVIL = """
import os
os.mkdir({marker!r})
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer
class EvilConfig(BertConfig): pass
class EvilModel(BertForSequenceClassification): pass
class EvilTokenizer(BertTokenizer): pass
"""
AUTO_MAP = {
    "AutoConfig": "evil.EvilConfig",
    "AutoModel": "evil.EvilModel",
    "AutoModelForSequenceClassification": "evil.EvilModel",
}


@pytest.fixture
def evil(model: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that brings its own code, and a user who answers yes to whatever is asked."""
    (model / "evil.py").write_text(EVIL.format(marker=str(marker)))
    write_json(model / "config.json", read_json(model / "config.json") | {"auto_map": AUTO_MAP})
    tokenizer = read_json(model / "tokenizer_config.json")
    tokens = {"auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]}}
    write_json(model / "tokenizer_config.json", tokenizer | tokens)
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    return model


def test_a_model_that_brings_code_is_loaded_as_its_plain_class(evil: Path, marker: Path, run: Run) -> None:
    predictor = load(evil)
    assert type(predictor.model).__module__.startswith("transformers.models.bert.")
    assert type(predictor.task.tokenizer).__module__.startswith("transformers.")
    assert predictor("the cat was good") == run.load()("the cat was good")
    assert not marker.exists()


@pytest.mark.parametrize("ours", [True, False])
def test_an_architecture_that_only_its_code_knows_is_refused(ours: bool, evil: Path, marker: Path) -> None:
    config = read_json(evil / "config.json") | {"model_type": "evil", "architectures": ["EvilModel"]}
    if not ours:
        del config["bertkit"]
    write_json(evil / "config.json", config)
    tokenizer = read_json(evil / "tokenizer_config.json")
    write_json(evil / "tokenizer_config.json", tokenizer | {"tokenizer_class": "EvilTokenizer"})
    with pytest.raises(ModelError):
        load(evil, task="text-classification")
    with pytest.raises(ModelError):
        load_tokenizer(evil)
    assert not marker.exists()


def test_training_runs_no_code_of_its_encoder(evil: Path, marker: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path / "data", evil, "training.max_steps=1")
    run = train(recipe, tmp_path / "run")
    assert not marker.exists()
    assert not list(run.folder.rglob("*.py"))
    (tmp_path / "other").mkdir()
    config = read_json(evil / "config.json") | {"model_type": "evil", "architectures": ["EvilModel"]}
    write_json(evil / "config.json", config)
    with pytest.raises(ModelError):
        train(recipe, tmp_path / "other")
    assert not marker.exists()


def test_a_recipe_can_not_name_an_object(tiny_encoder: Path, tmp_path: Path, marker: Path) -> None:
    file = small.write_recipe(tmp_path, tiny_encoder)
    text = file.read_text()
    for evil in (f"!!python/object/apply:os.mkdir [{marker}]", f"!!python/object/new:os.mkdir [{marker}]"):
        file.write_text(text + f"expected: {evil}\n")
        with pytest.raises(RecipeError):
            load_recipe(file)
        with pytest.raises(RecipeError):
            load_recipe(file, [f"seeds={evil}"])
    assert not marker.exists()


# --- damage


def cut(file: Path, at: int) -> None:
    file.write_bytes(file.read_bytes()[:at])


@pytest.mark.parametrize("at", [0, 4, 100, -10])
def test_cut_off_weights_are_a_model_error(at: int, model: Path, capsys: Any) -> None:
    cut(model / "model.safetensors", at)
    with pytest.raises(ModelError, match="is damaged"):
        load(model)
    assert main(["predict", str(model), "a text"]) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert told.count("error: ") == 1


def spoiled(model: Path, section: Any) -> None:
    write_json(model / "config.json", read_json(model / "config.json") | {"bertkit": section})


@pytest.mark.parametrize(
    "section",
    [
        5,
        [],
        "text-classification",
        {},
        {"version": "0.1.0"},
        {"version": "0.1.0", "task": {"name": "nonsense"}},
        {"version": "0.1.0", "task": {"name": ["text-classification"]}},
        {"version": "0.1.0", "task": {"name": "text-classification", "kind": "other"}},
        {"version": "0.1.0", "task": {"name": "text-classification", "temperature": 0}},
        {"version": "0.1.0", "task": {"name": "text-classification", "later": "option"}},
        {"version": "0.1.0", "task": {"name": "text-classification"}, "max_length": "many"},
    ],
    ids=str,
)
def test_settings_that_are_damaged_are_a_user_error(section: Any, model: Path) -> None:
    spoiled(model, section)
    with pytest.raises(UserError) as caught:
        load(model)
    assert "config.json" in str(caught.value) or "nonsense" in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', "\xff"])
def test_a_config_that_is_no_object_is_a_model_error(content: str, model: Path) -> None:
    (model / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json"):
        load(model)
    with pytest.raises(ModelError, match=r"config\.json"):
        load(model, task="text-classification")


def change(model: Path, how: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(model / "model.safetensors")
    how(tensors)
    save_file(tensors, model / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers_give_no_answers(value: float, model: Path, tmp_path: Path, capsys: Any) -> None:
    change(model, lambda tensors: tensors["classifier.weight"].fill_(value))
    predictor = load(model)
    with pytest.raises((ModelError, DataError), match="not finite"):
        predictor("the cat was good")
    file = small.write_rows(tmp_path / "a.jsonl", [{"text": "a cat"}])
    assert main(["predict", str(model), "--input", str(file), "--output", str(tmp_path / "out.jsonl")]) == 2
    assert not (tmp_path / "out.jsonl").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_a_model_that_lost_its_head_is_refused(model: Path) -> None:
    change(model, lambda tensors: tensors.pop("classifier.weight"))
    with pytest.raises(ModelError, match=r"classifier\.weight"):
        load(model)


def test_a_tokenizer_that_is_damaged_is_a_model_error(model: Path) -> None:
    cut(model / "tokenizer.json", 100)
    with pytest.raises(ModelError, match="tokenizer"):
        load(model)


# --- a folder made to do harm


def said(model: Path, **fields: Any) -> None:
    """Fields of config.json, as somebody else wrote them."""
    write_json(model / "config.json", read_json(model / "config.json") | fields)


MANY_LABELS = {
    "version": "0.1.0",
    "task": {"name": "text-classification", "labels": [[str(n), str(n)] for n in range(10_001)]},
}


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("num_hidden_layers", 10**9, "1,000,000,000"),
        ("num_hidden_layers", -1, "num_hidden_layers is -1"),
        ("num_hidden_layers", "many", "not a whole number"),
        ("hidden_size", 10**9, "hidden_size is 1,000,000,000"),
        ("intermediate_size", 10**10, "intermediate_size"),
        ("vocab_size", 10**12, "vocab_size"),
        ("max_position_embeddings", 10**12, "max_position_embeddings"),
        ("num_labels", 10**6, "num_labels is 1,000,000"),
        ("id2label", dict(enumerate("a" * 10_001)), "the length of id2label is 10,001"),
        ("bertkit", MANY_LABELS, "the length of labels is 10,001"),
        ("num_attention_heads", 10**6, "num_attention_heads is 1,000,000"),
        ("transformers_weights", "sub/model.safetensors.index.json", "transformers_weights names 'sub/model"),
        ("configuration_files", ["config.4.0.0.json"], "configuration_files names"),
        ("num_attention_heads", 0, "cannot be loaded"),
        ("num_attention_heads", 3, "cannot be loaded"),
        ("hidden_act", "__import__('os').mkdir('x')", "cannot be loaded"),
        ("dtype", "evil", "evil"),
        ("attn_implementation", "somebody/kernels", "does not fetch code"),
        ("_attn_implementation", "somebody/kernels", "does not fetch code"),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantised"),
    ],
)
def test_a_config_that_asks_for_too_much_is_refused(field: str, value: Any, told: str, model: Path) -> None:
    said(model, **{field: value})
    with pytest.raises(ModelError, match=told):
        load(model)


def test_numbers_that_size_no_tensor_are_not_bounded(model: Path) -> None:
    answer = load(model)("the cat was good")
    said(model, rope_theta=250_000, global_rope_theta=1_000_000, rotary_emb_base=500_000, training_tokens=10**12)
    assert load(model)("the cat was good") == answer


@pytest.mark.parametrize("wide", [torch.zeros(200_000, dtype=torch.int8), torch.zeros(0, 10**9)], ids=["wide", "empty"])
def test_no_tensor_explains_a_hundred_thousand_labels(wide: torch.Tensor, model: Path) -> None:
    change(model, lambda tensors: tensors.update(more=wide))
    said(model, id2label=dict(enumerate("a" * 100_001)))
    with pytest.raises(ModelError, match="the length of id2label is 100,001"):
        load(model)


# --- links

DOORS: dict[str, Callable[[Path], Any]] = {
    "load": load,
    "load with a task": partial(load_as, "text-classification"),
    "features": lambda folder: Features(str(folder)).fit(["a text"]),
    "train": lambda folder: resolve_encoder(ModelSpec(name=str(folder))),
}


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "vocab.txt", "2_Dense/model.safetensors", "2_Dense"]
)
@pytest.mark.parametrize("door", DOORS)
def test_a_link_out_of_the_folder_is_never_opened(name: str, door: str, model: Path, tmp_path: Path) -> None:
    (model / name).parent.mkdir(exist_ok=True)
    outside = tmp_path / "outside"
    if (model / name).is_file():
        shutil.move(model / name, outside)
    else:
        os.mkfifo(outside)  # opening it would wait without end
    (model / name).symlink_to(outside)
    with pytest.raises(ModelError, match=rf"{name}: is a link to a place outside of the model's folder"):
        DOORS[door](model)


def test_links_within_a_folder_and_to_the_blobs_of_its_cache_are_followed(model: Path, tmp_path: Path) -> None:
    answer = load(model)("the cat was good")
    (model / "weights").mkdir()
    shutil.move(model / "model.safetensors", model / "weights" / "a")
    (model / "model.safetensors").symlink_to("weights/a")
    assert load(model)("the cat was good") == answer
    (tmp_path / "models--me--model" / "snapshots").mkdir(parents=True)
    cached = shutil.copytree(model, tmp_path / "models--me--model" / "snapshots" / ("0" * 40))
    blobs = tmp_path / "models--me--model" / "blobs"
    blobs.mkdir()
    shutil.move(cached / "config.json", blobs / "c")
    (cached / "config.json").symlink_to("../../blobs/c")
    assert load(cached)("the cat was good") == answer
    other = shutil.copytree(tmp_path / "models--me--model", tmp_path / "models--me--other", symlinks=True)
    shutil.move(other / "blobs" / "c", tmp_path / "c")
    (other / "blobs" / "c").symlink_to(tmp_path / "c")
    with pytest.raises(ModelError, match=r"config\.json: is a link to a place outside"):
        load(other / "snapshots" / ("0" * 40))


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "pytorch_model.bin", "", "gone.safetensors"])
def test_an_index_names_files_of_its_own_folder_only(name: str, model: Path) -> None:
    shutil.move(model / "model.safetensors", model.parent / "other.safetensors")
    names = load_file(model.parent / "other.safetensors")
    write_json(model / "model.safetensors.index.json", {"metadata": {}, "weight_map": dict.fromkeys(names, name)})
    with pytest.raises(ModelError, match=r"index\.json: names"):
        load(model)


def test_weights_in_several_files_of_the_folder_are_read(model: Path) -> None:
    answer = load(model)("the cat was good")
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    parts = {f"model-{n}.safetensors": list(tensors)[n::2] for n in (0, 1)}
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, model / file, {"format": "pt"})
    where = {name: file for file, names in parts.items() for name in names}
    write_json(model / "model.safetensors.index.json", {"metadata": {}, "weight_map": where})
    again = load(model)("the cat was good")
    assert again["scores"] == pytest.approx(answer["scores"], abs=1e-6)  # memory may be aligned in another way


@pytest.mark.parametrize("name", ["model.safetensors", "2_Dense/model.safetensors"])
@pytest.mark.parametrize("length", [2**40, 2**63, 10])
def test_a_header_that_lies_is_refused(length: int, name: str, model: Path) -> None:
    content = (model / "model.safetensors").read_bytes()
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_bytes(length.to_bytes(8, "little") + content[8:])
    with pytest.raises(ModelError, match="is damaged"):
        load(model)


def test_values_nested_without_end_and_huge_files_are_refused(model: Path) -> None:
    config = (model / "config.json").read_bytes()
    (model / "config.json").write_text('{"a":' * 200_000 + "1" + "}" * 200_000)
    with pytest.raises(ModelError, match="nested"):
        load(model)
    with (model / "config.json").open("wb") as file:
        file.truncate(2**31)  # takes no room on the disk
    with pytest.raises(ModelError, match="2,147 MB"):
        load(model)
    (model / "config.json").write_bytes(config)
    (model / "tokenizer.json").write_text("[" * 300_000 + "]" * 300_000)
    with pytest.raises(ModelError, match="tokenizer"):
        load(model)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "1_Pooling/config.json"])
def test_a_pipe_is_refused_before_anybody_waits_for_it(name: str, model: Path) -> None:
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    with pytest.raises(ModelError, match=f"{re.escape(name)}: is not a regular file"):
        vet(model)


def test_an_index_in_a_subfolder_names_files_of_its_own_folder_only(model: Path) -> None:
    (model / "sub").mkdir()
    where = dict.fromkeys(load_file(model / "model.safetensors"), "../model.safetensors")
    write_json(model / "sub" / "model.safetensors.index.json", {"metadata": {}, "weight_map": where})
    with pytest.raises(ModelError, match=r"sub/model.safetensors.index\.json: names '\.\./model"):
        vet(model)


def test_a_config_of_more_parameters_than_its_weights_is_refused(model: Path) -> None:
    """By names and sizes it is plausible: the product is 24 billion parameters, or 100 million small layers."""
    wide = {"hidden_size": 9_984, "intermediate_size": 9_984, "num_hidden_layers": 100, "num_attention_heads": 2}
    said(model, **wide)
    with pytest.raises(ModelError, match="describes a model of more than 250,"):
        load(model)
    groups = {"num_hidden_groups": 10_000, "inner_group_num": 10_000, "embedding_size": 16}
    said(model, **dict.fromkeys(wide, 16), model_type="albert", **groups)
    with pytest.raises(ModelError, match="describes a model of more than 250,"):
        load(model)


def test_more_tensors_than_any_model_has_are_refused(model: Path) -> None:
    save_file({f"t{n}": torch.zeros(1) for n in range(20_001)}, model / "model.safetensors")
    with pytest.raises(ModelError, match="has 20,001 tensors"):
        load(model)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("return_dict", False),
        ("torchscript", True),
        ("chunk_size_feed_forward", 7),
        ("output_attentions", True),
        ("attn_implementation", "flex_attention"),
        ("_attn_implementation", "flex_attention"),
    ],
)
def test_a_config_does_not_choose_how_a_model_runs(name: str, value: Any, model: Path) -> None:
    answer = load(model)("the cat was good")
    said(model, **{name: value})
    predictor = load(model)
    assert predictor("the cat was good") == answer
    assert predictor.model.config._attn_implementation == "sdpa"


TWICE = [{"type": "Replace", "pattern": {"Regex": "(?=a)"}, "content": "a"}] * 40
TENFOLD = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 12
PUNCTUATION = [
    *({"type": "Replace", "pattern": {"String": mark}, "content": f" {mark} "} for mark in "!?.,;:'()-/&%$"),
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
]
CLS, TEXT = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, [{"Sequence": {"id": "A", "type_id": 0}}]


def template(single: list[Any] | None = None, pair: list[Any] | None = None) -> dict[str, Any]:
    """A post-processor that adds [CLS], or [X] of an id that no vocabulary has."""
    ids = {"[CLS]": 2, "[X]": 999_999}
    return {
        "type": "TemplateProcessing",
        "single": single or [CLS, *TEXT],
        "pair": pair or [CLS, *TEXT, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in ids.items()},
    }


DEMANDING = {
    "a million tokens": ({"extra_ids": 10**6}, {}, "extra_ids: 1,000,000"),
    "listed tokens": ({"extra_special_tokens": [f"<{n}>" for n in range(20_000)]}, {}, "extra_special_tokens: 20,000"),
    "other file": ({"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}, {}, "fast_tokenizer_files names"),
    "doubling": ({}, {"normalizer": {"type": "Sequence", "normalizers": TWICE}}, "more than 256 characters of one"),
    "nested": (
        {},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": TENFOLD}]}},
        "more than 256 characters of one",
    ),
    "without end": (
        {},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 1_001}},
        "over 1,000 steps",
    ),
    "damaged table": (
        {},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}},
        "no tokenizer could be loaded|cannot read a text",
    ),
    "special tokens": (
        {},
        {"post_processor": template(pair=[CLS] * 10_000)},
        "makes 10,000 tokens of the pair `a`, `a`",
    ),
    "special tokens of single texts": (
        {"tokenizer_class": "TokenizersBackend"},
        {"post_processor": template(single=[CLS] * 10_000)},
        "makes 10,000 tokens of the text `a`",
    ),
    "unknown tokens": (
        {},
        {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 10**6], "cls": ["[CLS]", 2]}},
        "token ids up to 1,000,000",
    ),
    "unknown tokens of single texts": (
        {"tokenizer_class": "TokenizersBackend"},
        {"post_processor": template(single=[{"SpecialToken": {"id": "[X]", "type_id": 0}}, *TEXT])},
        "token ids up to 999,999",
    ),
}


@pytest.mark.parametrize("kind", DEMANDING)
def test_a_tokenizer_that_asks_for_too_much_is_refused(kind: str, model: Path, capfd: Any) -> None:
    settings, parts, told = DEMANDING[kind]
    generic = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    write_json(model / "tokenizer_config.json", read_json(model / "tokenizer_config.json") | generic)
    write_json(model / "tokenizer.json", read_json(model / "tokenizer.json") | parts)
    with pytest.raises(ModelError, match=told):
        load(model)
    assert main(["predict", str(model), "a text"]) == 2


def test_replacements_that_do_not_multiply_are_allowed(model: Path) -> None:
    parts = {"normalizer": {"type": "Sequence", "normalizers": PUNCTUATION}}
    write_json(model / "tokenizer.json", read_json(model / "tokenizer.json") | parts)
    assert load_tokenizer(model)


@pytest.mark.parametrize(
    "setting",
    ["task.n_best=1000000000", "task.max_answer_length=1000000000", f"task.query_prefix={'a' * 10_001}"],
    ids=lambda setting: setting[:20],
)
def test_a_recipe_that_asks_for_too_much_is_refused(setting: str) -> None:
    name = "retrieval-quickstart" if "prefix" in setting else "qa-quickstart"
    with pytest.raises(RecipeError, match="must be at most"):
        load_recipe(name, [setting])


@pytest.mark.parametrize("longest", [-1, 0, 1, 7])
def test_a_tokenizer_that_reads_next_to_nothing_is_refused(longest: int, model: Path) -> None:
    settings = read_json(model / "tokenizer_config.json")
    write_json(model / "tokenizer_config.json", settings | {"model_max_length": longest})
    changed = read_json(model / "config.json")
    changed["bertkit"]["max_length"] = None
    write_json(model / "config.json", changed)
    with pytest.raises(ModelError, match="it reads at most"):
        load(model)


def test_an_adapter_which_names_another_model_is_refused(model: Path) -> None:
    write_json(model / "adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "somebody/else"})
    with pytest.raises(ModelError, match="adapter"):
        load(model)


def test_results_hold_no_secrets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither tokens from the environment nor the user's name beyond the paths of the recipe."""
    text = json.dumps(read_json(run.folder / "environment.json"))
    for name, value in os.environ.items():
        if any(word in name for word in ("TOKEN", "SECRET", "PASSWORD", "KEY")) and len(value) > 5:
            assert value not in text
