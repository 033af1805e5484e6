"""Several processes answer as one does: in the same order, no row twice, none left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import sharded


def test_three_processes_answer_as_one(tiny_encoder: Path, tmp_path: Path) -> None:
    """Also where there are fewer batches than processes: of one row there is one batch."""
    alone = json.loads(json.dumps(sharded.answers(tiny_encoder, map)))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=3", "--standalone"]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("sharded.py")), str(tiny_encoder), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(alone) == set(sharded.NAMES)
    for rank in range(3):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == alone


def test_each_process_runs_its_part(monkeypatch) -> None:
    """Of 7 batches, process 1 of 3 runs the second and the fifth."""
    from bertkit.training import sharding

    monkeypatch.setattr(sharding.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(sharding.distributed, "get_world_size", lambda: 3)
    monkeypatch.setattr(sharding, "_gathered", lambda mine: [[("?",)] * 3, [*mine, None], [("?",)] * 2])
    ran: list[int] = []
    made = sharding.spread(lambda batch: ran.append(batch) or (batch,), range(7))  # type: ignore[func-returns-value]
    assert ran == [1, 4]
    assert made[1] == (1,)
    assert made[4] == (4,)
