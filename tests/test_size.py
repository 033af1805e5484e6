"""How many tokens of code the package may have: a feature that comes in is paid for by one that goes.

Tokens are counted without comments, docstrings and layout, so that a squeezed line gains nothing and an
explained one costs nothing.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from test_layers import MODULES, OPTIONAL, imported, room

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
USUAL = {  # tokens of each sub-package; a file at the root is its own
    "attachments": 6_300,
    "audits": 8_700,
    "cli": 8_300,
    "data": 44_700,
    "decisions": 2_500,
    "encoding": 4_300,
    "engine": 12_300,
    "evaluation": 18_800,
    "explanations": 4_100,
    "exports": 4_800,
    "files at the root": 7_300,
    "hub": 2_200,
    "inference": 14_600,
    "methods": 4_100,
    "models": 30_000,
    "recipe": 16_000,
    "report": 20_700,
    "retrieval": 8_600,
    "samples": 0,
    "serving": 12_700,
    "sweeps": 4_800,
    "tasks": 24_800,
    "tokenizer": 2_100,
    "training": 10_700,
    "vectors": 5_000,
}
GROWTH = 1.15  # how much one sub-package may grow while another pays
MOST_OF_ALL = 299_450
MOST_OF_CORE = 218_400
MOST_OF_TRAINING = 188_450  # what `import bertkit.training.train` brings
MOST_OF_TESTS = 383_100


@cache
def tokens(file):
    """Tokens of code in a file: names, operators, numbers and strings that are not docstrings."""
    text = file.read_text(encoding="utf-8")
    docstrings = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    }
    return sum(
        token.type not in LAYOUT and not (token.type == tokenize.STRING and token.start[0] in docstrings)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def sizes():
    """Sub-package, or "files at the root" -> its tokens."""
    counts = Counter[str]()
    for module, file in MODULES.items():
        counts[room(module) if file.parent.name != "bertkit" else "files at the root"] += tokens(file)
    return counts


def brought_by(module):
    """The modules of the package that an import of this one brings."""
    brought = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in MODULES and name not in brought:
            brought.add(name)
            waiting += {name.rpartition(".")[0], *imported(MODULES[name], lazily=False)} - {"bertkit"}
    return brought


# an f-string is one token before Python 3.12, and many from there on
pytestmark = pytest.mark.skipif(sys.version_info >= (3, 12), reason="counts tokens as Python 3.11 does")


def test_the_package_stays_small():
    counts = sizes()
    assert counts.keys() <= USUAL.keys()
    assert counts.total() <= MOST_OF_ALL
    assert {name: count for name, count in counts.items() if count > GROWTH * USUAL[name]} == {}
    assert sum(count for name, count in counts.items() if name not in OPTIONAL) <= MOST_OF_CORE


def test_training_brings_little_code():
    assert sum(tokens(MODULES[name]) for name in brought_by("bertkit.training.train")) <= MOST_OF_TRAINING


def test_the_tests_stay_small():
    assert sum(tokens(file) for file in Path(__file__).parent.rglob("*.py")) <= MOST_OF_TESTS
