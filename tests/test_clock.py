"""What changes in the course of a training: by its progress, which is read once per step."""

import math
import signal
from dataclasses import replace
from functools import partial

import multitask
import pytest
import small
import torch
from cases import BY_ID
from steps import Time, arguments, first_step, made
from test_multitask import trainer_of
from test_resume import Killed, Told, _signals, events, kill, same  # noqa: F401
from transformers import TrainerControl, TrainerState

from bertkit.engine.clock import Clock, schedule
from bertkit.engine.multitask import MultiTask
from bertkit.errors import RecipeError
from bertkit.files import read_json
from bertkit.recipe.recipe import load_recipe
from bertkit.sections import seconds
from bertkit.tasks.text_classification import TextClassification
from bertkit.training import seed
from bertkit.training.train import train

CASE = BY_ID["single-label"]


@pytest.fixture
def seen(monkeypatch):
    """The progress at which batches of text classification were scheduled."""
    seen = []
    scheduled = lambda self, batch, progress: seen.append(progress) or batch  # noqa: E731
    monkeypatch.setattr(TextClassification, "scheduled", scheduled)
    return seen


def test_each_micro_batch_of_a_step_is_scheduled_at_its_progress(seen, tiny_encoder, tmp_path):
    args = arguments(tmp_path, 2, 2, max_steps=4)  # two epochs
    made(CASE, tiny_encoder, args).train()
    assert seen == [0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]


def test_the_scheduled_batch_is_what_is_counted_and_learned(tiny_encoder, tmp_path, monkeypatch):
    """A step on the first rows of four micro-batches of two is the step on these four rows alone."""

    def first_row(self, batch, progress):
        return {name: values[:1] for name, values in batch.items()}

    plain = first_step(CASE, tiny_encoder, tmp_path / "plain", 2, 4)
    monkeypatch.setattr(TextClassification, "scheduled", first_row)
    loss, gradients = first_step(CASE, tiny_encoder, tmp_path / "some", 2, 4)
    monkeypatch.undo()
    micro = (
        made(CASE, tiny_encoder, arguments(tmp_path / "loader", 2, 4)).get_train_dataloader().batch_sampler
    )
    firsts = {name: [values[batch[0]] for batch in micro] for name, values in CASE.columns.items()}
    alone = first_step(replace(CASE, columns=firsts), tiny_encoder, tmp_path / "alone", 4, 1)
    assert loss == pytest.approx(alone[0], rel=1e-5)
    assert loss != pytest.approx(plain[0], rel=1e-4)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, alone[1][name], rtol=1e-3, atol=1e-6)


def test_each_of_several_tasks_schedules_its_own_batches(seen, tiny_encoder, tmp_path, monkeypatch):
    read = []

    def drawn(self, batch, progress, real=MultiTask.scheduled):
        read.append(batch["task"])
        return real(self, batch, progress)

    monkeypatch.setattr(MultiTask, "scheduled", drawn)
    trainer_of(tmp_path, multitask.recipe(tiny_encoder, "sentiment", "answers"), max_steps=16).train()
    assert read.count("sentiment") == len(seen) == len(read) // 2 > 0
    assert seen == sorted(seen)
    assert seen[-1] > 0.5


# --- a budget of time


@pytest.fixture
def timed(monkeypatch):
    """`train`, by a clock of its own."""

    def run(recipe, folder, time, callbacks=(), **more):
        monkeypatch.setattr(seed, "Clock", partial(Clock, now=time))
        return train(recipe, folder, callbacks=[*callbacks, time], **more)

    return run


BY_TIME = ("~training.num_train_epochs", "training.gradient_accumulation_steps=2", "training.logging_steps=1")
# 4 steps an epoch
BY_TWO = (
    *BY_TIME,
    "training.per_device_train_batch_size=2",
    "training.eval_strategy=steps",
)


def rates(run):
    return [event["learning_rate"] for event in events(run) if "learning_rate" in event]


SHAPES = {
    "polynomial": ("training.optim=muon", "training.lr_scheduler_kwargs={lr_end: 1e-4}"),
    "warmup_stable_decay": ("training.lr_scheduler_kwargs={num_decay_steps: 0.25, decay_type: 1-sqrt}",),
}


@pytest.mark.parametrize("schedule", SHAPES)
def test_with_steps_of_equal_time_a_budget_is_the_number_of_steps_that_fit(
    schedule, tiny_encoder_with_dropout, tmp_path, timed
):
    more = (*BY_TWO, f"training.lr_scheduler_type={schedule}", *SHAPES[schedule])
    more = (*more, "training.eval_steps=8", "training.warmup_steps=0.125")
    by_steps = small.recipe(tmp_path, tiny_encoder_with_dropout, *more, "training.max_steps=16")
    by_time = small.recipe(tmp_path, tiny_encoder_with_dropout, *more, "training.budget=80s")
    one = train(by_steps, tmp_path / "steps")
    other = timed(by_time, tmp_path / "time", Time())
    assert rates(one) == rates(other)
    same(other, one)
    assert other.results["seeds"][0]["steps"] == 16
    assert other.results["seeds"][0]["seconds"] == 80


BY_WSD = "training.lr_scheduler_type=warmup_stable_decay"
WSD = (*BY_TWO, "training.budget=100s", BY_WSD, "training.warmup_steps=0.25", "training.eval_steps=2")


def uneven():
    return Time(lambda step: 3 + step % 4, evaluation=2)


@pytest.fixture(scope="module")
def by_time(tiny_encoder_with_dropout, tmp_path_factory):
    return small.recipe(tmp_path_factory.mktemp("recipe"), tiny_encoder_with_dropout, *WSD)


@pytest.fixture(scope="module")
def whole(by_time, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        time = uneven()
        patch.setattr(seed, "Clock", partial(Clock, now=time))
        return train(by_time, tmp_path_factory.mktemp("whole") / "run", callbacks=[time])


def test_the_learning_rate_follows_the_time_that_has_passed(whole):
    """Steps take 4, 5, 6 and 3 seconds, and each second one is evaluated, which takes 2."""
    begun = 0
    step = 0
    rates_due = []
    while begun < 100:
        decayed = max(begun / 100 - 0.8, 0) / 0.2  # a fifth is the default
        rates_due.append(3e-3 * min(begun / 25, (1 + math.cos(math.pi * decayed)) / 2))
        step += 1
        begun += 3 + step % 4 + 2 * (step % 2 == 0)
    assert step > 16
    assert rates(whole) == pytest.approx(rates_due, rel=1e-5)


def continued(by_time, whole, folder, timed):
    """The run in this folder, resumed; it is as if it had not been interrupted."""
    run = timed(by_time, folder / "run", uneven(), resume=True)
    same(run, whole)
    assert events(run) == events(whole)
    return run


def test_a_killed_run_continues_with_the_time_that_is_left(by_time, whole, tmp_path, timed):
    """In the decay, whose learning rate depends on it."""
    time = uneven()
    with pytest.MonkeyPatch.context() as patch:
        kill(patch, 33)
        with pytest.raises(Killed):
            timed(by_time, tmp_path / "run", time)
    run = continued(by_time, whole, tmp_path, timed)
    assert run.results["seeds"][0]["seconds"] == whole.results["seeds"][0]["seconds"]
    assert run.results["seconds"] > run.results["seeds"][0]["seconds"]  # those of the killed process too


def test_a_signal_stops_it_and_it_continues(by_time, whole, tmp_path, timed, caplog):
    """In the middle, where nothing is evaluated."""
    with pytest.raises(SystemExit):
        timed(by_time, tmp_path / "run", uneven(), [Told(5, signal.SIGTERM)])
    assert "stopped after step 5; a resumed run continues from there" in caplog.text
    continued(by_time, whole, tmp_path, timed)


def test_a_run_whose_time_is_over_is_not_trained_further(tiny_encoder_with_dropout, tmp_path, timed):
    """Told to stop in the last step, within an epoch; its evaluation precedes the checkpoint."""
    more = (*BY_TWO, "training.eval_strategy=epoch", "training.budget=50s")
    recipe = small.recipe(tmp_path, tiny_encoder_with_dropout, *more)
    run = timed(recipe, tmp_path / "whole", Time())
    assert run.results["seeds"][0]["steps"] == 10  # two epochs and a half
    assert [event["step"] for event in events(run) if "eval_accuracy" in event][-1] == 10
    with pytest.raises(SystemExit):
        timed(recipe, tmp_path / "run", Time(), [Told(10, signal.SIGTERM)])
    again = timed(recipe, tmp_path / "run", Time(), resume=True)
    same(again, run)
    assert events(again) == events(run)


def test_one_step_is_made_in_any_case(tiny_encoder, tmp_path, timed):
    """Even where the evaluation before it takes longer than the budget."""
    recipe = small.recipe(
        tmp_path, tiny_encoder, *BY_TIME, "training.budget=1s", "training.eval_on_start=true"
    )
    run = timed(recipe, tmp_path / "run", Time(evaluation=2))
    assert run.results["seeds"][0]["steps"] == 1
    assert [event["step"] for event in events(run) if "eval_accuracy" in event] == [0, 1]


@pytest.mark.parametrize(("strategy", "saved"), [("best", True), ("steps", True), ("no", False)])
def test_the_evaluation_in_which_a_budget_ends_is_saved(strategy, saved, tmp_path):
    """Also one whose score falls, after which `save_strategy: best` asks for no checkpoint; and no step
    follows it.
    """
    args = arguments(tmp_path, 2, 1, save_strategy=strategy)
    control = TrainerControl()
    Clock(5.0, iter([0.0, 9.0]).__next__).on_evaluate(args, TrainerState(global_step=4, max_steps=8), control)
    assert control.should_training_stop
    assert control.should_save == saved


def test_each_seed_and_each_fold_has_its_own_budget(tiny_encoder, tmp_path, timed):
    more = (*BY_TIME, "training.budget=15s", "seeds=[1, 2]", "folds=2")
    run = timed(small.recipe(tmp_path, tiny_encoder, *more), tmp_path / "run", Time())
    done = [read_json(run.checkpoints / f"fold-{fold}" / "done.json") for fold in (1, 2)]
    assert [each["steps"] for each in (*run.results["seeds"], *done)] == [3] * 4


# --- what a recipe may say


def problems(*overrides):
    """What is wrong with the quickstart recipe after these overrides."""
    return small.message_of(
        RecipeError, load_recipe, "quickstart", ["~training.num_train_epochs", *overrides]
    )


def test_times_are_read_and_what_contradicts_itself_is_said():
    budget = "expected a time of seconds, minutes or hours, such as 90s, 60m or 1.5h; found"
    share = "expected a number of steps, or a share of them below 1"
    decay = "training.lr_scheduler_kwargs={{num_decay_steps: {}}}"
    for overrides, what in (
        *(
            ((f"training.budget={value}",), budget)
            for value in "60|1e3|60 m|0s|-5m|1d|soon|[1]|1.m|m".split("|")
        ),
        *(((decay.format(value),), share) for value in ("'0.3'", "-1", "null")),
        (
            ("training.warmup_steps=0.5", decay.format(0.6)),
            "warm-up, stable phase and decay add up to 1.1 of all steps",
        ),
        (
            ("training.warmup_steps=0.95", BY_WSD),
            "warm-up, stable phase and decay add up to 1.15 of all steps",
        ),
    ):
        assert what in problems(*overrides), overrides
    for given, expected in (("90s", 90), ("60m", 3600), ("1.5h", 5400)):
        recipe = load_recipe("quickstart", ["~training.num_train_epochs", f"training.budget={given}"])
        assert seconds(recipe.training["budget"]) == expected
        assert "num_train_epochs" not in recipe.training
        assert load_recipe(recipe.model_dump()) == recipe
    assert recipe.with_("~training.budget").training["num_train_epochs"] == 3
    assert recipe.with_(budget="5m").training["budget"] == "5m"


def test_all_that_contradicts_a_budget_is_said_at_once():
    said = problems(
        "training.budget=1h",
        "training.num_train_epochs=3",
        "training.max_steps=10",
        "training.warmup_steps=100",
        "training.eval_steps=0.1",
        "training.lr_scheduler_kwargs={num_decay_steps: 50}",
        "training.lr_scheduler_type=inverse_sqrt",
    )
    for key in ("num_train_epochs", "max_steps"):
        assert f"training.{key}: `budget` already sets when training ends" in said
    for key in ("warmup_steps", "lr_scheduler_kwargs.num_decay_steps"):
        assert f"training.{key}: is a number of steps, which a budget of time does not fix" in said
    assert "training.eval_steps: is a share of all steps" in said
    assert "inverse_sqrt depends only on the number of steps" in said


def test_arguments_that_a_schedule_does_not_have_are_named(tiny_encoder, tmp_path):
    more = (BY_WSD, "training.lr_scheduler_kwargs={decay: linear}")
    small.refuses(
        RecipeError,
        r"lr_scheduler_kwargs: .*unexpected keyword argument 'decay'",
        small.recipe(tmp_path, tiny_encoder, *more),
        tmp_path,
    )


@pytest.mark.parametrize("kind", ["reduce_lr_on_plateau", "greedy"])
def test_a_plateau_is_one_of_a_score_that_should_rise(kind, tmp_path):
    own = {"lr_scheduler_type": kind, "lr_scheduler_kwargs": {"patience": 0}}
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    plateau = schedule(arguments(tmp_path, 1, 1, eval_strategy="epoch", **own), optimizer, 100)
    rates = []
    for score in (0.1, 0.2, 0.3, 0.2, 0.1):
        plateau.step(score)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] <= rates[2] > rates[4]


@pytest.mark.parametrize(
    ("decay", "steps"), [({}, 20), ({"num_decay_steps": 0.3}, 30), ({"num_decay_steps": 1}, 1)]
)
def test_a_decay_is_a_share_of_the_steps_or_their_number(decay, steps, tmp_path):
    own = {
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"decay_type": "linear", **decay},
    }
    args = arguments(tmp_path, 1, 1, warmup_steps=0.1, **own)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    (factor,) = schedule(args, optimizer, 100).lr_lambdas
    due = [min(step / 10, 1, (100 - step) / steps) for step in range(101)]
    assert [factor(step) for step in range(101)] == pytest.approx(due)
    args = arguments(tmp_path, 1, 1, warmup_steps=0.8, lr_scheduler_type="warmup_stable_decay")
    for few in range(1, 30):  # warm-up is rounded up, as by transformers, and decay down
        schedule(args, torch.optim.SGD([torch.zeros(1)], lr=1.0), few)


def test_check_says_how_long_each_training_takes(tiny_encoder, tmp_path, capsys):
    file = small.write_recipe(tmp_path, tiny_encoder)
    for more, expected in (
        ((), "ready to train for 5m\n"),
        (("folds=3",), "ready to train 4 times: 3 folds, and on all rows, each for 5m\n"),
        (("seeds=[1, 2]",), "ready to train each seed for 5m\n"),
    ):
        told = small.said(capsys, "check", file, "~training.num_train_epochs", "training.budget=5m", *more)
        assert told.endswith(expected)


def test_no_steps_are_all_of_them(tmp_path):
    state = TrainerState(global_step=0, max_steps=0)
    assert Clock().progress(arguments(tmp_path, 2, 1), state) == 0
