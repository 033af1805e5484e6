"""Recipes of several tasks on the rows of the cases."""

from __future__ import annotations

from cases import BY_ID

OF = {"sentiment": "single-label", "entities": "ner-crf", "answers": "qa", "similarity": "similarity-mse"}
SHORT = {"num_train_epochs": 2, "per_device_train_batch_size": 2, "learning_rate": 3e-3, "logging_steps": 1}


def part(case, validation=5):
    """A task, and its eight rows as training and, some of them, as validation rows."""
    found = BY_ID[case]
    rows = found.rows().to_list()
    return {"task": found.options, "data": {"train": rows, "validation": rows[:validation]}}


def recipe(encoder, *names, training={}, **more):  # noqa: B006
    """A recipe of these tasks of `OF`, as `train` takes it."""
    tasks = {name: part(OF[name]) for name in names}
    rest = {"model": {"name": str(encoder), "max_length": 32}, "verify": False, "explain": False}
    return {"tasks": tasks, **rest, "training": {**SHORT, **training}, **more}
