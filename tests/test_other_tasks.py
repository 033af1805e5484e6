"""Tasks of other packages, and of `register`: found, refused with the reason, recorded in a model, missed
elsewhere.
"""

import dataclasses
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
import small
from cases import BY_ID
from pydantic import TypeAdapter
from small import change_json, message_of, raises, write_recipe, write_rows

import bertkit
from bertkit import tasks
from bertkit.cli.doctor import examine
from bertkit.data import load
from bertkit.data.schema import Column, Schema
from bertkit.errors import DataError, ModelError, RecipeError
from bertkit.files import read_json
from bertkit.inference.display import answer_line, example, flat
from bertkit.inference.predictor import Predictor
from bertkit.recipe.json_schema import json_schema
from bertkit.sections import DataSpec
from bertkit.serving.schemas import RowReader
from bertkit.tasks import Task, get_task
from bertkit.tasks.fields import Key, form
from bertkit.tasks.text_classification import TextClassification, TextClassificationOptions
from bertkit.text import json_line

MODULE = """
from typing import Literal
from bertkit.tasks.text_classification import TextClassification, TextClassificationOptions

class Options(TextClassificationOptions):
    name: Literal["{name}"]

class Mine(TextClassification):
    Options, name, pipeline = Options, "{name}", ""
"""


def install(folder, package, module, announced, code):
    """A package as pip leaves it. announced: its entry point."""
    name, _, value = announced.partition(" = ")
    about = {"name": package, "version": "1.2", "entry-points": {"bertkit.tasks": {name: value}}}
    small.install(folder, {"project": about})
    (folder / f"{module}.py").write_text(code)


@pytest.fixture
def own(monkeypatch):
    """What is registered or loaded is forgotten afterwards."""
    monkeypatch.setattr(tasks, "_OTHERS", {})


@pytest.fixture
def packages(tmp_path, own, monkeypatch):
    """One good package, and several that cannot be used."""
    folder = tmp_path / "packages"
    install(folder, "acme-tasks", "acme", "shouting = acme:Mine", MODULE.format(name="shouting"))
    install(folder, "torn", "torn", "torn = torn:Mine", "import nothing_of_this_name")
    install(folder, "misnamed", "misnamed", "whispering = misnamed:Mine", MODULE.format(name="shout"))
    install(folder, "no-task", "no_task", "counting = no_task:Mine", "Mine = dict")
    install(folder, "first", "first", "twice = first:Mine", MODULE.format(name="twice"))
    install(folder, "second", "second", "twice = second:Mine", MODULE.format(name="twice"))
    install(folder, "usurper", "usurper", "text-ranking = usurper:Mine", MODULE.format(name="text-ranking"))
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.usefixtures("packages")
def test_a_package_announces_a_task_and_one_that_cannot_be_used_is_refused_by_itself(tiny_encoder):
    assert get_task("shouting").__module__ == "acme"
    assert tasks.package_of("shouting") == "acme-tasks 1.2"
    assert get_task("text-ranking") is tasks.OURS["text-ranking"]
    for name, why in {
        "torn": (
            "'torn' of torn 1.2 cannot be used: ModuleNotFoundError: No module named 'nothing_of_this_name'"
        ),
        "whispering": "'whispering' of misnamed 1.2 cannot be used: its name is 'shout'",
        "counting": "of no-task 1.2 cannot be used: .* is not a subclass of bertkit.tasks.Task",
        "twice": "of first 1.2 and second 1.2 cannot be used: several packages have a task of this name",
        "shoutin": "no task 'shoutin'; did you mean 'shouting'",
    }.items():
        raises(RecipeError, why, get_task, name)
        raises(RecipeError, why, bertkit.Recipe, task=name, model=tiny_encoder, data="sample:sentiment")
    one = json_schema()["else"]["properties"]["task"]
    several = json_schema()["$defs"]["TaskPart"]["properties"]["task"]
    names = [*tasks.OURS, "shouting"]
    assert [*one["discriminator"]["mapping"]] == sorted(names)
    assert len(several["oneOf"]) == sum(get_task(name).shares_encoder for name in names)
    listed = examine()["tasks"]
    assert (listed["shouting"], "text-ranking" in listed) == ("acme-tasks 1.2", False)
    assert "nothing_of_this_name" in listed["torn"]


def outside(code, *paths):
    """What a process with these folders on its path, and no others but bertkit's, does with the code."""
    path = os.pathsep.join(map(str, [*paths, Path(bertkit.__file__).parent.parent]))
    command = [sys.executable, "-c", f"import sys, bertkit.cli.main as cli; sys.exit(cli.main({code}))"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )


def test_a_model_names_the_package_that_it_needs(packages, tiny_encoder, tmp_path):
    file = write_recipe(tmp_path, tiny_encoder)
    file.write_text(file.read_text().replace("text-classification", "shouting"))
    run = bertkit.train(file, tmp_path / "run", epochs=1, verify=True)
    assert run.results["verified"]
    config = run.model / "config.json"
    section = read_json(config)["bertkit"]
    assert section["package"] == "acme-tasks 1.2"
    predict = ["predict", str(run.folder), "a cat"]
    assert outside(str(predict), packages).returncode == 0
    for code in (predict, ["check", f"{run.folder}/recipe.yaml"]):
        missed = outside(str(code))
        assert missed.returncode == 2
        assert "its task 'shouting' is of the package acme-tasks, which is not installed" in missed.stderr
        assert missed.stderr.endswith("\n    pip install acme-tasks\n")
    section["task"]["name"] = "gone"
    for package in ("acme; curl evil 1.2", "acme 1.2 | sh", "-r evil 1", 7, None):
        change_json(config, bertkit={**section, "package": package})
        said = message_of(ModelError, bertkit.load, run.folder)
        assert "damaged" in said or "pip" not in said


def test_numbers_of_words_are_as_many_as_the_words(tmp_path):
    columns = {"tokens": Column("words", "words"), "numbers": Column("numbers", "one per word")}
    schema = Schema(columns, [frozenset({"tokens"})], ["numbers"])

    def read(*numbers):
        rows = [{"tokens": ["a", "cat"], "numbers": each} for each in numbers]
        return load(DataSpec(source=str(write_rows(tmp_path / "rows.jsonl", rows))), schema).rows["train"]

    assert read([1, "2.5"], [0, -1])["numbers"][:] == [[1.0, 2.5], [0.0, -1.0]]
    for wrong, why in (
        ([1.0], "rows.jsonl:2: 2 words, but 1 numbers"),
        ([1.0, None], "`numbers` holds .* where a list of numbers, one per word, is expected"),
        ("1 2", "where a list of numbers, one per word, is expected"),
        ([1.0, "x"], "`numbers` holds 'x', where a number is expected"),
    ):
        raises(DataError, why, read, [1, 2], wrong)


def test_a_number_may_be_read_beside_a_text(tiny_encoder):
    class Priced(TextClassification):
        schema = Schema(
            {
                "text": Column("text", "a text"),
                "price": Column("number", "its price"),
                "label": Column("label", "it"),
            },
            [frozenset({"text", "price"})],
            ["label"],
        )
        inputs: ClassVar = schema.inputs

    case = BY_ID["single-label"]
    task = Priced(case.options, case.task(tiny_encoder).tokenizer, 32)
    predictor = Predictor(task, None, None, None, None, {})
    assert predictor.any_row(["text", "price"]) == {"text": "a", "price": 0}
    assert '"price": 0' in example("r", task, task.inputs)
    assert "price" in str(TypeAdapter(RowReader(task, {}).annotation).json_schema())


class Options(TextClassificationOptions):
    name: Literal["of-a-notebook"]


def of_a_notebook(**members):
    """A new class at each call, as when a notebook's cell is run again."""
    return type("Mine", (TextClassification,), {"Options": Options, "name": "of-a-notebook", **members})


@pytest.mark.usefixtures("packages")
def test_a_notebook_registers_a_task_and_registers_it_again(tiny_encoder, tmp_path):
    bertkit.register(of_a_notebook())
    again = bertkit.register(of_a_notebook())
    assert get_task("of-a-notebook") is again
    run = bertkit.train(
        write_recipe(tmp_path, tiny_encoder), tmp_path / "run", task="of-a-notebook", epochs=1
    )
    assert bertkit.load(run.folder)("a cat")["label"] in ("good", "bad")
    assert read_json(run.model / "config.json")["bertkit"]["package"] is None


@pytest.mark.usefixtures("own")
def test_a_model_of_a_registered_task_is_not_verified_and_says_so(tiny_encoder, tmp_path, caplog):
    bertkit.register(of_a_notebook())
    file = write_recipe(tmp_path, tiny_encoder)
    run = bertkit.train(file, tmp_path / "run", task="of-a-notebook", epochs=1, verify=True)
    assert run.results["verified"] is False
    assert "a fresh process does not know of-a-notebook, which this one registered" in caplog.text


class Half(Task):
    name: ClassVar[str] = "half"


@pytest.mark.usefixtures("packages")
def test_what_is_registered_must_be_a_task_of_a_new_name():
    for members, why in (
        ({"name": "retrieval"}, "bertkit has a task of this name"),
        ({"name": "shouting"}, "acme-tasks 1.2 has a task of this name"),
        ({"name": "other"}, r"its Options do not declare  name: Literal\['other'\]"),
        (
            {"schema": dataclasses.replace(TextClassification.schema, inputs=[frozenset("text")])},
            "its schema has no column e, t, x",
        ),
        ({"forms": TextClassification.forms[0]}, "is declared wrongly: 'str' object"),
        ({"gives": classmethod(lambda kind, role: True)}, "it must be a bertkit.tasks.VectorTask"),
    ):
        raises(RecipeError, why, bertkit.register, of_a_notebook(**members))
    raises(RecipeError, "it lacks Options, schema, forms, count, decode", bertkit.register, Half)
    said = "a task with an entry point is not registered"
    raises(RecipeError, said, bertkit.register, of_a_notebook(name="shouting"))
    raises(RecipeError, "is not a subclass", bertkit.register, dict)


def test_lists_of_numbers_are_shown():
    spread = form("Spread", "", Key("spread", "number", list[float]), line="{spread}")
    assert answer_line({"spread": [0.5, 1.0]}, forms=[spread]) == "0.5, 1.0"
    assert dict(flat({"labels": [1, 2]})) == {"labels": "1|2"}
    assert dict(flat({"spread": [np.float32(0.5)]})) == {"spread": "[0.5]"}
    assert json_line(np.float32(0.5)) == "0.5"


@pytest.mark.usefixtures("own")
def test_a_package_that_is_installed_later_is_found(tmp_path, monkeypatch):
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    raises(RecipeError, "no task 'late'", get_task, "late")
    install(folder, "late", "late", "late = late:Mine", MODULE.format(name="late"))
    importlib.invalidate_caches()
    assert get_task("late").__module__ == "late"
