"""The pages: short sentences, the field's words, prose of at most 100 columns."""

import ast
import re

import pytest
from small import ROOT

PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))]
MOST_WORDS = 35
MOST_COLUMNS = 100
INSTEAD = {  # what to look for -> the field's word
    r"\b[Tt]rainings\b|\ban? training(?=[,.;:]| (?:of|with|that|is|was|has|on|by|in|for)\b)": "training run",
    r"\b(?:those|that) of\b": "the noun itself",
    r"decode path": "inference code path",
    r"[Hh]eadline": "selection metric",
    r"\brefus(?:e|es|ed|al|ing)\b": "reject, or is an error",
    r"\bslots?\b": "padded tokens",
    r"\bdivid\w+ (?:between|among|into|a|the)\b": "split, or shard",
    r"\bsure(?:r|st)?\b(?! that)": "confident",
    r"\btoo good\b": "optimistically biased",
    r"\b(?:for good|at hand|brings? along|nothing but)\b": "permanently, available, includes, only",
    r"\b(?:does not|do not|it|that) pays?\b": "is worth it",
    r"\brooms?\b": "sub-package",
    r"gradient_checkpointing`?: true": "activation_checkpointing",
}


def prose(page):
    """The lines of a page that are sentences: without code, tables, headings and directives."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"<!--.*?-->|^---\n.*?^---\n", "", text, flags=re.S | re.M)
    text = re.sub(r"^( *)(```+|~~~+)(?![^\n]*\2).*?^\1\2`*$", "", text, flags=re.S | re.M)
    return [line for line in text.splitlines() if not re.match(r"\s*(#|\||:|<|!\[)", line)]


def sentences(page):
    """Each sentence, where a list's item begins one; a code span, or the address of a link, is a word."""
    text = re.sub(r"^\s*(?:[-*+]|\d+\.) ", "\n\n", "\n".join(prose(page)), flags=re.M)
    text = re.sub(r"`[^`]*`", "`code`", re.sub(r"\]\([^)]*\)", "]", text))
    for part in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.!?])[)*\"”»]*\s+(?=[\"“«(*\[`]*[A-Z0-9`])", " ".join(part.split()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_reads_easily(page):
    long = [
        f"{len(words)} words: {sentence}"
        for sentence in sentences(page)
        if len(words := [word for word in sentence.split() if re.search(r"\w", word)]) > MOST_WORDS
    ]
    wide = [
        line
        for line in prose(page)
        if len(line) > MOST_COLUMNS and " " in re.sub(r"\(\S+\)", "", line).strip()
    ]
    text = re.sub(r"`[^`]*`", "", "\n".join(prose(page)))
    house = [f"{hit.group()!r}: {word}" for look, word in INSTEAD.items() for hit in re.finditer(look, text)]
    assert not long
    assert not house
    assert not wide


KINDS = {"Problem", "KeyProblem", *"UserError RecipeError DataError ModelError StoreError RowsError".split()}
ACTIONS = {  # files whose messages without a fix say what to do, and why
    "errors.py": "a text that says it all",
    "validation.py": "bounds, and what a field's own check says: must be at least 1, expected owner/model",
    "audits/next_rows.py": "must be at least 1",
    "retrieval/mining.py": "must be at least 1",
    "retrieval/search.py": "must be at least 1",
    "sweeps/sweep.py": "must be at least 1",
}
MOST_WITHOUT_A_FIX = 17  # in other files: most say the action, or the last of several problems has it


def has_no_fix(call):
    """Whether a call makes a problem that says nothing of what to do; not of a list of problems."""
    name = ast.unparse(call.func)
    adds = name.endswith("problems.add")
    texts = call.args and isinstance(call.args[0], ast.Constant | ast.JoinedStr)
    count = len(call.args) + len(call.keywords)
    if not (name in KINDS or adds) or (count == 1 and not texts and not adds):
        return False
    return count < 3 or ast.unparse([*call.args, call][2]) == "''"


def test_a_message_says_what_to_do():
    package = ROOT / "bertkit"
    lacking = [
        f"{name}:{node.lineno}"
        for file in sorted(package.rglob("*.py"))
        if (name := file.relative_to(package).as_posix()) not in ACTIONS
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and has_no_fix(node)
    ]
    assert len(lacking) <= MOST_WITHOUT_A_FIX, lacking
