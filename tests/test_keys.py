"""Every key of a recipe that a page, a message or a help text names exists."""

import ast
import re

import pytest
from ruamel.yaml import YAML, YAMLError
from small import ROOT
from test_docs import parsers

from bertkit.cli import main as cli
from bertkit.recipe.recipe import Recipe
from bertkit.recipe.training_arguments import DECIDED, training_fields
from bertkit.sections import Section
from bertkit.tasks import OURS

PAGES = [ROOT / "README.md", ROOT / "SKILL.md", *sorted((ROOT / "docs").glob("*.md"))]
NO_KEYS = tuple("safetensors onnx py json skops encode predict KEY VALUE".split())  # after a dot
SECTIONS = {name for name, field in Recipe.model_fields.items() if name not in ("seeds", "expected")}
DOTTED = re.compile(rf"(?<![\w./-])(?:{'|'.join(sorted(SECTIONS))})(?:\.\w+)+(?![\w(/])")
FLOW = re.compile(rf"(?<![\w.-])((?:{'|'.join(sorted(SECTIONS))}): *\{{.*\}})")


def below(field):
    """The sections that a field may hold."""
    parts = [field.annotation]
    while parts:
        part = parts.pop()
        if isinstance(part, type) and issubclass(part, Section):
            yield part
        parts += getattr(part, "__args__", ())


def exists(path, fields):
    """Whether there is such a key; what is below a mapping of free keys exists."""
    first, *rest = path
    if first not in fields:
        return False
    inner = [*below(fields[first])]
    return not rest or not inner or any(exists(rest, part.model_fields) for part in inner)


def known(path):
    first, *rest = path
    if first == "training":
        return not rest or rest[0] in {*training_fields()} - {*DECIDED}
    if first == "task":
        return rest in ([], ["name"]) or any(
            exists(rest, task.Options.model_fields) for task in OURS.values()
        )
    return exists(path, Recipe.model_fields)


def paths(value, before=()):
    """The path of each key in nested mappings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*before, str(key))
            yield from paths(inner, (*before, str(key)))


def unknown(text):
    """The keys in a text that do not exist."""
    for hit in DOTTED.findall(text):
        if not hit.endswith(NO_KEYS) and not known(hit.split(".")):
            yield hit
    for hit in FLOW.findall(text):
        try:
            value = YAML(typ="safe").load(hit)
        except YAMLError:
            continue  # values are left out, or it is not YAML
        yield from (".".join(path) for path in paths(value) if path[-1] != "VALUE" and not known(path))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_keys_on_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    blocks = re.findall(r"^```(?:yaml|bash)\n(.*?)^```$", text, re.M | re.S)
    said = [part for part in (*spans, *blocks) if "unknown key" not in part]
    assert not [key for part in said for key in unknown(part)]


def texts(tree):
    """The texts of a module that are not docstrings; a value that is put in stands as VALUE."""
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in {*ast.walk(tree)} - docstrings:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "VALUE" for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_keys_in_messages_exist():
    found = {}
    for file in {*(ROOT / "bertkit").rglob("*.py")} - {
        ROOT / "bertkit/recipe/overrides.py"
    }:  # other tools' keys
        sentences = [text for text in texts(ast.parse(file.read_text(encoding="utf-8"))) if " " in text]
        wrong = {key for text in sentences for key in unknown(text)}
        if wrong:
            found[file.name] = wrong
    assert found == {}


def test_the_keys_in_help_exist():
    helps = [parser.format_help() for parser in parsers(cli.make_parser())]
    assert len(helps) > 15
    assert not [key for text in helps for key in unknown(text)]


def test_a_key_that_does_not_exist_is_found():
    text = "Set data.validate, or `training: {gradient_checkpointing: true, seed: 1}`, task.head, model.naem."
    assert [*unknown(text)] == [
        "data.validate",
        "model.naem",
        "training.gradient_checkpointing",
        "training.seed",
    ]
