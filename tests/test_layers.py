"""The floors of the package: a module imports only what stands below it, lazily and for types too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "bertkit"
FLOORS = [
    {"text"},
    {"errors", "sections"},
    {"files", "processes", "validation"},
    {"cache"},
    {"data"},
    {"encoding", "models", "evaluation"},
    {"tasks"},
    {"recipe"},
    {"inference"},
    {"run", "explain", "export", "retrieval", "engine", "methods"},
    {"serve", "attachments"},
    {"report"},
    {"hub"},
    {"training"},
    {"sweeps", "audits", "decisions"},
    {"cli"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
MODULES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in PACKAGE.rglob("*.py")
}


def imported(file: Path) -> Iterator[str]:
    """The modules of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bertkit":
            for alias in node.names:
                own = f"{node.module}.{alias.name}"
                yield own if own in MODULES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "bertkit")


def room(module: str) -> str:
    """The folder, or file at the root, that a module belongs to."""
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down(module: str) -> None:
    own = room(module)
    if own in ("", "__main__"):  # the public names, imported lazily, and the entry point
        return
    names = {name for name in imported(MODULES[module]) if room(name) != own}
    above = {name for name in names if FLOOR.get(room(name), len(FLOORS)) >= FLOOR[own]}
    assert not above, f"{module} imports what does not stand below it"


def test_no_file_imports_itself_through_others() -> None:
    ahead = {name: {each for each in imported(file) if each in MODULES} for name, file in MODULES.items()}
    while free := [name for name, names in ahead.items() if not names & ahead.keys()]:
        for name in free:
            del ahead[name]
    assert not ahead, "these modules are in a circle, or lean on one"


def test_the_root_has_few_files() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 10
