"""Pictures of a report as SVG, drawn by matplotlib, in named colours of the page, which its theme can change.

No text of the data is drawn: matplotlib would read `$` in it as mathematics, and its fonts lack most scripts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Points: TypeAlias = Sequence[tuple[float, float]]

INK, FAINT = "#010101", "#020202"  # placeholders, which `to_svg` replaces by names of the page's colours
SERIES = ("#030301", "#030302", "#030303", "#030304", "#030305", "#030306")
NAMES = {INK: "ink", FAINT: "faint", **{color: f"s{place}" for place, color in enumerate(SERIES, 1)}}
BLUE, GAP = (43, 143, 208, 255), (128, 128, 128, 110)  # of images, which have no names: visible in light and dark
DASHES = ("-", "--", ":", "-.")
MARKS = "os^Dv*"
STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}


@dataclass(frozen=True)
class Picture:
    """An SVG element, a sentence with the same content for those who do not see it, and how to read it."""

    title: str
    svg: str
    alt: str
    note: str = ""


@mpl.rc_context(STYLE)
def curves(title: str, lines: Mapping[str, Points], marked: Mapping[str, float] | None = None) -> Picture | None:
    """Values over steps. lines: name -> (step, value); marked: name -> the step of the chosen checkpoint."""
    lines = {name: points for name, points in lines.items() if points}
    if max(map(len, lines.values()), default=0) < 2:
        return None
    figure, axes = _axes("step", title)
    for place, (name, points) in enumerate(lines.items()):
        steps, values = zip(*points, strict=True)
        color, dash = SERIES[place % len(SERIES)], DASHES[place % len(DASHES)]
        few = MARKS[place % len(MARKS)] if len(points) < 15 else ""
        axes.plot(steps, values, dash, color=color, marker=few, markersize=3.5, linewidth=1.6, label=name)
        best = (marked or {}).get(name)
        chosen = [value for step, value in points if step == best]
        axes.plot([best] * len(chosen), chosen, "o", color=color, markersize=9, fillstyle="none")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(lines) > 1:
        axes.legend(ncols=2)
    ends = [f"{name} from {points[0][1]:.3g} to {points[-1][1]:.3g}" for name, points in list(lines.items())[:8]]
    note = "A ring marks the checkpoint that was selected." if marked else ""
    return Picture(title, to_svg(figure, title), f"{title} over steps: {'; '.join(ends)}.", note)


@mpl.rc_context(STYLE)
def scores(
    metric: str, ours: Mapping[str, tuple[float, Sequence[float] | None]], others: Mapping[str, float], band: Any = None
) -> Picture:
    """Scores with their intervals above those of baselines; band: lowest and highest score that the recipe expects."""
    names = [*ours, *others]
    figure, axes = _axes(metric, height=0.75 + 0.3 * len(names))
    if isinstance(band, list):
        axes.axvspan(band[0], band[1], color=SERIES[2], alpha=0.25, linewidth=0)
    for place, (value, bounds) in enumerate(ours.values()):
        if bounds:
            axes.plot(bounds, [place] * 2, color=SERIES[0], linewidth=2, marker="|", markersize=8)
        axes.plot([value], [place], "o", color=SERIES[0], markersize=7)
    axes.plot(list(others.values()), range(len(ours), len(names)), "D", color=SERIES[1], markersize=6)
    _name_rows(axes, names)
    axes.grid(axis="x", color=FAINT, alpha=0.3, linewidth=0.6)
    axes.locator_params(axis="x", nbins=5)  # labels of four decimals do not touch
    values = [f"{name} {value:.3f}" for name, value in [*((n, v[0]) for n, v in ours.items()), *others.items()]]
    note = "Dots with their 95 % intervals" + ("; diamonds are baselines." if others else ".")
    note += " The band is the range that the recipe expects." if isinstance(band, list) else ""
    return Picture(f"headline: {metric}", to_svg(figure, metric), f"{metric}: {'; '.join(values)}.", note)


@mpl.rc_context(STYLE)
def reliability(bins: Mapping[str, Sequence[Mapping[str, Any]]], errors: Mapping[str, float]) -> Picture:
    """Accuracy by confidence (Guo et al. 2017). bins: `before` or `after` -> as `calibration.reliability` returns."""
    figure, axes = _axes("confidence", "accuracy", height=3.4)
    axes.plot([0, 1], [0, 1], ":", color=FAINT, linewidth=1)
    for name, each in bins.items():
        points = [(one["confidence"], one["accuracy"]) for one in each if one["count"]]
        style = ("-o", SERIES[0]) if name == "after" else ("--s", SERIES[1])
        label = f"{name} calibration, ECE {errors[name]:.3f}"
        axes.plot(*zip(*points, strict=True), style[0], color=style[1], markersize=4, label=label)
    axes.set(xlim=(0, 1.02), ylim=(-0.02, 1.02))
    axes.legend(loc="lower right")
    alt = "; ".join(f"{name} calibration the expected calibration error is {errors[name]:.3f}" for name in bins)
    note = "On the dotted line, answers with confidence 0.8 are right eight times in ten. 15 bins, without empty ones."
    return Picture("Reliability", to_svg(figure, "reliability"), f"Reliability diagram: {alt}.", note)


@mpl.rc_context(STYLE)
def lengths(tokens: Sequence[int], limit: int) -> Picture:
    """A histogram of the texts' token counts, with the limit of a window."""
    figure, axes = _axes("tokens", "texts")
    axes.hist(tokens, bins=min(30, max(tokens) - min(tokens) + 1), color=SERIES[0], alpha=0.8)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if max(tokens) > limit / 2:
        axes.axvline(limit, color=SERIES[1], linestyle="--", linewidth=1.4, label=f"limit, {limit}")
        axes.legend()
    over, median = sum(length > limit for length in tokens), sorted(tokens)[len(tokens) // 2]
    alt = f"Histogram of lengths: {min(tokens)} to {max(tokens)} tokens, median {median}; {over:,} of "
    return Picture("Length", to_svg(figure, "lengths"), f"{alt}{len(tokens):,} texts exceed the limit of {limit}.")


@mpl.rc_context(STYLE)
def scatter(points: Points, across: str, along: str) -> Picture:
    """One dot a row, gold by predicted; of more than 1,500 rows every nth."""
    step = -(-len(points) // 1500)
    gold, given = zip(*points[::step], strict=True)
    figure, axes = _axes(across, along, height=3.4)
    axes.scatter(gold, given, s=14, color=SERIES[0], alpha=0.7, linewidths=0)
    alt = f"Scatter plot of {len(gold):,} rows, {across} from {min(gold):g} to {max(gold):g} against {along} from "
    note = f"Every {step}th row." if step > 1 else ""
    return Picture(
        f"{along} against {across}", to_svg(figure, "scatter"), f"{alt}{min(given):.3g} to {max(given):.3g}.", note
    )


@mpl.rc_context(STYLE)
def bars(title: str, counts: Mapping[str, int], note: str = "") -> Picture:
    """Horizontal bars with their counts."""
    figure, axes = _axes(height=0.5 + 0.32 * len(counts))
    drawn = axes.barh(range(len(counts)), list(counts.values()), color=SERIES[0], alpha=0.8, height=0.7)
    axes.bar_label(drawn, [f"{count:,}" for count in counts.values()], padding=3)
    _name_rows(axes, list(counts))
    axes.margins(x=0.12)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    alt = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return Picture(title, to_svg(figure, title), f"{title}: {alt}.", note)


@mpl.rc_context(STYLE)
def threshold(points: Points, chosen: float) -> Picture:
    """F1 over thresholds of the null answer's log odds."""
    figure, axes = _axes("null threshold, nats", "F1")
    axes.step(*zip(*points, strict=True), where="post", color=SERIES[0], linewidth=1.6)
    axes.axvline(chosen, color=SERIES[1], linestyle="--", linewidth=1.4, label=f"in use, {chosen:.2f}")
    axes.legend()
    at, best = max(points, key=lambda point: point[1])
    alt = f"F1 over null thresholds: at most {best:.3f}, from {at:.2f}; {chosen:.2f} is in use."
    note = "Questions with null odds above the threshold get no answer. It was chosen on validation."
    return Picture("Null threshold", to_svg(figure, "threshold"), alt, note)


@mpl.rc_context(STYLE)
def attention(levels: Any) -> Picture:
    """Attention maps, a row of them for each layer, a column for each head.

    levels: `(layers, heads, tokens, tokens)`, 0 to 255.
    """
    layers, heads, tokens, _ = levels.shape
    cells = np.zeros((layers, heads, tokens + 1, tokens + 1, 4), dtype=np.uint8)
    cells[...] = GAP
    cells[:, :, :-1, :-1] = BLUE
    cells[:, :, :-1, :-1, 3] = np.sqrt(levels / 255) * 255  # weights are small: roots are easier to distinguish
    table = cells.transpose(0, 2, 1, 3, 4).reshape(layers * (tokens + 1), heads * (tokens + 1), 4)
    figure, axes = _axes("head", "layer", height=0.6 + 0.72 * layers, width=0.6 + 0.72 * heads)
    axes.imshow(table, interpolation="none")
    middles = (tokens + 1) * (np.arange(max(layers, heads)) + 0.5) - 0.5
    axes.set_xticks(middles[:heads], range(1, heads + 1))
    axes.set_yticks(middles[:layers], range(1, layers + 1))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    first = levels[:, :, :, 0].mean() / 255
    alt = f"Attention maps of {layers} layers with {heads} heads each, over {tokens} tokens. On average a token "
    note = "In each map, rows are tokens that attend and columns are those attended to; darker is more."
    return Picture(
        "Attention", to_svg(figure, "attention"), f"{alt}gives {first:.0%} of its attention to the first one.", note
    )


def _axes(across: str = "", along: str = "", height: float = 2.9, width: float = 4.6) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(along)
    return figure, axes


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    """One row for each name, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def to_svg(figure: Figure, salt: str) -> str:
    """The figure's SVG element, its colours by name, without ids that several pictures would share."""
    file = io.StringIO()
    salted: Any = {"svg.hashsalt": salt}
    with mpl.rc_context(salted):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r'(<svg [^>]*?)width="[^"]*"', r"\1", re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", text, count=1))
    text = text.replace("'DejaVu Sans'", "system-ui, sans-serif")
    return re.sub("|".join(NAMES), lambda found: f"var(--{NAMES[found[0]]})", re.sub(r"\n\s*", "\n", text))
