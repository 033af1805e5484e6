"""Whether a saved model gives the same answers in a fresh process."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from datasets import Dataset

from bertkit.errors import ModelError
from bertkit.files import write_lines
from bertkit.inference.predictor import Predictor
from bertkit.run import Run
from bertkit.tasks import is_registered

logger = logging.getLogger(__name__)


PROBED = 64  # rows
REPORT = "The run is saved. Report this with the recipe and this message, or set verify: false."


def verify(run: Run, predictor: Predictor, rows: Dataset) -> bool:
    """Load the saved model in a fresh process and compare its answers with this process's. Raises ModelError.

    False: no other process can load it, whose task was registered in this one.
    """
    if is_registered(predictor.task.name):
        logger.warning(
            "not verified: a fresh process does not know %s, which this one registered", predictor.task.name
        )
        return False
    columns = [name for name in rows.column_names if name in predictor.task.reads]
    probe = list(rows.select(range(min(len(rows), PROBED))).select_columns(columns))
    with TemporaryDirectory() as folder:
        source = Path(folder, "rows.jsonl")
        output = Path(folder, "answers.jsonl")
        write_lines(source, probe)
        command = [sys.executable, "-P", "-m", "bertkit", "predict", str(run.model), f"--input={source}"]
        command += [f"--output={output}", *(f"--column={name}={name}" for name in probe[0])]
        alone = {
            k: v
            for k, v in os.environ.items()
            if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")
        }
        # A notebook may have added to its path, or taken from it.
        alone["PYTHONPATH"] = os.pathsep.join([*sys.path, *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
        if done.returncode:
            raise ModelError(run.model, f"does not load in a fresh process:\n{done.stderr.strip()}", REPORT)
        fresh = [json.loads(line)["answer"] for line in output.read_text(encoding="utf-8").splitlines()]
    ours = list(replace(predictor, columns={}).stream(probe))
    different = [
        row for row, (answer, other) in enumerate(zip(ours, fresh, strict=True), 1) if answer != other
    ]
    if different:
        raise ModelError(
            run.model,
            f"a fresh process answers {len(different)} of {len(ours)} rows differently, first row "
            f"{different[0]}",
            REPORT,
        )
    logger.info("verified: a fresh process gives the same %d answers", len(ours))
    return True
