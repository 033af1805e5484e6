"""Pictures of a report as SVG, drawn by matplotlib, in named colours of the page, which its theme can change.

No text of the data is drawn: matplotlib would read `$` in it as mathematics, and its fonts lack most scripts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from bertkit.evaluation import calibration

Points = Sequence[tuple[float, float]]

# placeholders, which `to_svg` replaces by names of the page's colours
INK = "#010101"
FAINT = "#020202"
SERIES = ("#030301", "#030302", "#030303", "#030304", "#030305", "#030306")
NAMES = {INK: "ink", FAINT: "faint", **{color: f"s{place}" for place, color in enumerate(SERIES, 1)}}
DASHES = ("-", "--", ":", "-.")
MARKS = "os^Dv*"
MIN_POINTS = 3  # of a curve; with fewer, a sentence gives the values
STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label may have dollars
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), FAINT),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "legend.fontsize": 9.5,
}


class Picture(NamedTuple):
    """An SVG element, a sentence with the same content for those who do not see it, and how to read it."""

    title: str
    svg: str
    alt: str
    note: str = ""


@mpl.rc_context(STYLE)
def curves(
    logged: str,
    lines: Mapping[str, Points],
    marked: Mapping[str, float] = {},
    baselines: Mapping[str, float] = {},
) -> Picture | None:
    """A logged number over steps; None where no line has three points.

    lines: name -> (step, value); marked: name -> the step of the chosen checkpoint; baselines: name -> value.
    """
    title = "training loss" if logged == "loss" else f"{logged.removeprefix('eval_')} on validation"
    lines = {name: points for name, points in lines.items() if points}
    if max(map(len, lines.values()), default=0) < MIN_POINTS:
        return None
    figure, axes = _axes("step", title)
    for place, (name, points) in enumerate(lines.items()):
        steps, values = zip(*points, strict=True)
        color = SERIES[place % len(SERIES)]
        dash = DASHES[place % len(DASHES)]
        few = MARKS[place % len(MARKS)] if len(points) < 15 else ""
        axes.plot(steps, values, dash, color=color, marker=few, markersize=3.5, linewidth=1.6, label=name)
        best = marked.get(name)
        chosen = [value for step, value in points if step == best]
        axes.plot([best] * len(chosen), chosen, "o", color=color, markersize=9, fillstyle="none")
    for place, (name, value) in enumerate(baselines.items(), 1):
        axes.axhline(value, color=FAINT, linestyle=(0, (2 * place - 1, 2)), label=f"{name} {value:.3f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    drawn = [value for points in lines.values() for _, value in points]
    cut = _limit(axes, [*drawn, *baselines.values()], score="loss" not in logged)
    if len(lines) + len(baselines) > 1:
        _legend(figure)
    ends = [
        f"{name} from {points[0][1]:.3g} to {points[-1][1]:.3g}" for name, points in list(lines.items())[:8]
    ]
    ends += [f"{name} {value:.3g}" for name, value in baselines.items()]
    note = ["Ring: the selected checkpoint."] * bool(marked) + ["The axis does not start at 0."] * cut
    return Picture(title, to_svg(figure, title), f"{title} over steps: {'; '.join(ends)}.", " ".join(note))


def _limit(axes: Any, values: Sequence[float], score: bool) -> bool:
    """Limit the axis of these values so that noise does not look like progress; returns whether 0 is cut off.

    A score from -1 to 1 gets a range in whole tenths, at least two of them; other values start at 0, unless
    they are far from it.
    """
    low = min(values)
    high = max(values)
    if score and low >= -1 and high <= 1:
        tenths = np.floor(low * 10) / 10, np.ceil(high * 10) / 10
        bottom = max(min(tenths[0], tenths[1] - 0.2), 0 if low >= 0 else -1)
        axes.set_ylim(bottom - 0.01, max(tenths[1], bottom + 0.2) + 0.01)
        return bool(bottom > 0)
    if 0 <= low <= high / 2:
        axes.set_ylim(bottom=0)
    return low > high / 2


@mpl.rc_context(STYLE)
def scores(
    metric: str, ours: Mapping[str, Mapping[str, Any]], others: Mapping[str, float], band: Any = None
) -> Picture | None:
    """The metric in scores by name, with its intervals, above that of baselines; None if it is not defined in
    all.

    band: lowest and highest score that the recipe expects.
    """
    values = {name: result["metrics"][metric] for name, result in ours.items()} | {**others}
    if None in values.values():
        return None
    lines = len(values)
    figure, axes = _axes(metric, height=0.75 + 0.3 * lines)
    if isinstance(band, list):
        axes.axvspan(band[0], band[1], color=SERIES[2], alpha=0.25, linewidth=0)
    for place, (name, result) in enumerate(ours.items()):
        if bounds := result["intervals"].get(metric):
            axes.plot(bounds, [place] * 2, color=SERIES[0], linewidth=2, marker="|", markersize=8)
        axes.plot([values[name]], [place], "o", color=SERIES[0], markersize=7)
    axes.plot(list(others.values()), range(len(ours), lines), "D", color=SERIES[1], markersize=6)
    axes.set_yticks(range(lines), list(values))
    axes.set_ylim(lines - 0.5, -0.5)  # the first at the top
    axes.grid(axis="x", color=FAINT, alpha=0.3, linewidth=0.6)
    axes.locator_params(axis="x", nbins=5)  # labels of four decimals do not touch
    alt = f"{metric}: {'; '.join(f'{name} {value:.3f}' for name, value in values.items())}."
    note = "Dots: scores with 95 % intervals" + ("; diamonds: baselines." if others else ".")
    note += " Band: the range expected by the recipe." if isinstance(band, list) else ""
    return Picture(f"selection metric: {metric}", to_svg(figure, metric), alt, note)


@mpl.rc_context(STYLE)
def reliability(decisions: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Picture:
    """Accuracy by confidence (Guo et al. 2017). decisions: as those of `Graded`."""
    figure, axes = _axes("confidence", "accuracy", height=3.9)
    errors = []
    least = 1.0
    sizes = set[int]()
    for name, pair in decisions.items():
        error = calibration.calibration_error([pair])
        points = calibration.reliability(*pair)
        bins: Any = calibration.Bin._make(map(np.array, zip(*points, strict=True)))
        errors.append(f"{name} calibration the expected calibration error is {error:.3f}")
        style = (
            {"fmt": "-o", "color": SERIES[0]}
            if name == "after"
            else {"fmt": "--s", "color": SERIES[1], "mfc": "none"}
        )
        reach = np.abs(bins.interval.T - bins.accuracy)
        axes.errorbar(
            bins.confidence,
            bins.accuracy,
            reach,
            markersize=5,
            linewidth=1.4,
            elinewidth=1,
            label=f"{name} calibration, ECE {error:.3f}",
            **style,
        )
        least = min(least, bins.confidence.min(), bins.interval.min())
        sizes.update(point.decisions for point in points)
    ends = (np.floor(least * 10) / 10 - 0.02, 1.02)
    axes.plot(ends, ends, ":", color=FAINT, linewidth=1, zorder=0)
    axes.set(xlim=ends, ylim=ends)
    _legend(figure)
    count = " or ".join(f"{size:,}" for size in sorted(sizes))
    note = (
        "On the dotted line, predictions with confidence 0.8 are correct eight times in ten. Each mark is "
        f"{count} decisions of similar confidence, with the 95 % Wilson interval of their accuracy. ECE, as "
        f"in results.json: the mean distance from that line over {calibration.BINS} bins of equal width."
    )
    alt = f"Reliability diagram: {'; '.join(errors)}."
    return Picture("Reliability", to_svg(figure, "reliability"), alt, note)


def _axes(across: str, along: str = "", height: float = 2.9) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.6, height), layout="constrained")
    return figure, figure.add_subplot(xlabel=across, ylabel=along)


def _legend(figure: Figure) -> None:
    """What the lines are, above the axes, where it hides none."""
    figure.legend(loc="outside upper left", ncols=3)


def to_svg(figure: Figure, salt: str) -> str:
    """The figure's SVG element, its colours by name, without ids that several pictures would share."""
    file = io.StringIO()
    salted: Any = {"svg.hashsalt": salt}
    with mpl.rc_context(salted):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = "<svg" + file.getvalue().partition("<svg")[2]
    unused = r'<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>|(?<=<g) id="[^"]*"'
    text = re.sub(unused, "", text, flags=re.DOTALL)
    text = re.sub(r' (width|height)="[^"]*pt"', "", text, count=2)  # of the whole picture
    text = text.replace("'DejaVu Sans'", "system-ui, sans-serif")
    return re.sub("|".join(NAMES), lambda match: f"var(--{NAMES[match[0]]})", re.sub(r"\n\s*", "\n", text))
