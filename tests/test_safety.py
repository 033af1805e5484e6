"""Nothing is unpickled, no code that comes with a model runs, and damaged models are messages, not
tracebacks.

Files under a temporary name: what a killed process leaves, two writers at once, and a full disk.
"""

import builtins
import os
import pickle
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import small
import torch
import transformers
from safetensors.torch import load_file, save_file
from small import change_json, largest_file, raised, raises, refused, write_rows
from test_resume import killed

from bertkit.cli.main import main
from bertkit.engine import checkpoint
from bertkit.errors import DataError, ModelError, UserError
from bertkit.files import ABANDONED, read_json, write_json, written_aside
from bertkit.inference.predictor import load, load_as
from bertkit.models.encoder import load_tokenizer, resolve_encoder, save_tokenizer
from bertkit.report.html import write_explanations_page, write_report
from bertkit.sections import ModelSpec
from bertkit.training.train import train
from bertkit.vectors.features import Features


@pytest.fixture
def model(learned, tmp_path):
    """A copy of a trained model, to be spoiled."""
    return shutil.copytree(learned.model, tmp_path / "model")


@pytest.fixture
def marker(tmp_path):
    """The file that is there if anybody's code was run."""
    return tmp_path / "I WAS RUN"


class Malicious:
    """Unpickled, it writes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_the_malicious_pickle_works(marker):
    """Else the tests below would show nothing."""
    pickle.loads(pickle.dumps(Malicious(marker)))
    assert marker.exists()


def bomb(path, marker, *, archive=True):
    """The pickle at `path`, as torch.save writes it or bare."""
    if archive:
        torch.save({"weights": Malicious(marker)}, path)
    else:
        path.write_bytes(pickle.dumps(Malicious(marker)))


# --- pickles


@pytest.mark.parametrize("archive", [True, False])
def test_a_folder_whose_weights_are_a_pickle_is_refused(archive, model, marker, capsys):
    (model / "model.safetensors").unlink()
    for name in "pytorch_model.bin adapter_model.bin training_args.bin model.pt".split():
        bomb(model / name, marker, archive=archive)
    raises(ModelError, "does not unpickle", resolve_encoder, ModelSpec(name=str(model)))
    raises(ModelError, "does not unpickle", load, model)
    refused(capsys, "predict", model, "a text")
    assert not marker.exists()


def test_safetensors_win_over_pickles_beside_them(model, marker):
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        bomb(model / name, marker)
    assert load(model)("a cat")
    assert not marker.exists()


@pytest.mark.parametrize("peft", ["null", pytest.param("{r: 2}", marks=pytest.mark.rare)])
def test_pickles_in_a_checkpoint_are_never_read_on_resume(
    peft, tiny_encoder_with_dropout, tmp_path, marker, monkeypatch
):
    recipe = small.recipe(tmp_path / "data", tiny_encoder_with_dropout, f"peft={peft}")
    stopped = killed(recipe, tmp_path / "run", at=6)  # of 8, after the checkpoint at 4
    (folder,) = checkpoint.checkpoints(stopped.checkpoints / "seed-42")
    names = "optimizer.pt scheduler.pt scaler.pt rng_state.pth rng_state_0.pth training_args.bin".split()
    for name in (*names, "pytorch_model.bin", "adapter_model.bin", "optimizer.bin"):
        bomb(folder / name, marker)
    assert not checkpoint.is_intact(folder)
    monkeypatch.setattr(torch, "load", Mock(side_effect=AssertionError("torch.load was called")))
    assert train(recipe, tmp_path / "run", resume=True).finished
    assert not marker.exists()


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
def evil(model, marker, monkeypatch):
    """A model that brings its own code, and a user who answers yes to whatever is asked."""
    (model / "evil.py").write_text(EVIL.format(marker=str(marker)))
    change_json(model / "config.json", auto_map=AUTO_MAP)
    tokens = {"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]}
    change_json(model / "tokenizer_config.json", auto_map=tokens)
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    return model


def test_a_model_that_brings_code_is_loaded_as_its_plain_class(evil, marker, learned):
    predictor = load(evil)
    assert type(predictor.model).__module__.startswith("transformers.models.bert.")
    assert type(predictor.task.tokenizer).__module__.startswith("transformers.")
    assert predictor("the cat was good") == learned.load()("the cat was good")
    assert not marker.exists()


@pytest.mark.parametrize("ours", [True, False])
def test_an_architecture_that_only_its_code_knows_is_refused(ours, evil, marker):
    config = read_json(evil / "config.json") | {"model_type": "evil", "architectures": ["EvilModel"]}
    if not ours:
        del config["bertkit"]
    write_json(evil / "config.json", config)
    change_json(evil / "tokenizer_config.json", tokenizer_class="EvilTokenizer")
    raised(ModelError, load, evil, task="text-classification")
    raised(ModelError, load_tokenizer, evil)
    assert not marker.exists()


def test_training_runs_no_code_of_its_encoder(evil, marker, tmp_path):
    recipe = small.recipe(tmp_path / "data", evil, "training.max_steps=1")
    run = train(recipe, tmp_path / "run")
    assert not marker.exists()
    assert not list(run.folder.rglob("*.py"))
    (tmp_path / "other").mkdir()
    change_json(evil / "config.json", model_type="evil", architectures=["EvilModel"])
    raised(ModelError, train, recipe, tmp_path / "other")
    assert not marker.exists()


# --- damage, and folders made to do harm

Spoil = Callable[[Path], object]


def cut(name, at):
    """What cuts a file off there."""
    return lambda model: (model / name).write_bytes((model / name).read_bytes()[:at])


def written(name, content):
    return lambda model: (model / name).write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )


def said(**fields):
    """What writes fields of config.json, as somebody else would."""
    return lambda model: change_json(model / "config.json", **fields)


def change(how):
    """What changes the tensors."""

    def spoil(model):
        tensors = load_file(model / "model.safetensors")
        how(tensors)
        save_file(tensors, model / "model.safetensors", {"format": "pt"})

    return spoil


def index(name):
    """What moves the weights out of the folder, and has an index that names them."""

    def spoil(model):
        other = model.parent / "other.safetensors"
        shutil.move(model / "model.safetensors", other)
        where = {"metadata": {}, "weight_map": dict.fromkeys(load_file(other), name)}
        write_json(model / "model.safetensors.index.json", where)

    return spoil


def nested_index(model):
    (model / "sub").mkdir()
    where = dict.fromkeys(load_file(model / "model.safetensors"), "../model.safetensors")
    write_json(model / "sub/model.safetensors.index.json", {"metadata": {}, "weight_map": where})


def lying_header(name, length):
    def spoil(model):
        content = (model / "model.safetensors").read_bytes()
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_bytes(length.to_bytes(8, "little") + content[8:])

    return spoil


def huge_config(model):
    with (model / "config.json").open("wb") as file:
        file.truncate(2**31)  # takes no room on the disk


def pipe(name):
    """What puts a pipe in place of a file, which whoever opens it waits for without end."""

    def spoil(model):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)

    return spoil


def tokenizer(settings, parts=None, *, short=False):
    """What changes the tokenizer's settings, and parts of tokenizer.json. short: whether the model has no
    length.
    """

    def spoil(model):
        change_json(model / "tokenizer_config.json", **settings)
        change_json(model / "tokenizer.json", **(parts or {}))
        config = read_json(model / "config.json")
        if short:
            config["bertkit"]["max_length"] = None
            write_json(model / "config.json", config)

    return spoil


def unusual(settings, parts=None):
    return tokenizer({"tokenizer_class": "PreTrainedTokenizerFast", **settings}, parts)


def normalizers(*steps):
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


TWICE = [{"type": "Replace", "pattern": {"Regex": "(?=a)"}, "content": "a"}] * 40
TENFOLD = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 12
PUNCTUATION = [
    *({"type": "Replace", "pattern": {"String": mark}, "content": f" {mark} "} for mark in "!?.,;:'()-/&%$"),
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
]
CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
TEXT = [{"Sequence": {"id": "A", "type_id": 0}}]


def template(single=None, pair=None):
    """A post-processor that adds [CLS], or [X] of an id that no vocabulary has."""
    ids = {"[CLS]": 2, "[X]": 999_999}
    return {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single or [CLS, *TEXT],
            "pair": pair or [CLS, *TEXT, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                name: {"id": name, "ids": [number], "tokens": [name]} for name, number in ids.items()
            },
        }
    }


def labels(count):
    """The settings of a classifier of so many labels."""
    task = {"name": "text-classification", "labels": [[str(n), str(n)] for n in range(count)]}
    return {"version": "0.1.0", "task": task}


BERT = {"type": "BertProcessing", "sep": ["[SEP]", 10**6], "cls": ["[CLS]", 2]}
CHARSMAP = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="}}
WIDE = {"hidden_size": 9_984, "intermediate_size": 9_984, "num_hidden_layers": 100, "num_attention_heads": 2}
GROUPS = {"num_hidden_groups": 10_000, "inner_group_num": 10_000, "embedding_size": 16}
BACKEND = {"tokenizer_class": "TokenizersBackend"}
DAMAGED = [
    *((cut("model.safetensors", at), "is damaged") for at in (0, 4, 100, -10)),
    *((lying_header("model.safetensors", length), "is damaged") for length in (2**40, 2**63, 10)),
    *((lying_header("2_Dense/model.safetensors", length), "is damaged") for length in (2**40, 2**63, 10)),
    *((written("config.json", text), r"config\.json") for text in ("", "{", "[]", "null", '"text"', b"\xff")),
    (written("config.json", '{"a":' * 200_000 + "1" + "}" * 200_000), "not JSON that can be read: maximum recursion"),
    (huge_config, "2,147 MB"),
    (written("tokenizer.json", "[" * 300_000 + "]" * 300_000), "tokenizer"),
    (cut("tokenizer.json", 100), "tokenizer"),
    (change(lambda tensors: tensors.pop("classifier.weight")), r"classifier\.weight"),
    (said(num_hidden_layers=10**9), "1,000,000,000"),
    (said(num_hidden_layers=-1), "num_hidden_layers is -1"),
    (said(num_hidden_layers="many"), "not a whole number"),
    (said(hidden_size=10**9), "hidden_size is 1,000,000,000"),
    (said(intermediate_size=10**10), "intermediate_size"),
    (said(vocab_size=10**12), "vocab_size"),
    (said(max_position_embeddings=10**12), "max_position_embeddings"),
    (said(num_labels=10**6), "num_labels is 1,000,000"),
    (said(id2label=dict(enumerate("a" * 10_001))), "the length of id2label is 10,001"),
    (said(bertkit=labels(10_001)), "the length of labels is 10,001"),
    (said(num_attention_heads=10**6), "num_attention_heads is 1,000,000"),
    (said(transformers_weights="sub/model.safetensors.index.json"), "transformers_weights names 'sub/model"),
    (said(configuration_files=["config.4.0.0.json"]), "configuration_files names"),
    (said(num_attention_heads=0), "cannot be loaded"),
    (said(num_attention_heads=3), "cannot be loaded"),
    (said(hidden_act="__import__('os').mkdir('x')"), "cannot be loaded"),
    (said(dtype="evil"), "evil"),
    (said(attn_implementation="somebody/kernels"), "does not fetch code"),
    (said(_attn_implementation="somebody/kernels"), "does not fetch code"),
    (said(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}), "quantised"),
    # 24 billion parameters, and 100 million small layers; by names and sizes both are plausible
    (said(**WIDE), "describes a model of more than 250,"),
    (said(**dict.fromkeys(WIDE, 16), model_type="albert", **GROUPS), "describes a model of more than 250,"),
    (change(lambda tensors: tensors.update({f"t{n}": torch.zeros(1) for n in range(20_001)})), r"has 20,\d+ tensors"),
    *((index(name), r"index\.json: names")
      for name in ("../other.safetensors", "/etc/passwd", "pytorch_model.bin", "", "gone.safetensors")),
    (nested_index, r"sub/model.safetensors.index\.json: names '\.\./model"),
    *((pipe(name), f"{re.escape(name)}: is not a regular file")
      for name in "model.safetensors config.json tokenizer.json 1_Pooling/config.json".split()),
    (unusual({"extra_ids": 10**6}), "extra_ids: 1,000,000"),
    (unusual({"extra_special_tokens": [f"<{n}>" for n in range(20_000)]}), "extra_special_tokens: 20,000"),
    (unusual({"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}), "fast_tokenizer_files names"),
    (unusual({}, normalizers(*TWICE)), "more than 256 characters of one"),
    (unusual({}, normalizers({"type": "Sequence", "normalizers": TENFOLD})), "more than 256 characters of one"),
    (unusual({}, normalizers(*[{"type": "Lowercase"}] * 1_001)), "over 1,000 steps"),
    (unusual({}, CHARSMAP), "no tokenizer could be loaded|cannot read a text"),
    (unusual({}, template(pair=[CLS] * 10_000)), "makes 10,000 tokens of the pair `a`, `a`"),
    (unusual(BACKEND, template(single=[CLS] * 10_000)), "makes 10,000 tokens of the text `a`"),
    (unusual({}, {"post_processor": BERT}), "token ids up to 1,000,000"),
    (unusual(BACKEND, template(single=[{"SpecialToken": {"id": "[X]", "type_id": 0}}, *TEXT])), ("ids up "
                                                                                                 "to "
                                                                                                 "999,999")),
    *((tokenizer({"model_max_length": n}, short=True), "it reads at most") for n in (-1, 0, 1, 7)),
    (written("adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": ' '"somebody/else"}'), "adapter"),
]  # fmt: skip


def test_a_damaged_folder_and_one_made_to_do_harm_are_refused(learned, tmp_path, subtests, capfd):
    """As an error with its reason, without a traceback."""
    for number, (spoil, told) in enumerate(DAMAGED):
        with subtests.test(f"{number}: {told}"):
            model = shutil.copytree(learned.model, tmp_path / str(number) / "model")
            spoil(model)
            if told == r"config\.json":
                raises(ModelError, told, load, model, task="text-classification")
            printed = refused(capfd, "predict", model, "a text")
            assert re.search(told, printed)
            assert "Traceback" not in printed
            assert printed.count("error: ") == 1


def test_settings_that_are_damaged_are_a_user_error(model, subtests):
    tasks = [{"name": "nonsense"}, {"name": ["text-classification"]}]
    tasks += [
        {"name": "text-classification", **more}
        for more in ({"kind": "other"}, {"temperature": 0}, {"x": "y"})
    ]
    settings = [{"version": "0.1.0", "task": task} for task in tasks]
    short = {"version": "0.1.0", "task": {"name": "text-classification"}, "max_length": "many"}
    for section in (5, [], "text-classification", {}, {"version": "0.1.0"}, *settings, short):
        said(bertkit=section)(model)
        with subtests.test(str(section)), pytest.raises(UserError, match=r"config\.json|nonsense"):
            load(model)


def test_weights_that_are_not_numbers_give_no_answers(model, tmp_path, capsys):
    for value in (float("nan"), float("inf")):
        change(lambda tensors, value=value: tensors["classifier.weight"].fill_(value))(model)
        raises((ModelError, DataError), "NaN or infinite", load(model), "the cat was good")
    file = write_rows(tmp_path / "a.jsonl", [{"text": "a cat"}])
    refused(capsys, "predict", model, "--input", file, "--output", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_numbers_that_size_no_tensor_are_not_bounded(model):
    answer = load(model)("the cat was good")
    said(rope_theta=250_000, global_rope_theta=1_000_000, rotary_emb_base=500_000)(model)
    notes = {
        "num_train_steps": 10**5,
        "num_tokens_seen": 3 * 10**9,
        "train_batch_size": 65_536,
        "labels": ["a"] * 20_000,
    }
    said(**notes, layers_trained="all")(model)
    tokenizer({}, normalizers(*PUNCTUATION))(model)  # replacements that do not multiply
    assert load(model)("the cat was good") == answer


def test_no_tensor_explains_a_hundred_thousand_labels(model):
    said(id2label=dict(enumerate("a" * 100_001)))(model)
    for more in (torch.zeros(200_000, dtype=torch.int8), torch.zeros(0, 10**9)):
        change(lambda tensors, more=more: tensors.update(more=more))(model)
        raises(ModelError, "the length of id2label is 100,001", load, model)


# --- links

DOORS = (
    load,
    partial(load_as, "text-classification"),
    lambda folder: Features(str(folder)).fit(["a text"]),
    lambda folder: resolve_encoder(ModelSpec(name=str(folder))),
)


@pytest.mark.parametrize(
    "name", "model.safetensors config.json vocab.txt 2_Dense/model.safetensors 2_Dense".split()
)
def test_a_link_out_of_the_folder_is_never_opened(name, model, tmp_path):
    (model / name).parent.mkdir(exist_ok=True)
    outside = tmp_path / "outside"
    if (model / name).is_file():
        shutil.move(model / name, outside)
    else:
        os.mkfifo(outside)  # opening it would wait without end
    (model / name).symlink_to(outside)
    for door in DOORS:
        raises(ModelError, rf"{name}: is a link to a place outside of the model's folder", door, model)


def test_links_within_a_folder_and_to_the_blobs_of_its_cache_are_followed(model, tmp_path):
    answer = load(model)("the cat was good")
    (model / "weights").mkdir()
    shutil.move(model / "model.safetensors", model / "weights/a")
    (model / "model.safetensors").symlink_to("weights/a")
    assert load(model)("the cat was good") == answer
    (tmp_path / "models--me--model/snapshots").mkdir(parents=True)
    cached = shutil.copytree(model, tmp_path / "models--me--model/snapshots" / ("0" * 40))
    blobs = tmp_path / "models--me--model/blobs"
    blobs.mkdir()
    shutil.move(cached / "config.json", blobs / "c")
    (cached / "config.json").symlink_to("../../blobs/c")
    assert load(cached)("the cat was good") == answer
    other = shutil.copytree(tmp_path / "models--me--model", tmp_path / "models--me--other", symlinks=True)
    shutil.move(other / "blobs/c", tmp_path / "c")
    (other / "blobs/c").symlink_to(tmp_path / "c")
    shutil.move(blobs / "c", blobs.parent / "c")  # of the same repository, but no blob
    (cached / "config.json").unlink()
    (cached / "config.json").symlink_to("../../c")
    for folder in (other / "snapshots" / ("0" * 40), cached):
        raises(ModelError, r"config\.json: is a link to a place outside", load, folder)


def test_weights_in_several_files_of_the_folder_are_read(model):
    answer = load(model)("the cat was good")
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    parts = {f"model-{n}.safetensors": list(tensors)[n::2] for n in (0, 1)}
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, model / file, {"format": "pt"})
    where = {name: file for file, names in parts.items() for name in names}
    write_json(model / "model.safetensors.index.json", {"metadata": {}, "weight_map": where})
    again = load(model)("the cat was good")
    # memory may be aligned in another way
    assert again["scores"] == pytest.approx(answer["scores"], abs=1e-6)


def test_a_config_does_not_choose_how_a_model_runs(model):
    answer = load(model)("the cat was good")
    config = read_json(model / "config.json")
    for field in (
        {"return_dict": False},
        {"torchscript": True},
        {"chunk_size_feed_forward": 7},
        {"output_attentions": True},
        {"attn_implementation": "flex_attention"},
        {"_attn_implementation": "flex_attention"},
    ):
        write_json(model / "config.json", config | field)
        predictor = load(model)
        assert predictor("the cat was good") == answer, field
        assert predictor.model.config._attn_implementation == "sdpa", field


DIE = """
import os, signal, sys
from pathlib import Path
from bertkit.files import written_aside
with written_aside(Path(sys.argv[1])) as file:
    file.write("half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_the_file(tmp_path):
    path = tmp_path / "out[1].jsonl"
    assert subprocess.run([sys.executable, "-c", DIE, str(path)], check=False).returncode == -signal.SIGKILL
    (aside,) = tmp_path.iterdir()
    assert aside.read_text() == "half"
    os.utime(aside, (time.time() - ABANDONED - 1,) * 2)
    with written_aside(tmp_path / "other.jsonl") as file:
        file.write("of another file")
    assert len(list(tmp_path.iterdir())) == 2
    with written_aside(path) as file:
        file.write("whole")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "other.jsonl": "of another file",
        "out[1].jsonl": "whole",
    }


def test_a_writer_leaves_the_file_of_another_alone(tmp_path):
    path = tmp_path / "out.jsonl"
    with written_aside(path) as first:
        first.write("first")
        with written_aside(path) as second:
            second.write("second")
        assert path.read_text() == "second"
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"out.jsonl": "first"}


def test_a_file_keeps_its_mode_and_what_is_no_file_is_written_into(tmp_path, learned):
    old = tmp_path / "old.jsonl"
    link = tmp_path / "link.jsonl"
    old.write_text("old")
    link.symlink_to(old)
    for mode in (0o600, 0o444, 0o644):
        old.chmod(mode)
        with written_aside(link) as file:
            assert mode == stat.S_IMODE(next(tmp_path.glob(".*")).stat().st_mode)  # before anything is in it
            file.write(f"new {mode}")
        assert (old.read_text(), stat.S_IMODE(old.stat().st_mode)) == (f"new {mode}", mode)
    assert link.is_symlink()
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": "a cat"}])
    for name, write in {
        "report.html": lambda path: write_report(learned.folder, path),
        "answers.jsonl": lambda path: main(
            ["predict", str(learned.folder), "--input", str(rows), "--output", str(path)]
        ),
        "explained.html": lambda path: write_explanations_page([], "x", path),
    }.items():
        (folder := tmp_path / name).mkdir()
        os.mkfifo(fifo := folder / "fifo")
        (path := folder / name).symlink_to(fifo)
        content = []
        reader = threading.Thread(
            target=lambda file=fifo, to=content: to.append(file.read_text()), daemon=True
        )
        reader.start()
        write(path)
        reader.join(60)
        assert content[0]
        assert fifo.is_fifo()
        assert {each.name for each in folder.iterdir()} == {name, "fifo"}


def test_a_full_disk_names_the_file_or_the_folder_of_a_tokenizer(tmp_path, tiny_encoder):
    path = tmp_path / "out.jsonl"
    with (
        pytest.raises(OSError, match="File too large") as error,
        largest_file(100),
        written_aside(path) as file,
    ):
        file.write("x" * 101)
    assert error.value.filename == str(path)
    assert not list(tmp_path.iterdir())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_encoder)
    with (
        pytest.raises(ModelError, match=f"{tmp_path}: cannot be written: File too large"),
        largest_file(1000),
    ):
        save_tokenizer(tokenizer, tmp_path)
