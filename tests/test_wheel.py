"""The wheel: it holds recipes and samples, and a bare install without any dependency can list the recipes."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from email.parser import BytesParser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bertkit import __version__
from bertkit.recipe import shipped_recipes

ROOT = Path(__file__).resolve().parent.parent


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command's result, without PYTHONPATH, which would name another bertkit than the installed one."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(list(map(str, words)), cwd=cwd, env=env, capture_output=True, text=True, check=False)


def done(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command's output; its stderr if it fails."""
    result = run(*words, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_what_the_wheel_holds(wheel: Path) -> None:
    assert wheel.name == f"bertkit-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"bertkit-{__version__}.dist-info/METADATA").decode()
    tracked = done("git", "ls-files", "bertkit", "recipes", "constraints.txt", cwd=ROOT).stdout.splitlines()
    files = [name for name in tracked if (ROOT / name).is_file()]
    expected = {name if name.startswith("bertkit/") else f"bertkit/{name}" for name in files}
    assert {"bertkit/py.typed", "bertkit/samples/README.md", "bertkit/report/templates/report.html"} < expected
    info = f"bertkit-{__version__}.dist-info"
    made = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    assert names == expected | {f"{info}/{name}" for name in made}
    assert "License-Expression: Apache-2.0" in metadata
    for extra in ("torch", "quickstart", "onnx-runtime"):
        assert f"Provides-Extra: {extra}" in metadata


def needed(wheel: Path, *extras: str) -> set[str]:
    """The packages that an install of the wheel brings along, by the metadata of what is installed here."""
    with zipfile.ZipFile(wheel) as archive:
        own = (
            BytesParser().parsebytes(archive.read(f"bertkit-{__version__}.dist-info/METADATA")).get_all("Requires-Dist")
        )
    found, open_ = set[tuple[str, str]](), [("bertkit", extra) for extra in ("", *extras)]
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


def test_answers_of_exported_models_need_no_torch(wheel: Path) -> None:
    without = needed(wheel, "onnx-runtime", "serve")
    assert {"onnxruntime", "transformers", "datasets", "fastapi"} <= without
    assert not without & {"torch", "accelerate", "captum"}
    for extra in ("torch", "quickstart", "onnx", "sweep"):
        assert needed(wheel, extra) >= {"torch", "accelerate", "captum"}, extra


def test_a_bare_install_lists_the_recipes(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    done(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    bertkit = tmp_path / "venv" / "bin" / "bertkit"
    told = done(bertkit, "recipes", cwd=tmp_path)
    listed = {line.split()[0] for line in told.stdout.splitlines()}
    assert listed == set(shipped_recipes())
    assert "pip install bertkit" in told.stderr
    assert done(bertkit, "--version", cwd=tmp_path).stdout == f"bertkit {__version__}\n"
    assert "predict" in done(bertkit, "--help", cwd=tmp_path).stdout
    where = "import bertkit, sys; print(bertkit.__file__); sys.exit('pydantic' in sys.modules)"
    assert str(tmp_path / "venv") in done(python, "-c", where, cwd=tmp_path).stdout
    # A command that needs the dependencies says which one is missing.
    lacking = run(bertkit, "show", "quickstart", cwd=tmp_path)
    assert lacking.returncode == 2
    assert "Traceback" not in lacking.stderr
    assert "pip install bertkit" in lacking.stderr
