"""Several processes train and evaluate as one does: the same answers, in the same order; and they fail
together.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import sharded
import small
import torch
from cases import CASES, DRAWN
from safetensors.numpy import save
from safetensors.torch import load_file
from torch.testing import assert_close

from bertkit import processes
from bertkit.cli.main import QUIET, main
from bertkit.engine import sharding
from bertkit.engine.checkpoint import is_intact
from bertkit.errors import UserError
from bertkit.files import read_json
from bertkit.models.device import best_device

ENVIRONMENT = {**os.environ, **QUIET, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def done(tiny_encoder, tmp_path_factory):
    """The folder, after the program ran."""
    folder = tmp_path_factory.mktemp("sharded")
    command = [sys.executable, sharded.__file__, str(tiny_encoder), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return folder


def codes(folder):
    return list(read_json(folder / "codes.json"))


def said(folder, what):
    return (folder / what).read_text()


@pytest.mark.parametrize("case", [case.id for case in [*CASES, *DRAWN]])
def test_three_processes_have_the_answers_of_one(case, done):
    """A chunk of 3 rows has 2 batches, fewer than processes; the last chunk is smaller; some have no
    features.
    """
    assert codes(done / "fp32, 3") == [0, 0, 0], said(done / "fp32, 3", "0.err")
    one = said(done / "fp32, 1/written", f"{case}.0.jsonl")
    assert one.count("\n") == (12 if case in sharded.EMPTY else 8)
    for rank in range(3):
        assert said(done / "fp32, 3/written", f"{case}.{rank}.jsonl") == one


@pytest.mark.parametrize("case", sharded.NAMES)
def test_two_processes_have_the_answers_of_one_in_bf16(case, done):
    assert codes(done / "bf16, 2") == [0, 0], said(done / "bf16, 2", "0.err")
    one = said(done / "bf16, 1/written", f"{case}.0.jsonl")
    assert [said(done / "bf16, 2/written", f"{case}.{rank}.jsonl") for rank in (0, 1)] == [one, one]
    assert said(done / "fp32, 1/written", f"{case}.0.jsonl") != one


@pytest.mark.parametrize(
    ("name", "message", "ended"),
    [
        ("one has other rows", "the processes read different rows", [2, 2]),
        ("one is killed", "another process has ended", [2, -9]),
    ],
)
def test_what_is_wrong_with_one_process_ends_all(name, message, ended, done):
    assert codes(done / name) == ended
    assert message in said(done / name, "0.err")


def test_a_run_by_two_processes_ends_as_one_process_does(done):
    assert codes(done / "trained, 2") == [0, 0], said(done / "trained, 2", "0.err")
    one = done / "trained, 1/written"
    two = done / "trained, 2/written"
    weights = [load_file(run / "model/model.safetensors") for run in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    for name, values in weights[0].items():
        # fp32 sums of gradients in another order, over the steps of a run
        assert_close(weights[1][name], values, rtol=0, atol=5e-6)
    scores = [read_json(run / "results.json")["splits"] for run in (one, two)]
    for split in ("validation", "test"):
        assert scores[1][split]["metrics"] == pytest.approx(scores[0][split]["metrics"], abs=1e-6)


def test_a_run_by_two_processes_that_receives_a_signal_resumes_to_the_same_model(done):
    """Only process 1 receives it; all stop after that step. The resumed run equals an uninterrupted one."""
    ended = done / "stopped, 2"
    assert codes(ended) == [0, 0], said(ended, "0.err") + said(ended, "1.err")
    assert [said(ended, f"{rank}.ended") for rank in (0, 1)] == ["143", "143"]
    assert "stopped after step 3 of 4; a resumed run continues from there" in said(ended, "0.err")
    left = ended / "left/checkpoint-3"
    assert is_intact(left)
    assert {path.suffix for path in left.iterdir()} == {".json", ".safetensors"}
    whole, parts = (ended / "written" / name for name in ("whole", "parts"))
    names = ["model/model.safetensors", "predictions/test.jsonl", "predictions/validation.jsonl"]
    last = "model.safetensors optimizer.safetensors random-0.safetensors random-1.safetensors".split()
    names += [f"checkpoints/seed-42/checkpoint-4/{name}" for name in last]
    for name in names:
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    steps = [[event["step"] for event in small.read_rows(run / "metrics.jsonl")] for run in (whole, parts)]
    assert steps[0] == steps[1]


def test_a_student_of_two_processes_is_that_of_one(done):
    one, two = (done / f"teacher before, {count}" for count in (1, 2))
    assert codes(two) == [0, 0], said(two, "0.err")
    weights = [load_file(run / "written/model/model.safetensors") for run in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    for weight, values in weights[0].items():
        assert_close(weights[1][weight], values, rtol=0, atol=1e-5)
    assert "computed in" in said(two, "0.err"), "one process asks it, and the other reads what that has kept"
    assert "from the cache" in said(two, "1.err")


def test_what_the_environment_says_of_processes(monkeypatch, capfd):
    monkeypatch.setenv("LOCAL_RANK", "x")
    assert small.refused(capfd, "train", "quickstart", "--output-dir", "nowhere").startswith(
        "error: LOCAL_RANK: 'x' is not a whole number"
    )
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    small.raises(UserError, "LOCAL_RANK: 'x' is not a whole number", best_device)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    small.raises(UserError, "LOCAL_RANK: 1, but this machine has accelerators 0 to 0", best_device)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert best_device() == torch.device("cuda", 1)
    monkeypatch.undo()
    monkeypatch.setenv("WORLD_SIZE", "two")
    assert small.refused(capfd, "predict", "nowhere", "a").startswith(
        "error: WORLD_SIZE: 'two' is not a whole number"
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "5")
    for command in (["predict", "nowhere", "a"], ["evaluate", "nowhere"]):
        assert main(command) == 2
        assert "RANK: 5, but WORLD_SIZE 2 has processes 0 to 1" in capfd.readouterr().err
    monkeypatch.setenv("RANK", "1")
    for world in ("", "1"):
        monkeypatch.setenv("WORLD_SIZE", world)
        assert processes.first(), "a lone process writes whatever its rank"
    monkeypatch.delenv("WORLD_SIZE")
    assert processes.first()


def test_each_process_runs_its_part(monkeypatch):
    """Of 7 batches, process 1 of 3 runs the second and the fifth."""
    monkeypatch.setattr(sharding.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(sharding.distributed, "get_world_size", lambda: 3)
    others = [
        save({f"{number}/x": np.full(1, 10 * number) for number in part}) for part in ((0, 3, 6), (2, 5))
    ]
    monkeypatch.setattr(sharding, "_exchange", lambda mine, batches: [others[0], mine, others[1]])
    ran = []

    def run(batch):
        ran.append(batch)
        return {"x": np.full(1, 10 * batch)}

    assert [made["x"].tolist() for made in sharding.sharded_map(run, range(7))] == [
        [10 * n] for n in range(7)
    ]
    assert ran == [1, 4]
