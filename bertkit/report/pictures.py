"""Pictures of a report as SVG, drawn by matplotlib. Colours are names of the page's, so that a theme can change them.

No text of the data is ever drawn: matplotlib would read `$` in it as mathematics, and fonts lack most scripts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Points: TypeAlias = Sequence[tuple[float, float]]

INK, FAINT = "#010101", "#020202"  # written as colours, read as names: see `_svg`
SERIES = ("#030301", "#030302", "#030303", "#030304", "#030305", "#030306")
NAMES = {INK: "ink", FAINT: "faint", **{color: f"s{place}" for place, color in enumerate(SERIES, 1)}}
BLUE, GAP = (43, 143, 208, 255), (128, 128, 128, 110)  # of images, which know no names: seen in light and dark
DASHES = ("-", "--", ":", "-.")
MARKS = "os^Dv*"


@dataclass(frozen=True)
class Picture:
    """An SVG element, what it says in a sentence for those who do not see it, and how to read it."""

    title: str
    svg: str
    alt: str
    note: str = ""


def curves(title: str, lines: Mapping[str, Points], marked: Mapping[str, float] | None = None) -> Picture | None:
    """Values over steps. lines: name -> (step, value); marked: name -> the step of the chosen checkpoint."""
    lines = {name: points for name, points in lines.items() if points}
    if max(map(len, lines.values()), default=0) < 2:
        return None
    with _style():
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
            axes.legend(fontsize=9.5, ncols=2)
        ends = [f"{name} from {points[0][1]:.3g} to {points[-1][1]:.3g}" for name, points in list(lines.items())[:8]]
        note = "A ring is the checkpoint that was kept." if marked else ""
        return Picture(title, _svg(figure, title), f"{title} over steps: {'; '.join(ends)}.", note)


def against(
    metric: str, ours: Mapping[str, tuple[float, Sequence[float] | None]], others: Mapping[str, float], band: Any = None
) -> Picture:
    """Scores with their intervals above those of simple models; band: the recipe's lowest and highest expectation."""
    names = [*ours, *others]
    with _style():
        figure, axes = _axes(metric, "", height=0.75 + 0.3 * len(names))
        if isinstance(band, list):
            axes.axvspan(band[0], band[1], color=SERIES[2], alpha=0.25, linewidth=0)
        for place, (value, bounds) in enumerate(ours.values()):
            if bounds:
                axes.plot(bounds, [place] * 2, color=SERIES[0], linewidth=2, marker="|", markersize=8)
            axes.plot([value], [place], "o", color=SERIES[0], markersize=7)
        for place, value in enumerate(others.values(), len(ours)):
            axes.plot([value], [place], "D", color=SERIES[1], markersize=6)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(axis="x", color=FAINT, alpha=0.3, linewidth=0.6)
        axes.locator_params(axis="x", nbins=5)  # labels of four decimals do not touch
        values = [f"{name} {value:.3f}" for name, value in [*((n, v[0]) for n, v in ours.items()), *others.items()]]
        note = "Dots with their 95 % intervals" + ("; diamonds are simple models." if others else ".")
        note += " The band is what the recipe expects." if isinstance(band, list) else ""
        return Picture(f"headline: {metric}", _svg(figure, metric), f"{metric}: {'; '.join(values)}.", note)


def reliability(bins: Mapping[str, Sequence[Mapping[str, Any]]], errors: Mapping[str, float]) -> Picture:
    """Accuracy against confidence (Guo et al. 2017). bins: `before` or `after` -> as `calibration.reliability` says."""
    with _style():
        figure, axes = _axes("confidence", "share that is right", height=3.4)
        axes.plot([0, 1], [0, 1], ":", color=FAINT, linewidth=1)
        for name, own in bins.items():
            full = [each for each in own if each["count"]]
            after = name == "after"
            axes.plot(
                [each["confidence"] for each in full],
                [each["accuracy"] for each in full],
                DASHES[not after],
                color=SERIES[0 if after else 1],
                marker="o" if after else "s",
                markersize=4,
                label=f"{name} calibration, ECE {errors[name]:.3f}",
            )
        axes.set(xlim=(0, 1.02), ylim=(-0.02, 1.02))
        axes.legend(fontsize=9.5, loc="lower right")
        said = "; ".join(f"{name} calibration the expected calibration error is {errors[name]:.3f}" for name in bins)
        note = "On the dotted line a confidence of 0.8 is right eight times in ten. 15 bins; empty ones are left out."
        return Picture("Reliability", _svg(figure, "reliability"), f"Reliability diagram: {said}.", note)


def lengths(pieces: Sequence[int], limit: int) -> Picture:
    """A histogram of the texts' word pieces, with the limit of a window."""
    with _style():
        figure, axes = _axes("word pieces", "texts")
        axes.hist(pieces, bins=min(30, max(pieces) - min(pieces) + 1), color=SERIES[0], alpha=0.8)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        over = sum(length > limit for length in pieces)
        if max(pieces) > limit / 2:
            axes.axvline(limit, color=SERIES[1], linestyle="--", linewidth=1.4, label=f"limit, {limit}")
            axes.legend(fontsize=9.5)
        middle = sorted(pieces)[len(pieces) // 2]
        alt = f"Histogram of lengths: {min(pieces)} to {max(pieces)} word pieces, median {middle}; {over:,} of "
        alt += f"{len(pieces):,} texts are over the limit of {limit}."
        return Picture("Length", _svg(figure, "lengths"), alt)


def scatter(points: Points, across: str, along: str) -> Picture:
    """One dot a row, gold against predicted; of more than 1,500 rows every so many."""
    step = -(-len(points) // 1500)
    golds, given = zip(*points[::step], strict=True)
    with _style():
        figure, axes = _axes(across, along, height=3.4)
        axes.scatter(golds, given, s=14, color=SERIES[0], alpha=0.7, linewidths=0)
        alt = f"Scatter of {len(golds):,} rows, {across} from {min(golds):g} to {max(golds):g} against {along} from "
        alt += f"{min(given):.3g} to {max(given):.3g}."
        note = f"Every {step}th row." if step > 1 else ""
        return Picture(f"{along} against {across}", _svg(figure, "scatter"), alt, note)


def bars(title: str, counts: Mapping[str, int], note: str = "") -> Picture:
    """Horizontal bars with their counts."""
    with _style():
        figure, axes = _axes("", "", height=0.5 + 0.32 * len(counts))
        drawn = axes.barh(range(len(counts)), list(counts.values()), color=SERIES[0], alpha=0.8, height=0.7)
        axes.bar_label(drawn, [f"{count:,}" for count in counts.values()], padding=3)
        axes.set_yticks(range(len(counts)), list(counts))
        axes.set_ylim(len(counts) - 0.5, -0.5)
        axes.margins(x=0.12)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        said = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        return Picture(title, _svg(figure, title), f"{title}: {said}.", note)


def threshold(points: Points, chosen: float) -> Picture:
    """F1 over thresholds of the null answer's log odds."""
    with _style():
        figure, axes = _axes("null threshold, nats", "F1")
        axes.step([x for x, _ in points], [y for _, y in points], where="post", color=SERIES[0], linewidth=1.6)
        axes.axvline(chosen, color=SERIES[1], linestyle="--", linewidth=1.4, label=f"in use, {chosen:.2f}")
        axes.legend(fontsize=9.5)
        at, best = max(points, key=lambda point: point[1])
        alt = f"F1 over null thresholds: at best {best:.3f} from {at:.2f}; {chosen:.2f} is in use."
        note = "Below the threshold a question is answered, above it there is no answer. It was chosen on validation."
        return Picture("Null threshold", _svg(figure, "threshold"), alt, note)


def attention(levels: Any) -> Picture:
    """Attention maps, a row of them a layer, a column a head. levels: `(layers, heads, pieces, pieces)`, 0 to 255."""
    layers, heads, pieces, _ = levels.shape
    cells = np.zeros((layers, heads, pieces + 1, pieces + 1, 4), dtype=np.uint8)
    cells[...] = GAP
    cells[:, :, :-1, :-1] = BLUE
    cells[:, :, :-1, :-1, 3] = np.sqrt(levels / 255) * 255  # weights are small: their roots are told apart
    table = cells.transpose(0, 2, 1, 3, 4).reshape(layers * (pieces + 1), heads * (pieces + 1), 4)
    with _style():
        figure, axes = _axes("head", "layer", height=0.6 + 0.72 * layers, width=0.6 + 0.72 * heads)
        axes.imshow(table, interpolation="none")
        middles = (pieces + 1) * (np.arange(max(layers, heads)) + 0.5) - 0.5
        axes.set_xticks(middles[:heads], range(1, heads + 1))
        axes.set_yticks(middles[:layers], range(1, layers + 1))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        first = levels[:, :, :, 0].mean() / 255
        alt = (
            f"Attention maps of {layers} layers with {heads} heads each, over {pieces} word pieces. On average a piece "
        )
        alt += f"gives {first:.0%} of its attention to the first one."
        note = "In each map a row is a word piece that looks, a column one that is looked at; the stronger, the more."
        return Picture("Attention", _svg(figure, "attention"), alt, note)


def _style() -> AbstractContextManager[None]:
    settings: Any = {
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
    }
    return mpl.rc_context(settings)


def _axes(across: str, along: str, height: float = 2.9, width: float = 4.6) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(along)
    return figure, axes


def _svg(figure: Figure, salt: str) -> str:
    """The figure's SVG element alone, its colours by name, without the ids that several pictures would share."""
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
