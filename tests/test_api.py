"""The public names, their docstrings, and what importing them costs."""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
from small import raises, said, write_rows

import bertkit
from bertkit import tasks
from bertkit.cli.main import COMMANDS
from bertkit.text import json_line

PACKAGE = Path(bertkit.__file__).parent
ROOT = PACKAGE.parent
MODULES = {"bertkit", *(each.name for each in pkgutil.walk_packages([str(PACKAGE)], "bertkit."))} - {
    "bertkit.__main__"
}
BANNED = "hasattr eval exec pickle.load pickle.loads torch.load yaml.load __import__".split()  # calls


def test_the_public_names_are_sorted_there_and_seen_by_type_checkers():
    names = bertkit.__all__
    assert len(names) <= 39
    assert sorted([*names, "__version__"]) == dir(bertkit)
    for name in names:
        there = getattr(bertkit, name)
        where = there.__name__ if isinstance(there, ModuleType) else f"{there.__module__}.{there.__name__}"
        assert where.startswith("bertkit.")
        assert where.endswith(f".{name}")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = bertkit.nonsense
    (typed,) = (
        node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If)
    )
    aliases = [alias for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    # others are not re-exported
    assert sorted(alias.name for alias in aliases if alias.asname == alias.name) == names


ELSEWHERE = {  # command -> the public name, or none: what these print is for people at a terminal
    **dict.fromkeys(("recipes", "show", "copy"), "load_recipe"),
    **{"report": "compare", "tokenizer train": "train_tokenizer", "completion": "", "doctor": ""},
}
ONLY_THERE = {  # options for a terminal, texts among words, and files of what Python hands over
    "load_recipe": {"schema", "file", "recipe"},
    "init": {"output"},
    "predict": {"context"},
    "explain": {"output"},
    "search": {"input", "output", "column"},
}


@pytest.mark.parametrize("command", [*chain(*COMMANDS.values())], ids=lambda command: command.name)
def test_what_the_command_line_does_python_does_by_the_same_names(command):
    if name := ELSEWHERE.get(command.name, command.name):
        taken = inspect.signature(getattr(bertkit, name)).parameters
        options = {
            more.get("dest") or option.lstrip("-").replace("-", "_")
            for option, more in command.arguments
            if option != "rest"
        } - {"as_json"}
        # a mapping, of what the option names one by one
        other = {"column"} & options if "columns" in taken else set()
        assert options - set(taken) - other <= ONLY_THERE.get(name, set())


def test_it_returns_what_the_command_line_prints(learned, tmp_path, capsys):
    file = write_rows(tmp_path / "rows.jsonl", [{"text": "the dog was bad", "label": "bad"}])
    recipe = learned.folder / "recipe.yaml"
    made = {
        ("check", recipe): "\n".join(bertkit.check(recipe).lines()),
        ("evaluate", learned.folder, "--data", file, "--json"): json.dumps(
            bertkit.evaluate(learned, file), indent=2
        ),
        ("explain", learned.folder, "the dog was bad", "--json"): json_line(
            bertkit.explain(learned, ["the dog was bad"])[0]
        ),
    }
    assert bertkit.predict(learned, file, tmp_path / "out.jsonl") == 1
    assert capsys.readouterr().out == ""
    made["predict", learned.folder, "--input", file] = (tmp_path / "out.jsonl").read_text().rstrip()
    for words, told in made.items():
        assert said(capsys, *words).rstrip() == told


def test_a_run_has_the_metrics_of_a_split(learned, tmp_path):
    assert (
        learned.metrics()
        == learned.metrics("validation")
        == learned.results["splits"]["validation"]["metrics"]
    )
    raises(bertkit.ModelError, "no scores on dev, only on: validation", learned.metrics, "dev")
    raises(bertkit.ModelError, "no results.json", bertkit.Run(tmp_path).metrics)


def code_of(file):
    """The Python of a page, a notebook or a program."""
    text = file.read_text()
    if file.suffix == ".ipynb":
        cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        yield from cells[1:]  # after the one that installs
    else:
        yield from (
            [text] if file.suffix == ".py" else re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
        )


SHOWN = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *ROOT.glob("notebooks/*.ipynb"),
    *ROOT.glob("recipes/**/*.py"),
    *ROOT.glob("tests/plugin/src/**/*.py"),
]


def test_what_is_shown_to_users_takes_public_names_only():
    used = Counter[str]()
    for node in (node for file in SHOWN for code in code_of(file) for node in ast.walk(ast.parse(code))):
        match node:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "bertkit":
                used.update(f"{module}.{alias.name}".removeprefix("bertkit.") for alias in node.names)
            case ast.Import():
                used.update(alias.name for alias in node.names if alias.name.startswith("bertkit."))
            case ast.Attribute(value=ast.Name(id="bertkit"), attr=name):
                used[name] += 1
    assert used["train"] > 8
    of_authors = {f"tasks.{name}" for name in tasks.__all__} | {"data.OpenFile", "data.Reader"}
    assert not used.keys() - {*bertkit.__all__, *of_authors, "__version__", "tasks"}


def members(module):
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


def test_everything_public_says_what_it_does():
    """A method may have the docstring of what it overrides; a class and a function need their own."""
    silent = []
    for module in map(importlib.import_module, sorted(MODULES)):
        if not module.__doc__ and Path(str(module.__file__)).read_text().strip():
            silent.append(module.__name__)
        for place, thing in members(module):
            told = thing.__doc__ if inspect.isclass(thing) else inspect.getdoc(thing)
            # as dataclasses do
            generated = inspect.isclass(thing) and str(told).startswith(f"{thing.__name__}(")
            if not told or generated:
                silent.append(place)
    assert not silent


def test_nothing_happens_on_import():
    """Modules hold definitions and constants: no calls for their effect, no state that functions change."""
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        loose = [
            node for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ]
        allowed = ("_Plain.add_representer", "sys.exit(main())")  # a class that is being defined; __main__
        assert not [ast.unparse(node) for node in loose if not ast.unparse(node).startswith(allowed)], file
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)], file


def test_a_notebook_without_ipywidgets_gets_the_plain_bar_in_silence():
    code = (
        "import sys, types; sys.modules.update({'ipykernel.zmqshell': types.ModuleType('x'), 'ipywidgets': "
        "None})\n"
        "sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: object())\n"
        "import bertkit; bertkit.DataError\n"
        "import tqdm.auto; print(tqdm.auto.tqdm.__mro__[-3:])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "tqdm.std.tqdm" in done.stdout
    assert "notebook" not in done.stdout


def test_house_rules():
    """No hasattr probing and no bare except; nothing is unpickled, evaluated or executed.

    Errors of any kind are caught where other libraries open what anyone may have made, where a package
    announces code, where a server must not end, and after a training. A panic in Rust is not an Exception;
    three places catch it.
    """
    panics = ("cli/main.py", "errors.py", "serving/batcher.py")
    boundaries = (
        *"models/encoder.py models/bert/pretraining_data.py exports/graph.py inference/onnx_session.py".split(),
        *"serving/batcher.py serving/middleware.py training/publish.py data/plugins.py".split(),
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


def test_the_library_names_its_arguments_and_no_options_of_the_command_line():
    """Not in an error, nor in a log. Options are named by what calls another program, or prints lines for a
    shell.
    """
    shells = """audits/audit.py files.py training/publish.py training/verify.py report/score_tables.py report/usage.py
    inference/display.py""".split()
    others = ("--force-reinstall", "--nproc-per-node", "--s")  # of pip and torchrun; a line and its markers
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        for node in (
            ast.walk(ast.parse(file.read_text()))
            if not name.startswith("cli/") and name not in shells
            else ()
        ):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
                assert not {*re.findall(r"--[a-z][a-z-]*", node.value)}.difference(others), (
                    f"{name}:{node.lineno}"
                )
