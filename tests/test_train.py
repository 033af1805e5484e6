"""The whole program: from a recipe and files to a run folder that explains itself."""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
import small
import torch
from safetensors.torch import load_file, save_file
from torch._dynamo.utils import counters
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline, set_seed

from bertkit.errors import DataError, ModelError, RecipeError, UserError
from bertkit.files import read_json, sha256
from bertkit.inference.evaluate import evaluate
from bertkit.inference.predictor import load
from bertkit.models import encoder as encoders
from bertkit.models import untrusted
from bertkit.models.encoder import resolve_encoder
from bertkit.recipe.recipe import load_recipe
from bertkit.run import Run
from bertkit.sections import Batching
from bertkit.tasks.text_classification import TextClassification
from bertkit.training import finish as program
from bertkit.training.job import prepare
from bertkit.training.train import train

KINDS = ("single-label", "multi-label", "regression")


@pytest.fixture(scope="module")
def runs(learned: Run, tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One finished run of each kind."""
    made = {"single-label": learned}
    for kind in KINDS[1:]:
        room = tmp_path_factory.mktemp(kind)
        made[kind] = train(
            small.recipe(room, tiny_encoder, *small.LEARN, "training.num_train_epochs=10", kind=kind), room / "run"
        )
    return made


@pytest.fixture(scope="module")
def lora(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with LoRA."""
    room = tmp_path_factory.mktemp("lora")
    return train(small.recipe(room, tiny_encoder, "peft={r: 2}", "training.learning_rate=1e-1"), room / "run")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def losses(run: Run) -> list[float]:
    return [event["loss"] for event in small.read_rows(run.folder / "metrics.jsonl") if "loss" in event]


def weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.model / "model.safetensors")


# --- the run folder


def test_the_run_folder_holds_what_it_promises(runs: dict[str, Run]) -> None:
    run = runs["single-label"]
    assert run.finished
    assert run.recipe == load_recipe(run.folder.parent / "small.yaml", small.LEARN)
    there = files(run.folder)
    assert there >= {
        "recipe.yaml",
        "results.json",
        "environment.json",
        "data.json",
        "metrics.jsonl",
        "model/config.json",
        "model/model.safetensors",
        "model/tokenizer.json",
        "model/README.md",
        "predictions/validation.jsonl",
        "predictions/test.jsonl",
    }
    assert not [name for name in there if "writing" in name]
    assert read_json(run.folder / "results.json")["task"]["name"] == "text-classification"
    versions = read_json(run.folder / "environment.json")["versions"]
    assert versions["torch"] == version("torch")
    facts = read_json(run.folder / "data.json")
    assert facts["rows"] == small.SIZES
    assert {len(digest) for digest in facts["fingerprints"].values()} == {64}
    assert facts["findings"]
    card = (run.model / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert str(run.folder.parent) not in card


def test_nothing_in_a_run_is_a_pickle(runs: dict[str, Run], lora: Run) -> None:
    for run in (runs["single-label"], lora):
        for path in (path for path in run.folder.rglob("*") if path.is_file()):
            assert path.suffix in (".yaml", ".json", ".jsonl", ".csv", ".safetensors", ".md", ".html", ""), path
            assert path.suffix or path.name == ".lock"
            head = path.read_bytes()[:2]
            assert not head.startswith((b"PK", b"\x80")), path  # how torch.save and pickle begin


# --- promise 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_evaluation_of_the_training_is_the_one_of_the_run(kind: str, runs: dict[str, Run]) -> None:
    run = runs[kind]
    for split in ("validation", "test"):
        told = run.results["splits"][split]
        assert run.results["seeds"][0]["metrics"][split] == told["metrics"]
        assert json.loads(json.dumps(evaluate(run.folder, split=split))) == {"split": split, **told}
    answers = [row["answer"] for row in small.read_rows(run.predictions("validation"))]
    numbers = {str(answer.get("scores", answer.get("score"))) for answer in answers}
    assert len(numbers) > 1, "a model that answers every row alike would hide a wrong order"


def test_a_file_without_targets_is_named(runs: dict[str, Run], tmp_path: Path) -> None:
    file = small.write_rows(tmp_path / "rows.jsonl", [{"text": "a cat", "gold": "good"}])
    for source in (runs["single-label"].folder, runs["single-label"].model):
        with pytest.raises(DataError, match=r"rows\.jsonl: no column `label`.*\n.*data\.columns\.COLUMN=NAME"):
            evaluate(source, data=file)
        assert evaluate(source, data=file, overrides=["data.columns.label=gold"])["rows"] == 1


# --- plain transformers


def test_transformers_loads_the_model_and_names_the_labels(runs: dict[str, Run]) -> None:
    run = runs["single-label"]
    model = AutoModelForSequenceClassification.from_pretrained(run.model)
    assert sorted(model.config.id2label.values()) == ["bad", "good"]
    assert type(model).__module__.startswith("transformers.")
    texts = [row["text"] for row in small.rows("single-label", 8)]
    theirs = pipeline("text-classification", model=str(run.model))(texts)
    ours = run.load()(texts)
    assert [answer["label"] for answer in theirs] == [answer["label"] for answer in ours]
    assert {answer["label"] for answer in theirs} == {"good", "bad"}


def test_transformers_sees_what_kind_of_targets_there_are(runs: dict[str, Run]) -> None:
    kinds = {kind: read_json(run.model / "config.json")["problem_type"] for kind, run in runs.items()}
    assert kinds == {
        "single-label": "single_label_classification",
        "multi-label": "multi_label_classification",
        "regression": "regression",
    }


# --- seeds and determinism


def test_two_seeds_give_mean_and_sd_and_the_better_model(tiny_encoder: Path, tmp_path: Path) -> None:
    more = ("seeds=[1, 2]", "training.metric_for_best_model=neg_log_loss")
    run = train(small.recipe(tmp_path, tiny_encoder, *more), tmp_path / "run")
    results = run.results
    assert [outcome["seed"] for outcome in results["seeds"]] == [1, 2]
    values = [outcome["metrics"]["validation"]["neg_log_loss"] for outcome in results["seeds"]]
    assert values[0] != values[1]
    spread = results["over_seeds"]["validation"]["neg_log_loss"]
    assert spread == {"mean": fmean(values), "sd": stdev(values)}
    best = 1 + values.index(max(values))
    assert not (run.checkpoints / f"seed-{best}" / "model").exists()  # it was moved, not copied
    assert (run.checkpoints / f"seed-{3 - best}" / "model" / "model.safetensors").is_file()
    alone = train(small.recipe(tmp_path, tiny_encoder, f"seeds=[{best}]", more[1]), tmp_path / "alone")
    assert sha256(run.model / "model.safetensors") == sha256(alone.model / "model.safetensors")
    assert results["splits"]["validation"]["metrics"]["neg_log_loss"] == max(values)


# --- choosing


def test_early_stopping_stops(tiny_encoder: Path, tmp_path: Path) -> None:
    still = ("training.learning_rate=1e-12", "training.num_train_epochs=9", "early_stopping={patience: 2}")
    run = train(small.recipe(tmp_path, tiny_encoder, *still), tmp_path / "run")
    assert run.results["seeds"][0]["steps"] == 3 * 4  # one evaluation that is the best, two without a gain
    assert run.results["seeds"][0]["best_step"] == 4


def rising_and_falling(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on accuracy rises from evaluation to evaluation, and macro recall falls."""
    real, calls = TextClassification.grade, iter(range(1, 1000))

    def grade(self: TextClassification, answers: Any, rows: Any) -> Any:
        call, graded = next(calls), real(self, answers, rows)
        scores = {**graded.scores, "accuracy": call / 1000, "recall_macro": 1 - call / 1000}
        rest = {name: getattr(graded, name) for name in ("calibrated", "intervals", "details")}
        found = SimpleNamespace(scores=scores, **rest)
        found.after_fit = lambda: found
        return found

    monkeypatch.setattr(TextClassification, "grade", grade)


@pytest.mark.parametrize(("metric", "best"), [(None, 12), ("eval_recall_macro", 4)])
def test_the_checkpoint_is_chosen_by_the_metric_that_was_named(
    metric: str | None, best: int, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rising_and_falling(monkeypatch)
    named = [f"training.metric_for_best_model={metric}"] if metric else []
    recipe = small.recipe(tmp_path, tiny_encoder, "training.num_train_epochs=3", *named)
    run = train(recipe, tmp_path / "run")
    outcome = run.results["seeds"][0]
    assert (outcome["steps"], outcome["best_step"]) == (12, best)
    chosen = load_file(run.checkpoints / "seed-42" / f"checkpoint-{best}" / "model.safetensors")
    assert all(torch.equal(tensor, chosen[name]) for name, tensor in weights(run).items())
    assert run.results["headline"] == (metric or "accuracy").removeprefix("eval_")


def test_a_metric_of_one_label_can_choose(tiny_encoder: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, "training.metric_for_best_model=f1/good", "training.max_steps=1")
    results = train(recipe, tmp_path / "run").results
    assert results["headline"] == "f1/good"
    assert results["seeds"][0]["headline"] == results["splits"]["validation"]["metrics"]["f1/good"]


@pytest.mark.parametrize("metric", ["f1/awful", "pearson"])
def test_a_metric_that_these_targets_do_not_have_is_refused(metric: str, tiny_encoder: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, f"training.metric_for_best_model={metric}")
    with pytest.raises(RecipeError, match=f"{metric}(.|\n)*accuracy"):
        train(recipe, tmp_path / "run")


def test_seeds_without_a_defined_headline_are_no_crash(tiny_encoder: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, "seeds=[1, 2]", "training.max_steps=1", kind="regression")
    same = [row | {"score": 1.0} for row in small.rows("regression", 4)]
    small.write_rows(tmp_path / "validation.jsonl", same)  # Spearman of a constant is not defined
    run = train(recipe, tmp_path / "run")
    assert run.results["splits"]["validation"]["metrics"]["spearman"] is None
    assert run.finished


# --- validation


def test_without_validation_the_last_model_is_kept_and_scored_on_train(tiny_encoder: Path, tmp_path: Path) -> None:
    run = train(small.recipe(tmp_path, tiny_encoder, splits=("train",)), tmp_path / "run")
    assert set(run.results["splits"]) == {"train"}
    assert run.results["seeds"][0]["steps"] == 8
    assert run.load().task.options.temperature is None
    assert (run.folder / "predictions" / "train.jsonl").is_file()
    assert evaluate(run.folder)["metrics"] == run.results["splits"]["train"]["metrics"]


def test_what_needs_a_validation_split_says_so(tiny_encoder: Path, tmp_path: Path) -> None:
    for needs in ("early_stopping={patience: 1}", "seeds=[1, 2]"):
        recipe = small.recipe(tmp_path, tiny_encoder, needs, splits=("train", "test"))
        with pytest.raises(DataError, match="no validation split"):
            train(recipe, tmp_path / "run")


def test_a_test_split_without_targets_is_answered_and_not_scored(tiny_encoder: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, "training.max_steps=1")
    small.write_rows(tmp_path / "test.jsonl", [{"text": "a cat"}, {"text": "a good dog"}])
    run = train(recipe, tmp_path / "run")
    assert set(run.results["splits"]) == {"validation"}
    told = small.read_rows(run.folder / "predictions" / "test.jsonl")
    assert [row["text"] for row in told] == ["a cat", "a good dog"]
    assert evaluate(run.folder)["split"] == "validation"


def test_a_share_of_train_is_held_out(tiny_encoder: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, "data.validation=0.25", splits=("train",))
    run = train(recipe, tmp_path / "run")
    assert read_json(run.folder / "data.json")["rows"] == {"train": 12, "validation": 4}
    told = small.read_rows(run.folder / "predictions" / "validation.jsonl")
    assert sorted(row["label"] for row in told) == ["bad", "bad", "good", "good"]  # stratified
    assert evaluate(run.folder)["metrics"] == run.results["splits"]["validation"]["metrics"]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, while it captures
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
def test_a_compiled_model_is_saved_as_any_other(tiny_encoder: Path, tmp_path: Path) -> None:
    short = ("training.bf16=false", "training.max_steps=2", "training.eval_strategy=no")
    compiled = ("training.torch_compile=true", "training.torch_compile_backend=aot_eager")  # no C++ compiler
    counters.clear()
    run = train(small.recipe(tmp_path, tiny_encoder, *short, *compiled), tmp_path / "run")
    assert counters["stats"]["unique_graphs"]
    other = train(small.recipe(tmp_path, tiny_encoder, *short), tmp_path / "other")
    saved, plain = (load_file(each.model / "model.safetensors") for each in (run, other))
    assert saved.keys() == plain.keys()
    assert all(torch.allclose(saved[name], plain[name], atol=1e-3) for name in plain)


# --- the loss


def first_loss(encoder: Path, folder: Path, *more: str) -> tuple[Run, torch.Tensor, torch.Tensor]:
    """A run of one step over all of 16 rows, 10 good and 6 bad; and the logits and labels it started from."""
    whole = ("training.per_device_train_batch_size=16", "training.bf16=false")
    recipe = small.recipe(folder, encoder, "training.logging_steps=1", "training.max_steps=1", *whole, *more)
    given = small.rows("single-label", 12)
    given += [row for row in small.rows("single-label", 8) if row["label"] == "good"]
    small.write_rows(folder / "train.jsonl", given)
    run = train(recipe, folder / "run")
    task, _ = prepare(recipe, resolve_encoder(recipe.model))
    texts = [row["text"] for row in given]
    batch = AutoTokenizer.from_pretrained(run.model)(
        texts, truncation=True, max_length=32, padding=True, return_tensors="pt"
    )
    set_seed(42)
    with torch.inference_mode():
        logits = task.model(resolve_encoder(recipe.model)).eval()(**batch).logits
    return run, logits, torch.tensor([task.names.index(row["label"]) for row in given])


def test_class_weights_are_balanced_and_used(tiny_encoder: Path, tmp_path: Path) -> None:
    run, logits, labels = first_loss(tiny_encoder, tmp_path, "task.class_weights=auto")
    weights = read_json(run.model / "config.json")["bertkit"]["task"]["class_weights"]
    assert weights == pytest.approx({"good": 16 / (2 * 10), "bad": 16 / (2 * 6)})
    plain = torch.nn.functional.cross_entropy(logits, labels)
    balanced = torch.nn.functional.cross_entropy(logits, labels, weight=torch.tensor([16 / 12, 16 / 20]))
    assert abs(float(plain - balanced)) > 1e-4
    assert losses(run)[0] == pytest.approx(float(balanced), abs=2e-6)


def test_label_smoothing_is_in_the_loss(tiny_encoder: Path, tmp_path: Path) -> None:
    run, logits, labels = first_loss(tiny_encoder, tmp_path, "training.label_smoothing_factor=0.3")
    expected = [torch.nn.functional.cross_entropy(logits, labels, label_smoothing=s) for s in (0.3, 0.1)]
    assert losses(run)[0] == pytest.approx(float(expected[0]), abs=2e-6)
    assert abs(float(expected[0] - expected[1])) > 1e-5


# --- parts of the model


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_the_adapter_is_saved_and_gives_the_merged_models_logits(lora: Run, tiny_encoder: Path) -> None:
    from peft import PeftModel

    saved = load_file(lora.folder / "adapter" / "adapter_model.safetensors")
    assert [name for name in saved if "classifier" in name]
    assert [name for name in saved if "lora_A" in name]
    targets = read_json(lora.folder / "adapter" / "adapter_config.json")["target_modules"]
    assert targets == sorted(targets)  # peft keeps a set, in an order that differs between processes
    base = AutoModelForSequenceClassification.from_pretrained(tiny_encoder, num_labels=2)
    adapted = PeftModel.from_pretrained(base, str(lora.folder / "adapter")).eval()
    merged = AutoModelForSequenceClassification.from_pretrained(lora.model).eval()
    texts = ["the cat was good", "it was bad"]
    batch = AutoTokenizer.from_pretrained(lora.model)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        assert torch.allclose(adapted(**batch).logits, merged(**batch).logits, atol=1e-5)


def test_a_reloaded_lora_model_scores_as_it_did_in_training(lora: Run) -> None:
    results = lora.results
    for split in ("validation", "test"):
        assert results["seeds"][0]["metrics"][split] == results["splits"][split]["metrics"]
    assert evaluate(lora.folder, split="test")["metrics"] == results["splits"]["test"]["metrics"]


# --- what is fitted is saved


def test_thresholds_and_temperature_are_saved_and_used(runs: dict[str, Run]) -> None:
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
    assert list(load(run.folder, precision="fp32")("the cat was good")["scores"].values()) == pytest.approx(expected)


# --- verified


def test_a_model_that_answers_otherwise_from_disk_does_not_pass(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = program.verify

    def tampered(run: Run, predictor: Any, rows: Any) -> None:
        file = run.model / "model.safetensors"
        tensors = load_file(file)
        tensors["classifier.bias"] = tensors["classifier.bias"] + torch.tensor([0.5, 0.0])
        save_file(tensors, file, {"format": "pt"})
        real(run, predictor, rows)

    monkeypatch.setattr(program, "verify", tampered)
    with pytest.raises(ModelError, match="a fresh process answers 7 of 7 rows differently"):
        train(small.recipe(tmp_path, tiny_encoder, "verify=true", "training.max_steps=1"), tmp_path / "run")
    assert not Run(tmp_path / "run").finished


# --- what is refused


def test_a_finished_run_is_not_trained_again(runs: dict[str, Run]) -> None:
    run = runs["single-label"]
    before = sha256(run.folder / "results.json")
    with pytest.raises(UserError, match="holds a finished run"):
        train(run.recipe, run.folder)
    assert train(run.recipe, run.folder, resume=True) == run
    assert sha256(run.folder / "results.json") == before


def test_a_run_killed_after_its_results_is_completed(tiny_encoder: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path, tiny_encoder, "training.max_steps=1", "checkpoints=none")
    run = train(recipe, tmp_path / "run")
    before = {
        name: sha256(run.folder / name) for name in ("results.json", "model/README.md", "model/model.safetensors")
    }
    for name in ("report.html", "mistakes.csv", "model/README.md"):
        (run.folder / name).unlink()
    (run.checkpoints / "seed-42" / "checkpoint-1").mkdir(parents=True)
    train(recipe, run.folder, resume=True)
    assert {name: sha256(run.folder / name) for name in before} == before
    assert (run.folder / "report.html").is_file()
    assert (run.folder / "mistakes.csv").is_file()
    assert not [*run.checkpoints.glob("seed-*")]


def test_a_folder_that_is_not_empty_and_a_file_are_refused(tiny_encoder: Path, tmp_path: Path) -> None:
    recipe = small.recipe(tmp_path / "here", tiny_encoder)
    with pytest.raises(UserError, match="is not empty"):
        train(recipe, tmp_path / "here")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is not a folder"):
        train(recipe, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def no_model(*_: Any, **__: Any) -> None:
    raise AssertionError("a model was built")


def test_findings_that_fail_stop_before_a_model_is_built(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextClassification, "model", no_model)
    recipe = small.recipe(tmp_path, tiny_encoder)
    small.write_rows(tmp_path / "train.jsonl", [row | {"label": "good"} for row in small.rows("single-label", 16)])
    for split in ("validation", "test"):
        small.write_rows(tmp_path / f"{split}.jsonl", [{"text": "a cat", "label": "good"}])
    with pytest.raises(DataError, match="nothing to learn"):
        train(recipe, tmp_path / "run")


def test_rows_that_are_too_long_are_told_by_their_places(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextClassification, "chunk_size", 4)
    cutting = load(train(small.recipe(tmp_path, tiny_encoder, "training.max_steps=1"), tmp_path / "cuts").folder)
    recipe = small.recipe(tmp_path, tiny_encoder, "task.overflow=error", "model.max_length=16")
    with pytest.raises(DataError) as caught:
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    path, given = tmp_path / "train.jsonl", [row["text"] for row in small.rows("single-label", 16)]
    long = [number for number, text in enumerate(given) if len(text.split()) > 14]
    assert long[0] < 4 < 12 < long[-1]  # in the first chunk and in the last
    assert [problem.where for problem in caught.value.problems] == [
        f"{path}:{number + 1}, id row-{number}" for number in long
    ]
    strict = cutting.task.options.model_copy(update={"overflow": "error"})
    task = dataclasses.replace(cutting.task, options=strict, max_length=16)
    with pytest.raises(DataError) as caught:
        dataclasses.replace(cutting, task=task)(given[1:2] * 5 + given[2:4] + given[:1])
    assert [problem.where for problem in caught.value.problems] == ["row 6", "row 7"]


def test_a_loss_that_is_not_a_number_stops_with_advice(tiny_encoder: Path, tmp_path: Path) -> None:
    wild = ("training.learning_rate=1e38", "training.max_grad_norm=0", "training.num_train_epochs=4")
    with pytest.raises(UserError, match="the loss is") as caught:
        train(small.recipe(tmp_path, tiny_encoder, *wild), tmp_path / "run")
    assert "learning_rate" in str(caught.value)


BY_TOKENS = ("batching={tokens: 20}", "~training.per_device_train_batch_size", "~training.per_device_eval_batch_size")


@pytest.mark.parametrize(
    ("how", "accumulation", "place"),  # with 3, the last step of an epoch has 2 of its 8 micro-batches
    [(("training.per_device_train_batch_size=2",), 3, 16), (BY_TOKENS, 2, 12)],
    ids=["rows", "tokens"],
)
def test_a_loss_that_is_not_a_number_names_the_rows_of_its_step(
    how: tuple[str, ...],
    accumulation: int,
    place: int,
    tiny_encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, loss = list[list[int]](), TextClassification.loss

    def of(self: Any, outputs: Any, batch: Any, *more: Any) -> Any:
        seen.append(batch["row"].tolist())
        return loss(self, outputs, batch, *more) * (torch.nan if len(seen) == place else 1)

    monkeypatch.setattr(TextClassification, "loss", of)
    steps = ("training.num_train_epochs=9", f"training.gradient_accumulation_steps={accumulation}")
    recipe = small.recipe(tmp_path, tiny_encoder, *steps, *how)
    with pytest.raises(UserError, match="the loss is nan at step 6, over") as caught:
        train(recipe, tmp_path / "run")
    rows = sorted({*seen[place - 2], *seen[place - 1]})
    assert ", over " + ", ".join(f"train.jsonl:{row + 1}, id row-{row}" for row in rows) in str(caught.value).replace(
        f"{tmp_path}/", ""
    )


def test_arguments_that_transformers_refuses_are_a_recipe_error(tiny_encoder: Path, tmp_path: Path) -> None:
    odd = ("training.eval_strategy=steps", "training.eval_steps=3", "training.save_strategy=steps")
    recipe = small.recipe(tmp_path, tiny_encoder, *odd, "training.save_steps=4")
    with pytest.raises(RecipeError, match=r"^training: .*saving steps.*but found 4"):
        train(recipe, tmp_path / "run")
    with pytest.raises(RecipeError, match=r"^training: .*save and eval strategy"):
        train(small.recipe(tmp_path, tiny_encoder, *odd[:2], "training.save_strategy=epoch"), tmp_path / "run")


def test_more_labels_than_a_model_may_have_are_refused_before_training(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the limit with which a model is loaded."""
    assert encoders.LONGEST == untrusted.LONGEST
    monkeypatch.setattr(encoders, "LONGEST", 1)
    with pytest.raises(DataError, match="data: 2 labels, where a model has 1 at most"):
        train(small.recipe(tmp_path, tiny_encoder), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_best_model_is_saved_where_checkpoints_are_rarer_than_evaluations(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    odd = ("training.eval_strategy=steps", "training.eval_steps=1", "training.save_steps=2", "training.max_steps=3")
    recipe = small.recipe(tmp_path, tiny_encoder, *odd, "training.learning_rate=1e-30", "checkpoints=keep")
    run = train(recipe, tmp_path / "run")
    assert run.results["seeds"][0]["best_step"] == 1  # the scores of later steps are no better
    assert {path.name for path in run.checkpoints.glob("seed-*/checkpoint-*")} >= {"checkpoint-1"}


@pytest.mark.parametrize("divide", ["false", "true"])
def test_too_little_memory_says_what_helps(
    divide: str, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dividing does not help where there is no room for one row."""
    forward = TextClassification.forward

    def full(self: Any, model: Any, batch: Any) -> Any:
        if torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, model, batch)

    monkeypatch.setattr(TextClassification, "forward", full)
    recipe = small.recipe(tmp_path, tiny_encoder, f"training.auto_find_batch_size={divide}")
    with pytest.raises(RecipeError, match=r"step 1: CUDA out of memory.*\n.*auto_find_batch_size: true"):
        train(recipe, tmp_path / "run")


def test_answers_come_in_batches_of_the_same_tokens(tiny_encoder: Path, tmp_path: Path) -> None:
    given = ["batching={tokens: 60}", *(f"~training.per_device_{use}_batch_size" for use in ("train", "eval"))]
    run = train(small.recipe(tmp_path, tiny_encoder, *given), tmp_path / "run")
    predictor = load(run.folder)
    assert predictor.batch_size == Batching(tokens=60)
    texts = [small.text(number, number % 2) for number in range(30)]
    by_rows = load(run.folder, batch_size=4)(texts)
    assert [a["label"] for a in predictor(texts)] == [a["label"] for a in by_rows]


def test_a_loss_that_compares_rows_is_not_divided(tiny_encoder: Path, tmp_path: Path) -> None:
    file = small.write_recipe(tmp_path, tiny_encoder)
    given = ["task={name: retrieval}", "training.auto_find_batch_size=true"]
    with pytest.raises(RecipeError, match="auto_find_batch_size: would change a loss that compares rows"):
        load_recipe(file, given)


def test_metrics_jsonl_is_json_lines_with_seed_and_step(runs: dict[str, Run]) -> None:
    lines = (runs["single-label"].folder / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line, parse_constant=no_model) for line in lines]
    assert all(event["seed"] == 42 and 0 < event["step"] <= 100 for event in events)
    assert [event["step"] for event in events if "eval_accuracy" in event] == [20, 40, 60, 80, 100]
    assert [event["step"] for event in events if "loss" in event] == [50, 100]
