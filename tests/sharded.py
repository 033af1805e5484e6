"""Evaluations and trainings by one process and by several, as torchrun starts them; a program for
test_sharding.py.

The processes are forked from this one, which has imported everything. FOLDER/NAME/ gets, for each run that
NAME stands for, what every process printed (0.out, 0.err, 1.out, …), the exit codes (codes.json) and what was
written (written/).

Run:  python sharded.py ENCODER FOLDER
"""

import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import small
import torch
from cases import CASES, DRAWN, SETTINGS, encoder
from torch import distributed
from transformers import TrainerCallback, set_seed

from bertkit.engine.sharding import sharded_map
from bertkit.errors import UserError
from bertkit.inference.predictor import load
from bertkit.tasks import OURS
from bertkit.training.seed import save
from bertkit.training.train import train

NAMES = "single-label ner-crf-windows-bioes qa-windows-or-none similarity-in-batch retrieval".split()
EMPTY = {"ner-softmax": {"tokens": []}, "mlm": {"text": ""}}  # case -> a row that may have no features


class Stop(TrainerCallback):
    """Process 1 receives SIGTERM in the third step."""

    def __init__(self, rank):
        self.rank = rank

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 2 and self.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def free_port():
    """One that no connection takes in the meantime: Linux gives them ports from 32768 on."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def several(count, folder, run):
    """`run(rank)`, which gives an exit code, in so many processes, which end within ten minutes."""
    (folder / "written").mkdir(parents=True)
    port = free_port()

    def one(rank):
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        ranks = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": count,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        os.environ.update({name: str(value) for name, value in ranks.items()})
        sys.exit(run(rank))

    processes = [
        multiprocessing.get_context("fork").Process(target=one, args=(rank,)) for rank in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
        process.kill()
    (folder / "codes.json").write_text(json.dumps([process.exitcode for process in processes]))


def models(folder, room):
    """Of every case a model that answers 3 rows at a time, in batches of 2, and a file of its rows."""
    for kind in OURS.values():
        kind.chunk_size = 3
    for case in [*CASES, *DRAWN]:
        set_seed(5)
        task = case.task(folder)
        rows = list(case.rows())
        save(task.model(encoder(folder)), task, room / case.id / "model", SETTINGS | {"batch_size": 2})
        rows += [{**rows[0], **EMPTY[case.id]}] * 4 if case.id in EMPTY else []
        small.write_rows(room / case.id / "rows.jsonl", rows)


def answers(room, out, names, precision):
    """A `run` that answers the rows of these cases, as an evaluation during training does; each process
    writes all.
    """

    def run(rank):
        several = int(os.environ["WORLD_SIZE"]) > 1
        if several:
            distributed.init_process_group("gloo")
        for name in names:
            predictor = load(room / name / "model", precision=precision)
            runner = replace(predictor.predict_features, mapper=sharded_map if several else None)
            rows = small.read_rows(room / name / "rows.jsonl")
            found = predictor.task.answer(predictor.canonical(rows, 0), runner)
            small.write_rows(out / "written" / f"{name}.{rank}.jsonl", list(found))
        return 0

    return run


def broken(out):
    """Two processes, of which the second has other rows, or is killed."""

    def run(rank, batches, killed):
        def one(batch):
            if killed and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return {"x": np.full(1, batch)}

        distributed.init_process_group("gloo")
        try:
            sharded_map(one, range(batches))
        except UserError as error:
            sys.stderr.write(str(error))
            return 2
        return 0

    several(2, out / "one has other rows", lambda rank: run(rank, 4 + rank, killed=False))
    several(2, out / "one is killed", lambda rank: run(rank, 4, killed=True))


def trained(folder, room, out):
    """The same run by one process and by two; then two of which one receives a signal."""
    plain = "training.bf16=false", "training.eval_strategy=epoch", "training.save_strategy=epoch"

    def one(_):
        recipe = small.recipe(room, folder, *plain, "training.per_device_train_batch_size=8")
        train(recipe, out / "trained, 1/written")

    def two(rank):
        train(small.recipe(room / str(rank), folder, *plain), out / "trained, 2/written")

    def stopped(rank):
        """With dropout: a run; and another, in which process 1 receives SIGTERM in the third of four steps,
        resumed.
        """
        logging.basicConfig(level=logging.INFO)
        recipe = small.recipe(room / f"stopped {rank}", dropout, *plain)
        written = out / "stopped, 2/written"
        train(recipe, written / "whole")
        try:
            train(recipe, written / "parts", callbacks=[Stop(rank)])
        except SystemExit as ended:
            (out / "stopped, 2" / f"{rank}.ended").write_text(str(ended.code))
        if rank == 0:
            seed = written / "parts/checkpoints/seed-42"
            shutil.copytree(seed, out / "stopped, 2/left")
        distributed.barrier()
        train(recipe, written / "parts", resume=True)

    dropout = shutil.copytree(folder, room / "dropout")
    small.change_json(dropout / "config.json", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    several(1, out / "trained, 1", one)
    several(2, out / "trained, 2", two)
    several(2, out / "stopped, 2", stopped)


def taught(folder, room, out):
    """The same student by one process and by two; its teacher is asked before training."""
    teacher = f"distillation={{teacher: '{out}/trained, 1/written', alpha: 0.7}}"
    for count in (1, 2):
        what = f"teacher before, {count}"

        def run(rank, count=count, what=what):
            os.environ["BERTKIT_CACHE"] = f"{out}/{what}/cache"
            size = f"training.per_device_train_batch_size={8 // count}"
            recipe = small.recipe(room / f"{what} {rank}", folder, teacher, size, "training.bf16=false")
            logging.basicConfig(level=logging.INFO)
            train(recipe, out / what / "written")

        several(count, out / what, run)


def program(folder, out):
    room = out / "models"
    models(folder, room)
    every = tuple(case.id for case in [*CASES, *DRAWN])
    for count in (1, 3):  # a chunk has two batches
        several(count, out / f"fp32, {count}", answers(room, out / f"fp32, {count}", every, "fp32"))
    for count in (1, 2):
        several(count, out / f"bf16, {count}", answers(room, out / f"bf16, {count}", NAMES, "bf16"))
    broken(out)
    trained(folder, room, out)
    taught(folder, room, out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    program(Path(sys.argv[1]), Path(sys.argv[2]))
