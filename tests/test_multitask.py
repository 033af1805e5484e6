"""Several tasks over one encoder: the steps, the weights, and what a run of them leaves."""

import copy
import json
import shlex
import shutil
from collections import Counter
from unittest.mock import Mock, patch

import numpy as np
import pandas
import pytest
import torch
import transformers
from cases import TEXTS
from hypothesis import given
from hypothesis import strategies as st
from multitask import OF, part, recipe
from safetensors.torch import load_file, save_file
from small import (
    of_family,
    problems_of,
    raised,
    raises,
    read_csv,
    read_rows,
    refused,
    refuses,
    said,
    write_rows,
)
from steps import FirstStep, arguments
from test_resume import files, killed
from torch.testing import assert_close

from bertkit import evaluate, load, load_tasks
from bertkit.cli.main import main
from bertkit.engine.batching import LengthBatches, TokenBatches
from bertkit.engine.multitask import MixedBatches, SharedEncoder, shares
from bertkit.engine.trainer import Trainer
from bertkit.errors import DataError, ModelError, RecipeError, UserError
from bertkit.files import read_json, sha256, write_text
from bertkit.recipe.recipe import MultiTaskRecipe, Recipe, load_recipe, read, to_yaml
from bertkit.report.view import Run
from bertkit.training.job import prepare_jobs
from bertkit.training.seed import new_runners, training_data
from bertkit.training.train import train

# --- which task is drawn when


def mixed(sizes, mixing="proportional", run=1, **division):
    """Rows of one token, two to a micro-batch."""
    own = [
        LengthBatches(
            np.ones(n), np.arange(n), batch_size=2, whole_steps=True, **{"accumulation": run, **division}
        )
        for n in sizes
    ]
    return MixedBatches(own, sizes, mixing, run=run, seed=division.get("seed", 0))


def drawn(batches, sizes):
    """The task of each micro-batch."""
    bounds = np.cumsum(sizes)
    found = [{int(np.searchsorted(bounds, index, side="right")) for index in batch} for batch in batches]
    assert all(len(each) == 1 for each in found), "a micro-batch is of one task"
    return [min(each) for each in found]


@given(
    st.lists(st.integers(4, 40), min_size=1, max_size=4), st.sampled_from([1, 2]), st.sampled_from([1, 2]),
    st.integers(0, 3),
)  # fmt: skip
def test_in_proportion_each_row_is_read_once_an_epoch(sizes, run, world, epoch):
    ranks = [mixed(sizes, run=run, world=world, rank=rank, seed=3) for rank in range(world)]
    for each in ranks:
        each.set_epoch(epoch)
    read = Counter(index for each in ranks for batch in each for index in batch)
    assert read == Counter(range(sum(sizes)))
    assert len({len(list(each)) for each in ranks}) == 1
    assert len(ranks[0]) == len(list(ranks[0]))
    of = [drawn(each, sizes) for each in ranks]
    assert all(each == of[0] for each in of), "all processes read the same task"
    assert all(len(set(of[0][at : at + run])) == 1 for at in range(0, len(of[0]), run)), (
        "a step is of one task"
    )


@pytest.mark.parametrize("mixing", ["sqrt", "uniform", [3.0, 1.0]])
def test_other_mixtures_read_every_row_equally_often_over_the_epochs(mixing):
    sizes = [4, 36]
    batches = mixed(sizes, mixing)
    small, large = batches.counts
    assert small + large == 20, "an epoch has as many steps as one of each task together"
    read = Counter()
    for epoch in range(18):
        batches.set_epoch(epoch)
        assert drawn(batches, sizes).count(0) == small
        read.update(index for batch in batches for index in batch)
    for first, count, share in ((0, 4, small), (4, 36, large)):
        times = [read[index] for index in range(first, first + count)]
        assert max(times) - min(times) <= 1
        assert sum(times) == 18 * 2 * share


def test_the_square_root_draws_small_tasks_more_often():
    assert shares([2, 18], "proportional") == [2, 18]
    assert shares([2, 18], "sqrt") == [5, 15]  # 1 : 3
    assert shares([2, 18], "uniform") == [10, 10]
    assert shares([2, 18], [1.0, 4.0]) == [4, 16]
    assert shares([1, 999], "proportional") == [1, 999]
    assert shares([3, 3, 1], [0.001, 1.0, 1.0]) == [1, 4, 3], "each task at least once"


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.data())
def test_shares_are_rounded_fairly(sizes, data):
    weights = data.draw(st.lists(st.floats(0.2, 5), min_size=len(sizes), max_size=len(sizes)))
    exact = [weight / sum(weights) * sum(sizes) for weight in weights]
    counts = shares(sizes, weights)
    assert all(abs(count - max(part, 1)) < 1 + 1e-6 for count, part in zip(counts, exact, strict=True))
    assert sum(counts) - sum(sizes) == pytest.approx(sum(c - e for c, e in zip(counts, exact, strict=True)))
    assert shares(sizes, "proportional") == sizes


@given(st.integers(4, 60), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_whole_steps_have_all_their_micro_batches(units, size, accumulation, world):
    division = {"accumulation": accumulation, "world": world, "whole_steps": True}
    cut = [lambda: LengthBatches(np.ones(units), np.arange(units), batch_size=size, **division)]
    if units < accumulation * world:
        raises(ValueError, "too few", cut[0])
        return
    if units >= 2 * accumulation * world:
        cut.append(lambda: TokenBatches(np.ones(units), np.arange(units), tokens=3, **division))
    for make in cut:
        sizes = make().sizes
        assert len(sizes) % (accumulation * world) == 0
        assert min(sizes) > 0
        assert sum(sizes) == units


# --- the steps


def trainer_of(folder, given, callback=None, **more):
    """A trainer of this recipe's tasks, with these arguments."""
    jobs, _ = prepare_jobs(read(given, None, {}))
    args = arguments(folder, 2, more.pop("accumulate", 1), **more)
    data = training_data(jobs, new_runners(jobs, args), args)
    return Trainer(data, args, callbacks=[callback] if callback else [])


def common_name(task, parameter, model):
    """A name that the tasks' parameters of the encoder share, and others do not."""
    inside = parameter.removeprefix(f"{model.base_model_prefix}.")
    shared = inside != parameter or (task == "similarity" and not inside.startswith("vector_dense"))
    return inside if shared else f"{task}/{parameter}"


def test_the_gradient_of_a_step_is_the_weighted_one_of_its_task(tiny_encoder, tmp_path):
    """By hand: separate models, each with the mean loss over its rows of the step."""
    weights = {"sentiment": 0.5, "entities": 2.0, "answers": 1.5, "similarity": 3.0}
    given = recipe(tiny_encoder, *OF, training={"gradient_accumulation_steps": 2})
    for name, weight in weights.items():
        given["tasks"][name]["weight"] = weight
    step = FirstStep()
    trainer = trainer_of(tmp_path, given, step, accumulate=2, optim="sgd")
    alone = {name: copy.deepcopy(trainer.model.of(name)) for name in OF}
    trainer.train()
    trainer.batches.set_epoch(0)
    examples = trainer.data.examples(trainer.batches)
    fetched = [examples.__getitems__(batch) for batch in [*trainer.batches][:2]]
    (name,) = {batch["task"] for batch in fetched}
    task = trainer.data.tasks[name]
    model = alone[name].train()
    total = sum(task.loss(task.forward(model, batch), batch) for batch in fetched)
    loss = weights[name] * total / sum(task.count(batch) for batch in fetched)
    loss.backward()
    wanted = {common_name(name, n, model): p.grad for n, p in model.named_parameters() if p.grad is not None}
    found = {}
    for parameter, gradient in step.gradients.items():
        _, of, inside = parameter.split(".", 2)
        of = bytes.fromhex(of.removeprefix("task-")).decode()
        found[common_name(of, inside, alone[of])] = gradient
    assert found.keys() == wanted.keys()
    for key, gradient in wanted.items():
        assert_close(found[key], gradient, rtol=1e-4, atol=1e-7)
    assert next(e["loss"] for e in trainer.state.log_history if "loss" in e) == pytest.approx(
        loss.item(), rel=1e-5
    )


def test_a_head_that_is_not_drawn_is_not_updated(tiny_encoder, tmp_path):
    """Not by weight decay either, nor by the moments of an earlier step."""
    before = {}
    moved = []

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **_):
            before.update({name: value.clone() for name, value in model.state_dict().items()})

        def on_step_end(self, args, state, control, model=None, **_):
            changed = [
                name for name, value in model.state_dict().items() if not torch.equal(before[name], value)
            ]
            heads = [
                key
                for key in changed
                if key.split(".")[2] in "classifier crf qa_outputs vector_dense".split()
            ]
            moved.append({name for name in OF for key in heads if f"task-{name.encode().hex()}." in key})
            assert any("word_embeddings" in key for key in changed), "the encoder always learns"

    given = recipe(tiny_encoder, *OF)
    trainer = trainer_of(tmp_path, given, Watch(), max_steps=16, weight_decay=0.5, learning_rate=0.01)
    trainer.train()
    assert moved == [set(trainer.data.examples(trainer.batches).split(batch)) for batch in trainer.batches]
    assert {name for names in moved for name in names} == set(OF)


@pytest.mark.parametrize(
    "name", ["entities", *(pytest.param(n, marks=pytest.mark.rare) for n in OF if n != "entities")]
)
def test_one_task_is_trained_as_by_itself(name, tiny_encoder_with_dropout, tmp_path):
    given = recipe(tiny_encoder_with_dropout, name)
    alone = {**given, **given["tasks"][name]}
    del alone["tasks"]
    one = train(alone, tmp_path / "alone")
    other = train(given, tmp_path / "several").tasks[name]
    assert sha256(one.model / "model.safetensors") == sha256(other.model / "model.safetensors")
    predicted = [run.predictions("validation").read_bytes() for run in (one, other)]
    assert predicted[0] == predicted[1]
    settings = [read_json(run.model / "config.json")["bertkit"] for run in (one, other)]
    assert settings[0] == settings[1]
    loss = [[e["loss"] for e in run.facts.log if "loss" in e] for run in (one, other)]
    assert loss[0] == loss[1]
    assert len(loss[0]) == 8


# --- the run


# Two micro-batches to a step, and a checkpoint after every fourth.
EVERY_FOURTH = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 4}


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    return tmp_path_factory.mktemp("multitask")


@pytest.fixture(scope="module")
def run(tiny_encoder_with_dropout, room):
    """All four tasks."""
    return train(recipe(tiny_encoder_with_dropout, *OF, training=EVERY_FOURTH), room / "run")


def test_the_folder_of_a_task_is_a_run(run):
    assert list(run.tasks) == list(OF)
    for name, one in run.tasks.items():
        assert one.finished
        assert one.facts.task == part(OF[name])["task"]["name"]
        assert one.results["trained_with"] == [each for each in OF if each != name]
        assert (one.folder / "report.html").is_file()
        others = ", ".join(each for each in OF if each != name)
        assert f"and, by multi-task learning, for {others}." in (one.model / "README.md").read_text()
        assert (
            f"with an encoder shared with {others} (multi-task learning)"
            in (one.folder / "report.html").read_text()
        )
        answered = one.frame("validation")
        assert len(answered) == 5
        told = run.results["tasks"][name]
        assert told["score"] == one.results["splits"]["validation"]["metrics"][told["headline"]]
        evaluated = [e for e in one.facts.log if f"eval_{told['headline']}" in e]
        assert [e["step"] for e in evaluated] == [4, 8, 12, 16]
    scores = [each["score"] for each in run.results["tasks"].values()]
    assert run.results["mean"] == pytest.approx(sum(scores) / 4)


def test_the_checkpoint_with_the_best_mean_is_kept(run):
    log = read_rows(run.folder / "metrics.jsonl")
    evaluated = [event for event in log if "eval_mean" in event]
    for event in evaluated:
        assert event["eval_mean"] == pytest.approx(sum(event[f"eval_{name}"] for name in OF) / 4)
        assert event["eval_sentiment"] == event["eval_sentiment/accuracy"]
    best = max(evaluated, key=lambda event: event["eval_mean"])["step"]
    assert {one.results["seeds"][0]["best_step"] for one in run.tasks.values()} == {best}


def test_a_named_task_chooses_the_checkpoint(tiny_encoder, tmp_path):
    training = {"eval_strategy": "steps", "eval_steps": 4, "metric_for_best_model": "similarity"}
    given = recipe(tiny_encoder, "sentiment", "similarity", training=training)
    given["tasks"]["similarity"]["metric_for_best_model"] = "eval_pearson"  # as transformers writes it
    done = train(given, tmp_path / "run")
    log = read_rows(done.folder / "metrics.jsonl")
    evaluated = [event for event in log if "eval_mean" in event]
    assert all(event["eval_similarity"] == event["eval_similarity/pearson"] for event in evaluated)
    best = max(evaluated, key=lambda event: event["eval_similarity/pearson"])["step"]
    assert done.tasks["sentiment"].results["seeds"][0]["best_step"] == best
    assert done.results["tasks"]["similarity"]["headline"] == "pearson"


def test_a_resumed_run_is_the_uninterrupted_one(run, tiny_encoder_with_dropout, tmp_path):
    given = recipe(tiny_encoder_with_dropout, *OF, training=EVERY_FOURTH)
    stopped = killed(given, tmp_path / "run", at=22)  # the second half of step 11, in the second epoch
    before = files(stopped)
    one = given["tasks"]["sentiment"]
    alone = {name: value for name, value in given.items() if name != "tasks"} | one
    for tasks in (
        {**given["tasks"], "opinion": one},
        {name: given["tasks"][name] for name in OF if name != "entities"},
        {{"sentiment": "opinion"}.get(name, name): each for name, each in given["tasks"].items()},
        dict(reversed(given["tasks"].items())),
    ):
        what = f"the run was started with the tasks {', '.join(OF)}, and has the tasks {', '.join(tasks)} now"
        what = rf"run/recipe\.yaml: {what}\n.*List the same .*, or start a new run in another folder"
        other = {**given, "tasks": tasks}
        raises(RecipeError, what, train, other, tmp_path / "run", resume=True, changed=True)
    what = r"similarity, and has one task by itself now\n.*start a new run"
    raises(RecipeError, what, train, alone, tmp_path / "run", resume=True, changed=True)
    assert files(stopped) == before
    resumed = train(read(tmp_path / "run/recipe.yaml"), tmp_path / "run", resume=True)
    for name, one in resumed.tasks.items():
        for file in ("model/model.safetensors", "predictions/validation.jsonl", "model/config.json"):
            assert (one.folder / file).read_bytes() == (run.folder / name / file).read_bytes(), (name, file)
    last = [
        sorted((each.checkpoints / "seed-42").glob("checkpoint-16/*.safetensors")) for each in (run, resumed)
    ]
    assert [file.name for file in last[0]] == [
        "model.safetensors",
        "optimizer.safetensors",
        "random-0.safetensors",
    ]
    assert [sha256(file) for file in last[0]] == [sha256(file) for file in last[1]]
    raises(
        RecipeError, "another recipe", train, {**given, "mixing": "uniform"}, tmp_path / "run", resume=True
    )


def test_a_run_of_one_task_is_not_resumed_with_several(tiny_encoder, tmp_path):
    given = recipe(tiny_encoder, "sentiment", "similarity")
    alone = load_recipe({"model": given["model"], **given["tasks"]["sentiment"]})
    write_text(tmp_path / "run/recipe.yaml", to_yaml(alone))
    what = r"started with one task by itself, and has the tasks sentiment, similarity now"
    raises(RecipeError, what, train, given, tmp_path / "run", resume=True, changed=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["recipe.yaml"]


def test_killed_after_its_results_it_has_its_reports_and_loses_its_checkpoints(tiny_encoder, tmp_path):
    given = {**recipe(tiny_encoder, "sentiment", "similarity"), "checkpoints": "best"}
    with patch("bertkit.training.train.write_reports_and_clean", side_effect=KeyboardInterrupt):
        raised(KeyboardInterrupt, train, given, tmp_path / "run")
    before = Run(tmp_path / "run")
    assert before.finished
    assert [*before.checkpoints.rglob("checkpoint-*")]
    after = train(given, tmp_path / "run", resume=True)
    assert after.results == before.results
    assert not [*after.folder.rglob("checkpoint-*")]
    assert all((part.folder / "report.html").is_file() for part in after.tasks.values())


def test_lora_adapts_the_one_encoder(tiny_encoder, tmp_path):
    names = ("sentiment", "entities", "similarity")
    done = train(
        recipe(tiny_encoder, *names, peft={"r": 2}, training={"eval_strategy": "no"}), tmp_path / "run"
    )
    before = load_file(tiny_encoder / "model.safetensors")
    tensors = {name: load_file(one.model / "model.safetensors") for name, one in done.tasks.items()}
    for key, tensor in before.items():
        found = [own[each] for own in tensors.values() for each in (key, f"bert.{key}") if each in own]
        assert all(torch.equal(found[0], each) for each in found)
        adapted = key.endswith(("query.weight", "value.weight"))
        assert torch.equal(found[0], tensor) != adapted, key
    for name, prefix in (("sentiment", "bert."), ("similarity", "")):
        adapter = load_file(done.tasks[name].folder / "adapter/adapter_model.safetensors")
        place = "encoder.layer.1.attention.self.query"
        a, b = (adapter[f"base_model.model.{prefix}{place}.lora_{side}.weight"] for side in "AB")
        merged = before[f"{place}.weight"] + b @ a * (16 / 2)
        assert_close(tensors[name][f"{prefix}{place}.weight"], merged)


def test_a_task_before_it_does_not_freeze_a_classifiers_pooler(tiny_encoder, tmp_path):
    model = trainer_of(tmp_path, recipe(tiny_encoder, "similarity", "sentiment")).model.of("sentiment")
    assert all(parameter.requires_grad for parameter in model.bert.pooler.parameters())


def test_what_is_frozen_stays(tiny_encoder, tmp_path):
    frozen = {"embeddings": True, "layers": 1}
    short = {"num_train_epochs": 1, "eval_strategy": "no"}
    given = recipe(tiny_encoder, "sentiment", "similarity", freeze=frozen, training=short)
    given["tasks"]["topics"] = part("multi-label")  # a second classifier, on the same pooler
    done = train(given, tmp_path / "run")
    first, second = (
        load_file(done.tasks[name].model / "model.safetensors") for name in ("sentiment", "topics")
    )
    assert {key for key in first if not first[key].equal(second[key])} == {
        "classifier.weight",
        "classifier.bias",
    }
    before = load_file(tiny_encoder / "model.safetensors")
    after = load_file(done.tasks["similarity"].model / "model.safetensors")
    for key, tensor in before.items():
        assert torch.equal(after[key], tensor) == (key.startswith("embeddings") or "layer.0." in key), key


def test_several_seeds_publish_the_best_mean(tiny_encoder, tmp_path):
    short = {"num_train_epochs": 1}
    done = train(
        recipe(tiny_encoder, "sentiment", "similarity", seeds=[1, 2], training=short), tmp_path / "run"
    )
    seeds = {name: one.results["seeds"] for name, one in done.tasks.items()}
    means = [np.mean([each[place]["headline"] for each in seeds.values()]) for place in range(2)]
    best = int(np.argmax(means)) + 1
    for name, one in done.tasks.items():
        assert not (one.checkpoints / f"seed-{best}" / "model").exists(), "it was published"
        chosen = next(each for each in seeds[name] if each["seed"] == best)
        headline = done.results["tasks"][name]["headline"]
        assert one.results["splits"]["validation"]["metrics"][headline] == pytest.approx(chosen["headline"])


# --- recipes and commands


def test_a_recipe_survives_being_written(tiny_encoder, tmp_path):
    given = recipe(tiny_encoder, *OF, mixing={name: place + 1.0 for place, name in enumerate(OF)})
    given["tasks"]["answers"] |= {"max_length": 24, "weight": 0.5, "expected": {"f1": [0.1, 0.9]}}
    made = read(given, None, {"epochs": 4})
    assert made.training["num_train_epochs"] == 4
    (tmp_path / "again.yaml").write_text(to_yaml(made))
    again = read(tmp_path / "again.yaml", check_files=False)
    assert isinstance(again, MultiTaskRecipe)
    assert to_yaml(again) == to_yaml(made)
    assert {name: each.model.max_length for name, each in made.parts.items()} == {
        **dict.fromkeys(OF, 32),
        "answers": 24,
    }
    assert made.parts["answers"].expected == {"f1": [0.1, 0.9]}
    assert all(isinstance(each, Recipe) for each in made.parts.values())


BAD = """\
tasks:
  sentiment: {task: {name: text-classification, method: head}, data: {source: sample:sentiment}, weight: 0}
  my entities: {task: {name: token-clasification}, data: {source: sample:ner, shed: 3}}
  entities: {task: {name: token-classification}, data: {source: sample:ner}}
  entities: {task: {name: token-classification}, data: {}}
  ranking: {task: {name: text-ranking}, data: {source: sample:retrieval}}
  data: {task: {name: token-classification}, data: {source: sample:ner}, max_length: 3}
mixing: {sentiment: 1, entitys: 2, ranking: 1, data: 1, my entities: 1}
mixed_steps: true
folds: 3
task: {name: text-classification}
model: {name: ./gone}
training: {learning_rate: high, torch_compile: true, metric_for_best_model: f1}
"""


def test_everything_that_is_wrong_is_said_at_once_with_its_key(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(BAD)
    told = {
        (int(p.where.rpartition(":")[2]), p.what.partition(": ")[0])
        for p in problems_of(RecipeError, read, file)
    }
    assert told == {
        (2, "tasks.sentiment.weight"), (2, "tasks.sentiment.task.method"),
        (3, "tasks.my entities"), (3, "tasks.my entities.task.name"), (3, "tasks.my entities.data.shed"),
        (5, "tasks.entities"),
        (6, "tasks.ranking.task.name"),
        (7, "tasks.data"), (7, "tasks.data.max_length"),
        (8, "mixing.entitys"), (8, "mixing.entities"),
        (9, "mixed_steps"), (10, "folds"), (11, "task"),
        (12, "model.name"),
        (13, "training.learning_rate"), (13, "training.torch_compile"), (13, "training.metric_for_best_model"),
    }  # fmt: skip


def test_an_unknown_key_is_compared_with_those_of_its_section(tmp_path):
    file = tmp_path / "bad.yaml"
    one = (
        "{task: {name: text-classification, strid: 2}, data: {source: sample:sentiment, limt: 2}, weigth: 2}"
    )
    file.write_text(f"tasks: {{task: {one}}}\nmodel: {{name: x}}\n")
    assert [problem.what for problem in problems_of(RecipeError, read, file)] == [
        "tasks.task.weigth: unknown key; did you mean 'weight'?",
        "tasks.task.task.strid: unknown key; did you mean 'stride'?",
        "tasks.task.data.limt: unknown key; did you mean 'limit'?",
    ]
    for best in ("[f1]", "{task: f1}"):
        file.write_text(BAD.replace("metric_for_best_model: f1", f"metric_for_best_model: {best}"))
        raises(RecipeError, "expected .mean. or a task, found", read, file)
    for tasks in ("{}", "null", "3", "[sentiment]", "{sentiment: }", "{sentiment: {task: x}}"):
        file.write_text(f"tasks: {tasks}\nmodel: {{name: x}}\n")
        raises(RecipeError, "tasks", read, file)


def test_what_is_wrong_with_data_and_training_is_said_of_all_tasks(tiny_encoder, tmp_path):
    rhythm = {"eval_strategy": "steps", "eval_steps": 6, "save_strategy": "steps", "save_steps": 3}
    late = recipe(tiny_encoder, "sentiment", "entities", training=rhythm)
    few = recipe(tiny_encoder, "sentiment", "entities", training={"gradient_accumulation_steps": 16})
    own = recipe(tiny_encoder, "sentiment", "entities", "similarity")
    del own["tasks"]["sentiment"]["data"]["validation"]
    own["tasks"]["entities"]["data"]["train"] = [{"words": ["a"], "tags": ["O"]}]
    for bad, data, shown in (
        (own, None, r"needs a column `tokens`(.|\n)*tasks\.sentiment\.data: no validation split"),
        (few, None, r"tasks\.sentiment\.data: too few training rows for a step of 16(.|\n)*entities"),
        (late, None, r"^training: load_best_model_at_end requires"),
        (recipe(tiny_encoder, "sentiment"), [{"text": "a", "label": "b"}], "Move it into each task"),
    ):
        refuses(UserError, shown, bad, tmp_path, data=data)


def test_the_commands(tiny_encoder, tmp_path, capsys):
    swapped = [f"model.name={tiny_encoder}", "model.max_length=32"]
    swapped += [f"tasks.{name}.data.limit=16" for name in ("sentiment", "entities", "similarity")]
    shown = said(capsys, "check", "multi-task-quickstart", *swapped, "tasks.entities.max_length=16")
    assert "sentiment: text-classification: single texts" in shown
    assert shown.endswith("ready to train\n")
    short = ["training.max_steps=3", "verify=false", "explain=false"]
    shown = said(capsys, "train", "multi-task-quickstart", *swapped, *short, "--output-dir", tmp_path / "run")
    results = read_json(tmp_path / "run/results.json")
    for name, each in results["tasks"].items():
        assert name in shown
        assert f"{each['score']:.4f}" in shown
        assert f"bertkit predict {shlex.quote(f'{tmp_path}/run/{name}')}" in shown
    assert f"mean of the 3 scores: {results['mean']:.4f}" in shown
    assert "a good cat" in said(capsys, "predict", tmp_path / "run/sentiment", "a good cat")
    assert "RUN/NAME" in refused(capsys, "report", tmp_path / "run")
    raises(ModelError, "a run of several tasks", load, tmp_path / "run")
    said_so = "expected a recipe of one task, found several tasks\n.*RUN/NAME/recipe.yaml"
    raises(RecipeError, said_so, load_recipe, "multi-task-quickstart")


# --- all tasks at once


@pytest.fixture
def passes(monkeypatch):
    """The number of texts in each pass of an encoder."""
    seen = []
    forward = transformers.BertModel.forward

    def counted(self, *args, **inputs):
        seen.append(len(inputs.get("input_ids", args[0] if args else ())))
        return forward(self, *args, **inputs)

    monkeypatch.setattr(transformers.BertModel, "forward", counted)
    return seen


ROWS = [{"text": text, "tokens": text.split(), "question": "the one ?", "context": text} for text in TEXTS]


def test_all_tasks_answer_as_each_by_itself(run, passes):
    several = load_tasks(run.folder)
    assert list(several.tasks) == list(OF)
    rows = [{**row, "text_a": row["text"], "text_b": "the cat"} for row in ROWS]
    for names in (
        ("sentiment", "entities"),
        ("entities", "answers"),
        ("similarity",),
        ("answers", "sentiment"),
    ):
        alone = {name: load(run.folder / name)(rows) for name in names}
        passes.clear()
        together = several.only(*names)(rows)
        assert [list(each) for each in together] == [list(names)] * len(rows)
        assert [{name: each[name] for name in names} for each in together] == [
            dict(zip(names, row, strict=True)) for row in zip(*alone.values(), strict=True)
        ]
        if names == ("sentiment", "entities"):
            assert sum(passes) == len(rows), "each text is read once"
            several.tasks["sentiment"]("another text")
            assert several.tasks["sentiment"](rows) == alone["sentiment"]
        assert several.only(*names)(pandas.DataFrame(rows)) == together


@pytest.fixture(scope="module")
def several(run):
    """All tasks of the run. Nobody may change it."""
    return load_tasks(run.folder)


def test_one_text_is_answered_by_the_tasks_that_read_texts(run, several):
    two = load_tasks(run.folder, precision="fp32", batch_size=3).only("sentiment", "entities")
    answer = two("the cat was good")
    assert answer == {
        name: load(run.folder / name, precision="fp32")("the cat was good") for name in two.tasks
    }
    assert list(several.stream([])) == []
    raises(UserError, r"no task 'sentimnt'; did you mean 'sentiment'\?", several.only, "sentimnt")
    raises(DataError, "question", several, "the cat was good")


def test_predict_answers_with_all_tasks_that_read_the_rows(run, several, tmp_path, monkeypatch, capsys):
    folder = str(run.folder)
    names = ("sentiment", "entities", "similarity")
    texts = several.only(*names)(TEXTS)
    assert main(["predict", folder, *TEXTS, "--json"]) == 0
    told = capsys.readouterr()
    assert [json.loads(line) for line in told.out.splitlines()] == [
        {"text": text, "answer": answer} for text, answer in zip(TEXTS, texts, strict=True)
    ]
    assert "task answers is left out: it needs question and context" in told.err
    monkeypatch.setattr("bertkit.inference.multitask_predictor.load_tasks", lambda _: several)
    first, *lines = said(capsys, "predict", folder, "the cat\n").splitlines()
    assert first == "the cat\\n"
    assert [line.split(":")[0].strip() for line in lines] == list(names)

    rows = write_rows(tmp_path / "rows.jsonl", ROWS)
    out = tmp_path / "out.jsonl"
    assert main(["predict", folder, "--input", str(rows), "--output", str(out)]) == 0
    assert read_rows(out) == [{**row, "answer": all_} for row, all_ in zip(ROWS, several(ROWS), strict=True)]
    renamed = write_rows(tmp_path / "renamed.jsonl", [{"said": text} for text in (*TEXTS, "")])
    table = ["--output", f"{tmp_path}/out.csv", "--column", "text=said"]
    capsys.readouterr()
    assert main(["predict", folder, "--input", str(renamed), *table]) == 0
    assert "1 of 9 rows (11.1%)" in capsys.readouterr().err
    cells = read_csv(tmp_path / "out.csv")
    assert [row["answer.sentiment.label"] for row in cells[:-1]] == [
        each["sentiment"]["label"] for each in texts
    ]
    assert {name.split(".")[1] for name in cells[0] if "." in name} == set(names)


def test_evaluate_scores_all_tasks(run, capsys):
    expected = {
        name: {"split": "validation", **one.results["splits"]["validation"]}
        for name, one in run.tasks.items()
    }
    assert json.loads(said(capsys, "evaluate", run.folder, "--split", "validation", "--json")) == expected
    told = said(capsys, "evaluate", run.folder)
    assert all(f"{name}\nvalidation (5 rows)" in told for name in run.tasks)


def test_what_only_the_run_of_one_task_can_do(run, tmp_path, capsys):
    file = str(write_rows(tmp_path / "rows.jsonl", [{"other": 1}]))
    for command, words, told in (
        ("predict", ["a", "--threshold", "0"], "the run of one task."),
        ("predict", "--input x.jsonl --format conll".split(), "the run of one task."),
        ("predict", ["--input", file], "no text in this row; it has other"),
        ("predict", ["--input", file, "--column", "tag=other"], "does not read 'tag'"),
        ("evaluate", ["--data", file], "the run of one task."),
    ):
        assert told in refused(capsys, command, run.folder, *words)
    for rows in (ROWS, [], "rows.jsonl"):
        raises(
            UserError,
            r"(?s)scored on its own data.*/NAME, the run of one task",
            evaluate,
            run.folder,
            rows,
        )


def test_tasks_with_limits_of_their_own_share_what_they_read_alike(tiny_encoder, tmp_path, passes):
    given = recipe(tiny_encoder, "sentiment", "entities", training={"max_steps": 2})
    given["tasks"]["entities"]["max_length"] = 10
    folder = train(given, tmp_path / "run").folder
    long = [row for row in ROWS if len(row["tokens"]) > 8]
    assert 0 < len(long) < len(ROWS)
    several = load_tasks(folder, precision="fp32")
    passes.clear()
    together = several(ROWS)
    assert sum(passes) > len(ROWS)
    assert sum(passes) < 2 * len(ROWS)
    for name in given["tasks"]:
        for one, other in zip(load(folder / name, precision="fp32")(ROWS), together, strict=True):
            assert one.keys() == other[name].keys()
            assert one.get("label") == other[name].get("label")
            if name == "sentiment":
                assert one["score"] == pytest.approx(other[name]["score"], abs=1e-6)


def test_models_whose_encoders_differ_are_not_loaded_together(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    file = folder / "entities/model/model.safetensors"
    tensors = load_file(file)
    tensors["bert.encoder.layer.0.output.dense.bias"] += 0.5
    save_file(tensors, file, {"format": "pt"})
    raises(ModelError, r"its encoder differs.*encoder\.layer\.0\.output\.dense\.bias", load_tasks, folder)
    raises(ModelError, "a run of one task", load_tasks, run.folder / "entities")


def test_the_name_of_a_task_does_not_decide_its_weight_decay(tiny_encoder, tmp_path):
    part = trainer_of(tmp_path, recipe(tiny_encoder, *OF), max_steps=1).model.of(next(iter(OF)))
    shared = SharedEncoder({"bias": Mock(extra_modules=lambda model: {})}, {"bias": part})
    assert Trainer.get_decay_parameter_names(None, shared)


def test_heads_with_global_attention_answer_as_by_themselves(tiny_encoder, tmp_path):
    sizes = {"attention_window": 4, "sep_token_id": 3, "initializer_range": 0.5}
    folder = of_family("longformer", tiny_encoder, tmp_path / "encoder", **sizes)
    for names in (("sentiment", "entities"), ("entities", "sentiment")):
        run = train(recipe(folder, *names, training={"max_steps": 1}), tmp_path / names[0]).folder
        together = load_tasks(run, precision="fp32")(TEXTS)
        alone = load(run / "sentiment", precision="fp32")(TEXTS)
        scores = [answer["sentiment"]["score"] for answer in together]
        assert scores == pytest.approx([answer["score"] for answer in alone], abs=1e-6)
        words = [word["score"] for answer in together for word in answer["entities"]["words"]]
        entities = load(run / "entities", precision="fp32")(TEXTS)
        assert words == pytest.approx([word["score"] for a in entities for word in a["words"]], abs=1e-6)
