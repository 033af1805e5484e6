"""sweep.html: one self-contained page, a pure function of the study and of sweep.json."""

from __future__ import annotations

import io
import re
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
from bertkit.report.pictures import Picture
from bertkit.sweeps.space import brief


def page(study: Study, results: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The page. results: of sweep.json; keys: of the space. What comes from recipe or space is escaped."""
    return (
        library()
        .get_template("sweep.html")
        .render(
            results=results,
            pictures=_pictures(study, results["headline"], list(keys)),
            changes={key: brief(value) for key, value in results["changes"].items()},
            trials=_trials(results, keys),
            fresh=_fresh(results),
            version=version("bertkit"),
            script="",
            script_hash="'none'",
        )
    )


def _trials(results: Mapping[str, Any], keys: Sequence[str]) -> list[list[str]]:
    """A line for each trial, the best first, stopped and failed ones last."""
    complete = {"complete": 0, "pruned": 1, "fail": 2}
    ordered = sorted(results["trials"], key=lambda t: (complete[t["state"]], -(t["score"] or 0.0), t["number"]))
    own = "as it is"
    rows = [
        [str(t["number"]), t["outcome"], *(brief(t["changes"][key]) if key in t["changes"] else own for key in keys)]
        for t in ordered
    ]
    return [["trial", "how it ended", *keys], *rows]


def _fresh(results: Mapping[str, Any]) -> list[list[str]]:
    """A line for each fresh seed, a column for the winner and for the recipe as it is."""
    scores = results["scores"]
    columns = [scores["best"], *([scores["defaults"]] if "defaults" in scores else [])]
    names = [f"trial {results['winner']}", "the recipe as it is"] if len(columns) > 1 else ["the recipe as it is"]
    rows = zip(results["seeds"], *columns, strict=True)
    return [["seed", *names], *([str(seed), *(f"{score:.4f}" for score in each)] for seed, *each in rows)]


def _pictures(study: Study, headline: str, keys: list[str]) -> list[Picture]:
    complete = [
        t for t in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) if set(keys) <= set(t.params)
    ]
    varied = [key for key in keys if len({trial.params[key] for trial in complete}) > 1]
    if len({trial.value for trial in complete}) < 2 or not varied:
        return []
    best = max(complete, key=lambda trial: trial.value or 0.0)
    at = ", ".join(f"{key} {brief(best.params[key])}" for key in keys)
    said = f"The best of {len(complete)} finished trials, {headline} {best.value:.4f}, is at {at}."
    lines = _drawn("parallel", lambda: _parallel(study, headline, keys))
    shares = _drawn("importance", lambda: plot_param_importances(study, params=varied, target_name=headline))
    note = "By PED-ANOVA (Watanabe et al. 2023), over few trials: a hint, and no more."
    return [
        Picture(
            "Trials", lines, f"Parallel coordinates: {said}", "A line is a finished trial; the darker, the better."
        ),
        Picture("Importance", shares, f"How much of the differences in {headline} each setting explains.", note),
    ]


def _parallel(study: Study, headline: str, keys: list[str]) -> Any:
    axes = plot_parallel_coordinate(study, params=keys, target_name=headline)
    axes.set_title("")
    for bar in [each for each in axes.figure.axes if each.get_label() == "<colorbar>"]:
        bar.remove()  # it is an image, which the page's own policy forbids
    # optuna cuts names, and sorts them.
    axes.set_xticklabels([headline, *(key.rpartition(".")[2] for key in sorted(keys))])
    return axes


def _drawn(salt: str, plot: Callable[[], Any]) -> str:
    """The SVG element of optuna's picture; its styles are global to pyplot, so they are put back."""
    file = io.StringIO()
    settings: Any = {"svg.hashsalt": salt, "svg.fonttype": "none"}
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optuna: its pictures are experimental; few trials say little
        pyplot.switch_backend("agg")
        mpl.rcParams.update(settings)
        figure = plot().figure
        for axes in figure.axes:
            names = [label.get_text() for label in axes.get_yticklabels()]
            if any("$" in name and "mathdefault" not in name for name in names):  # of choices, not of powers of ten
                axes.set_yticks(axes.get_yticks(), [name.replace("$", r"\$") for name in names])
        figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'(<svg [^>]*?)width="[^"]*"', r"\1", re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", text, count=1))
