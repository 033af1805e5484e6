"""The floors of the package: a module imports only what stands below it, lazily and for types too."""

import ast
from functools import cache
from pathlib import Path

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
    {"vectors"},
    {"run", "explanations", "exports", "retrieval", "engine", "methods"},
    {"serving", "attachments"},
    {"report"},
    {"hub"},
    {"training"},
    {"sweeps", "audits", "decisions", "tokenizer"},
    {"cli"},
]
OPTIONAL = set(
    "audits cli decisions explanations exports hub report retrieval serving sweeps tokenizer".split()
)
CORE = {name for names in FLOORS for name in names} - OPTIONAL
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
MODULES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in PACKAGE.rglob("*.py")
}


@cache
def imported(file, *, lazily=True):
    """The modules of the package that a file imports, anywhere in it; without `lazily`, as it is imported
    itself.
    """
    names = []
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree) if lazily else tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bertkit":
            for alias in node.names:
                own = f"{node.module}.{alias.name}"
                names.append(own if own in MODULES else str(node.module))
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.split(".")[0] == "bertkit"]
    return names


def room(module):
    """The folder, or file at the root, that a module belongs to."""
    return module.split(".")[1] if "." in module else ""


def imports():
    """Module -> the modules of other rooms that it imports."""
    return {
        module: {name for name in imported(file) if room(name) != room(module)}
        for module, file in MODULES.items()
    }


def test_imports_go_down():
    up = {
        (module, name)
        for module, names in imports().items()
        if room(module) not in ("", "__main__")  # the public names, imported lazily, and the entry point
        for name in names
        if FLOOR.get(room(name), len(FLOORS)) >= FLOOR[room(module)]
        if (room(module), name) != ("cli", "bertkit")  # commands call the public names
    }
    assert not up, "a module imports what is not below it"


def test_the_core_imports_no_optional_room_and_attachments_only_through_their_table():
    named = {name for names in imports().values() for name in names if room(name) == "attachments"}
    assert named == {"bertkit.attachments.table"}
    for module, file in MODULES.items():
        if room(module) in CORE:
            names = {*imported(file, lazily=room(module) != "training")}
            assert not {room(name) for name in names} & OPTIONAL, module


def test_no_file_imports_itself_through_others():
    ahead = {name: {each for each in imported(file) if each in MODULES} for name, file in MODULES.items()}
    while free := [name for name, names in ahead.items() if not names & ahead.keys()]:
        for name in free:
            del ahead[name]
    assert not ahead, "these modules are in a circle, or lean on one"


def test_the_root_has_few_files():
    assert len(list(PACKAGE.glob("*.py"))) <= 10
