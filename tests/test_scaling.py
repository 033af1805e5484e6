"""The examples of docs/scaling.md for clusters and clouds: scripts and YAML are such, and their commands are ours."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from test_readme import blocks

from bertkit.cli.main import parse

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scaling.md"
SCRIPTS = list(blocks(PAGE, "bash"))
(SKY,) = [each for body in blocks(PAGE, "yaml") if "run" in (each := yaml.safe_load(body))]


def ours(script: str) -> list[list[str]]:
    """The words of each command of bertkit in a script, wherever it stands."""
    found = re.findall(r"(?:^|-m |&& |')bertkit ([^&']+?)(?= &&|'|$)", script.replace("\\\n", " "), re.M)
    return [shlex.split(words.split(" > ")[0]) for words in found]


@pytest.mark.parametrize("script", [*SCRIPTS, SKY["setup"], SKY["run"]])
def test_scripts_are_shell(script: str) -> None:
    ended = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    for words in ours(script):
        parse(words)  # exits where it cannot


def test_each_system_has_its_example() -> None:
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
