"""Recipes are read, overridden, completed and written; what ships is valid, and anything else a RecipeError."""

import inspect
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union

import jsonschema
import pytest
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from small import problems_of, raised, raises

from bertkit.data.reader import COMPRESSIONS
from bertkit.data.readers import READERS
from bertkit.engine.arguments import Arguments
from bertkit.errors import RecipeError
from bertkit.evaluation.graded import Graded
from bertkit.evaluation.intervals import bootstrap
from bertkit.methods import contrastive
from bertkit.recipe import shipped_recipes, training_arguments
from bertkit.recipe.fields import FEW_ROWS, TRAINING_DEFAULTS
from bertkit.recipe.json_schema import json_schema
from bertkit.recipe.recipe import Recipe, load_recipe, parse_data_spec, to_yaml
from bertkit.recipe.recipe import read as read_recipe
from bertkit.recipe.training_arguments import (
    DECIDED,
    EARLIER,
    _describe_class,
    _shape,
    _type,
    check_training,
    training_fields,
    training_schema,
)
from bertkit.recipe.yaml import parse
from bertkit.sections import Distillation
from bertkit.tasks import OURS
from bertkit.tasks.question_answering import QuestionAnsweringOptions
from bertkit.tasks.vector_task import VectorOptions
from bertkit.text import escape_controls

SHIPPED = shipped_recipes()

MINIMAL = """\
task: {name: text-classification}
model: {name: some/model}
data:
  source: sample:sentiment
"""


@pytest.fixture
def recipe_file(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(MINIMAL)
    return file


def test_numbers_and_words_are_those_of_yaml_12_and_keys_keep_their_text():
    text = (
        "[2e-5, 1e3, .5, 1., 0o17, 0x1F, 010, -3, on, no, yes, True, ~, 1_000, 12:30, 2026-11-01, '2e-5', =]"
    )
    assert parse(text).data == [
        *(2e-5, 1000.0, 0.5, 1.0, 15, 31, 10, -3, "on", "no", "yes", True, None),
        *"1_000 12:30 2026-11-01 2e-5 =".split(),
    ]

    assert parse("{0: a, true: b, 007: c, 1.5: d, '': e, null: f}").data == {
        **{"0": "a", "true": "b", "007": "c", "1.5": "d", "": "e", "null": "f"}
    }


def test_lines_of_keys_and_items_and_a_byte_order_mark():
    lines = parse("a: 1\nb:\n  c: [x,\n    y]\n\n  # comment\n  d: 2\n").lines
    expected = {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", 0): 3, ("b", "c", 1): 4, ("b", "d"): 7}
    assert lines == expected
    for text in ("", MINIMAL):
        assert parse(b"\xef\xbb\xbf" + text.encode()) == parse(text)


def test_defaults_are_filled_in(recipe_file):
    recipe = load_recipe(recipe_file)
    assert recipe.model.max_length == 128
    assert recipe.seeds == [42]
    assert recipe.verify
    assert recipe.training == {**TRAINING_DEFAULTS, "eval_strategy": "epoch", "save_strategy": "epoch"}


def test_overrides(recipe_file):
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
        found = load_recipe(recipe_file, [override]).model_dump()
        for key in override.partition("=")[0].strip().split("."):
            found = found[key]
        assert found == value


def test_overrides_go_from_left_to_right(recipe_file):
    overrides = "early_stopping.patience=2 early_stopping.threshold=0.1 seeds=[3] seeds=[4] ~verify".split()
    raises(RecipeError, "verify: not in the recipe", load_recipe, recipe_file, overrides)
    recipe = load_recipe(
        recipe_file, [*overrides[:-1], "verify=false", "~verify", "model.revision=a", "~model.revision"]
    )
    assert (recipe.early_stopping.patience, recipe.early_stopping.threshold) == (2, 0.1)
    assert recipe.seeds == [4]
    assert recipe.verify
    assert recipe.model.revision is None


def test_paths_in_a_file_start_from_its_folder_and_overrides_from_here(tmp_path, monkeypatch):
    there = tmp_path / "there"
    here = tmp_path / "here"
    for folder in (there, here):
        (folder / "encoder").mkdir(parents=True)
        for name in ("a.csv", "b.jsonl.gz", "plain"):
            (folder / name).touch()
    monkeypatch.chdir(here)
    file = there / "my.yaml"

    def source(text, *overrides):
        file.write_text(MINIMAL.replace("sample:sentiment", text))
        return load_recipe(file, overrides).data.source

    assert source("a.csv") == f"{there}/a.csv"
    assert source("./plain") == source("plain") == f"{there}/plain"
    assert source(".") == str(there)
    assert source(f"{here}/a.csv") == f"{here}/a.csv"
    assert source("stanfordnlp/sst2") == "stanfordnlp/sst2"
    assert source("sample:sentiment") == "sample:sentiment"
    assert source("{train: a.csv, test: [b.jsonl.gz, ../here/a.csv]}") == {
        **{"train": f"{there}/a.csv", "test": [f"{there}/b.jsonl.gz", f"{here}/a.csv"]}
    }
    assert source("x", "data.source=a.csv") == f"{here}/a.csv"
    assert source("{train: a.csv}", "data.source.test=a.csv") == {
        **{"train": f"{there}/a.csv", "test": f"{here}/a.csv"}
    }

    file.write_text(MINIMAL.replace("some/model", "encoder"))
    assert load_recipe(file).model.name == f"{there}/encoder"
    assert load_recipe(file, ["model.name=./encoder"]).model.name == f"{here}/encoder"
    assert load_recipe(
        os.path.relpath(file), ["model.name=~/x"], check_files=False
    ).model.name == os.path.expanduser("~/x")


def test_the_home_folder_and_a_hub_id_beside_a_recipe_of_its_name(recipe_file, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.csv").touch()
    assert load_recipe(recipe_file, ["data.source=~/a.csv"]).data.source == f"{tmp_path}/a.csv"
    file = tmp_path / "imdb.yaml"
    file.write_text("task: {name: text-classification}\nmodel: {name: some/bert}\ndata: {source: imdb}\n")
    assert load_recipe(file).data.source == "imdb"


def test_files_need_not_be_there_when_nobody_reads_them(recipe_file, tmp_path):
    overrides = ["data.source=/nowhere/a.csv", "model.name=./gone"]
    assert len(problems_of(RecipeError, load_recipe, recipe_file, overrides)) == 2
    assert load_recipe(recipe_file, overrides, check_files=False).data.source == "/nowhere/a.csv"


def test_what_the_readers_read_looks_like_a_file():
    suffixes = [suffix for reader in READERS for suffix in reader.suffixes]
    for suffix in [suffix + more for suffix in suffixes for more in ("", *COMPRESSIONS)]:
        raises(RecipeError, r"data\.source: no file or folder", parse_data_spec, {"source": f"gone.{suffix}"})


def test_a_leading_eval_is_stripped_from_the_metric(recipe_file):
    recipe = load_recipe(recipe_file, ["training.metric_for_best_model=eval_f1_macro"])
    assert recipe.training["metric_for_best_model"] == "f1_macro"
    assert load_recipe(recipe_file, ["training.metric_for_best_model=f1/positive"])


def test_data_spec_from_plain_data(tmp_path):
    (tmp_path / "x.txt").touch()
    spec = parse_data_spec(
        {"source": {"test": f"{tmp_path}/x.txt"}, "columns": {"text": "t"}}, ["data.format=csv"]
    )
    assert (spec.format, spec.columns) == ("csv", {"text": "t"})
    assert {
        problem.where
        for problem in problems_of(
            RecipeError,
            parse_data_spec,
            {"source": {"test": "./gone"}},
            ["data.fromat=csv", "data.format=xls"],
        )
    } == {*("", "override data.fromat=csv", "override data.format=xls")}


# What ships


def test_shipped_recipes_are_valid_and_their_dumps_say_the_same(tmp_path, subtests):
    schema = jsonschema.Draft202012Validator(json_schema())
    for name, file in SHIPPED.items():
        with subtests.test(name):
            recipe = read_recipe(name, check_files=False)
            assert (recipe.task.name if isinstance(recipe, Recipe) else "multi-task") == file.parent.name
            resolved = tmp_path / f"{name}.yaml"
            resolved.write_text(to_yaml(recipe))
            again = read_recipe(resolved, check_files=False)
            assert (again, to_yaml(again)) == (recipe, resolved.read_text())
            schema.validate(parse(file.read_text()).data)


# The installed transformers


def test_fields_are_those_of_the_class():
    fields = training_fields()
    real = {name: field for name, field in Arguments.__dataclass_fields__.items() if field.init}
    real |= {name: real.pop(before) for name, before in EARLIER.items() if name not in real}
    deprecated = real.keys() - fields.keys()
    assert not fields.keys() - real.keys()
    assert deprecated <= {*EARLIER.values(), "logging_dir", "warmup_ratio"}
    assert {name for name, field in fields.items() if field.default is False} == {
        name for name, field in real.items() if field.default is False and name not in deprecated
    }
    accepted = training_schema()["properties"]
    # of a known type
    assert all(accepted[name].keys() - {"description"} for name in fields.keys() - DECIDED.keys())
    assert set(accepted["lr_scheduler_type"]["enum"]) == {kind.value for kind in transformers.SchedulerType}
    assert set(accepted["optim"]["enum"]) == {
        *(kind.value for kind in transformers.training_args.OptimizerNames),
        "muon",
    }
    assert not list(check_training(dict(zip(EARLIER, (True, {}), strict=True)), {}))
    newer = {"dataloader_in_order", "dataloader_multiprocessing_context"}  # than the oldest transformers
    assert DECIDED.keys() - fields.keys() <= newer


def test_every_training_default_is_accepted(recipe_file):
    plain = {name: field.default for name, field in training_fields().items() if name not in DECIDED}
    assert len(plain) > 60
    recipe = load_recipe(
        recipe_file, [f"training.{name}={json.dumps(value)}" for name, value in plain.items()]
    )
    assert recipe.training == plain


class Colour(Enum):
    RED = "red"


HINTS = {  # annotation -> what it stands for in a recipe
    **{
        hint: hint
        for hint in (Literal["a"] | None, Colour | None, Sequence[str], list[int], dict[str, bool], dict)
    },
    **{hint: hint for hint in (Union[None, float], str | list[str] | None, list, bool, int | Literal[False])},  # noqa: UP007
    **{Colour | str: Colour, Path: Any, Path | None: Any, Any: Any},
}


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_a_field_takes_what_its_annotation_allows(hint):
    def taken(kind):
        adapter = TypeAdapter(kind)
        values = []
        for value in (
            None,
            True,
            False,
            1,
            1.5,
            "a",
            "red",
            [],
            ["a"],
            ["red"],
            [1],
            [[]],
            {},
            {"a": True},
            {"a": 1},
        ):
            with suppress(ValidationError):
                adapter.validate_json(json.dumps(value), strict=True)
                values.append(value)
        return values

    assert taken(_type("x", json.loads(json.dumps(_shape(hint))))) == taken(HINTS[hint])


def test_the_fields_are_cached_for_this_transformers_alone(tmp_path, monkeypatch):
    """The class is imported where the cache is cold, damaged or of other versions; an unwritable cache is no
    error.
    """
    wanted = dict(training_fields())
    imports = []

    def describe():
        imports.append("")
        return _describe_class()

    monkeypatch.setattr(training_arguments, "_describe_class", describe)

    def read(folder=tmp_path):
        monkeypatch.setenv("BERTKIT_CACHE", str(folder))
        training_fields.cache_clear()
        assert training_fields() == wanted
        return len(imports)

    assert [read(), read()] == [1, 1]
    (file,) = tmp_path.iterdir()
    for damaged in ("", "{", "[]", '{"optim": 3}', "3"):
        file.write_text(damaged)
        count = read()
        assert read() == count == len(imports)
    assert len(imports) == 6
    (tmp_path / "file").touch()
    assert [read(tmp_path / "file"), read(tmp_path / "file")] == [7, 8]
    monkeypatch.setattr(training_arguments, "version", lambda name: "another")
    assert [read(), read()] == [9, 9]


# The schema and the types


def test_the_schema_is_a_schema_and_knows_the_training_fields():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    recipe = parse(MINIMAL).data
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate({**recipe, "training": {"learning_rate": 2e-5, "optim": "adafactor"}})
    for wrong in (
        {"learning_rat": 1},
        {"learning_rate": "x"},
        {"optim": "x"},
        {"output_dir": "x"},
        {"report_to": 1},
    ):
        raised(jsonschema.ValidationError, validator.validate, {**recipe, "training": wrong})


def test_every_task_is_a_choice_of_the_recipe():
    choices = json_schema()["else"]["properties"]["task"]["oneOf"]
    assert [each["$ref"] for each in choices] == [
        f"#/$defs/{task.Options.__name__}" for task in OURS.values()
    ]
    assert all(task.Options.metrics for task in OURS.values())


# --- whatever is called a recipe gives a Recipe or a RecipeError

RECIPE = """\
# a recipe with every section
task: {name: text-classification, kind: multi-label, labels: {0: a, "1": 'b'}, thresholds: 0.5}
model:
  name: some/model
  revision: "12345678"
data:
  source: sample:sentiment
  splits: {train: tr, test: te}
  columns: {text: sentence}
  limit: {train: 10}
training:
  learning_rate: 2e-5
  optim: adafactor
  report_to: [none]
  lr_scheduler_kwargs: {min_lr: 1e-6}
seeds: [1, 2]
early_stopping: {patience: 2}
peft: {target_modules: [query]}
expected:
  accuracy: [0.9, 1]
  date: 2026-11-01
  note: |
    two
    lines
"""

# what YAML gives a meaning, what recipes are made of, and what breaks parsers
PIECES = [
    ": ", ":", "- ", "? ", ", ", "[", "]", "{", "}", "'", '"', "#", " #", "|", ">", "|2", "&a ", "*a", "!", "!!", "%",
    "@", "\n", "\n\n", "\n  ", "  ", "\t", "\r", "\r\n", "---", "\n---\n", "...", "<<: ", "=", "~", "\\", '"\\x41"',
    "\\U00110000", "!!python/object:os.system ", "!!binary ", "!!set ", "%YAML 1.1\n", "%YAML 9.9\n",
    "%TAG ! tag:x,2000:\n", "%FOO\n", "null", "true", "no", "1", "-1", "2e-5", "1e999", "0o17", "0x1F", ".inf", ".nan",
    "9" * 200, "1_000", "'1'", "\0", "\x07", "\x85", "\u2028", "\ufeff", "\ud800", "é", "😀", "a" * 200, "[" * 30,
    "{a: " * 30, "- " * 30,
    *"task model data training seeds name source text-classification learning_rate ./x.csv".split(),
]  # fmt: skip
fragments = st.one_of(st.sampled_from(PIECES), st.text(max_size=4), st.integers(-3, 300).map(str))
snippets = st.lists(fragments, max_size=12).map("".join)
keys = st.sampled_from(
    "task.name task.kind task.labels task.class_weights task.thresholds task.stride task.overflow "
    "model.name model.max_length data.source data.source.train data.limit data.header data.columns "
    "training.learning_rate training.warmup_ratio training.seed training.optim training.report_to "
    "training.metric_for_best_model seeds early_stopping early_stopping.patience peft freeze expected "
    "verify training task model data ~model ~training.optim ~data.source x.y".split()
)
overrides = st.one_of(snippets, st.builds("{}={}".format, keys, snippets), keys)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "my.yaml"


def read(file, content, *overrides):
    """Load it; everything but a recipe and a RecipeError fails the test."""
    file.write_bytes(content)
    error = None
    try:
        recipe = load_recipe(file, overrides)
    except RecipeError as caught:
        error = caught
    if error is None:
        file.write_text(to_yaml(recipe))
        assert load_recipe(file) == recipe
    else:
        assert error.problems
        assert all(problem.where and problem.what for problem in error.problems)
        assert all(line == escape_controls(line) for line in str(error).split("\n"))


@settings(max_examples=60)
@given(st.one_of(st.binary(max_size=200), snippets.map(lambda text: text.encode(errors="surrogatepass"))))
@example(b"a: &a [*a]")
@example(b"? " * 500)
@example(b"- " * 5000)
@example(b"[" * 50_000)
@example(b"&a " * 1000)
@example(b"a:\n" * 2000)
@example(b'"\\' * 1000)
@example(b"!" * 10_000)
@example(b"%YAML 1." + b"9" * 5000 + b"\n---\na: 1")
@example(RECIPE.encode("utf-16"))
def test_any_bytes(file, content):
    read(file, content)


@settings(max_examples=60)
@given(st.data())
def test_a_recipe_with_a_piece_changed(file, data):
    text = RECIPE
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(snippets) + text[end:]
    read(file, text.encode(errors="surrogatepass"))


@settings(max_examples=60)
@given(st.lists(overrides, min_size=1, max_size=4))
@example(["data.source=~nobody/x.csv"])
@example(["model.name=" + "x/" * 3000])
@example(["data.source=" + "x" * 5000 + ".csv"])
@example(["a." * 5000 + "b=1"])
@example(["seeds=[" + "9" * 100 + "]"])
@example(["task.temperature=" + "9" * 100])
@example(["training.learning_rate=" + "9" * 100])
def test_any_overrides(file, words):
    read(file, RECIPE.encode(), *words)


# plain data, by where it is put; text without what no file can hold
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
words = st.one_of(texts, st.sampled_from(PIECES[:-10])).filter(
    lambda text: "\0" not in text and "\ud800" not in text
)
numbers = st.one_of(st.integers(-(10**30), 10**30), st.floats(allow_nan=False, allow_infinity=False))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=8,
)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@settings(max_examples=60)
@given(
    task=st.fixed_dictionaries(
        {"name": st.just("text-classification")},
        optional={
            "labels": st.one_of(
                st.none(),
                st.lists(words.filter(bool), unique=True, min_size=1),
                st.dictionaries(words, words.filter(bool), min_size=1),
            ),
            "temperature": st.one_of(st.none(), st.floats(1e-3, 1e9), st.integers(1, 10)),
            "stride": st.integers(0, 10**9),
        },
    ),
    data=st.fixed_dictionaries(
        {"source": st.just("sample:sentiment")},
        optional={
            "subset": words,
            "columns": st.dictionaries(words, words),
            "header": st.one_of(st.booleans(), st.lists(words)),
            "delimiter": st.characters(codec="utf-8", exclude_characters='\0"\r\n'),
            "limit": st.one_of(
                st.none(), st.integers(1, 10**30), st.dictionaries(st.just("train"), st.integers(1, 9))
            ),
        },
    ),
    training=st.fixed_dictionaries(
        {},
        optional={
            "learning_rate": positive,
            "run_name": words,
            "report_to": st.one_of(st.none(), st.lists(words)),
            "lr_scheduler_kwargs": st.dictionaries(words, anything, max_size=3),
        },
    ),
    expected=st.one_of(
        st.none(), st.dictionaries(words, st.one_of(words, st.integers(), st.just([0.5, 0.75])), max_size=4)
    ),
)
def test_what_is_written_reads_back_equal(file, **sections):
    recipe = Recipe.model_validate({"model": {"name": "some/model"}, **sections})
    file.write_bytes(to_yaml(recipe).encode())
    assert load_recipe(file) == recipe
    assert to_yaml(load_recipe(file)) == to_yaml(recipe)


def test_the_defaults_are_those_of_the_pages():
    assert TRAINING_DEFAULTS == {
        "learning_rate": 5e-5,
        "num_train_epochs": 3,
        "per_device_train_batch_size": 32,
        "per_device_eval_batch_size": 32,
        "warmup_steps": 0.1,
        "weight_decay": 0.01,
        "logging_steps": 50,
        "save_total_limit": 2,
    }
    assert FEW_ROWS == {"learning_rate": 2e-4, "num_train_epochs": 20}
    for function in (bootstrap, Graded.intervals):
        assert inspect.signature(function).parameters["resamples"].default == 1000
    section = Distillation(teacher="t")
    assert (section.temperature, section.alpha) == (2.0, 0.5)
    fields = QuestionAnsweringOptions.model_fields
    names = ("n_best", "max_answer_length", "stride")
    assert [fields[name].default for name in names] == [20, 30, 128]
    assert VectorOptions.model_fields["scale"].default == 20.0
    names = "SCALE LEARNING_RATE PROTOTYPES WEIGHT_DECAY WARMUP CLIPPING".split()
    assert [getattr(contrastive, name) for name in names] == [20.0, 1e-4, 1e-3, 0.01, 0.1, 1.0]
