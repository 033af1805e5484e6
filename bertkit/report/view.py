"""A run as a person looks at it in Python: its summary, curves, mistakes, and rows with answers as a
table.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bertkit import run
from bertkit.errors import ModelError, translated
from bertkit.explanations.explain import explain_frame
from bertkit.files import lines_of
from bertkit.report.facts import Facts, damage_as_error, read_facts
from bertkit.report.html import isolated
from bertkit.report.mistakes import mistakes
from bertkit.report.report_sections import points_of, score_rows, summary, to_act_on
from bertkit.text import printable
from bertkit.validation import did_you_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class Page:
    """A page of its own within a notebook, `height` pixels high."""

    text: str
    height: int

    def _repr_html_(self) -> str:
        style = f"width: 100%; height: {self.height}px; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.text)}"></iframe>'


class Run(run.Run):
    """A run folder. In a notebook it shows its scores, with intervals and baselines.

    >>> run = bertkit.Run("runs/quickstart")
    >>> list(run.frame("test").columns)[-1].startswith("answer.")
    True
    """

    @property
    def facts(self) -> Facts:
        """The contents of the folder. Raises ModelError before the run is finished, or if a file is
        damaged.
        """
        with damage_as_error(self.folder):
            return read_facts(self.folder)

    def frame(self, split: str | None = None) -> DataFrame:
        """The rows of a split, with the columns of their answers: `answer.label`, `answer.scores.positive`,
        ….

        split: one that was not trained on; None: the one that the report is about. Raises ModelError.
        """
        import pandas as pd

        if split is None:
            return pd.json_normalize([*self.facts.rows])
        files = {file.stem: file for file in sorted((self.folder / "predictions").glob("*.jsonl"))}
        if split not in files:
            raise ModelError(
                self.folder,
                f"has no predictions for {split!r}{did_you_mean(split, files)}",
                f"It has them for: {', '.join(files) or 'no split'}.",
            )
        return pd.json_normalize([*lines_of(files[split])])

    def mistakes(self, n: int = 10) -> DataFrame:
        """The first `n` mistakes of RUN/mistakes.csv: the most confident, or those that are farthest off."""
        import pandas as pd

        wrong = mistakes(self.facts)
        names = ["row", "where", "gold", "answer", wrong.measure if wrong else "measure", "text"]
        cells = []
        for mistake in wrong.every[:n] if wrong else []:
            line = "".join(part.text for _, parts in mistake.lines[:1] for part in parts)
            text = " | ".join(mistake.texts or [line])
            cells.append((mistake.row, mistake.where, mistake.gold, mistake.answer, mistake.measure, text))
        return pd.DataFrame(cells, columns=names)

    def explain(self, rows: Any) -> Any:
        """Which words led to the answers for these texts, rows or frame: a table; see `explain_frame`."""
        return explain_frame(self.load(), rows)

    def plot(self) -> Figure:
        """The training loss and the headline metric on validation over steps, a line per seed."""
        from matplotlib import pyplot

        facts = self.facts
        figure, axes = pyplot.subplots(ncols=2, figsize=(9, 3), layout="constrained")
        logged = {"training loss": "loss", f"{facts.headline} on validation": f"eval_{facts.headline}"}
        for axis, (title, name) in zip(axes, logged.items(), strict=True):
            for outcome in facts.results["seeds"]:
                seed = outcome["seed"]
                points = points_of(facts, name, seed)
                axis.plot([x for x, _ in points], [y for _, y in points], marker=".", label=f"seed {seed}")
            axis.set(title=title, xlabel="step")
        axes[1].legend()
        pyplot.close(figure)  # a notebook shows what a cell returns; an open figure would be shown twice
        return figure

    def report(self, height: int = 600) -> Page:
        """RUN/report.html, which a notebook shows in `height` pixels. Raises ModelError without it."""
        file = self.folder / "report.html"
        with translated(OSError, ModelError, file, "cannot be read", f"bertkit report {self.folder}"):
            return Page(file.read_text(encoding="utf-8"), height)

    def _repr_html_(self) -> str:
        if not self.finished:
            return f"<p>The run in <code>{escape(str(self.folder))}</code> is not finished.</p>"
        if several := self.tasks:
            return "\n".join(f"<h4>{escape(name)}</h4>\n{run._repr_html_()}" for name, run in several.items())
        import pandas as pd

        header, *rows = score_rows(facts := self.facts)
        parts = [
            f"<p>{isolated(summary(facts))}</p>",
            pd.DataFrame(rows, columns=header).to_html(index=False, border=0),
        ]
        parts += [
            f"<p><b>{finding.title}:</b> {isolated(finding.what)}. {isolated(finding.fix)}</p>"
            for finding in to_act_on(facts)
        ]
        report = self.folder / "report.html"
        if report.is_file():
            parts.append(f'<p><a href="{quote(report.as_posix())}" target="_blank">Report</a></p>')
        return printable("\n".join(parts))
