"""Tables by task name have all tasks but those listed here; nothing else asks for a task; words that nothing
uses.
"""

import ast
import re
from pathlib import Path

import pytest
from small import ROOT

import bertkit
from bertkit.attachments.soft_targets import SOFT_TARGETS
from bertkit.explanations.targets import TARGETS
from bertkit.report.mistakes import MISTAKES
from bertkit.serving.shapes import SHAPES
from bertkit.tasks import OURS, Task

TABLES = {
    "explanations/targets": (TARGETS, ("text2text-generation", "pretraining")),
    "report/mistakes": (MISTAKES, ("pretraining",)),
    "attachments/soft_targets": (SOFT_TARGETS, ("text2text-generation", "pretraining")),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_tasks(name):
    table, missing = TABLES[name]
    assert set(table).isdisjoint(missing)
    assert {*table, *missing} == {*OURS}


def test_each_shape_is_of_a_task_and_each_of_our_tasks_has_one():
    assert {task.pipeline for task in OURS.values()} == SHAPES["/"].keys()


def questions(tree):
    """Comparisons with a task's name, and calls of isinstance and issubclass with a task's class."""
    names = {*OURS}
    classes = {each.__name__ for task in OURS.values() for each in task.__mro__ if issubclass(each, Task)} - {
        "Task"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            compared = [each for side in (node.left, *node.comparators) for each in ast.walk(side)]
            if any(isinstance(each, ast.Constant) and each.value in names for each in compared):
                yield node
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            yield from (
                each for each in ast.walk(node.args[1]) if isinstance(each, ast.Name) and each.id in classes
            )


def test_nothing_outside_of_tasks_asks_which_task_it_is():
    package = Path(bertkit.__file__).parent
    found = [
        f"{file.relative_to(package)}:{node.lineno}"
        for file in package.rglob("*.py")
        if file.parent.name != "tasks"
        for node in questions(ast.parse(file.read_text()))
    ]
    assert not found, "declare it in the task (forms, decision, schema), or in a table by task name"


@pytest.mark.parametrize("task", OURS.values(), ids=lambda task: task.name)
def test_a_task_declares_each_field_once(task):
    for form in task.forms:
        names = [field.name for field in form.fields]
        assert len(names) == len({*names})
    assert len({form.name for form in task.forms}) == len(task.forms)


# --- words and names

CODE = {path: path.read_text() for path in sorted((ROOT / "bertkit").rglob("*.py"))}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
NO_NOUN = re.compile(r"(?<!there)(?<!There)\s(?:is|are) no (?!longer\b)\w+")  # "X is no Y" for "X is not a Y"
OPENINGS = ("The same", "Of the", "Such as", "As ")


def test_nothing_is_no_noun():
    texts = {**CODE, **{page: page.read_text() for page in PAGES}}
    assert not [
        f"{path.name}:{hit.group()}" for path, text in texts.items() for hit in NO_NOUN.finditer(text)
    ]


def test_docstrings_begin_with_what_is_described():
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [
        (path, node)
        for path, text in CODE.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds)
    ]
    texts = [(path, ast.get_docstring(node) or "") for path, node in nodes]
    assert not [f"{path}: {text}" for path, text in texts if text.startswith(OPENINGS)]
