"""What two processes train, as torchrun starts them; a program for test_equivalence.py.

FOLDER/NAME.json and NAME.safetensors get the loss and the gradients of a first step; its other folders are
trainings, but for said/ with what each process printed.

Run:  python two.py ENCODER FOLDER
"""

import json
import sys
from pathlib import Path

import cases
import multitask
import torch
from cases import DRAWN, SEVEN, Case
from safetensors.torch import save_file
from sharded import several
from steps import OWN, first_step, first_step_of, trained

from bertkit import processes
from bertkit.cli.main import main
from bertkit.recipe.recipe import load_recipe
from bertkit.training.train import train

BY_ID = {**cases.BY_ID, SEVEN.id: SEVEN}
STEPS = "class-weights windows ner-crf-windows-bioes similarity-cosent similarity-in-batch mlm-nsp".split()
STEPS += [SEVEN.id]
MODERNBERT = Case("modernbert", DRAWN[0].options, DRAWN[0].columns)  # of the encoder in FOLDER/modernbert
TASKS = ("sentiment", "entities", "similarity")


def several_tasks(encoder, folder, rows):
    """Train with so many rows in each of two micro-batches of a step."""
    training = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": rows, "max_steps": 6}
    more = {"learning_rate": 0.1, "optim": "sgd", "bf16": False}
    train(multitask.recipe(encoder, *TASKS, training=training | more, mixing="uniform"), folder)


def keep(file, step):
    if processes.first():
        file.with_name(f"{file.name}.json").write_text(json.dumps(step[0]))
        save_file(step[1], file.with_name(f"{file.name}.safetensors"))


def program(encoder, folder):
    for name in STEPS:
        keep(folder / name, first_step(BY_ID[name], encoder, folder / "steps", 4, 1))
    keep(folder / MODERNBERT.id, first_step(MODERNBERT, folder / "modernbert", folder / "steps", 4, 1))
    for file in sorted((folder / "attachments").glob("*.yaml")):
        own = OWN.get(file.stem.partition(", ")[0], {})
        keep(folder / file.stem, first_step_of(load_recipe(file), folder / "steps", **own))
    trained(encoder, folder / "clock", 2, 5.0 if processes.first() else 1.0)
    several_tasks(encoder, folder / "tasks", 2)
    return main(["train", f"{folder}/folds.yaml", "--output-dir", f"{folder}/folds"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    encoder, folder = map(Path, sys.argv[1:])
    several(2, folder / "said", lambda _: program(encoder, folder))
