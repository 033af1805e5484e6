"""One statement per thought: what a line of the package may not hold, and names that say nothing."""

import ast
import io
import tokenize
from collections import Counter

import pytest
from test_layers import MODULES

COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
VALUES = "two values that do not belong together"
TARGETS = "more than two targets"
CONDITIONAL = "a conditional expression in another"
NESTED = "a comprehension in another"
WALRUS = "a walrus in the condition of a comprehension, used in its value"
# Pronouns and participles in the place of a noun -> how often they may be names: where they are the field's words.
VAGUE = {"each": 0, "own": 0, "known": 0, "given": 0, "found": 0, "made": 0, "there": 0, "told": 0}


def replaces_itself(assignment):
    """Whether a value is read that the same assignment replaces, as in a swap."""
    replaced = {ast.unparse(target) for target in assignment.targets[0].elts}
    return any(ast.unparse(node) in replaced for node in ast.walk(assignment.value))


def is_shape(value):
    """Whether a value is the shape of an array, whose axes are named together."""
    return isinstance(value, ast.Attribute) and value.attr == "shape"


def dense_assignment(node):
    if isinstance(node.targets[0], ast.Tuple):
        several = isinstance(node.value, ast.Tuple)
        if several and not replaces_itself(node):
            yield VALUES
        if len(node.targets[0].elts) > 2 and not is_shape(node.value):
            yield TARGETS


def dense_conditional(node):
    if any(isinstance(inner, ast.IfExp) for inner in (node.test, node.body, node.orelse)):
        yield CONDITIONAL


def dense_comprehension(node):
    nodes = list(ast.walk(node))
    if any(isinstance(inner, COMPREHENSIONS) for inner in nodes[1:]):
        yield NESTED
    conditions = ast.Tuple([test for generator in node.generators for test in generator.ifs])
    bound = {inner.target.id for inner in ast.walk(conditions) if isinstance(inner, ast.NamedExpr)}
    value = ast.Tuple([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
    if bound & {inner.id for inner in ast.walk(value) if isinstance(inner, ast.Name)}:
        yield WALRUS


RULES = {
    ast.Assign: dense_assignment,
    ast.IfExp: dense_conditional,
    ast.ListComp: dense_comprehension,
    ast.SetComp: dense_comprehension,
    ast.DictComp: dense_comprehension,
    ast.GeneratorExp: dense_comprehension,
}


def dense(text):
    """Line and fault of what is too dense in Python code."""
    for node in ast.walk(ast.parse(text)):
        for fault in RULES[type(node)](node) if type(node) in RULES else ():
            yield node.lineno, fault


def names(text):
    """How often each vague name stands in Python code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return Counter(token.string for token in tokens if token.type == tokenize.NAME and token.string in VAGUE)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("a, b = b, a\nrows, words, tags = emissions.shape\na, b = pair()", []),
        ("a, b = 1, 2", [VALUES]),
        ("a, b, c = triple()", [TARGETS]),
        ("a = 1 if b else 2 if c else 3", [CONDITIONAL]),
        ("a = (1 if b else 2) + (3 if c else 4)", []),
        ("a = [b for c in d for b in c]", []),
        ("a = [[b for b in c] for c in d]", [NESTED]),
        ("a = [b for b in c if any(d for d in b)]", [NESTED]),
        ("a = [c for b in d if (c := b.c)]", [WALRUS]),
        ("a = {b: c for b in d if (c := b.c) > 1}", [WALRUS]),
        ("a = [b for b in d if (c := b.c) and c.e]", []),
    ],
)
def test_the_rules_find_their_faults(text, faults):
    assert [fault for _, fault in dense(text)] == faults


def test_one_statement_per_thought():
    assert not [
        f"{file}:{line}: {fault}" for file in MODULES.values() for line, fault in dense(file.read_text())
    ]


def test_names_are_nouns():
    counts = sum((names(file.read_text()) for file in MODULES.values()), Counter())
    assert {name: count for name, count in counts.items() if count > VAGUE[name]} == {}
