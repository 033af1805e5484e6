"""The trials of a sweep: an optuna study on disk and a run folder per trial; interrupted trials are
resumed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from math import isfinite
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from optuna import Study, TrialPruned, create_study, load_study
from optuna.distributions import CategoricalDistribution
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from transformers import TrainerCallback

from bertkit.errors import DataError, ModelError, UserError, translated
from bertkit.models.quiet import quiet_logger
from bertkit.recipe.recipe import Recipe, to_yaml
from bertkit.run import Run
from bertkit.sweeps.space import Space, brief, contains, decoded, suggest
from bertkit.text import Json, Record
from bertkit.training.job import prepare_job
from bertkit.training.train import train

logger = logging.getLogger(__name__)

NAME = "sweep"


class PruningCallback(TrainerCallback):
    """Reports the score of each evaluation to the study; raises TrialPruned where it is too weak."""

    def __init__(self, trial: Trial, metric: str) -> None:
        self.trial = trial
        self.name = f"eval_{metric}"

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, float] = {}, **_: Any
    ) -> None:
        score = metrics[self.name]
        if isfinite(score):
            with warnings.catch_warnings():
                repeated = "The reported value is ignored because this `step=.*` is already reported"
                warnings.filterwarnings("ignore", repeated)  # an evaluation that an interruption repeats
                self.trial.report(score, sum(self.name in event for event in state.log_history))
        if self.trial.should_prune():
            raise TrialPruned


@dataclass(frozen=True)
class Search:
    """The trials of a sweep. base: the recipe they vary, also saved in `folder`. metric: higher is better."""

    study: Study
    storage: JournalStorage
    base: Recipe
    folder: Path
    space: Space
    metric: str

    def run(self, trials: int, deadline: float | None) -> None:
        """Finish this many trials in total; none starts after the deadline, in time.monotonic().

        Trial 0 is the base recipe. An interrupted trial is resumed from its latest checkpoint.
        Raises UserError for what would stop any trial: a full disk, missing data, a base recipe that fails.
        """
        for number in range(trials):
            history = self.study.get_trials(deepcopy=False)
            if number < len(history) and history[number].state.is_finished():
                self._delete_weights(number)
            elif number and deadline is not None and time.monotonic() > deadline:
                logger.info("timeout after %d of %d trials", number, trials)
                return
            else:
                trial = self._next(number, history)
                self.study.tell(trial, *self._result(trial, history))
                self._delete_weights(number)
                done = self.finished()[-1]
                names = [
                    f"{key.rpartition('.')[2]} {brief(value)}" for key, value in self.changes(done).items()
                ]
                what = outcome(done, self.metric)
                logger.info("trial %d: %s (%s)", number, what, ", ".join(names) or "the base recipe")

    def recipe(self, changes: Record) -> Recipe:
        """The recipe with these changes: key -> value. Raises RecipeError where they contradict each
        other.
        """
        return self.base.with_(*(f"{key}={json.dumps(value)}" for key, value in changes.items()))

    def changes(self, trial: Trial | FrozenTrial) -> Json:
        """The settings that a trial changes: key -> value; none in trial 0."""
        values = trial.params if trial.number else {}
        return {key: decoded(values[key]) for key in self.space if key in values}

    def finished(self) -> list[FrozenTrial]:
        """The finished trials, by number."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.is_finished()]

    def _trial_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    def _next(self, number: int, history: list[FrozenTrial]) -> Trial:
        # A new sampler per trial: its proposals depend on the trials before, but not on interruptions.
        self.study.sampler = TPESampler(seed=(self.base.seeds[0] + number) % 2**32)
        if not history:
            self.study.enqueue_trial(self._base_values())
        if number < len(history) and history[number].state == TrialState.RUNNING:
            study = self.storage.get_study_id_from_name(NAME)
            return Trial(self.study, self.storage.get_trial_id_from_study_id_trial_number(study, number))
        return self.study.ask()

    def _result(self, trial: Trial, history: list[FrozenTrial]) -> tuple[float | None, TrialState]:
        """Propose the trial's values and train it."""
        base = self._base_values()
        for key, distribution in self.space.items():
            if trial.number or key in base:  # so that the sampler learns from the base recipe too
                suggest(trial, key, distribution)
        complete = (earlier for earlier in history if earlier.state == TrialState.COMPLETE)
        same = [earlier for earlier in complete if earlier.params == trial.params]
        if same and trial.number:  # training it again would give the same score
            trial.set_user_attr("same_as", same[0].number)
            return same[0].value, TrialState.COMPLETE
        folder = self._trial_folder(trial.number)
        callback = PruningCallback(trial, self.metric)
        try:
            run = train_or_resume(self.recipe(self.changes(trial)), folder, callback)
        except TrialPruned:
            return None, TrialState.PRUNED
        except (DataError, ModelError) as error:
            if not trial.number or (folder / "recipe.yaml").is_file():
                raise
            prepare_job(self.base)  # raises what would stop any trial
            return _failed(trial, str(error))
        except (UserError, torch.OutOfMemoryError) as error:
            if not trial.number:
                raise
            return _failed(trial, str(error))
        score = run.results["seeds"][0]["headline"]
        if score is None:
            return _failed(trial, f"its {self.metric} is undefined")
        return score, TrialState.COMPLETE

    def _base_values(self) -> Json:
        """The base recipe's value of each key, as optuna stores it, where it has one that is in the space."""
        values = {}
        settings = self.base.model_dump(mode="json")
        for key, distribution in self.space.items():
            with suppress(KeyError, TypeError):  # a section that the base recipe does not have
                value = reduce(getitem, key.split("."), settings)
                if contains(distribution, value):
                    values[key] = (
                        json.dumps(value) if isinstance(distribution, CategoricalDistribution) else value
                    )
        return values

    def _delete_weights(self, number: int) -> None:
        for name in ("checkpoints", "model", "adapter"):
            shutil.rmtree(self._trial_folder(number) / name, ignore_errors=True)


def _failed(trial: Trial, why: str) -> tuple[None, TrialState]:
    trial.set_user_attr("why", why)
    return None, TrialState.FAIL


def outcome(trial: FrozenTrial, metric: str) -> str:
    """The result of a finished trial in a few words."""
    if trial.state == TrialState.PRUNED:
        return f"stopped at evaluation {trial.last_step}, {metric} {trial.value:.4f}"
    if trial.state == TrialState.FAIL:
        return f"failed: {trial.user_attrs.get('why', '')}"
    same = f", as trial {trial.user_attrs['same_as']}" if "same_as" in trial.user_attrs else ""
    return f"{metric} {trial.value:.4f}{same}"


def train_or_resume(recipe: Recipe, folder: Path, *callbacks: TrainerCallback) -> Run:
    """The finished run of this recipe in this folder: it is resumed if it was begun; a run of another is
    replaced.
    """
    file = folder / "recipe.yaml"
    resume = file.is_file() and file.read_text(encoding="utf-8") == to_yaml(recipe)
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    with quiet_logger("bertkit"):
        run = train(recipe, folder, resume=resume, callbacks=callbacks)
    if not run.finished:
        raise KeyboardInterrupt
    return run


def stored_study(file: Path) -> Study:
    """The study in this journal."""
    return load_study(study_name=NAME, storage=JournalStorage(JournalFileBackend(str(file))))


def open_study(file: Path, facts: Record) -> tuple[Study, JournalStorage]:
    """The study in this journal, created if there is none. Raises UserError if it is damaged or its facts
    differ.
    """
    # A killed process leaves its lock, and half a line.
    for lock in file.parent.glob(f"{file.name}.lock*"):
        lock.unlink()
    if file.is_file():
        os.truncate(file, file.read_bytes().rfind(b"\n") + 1)
    damage = (ValueError, LookupError, TypeError, AttributeError, AssertionError)  # optuna asserts its codes
    with translated(damage, UserError, file, "is damaged", "Use another folder."):
        storage = JournalStorage(JournalFileBackend(str(file)))
        # create_study(load_if_exists=True) would write to the journal of an existing study.
        if NAME in [stored.study_name for stored in storage.get_all_studies()]:
            study = load_study(study_name=NAME, storage=storage, pruner=MedianPruner())
        else:
            study = create_study(
                study_name=NAME, storage=storage, pruner=MedianPruner(), direction="maximize"
            )
    before = study.user_attrs
    for name, value in facts.items():
        if before.get(name, value) != value:
            raise UserError(
                file.parent, f"is a sweep with another {name}", f"Restore the {name}, or use another folder."
            )
        if name not in before:
            study.set_user_attr(name, value)
    return study, storage
