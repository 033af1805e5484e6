"""The trials of a sweep: a study on disk, a run folder each, weak ones stopped, interrupted ones gone on with."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from optuna import Study, TrialPruned, create_study, load_study
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from transformers import TrainerCallback

from bertkit.errors import DataError, ModelError, Problem, UserError
from bertkit.models.encoder import quiet
from bertkit.recipe.recipe import Recipe, load_recipe, to_yaml
from bertkit.run import Run
from bertkit.sweeps.space import Space, brief
from bertkit.training.train import train

logger = logging.getLogger(__name__)

NAME = "sweep"
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class Watch(TrainerCallback):
    """Tells the study each evaluation's score, by the evaluation's number; raises TrialPruned where it is too weak."""

    def __init__(self, trial: Trial, known: set[int], headline: str) -> None:
        """known: evaluations that were told before an interruption, and come again after it."""
        self.trial, self.known, self.name = trial, known, f"eval_{headline}"

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **_: Any
    ) -> None:
        score = (metrics or {})[self.name]
        number = sum(self.name in event for event in state.log_history)
        if number not in self.known and isfinite(score):
            self.trial.report(score, number)
        if self.trial.should_prune():
            raise TrialPruned


@dataclass(frozen=True)
class Search:
    """Trials of one recipe. file: the recipe as it is; folder: of the sweep; headline: higher is better."""

    study: Study
    storage: JournalStorage
    file: Path
    folder: Path
    space: Space
    headline: str

    def run(self, trials: int, deadline: float | None) -> None:
        """Finish this many trials in all, or none that starts after the deadline, of time.monotonic().

        Trial 0 is the recipe as it is. A trial that was interrupted goes on from its newest checkpoint.
        Raises UserError where nothing can go on: a disk is full, data are gone, or the recipe itself fails.
        """
        for number in range(trials):
            known = self.study.get_trials(deepcopy=False)
            if number < len(known) and known[number].state in FINISHED:
                self._forget_weights(number)
            elif number and deadline is not None and time.monotonic() > deadline:
                logger.info("time is up after %d of %d trials", number, trials)
                return
            else:
                trial = self._next(number, known)
                self._attempt(trial, known)
                self._forget_weights(number)
                self._tell_person(number)

    def recipe(self, changes: Mapping[str, Any]) -> Recipe:
        """The recipe with these changes: key -> value. Raises RecipeError where they do not go together."""
        return load_recipe(self.file, [f"{key}={json.dumps(value)}" for key, value in changes.items()])

    def drawn(self, trial: Trial | FrozenTrial) -> dict[str, Any]:
        """What the trial changes of the recipe: key -> value. Trial 0 changes nothing."""
        values = trial.params if trial.number else {}
        return {key: dimension.as_meant(values[key]) for key, dimension in self.space.items() if key in values}

    def finished(self) -> list[FrozenTrial]:
        """The trials that have ended, by number."""
        return self.study.get_trials(deepcopy=False, states=FINISHED)

    def place(self, number: int) -> Path:
        """The run folder of a trial."""
        return self.folder / "trials" / f"{number:04d}"

    def winner(self) -> FrozenTrial:
        """The best finished trial; of equal ones the first."""
        complete = [trial for trial in self.finished() if trial.state == TrialState.COMPLETE]
        return max(complete, key=lambda trial: (trial.value or 0.0, -trial.number))

    def _next(self, number: int, known: list[FrozenTrial]) -> Trial:
        base = load_recipe(self.file)
        # A sampler of its own for each trial: what it draws depends on the trials before, and on no interruption.
        self.study.sampler = TPESampler(seed=(base.seeds[0] + number) % 2**32)
        if not known:
            own = {key: self.space[key].as_drawn(value) for key, value in _own(base, self.space)}
            self.study.enqueue_trial(own)
        if number < len(known) and known[number].state == TrialState.RUNNING:
            study = self.storage.get_study_id_from_name(NAME)
            return Trial(self.study, self.storage.get_trial_id_from_study_id_trial_number(study, number))
        return self.study.ask()

    def _attempt(self, trial: Trial, known: list[FrozenTrial]) -> None:
        """Draw the trial's values, train it, and tell the study how it ended."""
        own = dict(_own(load_recipe(self.file), self.space))
        for key, dimension in self.space.items():
            if trial.number or key in own:  # so that the sampler learns from the recipe's own values too
                dimension.draw(trial, key)
        same = [t for t in known if t.state == TrialState.COMPLETE and t.params == trial.params]
        if same and trial.number:  # training it again would give the same score
            trial.set_user_attr("same_as", same[0].number)
            self.study.tell(trial, same[0].value)
            return
        told = set(known[trial.number].intermediate_values) if trial.number < len(known) else set()
        try:
            run = trained(self.recipe(self.drawn(trial)), self.place(trial.number), Watch(trial, told, self.headline))
        except TrialPruned:
            self.study.tell(trial, state=TrialState.PRUNED)
            return
        except (DataError, ModelError):
            raise
        except (UserError, torch.OutOfMemoryError) as error:
            if not trial.number:
                raise
            trial.set_user_attr("why", str(error))
            self.study.tell(trial, state=TrialState.FAIL)
            return
        score = run.results["seeds"][0]["headline"]
        if score is None:
            trial.set_user_attr("why", f"its {self.headline} is not defined")
        self.study.tell(trial, score, TrialState.FAIL if score is None else None)

    def _forget_weights(self, number: int) -> None:
        for name in ("checkpoints", "model", "adapter"):
            shutil.rmtree(self.place(number) / name, ignore_errors=True)

    def _tell_person(self, number: int) -> None:
        trial = self.study.get_trials(deepcopy=False)[number]
        drawn = ", ".join(f"{key.rpartition('.')[2]} {brief(value)}" for key, value in self.drawn(trial).items())
        logger.info("trial %d: %s (%s)", number, outcome(trial, self.headline), drawn or "the recipe as it is")


def outcome(trial: FrozenTrial, headline: str) -> str:
    """How a finished trial ended, in a few words."""
    if trial.state == TrialState.PRUNED:
        return f"stopped at evaluation {trial.last_step}, {headline} {trial.value:.4f}"
    if trial.state == TrialState.FAIL:
        return f"failed: {trial.user_attrs.get('why', '')}"
    same = f", as trial {trial.user_attrs['same_as']}" if "same_as" in trial.user_attrs else ""
    return f"{headline} {trial.value:.4f}{same}"


def trained(recipe: Recipe, folder: Path, *callbacks: TrainerCallback) -> Run:
    """The finished run of this recipe in this folder: there already, gone on with, or new in place of another."""
    kept = folder / "recipe.yaml"
    resume = kept.is_file() and kept.read_text(encoding="utf-8") == to_yaml(recipe)
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    with quiet("bertkit"):
        run = train(recipe, folder, resume, callbacks=callbacks)
    if not run.finished:
        raise KeyboardInterrupt
    return run


def opened(file: Path, facts: Mapping[str, Any]) -> tuple[Study, JournalStorage]:
    """The study in this journal, new or gone on with. Raises UserError where it is of other facts, or damaged."""
    # What a killed process left: its lock, and half a line.
    for left in file.parent.glob(f"{file.name}.lock*"):
        left.unlink()
    if file.is_file():
        text = file.read_bytes()
        os.truncate(file, text.rfind(b"\n") + 1)
    try:
        storage = JournalStorage(JournalFileBackend(str(file)))
        # Of a study that is there, create_study would write so into the journal.
        known = [each.study_name for each in storage.get_all_studies()]
        study = (
            load_study(study_name=NAME, storage=storage, pruner=MedianPruner())
            if NAME in known
            else create_study(study_name=NAME, storage=storage, pruner=MedianPruner(), direction="maximize")
        )
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:  # optuna asserts its codes
        raise UserError(Problem(str(file), f"is damaged: {error}", "Name another --output-dir.")) from error
    kept = study.user_attrs
    for name, value in facts.items():
        if kept.get(name, value) != value:
            what = f"is a sweep with another {name}"
            raise UserError(Problem(str(file.parent), what, "Name another --output-dir, or bring the old one back."))
        if name not in kept:
            study.set_user_attr(name, value)
    return study, storage


def _own(recipe: Recipe, space: Space) -> Iterator[tuple[str, Any]]:
    """The recipe's own value of each key, where it has one that the sampler could draw."""
    for key, dimension in space.items():
        value: Any = recipe.model_dump(mode="json")
        for word in key.split("."):
            if not isinstance(value, dict) or word not in value:
                break
            value = value[word]
        else:
            if dimension.holds(value):
                yield key, value
