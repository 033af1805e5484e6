"""`sweep`: what a space may say, which trial wins, what an interruption leaves, and what is claimed of the
winner.
"""

import json
import re
import warnings
from math import isfinite, log10, nan
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import optuna
import pytest
import small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertkit.cli.main import main
from bertkit.errors import DataError, ModelError, Problem, RecipeError, UserError
from bertkit.files import sha256, write_json, write_text
from bertkit.recipe.recipe import load_recipe, to_yaml
from bertkit.recipe.yaml import parse as parse_yaml
from bertkit.report.paired import Difference, Pair
from bertkit.run import Run
from bertkit.sweeps import sweep as program
from bertkit.sweeps import trials
from bertkit.sweeps.space import Range, _distribution, brief, contains, decoded, read_space, suggest
from bertkit.sweeps.sweep import Sweep, sweep, verdict

SPACE = (
    "training.learning_rate: {low: 1e-4, high: 1e-1, log: true}\ntraining.per_device_train_batch_size: "
    "[2, 4, 8]\n"
)


@pytest.fixture(scope="module")
def room(tiny_encoder, tmp_path_factory):
    """A folder with a small recipe and a space."""
    folder = tmp_path_factory.mktemp("sweep")
    small.write_recipe(folder, tiny_encoder)
    (folder / "space.yaml").write_text(SPACE)
    return folder


def recipe_of(room, *overrides):
    return load_recipe(room / "small.yaml", overrides)


@pytest.fixture(autouse=True)
def _prune_early(monkeypatch):
    """The median rule from the second trial on: a test has no time for five."""
    monkeypatch.setattr(trials, "MedianPruner", lambda: optuna.pruners.MedianPruner(n_startup_trials=1))


# --- a trainer that takes no time: its score is a formula, so that the best settings are known


def formula(recipe):
    """Best at a rate of 1e-2 and a batch of 4; a bit different with each seed."""
    rate = recipe.training["learning_rate"]
    batch = recipe.training["per_device_train_batch_size"]
    return 0.9 - 0.2 * abs(log10(rate) + 2) - 0.05 * abs(batch - 4) + recipe.seeds[0] % 7 / 1000


class Trainer:
    """Stands for `train`: three evaluations, then results. It can be interrupted at any of its moments, by
    number.
    """

    def __init__(self, score=formula):
        self.score = score
        self.moment = 0
        self.interrupt = set()
        self.trained = []

    def pass_moment(self):
        self.moment += 1
        if self.moment in self.interrupt:
            raise KeyboardInterrupt

    def __call__(self, recipe, folder, resume, *, callbacks):
        assert resume == (folder / "recipe.yaml").is_file()
        if not resume:
            assert not folder.exists()
            write_text(folder / "recipe.yaml", to_yaml(recipe))
        self.pass_moment()
        for watch in callbacks:
            for number in (1, 2, 3):
                value = self.score(recipe) * number / 3
                state = SimpleNamespace(log_history=[{"eval_accuracy": value}] * number)
                watch.on_evaluate(None, state, None, metrics={"eval_accuracy": value})
                self.pass_moment()
        scores = [self.score(recipe.model_copy(update={"seeds": [seed]})) for seed in recipe.seeds]
        outcomes = [{"headline": score if isfinite(score) else None} for score in scores]
        (folder / "model").mkdir(exist_ok=True)
        scores = {"validation": {"intervals": {"accuracy": [0.25, 0.75]}}}
        write_json(folder / "results.json", {"seeds": outcomes, "splits": scores})
        self.trained.append(folder.name)
        self.pass_moment()
        return Run(folder)


@pytest.fixture
def trainer(monkeypatch):
    """In place of `train`, and of the rehearsal before it."""
    made = Trainer()
    monkeypatch.setattr(trials, "train", lambda *args, **more: made(*args, **more))
    monkeypatch.setattr(program, "_dry_run", lambda *_: rehearsed("0"))
    monkeypatch.setattr(program, "_paired", lambda *runs: paired(0.01, 0.2))
    return made


def rehearsed(digest):
    """A job whose data have this fingerprint."""
    return SimpleNamespace(headline="accuracy", data=SimpleNamespace(fingerprints={"train": digest}))


def paired(low, high, p=0.01):
    """Two runs, whose difference has this interval, and whose test this p-value."""
    difference = Difference(0.5, 0.5 + (low + high) / 2, (low, high))
    return Pair(("base", "best"), "", "f1", "160 rows", {"f1": difference}, ("McNemar's exact test", p))


def states(done):
    return [trial["state"] for trial in done.results["trials"]]


# --- the space


def problems(room, text, name="bad.yaml"):
    (room / name).write_text(text)
    return [
        f"{Path(p.where).name} {p.what} | {p.fix}"
        for p in small.problems_of(RecipeError, read_space, room / name, load_recipe(room / "small.yaml"))
    ]


def test_everything_that_is_wrong_with_a_space_is_said_at_once_with_its_line(room):
    text = """\
training.learning_rat: [1e-5, 2e-5]
training.weight_decay: {low: 0.0, high: -0.1}
training.warmup_steps: {low: 0.0, hihg: 0.2}
training.per_device_train_batch_size: [16, many]
training.adam_beta1:
  low: 0.5
  high: 1.5
model.max_length: {low: 4, high: 32, step: 3}
seeds: [1, 2]
data.limit: [10, 20]
task: [a, b]
peft: [null, {r: 8}]
peft.r: [4, 8]
training.max_grad_norm: 1.0
training.num_train_epochs: []
training.label_smoothing_factor: {low: 0, high: 0.1, log: true}
verify: [true, false]
"""
    said = "\n".join(problems(room, text))
    for line, words in (
        (1, "learning_rat: unknown key; did you mean 'learning_rate'"),
        (2, "weight_decay: .*low <= high"),
        (3, "hihg: unknown key; did you mean 'high'"),
        (3, "high: missing"),
        (4, r"batch_size\[1\]: expected a whole number, found text 'many'"),
        (7, "adam_beta1.high: .*1.5"),
        (8, "max_length: .*not divisible"),
        (9, "seeds: cannot be swept"),
        (10, "data.limit: cannot be swept: .* other rows"),
        (11, "task: cannot be swept"),
        (13, "peft.r: contradicts peft"),
        (14, "max_grad_norm: expected a range or a list of choices, found the number 1.0"),
        (15, "num_train_epochs: has no choices"),
        (16, "label_smoothing_factor: .*low > 0"),
        (17, "verify: cannot be swept"),
    ):
        assert re.search(rf"bad.yaml:{line} .*{words}", said), (line, words, said)


def test_a_file_that_is_no_space(room):
    for text, words in (("", "the space is empty"), ("- a", "expected a mapping"), ("a: [", "YAML")):
        assert words in problems(room, text)[0]
    small.raises(
        RecipeError,
        "cannot be read: No such file",
        read_space,
        room / "nowhere.yaml",
        load_recipe(room / "small.yaml"),
    )


def test_a_space_from_python_has_numpys_numbers_tuples_and_paths(room):
    space = {
        "training.per_device_train_batch_size": (np.int64(2), 4),
        "model.name": [Path(recipe_of(room).model.name)],
    }
    found = read_space(space, recipe_of(room)).space.values()
    assert [choices.choices for choices in found] == [("2", "4"), (json.dumps(recipe_of(room).model.name),)]


def test_a_choice_stays_on_its_line():
    assert [*map(brief, ("a b", "a\nb", 0.123456))] == ["a b", r'"a\nb"', "0.1235"]


def test_values_that_only_transformers_or_the_model_refuse_are_found_before_training(room):
    (room / "late.yaml").write_text("training.save_strategy: [epoch, steps]\nmodel.max_length: [32, 4096]\n")
    said = small.message_of(
        RecipeError,
        sweep,
        recipe_of(room).with_("training.eval_strategy=epoch"),
        room / "late.yaml",
        room / "never",
    )
    assert re.search(r"late.yaml:1: training.save_strategy\[1\]: .*strategy", said, re.DOTALL)
    assert re.search(r"late.yaml:2: model.max_length\[1\]: .*reads at most 64", said)
    assert not (room / "never").exists()


@settings(max_examples=20)
@given(
    low=st.integers(1, 500),
    size=st.integers(1, 500),
    count=st.integers(1, 9),
    kind=st.sampled_from("whole log step free".split()),
)
def test_what_is_drawn_is_in_the_space_and_survives_the_recipe(low, size, count, kind):
    ends = [low, low + size * count] if kind == "whole" else [low / 100, (low + size * count) / 100]
    step = {"whole": size, "step": size / 100}.get(kind)
    distribution = Range(low=ends[0], high=ends[1], log=kind == "log", step=step).distribution()
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)).ask()
    suggest(trial, "training.x", distribution)
    value = trial.params["training.x"]
    assert contains(distribution, value)
    assert contains(distribution, ends[0])
    assert isinstance(value, int if kind == "whole" else float)
    assert json.loads(json.dumps(value)) == value
    assert not contains(distribution, ends[1] * 1.01 + 1)


def test_choices_hold_any_value_of_a_recipe():
    values = [None, True, 1, 1.0, "1", {"r": 8}, ["a"]]
    distribution, wrong = _distribution(values)
    assert not wrong
    assert all(contains(distribution, value) for value in values)
    assert [decoded(text) for text in distribution.choices] == values
    assert not contains(distribution, False)


# --- the trials, with a score that is known


def test_the_search_finds_what_is_better_and_says_what_it_is_worth(trainer, room, tmp_path):
    recipe = recipe_of(room, "training.learning_rate=1e-4", "hub.repo_id=me/model", "seeds=[5, 6]")
    done = sweep(recipe, room / "space.yaml", tmp_path / "s", trials=25, confirm=3)
    told = done.results
    first = told["trials"][0]
    assert first["changes"] == {}
    assert first["score"] == pytest.approx(formula(recipe))
    complete = [trial for trial in told["trials"] if trial["state"] == "complete"]
    assert told["winner"] == max(complete, key=lambda t: t["score"])["number"] != 0
    assert 1e-3 < told["changes"]["training.learning_rate"] < 1e-1
    assert told["better"] is True
    assert told["seeds"] == [6, 7, 8]
    best = load_recipe(tmp_path / "s/best.yaml")
    assert best.seeds == told["seeds"]
    assert best.hub is not None
    assert best.training["learning_rate"] == told["changes"]["training.learning_rate"]
    assert done.best.recipe == best.model_copy(update={"hub": None})
    assert told["scores"]["best"] == [formula(best.model_copy(update={"seeds": [s]})) for s in best.seeds]
    assert told["scores"]["defaults"] == [
        formula(recipe.model_copy(update={"seeds": [s]})) for s in best.seeds
    ]
    head = (tmp_path / "s/best.yaml").read_text().splitlines()[0]
    assert head == f"# {told['verdict'][0]}"
    assert re.search(r"for (\d) of \1 fresh seed", head)
    assert "pruned" in states(done)
    assert len(done.study.trials) == 25
    with warnings.catch_warnings(action="ignore"):  # that it is experimental, and of few trials
        axes = optuna.visualization.matplotlib.plot_slice(done.study)
    assert [each.get_xlabel() for each in axes] == [*parse_yaml(SPACE).data]
    for trial in told["trials"]:
        assert not (tmp_path / "s/trials" / f"{trial['number']:04d}" / "model").exists()


def test_a_recipe_that_is_best_as_it_is_stays_and_a_winner_by_luck_is_called_one(trainer, room, tmp_path):
    base = recipe_of(room, "training.learning_rate=1e-2")
    done = sweep(base, room / "space.yaml", tmp_path / "s", trials=5, confirm=2)
    assert (done.results["winner"], done.results["better"]) == (0, False)
    assert done.results["verdict"][0].startswith("No trial is better than the base recipe")
    assert not (tmp_path / "s/defaults").exists()
    assert done.best.recipe.training["learning_rate"] == 1e-2
    # Fresh seeds score all settings alike: what the search found was noise.
    trainer.score = lambda recipe: formula(recipe) if recipe.seeds[0] == 42 else 0.5
    told = sweep(recipe_of(room), room / "space.yaml", tmp_path / "luck", trials=8, confirm=2).results
    assert told["winner"] != 0
    assert told["better"] is False
    assert told["verdict"][0].startswith(
        "NOT better than the base recipe: accuracy 0.5000 ± 0.0000, base 0.5000"
    )


def test_verdicts():
    better = paired(0.01, 0.3)
    for best, pair, start, wins in (
        ([0.9, 0.8], better, "Better than the base recipe", 2),
        ([0.9, 0.6], better, "Better than the base recipe", 1),
        ([0.9, 0.7], better, "Better than the base recipe", 1),  # a tie is no win
        ([0.9, 0.8], paired(-0.01, 0.3), "NOT distinguishable from the base recipe", 2),
        ([0.9, 0.8], paired(0.01, 0.3, p=0.05), "NOT distinguishable from the base recipe", 2),
        (
            [0.9, 0.8],
            paired(-0.3, -0.1),
            "NOT distinguishable from the base recipe",
            2,
        ),  # as the models of one seed
    ):
        first, second, last = verdict("f1", 3, 0.95, best, [0.7, 0.7], pair)
        assert first.startswith(f"{start}, with a higher score for {wins} of 2 fresh seeds: f1 ")
        assert second == pair.verdict
        assert "scored 0.9500 in the search" in last
    assert "(95 % interval -0.0100 … 0.3000; McNemar's exact test: p = 0.010)" in paired(-0.01, 0.3).verdict
    assert verdict("f1", 3, 0.95, [0.7], [0.7], better)[0].startswith("NOT better")
    alone = Pair(("base", "best"), "They share no row.", "f1")  # as of documents
    for best, start in (([0.9, 0.8], "Better"), ([0.9, 0.6], "NOT distinguishable"), ([0.9], "NOT dist")):
        first, last = verdict("f1", 3, 0.95, best, [0.7, 0.7][: len(best)], alone)
        assert first.startswith(start)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moments=st.sets(st.integers(1, 28), min_size=1, max_size=5),
    torn=st.binary(max_size=9).filter(lambda b: b"\n" not in b),
)
def test_an_interrupted_sweep_goes_on_as_if_it_had_not_been(moments, torn, trainer, room, tmp_path_factory):
    """At any moment of any trial, with half a line in the journal and a lock that nobody holds any more."""
    folder = tmp_path_factory.mktemp("interrupted")
    recipe = recipe_of(room)
    trainer.interrupt = set()
    trainer.moment = 0
    if not (room / "whole/sweep.json").is_file():
        sweep(recipe, room / "space.yaml", room / "whole", trials=5, confirm=1)
    whole = Sweep(room / "whole")
    trainer.interrupt = moments
    trainer.moment = 0
    for _ in range(len(moments) + 1):
        try:
            parts = sweep(recipe, room / "space.yaml", folder / "parts", trials=5, confirm=1)
            break
        except KeyboardInterrupt:
            with (folder / "parts/study.jsonl").open("ab") as journal:
                journal.write(torn)
            (folder / "parts/study.jsonl.lock").symlink_to("study.jsonl")
    assert parts.results == whole.results
    assert (parts.folder / "best.yaml").read_text() == (whole.folder / "best.yaml").read_text()


def test_more_trials_go_on_from_fewer(trainer, room, tmp_path):
    recipe = recipe_of(room)
    few = sweep(recipe, room / "space.yaml", tmp_path / "s", trials=4, confirm=1).results
    trainer.trained.clear()
    assert sweep(recipe, room / "space.yaml", tmp_path / "s", trials=4, confirm=1).results == few
    more = sweep(recipe, room / "space.yaml", tmp_path / "s", trials=9, confirm=1).results
    assert more["trials"][:4] == few["trials"]
    whole = sweep(recipe, room / "space.yaml", tmp_path / "whole", trials=9, confirm=1).results
    assert more == whole
    assert Run(tmp_path / "s/best").recipe == Run(tmp_path / "whole/best").recipe
    hurried = sweep(recipe, room / "space.yaml", tmp_path / "hurried", trials=50, timeout=1e-9, confirm=1)
    assert (len(states(hurried)), hurried.results["winner"]) == (1, 0)  # its time is up after the first


def test_a_trial_that_fails_is_told_and_the_sweep_goes_on(trainer, room, tmp_path):
    def score(recipe):
        if recipe.training["per_device_train_batch_size"] == 8:
            raise UserError(Problem("training", "the loss is nan at step 3"))
        return formula(recipe)

    trainer.score = score
    done = sweep(recipe_of(room), room / "space.yaml", tmp_path / "s", trials=12, confirm=1)
    failed = [trial for trial in done.results["trials"] if trial["state"] == "fail"]
    assert failed
    assert all(trial["outcome"] == "failed: training: the loss is nan at step 3" for trial in failed)
    assert {trial["changes"]["training.per_device_train_batch_size"] for trial in failed} == {8}
    trainer.score = lambda _: nan
    with pytest.raises(UserError, match="accuracy is undefined in all of them"):
        sweep(recipe_of(room), room / "space.yaml", tmp_path / "none", trials=2, confirm=1)


def test_values_that_do_not_go_together_fail_and_the_sweep_goes_on(tiny_encoder, room, tmp_path):
    (room / "long.yaml").write_text("task.overflow: [truncate, error]\nmodel.max_length: [8, 32]\n")
    base = recipe_of(room, "training.max_steps=1", "seeds=[3]")
    done = sweep(base, room / "long.yaml", tmp_path / "s", trials=6, confirm=1).results
    failed = [trial for trial in done["trials"] if trial["state"] == "fail"]
    assert {(*trial["changes"].values(),) for trial in failed} <= {("error", 8)}
    assert failed


@pytest.mark.parametrize("kind", [DataError, ModelError])
def test_what_no_trial_can_help_stops_the_sweep_until_it_is_mended(kind, trainer, room, tmp_path):
    recipe = recipe_of(room)
    fine = sweep(recipe, room / "space.yaml", tmp_path / "fine", trials=3, confirm=1).results

    def score(recipe):
        raise kind(Problem("disk", "is full")) if len(trainer.trained) == 2 else AssertionError

    trainer.trained.clear()
    trainer.score = lambda recipe: formula(recipe) if len(trainer.trained) < 2 else score(recipe)
    small.raises(kind, "is full", sweep, recipe, room / "space.yaml", tmp_path / "s", trials=3, confirm=1)
    trainer.score = formula
    assert sweep(recipe, room / "space.yaml", tmp_path / "s", trials=3, confirm=1).results == fine


def test_of_equal_trials_the_first_wins(trainer, room, tmp_path):
    (room / "three.yaml").write_text("training.per_device_train_batch_size: [2, 4, 8]\n")
    trainer.score = lambda recipe: 0.5
    done = sweep(recipe_of(room), room / "three.yaml", tmp_path / "s", trials=12, confirm=1).results
    assert done["winner"] == 0
    assert done["changes"] == {}
    base = recipe_of(room).training["per_device_train_batch_size"]
    first = {}
    for trial in done["trials"]:
        size = trial["changes"].get("training.per_device_train_batch_size", base)
        known = first.setdefault(size, trial["number"])
        assert trial["outcome"].endswith(f", as trial {known}") == (known != trial["number"])
    assert len(first) == len([name for name in trainer.trained if name.isdigit()]) < 12


def test_another_recipe_space_or_data_do_not_go_on(trainer, room, tmp_path, monkeypatch):
    fewer = {"trials": 1, "confirm": 1}
    sweep(recipe_of(room), room / "space.yaml", tmp_path / "s", **fewer)
    (tmp_path / "other.yaml").write_text(SPACE.replace("8", "16"))
    before = small.files(tmp_path / "s")

    def refused(change, recipe, space):
        small.raises(
            UserError, f"is a sweep with another {change}", sweep, recipe, space, tmp_path / "s", **fewer
        )

    refused("recipe", recipe_of(room, "model.max_length=16"), room / "space.yaml")
    refused("space", recipe_of(room), tmp_path / "other.yaml")
    monkeypatch.setattr(program, "_dry_run", lambda *_: rehearsed("1"))
    refused("data", recipe_of(room), room / "space.yaml")
    assert small.files(tmp_path / "s") == before


def test_folders_of_something_else_or_damaged_and_calls_that_can_not_be_meant(
    trainer, room, tmp_path, monkeypatch
):
    sweep(recipe_of(room), room / "space.yaml", tmp_path / "s", trials=2, confirm=1)
    journal = tmp_path / "s/study.jsonl"
    whole = journal.read_bytes()
    call = (UserError, r"study\.jsonl: is damaged", sweep, recipe_of(room), room / "space.yaml")
    for damaged in (whole + b'{"op_code": 99, "worker_id": "x"}\n', whole.replace(b"\n", b"{\n", 2)):
        journal.write_bytes(damaged)
        small.raises(*call, tmp_path / "s", trials=2, confirm=1)
    (other := tmp_path / "other").mkdir()
    (other / "thesis.txt").write_text("mine")
    small.raises(
        UserError, "is neither empty nor a sweep", sweep, recipe_of(room), room / "space.yaml", other
    )
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    with monkeypatch.context() as patch:  # written by another program while the recipe is checked
        (late := tmp_path / "late").mkdir()
        patch.setattr(
            program,
            "_dry_run",
            lambda *_: rehearsed("0") if (late / "thesis.txt").write_text("mine") else None,
        )
        small.raises(
            UserError, "is neither empty nor a sweep", sweep, recipe_of(room), room / "space.yaml", late
        )
    assert {path.name for path in late.iterdir()} <= {"thesis.txt", ".lock"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    call = (UserError, sweep, recipe_of(room), room / "space.yaml", tmp_path / "new")
    assert len(small.problems_of(*call, trials=0, timeout=-1.0, confirm=0)) == 4


# --- the trials


def test_trials_are_listed_best_first(tmp_path):
    trials = [
        {"number": 0, "state": "complete", "score": 0.5, "outcome": "f1 0.5", "changes": {}},
        {
            "number": 1,
            "state": "fail",
            "score": None,
            "outcome": "failed: why",
            "changes": {"training.a": 1e-5},
        },
        {
            "number": 2,
            "state": "complete",
            "score": 0.6,
            "outcome": "f1 0.6",
            "changes": {"training.a": 2e-5},
        },
    ]
    write_json(tmp_path / "sweep.json", {"trials": trials})
    header, *lines = Sweep(tmp_path).table().splitlines()
    assert header.split() == ["trial", "outcome", "a"]
    assert [line.split() for line in lines if line.split()[0].isdigit()] == [
        "2 f1 0.6 2e-05".split(), "0 f1 0.5 base".split(), ["1", "failed:", "why", "1e-05"]
    ]  # fmt: skip


# --- all of it, with real training


def test_a_real_sweep_interrupted_in_a_trial_equals_one_that_was_not(room, tmp_path, monkeypatch, capsys):
    command = f"sweep {room}/small.yaml --space {room}/space.yaml --trials 2 --confirm 1".split()
    monkeypatch.setattr("bertkit.training.publish.write_reports", lambda *_: None)  # it takes most of a run
    more = ["training.num_train_epochs=2", "training.learning_rate=1e-2"]
    said = small.said(capsys, *command, "--output-dir", tmp_path / "whole", *more)
    assert "base recipe" in said
    right = trials.PruningCallback.on_evaluate
    seen = []

    def interrupted(self, *args, **more):
        seen.append(self.trial.number)
        right(self, *args, **more)
        if seen.count(1) == 2:
            seen.append(-1)
            raise KeyboardInterrupt

    monkeypatch.setattr(trials.PruningCallback, "on_evaluate", interrupted)
    parts = [*command, "--output-dir", str(tmp_path / "parts"), *more]
    assert main(parts) == 130
    assert "the same command continues from here" in capsys.readouterr().err
    assert list((tmp_path / "parts/trials/0001/checkpoints").rglob("manifest.json"))
    seen.clear()
    monkeypatch.setattr(trials.PruningCallback, "on_evaluate", right)
    assert main(parts) == 0
    whole = Sweep(tmp_path / "whole")
    again = Sweep(tmp_path / "parts")
    assert again.results == whole.results
    assert sha256(again.best.model / "model.safetensors") == sha256(whole.best.model / "model.safetensors")
    scores = [each["headline"] for each in again.best.results["seeds"]]
    assert scores == again.results["scores"]["best"]
    assert not list((tmp_path / "parts/trials").rglob("*.safetensors"))
    assert not [path for path in tmp_path.rglob("*") if path.suffix in ".pkl .db .bin .pt".split()]


# --- docs/scaling.md


def test_a_folder_at_home(trainer, room, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    done = sweep(recipe_of(room), room / "space.yaml", "~/swept", trials=1, confirm=1)
    assert done.folder == tmp_path / "swept"
    assert Sweep("~/swept").results == done.results


def test_shares_of_masks_are_not_compared(room):
    lines = problems(room, "task.mask_probability: [0.15, 0.4]\ntask.nsp: [nsp, none]\n")
    assert sum("cannot be swept: Remove it: scores on other masks" in line for line in lines) == 2
