"""Recipes without YAML: `Recipe(…)`, `load_recipe({…})`, `recipe.with_(…)` and what `train` overrides."""

import hashlib
import json

import numpy as np
import pytest
import small
import transformers
from small import message_of, problems_of, raises

import bertkit
from bertkit.data.python_rows import keep_rows, stored_files
from bertkit.recipe.recipe import read, to_yaml

ROWS = small.rows("single-label", 8)
BASE = {"task": "text-classification", "model": "some/model", "data": "sample:sentiment"}


def test_a_recipe_of_plain_values_is_that_of_the_yaml_file(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "task: {name: text-classification, kind: multi-label}\nmodel: {name: some/model, max_length: 64}\n"
        "data: {source: sample:sentiment, validation: 0.1}\ntraining: {learning_rate: 1e-4}\nseeds: [1, 2]\n"
    )
    task = {"name": "text-classification", "kind": "multi-label"}
    model = {"name": "some/model", "max_length": np.int64(64)}
    data = {"source": "sample:sentiment", "validation": 0.1}
    rate = {"learning_rate": np.float32(1e-4)}
    recipe = bertkit.Recipe(task=task, model=model, data=data, training=rate, seeds=(1, 2))
    assert recipe.with_(learning_rate=1e-4) == bertkit.load_recipe(file)
    assert bertkit.load_recipe({"task": task, "model": model, "data": data}).model.max_length == 64
    assert bertkit.Recipe(**BASE) == bertkit.load_recipe(BASE) == read(BASE, None, {})
    assert bertkit.Recipe(**{**BASE, "model": tmp_path}).model.name == str(tmp_path)
    assert bertkit.load_recipe(BASE, ["training.learning_rate=1"]).training["learning_rate"] == 1
    assert bertkit.Recipe(**bertkit.load_recipe(file).model_dump()) == bertkit.load_recipe(file)


def test_what_is_wrong_is_reported_at_once_with_key_paths():
    sections = {
        "task": {"name": "text-classification", "kind": "multi", "colour": 1},
        "model": object(),
        "data": {"source": "sample:sentiment", "colums": {}},
        "training": {"lerning_rate": 1, "num_train_epochs": "3"},
        "verfy": True,
        "early_stopping": {"patience": 0},
    }
    for found in (
        message_of(bertkit.RecipeError, bertkit.Recipe, **sections),
        message_of(bertkit.RecipeError, bertkit.load_recipe, sections),
    ):
        for each in (
            "task.kind: expected 'single-label', 'multi-label' or 'regression', found text 'multi'",
            "task.colour: unknown key",
            "model: expected a mapping, found an object of type object",
            "data.colums: unknown key; did you mean 'columns'?",
            "training.lerning_rate: unknown key; did you mean 'learning_rate'?",
            "training.num_train_epochs: expected a number",
            "verfy: unknown key; did you mean 'verify'?",
            "early_stopping.patience: must be at least 1, found 0",
        ):
            assert each in found
    raises(bertkit.RecipeError, r"task: missing(?s:.*)model: missing(?s:.*)data: missing", bertkit.Recipe)
    raises(
        bertkit.RecipeError,
        "task: expected a mapping, found the number 5",
        bertkit.Recipe,
        **{**BASE, "task": 5},
    )
    wrong = {"model": 5, "max_length": 64}
    said = "model: expected a mapping, found the number 5"
    raises(bertkit.RecipeError, said, read, "text-classification", ROWS, wrong)
    said = "no task 'text-clasification'; did you mean 'text-classification'"
    raises(bertkit.RecipeError, said, bertkit.Recipe, **{**BASE, "task": "text-clasification"})


def test_with_changes_a_copy_and_checks_it():
    recipe = bertkit.Recipe(**BASE, early_stopping={"patience": 3})
    text = to_yaml(recipe)
    changed = recipe.with_("training.learning_rate=1e-4", "~early_stopping", "data.limit=10")
    assert (changed.training["learning_rate"], changed.early_stopping, changed.data.limit) == (1e-4, None, 10)
    assert recipe.with_(learning_rate=1e-4, early_stopping=None, limit=10) == changed
    assert to_yaml(recipe) == text
    steps = recipe.with_("training.eval_strategy=steps", eval_steps=20).training
    assert (steps["save_strategy"], steps["save_steps"]) == ("steps", 20)
    assert "per_device_train_batch_size" not in recipe.with_(tokens=4096).training
    said = r"override training.lerning_rate=1(?s:.*)did you mean 'learning_rate'"
    raises(bertkit.RecipeError, said, recipe.with_, "training.lerning_rate=1")


STATED = """
task: {name: text-classification}
model: {name: some/model}
data: {source: sample:sentiment}
training: {learning_rate: 5.0e-5, num_train_epochs: 3, weight_decay: 0.01, eval_strategy: epoch}
"""  # each of them is a default, too
SEVERAL = STATED.replace("task: {", "tasks: {a: {task: {").replace(
    "}\nmodel", "}, data: {source: sample:ner}}}\nmodel"
)


@pytest.mark.parametrize(
    "text", [STATED, SEVERAL.replace("data: {source: sample:sentiment}\n", "")], ids=["one", "several"]
)
def test_what_a_recipe_states_is_kept_when_defaults_change(text, tmp_path):
    """Whether a file is changed on the command line, its recipe by `with_`, or it is named in Python."""
    file = tmp_path / "my.yaml"
    file.write_text(text)

    def outcome(*arguments):
        try:
            return read(*arguments)
        except bertkit.RecipeError as error:
            return sorted(problem.what for problem in error.problems)

    for values in (
        {"task": {"method": "full"}}, {"task": {"method": "head"}}, {"batching": {"tokens": 4096}}, {"verify": False},
        {"training": {"budget": "1m"}}, {"training": {"eval_strategy": "steps"}},
        {"training": {"save_strategy": "best"}},
        {"model": {"max_length": 64}}, {"task": {"kind": "multi-label"}}, {"training": {"learning_rate": 1e-4}},
    ):  # fmt: skip
        ((section, value),) = values.items()
        overrides = (
            [f"{section}.{key}={json.dumps(v)}" for key, v in value.items()]
            if isinstance(value, dict)
            else []
        )
        overrides = overrides or [f"{section}={json.dumps(value)}"]
        wanted = outcome(file, None, {}, overrides)
        assert outcome(file, None, values) == wanted
        assert outcome(read(file), None, values) == wanted
        assert outcome(read(read(file), None, {"seeds": [1]}), None, {**values, "seeds": [42]}) == wanted
    if text is STATED:
        full = bertkit.load_recipe(file).with_("task.method=full")
        assert (full.training["learning_rate"], full.training["num_train_epochs"]) == (5e-5, 3)
        assert (
            bertkit.load_recipe(file, ["~training"]).with_("task.method=full").training["num_train_epochs"]
            == 20
        )


def test_the_options_of_another_task_are_its_own():
    recipe = bertkit.Recipe(**BASE)
    assert (
        recipe.with_("task.name=token-classification", "data.source=sample:ner").task.name
        == "token-classification"
    )


def test_a_value_of_python_has_no_line_and_its_path_starts_here(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    file = tmp_path / "there/my.yaml"
    file.write_text(STATED + "seeds: []\n")
    assert [
        problem.where
        for problem in problems_of(
            bertkit.RecipeError, read, file, None, {"training": {"learning_rate": -1}, "weight_decay": -1}
        )
    ] == ["", "", f"{file}:6"]
    (tmp_path / "x.csv").touch()
    monkeypatch.chdir(tmp_path)
    assert read(file, "x.csv", {"seeds": [1]}).data.source == f"{tmp_path}/x.csv"


def test_a_key_goes_where_the_only_section_has_it_with_rows_by_split_too():
    values = {
        "epochs": 2, "learning_rate": 1e-4, "max_length": 64, "thresholds": {"good": 0.3}, "kind": "multi-label",
        "columns": {"text": "review"}, "patience": 2, "verify": False, "seeds": [1, 2], "peft": {"r": 4},
        "training": {"weight_decay": 0.1},
    }  # fmt: skip
    recipe = read("text-classification", "sample:sentiment", {"model": "some/model", **values})
    assert recipe.training["num_train_epochs"] == 2
    assert (recipe.training["learning_rate"], recipe.training["weight_decay"]) == (1e-4, 0.1)
    assert (recipe.model.name, recipe.model.max_length) == ("some/model", 64)
    assert (recipe.task.kind, recipe.task.thresholds) == ("multi-label", {"good": 0.3})
    assert recipe.data.columns == {"text": "review"}
    assert (recipe.early_stopping.patience, recipe.verify, recipe.seeds, recipe.peft.r) == (
        2,
        False,
        [1, 2],
        4,
    )
    for data in ({"train": ROWS, "validation": 0.25}, {"source": ROWS, "validation": 0.25}):
        spec = read("text-classification", data, {"model": "m", "columns": {"text": "id"}, "limit": 3}).data
        assert (spec.source, spec.validation, spec.columns, spec.limit) == ("memory", 0.25, {"text": "id"}, 3)


def test_overrides_that_no_section_has_are_refused(tmp_path):
    for values, message in (
        ({"lerning_rate": 1}, "lerning_rate: unknown key; did you mean 'learning_rate'"),
        ({"lr": 1}, r"lr: unknown key(?s:.*)Use `training.learning_rate`"),
        ({"epoch": 1}, "epoch: unknown key; did you mean 'epochs'"),
        ({"revision": "main"}, r"revision: a key of several sections(?s:.*)model={'revision': …} or data="),
        ({"seed": 1}, r"training.seed: bertkit decides this(?s:.*)seeds: \[1\]"),
        ({"learning_rate": "fast"}, "training.learning_rate: expected a number, found text 'fast'"),
        ({"name": "x"}, "name: a key of several sections"),
        ({"unanswerable": True}, "unanswerable: unknown key"),
    ):
        with pytest.raises(bertkit.RecipeError, match=message):
            bertkit.train("text-classification", tmp_path / "run", data=ROWS, model="some/model", **values)
        raises(bertkit.RecipeError, message, bertkit.Recipe(**BASE).with_, **values)


def test_data_replaces_the_data_of_a_shipped_recipe_and_its_expected_scores():
    shipped = bertkit.load_recipe("sst2-minilm", ["data.source=sample:sentiment"])
    assert shipped.expected
    recipe = read("sst2-minilm", {"train": ROWS, "validation": 0.25}, {})
    assert (recipe.data.source, recipe.data.validation, recipe.data.columns) == ("memory", 0.25, {})
    assert recipe.data.revision is None
    assert recipe.expected is None
    assert recipe.training == shipped.training
    assert recipe.model == shipped.model
    other = shipped.with_(model="some/model")
    assert (other.model.name, other.model.revision, other.model.max_length) == ("some/model", None, 128)
    assert shipped.with_(model={"max_length": 64}).model.revision == shipped.model.revision
    assert read(shipped, None, {}) is shipped
    again = recipe.with_(epochs=1)
    assert again.data == recipe.data
    assert recipe.with_(columns={"text": "t"}).data.fingerprint == recipe.data.fingerprint
    assert read(recipe, ROWS, {"columns": {"text": "t"}}).data.columns == {"text": "t"}


def test_train_says_what_it_expects(tmp_path):
    train = bertkit.train
    said = "expected a task, a recipe or its name first, found a list"
    raises(bertkit.RecipeError, said, train, ROWS, tmp_path / "run", data="text-classification")
    said = "text-clasification: no such recipe or task; did you mean 'text-cl"
    raises(bertkit.RecipeError, said, train, "text-clasification", tmp_path / "run", data=ROWS)
    said = "output_dir: expected a folder, found a list; data are passed by keyword"
    raises(bertkit.RecipeError, said, train, "text-classification", ROWS)
    raises(
        TypeError,
        "takes 2 positional arguments but 3 were given",
        train,
        "text-classification",
        ROWS,
        tmp_path / "run",
    )
    raises(bertkit.RecipeError, "model: missing", train, "text-classification", tmp_path / "run", data=ROWS)
    raises(
        bertkit.RecipeError,
        "data: missing",
        train,
        "text-classification",
        tmp_path / "run",
        model="some/model",
    )
    raises(
        bertkit.RecipeError,
        r"`memory` stands for rows that are given",
        bertkit.Recipe,
        **{**BASE, "data": "memory"},
    )
    said = r"data.fingerprint: has an effect only with `source: memory`"
    given = bertkit.Recipe(**{**BASE, "data": ROWS})
    raises(bertkit.RecipeError, said, given.with_, "data.source=sample:sentiment")
    assert not (tmp_path / "run").exists()


def test_other_rows_take_the_place_of_those_that_a_run_kept(tmp_path):
    specs = [read("text-classification", rows, {"model": "m"}).data for rows in (ROWS, ROWS[:-1], ROWS[:-1])]
    hashes = [keep_rows(spec, tmp_path / "kept") for spec in specs]
    assert hashes[0] != hashes[1] == hashes[2]
    (kept,), (stored,) = (tmp_path / "kept").iterdir(), stored_files(specs[1]).values()
    assert kept.read_bytes() == stored.read_bytes()
    assert {hashlib.sha256(kept.read_bytes()).hexdigest()} == {*hashes[1].values()}


def test_an_enum_of_transformers_is_its_value():
    schedule = transformers.SchedulerType.COSINE
    recipe = bertkit.Recipe(**BASE, training={"lr_scheduler_type": schedule})
    assert recipe.training["lr_scheduler_type"] == "cosine"
