"""sweep.html: one self-contained page, a pure function of the study and of sweep.json."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from statistics import variance
from typing import Any

from optuna import Study
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from bertkit.report import pictures
from bertkit.report.html import render
from bertkit.report.pictures import Picture, Tried
from bertkit.sweeps.space import brief, decoded

RANK = {"complete": 0, "pruned": 1, "fail": 2}


def page(study: Study, results: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The page. results: of sweep.json; keys: of the space. Texts from the recipe and the space are escaped."""
    noise = noise_of([*results["scores"].values()])
    return render(
        "sweep.html",
        results=results,
        pictures=list(_pictures(study, results, keys, noise)),
        changes={key: brief(value) for key, value in results["changes"].items()},
        states={name: sum(t["state"] == name for t in results["trials"]) for name in RANK},
        trials=_trials(results, keys),
        fresh=_fresh_seeds(results),
        noise=noise,
    )


def noise_of(scores: Sequence[Sequence[float]]) -> float | None:
    """How far two runs of the same settings are apart by luck, at most in 95 of 100 cases; None if it is unknown.

    scores: for each of some settings, a score per seed; their variances are pooled.
    """
    from scipy.stats import t

    several = [each for each in scores if len(each) > 1]
    if not several:
        return None
    freedom = [len(each) - 1 for each in several]
    pooled = sum(n * variance(each) for n, each in zip(freedom, several, strict=True)) / sum(freedom)
    return float(t.ppf(0.975, sum(freedom)) * sqrt(2 * pooled))


def _trials(results: Mapping[str, Any], keys: Sequence[str]) -> list[list[str]]:
    """A row per trial, best first, stopped and failed ones last."""
    best = max(t["score"] for t in results["trials"] if t["state"] == "complete")
    rows = []
    for t in sorted(results["trials"], key=lambda t: (RANK[t["state"]], -(t["score"] or 0.0), t["number"])):
        behind = f"{t['score'] - best:+.4f}" if t["state"] == "complete" and t["score"] < best else ""
        values = (brief(t["changes"][key]) if key in t["changes"] else "base" for key in keys)
        rows.append([str(t["number"]), t["outcome"], behind, *values])
    return [["trial", "outcome", "difference to the best", *keys], *rows]


def _fresh_seeds(results: Mapping[str, Any]) -> list[list[str]]:
    """A row per fresh seed, a column for the winner and for the base recipe."""
    scores = results["scores"]  # of the winner, and unless that is the base recipe, of the base recipe
    names = [f"trial {results['winner']}", "base recipe"][-len(scores) :]
    rows = zip(results["seeds"], *scores.values(), strict=True)
    return [["seed", *names], *([str(seed), *(f"{score:.4f}" for score in each)] for seed, *each in rows)]


def _pictures(study: Study, results: Mapping[str, Any], keys: Sequence[str], noise: float | None) -> Iterator[Picture]:
    """The scores over each setting that varied, and how much of them each setting explains."""
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    scored = [t for t in study.get_trials(deepcopy=False, states=states) if t.value is not None]
    trained = [t for t in scored if "same_as" not in t.user_attrs]
    for key in keys:
        own = [t for t in trained if key in t.params]
        if len({t.params[key] for t in own}) < 2:
            continue
        choices = getattr(own[0].distributions[key], "choices", ())
        if choices:  # in the order of the space
            own.sort(key=lambda t: choices.index(t.params[key]))
        tried = [Tried(t.number, _value(t, key), t.value or 0.0, t.state == TrialState.COMPLETE) for t in own]
        log = getattr(own[0].distributions[key], "log", False)
        yield pictures.setting(key, results["headline"], tried, results["winner"], log, noise)
    complete = [t for t in scored if t.state == TrialState.COMPLETE and {*keys} <= {*t.params}]
    varied = [key for key in keys if len({t.params[key] for t in complete}) > 1]
    if varied and len({t.value for t in complete}) > 1:
        # optuna warns that the evaluator is experimental, and of few trials.
        with warnings.catch_warnings(action="ignore"):
            shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=varied)
        percent = {key.rpartition(".")[2]: round(100 * share) for key, share in shares.items()}
        title = f"Importance: percent of the variation in {results['headline']} that each setting explains"
        yield pictures.bars(title, percent, "PED-ANOVA (Watanabe et al. 2023) over few trials: only a hint.")


def _value(trial: FrozenTrial, key: str) -> Any:
    """The setting's number, or its choice in words."""
    value = trial.params[key]
    return brief(decoded(value)) if isinstance(value, str) else value
