"""Pages that are generated from the code when the site is built: recipe keys, commands, public names,
modules.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import bertkit
from bertkit.attachments.soft_targets import SOFT_TARGETS
from bertkit.cli import main as cli
from bertkit.explanations.targets import TARGETS
from bertkit.recipe import shipped_recipes
from bertkit.recipe.json_schema import json_schema
from bertkit.recipe.recipe import Recipe, read
from bertkit.recipe.training_arguments import training_fields, training_schema
from bertkit.report.mistakes import MISTAKES
from bertkit.serving.shapes import SHAPES
from bertkit.tasks import OURS, Task
from bertkit.tasks.fields import AnswerForm

HEAD = "| key | type | default | meaning |\n|---|---|---|---|"
FIELDS = "| field | role | type | present | meaning |\n|---|---|---|---|---|"
GALLERY = "| recipe | what | encoder | command | measured |\n|---|---|---|---|---|"
KINDS = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
}
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
PLAIN = {"task": {"name": "text-classification"}, "model": {"name": "-"}, "data": {"source": "-"}}


def recipe_page() -> str:
    """Every key of a recipe with type, default and description, as Markdown: a section per mapping."""
    definitions, schema = json_schema()["$defs"], json_schema()["else"]
    properties = schema["properties"]
    values = Recipe.model_validate(PLAIN).model_dump()
    parts = [section("Top-level keys", schema, values)]
    for reference in properties["task"]["oneOf"]:
        options = definitions[last(reference["$ref"])]
        parts.append(section(f"task: {options['properties']['name']['const']}", options, {}))
    for key, name in sections(properties, definitions):
        parts.append(section(key, definitions[name], values.get(key) or {}))
    return "\n\n".join([*parts, training_section()])


def sections(
    properties: Mapping[str, Any], definitions: Mapping[str, Any], before: str = ""
) -> Iterator[tuple[str, str]]:
    """The keys that hold a section of fixed keys, and the names of their definitions."""
    for key, part in properties.items():
        if name := definition(part):
            yield before + key, name
            yield from sections(definitions[name]["properties"], definitions, f"{before}{key}.")


def definition(part: Mapping[str, Any]) -> str:
    """The name of the definition that a value refers to, or nothing."""
    return next((last(each["$ref"]) for each in (part, *part.get("anyOf", [])) if "$ref" in each), "")


def section(title: str, schema: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """One table: a row for each key. values: defaults that are made by a function, which the schema does not
    have.
    """
    definitions = json_schema()["$defs"]
    rows = []
    for key, part in schema["properties"].items():
        default = code(part.get("default", values.get(key)))
        if key in schema.get("required", []):
            default = "required"
        elif key == "training":
            default = "[below](#training)"
        about = part.get("description", "")
        if not about and definition(part):
            about = definitions[definition(part)]["description"]
        rows.append(row(key, kind(part), default, about))
    return "\n".join([f"## {title}", "", schema.get("description", ""), "", HEAD, *rows])


def training_section() -> str:
    """The fields of TrainingArguments that a recipe may set; defaults are bertkit's where it has its own."""
    ours, fields = Recipe.model_validate(PLAIN).training, training_fields()
    rows = [
        row(name, kind(part), code(ours.get(name, fields[name].default)), fields[name].about)
        for name, part in training_schema()["properties"].items()
    ]
    about = "Descriptions come from the installed transformers, except for the keys that only bertkit has."
    more = (
        "What bertkit sets by device and data, regardless of these defaults, is in "
        "[Recipes](recipes.md#training)."
    )
    return "\n".join(["## training", "", about, more, "", HEAD, *rows])


def command_page() -> str:
    """The help text of every command, as Markdown: what `bertkit COMMAND --help` prints."""
    return "\n\n".join(
        f"## {name}\n\n```text\n{parser.format_help().strip()}\n```" for name, parser in commands()
    )


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command with its parser: `bertkit train`, `bertkit tokenizer train`, …"""
    yield from below(cli.make_parser())


def below(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands of a parser; a parser without any is a command itself."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        parser.formatter_class = functools.partial(argparse.RawDescriptionHelpFormatter, width=100)
        yield parser.prog, parser
    for group in groups:
        for inner in group.choices.values():
            yield from below(inner)


def api_page() -> str:
    """autodoc directives for the public names: classes with their members, functions, exceptions."""
    return "\n\n".join(["```{eval-rst}", *map(directive, bertkit.__all__), "```"])


def directive(name: str) -> str:
    """The directive of one public name."""
    thing = getattr(bertkit, name)
    if isinstance(thing, ModuleType):
        return (
            f".. py:data:: bertkit.{name}\n\n   The module ``{thing.__name__}``. "
            f"{str(thing.__doc__).splitlines()[0]}"
        )
    if not isinstance(thing, type):
        return f".. autofunction:: bertkit.{name}"
    if issubclass(thing, Exception):
        return f".. autoexception:: bertkit.{name}"
    members = "\n   :members:\n   :exclude-members: set_score_request"  # which scikit-learn adds
    return f".. autoclass:: bertkit.{name}" + ("" if name == "Recipe" else members)


def task_page() -> str:
    """What each task can be used for, by the tables of the package, and the fields that its answers have."""
    uses: dict[str, Callable[[type[Task]], bool]] = {
        "report of mistakes": lambda task: task.name in MISTAKES,
        "explain": lambda task: task.name in TARGETS,
        "serve for other clients": lambda task: task.pipeline in SHAPES["/"],
        "export": lambda task: not task.no_graph,
        "distil": lambda task: task.name in SOFT_TARGETS,
        "audit of labels": lambda task: any(column.answered for column in task.schema.columns.values()),
        "prediction sets or intervals": lambda task: "conformal" in task.Options.model_fields,
    }
    marks = [
        row(task.name, *("yes" if use(task) else "–" for use in uses.values())) for task in OURS.values()
    ]
    parts = ["\n".join([f"| task | {' | '.join(uses)} |", "|---" * (len(uses) + 1) + "|", *marks])]
    for task in OURS.values():
        parts.append(f"## {task.name}")
        parts += ["\n".join([f"{form.about}\n", FIELDS, *fields(form)]) for form in task.forms]
    return "\n\n".join(parts)


def fields(form: AnswerForm, before: str = "") -> Iterator[str]:
    """A row of a table for each field of a form, and of the items in its lists."""
    for each in form.fields:
        inner, lists = each.holds, ""
        while isinstance(inner, list):
            inner, lists = inner[0], f"{lists}list of "
        nested = isinstance(inner, AnswerForm)
        holds = lists + ("mappings" if nested else inner.__name__ if type(inner) is type else str(inner))
        yield row(
            before + each.name, each.role, holds, "in some answers" if each.optional else "always", each.about
        )
        if nested:
            yield from fields(inner, f"{before}{each.name}[].")


def gallery_page() -> str:
    """Every shipped recipe: its first comment, encoder, command, and the score that Benchmarks has of it."""
    tables = dict[str, list[str]]()
    for name, file in sorted(shipped_recipes().items(), key=lambda item: (item[1].parent.name, item[0])):
        text = file.read_text(encoding="utf-8").replace("\\\n#", "")
        about = text.partition("\n")[0].removeprefix("# ")
        (run,) = re.findall("^# Run: +(.*)", text, re.M)
        model = read(file, check_files=False).model
        scores = ", ".join(measured(name)) or "not measured"
        table = tables.setdefault(file.parent.name, [GALLERY])
        table.append(row(name, about, code(model.title), code(" ".join(run.split())), scores))
    return "\n\n".join(f"## {task}\n\n" + "\n".join(rows) for task, rows in tables.items())


def measured(recipe: str) -> Iterator[str]:
    """What the first table of Benchmarks has of a recipe."""
    page = Path(__file__).with_name("benchmarks.md").read_text(encoding="utf-8")
    for cells in re.findall(r"^\| (.*) \|$", page.split("## Scores")[1].split("\n\n")[2], re.M):
        data, name, metric, score, *_ = cells.split(" | ")
        if re.match(f"`{recipe}`", name):
            yield f"{data}: {metric} {score}".replace("](#", "](benchmarks.md#")


def module_page() -> str:
    """One table per folder of the package: every module with the first paragraph of its docstring."""
    package = Path(bertkit.__file__).parent
    parts = []
    for folder, files in groupby(
        sorted(package.rglob("*.py"), key=lambda file: (file.parent, file)), lambda f: f.parent
    ):
        abouts = {
            file.name: ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "" for file in files
        }
        rows = [row(name, about.split("\n\n")[0]) for name, about in abouts.items() if about]
        title = folder.relative_to(package.parent).as_posix()
        parts.append("\n".join([f"## {title}/", "", "| module | purpose |\n|---|---|", *rows]))
    return "\n\n".join(parts)


def kind(part: Mapping[str, Any]) -> str:
    """What a value may be, in words."""
    choices = part.get("anyOf", part.get("oneOf", []))
    if choices:
        return " or ".join(dict.fromkeys(map(kind, choices)))
    if "$ref" in part:
        return "section"
    if "const" in part or "enum" in part:
        return ", ".join(map(code, part.get("enum", [part.get("const")])))
    if part.get("type") == "array":
        return f"list of {kind(part['items'])}" if part.get("items") else "list"
    if part.get("type") == "object":
        inner = part.get("additionalProperties")
        return f"mapping to {kind(inner)}" if isinstance(inner, dict) and inner else "mapping"
    if "type" not in part:
        return "any value"
    bounds = [f"{said} {part[name]}" for name, said in BOUNDS.items() if name in part]
    return " ".join([KINDS[part["type"]], *bounds])


def code(value: Any) -> str:
    """A value as a recipe writes it."""
    return f"`{value if isinstance(value, str) and value else json.dumps(value)}`"


def row(key: str, *cells: str) -> str:
    """A row of a table; what would end a cell or begin markup is escaped."""
    clean = [
        " ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*") for cell in cells
    ]
    return f"| `{key}` | {' | '.join(clean)} |"


def last(reference: str) -> str:
    """The name at the end of a `$ref`."""
    return reference.rsplit("/", 1)[1]
