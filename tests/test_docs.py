"""The site: pages that are made from the code hold all of it; every page is in the table of contents; recipes
load.
"""

import argparse
import doctest
import re
import shutil
import sys
import tomllib
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import small
from small import ROOT

import bertkit
from bertkit import tasks
from bertkit.cli import main as cli
from bertkit.data import readers
from bertkit.errors import DataError
from bertkit.recipe import shipped_recipes
from bertkit.recipe.recipe import Recipe, load_recipe
from bertkit.recipe.training_arguments import DECIDED, training_fields
from bertkit.tasks import OURS
from bertkit.training import classifier

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
COMING_FROM = DOCS / "coming-from.md"


@pytest.fixture(scope="module")
def reference():
    return small.program(DOCS / "reference.py")


def tables(page):
    """Section -> key -> type, default and meaning."""
    found = {}
    for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, re.M | re.S):
        rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", body, re.M)
        found[title] = {
            key: [c.replace("\\|", "|") for c in re.split(r"(?<!\\) \| ", cells)] for key, cells in rows
        }
    return found


def models(model, name):
    """Every section of the recipe below this one, by pydantic's own fields: the oracle for what reads the
    schema.
    """
    fields = model.model_fields
    yield name or "Top-level keys", fields
    for key, field in fields.items():
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and hasattr(part, "model_fields") and key != "task":
                yield from models(part, f"{name}.{key}" if name else key)


@pytest.fixture
def tiny_trainings(tiny_encoder, tmp_path, monkeypatch):
    """`bertkit.train` on the tiny encoder, in a folder of the test."""

    real = bertkit.train

    @wraps(real)
    def train(task, folder, **settings):
        quick = {"model": tiny_encoder, "max_length": 32, "epochs": 1, "explain": False, "verify": False}
        return real(task, folder, **{**settings, **quick})

    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_encoder, "runs/retriever")
    rows = [
        {"id": str(n), "text": f"{word} film {n}", "label": word}
        for n in range(12)
        for word in ("good", "bad")
    ]
    small.write_rows(Path("reviews.csv"), "text\nNot bad at all.\nNever again.\n")
    small.write_rows(Path("articles.jsonl"), rows[:3:2])
    small.write_rows(Path("rows.jsonl"), rows)
    settings = {"training": {"max_steps": 2}, "explain": False, "verify": False}
    small.write_rows(
        Path("my.yaml"),
        [
            settings
            | {
                "task": {"name": "text-classification"},
                "model": {"name": str(tiny_encoder), "max_length": 32},
                "data": {"source": "rows.jsonl", "validation": 0.25},
            }
        ],
    )
    monkeypatch.setattr(bertkit, "train", train)
    monkeypatch.setattr(classifier, "train", train)


@pytest.mark.usefixtures("tiny_trainings")
def test_the_first_lines_of_python_train_a_frame():
    code = (DOCS / "python.md").read_text().split("```python\n")[1].split("```")[0]
    names = {}
    exec(code, names)
    assert names["run"].results["splits"]["validation"]["rows"] == 4


@pytest.mark.usefixtures("tiny_trainings")
@pytest.mark.parametrize("name", [n for n in bertkit.__all__ if not n.endswith("Error") or n == "UserError"])
def test_the_example_in_a_docstring_runs(name, learned):
    """And nothing is printed, which would be part of what it gives."""
    shutil.copytree(learned.folder, "runs/quickstart")
    (example,) = doctest.DocTestFinder(recurse=False).find(
        getattr(bertkit, name), name, globs={"bertkit": bertkit}
    )
    assert example.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


def test_the_recipe_page_has_every_key_of_every_section_with_its_default(reference):
    found = tables(reference.recipe_page())
    wanted = {name: set(fields) for name, fields in models(Recipe, "")}
    wanted |= {f"task: {task.name}": set(task.Options.model_fields) for task in OURS.values()}
    wanted["training"] = set(training_fields()) - set(DECIDED)
    assert {name: set(rows) for name, rows in found.items()} == wanted
    assert not [
        row for rows in found.values() for row in rows.values() if len(row) != 3 or not row[0] or not row[1]
    ]
    found = tables(reference.recipe_page())
    for name, fields in models(Recipe, ""):
        for key, field in fields.items():
            default = found[name][key][1]
            assert (default == "required") == field.is_required(), (name, key)
            if not field.is_required() and key != "training":
                assert default == reference.code(field.get_default(call_default_factory=True)), (name, key)
    assert found["training"]["learning_rate"][1] == "`5e-05`"  # bertkit's own
    assert found["training"]["lr_scheduler_type"][1] == "`linear`"  # transformers'
    assert found["data"]["limit"][0].startswith("integer from 1 or mapping to integer from 1")


def parsers(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


def test_the_command_page_has_every_command_and_option(reference):
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", reference.command_page(), re.M | re.S))
    leaves = {parser.prog: parser for parser in parsers(cli.make_parser()) if parser._defaults}
    assert sections.keys() == leaves.keys()
    assert {"bertkit train", "bertkit tokenizer train"} <= sections.keys()
    for name, parser in leaves.items():
        for action in parser._actions:
            for option in action.option_strings or action.choices or [str(action.metavar or action.dest)]:
                assert option in sections[name], (name, option)


EXTENDING = re.findall(
    r"^```python\n(.*?)^```$", (DOCS / "extending.md").read_text(encoding="utf-8"), re.M | re.S
)


@pytest.mark.usefixtures("tiny_trainings")
@pytest.mark.parametrize("program", EXTENDING, ids=range(len(EXTENDING)))
def test_the_programs_of_extending_run(program, tiny_encoder, monkeypatch):
    monkeypatch.setattr(tasks, "_OTHERS", {})
    # where the names of its classes are looked up
    monkeypatch.setitem(sys.modules, "program", ModuleType("program"))
    monkeypatch.setattr(sys.modules["program"], "__file__", "extending.md", raising=False)
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(program, "extending.md", "exec", dont_inherit=True), names)
    if "READER" not in names:
        (results,) = Path("runs").glob("*/results.json")
        assert bertkit.Run(results.parent).results["splits"]
        return
    Path("rows.bars").write_text("good | a film\nbad film\n", encoding="utf-8")
    monkeypatch.setattr(readers, "READERS", (*readers.READERS, names["READER"]))
    check = partial(bertkit.check, "text-classification", data="rows.bars", model=tiny_encoder, max_length=32)
    small.raises(DataError, "rows.bars:2: no ' | ' after the label", check)


def test_the_pages_of_python_and_of_modules_have_every_name(reference):
    assert re.findall(r":: bertkit\.(\w+)", reference.api_page()) == bertkit.__all__
    package = ROOT / "bertkit"
    found = {
        f"{folder}/{name}"
        for folder, body in re.findall(
            r"^## bertkit/?(.*?)/?\n(.*?)(?=^## |\Z)", reference.module_page(), re.M | re.S
        )
        for name in re.findall(r"^\| `(\w+\.py)` \| \S.* \|$", body, re.M)
    }
    there = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    assert {name.removeprefix("/") for name in found} == there


def test_the_task_page_has_every_task_and_field(reference):
    page = reference.task_page()
    uses, *sections = page.split("\n## ")
    assert re.findall(r"^\| `([\w-]+)` \|", uses, re.M) == [*OURS]
    for task, section in zip(OURS.values(), sections, strict=True):
        assert section.startswith(task.name)
        there = [name for name in re.findall(r"^\| `([\w.\[\]]+)` \|", section, re.M) if "[]" not in name]
        assert there == [field.name for form in task.forms for field in form.fields]
    assert "| `pretraining` | – | – | yes | – | – | – | – |" in uses


def test_every_extra_and_dependency_is_explained_and_the_tables_by_task_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (DOCS / "install.md").read_text().split("| extra |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.M)) == extras.keys()
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    table = (DOCS / "architecture.md").read_text().split("## Dependencies")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([\w.-]+)` \|", table, re.M)
    assert set(re.findall(r"^\| `([\w.-]+)` \|", table, re.M)) == {
        re.split("[<>=]", each)[0] for each in needed
    }
    rows = re.findall(r"^\| `(\w+/\w+\.py)`: (.*?) \|", (DOCS / "architecture.md").read_text(), re.M)
    assert len(rows) >= 4
    for file, names in rows:
        code = (ROOT / "bertkit" / file).read_text()
        assert not [name for name in re.findall(r"`(\w+)`", names) if f"\n{name}: Mapping" not in code]


def test_every_page_is_in_the_table_of_contents():
    trees = re.findall(r"^```{toctree}\n(.*?)^```$", (DOCS / "index.md").read_text(), re.M | re.S)
    listed = re.findall(r"^([\w./-]+)$", "".join(trees), re.M)
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert pages | {f"../notebooks/{page.stem}" for page in (ROOT / "notebooks").glob("*.ipynb")} <= set(
        listed
    )
    assert not [
        name
        for name in listed
        if not (DOCS / f"{name}.md").exists() and not (DOCS / f"{name}.ipynb").exists()
    ]
    assert len(set(listed)) == len(listed)


def recipes(page):
    """The blocks that are whole recipes."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S)
    return [
        each for each in blocks if all(re.search(f"^{key}:", each, re.M) for key in ("task", "model", "data"))
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if recipes(page)], ids=lambda page: page.name)
def test_recipes_on_the_pages_load(page, tmp_path):
    for text in recipes(page):
        file = tmp_path / "mine.yaml"
        file.write_text(text)
        load_recipe(file, check_files=False)


def test_what_coming_from_says_can_be_run(tmp_path, monkeypatch):
    page = COMING_FROM.read_text()
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(recipes(COMING_FROM)[0])
    tried = 0
    for block in re.findall(r"^```bash\n(.*?)^```$", page, re.M | re.S):
        for line in re.findall(r"^bertkit (?:train|copy) .*$", block.replace("\\\n", " "), re.M):
            words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)]
            args = cli.parse(words[1:])
            load_recipe(args.recipe, getattr(args, "rest", []), check_files=False)
            tried += 1
    assert tried > 8


def test_every_measured_number_is_on_the_page_of_measurements():
    part = (ROOT / "README.md").read_text().split("<!-- results -->")[1].split("<!-- /results -->")[0]
    page = (DOCS / "benchmarks.md").read_text()
    numbers = re.findall(r"\d+\.\d{2,}", part)
    assert len(numbers) >= 6
    assert not [number for number in numbers if number not in page]


def test_the_gallery_has_every_recipe_its_command_and_its_scores(reference):
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", reference.gallery_page(), re.M))
    assert rows.keys() == shipped_recipes().keys()
    assert all(f"`bertkit train {name} " in cells for name, cells in rows.items())
    assert rows["sst2-minilm"].endswith("SST-2: accuracy 0.8972 ± 0.0053 over 3 seeds; best 0.9002")
    assert rows["sst2"].endswith("not measured")
