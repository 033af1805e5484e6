"""Recipes are read, overridden, completed and written; what ships is valid."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
import small
import transformers

from bertkit.data.readers import COMPRESSIONS, FORMATS
from bertkit.engine.arguments import Arguments
from bertkit.errors import RecipeError
from bertkit.recipe import shipped_recipes
from bertkit.recipe.multitask import json_schema
from bertkit.recipe.recipe import (
    TASK_OPTIONS,
    TRAINING_DEFAULTS,
    Recipe,
    load_recipe,
    parse_data_spec,
    to_yaml,
)
from bertkit.recipe.training_arguments import DECIDED, check_training, training_fields, training_schema
from bertkit.recipe.yaml import parse

SHIPPED = shipped_recipes()

MINIMAL = """\
task: {name: text-classification}
model: {name: some/model}
data:
  source: sample:sentiment
"""


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    file = tmp_path / "my.yaml"
    file.write_text(MINIMAL)
    return file


def test_numbers_and_words_are_those_of_yaml_12_and_keys_keep_their_text() -> None:
    text = "[2e-5, 1e3, .5, 1., 0o17, 0x1F, 010, -3, on, no, yes, True, ~, 1_000, 12:30, 2026-11-01, '2e-5', =]"
    assert parse(text).data == [
        *(2e-5, 1000.0, 0.5, 1.0, 15, 31, 10, -3, "on", "no", "yes", True, None),
        *("1_000", "12:30", "2026-11-01", "2e-5", "="),
    ]

    assert parse("{0: a, true: b, 007: c, 1.5: d, '': e, null: f}").data == {
        **{"0": "a", "true": "b", "007": "c", "1.5": "d", "": "e", "null": "f"}
    }


def test_lines_of_keys_and_items_and_a_byte_order_mark() -> None:
    lines = parse("a: 1\nb:\n  c: [x,\n    y]\n\n  # comment\n  d: 2\n").lines
    expected = {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", 0): 3, ("b", "c", 1): 4, ("b", "d"): 7}
    assert lines == expected
    for text in ("", MINIMAL):
        assert parse(b"\xef\xbb\xbf" + text.encode()) == parse(text)


def test_defaults_are_filled_in(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file)
    assert recipe.model.max_length == 128
    assert recipe.seeds == [42]
    assert recipe.verify
    assert recipe.training == {**TRAINING_DEFAULTS, "eval_strategy": "epoch", "save_strategy": "epoch"}


def test_overrides(recipe_file: Path) -> None:
    for override, value in (
        ("data.limit=5", 5),
        ("data.limit={train: 3, test: 4}", {"train": 3, "test": 4}),
        ("data.limit=null", None),
        ("data.limit=", None),
        ("data.limit.train=7", 7),
        ("data.delimiter==", "="),
        ("data.subset=a=b", "a=b"),
        ("data.subset='a: b'", "a: b"),
        ("data.subset=é 😀", "é 😀"),
        ("training.learning_rate=2e-5", 2e-5),
        ("training.eval_strategy=no", "no"),
        ("seeds=[1, 2]", [1, 2]),
        (" data.columns.text = review", "review"),
    ):
        found: object = load_recipe(recipe_file, [override]).model_dump()
        for key in override.partition("=")[0].strip().split("."):
            assert isinstance(found, dict)
            found = found[key]
        assert found == value


def test_overrides_go_from_left_to_right(recipe_file: Path) -> None:
    overrides = ["early_stopping.patience=2", "early_stopping.threshold=0.1", "seeds=[3]", "seeds=[4]", "~verify"]
    with pytest.raises(RecipeError, match="verify: not in the recipe"):
        load_recipe(recipe_file, overrides)
    recipe = load_recipe(
        recipe_file, [*overrides[:-1], "verify=false", "~verify", "model.revision=a", "~model.revision"]
    )
    assert (recipe.early_stopping.patience, recipe.early_stopping.threshold) == (2, 0.1)
    assert recipe.seeds == [4]
    assert recipe.verify
    assert recipe.model.revision is None


def test_paths_in_a_file_start_from_its_folder_and_overrides_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        (folder / "encoder").mkdir(parents=True)
        for name in ("a.csv", "b.jsonl.gz", "plain"):
            (folder / name).touch()
    monkeypatch.chdir(here)
    file = there / "my.yaml"

    def source(text: str, *overrides: str) -> object:
        file.write_text(MINIMAL.replace("sample:sentiment", text))
        return load_recipe(file, overrides).data.source

    assert source("a.csv") == str(there / "a.csv")
    assert source("./plain") == source("plain") == str(there / "plain")
    assert source(".") == str(there)
    assert source(str(here / "a.csv")) == str(here / "a.csv")
    assert source("stanfordnlp/sst2") == "stanfordnlp/sst2"
    assert source("sample:sentiment") == "sample:sentiment"
    assert source("{train: a.csv, test: [b.jsonl.gz, ../here/a.csv]}") == {
        **{"train": str(there / "a.csv"), "test": [str(there / "b.jsonl.gz"), str(here / "a.csv")]}
    }
    assert source("x", "data.source=a.csv") == str(here / "a.csv")
    assert source("{train: a.csv}", "data.source.test=a.csv") == {
        **{"train": str(there / "a.csv"), "test": str(here / "a.csv")}
    }

    file.write_text(MINIMAL.replace("some/model", "encoder"))
    assert load_recipe(file).model.name == str(there / "encoder")
    assert load_recipe(file, ["model.name=./encoder"]).model.name == str(here / "encoder")
    assert load_recipe(os.path.relpath(file), ["model.name=~/x"], check_files=False).model.name == os.path.expanduser(
        "~/x"
    )


def test_the_home_folder_and_a_hub_id_beside_a_recipe_of_its_name(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.csv").touch()
    assert load_recipe(recipe_file, ["data.source=~/a.csv"]).data.source == str(tmp_path / "a.csv")
    file = tmp_path / "imdb.yaml"
    file.write_text("task: {name: text-classification}\nmodel: {name: some/bert}\ndata: {source: imdb}\n")
    assert load_recipe(file).data.source == "imdb"


def test_files_need_not_be_there_when_nobody_reads_them(recipe_file: Path, tmp_path: Path) -> None:
    overrides = ["data.source=/nowhere/a.csv", "model.name=./gone"]
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe_file, overrides)
    assert len(caught.value.problems) == 2
    assert load_recipe(recipe_file, overrides, check_files=False).data.source == "/nowhere/a.csv"


def test_what_the_readers_read_looks_like_a_file() -> None:
    for suffix in [form + more for form in FORMATS for more in ("", *COMPRESSIONS)]:
        with pytest.raises(RecipeError, match=r"data\.source: no file or folder"):
            parse_data_spec({"source": f"gone.{suffix}"})


def test_a_leading_eval_is_stripped_from_the_metric(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file, ["training.metric_for_best_model=eval_f1_macro"])
    assert recipe.training["metric_for_best_model"] == "f1_macro"
    assert load_recipe(recipe_file, ["training.metric_for_best_model=f1/positive"])


def test_data_spec_from_plain_data(tmp_path: Path) -> None:
    (tmp_path / "x.txt").touch()
    spec = parse_data_spec({"source": {"test": str(tmp_path / "x.txt")}, "columns": {"text": "t"}}, ["data.format=csv"])
    assert (spec.format, spec.columns) == ("csv", {"text": "t"})
    with pytest.raises(RecipeError) as caught:
        parse_data_spec({"source": {"test": "./gone"}}, ["data.fromat=csv", "data.format=xls"])
    assert {problem.where for problem in caught.value.problems} == {
        *("", "override data.fromat=csv", "override data.format=xls"),
    }


# What ships


def test_shipped_recipes_are_valid_and_their_dumps_say_the_same(tmp_path: Path, subtests: pytest.Subtests) -> None:
    schema = jsonschema.Draft202012Validator(json_schema())
    for name, file in SHIPPED.items():
        if file.parent.name == "multi-task":
            continue
        with subtests.test(name):
            recipe = load_recipe(name, check_files=False)
            assert recipe.task.name == file.parent.name
            resolved = tmp_path / f"{name}.yaml"
            resolved.write_text(to_yaml(recipe))
            again = load_recipe(resolved, check_files=False)
            assert (again, to_yaml(again)) == (recipe, resolved.read_text())
            schema.validate(parse(file.read_text()).data)


# The installed transformers


def test_fields_are_those_of_the_class() -> None:
    fields = training_fields()
    real = {name: field for name, field in Arguments.__dataclass_fields__.items() if field.init}
    deprecated = real.keys() - fields.keys()
    assert not fields.keys() - real.keys()
    assert deprecated <= {"gradient_checkpointing", "gradient_checkpointing_kwargs"}
    assert {name for name, field in fields.items() if field.default == "False"} == {
        name for name, field in real.items() if field.default is False and name not in deprecated
    }
    accepted = training_schema()["properties"]
    assert all(accepted[name].keys() - {"description"} for name in fields.keys() - DECIDED.keys())  # of a known type
    assert set(accepted["lr_scheduler_type"]["enum"]) == {kind.value for kind in transformers.SchedulerType}
    assert set(accepted["optim"]["enum"]) == {
        *(kind.value for kind in transformers.training_args.OptimizerNames),
        "muon",
    }


def test_checkpointing_has_the_name_of_the_installed_transformers() -> None:
    assert not list(check_training({small.CHECKPOINTING: True, f"{small.CHECKPOINTING}_kwargs": {}}, {}))


def test_what_bertkit_decides_is_still_there_to_be_decided() -> None:
    newer = {"dataloader_in_order", "dataloader_multiprocessing_context"}  # than the oldest transformers
    assert DECIDED.keys() - training_fields().keys() <= newer


def test_every_training_default_is_accepted(recipe_file: Path) -> None:
    given = {name: ast.literal_eval(field.default) for name, field in training_fields().items() if _plain_default(name)}
    assert len(given) > 60
    recipe = load_recipe(recipe_file, [f"training.{name}={_yaml(value)}" for name, value in given.items()])
    assert recipe.training == given


def _plain_default(name: str) -> bool:
    return name not in DECIDED and training_fields()[name].default not in ("", "default_optim")


def _yaml(value: object) -> str:
    return "null" if value is None else repr(value).lower() if isinstance(value, bool) else repr(value)


# The schema and the types


def test_the_schema_is_a_schema_and_knows_the_training_fields() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    recipe, validator = parse(MINIMAL).data, jsonschema.Draft202012Validator(schema)
    validator.validate({**recipe, "training": {"learning_rate": 2e-5, "optim": "adafactor"}})
    for wrong in ({"learning_rat": 1}, {"learning_rate": "x"}, {"optim": "x"}, {"output_dir": "x"}, {"report_to": 1}):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({**recipe, "training": wrong})


def test_every_task_is_a_choice_of_the_recipe() -> None:
    annotation = Recipe.model_fields["task"].annotation
    assert set(get_args(annotation) or (annotation,)) == set(TASK_OPTIONS)
    assert all(options.metrics for options in TASK_OPTIONS)
