"""sweep.html: one self-contained page, a pure function of the study and of sweep.json."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from optuna import Study
from optuna.trial import TrialState
from optuna.visualization.matplotlib import plot_parallel_coordinate, plot_param_importances

from bertkit.report.html import library
from bertkit.report.pictures import Picture, to_svg
from bertkit.sweeps.space import brief


def page(study: Study, results: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The page. results: of sweep.json; keys: of the space. Texts from the recipe and the space are escaped."""
    template = library().get_template("sweep.html")
    return template.render(
        results=results,
        pictures=_pictures(study, results["headline"], list(keys)),
        changes={key: brief(value) for key, value in results["changes"].items()},
        trials=_trials(results, keys),
        fresh=_fresh_seeds(results),
        version=version("bertkit"),
        script="",
        script_hash="'none'",
    )


def _trials(results: Mapping[str, Any], keys: Sequence[str]) -> list[list[str]]:
    """A row per trial, best first, stopped and failed ones last."""
    rank = {"complete": 0, "pruned": 1, "fail": 2}
    rows = [
        [str(t["number"]), t["outcome"], *(brief(t["changes"][key]) if key in t["changes"] else "base" for key in keys)]
        for t in sorted(results["trials"], key=lambda t: (rank[t["state"]], -(t["score"] or 0.0), t["number"]))
    ]
    return [["trial", "outcome", *keys], *rows]


def _fresh_seeds(results: Mapping[str, Any]) -> list[list[str]]:
    """A row per fresh seed, a column for the winner and for the base recipe."""
    scores = results["scores"]  # of the winner, and unless that is the base recipe, of the base recipe
    names = [f"trial {results['winner']}", "base recipe"][-len(scores) :]
    rows = zip(results["seeds"], *scores.values(), strict=True)
    return [["seed", *names], *([str(seed), *(f"{score:.4f}" for score in each)] for seed, *each in rows)]


def _pictures(study: Study, metric: str, keys: list[str]) -> list[Picture]:
    complete = [t for t in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) if {*keys} <= {*t.params}]
    varied = [key for key in keys if len({trial.params[key] for trial in complete}) > 1]
    if len({trial.value for trial in complete}) < 2 or not varied:
        return []
    best = max(complete, key=lambda trial: trial.value or 0.0)
    at = ", ".join(f"{key} {brief(best.params[key])}" for key in keys)
    alt = f"Parallel coordinates: the best of {len(complete)} complete trials, {metric} {best.value:.4f}, is at {at}."
    lines = _svg("parallel", lambda: _parallel(study, metric, keys))
    shares = _svg("importance", lambda: plot_param_importances(study, params=varied, target_name=metric))
    note = "PED-ANOVA (Watanabe et al. 2023) over few trials: only a hint."
    return [
        Picture("Trials", lines, alt, "A line is a complete trial; darker is better."),
        Picture("Importance", shares, f"The share of the variation in {metric} that each setting explains.", note),
    ]


def _parallel(study: Study, metric: str, keys: list[str]) -> Any:
    axes = plot_parallel_coordinate(study, params=keys, target_name=metric)
    axes.set_title("")
    for bar in [each for each in axes.figure.axes if each.get_label() == "<colorbar>"]:
        bar.remove()  # it is an image, which the page's content security policy forbids
    # optuna truncates and sorts the names.
    axes.set_xticklabels([metric, *(key.rpartition(".")[2] for key in sorted(keys))])
    return axes


def _svg(salt: str, plot: Callable[[], Any]) -> str:
    """The SVG element of an optuna plot. optuna changes pyplot's global styles; they are restored."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optuna: its plots are experimental, and there are few trials
        pyplot.switch_backend("agg")
        mpl.rcParams.update({"svg.fonttype": "none", "savefig.bbox": "tight"})
        figure = plot().figure
        for axes in figure.axes:
            names = [label.get_text() for label in axes.get_yticklabels()]
            if any("$" in name and "mathdefault" not in name for name in names):  # choices, not powers of ten
                axes.set_yticks(axes.get_yticks(), [name.replace("$", r"\$") for name in names])
        svg = to_svg(figure, salt)
        pyplot.close(figure)
    return svg
