"""A run that was killed and resumed is the run that was never killed, bit for bit."""

import logging
import os
import random
import resource
import shutil
import signal
import time
from collections import Counter
from itertools import count
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pytest
import small
import torch
from cases import CASES
from conftest import build_encoder
from safetensors import SafetensorError
from safetensors.torch import load_file
from small import largest_file, of_family, raised, raises, read_rows, write_rows
from steps import arguments, made
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
)
from transformers.trainer_callback import ExportableState

from bertkit.engine import checkpoint
from bertkit.engine.arguments import Arguments
from bertkit.engine.callbacks import MetricsLog
from bertkit.engine.resume import latest_intact, require_own_format
from bertkit.engine.trainer import Trainer
from bertkit.engine.training_data import TaskData
from bertkit.errors import ModelError, RecipeError, UserError
from bertkit.files import lines_of, read_json, sha256, write_json, write_text
from bertkit.recipe.recipe import to_yaml
from bertkit.run import Run, only_writer
from bertkit.tasks.text_classification import TextClassification
from bertkit.training import metadata
from bertkit.training.seed import METHODS
from bertkit.training.train import train

# 16 rows in micro-batches of 2, two to a step: 4 steps an epoch, 12 in all, a checkpoint every 3.
RHYTHM = """training.per_device_train_batch_size=2 training.gradient_accumulation_steps=2
training.num_train_epochs=3 training.eval_strategy=steps training.eval_steps=3
training.logging_steps=1""".split()
# rows from Python, which a run folder keeps
ROWS = {split: small.rows("single-label", 16) for split in ("train", "validation")}
KILLED_AT = 16  # the micro-batch: the second half of step 8, after checkpoints 3 and 6, in the second epoch


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def kill(monkeypatch, at, seed=42):
    """From here on, training of this seed dies in its micro-batch number `at`, before it changes anything."""
    real = Trainer.training_step
    count = iter(range(1, 10_000))

    def training_step(self, *given):
        if self.args.seed == seed and next(count) == at:
            raise Killed
        return real(self, *given)

    monkeypatch.setattr(Trainer, "training_step", training_step)


def killed(recipe, folder, at=KILLED_AT, seed=42, resume=False, **own):
    """The folder of a run that was killed. own: a user's code."""
    with pytest.MonkeyPatch.context() as patch:
        kill(patch, at, seed)
        raised(Killed, train, recipe, folder, resume=resume, **own)
    assert not Run(folder).finished
    return Run(folder)


def resumed(recipe, folder, at=KILLED_AT, seed=42):
    """A run that was killed and resumed, and one that was not: the same."""
    whole = train(recipe, folder / "whole")
    run = killed(recipe, folder / "run", at, seed)
    train(recipe, run.folder, resume=True)
    same(run, whole)
    return run, whole


def timeless(value):
    """Results without what a clock says."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key != "seconds"}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def events(run):
    told = read_rows(run.folder / "metrics.jsonl")
    clocks = "train_runtime train_samples_per_second train_steps_per_second train_loss".split()
    return [{key: value for key, value in event.items() if key not in clocks} for event in told]


def same(one, other):
    assert sha256(one.model / "model.safetensors") == sha256(other.model / "model.safetensors")
    assert (one.model / "config.json").read_bytes() == (other.model / "config.json").read_bytes()
    assert timeless(one.results) == timeless(other.results)
    for split in ("validation", "test"):
        files = [run.folder / "predictions" / f"{split}.jsonl" for run in (one, other)]
        assert files[0].read_bytes() == files[1].read_bytes()
    # RUN/model may be an early checkpoint, if that was the best; the last one tells whether all steps were
    # the same.
    assert last(one) == last(other)


def last(run):
    """The tensors of each seed's last checkpoint -> their sha256: weights, optimizer and random states.

    Not random-0.json: a library draws one number from Python's generator when it is first imported.
    """
    folders = [checkpoint.checkpoints(seed)[-1] for seed in run.checkpoints.iterdir()]
    paths = [path for folder in folders for path in folder.glob("*.safetensors")]
    more = [path for path in paths if path.name in ("used_embeddings.safetensors", "slow.safetensors")]
    assert len(paths) - len(more) == 3 * len(folders)
    return {str(path.relative_to(run.checkpoints)): sha256(path) for path in paths}


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def recipe(tiny_encoder_with_dropout, room):
    return small.recipe(room, tiny_encoder_with_dropout, *RHYTHM)


@pytest.fixture(scope="module")
def uninterrupted(recipe, room):
    return train(recipe, room / "uninterrupted")


@pytest.fixture(scope="module")
def dead(recipe, room):
    return killed(recipe, room / "killed")


@pytest.fixture
def run(dead, tmp_path):
    """A copy of the run that was killed."""
    return Run(shutil.copytree(dead.folder, tmp_path / "run"))


def test_resumed_in_the_middle_of_an_epoch_and_a_step(recipe, uninterrupted, run):
    assert [path.name for path in checkpoint.checkpoints(run.checkpoints / "seed-42")][-1] == "checkpoint-6"
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"seed": 42, "step": 7, "lo')  # what a full disk leaves of an event
    train(recipe, run.folder, resume=True)
    same(run, uninterrupted)
    states = [read_json(newest(each) / "optimizer.json") for each in (run, uninterrupted)]
    assert states[0] == states[1]
    assert run.results["seeds"][0]["steps"] == 12
    # What was logged after the checkpoint is logged once, and says the same.
    assert max(Counter((e["step"], "loss" in e, "eval_accuracy" in e) for e in events(run)).values()) == 1
    assert events(run) == events(uninterrupted)


def test_a_line_of_the_log_that_is_damaged_is_named(recipe, run):
    log = run.folder / "metrics.jsonl"
    first, *others = log.read_text().splitlines(keepends=True)
    for line in ("{]\n", "7\n"):
        log.write_text("".join([first, line, *others]))
        before = files(run)
        raises(
            ModelError,
            r"metrics\.jsonl:2: is damaged: not valid JSON",
            train,
            recipe,
            run.folder,
            resume=True,
        )
        assert files(run) == before


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    log = tmp_path / "metrics.jsonl"
    with largest_file(8), pytest.raises(OSError, match=r"metrics\.jsonl"):
        MetricsLog(log, 1).on_log(None, Mock(global_step=3), None, {"loss": 0.5})
    log.write_text(log.read_text() + '\n{"seed": 1, "step": 4')
    assert [*lines_of(tmp_path / "none.jsonl")] == []
    raises(ModelError, r"metrics\.jsonl:1: is damaged", lambda: [*lines_of(log, appended=True)])


def test_dropout_is_really_random_here(recipe, uninterrupted, run):
    """Without it, the tests of this file would pass with random states that are not put back."""
    with patch.object(checkpoint, "load_random", lambda *_: None):
        train(recipe, run.folder, resume=True)
    assert last(run) != last(uninterrupted)


def test_killed_before_the_first_checkpoint_and_twice_after_it(recipe, uninterrupted, tmp_path):
    run = killed(recipe, tmp_path / "run", 1)
    killed(recipe, run.folder, 7, resume=True)
    killed(recipe, run.folder, 3, resume=True)
    train(recipe, run.folder, resume=True)
    same(run, uninterrupted)


def test_killed_while_it_evaluates_after_training(recipe, uninterrupted, tmp_path):
    """The model has its place then, and `finish` does not come to its end."""
    with patch("bertkit.training.finish.over_seeds", side_effect=Killed):
        raised(Killed, train, recipe, tmp_path / "run")
    same(train(recipe, tmp_path / "run", resume=True), uninterrupted)


@pytest.mark.parametrize("write", ["write_text", "write_json"])
def test_killed_at_the_very_start_it_can_be_started_again(write, recipe, tmp_path):
    """Before its first file the folder is as good as empty; after recipe.yaml it is a run."""
    with patch(f"bertkit.training.metadata.{write}", side_effect=Killed):
        raised(Killed, train, recipe, tmp_path / "run")
    started = (tmp_path / "run/recipe.yaml").is_file()
    assert started == (write == "write_json")
    (tmp_path / "run/.recipe.yaml.0a1b2c3d.writing").touch()  # what SIGKILL leaves of a file being written
    killed(recipe, tmp_path / "run", at=1, resume=started)


def test_lora(tiny_encoder_with_dropout, tmp_path):
    more = "peft={r: 2, lora_dropout: 0.1, use_dora: true}"
    given = small.recipe(tmp_path, tiny_encoder_with_dropout, *RHYTHM, more)
    runs = resumed(given, tmp_path)
    adapters = [load_file(run.folder / "adapter/adapter_model.safetensors") for run in runs]
    assert all(torch.equal(tensor, adapters[1][name]) for name, tensor in adapters[0].items())


def test_a_checkpoint_of_all_weights_is_not_resumed_with_lora(runs, tmp_path):
    run = Run(shutil.copytree(runs["adapter"].folder, tmp_path / "run"))
    (newest(run) / "adapter_model.safetensors").rename(newest(run) / "model.safetensors")
    rewritten(newest(run), "other.json", {})
    said = (
        r"checkpoint-6: has no adapter_model.safetensors: it was written with another peft.*\n.*started with"
    )
    raises(ModelError, said, train, run.recipe, run.folder, resume=True)


def test_divided_micro_batches(tiny_encoder_with_dropout, tmp_path):
    """How they were divided is known from the checkpoint, although there is more room now."""
    forward = TextClassification.forward

    def cramped(self, model, batch):
        if torch.is_grad_enabled() and len(batch["input_ids"]) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, model, batch)

    given = small.recipe(tmp_path, tiny_encoder_with_dropout, *RHYTHM, "training.auto_find_batch_size=true")
    with patch.object(TextClassification, "forward", cramped):
        whole = train(given, tmp_path / "whole")
        run = killed(given, tmp_path / "run")
    assert read_json(newest(run) / "division.json") == {"parts": 2}
    train(given, run.folder, resume=True)
    same(run, whole)


def test_in_the_second_of_two_seeds(tiny_encoder_with_dropout, tmp_path):
    given = small.recipe(tmp_path, tiny_encoder_with_dropout, *RHYTHM, "seeds=[1, 2]")
    whole = train(given, tmp_path / "whole")
    run = killed(given, tmp_path / "run", at=10, seed=2)
    first = sha256(run.checkpoints / "seed-1/done.json")
    train(given, run.folder, resume=True)
    same(run, whole)
    assert sha256(run.checkpoints / "seed-1/done.json") == first  # it was not trained again
    assert events(run) == events(whole)


def test_an_encoder_whose_published_weights_have_other_names(tiny_encoder_with_dropout, tmp_path):
    """transformers writes a model folder with those names; a checkpoint is loaded with the model's own."""
    encoder = of_family("nomic_bert", tiny_encoder_with_dropout, tmp_path / "nomic")
    recipe = small.recipe(tmp_path, encoder, *RHYTHM)
    run = train(recipe, killed(recipe, tmp_path / "run").folder, resume=True)
    best = run.results["seeds"][0]["best_step"]
    published = AutoModelForSequenceClassification.from_pretrained(run.model).state_dict()
    kept = load_file(run.checkpoints / "seed-42" / f"checkpoint-{best}" / "model.safetensors")
    assert published.keys() == kept.keys()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in published.items())


def test_windows_in_batches_of_tokens_and_early_stopping(tiny_encoder_with_dropout, tmp_path):
    rows = (f"~training.per_device_{use}_batch_size" for use in ("train", "eval"))
    more = ("task.overflow=window", "task.stride=2", "model.max_length=12", "early_stopping={patience: 2}")
    given = small.recipe(
        tmp_path, tiny_encoder_with_dropout, *rows, *RHYTHM[1:], *more, "batching={tokens: 40}"
    )
    _, whole = resumed(given, tmp_path, at=7)
    assert whole.results["seeds"][0]["steps"] < 12


@pytest.mark.parametrize("place", ["run", "moved"])
def test_killed_after_it_stopped_early(place, tiny_encoder_with_dropout, tmp_path, monkeypatch):
    more = (*RHYTHM, "early_stopping={patience: 1}")
    given = small.recipe(tmp_path, tiny_encoder_with_dropout, *more)
    scores = count(0.0, -0.1)  # the first is the best, and later ones would be better
    score = TaskData.evaluate

    def evaluate(*given):
        return {**score(*given), "accuracy": next(scores)}

    monkeypatch.setattr(TaskData, "evaluate", evaluate)
    monkeypatch.chdir(tmp_path)
    with patch("bertkit.training.seed.merge_and_calibrate", side_effect=Killed):
        raised(Killed, train, given, "run")
    scores = count(1.0)
    Path("run").rename(place)
    [outcome] = train(given, place, resume=True).results["seeds"]
    assert (outcome["steps"], outcome["best_step"]) == (6, 3)


# --- checkpoints that are not whole


def newest(run):
    return checkpoint.checkpoints(run.checkpoints / "seed-42")[-1]


def test_a_damaged_checkpoint_is_left_out_and_the_one_before_is_used(recipe, uninterrupted, run, caplog):
    seed = run.checkpoints / "seed-42"
    bad = newest(run)
    older = (seed / "checkpoint-3", [bad])
    for name in "optimizer.safetensors random-0.json manifest.json model.safetensors".split():
        content = (bad / name).read_bytes()
        for damaged in (content[:-7], content[:-1] + bytes([content[-1] ^ 1]), None):
            assert checkpoint.is_intact(bad)
            (bad / name).unlink() if damaged is None else (bad / name).write_bytes(damaged)
            assert latest_intact(seed) == older
            (bad / name).write_bytes(content)
    (bad / "random-0.safetensors").unlink()
    caplog.set_level(logging.WARNING, "bertkit")
    train(recipe, run.folder, resume=True)
    assert "checkpoint-6 is damaged and is skipped" in caplog.text
    same(run, uninterrupted)


def rewritten(folder, file, value):
    """A checkpoint of which one file is another, or absent, and the manifest agrees."""
    write_json(folder / file, value) if value is not None else (folder / file).unlink()
    (folder / "manifest.json").unlink()
    checkpoint.publish(folder, folder.with_name("other"))
    folder.with_name("other").rename(folder)


@pytest.mark.parametrize(
    ("file", "value"),
    [
        (
            "optimizer.json",
            {"groups": [], "plain": {"0.step": 6}, "scheduler": {}, "scaler": None},
        ),  # an earlier one
        ("optimizer.json", []),
        ("trainer_state.json", {"global_step": 6, "of_a_later_version": 1}),
        ("trainer_state.json", {"global_step": 5}),
        ("trainer_state.json", {}),
        ("optimizer.json", None),
    ],
)
def test_a_checkpoint_of_another_version_is_refused(file, value, recipe, run):
    """Also with an older checkpoint that fits; and nothing of the run is changed."""
    require_own_format(newest(run))
    rewritten(newest(run), file, value)
    assert checkpoint.is_intact(newest(run))
    before = files(run)
    wanted = (
        r"checkpoint-6: was written by another version of bertkit or transformers.*\n.*that version, "
        r"or start a"
    )
    raises(UserError, wanted, train, recipe, run.folder, resume=True)
    assert files(run) == before


def test_another_number_of_processes_is_refused(recipe, run, monkeypatch):
    """One process would take other steps than two, and a third has no random states; --changed does not
    help.
    """
    for before, now, changed in ((1, 2, False), (2, 1, True), (3, 2, False)):
        checkpoint.save_random(newest(run), before - 1)
        rewritten(newest(run), "other.json", {})
        monkeypatch.setattr(Arguments, "world_size", now)
        kept = files(run)
        wanted = f"checkpoint-6: the number of processes was {before} when it was written, and is {now} now"
        wanted += rf"\n.*Continue with {before} \("
        raises(ModelError, wanted, train, recipe, run.folder, resume=True, changed=changed)
        assert files(run) == kept


def test_a_kill_while_a_checkpoint_is_written(recipe, uninterrupted, tmp_path):
    """Killed before it is renamed: the folder does not have its name, and the one before is used."""

    def dead(aside, folder):
        if folder.name == "checkpoint-6":
            raise Killed
        publish(aside, folder)

    publish = checkpoint.publish
    with patch.object(checkpoint, "publish", dead):
        raised(Killed, train, recipe, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert newest(run).name == "checkpoint-3"
    assert (run.checkpoints / "seed-42/.writing-6").is_dir()
    (run.checkpoints / "seed-42/checkpoint-notes").mkdir()
    train(recipe, run.folder, resume=True)
    same(run, uninterrupted)


def test_two_processes_can_not_train_into_one_folder(recipe, run):
    for _ in range(2):
        with only_writer(run), pytest.raises(UserError, match="another process is training into this folder"):
            train(recipe, run.folder, resume=True)


class Full(TrainerCallback):
    """From step 4 on no file may become larger than 20 kB, as on a disk that is full."""

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_a_full_disk_leaves_the_last_checkpoint(recipe, uninterrupted, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder = tmp_path / "run"
    try:
        raises(
            ModelError,
            r"cannot be written.*\n.*it continues from its last checkpoint",
            train,
            recipe,
            folder,
            callbacks=[Full()],
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert latest_intact(folder / "checkpoints/seed-42") == (folder / "checkpoints/seed-42/checkpoint-3", [])
    same(train(recipe, folder, resume=True), uninterrupted)


# --- told to stop


@pytest.fixture(autouse=True)
def _signals():
    """Those of a shell's foreground; in its background, Ctrl-C is ignored."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(  # in an epoch, and at the ends of two
    ("number", "at"),
    [
        (signal.SIGINT, 2),
        (signal.SIGTERM, 4),
        *(pytest.param(signal.SIGINT, at, marks=pytest.mark.rare) for at in (3, 4, 5)),
    ],
)
def test_told_to_stop_it_keeps_the_step_and_goes_on_from_there(
    number, at, recipe, uninterrupted, tmp_path, caplog
):
    handler = signal.getsignal(number)
    run = Run(tmp_path / "run")
    kind = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    error = raised(kind, train, recipe, run.folder, callbacks=[Told(at, number)])
    assert number == signal.SIGINT or error.code == 143
    assert signal.getsignal(number) == handler
    assert latest_intact(run.checkpoints / "seed-42")[0] == run.checkpoints / "seed-42" / f"checkpoint-{at}"
    assert f"stopped after step {at} of" in caplog.text
    train(recipe, run.folder, resume=True)
    same(run, uninterrupted)
    assert events(run) == events(uninterrupted)


def test_told_where_epochs_are_scored_it_is_scored_as_before(tiny_encoder_with_dropout, tmp_path):
    by_epoch = [change for change in RHYTHM if "eval" not in change]
    recipe = small.recipe(tmp_path, tiny_encoder_with_dropout, *by_epoch, "training.eval_strategy=epoch")
    whole = train(recipe, tmp_path / "whole")
    raised(
        KeyboardInterrupt, train, recipe, tmp_path / "run", callbacks=[Told(4, signal.SIGINT)]
    )  # at the end of one
    stopped = train(recipe, tmp_path / "run", resume=True)
    same(stopped, whole)
    assert events(stopped) == events(whole)


def test_told_twice_it_stops_at_once(recipe, tmp_path):
    raised(KeyboardInterrupt, train, recipe, tmp_path / "run", callbacks=[Told(2, signal.SIGINT, times=2)])
    assert not (tmp_path / "run/checkpoints/seed-42/checkpoint-2").exists()


class Alignment(TrainerCallback):
    """Where the parameters and the optimizer's states begin, modulo 64 bytes, after each step."""

    def __init__(self):
        self.found = set()

    def on_step_end(self, args, state, control, model=None, optimizer=None, **_):
        states = getattr(optimizer, "optimizer", optimizer).state
        for parameter in model.parameters():
            tensors = [
                parameter,
                *(each for each in states.get(parameter, {}).values() if torch.is_tensor(each)),
            ]
            self.found |= {each.data_ptr() % 64 for each in tensors}


def test_a_resumed_training_computes_in_aligned_memory(tiny_encoder_with_dropout, tmp_path):
    recipe = small.recipe(tmp_path, tiny_encoder_with_dropout, *RHYTHM, "training.optim=muon", "peft={}")
    run = killed(recipe, tmp_path / "killed")
    seen = Alignment()
    train(recipe, run.folder, resume=True, callbacks=[seen])
    assert seen.found == {0}


def test_told_after_the_last_step_what_is_left_is_done_on_resume(recipe, uninterrupted, tmp_path):
    raised(
        KeyboardInterrupt, train, recipe, tmp_path / "run", callbacks=[Told(12, signal.SIGINT, after=True)]
    )
    same(train(recipe, tmp_path / "run", resume=True), uninterrupted)


class Told(TrainerCallback):
    """Sends this process a signal in a step."""

    def __init__(self, at, number, times=1, after=False):
        self.at = at
        self.number = number
        self.times = times
        self.after = after

    def on_pre_optimizer_step(self, args, state, control, **_):
        if state.global_step + 1 == self.at and not self.after:
            for _time in range(self.times):
                self.send()

    def on_train_end(self, args, state, control, **_):
        if self.after:
            self.send()

    def send(self):
        """And wait until it is heard, which another thread may delay."""
        handler = signal.getsignal(self.number)
        os.kill(os.getpid(), self.number)
        while handler != signal.SIG_IGN and signal.getsignal(self.number) == handler:
            time.sleep(0.01)


# --- what has changed since


def files(run):
    return {path: sha256(path) for path in run.folder.rglob("*") if path.is_file()}


def test_a_refused_checkpoint_leaves_the_run_as_it_was(recipe, uninterrupted, run):
    """Whatever is refused: other libraries without --changed; a kind of checkpoint, another optimizer with
    it.
    """
    environment = read_json(run.folder / "environment.json")
    others = {"versions": environment["versions"] | {"torch": "1.0", "peft": None}}
    write_json(run.folder / "environment.json", others)
    before = files(run)
    said = r"(?s)torch 1\.0, now .*; peft None, now .*resume and changed"
    raises(UserError, said, train, recipe, run.folder, resume=True)
    more = {"data": ROWS, "resume": True, "changed": True, "optim": "adafactor"}
    raises(ModelError, "has another optimizer", train, recipe, run.folder, **more)
    assert files(run) == before
    train(recipe, run.folder, resume=True, changed=True)
    assert read_json(run.folder / "environment.json")["versions"] == environment["versions"]
    same(run, uninterrupted)


@pytest.fixture(scope="module")
def runs(tiny_encoder, room):
    """Killed ones."""
    larger = resized(tiny_encoder, room / "larger", vocab_size=53)
    used = "training.used_embeddings=true"
    kinds = {
        "used": (tiny_encoder, used),
        "adapter": (tiny_encoder, "peft={r: 2}"),
        "vocabulary": (larger, used),
    }
    return {
        name: killed(small.recipe(room / name, encoder, *RHYTHM, more), room / name / "run")
        for name, (encoder, more) in kinds.items()
    }


@pytest.fixture(scope="module")
def places(tiny_encoder, room):
    """Other encoders, and training rows with a third label."""
    rows = small.rows("single-label", 15)
    return {
        "tiny": tiny_encoder,
        "wider": resized(tiny_encoder, room / "wider", hidden_size=32),
        "one_layer": build_encoder(room / "one", layers=1),
        "three_layers": build_encoder(room / "three", layers=3),
        "rows": write_rows(room / "other.jsonl", [*rows, {**rows[0], "label": "neither"}]),
    }


@pytest.mark.parametrize(
    ("kind", "change", "what"),
    [
        (
            "used",
            "data.source.train={rows}",
            r"classifier\.bias was \[2\] when it was written, and is \[3\] now",
        ),
        ("used", "model.name={wider}", r"\S+ was \[16\] when it was written, and is \[32\] now"),
        (
            *("vocabulary", "model.name={tiny}"),
            r"\S+\.word_embeddings\.weight was \[53, 16\] when it was written, and is \[42, 16\] now",
        ),
        ("adapter", "peft.r=3", r"\S+lora_A\.weight was \[2, 16\] when it was written, and is \[3, 16\] now"),
        ("used", "model.name={three_layers}", r"bert\.encoder\.layer\.2\.\S+ was absent when it was written"),
        ("used", "model.name={one_layer}", r"bert\.encoder\.layer\.1\.\S+ was .*, and is absent now"),
        ("adapter", "model.name={one_layer}", r"\S+\.layer\.1\.\S+lora_A\.weight was .*, and is absent now"),
    ],
)
def test_a_model_of_other_weights_is_refused(kind, change, what, runs, places):
    """Also where only the used rows of the word embedding are trained; and the run stays as it was."""
    run = runs[kind]
    before = files(run)
    said = rf"checkpoint-6: the weight {what}.*\n.*or start a new run"
    other = run.recipe.with_(change.format(**places))
    raises(ModelError, said, train, other, run.folder, resume=True, changed=True)
    assert files(run) == before


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`")
def test_lora_of_an_embedding_which_peft_then_writes_too(tiny_encoder, tmp_path):
    encoder = of_family("eurobert", tiny_encoder, tmp_path / "eurobert", num_key_value_heads=2)
    given = small.recipe(tmp_path, encoder, *RHYTHM, "peft={r: 2, target_modules: [embed_tokens, q_proj]}")
    run = killed(given, tmp_path / "run")
    assert any(
        name.endswith("base_layer.weight") for name in load_file(newest(run) / "adapter_model.safetensors")
    )
    assert train(given, run.folder, resume=True).finished


def resized(encoder, folder, **sizes):
    """Another encoder with the same tokens."""
    config = AutoConfig.from_pretrained(encoder)
    config.update(sizes)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder)
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_another_program_trains_in_the_meantime_keeps_its_recipe(
    resume, recipe, tmp_path, monkeypatch
):
    """A program checks the folder before its model is downloaded, and takes the lock after it."""
    run = Run(tmp_path / "run")
    head = recipe.with_("task.method=head", "~training")
    real = metadata.prepare_jobs

    def slowly(*arguments):
        monkeypatch.setattr(metadata, "prepare_jobs", real)
        shutil.rmtree(run.folder, ignore_errors=True)
        train(head, run.folder)
        return real(*arguments)

    if resume:
        killed(recipe, run.folder, at=1)
    monkeypatch.setattr(metadata, "prepare_jobs", slowly)
    said = "started with another recipe" if resume else "holds a finished run"
    raises(UserError, said, train, recipe, run.folder, resume=resume)
    assert run.recipe == head
    assert run.results["seeds"][0]["steps"] == 0


def test_a_training_with_another_recipe_is_not_taken_for_this_ones(recipe, run, tmp_path):
    done = train(recipe.with_("task.method=head", "~training"), tmp_path / "done")
    (done.folder / "results.json").unlink()
    seed = run.checkpoints / "seed-42"
    other = recipe.with_("training.weight_decay=0.1")
    for folder, mine in ((done.checkpoints / "seed-42", recipe), (seed, other)):
        started = Run(shutil.copytree(run.folder, tmp_path / folder.parts[-3] / "run", dirs_exist_ok=True))
        shutil.rmtree(started.checkpoints)
        shutil.copytree(folder, started.checkpoints / "seed-42")
        write_text(started.folder / "recipe.yaml", to_yaml(mine))
        before = files(started)
        said = r"seed-42: contains checkpoints of another recipe\n.*resume and changed"
        raises(RecipeError, said, train, mine, started.folder, resume=True)
        assert files(started) == before
    (seed / "recipe.sha256").unlink()
    raises(
        RecipeError, "seed-42: contains checkpoints of another recipe", train, recipe, run.folder, resume=True
    )
    again = recipe.with_("seeds=[42, 43]", "verify=true")  # which change no training
    assert train(again, run.folder, resume=True, changed=True).finished


def test_what_transformers_refuses_on_resume_is_said(recipe, run):
    """A resumed training has its step before it has its optimizer; errors of its own steps are no user's."""
    before = files(run)
    other = recipe.with_("training.lr_scheduler_type=warmup_stable_decay", "training.warmup_steps=20")
    said = r"training: warm-up \(20\) and decay \(2\) exceed all 12 steps"
    raises(RecipeError, said, train, other, run.folder, resume=True, changed=True)
    assert files(run) == before
    raises(ValueError, "a defect", train, recipe, run.folder, resume=True, callbacks=[Defect()])


class Defect(TrainerCallback):
    """Fails after a step."""

    def on_step_end(self, args, state, control, **_):
        raise ValueError("a defect")


def test_what_has_changed_is_recorded_before_anything_is_trained(recipe, run):
    """By steps, or for few rows without them; and where all that is left to do is after the training."""
    data = read_json(run.folder / "data.json")
    longer = recipe.with_("training.num_train_epochs=4")
    write_json(run.folder / "data.json", data | {"fingerprints": {"train": "others"}})
    for other, said in ((longer, "num_train_epochs: 4"), (recipe, "sha256 differs")):
        raises(UserError, said, train, other, run.folder, resume=True)
    with pytest.MonkeyPatch.context() as patched:
        kill(patched, at=1)
        raised(Killed, train, recipe, run.folder, data=ROWS, resume=True, changed=True)
    assert run.recipe.data.source == "memory"
    assert sorted(path.name for path in (run.folder / "data").iterdir()) == [
        "train.parquet",
        "validation.parquet",
    ]
    head = recipe.with_("task.method=head", "~training")
    with patch.dict(METHODS, head=Mock(side_effect=Killed)):
        raised(Killed, train, head, run.folder, resume=True, changed=True)
    assert run.recipe == head
    with patch("bertkit.training.finish.publish", side_effect=Killed):
        raised(Killed, train, recipe, run.folder, resume=True, changed=True)
    assert run.recipe == recipe
    assert train(longer, run.folder, resume=True, changed=True).recipe == longer
    assert read_json(run.folder / "data.json") == data


# --- what a checkpoint holds


def drawn():
    return [
        random.random(),
        random.gauss(0, 1),
        *np.random.rand(3),
        np.random.randn(),
        *torch.rand(3).tolist(),
    ]


def test_random_states_come_back(tmp_path):
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    np.random.randn()  # leaves a second gaussian in the generator
    random.gauss(0, 1)
    checkpoint.save_random(tmp_path, 0)
    first = drawn()
    second = drawn()
    assert first != second
    checkpoint.load_random(tmp_path, 0)
    assert [drawn(), drawn()] == [first, second]


def test_the_random_state_of_an_apple_gpu_comes_back(tmp_path, monkeypatch):
    state = torch.arange(4, dtype=torch.uint8)
    back = Mock()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("mps"))
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.mps, "set_rng_state", back)
    checkpoint.save_random(tmp_path, 0)
    checkpoint.load_random(tmp_path, 0)
    assert torch.equal(back.call_args.args[0], state)


def test_the_loss_scaler_of_fp16_comes_back(tmp_path):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    scaler, again = (torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3) for _ in range(2))
    for factor in (1.0, 1e38, 1.0):  # the second one overflows, which halves the scale
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    checkpoint.save_optimizer(tmp_path, optimizer, scheduler, scaler)
    checkpoint.load_optimizer(tmp_path, optimizer, scheduler, again)
    assert scaler.get_scale() == 512.0
    assert again.state_dict() == scaler.state_dict()


def test_what_is_renamed_is_on_the_disk(tmp_path, monkeypatch):
    """Else a power cut could leave the name without the contents."""
    flushed = set()  # inodes
    before = []
    fsync = os.fsync
    replace = Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (flushed.add(os.fstat(number).st_ino), fsync(number)))
    monkeypatch.setattr(Path, "replace", lambda *both: (before.append({*flushed}), replace(*both))[1])
    (tmp_path / "aside").mkdir()
    for name in ("model.safetensors", "config.json"):  # by other libraries, which flush nothing
        (tmp_path / "aside" / name).write_text(name)
    checkpoint.publish(tmp_path / "aside", tmp_path / "checkpoint-1")
    assert {file.stat().st_ino for file in (tmp_path / "checkpoint-1").iterdir()} <= before[-1]
    write_text(tmp_path / "results.json", "{}")
    assert (tmp_path / "results.json").stat().st_ino in before[-1]
    assert checkpoint.is_intact(tmp_path / "checkpoint-1")


def test_a_damaged_best_checkpoint_is_named(tiny_encoder_with_dropout, tmp_path, monkeypatch):
    evaluations = count(1)  # the first is the best
    monkeypatch.setattr(TaskData, "evaluate", lambda *_: {"accuracy": 1 / next(evaluations)})
    given = small.recipe(tmp_path, tiny_encoder_with_dropout, *RHYTHM, "training.save_total_limit=2")
    run = killed(given, tmp_path / "run")
    best = run.checkpoints / "seed-42/checkpoint-3/model.safetensors"
    whole = best.read_bytes()
    best.write_bytes(whole[:-7])
    raises(ModelError, "checkpoint-3: the best checkpoint is damaged", train, given, run.folder, resume=True)
    best.write_bytes(whole)
    train(given, run.folder, resume=True)
    names = [path.name for path in checkpoint.checkpoints(run.checkpoints / "seed-42")]
    assert names == ["checkpoint-3", "checkpoint-12"], "old ones go, and the best stays"


def test_the_evaluation_at_the_start_is_not_repeated(tiny_encoder_with_dropout, tmp_path):
    more = (*RHYTHM, "training.eval_on_start=true", "early_stopping={patience: 4}")
    run, whole = resumed(small.recipe(tmp_path, tiny_encoder_with_dropout, *more), tmp_path)
    assert events(run) == events(whole)


def test_more_patience_continues_a_training_that_stopped_early(
    tiny_encoder_with_dropout, tmp_path, monkeypatch
):
    given = small.recipe(tmp_path, tiny_encoder_with_dropout, *RHYTHM, "early_stopping={patience: 1}")
    scores = count(0.0, -0.1)
    score = TaskData.evaluate
    monkeypatch.setattr(TaskData, "evaluate", lambda *more: {**score(*more), "accuracy": next(scores)})
    with patch("bertkit.training.seed.merge_and_calibrate", side_effect=Killed):
        raised(Killed, train, given, tmp_path / "run")
    longer = given.with_("early_stopping.patience=9")
    [outcome] = train(longer, tmp_path / "run", resume=True, changed=True).results["seeds"]
    assert outcome["steps"] == 12


class Counting(TrainerCallback, ExportableState):
    """Adds a number at each step."""

    def __init__(self, by=1):
        self.by = by
        self.sum = 0

    def on_step_end(self, args, state, control, **_):
        self.sum += self.by

    def state(self):
        return {"args": {"by": self.by}, "attributes": {"sum": self.sum}}


def test_two_callbacks_of_one_class_are_restored_each(tiny_encoder_with_dropout, tmp_path, monkeypatch):
    recipe = small.recipe(tmp_path, tiny_encoder_with_dropout, *RHYTHM)
    sums = {}
    ended = lambda self, args, state, control, **_: sums.update({self.by: self.sum})  # noqa: E731
    monkeypatch.setattr(Counting, "on_train_end", ended)
    run = killed(recipe, tmp_path / "run", callbacks=[Counting(1), Counting(10)])
    train(recipe, run.folder, resume=True, callbacks=[Counting(1), Counting(10)])
    assert sums == {1: 12, 10: 120}


def test_told_where_only_the_best_is_saved_it_is_saved_too(tiny_encoder_with_dropout, tmp_path):
    changes = ("training.save_strategy=best", "training.eval_strategy=epoch", "training.learning_rate=1e-30")
    usual = [change for change in RHYTHM if "eval" not in change]
    recipe = small.recipe(tmp_path, tiny_encoder_with_dropout, *usual, *changes)
    told = Told(12, signal.SIGINT)  # in the last step, whose score is that of the others
    raised(KeyboardInterrupt, train, recipe, tmp_path / "run", callbacks=[told])
    assert latest_intact(tmp_path / "run/checkpoints/seed-42")[0].name == "checkpoint-12"


def test_a_lower_learning_rate_is_that_of_a_resumed_training(recipe, run):
    train(recipe.with_("training.learning_rate=1e-9"), run.folder, resume=True, changed=True)
    events = read_rows(run.folder / "metrics.jsonl")
    rates = [event["learning_rate"] for event in events if event["step"] > 6 and "learning_rate" in event]
    assert max(rates) <= 1e-9


def test_a_score_of_another_metric_is_not_the_one_to_beat(tiny_encoder_with_dropout, tmp_path, monkeypatch):
    scores = count(0.5, 0.01)  # of f1_macro: rising, but below the accuracy
    monkeypatch.setattr(TaskData, "evaluate", lambda *_: {"accuracy": 0.9, "f1_macro": next(scores)})
    run = killed(small.recipe(tmp_path, tiny_encoder_with_dropout, *RHYTHM), tmp_path / "run")
    other = run.recipe.with_("training.metric_for_best_model=f1_macro")
    assert train(other, run.folder, resume=True, changed=True).results["seeds"][0]["best_step"] == 12


def test_evaluations_are_as_often_as_the_recipe_says_now(recipe, run):
    train(recipe.with_("training.eval_steps=2"), run.folder, resume=True, changed=True)
    events = read_rows(run.folder / "metrics.jsonl")
    assert [e["step"] for e in events if "eval_accuracy" in e and e["step"] > 6] == [8, 10, 12]


def test_a_seed_that_was_the_only_one_is_compared_with_those_that_are_added(recipe, tmp_path):
    with patch("bertkit.training.finish.over_seeds", side_effect=Killed):
        raised(Killed, train, recipe, tmp_path / "run")
    more = recipe.with_("seeds=[43, 42]")
    results = train(more, tmp_path / "run", resume=True, changed=True).results
    assert None not in [outcome["headline"] for outcome in results["seeds"]]
    assert "validation" in results["over_seeds"]


def test_an_adapter_that_cannot_be_written_is_named(tiny_encoder, tmp_path):
    given = small.recipe(tmp_path, tiny_encoder, "peft={r: 2}", "training.max_steps=1")
    with patch("bertkit.training.seed.save_adapter", side_effect=SafetensorError("No space left")):
        raises(ModelError, "cannot be written", train, given, tmp_path / "run")


def test_killed_while_it_marks_a_seed_it_is_resumed(recipe, tmp_path):
    run = killed(recipe, tmp_path / "run", at=1)
    seed = run.checkpoints / "seed-42"
    (seed / "recipe.sha256").rename(seed / ".recipe.sha256.0a1b2c3d.writing")
    assert train(recipe, run.folder, resume=True).finished


def test_betas_are_those_of_the_recipe_now(recipe, run):
    train(recipe.with_("training.adam_beta2=0.5"), run.folder, resume=True, changed=True)
    saved = read_json(newest(run) / "optimizer.json")["plain"]
    assert saved["groups.0.betas"] == [0.9, 0.5]


def test_another_metric_selects_among_the_checkpoints_that_are_kept(
    tiny_encoder_with_dropout, tmp_path, monkeypatch
):
    scores = count(0.5, -0.01)  # of f1_macro: that of step 3 is the best
    monkeypatch.setattr(TaskData, "evaluate", lambda *_: {"accuracy": 0.9, "f1_macro": next(scores)})
    more = (*RHYTHM, "training.save_total_limit=9")
    given = small.recipe(tmp_path, tiny_encoder_with_dropout, *more)
    with patch("bertkit.training.seed.merge_and_calibrate", side_effect=Killed):
        raised(Killed, train, given, tmp_path / "run")
    other = given.with_("training.metric_for_best_model=f1_macro")
    assert train(other, tmp_path / "run", resume=True, changed=True).results["seeds"][0]["best_step"] == 3


def test_a_schedule_that_follows_scores_is_not_continued_by_steps(recipe, run):
    other = recipe.with_("training.lr_scheduler_type=reduce_lr_on_plateau")
    raises(ModelError, "lr_scheduler_type", train, other, run.folder, resume=True, changed=True)


def test_a_training_that_ended_after_its_first_step_resumes_without_a_warning(recipe, tmp_path):
    often = recipe.with_("training.save_strategy=steps", "training.save_steps=1", "training.eval_steps=1")
    run = killed(often, tmp_path / "run", at=4)
    assert [path.name for path in checkpoint.checkpoints(run.checkpoints / "seed-42")] == ["checkpoint-1"]
    assert train(often, run.folder, resume=True).finished


def test_a_signal_to_the_group_does_not_reach_the_workers_of_a_loader(tiny_encoder, tmp_path):
    args = arguments(tmp_path, 4, 1, dataloader_num_workers=1)
    reading = iter(made(CASES[0], tiny_encoder, args).get_train_dataloader())
    next(reading)
    assert os.getpgid(reading._workers[0].pid) != os.getpgid(0)
