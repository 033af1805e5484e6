"""Words that neither code nor pages use, and names whose number may only fall."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "bertkit").rglob("*.py"))}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
NO_NOUN = re.compile(r"(?<!there)(?<!There)\s(?:is|are) no (?!longer\b)\w+")  # "X is no Y" for "X is not a Y"
OPENINGS = ("The same", "Of the", "Such as", "As ")
MOST = {"told": 0, "found": 30, "given": 47}  # participles as names: lower a number after a renaming


def names(tree: ast.AST) -> list[str]:
    """What a module binds: variables, attributes, parameters, functions and classes."""
    bound = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    bound += [
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    bound += [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    return bound + [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def test_nothing_is_no_noun() -> None:
    texts = {**CODE, **{page: page.read_text(encoding="utf-8") for page in PAGES}}
    assert not [f"{path.name}:{hit.group()}" for path, text in texts.items() for hit in NO_NOUN.finditer(text)]


def test_docstrings_begin_with_what_is_described() -> None:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [
        (path, node) for path, text in CODE.items() for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)
    ]
    texts = [(path, ast.get_docstring(node) or "") for path, node in nodes]
    assert not [f"{path}: {text}" for path, text in texts if text.startswith(OPENINGS)]


def test_participles_are_not_names() -> None:
    count = Counter(name for text in CODE.values() for name in names(ast.parse(text)))
    assert {name: count[name] for name in MOST if count[name] > MOST[name]} == {}
