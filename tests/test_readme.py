"""What the pages say exists, what a release needs beside the code, and what the wheel holds."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import BytesParser
from importlib.metadata import distribution
from itertools import pairwise

import pytest
import small
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML
from small import ROOT
from test_layers import FLOORS

from bertkit import __version__
from bertkit.cli import main as cli
from bertkit.files import read_json

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
ARCHITECTURE = ROOT / "docs/architecture.md"


def blocks(page, *languages):
    """The fenced blocks of these languages."""
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.M | re.S):
        if language in languages:
            yield body


def commands(page):
    """The words of every command of `bertkit` or `make`; in console blocks commands follow a `$`."""
    lines = [line for body in blocks(page, "bash") for line in body.replace("\\\n", " ").splitlines()]
    console = (line for body in blocks(page, "console") for line in body.replace("\\\n", " ").splitlines())
    lines += [line.removeprefix("$ ") for line in console if line.startswith("$ ")]
    for line in lines:
        words = shlex.split(line.split(" > ")[0], comments=True)
        if words and words[0] in ("bertkit", "make"):
            yield words


def test_commands_parse_and_python_compiles():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for words in commands(page):
            if words[0] == "make":
                assert set(words[1:]) <= targets, (page.name, words)
            else:
                cli.parse(words[1:])  # exits with the reason if it does not parse
        for body in blocks(page, "python"):
            compile(body, str(page), "exec")


def test_there_are_commands():
    words = [f"{name} {verb}" for name, verb, *_ in commands(ROOT / "README.md")]
    ours = [f"bertkit {verb}" for verb in ("init", "check", "train", "predict", "predict")]
    assert words == ["make quickstart", "make test", *ours]
    cells = re.findall(r"^\|[^|]+\|(.*?)\|[^|]+\|$", ROOT.joinpath("README.md").read_text(), re.M)
    goals = [words for cell in cells for words in re.findall(r"`(bertkit .*?)`", cell)]
    assert len(goals) >= 10
    for words in goals:
        cli.parse(shlex.split(words)[1:])


def test_the_architecture_names_every_folder_and_nothing_else():
    package = ROOT / "bertkit"
    text = ARCHITECTURE.read_text()
    named = set(re.findall(r"^\| `bertkit/([\w./]+)` \|", text, re.M))
    folders = {f"{path.name}/" for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    files = {path.name for path in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert named == folders | files
    layers = next(body for body in blocks(ARCHITECTURE, "text") if body.startswith("cli/"))
    drawn = re.findall(r"(?:^|  )(\w+/|\w+\.py)(?=$|  )", layers, re.M)
    assert sorted(drawn) == sorted(named - {"samples/"})
    order = {name.rstrip("/").removesuffix(".py"): place for place, name in enumerate(drawn)}
    assert all(order[a] > order[b] for low, high in pairwise(FLOORS) for a in low for b in high)


def test_links_lead_somewhere():
    dead = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if re.match(r"https?://", link):
                continue
            name, _, anchor = link.partition("#")
            there = (page.parent / name).resolve() if name else page
            text = there.read_text() if anchor and there.is_file() else ""
            titles = re.findall(r"^#+ (.*)$", text, re.M)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            if not there.exists() or (anchor and anchor not in anchors):
                dead.append(f"{page.name}: {link}")
    assert not dead


# --- docs/scaling.md: scripts and YAML for clusters and clouds

SCALING = ROOT / "docs/scaling.md"
SCRIPTS = list(blocks(SCALING, "bash"))
(SKY,) = [each for body in blocks(SCALING, "yaml") if "run" in (each := yaml.safe_load(body))]


def ours(script):
    """The words of each command of bertkit in a script, wherever it stands."""
    found = re.findall(r"(?:^|-m |&& |')bertkit ([^&']+?)(?= &&|'|$)", script.replace("\\\n", " "), re.M)
    return [shlex.split(words.split(" > ")[0]) for words in found]


@pytest.mark.parametrize("script", [*SCRIPTS, SKY["setup"], SKY["run"]])
def test_scripts_are_shell(script):
    ended = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    for words in ours(script):
        cli.parse(words)  # exits where it cannot


def test_each_system_has_its_example():
    """An array with --shard and a job of torchrun for Slurm; Hugging Face Jobs; SkyPilot."""
    batch = [script for script in SCRIPTS if "#SBATCH" in script]
    assert all(script.startswith("#!/bin/bash\n#SBATCH ") for script in batch)
    array, job = ([words[0] for words in ours(script)] for script in batch)
    assert (array, job) == (["predict"], ["train"])
    (size,) = re.findall(r"--array=1-(\d+)", batch[0])
    assert f'--shard "$SLURM_ARRAY_TASK_ID/{size}"' in batch[0]
    (hub,) = [script for script in SCRIPTS if script.startswith("hf jobs run ")]
    assert [words[0] for words in ours(hub)] == [words[0] for words in ours(SKY["run"])] == ["train", "push"]
    assert SKY["secrets"] == {"HF_TOKEN": None}


# --- what a release needs beside the code

SCRIPT = ROOT / "recipes/train_classifier.py"
SKILL = ROOT / "SKILL.md"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def read_yaml(name):
    return YAML(typ="safe").load((ROOT / name).read_text())


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_metadata_name_pages_systems_and_pythons():
    metadata = project()["project"]
    assert metadata["urls"].keys() == {"Homepage", "Documentation", "Repository", "Changelog", "Issues"}
    tested = re.findall(r'python: "([\d.]+)"', (ROOT / ".github/workflows/tests.yml").read_text())
    stated = {each.rsplit(" ", 1)[1] for each in metadata["classifiers"] if ":: Python :: 3." in each}
    assert stated == set(tested)
    assert (
        read_yaml("CITATION.cff").items() >= {"version": __version__, "license": metadata["license"]}.items()
    )


def test_every_requirement_is_pinned_in_constraints():
    table = project()
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].replace("_", "-") for line in lines}
    lists = [table["project"]["dependencies"], *table["project"]["optional-dependencies"].values()]
    needed = {Requirement(each).name.replace("_", "-") for group in lists for each in group}
    assert needed - pinned - {"bertkit"} == set()


def test_conda_installs_what_training_needs():
    table = project()["project"]
    needed = {*table["dependencies"], *table["optional-dependencies"]["torch"]}
    text = (ROOT / "deploy/conda/meta.yaml").read_text().replace("{{", "").replace("}}", "")
    recipe = YAML(typ="safe").load(re.sub(r"(?m)^\{%.*%\}$", "", text))
    names = {"matplotlib-base": "matplotlib", "pytorch": "torch"}
    conda = [line.split(" ", 1) for line in recipe["requirements"]["run"]]
    listed = {f"{names.get(name, name)}{version}".replace("_", "-") for name, version in conda}
    assert listed == needed | {f"python{table['requires-python']}"}
    assert f'set version = "{__version__}"' in (ROOT / "deploy/conda/meta.yaml").read_text()


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_run_targets_of_the_makefile_with_least_permissions(file):
    flow = read_yaml(file)
    assert flow["permissions"] == {"contents": "read"}
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for job in flow["jobs"].values():
        asked = [step.get("run", "") for step in job["steps"]]
        asked += [
            each.get("command", "") for each in job.get("strategy", {}).get("matrix", {}).get("include", [])
        ]
        for words in (text.split() for text in asked if text.startswith("make ")):
            assert {word for word in words[1:] if "=" not in word} <= {*targets}, words
        assert "timeout-minutes" in job or job.get("needs") == "build"


def test_links_of_notebooks_and_of_the_site_follow_from_the_urls_of_the_project():
    urls = project()["project"]["urls"]
    name = urls["Repository"].removeprefix("https://github.com/")
    for file in (ROOT / "notebooks").glob("*.ipynb"):
        intro, install = ("".join(cell["source"]) for cell in read_json(file)["cells"][:2])
        place = f"github/{name}/blob/main/notebooks/{file.name})"
        assert f"](https://colab.research.google.com/{place}" in intro, file.name
        assert f"](https://studiolab.sagemaker.aws/import/{place}" in intro, file.name
        (extras,) = re.findall(r'pip install [^"]*"\.(\[[\w,]+\])"', intro)
        line = f'    %pip install --quiet "bertkit{extras} @ git+{urls["Repository"]}"'
        assert install.splitlines()[-1] == line, file.name


def test_the_skill_parses():
    text = SKILL.read_text()
    head = YAML(typ="safe").load(text.split("---")[1])
    assert re.fullmatch(r"[a-z-]{1,64}", head["name"])
    assert len(head["description"]) <= 1024
    assert len(text.splitlines()) <= 120
    found = [words for words in commands(SKILL) if words[0] == "bertkit"]
    assert {words[1] for words in found} >= {"init", "check", "train", "evaluate", "predict", "push"}
    for words in found:
        cli.parse(words[1:])


def test_the_one_file_program_trains_from_a_csv(tiny_encoder, tmp_path, monkeypatch, capsys):
    file = tmp_path / "reviews.csv"
    lines = [f'"{row["text"]}",{row["label"]}' for row in small.rows("single-label", 40)]
    file.write_text("review,stars\n" + "\n".join(lines) + "\n")
    words = [str(file), "--text", "review", "--label", "stars", "--model", str(tiny_encoder), "--epochs", "1"]
    words += ["--max-length", "32"]
    monkeypatch.setattr("bertkit.training.finish.verify", lambda *_: None)  # by another process
    monkeypatch.setattr("sys.argv", [SCRIPT.name, *words, "--output-dir", str(tmp_path / "run")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "accuracy" in json.loads(capsys.readouterr().out)
    monkeypatch.setattr(
        "sys.argv", [SCRIPT.name, *words, "--text", "nowhere", "--output-dir", str(tmp_path / "other")]
    )
    small.raises(SystemExit, "nowhere", runpy.run_path, str(SCRIPT), run_name="__main__")


# --- the wheel


def run(*words, cwd):
    """The command's result, without PYTHONPATH, which would name another bertkit than the installed one."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, words)), cwd=cwd, env=env, capture_output=True, text=True, check=False
    )


def done(*words, cwd):
    """The command's output; its stderr if it fails."""
    result = run(*words, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_what_the_wheel_holds(wheel):
    assert wheel.name == f"bertkit-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"bertkit-{__version__}.dist-info/METADATA").decode()
    whoever_owns_it = ("-c", "safe.directory=*")
    listing = ("ls-files", "bertkit", "recipes", "constraints.txt")
    tracked = done("git", *whoever_owns_it, *listing, cwd=ROOT).stdout.splitlines()
    files = [name for name in tracked if (ROOT / name).is_file()]
    expected = {name if name.startswith("bertkit/") else f"bertkit/{name}" for name in files}
    assert {
        "bertkit/py.typed",
        "bertkit/samples/README.md",
        "bertkit/report/templates/report.html",
    } < expected
    info = f"bertkit-{__version__}.dist-info"
    made = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    assert names == expected | {f"{info}/{name}" for name in made}
    assert "License-Expression: Apache-2.0" in metadata
    for extra in ("torch", "quickstart", "onnx-runtime"):
        assert f"Provides-Extra: {extra}" in metadata


def needed(wheel, *extras):
    """The packages that an install of the wheel brings along, by the metadata of what is installed here."""
    with zipfile.ZipFile(wheel) as archive:
        own = (
            BytesParser()
            .parsebytes(archive.read(f"bertkit-{__version__}.dist-info/METADATA"))
            .get_all("Requires-Dist")
        )
    found = set()
    open_ = [("bertkit", extra) for extra in ("", *extras)]
    while open_:
        name, extra = open_.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for text in (own if name == "bertkit" else distribution(name).requires) or []:
            each = Requirement(text)
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                open_ += [(canonicalize_name(each.name), more) for more in ("", *each.extras)]
    return {name for name, _ in found}


def test_answers_of_exported_models_need_no_torch(wheel):
    without = needed(wheel, "onnx-runtime", "serve")
    assert {"onnxruntime", "transformers", "datasets", "fastapi"} <= without
    assert not without & {"torch", "accelerate", "captum"}
    for extra in "torch quickstart onnx sweep".split():
        assert needed(wheel, extra) >= {"torch", "accelerate", "captum"}, extra


def test_a_bare_install_says_what_is_missing(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    done(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    bertkit = tmp_path / "venv/bin/bertkit"
    assert done(bertkit, "--version", cwd=tmp_path).stdout == f"bertkit {__version__}\n"
    assert "predict" in done(bertkit, "--help", cwd=tmp_path).stdout
    where = "import bertkit, sys; print(bertkit.__file__); sys.exit('pydantic' in sys.modules)"
    assert str(tmp_path / "venv") in done(python, "-c", where, cwd=tmp_path).stdout
    # A command that needs the dependencies says which one is missing.
    for words in (["recipes"], ["show", "quickstart"]):
        lacking = run(bertkit, *words, cwd=tmp_path)
        assert lacking.returncode == 2
        assert "Traceback" not in lacking.stderr
        assert "pip install bertkit" in lacking.stderr
