"""What a release needs beside the code, each file read by its own format."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import small
from packaging.requirements import Requirement
from ruamel.yaml import YAML
from test_readme import ROOT, commands

from bertkit import __version__
from bertkit.cli import main as cli

SCRIPT = ROOT / "recipes" / "train_classifier.py"
SKILL = ROOT / "SKILL.md"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read_yaml(name: str | Path) -> Any:
    return YAML(typ="safe").load((ROOT / name).read_text(encoding="utf-8"))


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_metadata_name_pages_systems_and_pythons() -> None:
    metadata = project()["project"]
    assert metadata["urls"].keys() == {"Homepage", "Documentation", "Repository", "Changelog", "Issues"}
    tested = re.findall(r'python: "([\d.]+)"', (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    stated = {each.rsplit(" ", 1)[1] for each in metadata["classifiers"] if ":: Python :: 3." in each}
    assert stated == set(tested)
    assert read_yaml("CITATION.cff").items() >= {"version": __version__, "license": metadata["license"]}.items()


def test_every_requirement_is_pinned_in_constraints() -> None:
    table = project()
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].replace("_", "-") for line in lines}
    lists = [table["project"]["dependencies"], *table["project"]["optional-dependencies"].values()]
    needed = {Requirement(each).name.replace("_", "-") for group in lists for each in group}
    assert needed - pinned - {"bertkit"} == set()


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_run_targets_of_the_makefile_with_least_permissions(file: Path) -> None:
    flow = read_yaml(file)
    assert flow["permissions"] == {"contents": "read"}
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for job in flow["jobs"].values():
        asked = [step.get("run", "") for step in job["steps"]]
        asked += [each.get("command", "") for each in job.get("strategy", {}).get("matrix", {}).get("include", [])]
        for words in (text.split() for text in asked if text.startswith("make ")):
            assert {word for word in words[1:] if "=" not in word} <= {*targets}, words
        assert "timeout-minutes" in job or job.get("needs") == "build"


def test_links_of_notebooks_and_of_the_site_follow_from_the_urls_of_the_project() -> None:
    urls = project()["project"]["urls"]
    name = urls["Repository"].removeprefix("https://github.com/")
    for file in (ROOT / "notebooks").glob("*.ipynb"):
        intro = "".join(json.loads(file.read_text(encoding="utf-8"))["cells"][0]["source"])
        place = f"github/{name}/blob/main/notebooks/{file.name})"
        assert f"](https://colab.research.google.com/{place}" in intro, file.name
        assert f"](https://studiolab.sagemaker.aws/import/{place}" in intro, file.name
        extras = re.findall(r'pip install [^"]*"(?:bertkit|\.)(\[[\w,]+\])(?: @ git\+([^"]+))?"', intro)
        assert extras == [(extras[0][0], ""), (extras[0][0], urls["Repository"])], file.name


def test_the_skill_parses() -> None:
    text = SKILL.read_text(encoding="utf-8")
    head = YAML(typ="safe").load(text.split("---")[1])
    assert re.fullmatch(r"[a-z-]{1,64}", head["name"])
    assert len(head["description"]) <= 1024
    assert len(text.splitlines()) <= 120
    found = [words for words in commands(SKILL) if words[0] == "bertkit"]
    assert {words[1] for words in found} >= {"copy", "check", "train", "evaluate", "predict", "push"}
    for words in found:
        cli.parse(words[1:])


def test_the_one_file_program_trains_from_a_csv(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "reviews.csv"
    lines = [f'"{row["text"]}",{row["label"]}' for row in small.rows("single-label", 40)]
    file.write_text("review,stars\n" + "\n".join(lines) + "\n", encoding="utf-8")
    words = [str(file), "--text", "review", "--label", "stars", "--model", str(tiny_encoder), "--epochs", "1"]
    words += ["--max-length", "32"]
    monkeypatch.setattr("bertkit.training.finish.verify", lambda *_: None)  # by another process
    monkeypatch.setattr("sys.argv", [SCRIPT.name, *words, "--output-dir", str(tmp_path / "run")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "accuracy" in json.loads(capsys.readouterr().out)
    monkeypatch.setattr("sys.argv", [SCRIPT.name, *words, "--text", "nowhere", "--output-dir", str(tmp_path / "other")])
    with pytest.raises(SystemExit, match="nowhere"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
