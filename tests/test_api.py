"""The public names, their docstrings, and what importing them costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bertkit

PACKAGE = Path(bertkit.__file__).parent
MODULES = {"bertkit", *(each.name for each in pkgutil.walk_packages([str(PACKAGE)], "bertkit."))} - {"bertkit.__main__"}
BANNED = "hasattr eval exec pickle.load pickle.loads torch.load yaml.load __import__".split()  # calls


def test_the_public_names_are_few_sorted_there_and_seen_by_type_checkers() -> None:
    names = bertkit.__all__
    assert len(names) <= 17
    assert names == sorted(names)
    assert sorted([*names, "__version__"]) == dir(bertkit)
    for name in names:
        there = getattr(bertkit, name)
        assert there.__module__.startswith("bertkit.")
        assert there.__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = bertkit.nonsense
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    seen = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen - {"annotations", "import_module", "TYPE_CHECKING", "Any"} == set(bertkit.__all__)


def members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The public functions and classes of a module, and their public methods and properties."""
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(thing) or inspect.isclass(thing):
            yield f"{module.__name__}.{name}", thing
        if inspect.isclass(thing):
            for own, raw in vars(thing).items():
                method = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
                if not own.startswith("_") and (inspect.isfunction(method) or isinstance(method, property)):
                    yield f"{module.__name__}.{name}.{own}", getattr(thing, own)


def test_everything_public_says_what_it_does() -> None:
    """A method may have the docstring of what it overrides; a class and a function need their own."""
    silent = []
    for module in map(importlib.import_module, sorted(MODULES)):
        if not module.__doc__ and Path(str(module.__file__)).read_text().strip():
            silent.append(module.__name__)
        for place, thing in members(module):
            told = thing.__doc__ if inspect.isclass(thing) else inspect.getdoc(thing)
            generated = inspect.isclass(thing) and str(told).startswith(f"{thing.__name__}(")  # as dataclasses do
            if not told or generated:
                silent.append(place)
    assert not silent


def test_nothing_happens_on_import() -> None:
    """Modules hold definitions and constants: no calls for their effect, no state that functions change."""
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        loose = [node for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
        allowed = ("_Plain.add_representer", "sys.exit(main())")  # a class that is being defined; __main__
        assert not [ast.unparse(node) for node in loose if not ast.unparse(node).startswith(allowed)], file
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)], file


def test_a_notebook_without_ipywidgets_gets_the_plain_bar_in_silence() -> None:
    code = (
        "import sys, types; sys.modules.update({'ipykernel.zmqshell': types.ModuleType('x'), 'ipywidgets': None})\n"
        "sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: object())\n"
        "import bertkit; bertkit.DataError\n"
        "import tqdm.auto; print(tqdm.auto.tqdm.__mro__[-3:])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "tqdm.std.tqdm" in done.stdout
    assert "notebook" not in done.stdout


def test_house_rules() -> None:
    """No hasattr probing and no bare except; nothing is unpickled, evaluated or executed.

    Errors of any kind are caught where other libraries open what anyone may have made, where a server goes on,
    and after a training. A panic in Rust is not an Exception: three places catch it.
    """
    panics = ("cli/main.py", "errors.py", "serving/batcher.py")
    boundaries = (
        *("models/encoder.py", "models/bert/pretraining_data.py", "exports/graph.py", "inference/onnx_session.py"),
        *("serving/batcher.py", "serving/middleware.py", "training/finish.py"),
    )
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        caught = [*["Exception"] * (name not in boundaries), *["BaseException"] * (name not in panics)]
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{file}:{node.lineno}"
                assert ast.unparse(node.type) not in caught, f"{file}:{node.lineno}"
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in BANNED, f"{file}:{node.lineno}"
                for keyword in node.keywords:
                    trusts = keyword.arg == "trust_remote_code" and ast.unparse(keyword.value) != "False"
                    assert not trusts, f"{file}:{node.lineno}"


def test_errors_of_the_library_name_its_arguments_and_no_options_of_the_command_line() -> None:
    """Only what parses those, and the engine of the command line, may begin with one."""
    command_line = ("processes.py", "inference/predict_file.py", "inference/ray_engine.py", "inference/ray_vectors.py")
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        if name.startswith("cli/") or name in command_line:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Problem" and node.args:
                assert not ast.unparse(node.args[0]).lstrip("f'\"").startswith("--"), f"{name}:{node.lineno}"
