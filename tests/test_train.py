"""The whole program: from a recipe and files to a run folder that explains itself."""

import dataclasses
import inspect
import json
import logging
import os
import re
import sys
from dataclasses import fields
from importlib.metadata import version
from statistics import fmean, stdev
from unittest.mock import Mock, patch

import pytest
import small
import torch
import transformers
from cases import BY_ID
from finished import finished
from safetensors.torch import load_file, save_file
from small import (
    CHECKPOINTING,
    of_family,
    problems_of,
    raises,
    read_rows,
    refused,
    refuses,
    write_recipe,
    write_rows,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch._dynamo.utils import counters
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    trainer_optimizer,
)
from transformers.integrations import TrackioCallback

from bertkit.engine.arguments import Arguments
from bertkit.engine.training_data import TaskData
from bertkit.errors import DataError, ModelError, RecipeError, UserError
from bertkit.files import read_json, sha256
from bertkit.inference.evaluate import _require_same_hold_out, evaluate
from bertkit.inference.predictor import load
from bertkit.models import encoder as encoders
from bertkit.models import untrusted
from bertkit.recipe.recipe import Recipe, load_recipe
from bertkit.recipe.training_arguments import DECIDED, EARLIER, training_fields
from bertkit.run import Run
from bertkit.sections import Batching, DataSpec
from bertkit.tasks.text_classification import TextClassification
from bertkit.training import finish as program
from bertkit.training.seed import METHODS
from bertkit.training.train import train

KINDS = ("single-label", "multi-label", "regression")


@pytest.fixture(scope="module")
def runs(learned, tiny_encoder, tmp_path_factory):
    """One finished run of each kind."""
    made = {"single-label": learned}
    for kind in KINDS[1:]:
        room = tmp_path_factory.mktemp(kind)
        made[kind] = small.trained(
            room, tiny_encoder, *small.LEARN, "training.num_train_epochs=10", kind=kind
        )
    return made


@pytest.fixture(scope="module")
def lora(tiny_encoder, tmp_path_factory):
    """A finished run with LoRA."""
    room = tmp_path_factory.mktemp("lora")
    return small.trained(room, tiny_encoder, "peft={r: 2}", "training.learning_rate=1e-1")


# --- the run folder


def test_the_run_folder_holds_what_it_promises(runs):
    run = runs["single-label"]
    assert run.finished
    assert run.recipe == load_recipe(run.folder.parent / "small.yaml", small.LEARN)
    there = small.files(run.folder).keys()
    promised = (
        "recipe.yaml results.json environment.json data.json metrics.jsonl model/config.json model/README.md "
    )
    promised += (
        "model/model.safetensors model/tokenizer.json predictions/validation.jsonl predictions/test.jsonl"
    )
    assert there >= {*promised.split()}
    assert not [name for name in there if "writing" in name]
    assert read_json(run.folder / "results.json")["task"]["name"] == "text-classification"
    environment = read_json(run.folder / "environment.json")
    assert environment["versions"]["torch"] == version("torch")
    assert environment["attention"] == "sdpa"
    facts = read_json(run.folder / "data.json")
    assert facts["rows"] == small.SIZES
    assert {len(digest) for digest in facts["fingerprints"].values()} == {64}
    assert facts["findings"]
    card = (run.model / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert str(run.folder.parent) not in card
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert all(event["seed"] == 42 and 0 < event["step"] <= 100 for event in events)
    assert [event["step"] for event in events if "eval_accuracy" in event] == [20, 40, 60, 80, 100]
    assert [event["step"] for event in events if "loss" in event] == [50, 100]


def test_the_attention_that_runs_is_named(tiny_encoder, tmp_path, caplog):
    """Of DeBERTa, which torch's kernels do not compute; with LoRA, whose model is wrapped."""
    caplog.set_level("INFO", "bertkit")
    encoder = of_family("deberta-v2", tiny_encoder, tmp_path / "deberta", max_position_embeddings=64)
    run = small.trained(tmp_path, encoder, "training.max_steps=1", "peft={target_modules: [query_proj]}")
    assert read_json(run.folder / "environment.json")["attention"] == "eager"
    (line,) = [message for message in caplog.messages if " attention, " in message]
    assert re.fullmatch(r"training: eager attention, (fp32|bf16) on cpu", line)


def test_nothing_in_a_run_is_a_pickle(runs, lora):
    for run in (runs["single-label"], lora):
        for path in (path for path in run.folder.rglob("*") if path.is_file()):
            kinds = ".yaml .json .jsonl .csv .safetensors .md .html .sha256".split()
            assert path.suffix in ["", *kinds], path
            assert path.suffix or path.name == ".lock"
            head = path.read_bytes()[:2]
            assert not head.startswith((b"PK", b"\x80")), path  # how torch.save and pickle begin


# --- promise 1


PROBLEMS = {
    "single-label": "single_label_classification",
    "multi-label": "multi_label_classification",
    "regression": "regression",
    "lora": "single_label_classification",
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_last_evaluation_of_the_training_is_the_one_of_the_run(kind, runs, lora):
    run = {**runs, "lora": lora}[kind]
    for split in ("validation", "test"):
        told = run.results["splits"][split]
        assert run.results["seeds"][0]["metrics"][split] == told["metrics"]
        assert json.loads(json.dumps(evaluate(run.folder, split=split))) == {"split": split, **told}
    answers = [row["answer"] for row in read_rows(run.predictions("validation"))]
    numbers = {str(answer.get("scores", answer.get("score"))) for answer in answers}
    assert len(numbers) > 1, "a model that answers every row alike would hide a wrong order"
    assert read_json(run.model / "config.json")["problem_type"] == PROBLEMS[kind]


# --- seeds and determinism


def test_two_seeds_give_mean_and_sd_and_the_better_model(tiny_encoder, tmp_path):
    more = ("seeds=[1, 2]", "training.metric_for_best_model=neg_log_loss")
    run = small.trained(tmp_path, tiny_encoder, *more)
    results = run.results
    assert [outcome["seed"] for outcome in results["seeds"]] == [1, 2]
    values = [outcome["metrics"]["validation"]["neg_log_loss"] for outcome in results["seeds"]]
    assert values[0] != values[1]
    spread = results["over_seeds"]["validation"]["neg_log_loss"]
    assert spread == {"mean": fmean(values), "sd": stdev(values)}
    best = 1 + values.index(max(values))
    assert not (run.checkpoints / f"seed-{best}" / "model").exists()  # it was moved, not copied
    assert (run.checkpoints / f"seed-{3 - best}" / "model/model.safetensors").is_file()
    alone = train(small.recipe(tmp_path, tiny_encoder, f"seeds=[{best}]", more[1]), tmp_path / "alone")
    assert sha256(run.model / "model.safetensors") == sha256(alone.model / "model.safetensors")
    assert results["splits"]["validation"]["metrics"]["neg_log_loss"] == max(values)


# --- choosing


def test_a_metric_of_one_label_can_choose(tiny_encoder, tmp_path):
    results = small.trained(
        tmp_path, tiny_encoder, "training.metric_for_best_model=f1/good", "training.max_steps=1"
    ).results
    assert results["headline"] == "f1/good"
    assert results["over_seeds"]["validation"]["f1/good"]["mean"] == results["seeds"][0]["headline"]
    assert results["seeds"][0]["headline"] == results["splits"]["validation"]["metrics"]["f1/good"]


def test_a_callback_that_ended_one_seed_does_not_end_the_next(tiny_encoder, tmp_path):
    never_better = EarlyStoppingCallback(1, 2.0)
    recipe = small.recipe(tmp_path, tiny_encoder, "seeds=[1, 2]", "training.num_train_epochs=4")
    first, second = train(recipe, tmp_path / "run", callbacks=[never_better]).results["seeds"]
    assert 0 < first["steps"] == second["steps"]


def test_seeds_without_a_defined_headline_are_no_crash(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, "seeds=[1, 2]", "training.max_steps=1", kind="regression")
    same = [row | {"score": 1.0} for row in small.rows("regression", 4)]
    write_rows(tmp_path / "validation.jsonl", same)  # Spearman of a constant is not defined
    run = train(recipe, tmp_path / "run")
    assert run.results["splits"]["validation"]["metrics"]["spearman"] is None
    assert run.finished


# --- validation


def test_without_validation_the_last_model_is_kept_and_scored_on_train(tiny_encoder, tmp_path):
    run = small.trained(tmp_path, tiny_encoder, splits=("train",))
    assert set(run.results["splits"]) == {"train"}
    assert run.results["seeds"][0]["steps"] == 8
    assert run.load().task.options.temperature is None
    assert (run.folder / "predictions/train.jsonl").is_file()
    assert evaluate(run.folder)["metrics"] == run.results["splits"]["train"]["metrics"]


def test_a_test_split_without_targets_is_answered_and_not_scored(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, "training.max_steps=1")
    write_rows(tmp_path / "test.jsonl", [{"text": "a cat"}, {"text": "a good dog"}])
    run = train(recipe, tmp_path / "run")
    assert set(run.results["splits"]) == {"validation"}
    told = read_rows(run.folder / "predictions/test.jsonl")
    assert [row["text"] for row in told] == ["a cat", "a good dog"]
    assert evaluate(run.folder)["split"] == "validation"


def test_a_share_of_train_is_held_out(tiny_encoder, tmp_path):
    more = ("data.validation=0.25", "data.test=4")
    run = small.trained(tmp_path, tiny_encoder, *more, splits=("train",))
    assert read_json(run.folder / "data.json")["rows"] == {"train": 8, "validation": 4, "test": 4}
    for split in ("validation", "test"):
        told = read_rows(run.folder / f"predictions/{split}.jsonl")
        assert sorted(row["label"] for row in told) == "bad bad good good".split()  # stratified
        assert evaluate(run.folder, split=split)["metrics"] == run.results["splits"][split]["metrics"]
    assert evaluate(run.folder)["split"] == "test"
    assert "Scores of test judge the model; validation chose " in (run.folder / "report.html").read_text()
    (tmp_path / "out.csv").write_text("location\ntrain.jsonl:1\n")
    for other in ("seed=1", "test=0.5", "labels=casefold", f"exclude={tmp_path / 'out.csv'}"):
        raises(RecipeError, "that the model was trained on", evaluate, run, overrides=[f"data.{other}"])
    assert evaluate(run.folder, overrides=["data.limit=2"])["rows"] == 2


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, while it captures
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
def test_a_compiled_model_is_saved_as_any_other(tiny_encoder, tmp_path):
    short = ("training.bf16=false", "training.max_steps=2", "training.eval_strategy=no")
    compiled = ("training.torch_compile=true", "training.torch_compile_backend=aot_eager")  # no C++ compiler
    counters.clear()
    run = small.trained(tmp_path, tiny_encoder, *short, *compiled)
    assert counters["stats"]["unique_graphs"]
    other = train(small.recipe(tmp_path, tiny_encoder, *short), tmp_path / "other")
    saved, plain = (load_file(each.model / "model.safetensors") for each in (run, other))
    assert saved.keys() == plain.keys()
    assert all(torch.allclose(saved[name], plain[name], atol=1e-3) for name in plain)


# --- the loss


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        *(
            ("regression", f"task.{key}")
            for key in ("class_weights=auto", "thresholds=0.5", "temperature=2.0")
        ),
        *((kind, "training.label_smoothing_factor=0.1") for kind in ("multi-label", "regression")),
    ],
)
def test_settings_without_effect_on_the_kind_of_the_data_are_refused(kind, setting, tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, setting, kind=kind)
    refuses(RecipeError, rf"{setting.partition('=')[0]}: has no effect with", recipe, tmp_path)


# --- parts of the model


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_the_adapter_is_saved_and_gives_the_merged_models_logits(lora, tiny_encoder):
    from peft import PeftModel

    saved = load_file(lora.folder / "adapter/adapter_model.safetensors")
    assert [name for name in saved if "classifier" in name]
    assert [name for name in saved if "lora_A" in name]
    targets = read_json(lora.folder / "adapter/adapter_config.json")["target_modules"]
    assert targets == sorted(targets)  # peft keeps a set, in an order that differs between processes
    base = AutoModelForSequenceClassification.from_pretrained(tiny_encoder, num_labels=2)
    adapted = PeftModel.from_pretrained(base, f"{lora.folder}/adapter").eval()
    merged = AutoModelForSequenceClassification.from_pretrained(lora.model).eval()
    texts = ["the cat was good", "it was bad"]
    batch = AutoTokenizer.from_pretrained(lora.model)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        assert torch.allclose(adapted(**batch).logits, merged(**batch).logits, atol=1e-5)


# --- what is fitted is saved


def test_thresholds_and_temperature_are_saved_and_used(runs):
    run = runs["multi-label"]
    saved = read_json(run.model / "config.json")["bertkit"]["task"]
    assert saved["temperature"] > 0
    assert set(saved["thresholds"]) == {"good", "bad", "long"}
    predictor = run.load()
    assert predictor.task.options.thresholds == saved["thresholds"]
    assert predictor.task.options.temperature == saved["temperature"]
    for answer in predictor([row["text"] for row in small.rows("multi-label", 8)]):
        given = [name for name, p in answer["scores"].items() if p >= saved["thresholds"][name]]
        assert answer["labels"] == given
    plain = AutoModelForSequenceClassification.from_pretrained(run.model).eval()
    batch = predictor.task.tokenizer(["the cat was good"], return_tensors="pt")
    with torch.inference_mode():
        logits = plain(**batch).logits[0]
    expected = torch.sigmoid(logits / saved["temperature"]).tolist()
    assert list(load(run.folder, precision="fp32")("the cat was good")["scores"].values()) == pytest.approx(
        expected
    )


# --- verified


def test_a_model_that_answers_otherwise_from_disk_does_not_pass(tiny_encoder, tmp_path, monkeypatch):
    real = program.verify

    def tampered(run, predictor, rows):
        file = run.model / "model.safetensors"
        tensors = load_file(file)
        tensors["classifier.bias"] = tensors["classifier.bias"] + torch.tensor([0.5, 0.0])
        save_file(tensors, file, {"format": "pt"})
        real(run, predictor, rows)

    monkeypatch.setattr(program, "verify", tampered)
    said = "a fresh process answers 7 of 7 rows differently"
    more = ("verify=true", "training.max_steps=1")
    raises(ModelError, said, small.trained, tmp_path, tiny_encoder, *more)
    assert not Run(tmp_path / "run").finished


def test_a_fresh_process_finds_the_package_where_this_one_does(tiny_encoder, tmp_path, monkeypatch):
    # without site-packages
    (bare := tmp_path / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(bare))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    # of the working directory, which is not meant
    (tmp_path / "bertkit.py").write_text("raise ZeroDivisionError")
    recipe = small.recipe(
        tmp_path, tiny_encoder, "verify=true", "training.max_steps=1", "training.bf16=false"
    )
    monkeypatch.chdir(tmp_path)
    assert train(recipe, tmp_path / "run").results["verified"]


# --- what is refused


def test_a_finished_run_is_not_trained_again(runs):
    run = runs["single-label"]
    before = sha256(run.folder / "results.json")
    raises(UserError, "holds a finished run", train, run.recipe, run.folder)
    assert train(run.recipe, run.folder, resume=True) == run
    assert sha256(run.folder / "results.json") == before


def test_a_run_killed_after_its_results_is_completed(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, "training.max_steps=1", "checkpoints=none")
    run = train(recipe, tmp_path / "run")
    before = {
        name: sha256(run.folder / name)
        for name in ("results.json", "model/README.md", "model/model.safetensors")
    }
    for name in ("report.html", "mistakes.csv", "model/README.md"):
        (run.folder / name).unlink()
    (run.checkpoints / "seed-42/checkpoint-1").mkdir(parents=True)
    train(recipe, run.folder, resume=True)
    assert {name: sha256(run.folder / name) for name in before} == before
    assert (run.folder / "report.html").is_file()
    assert (run.folder / "mistakes.csv").is_file()
    assert not [*run.checkpoints.glob("seed-*")]


def test_a_folder_that_is_not_empty_and_a_file_are_refused(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path / "here", tiny_encoder)
    error = raises(UserError, "is not empty", train, recipe, tmp_path / "here")
    assert "resume" not in str(error)
    raises(UserError, "is not a run.*\n.*Use a new folder", train, recipe, tmp_path / "here", resume=True)
    (tmp_path / "file").write_text("mine")
    raises(UserError, "is a file", train, recipe, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_findings_that_fail_stop_before_a_model_is_built(tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(TextClassification, "model", Mock(side_effect=AssertionError("a model was built")))
    recipe = small.recipe(tmp_path, tiny_encoder)
    write_rows(tmp_path / "train.jsonl", [row | {"label": "good"} for row in small.rows("single-label", 16)])
    for split in ("validation", "test"):
        write_rows(tmp_path / f"{split}.jsonl", [{"text": "a cat", "label": "good"}])
    raises(DataError, "only one label", train, recipe, tmp_path / "run")


def test_rows_that_are_too_long_are_told_by_their_places(tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(TextClassification, "chunk_size", 4)
    cutting = load(
        train(small.recipe(tmp_path, tiny_encoder, "training.max_steps=1"), tmp_path / "cuts").folder
    )
    recipe = small.recipe(tmp_path, tiny_encoder, "task.overflow=error", "model.max_length=16")
    problems = problems_of(DataError, train, recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    path = tmp_path / "train.jsonl"
    given = [row["text"] for row in small.rows("single-label", 16)]
    long = [number for number, text in enumerate(given) if len(text.split()) > 14]
    assert long[0] < 4 < 12 < long[-1]  # in the first chunk and in the last
    assert [problem.where for problem in problems] == [
        f"{path}:{number + 1}, id row-{number}" for number in long
    ]
    strict = cutting.task.options.model_copy(update={"overflow": "error"})
    task = dataclasses.replace(cutting.task, options=strict, max_length=16)
    assert [
        problem.where
        for problem in problems_of(
            DataError, dataclasses.replace(cutting, task=task), given[1:2] * 5 + given[2:4] + given[:1]
        )
    ] == ["row 6", "row 7"]


BY_TOKENS = (
    "batching={tokens: 20}",
    "~training.per_device_train_batch_size",
    "~training.per_device_eval_batch_size",
)


@pytest.mark.parametrize(
    ("how", "accumulation", "place"),  # with 3, the last step of an epoch has 2 of its 8 micro-batches
    [(("training.per_device_train_batch_size=2",), 3, 16), (BY_TOKENS, 2, 12)],
    ids=["rows", "tokens"],
)
def test_a_loss_that_is_not_a_number_names_the_rows_of_its_step(
    how,
    accumulation,
    place,
    tiny_encoder,
    tmp_path,
    monkeypatch,
):
    seen = []
    loss = TextClassification.loss

    def of(self, outputs, batch, *more):
        seen.append(batch["row"].tolist())
        return loss(self, outputs, batch, *more) * (torch.nan if len(seen) == place else 1)

    monkeypatch.setattr(TextClassification, "loss", of)
    steps = ("training.num_train_epochs=9", f"training.gradient_accumulation_steps={accumulation}")
    recipe = small.recipe(tmp_path, tiny_encoder, *steps, *how)
    error = raises(UserError, "the loss is nan at step 6, over", train, recipe, tmp_path / "run")
    told = str(error).replace(f"{tmp_path}/", "")
    assert "learning_rate" in told
    assert "bf16: false" in told
    rows = sorted({*seen[place - 2], *seen[place - 1]})
    assert ", over " + ", ".join(f"train.jsonl:{row + 1}, id row-{row}" for row in rows) in told


STEPS = ("training.eval_strategy=steps", "training.eval_steps=3")
USED = "training.used_embeddings=true"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["training.metric_for_best_model=f1/awful"], "f1/awful(.|\n)*accuracy"),
        (["training.metric_for_best_model=pearson"], "pearson(.|\n)*accuracy"),
        (["training.metric_for_best_model=mime"], r"no metric 'mime'(.|\n)*bertkit.train\(…, metrics="),
        (
            [*STEPS, "training.save_strategy=steps", "training.save_steps=4"],
            "^training: .*saving steps.*but found 4",
        ),
        ([*STEPS, "training.save_strategy=epoch"], "^training: .*save and eval strategy"),
        (["training.report_to=[tensorbord]"], "'tensorbord'; did you mean 'tensorboard'"),
        (["training.optim=muon", "freeze={layers: 2}"], "no weight matrix of a layer is trained"),
        ([USED, "training.optim=sgd"], "it needs AdamW"),
        ([USED, "peft={r: 2}"], "the word embedding is not trained"),
        ([USED, "freeze={embeddings: true}"], "the word embedding is not trained"),
        ([USED, "training.neftune_noise_alpha=5"], "neftune_noise_alpha changes the word embedding itself"),
        (["training.used_embeddings=1"], "training.used_embeddings: "),
        (["training.fp16=true", "training.use_cpu=true"], "training.fp16: has no effect on a CPU"),
        (["task.thresholds={god: 0.9}"], "task.thresholds.god: not a label; did you mean 'good'"),
    ],
)
def test_what_cannot_be_trained_is_refused_and_nothing_is_written(overrides, said, tiny_encoder, tmp_path):
    raises(RecipeError, said, small.trained, tmp_path, tiny_encoder, *overrides)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "kind", "said"),
    [
        ("early_stopping={patience: 1}", DataError, "no validation split"),
        ("seeds=[1, 2]", DataError, "no validation split"),
        ("training.save_strategy=best", RecipeError, "save_strategy: best needs validation rows"),
    ],
)
def test_what_needs_a_validation_split_is_refused_without_one(override, kind, said, tiny_encoder, tmp_path):
    raises(kind, said, small.trained, tmp_path, tiny_encoder, override, splits=("train", "test"))
    assert not (tmp_path / "run").exists()


def test_more_labels_than_a_model_may_have_are_refused_before_training(tiny_encoder, tmp_path, monkeypatch):
    """By the limit with which a model is loaded."""
    assert encoders.LONGEST == untrusted.LONGEST
    monkeypatch.setattr(encoders, "LONGEST", 1)
    refuses(
        DataError,
        "data: found 2 labels; at most 1 are supported",
        small.recipe(tmp_path, tiny_encoder),
        tmp_path,
    )


def test_the_best_model_is_saved_where_checkpoints_are_rarer_than_evaluations(tiny_encoder, tmp_path):
    odd = """training.eval_strategy=steps training.eval_steps=1
    training.save_steps=2 training.max_steps=3""".split()
    run = small.trained(tmp_path, tiny_encoder, *odd, "training.learning_rate=1e-30", "checkpoints=keep")
    assert run.results["seeds"][0]["best_step"] == 3  # of equal scores the last
    assert {path.name for path in run.checkpoints.glob("seed-*/checkpoint-*")} >= {"checkpoint-1"}


@pytest.mark.parametrize("divide", ["false", "true"])
def test_too_little_memory_says_what_helps(divide, tiny_encoder, tmp_path, monkeypatch):
    """Dividing does not help where there is no room for one row."""
    forward = TextClassification.forward

    def full(self, model, batch):
        if torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, model, batch)

    monkeypatch.setattr(TextClassification, "forward", full)
    recipe = small.recipe(tmp_path, tiny_encoder, f"training.auto_find_batch_size={divide}")
    raises(
        RecipeError,
        r"step 1: CUDA out of memory.*\n.*auto_find_batch_size: true.*neither works for several tasks",
        train,
        recipe,
        tmp_path / "run",
    )


def test_too_little_memory_for_an_evaluation(tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(TaskData, "evaluate", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory.")))
    recipe = small.recipe(tmp_path, tiny_encoder)
    raises(
        RecipeError, r"CUDA out of memory(.|\n)*per_device_eval_batch_size", train, recipe, tmp_path / "run"
    )


def test_too_little_memory_for_a_few_rows(tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(
        METHODS, "contrastive", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory."))
    )
    recipe = small.recipe(tmp_path, tiny_encoder, "task.method=contrastive", "~training")
    said = r"task.method: contrastive: CUDA out of memory.*\n.*model\.max_length"
    raises(RecipeError, said, train, recipe, tmp_path / "run")


def test_answers_come_in_batches_of_the_same_tokens(tiny_encoder, tmp_path):
    given = [
        "batching={tokens: 60}",
        *(f"~training.per_device_{use}_batch_size" for use in ("train", "eval")),
    ]
    run = small.trained(tmp_path, tiny_encoder, *given)
    predictor = load(run.folder)
    assert predictor.batch_size == Batching(tokens=60)
    texts = [small.text(number, number % 2) for number in range(30)]
    by_rows = load(run.folder, batch_size=4)(texts)
    assert [a["label"] for a in predictor(texts)] == [a["label"] for a in by_rows]


# --- a user's own metric

BY_MINE = ("training.metric_for_best_model=eval_mine", "training.num_train_epochs=4")


class Scripted:
    """Returns these numbers at the evaluations of a training, which the one of the untrained model
    precedes.
    """

    def __init__(self, *numbers):
        self.numbers = (0.0, *numbers)
        self.calls = 0

    def compute(self, predictions, references):
        self.calls += 1
        return {"mine": self.numbers[min(self.calls, len(self.numbers)) - 1]}


class Hits:
    """The number of right answers."""

    def compute(self, predictions, references):
        return {"mine": float(sum(p == r for p, r in zip(predictions, references, strict=True)))}


def evaluations(run, name):
    return [event[name] for event in read_rows(run.folder / "metrics.jsonl") if name in event]


def test_a_metric_of_ones_own_chooses_the_checkpoint_and_stops_a_training(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, *BY_MINE, "early_stopping={patience: 1}")
    run = train(recipe, tmp_path / "run", metrics=[Scripted(0.2, 0.9, 0.3, 1.0)])
    assert evaluations(run, "eval_mine") == [0.2, 0.9, 0.3]
    outcome = run.results["seeds"][0]
    best = outcome["best_step"]
    assert best == 2 * outcome["steps"] / 3
    files = (run.checkpoints / f"seed-42/checkpoint-{best}", run.model)
    assert len({sha256(folder / "model.safetensors") for folder in files}) == 1


def test_it_sees_the_answers_of_every_evaluation_and_chooses_the_seed(tiny_encoder, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "bertkit")
    recipe = small.recipe(tmp_path, tiny_encoder, *BY_MINE, "training.learning_rate=1e-2", "seeds=[1, 2]")
    run = train(recipe, tmp_path / "run", metrics=[Hits()])
    assert evaluations(run, "eval_mine") == pytest.approx(
        [10 * each for each in evaluations(run, "eval_accuracy")]
    )
    results = run.results
    assert results["headline"] == "mine"
    for outcome in results["seeds"]:
        scores = outcome["metrics"]["validation"]
        assert outcome["headline"] == scores["mine"] == pytest.approx(10 * scores["accuracy"])
        assert outcome["metrics"]["test"]["mine"] == pytest.approx(7 * outcome["metrics"]["test"]["accuracy"])
    published = results["splits"]["validation"]["metrics"]["mine"]
    assert published == max(outcome["headline"] for outcome in results["seeds"])
    assert (run.folder / "report.html").is_file()
    assert (run.model / "README.md").is_file()
    assert not [record for record in caplog.records if "was written" in record.message]
    assert evaluate(run.folder)["metrics"]["accuracy"] == results["splits"]["test"]["metrics"]["accuracy"]


def test_a_name_that_no_metric_returns_is_refused_before_anything_is_written(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, "training.metric_for_best_model=mime")
    refuses(RecipeError, "no metric 'mime'; did you mean 'mine'", recipe, tmp_path, metrics=[Hits()])


class Named:
    """Returns these, or fails."""

    def __init__(self, **numbers):
        self.numbers = numbers

    def compute(self, predictions, references):
        return self.numbers or {"mine": 1 / 0}


UNSUITED = {
    "fails": ("single-label", [Named()], "Named.compute failed on these answers: division by zero"),
    "no metric": ("single-label", [5], "int.compute failed on these answers: 'int' object has no attribute"),
    "name of ours": (
        "single-label",
        [Named(accuracy=0.123)],
        "returned a score called accuracy, which exists already",
    ),
    "twice": (
        "single-label",
        [Named(mine=1.0), Named(mine=0.0)],
        "returned a score called mine, which exists already",
    ),
    "of regression": (
        "regression",
        [Named(pearson=1.0)],
        "returned a score called pearson, which exists already",
    ),
    **{
        task: (task, [Hits()], "does not support metrics of your own")
        for task in ("similarity-in-batch", "retrieval", "mlm")
    },
}


@pytest.mark.parametrize("name", UNSUITED)
def test_a_metric_that_cannot_be_computed_is_refused_before_the_first_step(name, tiny_encoder, tmp_path):
    case, metrics, said = UNSUITED[name]
    rows = [dict(row) for row in BY_ID[case].rows()]
    settings = {
        "task": BY_ID[case].options,
        "data": {"train": rows, "validation": rows},
        "model": {"name": str(tiny_encoder), "max_length": 32},
    }
    recipe = Recipe(**settings, verify=False, explain=False)
    refuses(UserError, said, recipe, tmp_path, metrics=metrics)
    if name == "name of ours":
        run = finished(BY_ID[case], tiny_encoder, tmp_path / "done/run")
        raises(UserError, said, evaluate, run.folder, rows, metrics=metrics)


@pytest.mark.parametrize("command", ["check", "train"])
def test_the_command_line_says_where_metrics_come_from(command, tiny_encoder, tmp_path, capsys):
    output = ["--output-dir", f"{tmp_path}/run"] if command == "train" else []
    file = write_recipe(tmp_path, tiny_encoder)
    said = refused(capsys, command, file, BY_MINE[0], *output)
    assert "override training.metric_for_best_model=eval_mine" in said
    assert "Metrics of your own are passed from Python: bertkit.train(…, metrics=[…])" in said
    assert not (tmp_path / "run").exists()


# --- report_to

SHORT = """training.max_steps=4 training.logging_steps=1
training.eval_strategy=steps training.eval_steps=2""".split()


def logged(run, seed, name):
    """The values of this name in metrics.jsonl, with their steps."""
    events = read_rows(run.folder / "metrics.jsonl")
    return [(e["step"], pytest.approx(e[name])) for e in events if e["seed"] == seed and name in e]


def test_tensorboard_writes_a_folder_for_each_seed_into_the_run(tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    recipe = small.recipe(tmp_path, tiny_encoder, *SHORT, "training.report_to=tensorboard", "seeds=[1, 2]")
    run = train(recipe, tmp_path / "run")
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ
    assert sorted(path.name for path in (run.folder / "logs").iterdir()) == ["seed-1", "seed-2"]
    for seed in (1, 2):
        events = EventAccumulator(f"{run.folder}/logs/seed-{seed}").Reload()
        for name, ours in (("train/loss", "loss"), ("eval/accuracy", "eval_accuracy")):
            there = [(event.step, event.value) for event in events.Scalars(name)]
            assert len(there) > 1
            assert there == logged(run, seed, ours)
    assert not list(run.checkpoints.rglob("*tfevents*"))
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", f"{tmp_path}/mine")
    other = train(recipe.with_("seeds=[1]"), tmp_path / "other")
    assert list((tmp_path / "mine").iterdir())
    assert not (other.folder / "logs").exists()


# --- every field of TrainingArguments has an effect in a recipe, or is refused with a reason

# those that are to stay
NAMES = {field.name for field in fields(TrainingArguments)}
FIELDS = NAMES & {name if name in NAMES else EARLIER.get(name) for name in training_fields()}
# fields that a plain run does not read -> what reads them in the cases that they are for
READ_ELSEWHERE = {
    f"{CHECKPOINTING}_kwargs": Trainer.train,
    "bf16": TrainingArguments,
    "ddp_timeout": TrainingArguments,
    "optim_target_modules": trainer_optimizer,
    "restore_callback_states_from_checkpoint": Trainer,
    "run_name": TrackioCallback,
    "tf32": TrainingArguments.__post_init__,
    **dict.fromkeys(
        "project trackio_bucket_id trackio_space_id trackio_static_space_id".split(), TrackioCallback
    ),
}
# reads without effect
LOOKING = "__post_init__ _validate_args to_dict _asdict_inner __repr__ __eq__".split()


@pytest.fixture(scope="module")
def run(tiny_encoder, tmp_path_factory):
    """A run folder, and the fields of TrainingArguments that its training read."""
    folder = tmp_path_factory.mktemp("keys")
    read = set()
    real = object.__getattribute__

    def recorded(self, name):
        if name in FIELDS and sys._getframe(1).f_code.co_name not in LOOKING:
            read.add(name)
        return real(self, name)

    keys = "eval_on_start=true logging_first_step=true logging_steps=3 save_total_limit=1".split()
    keys += [
        "include_num_input_tokens_seen=non_padding",
        "dataloader_num_workers=1",
        "dataloader_prefetch_factor=3",
    ]
    with patch.object(Arguments, "__getattribute__", recorded):
        small.trained(folder, tiny_encoder, *(f"training.{key}" for key in keys))
    return folder / "run", read


def test_every_field_is_read_or_refused(run):
    """So that none is accepted in vain. Of those that have no effect in bertkit, DECIDED says why."""
    # those of newer versions are decided too
    assert run[1] | READ_ELSEWHERE.keys() | DECIDED.keys() & NAMES == FIELDS
    assert not READ_ELSEWHERE.keys() & (run[1] | DECIDED.keys())


@pytest.mark.parametrize("name", READ_ELSEWHERE)
def test_what_a_plain_run_does_not_read_is_read_elsewhere(name):
    assert f".{name}" in inspect.getsource(READ_ELSEWHERE[name])


def test_effects_in_the_log(run):
    lines = read_rows(run[0] / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == [1, 3, 6]
    assert next(line["step"] for line in lines if "eval_accuracy" in line) == 0
    assert lines[-1]["num_input_tokens_seen"] > 0
    assert len(list(run[0].rglob("checkpoint-*"))) == 1


SWITCHES = [
    name for name, field in training_fields().items() if name in DECIDED and isinstance(field.default, bool)
]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_default_asks_for_nothing(tmp_path, tiny_encoder, name):
    default = training_fields()[name].default
    assert small.recipe(tmp_path, tiny_encoder, f"training.{name}={json.dumps(default)}")
    other = json.dumps(not default)
    said = f"training.{name}: bertkit decides this"
    raises(RecipeError, said, small.recipe, tmp_path, tiny_encoder, f"training.{name}={other}")


def test_the_best_checkpoint_alone_is_saved(tmp_path, tiny_encoder):
    recipe = small.recipe(tmp_path, tiny_encoder, "training.save_strategy=best")
    assert (recipe.training["eval_strategy"], recipe.training["save_strategy"]) == ("epoch", "best")
    for changes, keys in (
        (["training.eval_steps=3"], ("steps", "steps", 3, 3)),
        (["training.save_steps=3"], ("steps", "steps", 3, 3)),
        (["training.eval_steps=3", "training.save_steps=6"], ("steps", "steps", 3, 6)),
        (["training.eval_steps=3", "training.save_strategy=best"], ("steps", "best", 3, 3)),
        (["training.eval_strategy=no", "training.save_steps=3"], ("no", "steps", 3, 3)),
        (["training.eval_strategy=no", "training.eval_steps=3"], ("no", "steps", 3, 3)),
    ):
        training = small.recipe(tmp_path, tiny_encoder, *changes).training
        names = "eval_strategy save_strategy eval_steps save_steps".split()
        assert tuple(map(training.get, names)) == keys
    never = ["training.save_strategy=best", "training.eval_strategy=no"]
    said = r"training\.save_strategy: best needs evaluations"
    raises(RecipeError, said, load_recipe, tmp_path / "small.yaml", never)


MOVES = {
    "validation": 0.5,
    "test": 5,
    "group_by": "id",
    "seed": 1,
    "splits": {"train": "a"},
    "exclude": "x.csv",
    "relabel": "x.csv",
    "columns": {"text": "t"},
    "labels": "casefold",
    "labels_separator": ";",
    "missing_labels": "ignore",
}


@pytest.mark.parametrize("key", MOVES)
def test_whatever_holds_out_other_rows_is_refused_in_an_evaluation(key):
    trained = DataSpec(source="rows.jsonl", validation=0.25)
    other = trained.model_copy(update={key: MOVES[key]})
    raises(RecipeError, "that the model was trained on", _require_same_hold_out, other, trained)


def test_early_stopping_wants_more_than_its_threshold(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, *BY_MINE, "early_stopping={patience: 1, threshold: 0.1}")
    run = train(recipe, tmp_path / "run", metrics=[Scripted(0.2, 0.25, 0.5, 0.9)])
    assert evaluations(run, "eval_mine") == [0.2, 0.25]


def test_the_last_step_is_kept_on_request_and_said(tiny_encoder, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder, *BY_MINE, "training.load_best_model_at_end=false")
    run = train(recipe, tmp_path / "run", metrics=[Scripted(0.9, 0.2, 0.1, 0.1)])
    assert run.results["seeds"][0]["best_step"] is None
    assert "Ring" not in (run.folder / "report.html").read_text()


def test_no_memory_for_the_model_itself(tiny_encoder, tmp_path, monkeypatch):
    full = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory."))
    monkeypatch.setattr(transformers.Trainer, "_move_model_to_device", full)
    recipe = small.recipe(tmp_path, tiny_encoder)
    message = r"loading the model: CUDA out of memory(.|\n)*smaller encoder"
    raises(RecipeError, message, train, recipe, tmp_path / "run")
