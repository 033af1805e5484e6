"""Equivalent settings take the same step: 8 x 1 = 2 x 4 accumulated = 2 processes x 4; attachments resume
exactly.
"""

import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest
import small
import torch
import two
from cases import CASES, DRAWN, every
from safetensors.torch import load_file
from steps import OWN, arguments, first_step, first_step_of, made, trained
from test_resume import RHYTHM, killed, last
from torch._dynamo.utils import counters
from torch.testing import assert_close
from transformers import AutoModelForMaskedLM

from bertkit.attachments.table import ATTACHMENTS
from bertkit.files import read_json, sha256
from bertkit.models.encoder import resolve_encoder
from bertkit.recipe.recipe import to_yaml
from bertkit.run import Run
from bertkit.sections import ModelSpec
from bertkit.training.train import train

BY_ROW = [*(case for case in CASES if not case.across_rows), *DRAWN]


def norm(gradients):
    return float(torch.sqrt(sum(g.double().square().sum() for g in gradients.values())))


def assert_same_step(one, other):
    # of a loss that is a small difference of large numbers
    assert other[0] == pytest.approx(one[0], rel=1e-4)
    assert one[1].keys() == other[1].keys()
    difference = {name: one[1][name] - other[1][name] for name in one[1]}
    assert norm(difference) <= 1e-4 * norm(one[1]) + 1e-6  # for gradients that are as small as rounding
    assert norm(one[1]) > 0


@pytest.fixture(scope="module")
def whole(tiny_encoder, tmp_path_factory):
    """A case -> its first step with all eight rows in one batch, taken once."""
    taken = {}

    def of(case):
        if case.id not in taken:
            taken[case.id] = first_step(case, tiny_encoder, tmp_path_factory.mktemp("whole"), 8, 1)
        return taken[case.id]

    return of


@every(BY_ROW)
@pytest.mark.parametrize(
    ("batch", "accumulate"),
    [(2, 4), pytest.param(1, 8, marks=pytest.mark.rare), pytest.param(4, 2, marks=pytest.mark.rare)],
)
def test_accumulation_equals_one_batch(case, batch, accumulate, whole, tiny_encoder, tmp_path):
    assert_same_step(whole(case), first_step(case, tiny_encoder, tmp_path, batch, accumulate))


USUAL = "single-label"  # compiled on each run; with --all the others too
COMPILED = (
    "single-label qa-windows-or-none ner-crf similarity-in-batch retrieval ranking-binary "
    "text-to-text mlm-nsp"
)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, while it captures
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
@pytest.mark.parametrize(
    "identifier",
    [pytest.param(name, marks=() if name == USUAL else pytest.mark.rare) for name in COMPILED.split()],
)
def test_torch_compile_takes_the_same_step(identifier, tiny_encoder, tmp_path):
    """With the model's graph as torch.compile captures it, but torch's own kernels: there may be no C++
    compiler.
    """
    case = two.BY_ID[identifier]
    plain = first_step(case, tiny_encoder, tmp_path / "plain", 4, 2)
    compiled = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    counters.clear()
    assert_same_step(plain, first_step(case, tiny_encoder, tmp_path / "compiled", 4, 2, **compiled))
    assert counters["stats"]["unique_graphs"]


UNEVEN = "class-weights windows ner-crf-windows-bioes ranking-listwise qa-windows-or-none mlm-nsp".split()


@pytest.mark.parametrize("identifier", UNEVEN)
def test_micro_batches_of_unequal_rows_equal_one_batch(identifier, tiny_encoder, tmp_path, monkeypatch):
    """A token budget leaves as many rows to each micro-batch as fit; three of them are this step."""
    monkeypatch.setattr("bertkit.engine.batching.MAX_PADDING", 1.0)
    case = two.BY_ID[identifier]
    whole = first_step(case, tiny_encoder, tmp_path / "whole", 100, 1)
    assert_same_step(whole, first_step(case, tiny_encoder, tmp_path / "parts", 1, 3, tokens=10_000))


@pytest.mark.parametrize("identifier", ["ner-crf-windows-bioes", "ranking-listwise", "multi-label"])
def test_dividing_what_does_not_fit_into_memory_changes_no_step(
    identifier, tiny_encoder, tmp_path, monkeypatch, caplog
):
    case = two.BY_ID[identifier]
    curves = []
    weights = []
    sizes = []
    for divide in (False, True):
        args = arguments(tmp_path / str(divide), 4, 2, max_steps=3, learning_rate=0.1, optim="sgd")
        trainer = made(case, tiny_encoder, args, divide=divide)
        task = trainer.data.learner
        forward = type(task).forward
        room = max(Counter(task.units(trainer.data.features)).values())

        def cramped(self, model, batch, forward=forward, room=room):
            sizes.append(len(batch["input_ids"]))
            if len(batch["input_ids"]) > room:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            return forward(self, model, batch)

        with monkeypatch.context() as patch:
            if divide:
                patch.setattr(type(task), "forward", cramped)
            trainer.train()
        curves.append([event["loss"] for event in trainer.state.log_history if "loss" in event])
        weights.append({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
    assert trainer.attachments[-1].count > 1
    assert "do not fit into memory" in caplog.text
    heaviest = sizes[0]
    assert heaviest == max(sizes), "the heaviest micro-batch is tried first"
    parts = trainer.attachments[-1].count
    assert sum(size > room for size in sizes) == parts.bit_length() - 1, "and after that all fit"
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert len(curves[0]) == 3
    for name, tensor in weights[0].items():
        assert_close(weights[1][name], tensor, rtol=1e-3, atol=1e-4)


def test_trying_what_fits_draws_no_random_number(tiny_encoder_with_dropout, tmp_path):
    losses = []
    for divide in (False, True):
        args = arguments(tmp_path / str(divide), 4, 2)
        trainer = made(CASES[0], tiny_encoder_with_dropout, args, divide=divide)
        trainer.train()
        losses.append(trainer.state.log_history[0]["loss"])
    assert trainer.attachments[-1].count == 1
    assert losses[0] == losses[1]


# --- attachments

USED = ("training.used_embeddings=true", "training.weight_decay=0.3")
TEACHER = "distillation={{teacher: {teacher}, alpha: 0.7}}"
RECIPES = {  # class of an attachment -> recipes that have it, as overrides
    "MuonOptimizer": {"muon": ("training.optim=muon",)},
    "UsedEmbeddings": {"used": USED, "used and muon": (*USED, "training.optim=muon")},
    "MicroBatchSplit": {"split": ("training.auto_find_batch_size=true",)},
    "TeacherLoss": {"teacher": (TEACHER,)},
}
OURS = {*RECIPES}
RECIPES |= {"of the user": dict.fromkeys(OWN, ())}
NAMES = {name: more for recipes in RECIPES.values() for name, more in recipes.items()}
LORA = ("peft={r: 2}",)
WITHOUT_LORA = "used", "used and muon"  # the adapters leave the word embedding as it is
EVERY = [*NAMES, *(f"{name}, lora" for name in NAMES if name not in WITHOUT_LORA)]
# Resumed with --all alone:
RARE = ("used and muon", "muon, lora", "split, lora", "focal", "mean", *(f"{name}, lora" for name in OWN))


def test_the_table_is_complete():
    assert {type(each).__name__ for each in ATTACHMENTS} == OURS


@pytest.fixture(scope="module")
def teacher(tiny_encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    with cache_in(folder / "cache"):
        return small.trained(folder, tiny_encoder, "training.save_strategy=no").folder


@contextmanager
def cache_in(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTKIT_CACHE", str(folder))
        yield


def overrides(name, teacher):
    plain, _, lora = name.partition(", ")
    return (*(each.format(teacher=teacher) for each in NAMES[plain]), *(LORA if lora else ()))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.rare if n in RARE else ()) for n in EVERY]
)
def test_a_resumed_run_is_the_uninterrupted_one(name, teacher, tiny_encoder_with_dropout, tmp_path):
    """Even if what a teacher says has to be computed again."""
    more = (*RHYTHM, *overrides(name, teacher))
    splits = ("train", "validation")
    own = OWN.get(name.partition(", ")[0], {})
    recipe = small.recipe(tmp_path, tiny_encoder_with_dropout, *more, splits=splits)
    with cache_in(tmp_path / "one"):
        run = killed(recipe, tmp_path / "killed", **own)
    with cache_in(tmp_path / "other"):
        train(recipe, run.folder, resume=True, **own)
        whole = train(recipe, tmp_path / "whole", **own)
    assert sha256(run.model / "model.safetensors") == sha256(whole.model / "model.safetensors")
    assert last(run) == last(whole)


# --- attachments, and two processes

ONE_STEP = """training.max_steps=1 ~training.num_train_epochs training.eval_strategy=no
training.save_strategy=no training.logging_steps=1 training.max_grad_norm=1e9 training.bf16=false""".split()


def step_of(name, recipe, folder):
    return first_step_of(recipe, folder, **OWN.get(name.partition(", ")[0], {}))


def sized(recipe, size, accumulation=1):
    both = (
        f"training.per_device_train_batch_size={size}",
        f"training.gradient_accumulation_steps={accumulation}",
    )
    return recipe.with_(*ONE_STEP, *both)


@pytest.fixture(scope="module")
def recipes(teacher, tiny_encoder, tmp_path_factory):
    """One of each attachment."""
    folder = tmp_path_factory.mktemp("recipes")
    return {name: small.recipe(folder, tiny_encoder, *overrides(name, teacher)) for name in EVERY}


@pytest.fixture(scope="module")
def attached(recipes, tmp_path_factory):
    """The first step of each on eight rows in one batch."""
    folder = tmp_path_factory.mktemp("attached")
    with cache_in(folder / "cache"):
        return {name: step_of(name, sized(recipe, 8), folder) for name, recipe in recipes.items()}


@pytest.mark.parametrize("name", EVERY)
def test_accumulation_with_an_attachment_equals_one_batch(name, recipes, attached, tmp_path):
    with cache_in(tmp_path / "cache"):
        assert_same_step(attached[name], step_of(name, sized(recipes[name], 2, 4), tmp_path))


CONFIG = {"model_type": "modernbert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@dataclass(frozen=True)
class ByTwo:
    """What two.py left, and what it said."""

    folder: Path
    out: str
    error: str

    def step(self, name):
        file = self.folder / f"{name}.safetensors"
        assert file.is_file(), self.error
        return read_json(file.with_suffix(".json")), load_file(file)


@pytest.fixture(scope="module")
def by_two(recipes, tiny_encoder, tiny_encoder_with_dropout, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    for name in ("attachments", "clock"):
        (folder / name).mkdir()
    for name, recipe in recipes.items():
        (folder / "attachments" / f"{name}.yaml").write_text(to_yaml(sized(recipe, 4)))
    fresh = resolve_encoder(ModelSpec(config=CONFIG, tokenizer=str(tiny_encoder), max_length=32))
    AutoModelForMaskedLM.from_config(fresh.config).save_pretrained(folder / "modernbert")
    fresh.tokenizer().save_pretrained(folder / "modernbert")
    folds = small.recipe(
        folder / "rows", tiny_encoder_with_dropout, "folds=2", "peft={r: 2}", splits=("train",)
    )
    (folder / "folds.yaml").write_text(to_yaml(folds))
    more = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "BERTKIT_CACHE": f"{folder}/cache"}
    command = [sys.executable, str(two.__file__), str(tiny_encoder), str(folder)]
    subprocess.run(command, check=True, env={**os.environ, **more})
    out, error = ((folder / "said" / f"0.{name}").read_text() for name in ("out", "err"))
    return ByTwo(folder, out, error[-3000:])


@pytest.mark.parametrize("name", two.STEPS)
def test_two_processes_equal_one(name, by_two, whole):
    """Class weights make the counts of the two processes differ; windows their shapes; some losses compare
    all rows.
    """
    assert_same_step(whole(two.BY_ID[name]), by_two.step(name))


def test_accumulation_and_two_processes_with_a_modernbert(by_two, tmp_path):
    case = two.MODERNBERT
    encoder = by_two.folder / "modernbert"
    whole = first_step(case, encoder, tmp_path, 8, 1)
    assert_same_step(whole, first_step(case, encoder, tmp_path, 2, 4))
    assert_same_step(whole, by_two.step(case.id))


@pytest.mark.parametrize("name", EVERY)
def test_two_processes_with_an_attachment_equal_one(name, by_two, attached):
    assert_same_step(attached[name], by_two.step(name))


def test_all_processes_go_by_the_clock_of_the_first(by_two, tiny_encoder, tmp_path):
    """In the first a step takes 5 of 30 seconds, in the other one 1; weights are those of one process."""
    trained(tiny_encoder, tmp_path, 4, 5.0)
    one = load_file(tmp_path / "0-6.safetensors")
    for rank in (0, 1):
        file = by_two.folder / "clock" / f"{rank}-6.safetensors"
        assert file.is_file(), by_two.error
        assert_close(load_file(file), one, rtol=1e-4, atol=1e-5)


def test_two_processes_train_several_tasks_as_one_does(by_two, tiny_encoder, tmp_path):
    """A head must learn too where the last micro-batch of a step, after which gradients are shared, is not
    its own.
    """
    two.several_tasks(tiny_encoder, tmp_path / "one", 4)
    runs = [Run(folder) for folder in (tmp_path / "one", by_two.folder / "tasks")]
    assert runs[1].finished, by_two.error
    for name in two.TASKS:
        one, other = (load_file(run.folder / name / "model/model.safetensors") for run in runs)
        assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_two_processes_train_folds(by_two):
    run = Run(by_two.folder / "folds")
    assert run.finished, by_two.error
    assert {line["fold"] for line in small.read_rows(run.predictions("train-oof"))} == {1, 2}
    # two epochs of 8 rows, 4 in each process
    assert {each["steps"] for each in run.results["folds"]["each"]} == {2}
    assert by_two.out.count("train-oof (16 rows)") == 1


def test_the_random_states_of_the_trainings_own_device_are_kept(tiny_encoder, tmp_path, monkeypatch):
    fork = Mock(side_effect=torch.random.fork_rng)
    monkeypatch.setattr(torch.random, "fork_rng", fork)
    made(CASES[0], tiny_encoder, arguments(tmp_path, 4, 2), divide=True).train()
    assert "cpu" in [call.kwargs.get("device_type") for call in fork.call_args_list]
