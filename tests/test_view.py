"""A run in a notebook: its summary, curves, mistakes and rows; the progress of a training."""

import re
import shutil
import sys
from html import escape, unescape
from io import StringIO
from types import SimpleNamespace

import pytest
from matplotlib import pyplot
from small import raises, read_rows

import bertkit
from bertkit.data.schema import Finding
from bertkit.engine.arguments import ENDLESS
from bertkit.engine.callbacks import Progress
from bertkit.engine.clock import Clock
from bertkit.errors import ModelError
from bertkit.report import report_sections, view
from bertkit.report.facts import read_facts
from bertkit.report.mistakes import Mistake, Mistakes, Span, mistakes
from bertkit.report.view import Run


@pytest.fixture(scope="module")
def run(two_seeds, tmp_path_factory):
    return Run(shutil.copytree(two_seeds.folder, tmp_path_factory.mktemp("view") / "run & more"))


def written(run, split):
    return read_rows(run.predictions(split))


def test_rows_and_answers_as_a_frame(run):
    assert isinstance(run, bertkit.Run)
    rows = written(run, "validation")
    frame = run.frame("validation")
    assert len(frame) == len(rows)
    for row, line in zip(rows, frame.to_dict("records"), strict=True):
        flat = {f"answer.scores.{name}": score for name, score in row["answer"]["scores"].items()}
        assert line["text"] == row["text"]
        assert line["location"] == row["location"]
        assert (line["answer.label"], line["answer.score"]) == (
            row["answer"]["label"],
            row["answer"]["score"],
        )
        assert {name: line[name] for name in flat} == flat
    assert run.frame().equals(run.frame(read_facts(run).split))
    raises(
        ModelError, r"has no predictions for 'validaton'; did you mean 'validation'\?", run.frame, "validaton"
    )


def test_a_run_is_named_by_its_folder_as_text_too(run, monkeypatch):
    monkeypatch.setenv("HOME", str(run.folder.parent))
    for folder in (str(run.folder), f"~/{run.folder.name}"):
        named = bertkit.Run(folder)
        assert named == run
        assert named.frame("validation").equals(run.frame("validation"))
        assert named.results == run.results
        assert "accuracy" in named._repr_html_()
    assert ModelError(run, "what").problems[0].where == str(run) == str(run.folder)


def test_mistakes_as_a_frame(run, monkeypatch):
    expected = mistakes(run.facts)
    assert len(expected.every) > 1
    frame = run.mistakes(1)
    first = expected.every[0]
    rows = written(run, run.facts.split)
    assert frame.to_dict("records") == [
        {
            "row": first.row,
            "where": f"{rows[first.row - 1]['id']}, {rows[first.row - 1]['location']}",
            "gold": rows[first.row - 1]["label"],
            "answer": rows[first.row - 1]["answer"]["label"],
            "confidence": rows[first.row - 1]["answer"]["score"],
            "text": rows[first.row - 1]["text"],
        }
    ]
    monkeypatch.setattr("bertkit.report.mistakes.MAX_MISTAKES", 1)  # that a report lists
    assert len(run.mistakes(10**6)) == len(expected.every)


def test_mistakes_in_words_are_read_as_a_sentence(run, monkeypatch):
    parts = (Span("Ann", "missed", "PER"), Span(" lives in "), Span("Oslo", "right", "LOC"), Span(""))
    found = Mistakes(
        "sentences", "confidence", 1, [Mistake(1, "PER Ann", "(none)", 0.5, lines=(("gold", parts),))]
    )
    monkeypatch.setattr(view, "mistakes", lambda facts: found)
    assert run.mistakes()["text"].tolist() == ["Ann lives in Oslo"]


def test_curves_show_what_was_logged(run):
    before = pyplot.get_fignums()  # those that other tests have left open
    figure = run.plot()
    loss, metric = figure.axes
    log = read_rows(run.folder / "metrics.jsonl")
    for axes, name in ((loss, "loss"), (metric, f"eval_{run.facts.headline}")):
        assert [line.get_label() for line in axes.lines] == ["seed 1", "seed 2"]
        for line, seed in zip(axes.lines, (1, 2), strict=True):
            expected = [(each["step"], each[name]) for each in log if each["seed"] == seed and name in each]
            assert len(expected) > 1
            assert list(zip(*line.get_data(), strict=True)) == expected
    assert pyplot.get_fignums() == before


def test_a_notebook_shows_scores_with_intervals_and_baselines(run, monkeypatch):
    monkeypatch.setattr(view, "to_act_on", lambda facts: [Finding("severe", "x < y", "a > b")])
    shown = run._repr_html_()
    results = run.results
    for split, scores in results["splits"].items():
        low, high = scores["intervals"]["accuracy"]
        assert f"<td>{split}</td>" in shown
        assert f"<td>{scores['metrics']['accuracy']:.4f}</td>" in shown
        assert f"<td>{low:.4f} … {high:.4f}</td>" in shown
        for baseline in results["baselines"][split].values():
            assert f"<td>{baseline['accuracy']:.4f}</td>" in shown
    assert "run%20%26%20more/report.html" in shown  # a link, in which % and # would name another file
    assert "run & more" not in shown
    assert escape(report_sections.summary(run.facts)) in shown
    assert "<b>Severe:</b> x &lt; y. a &gt; b</p>" in shown


def test_a_notebook_shows_the_report_as_a_page_of_its_own(run, tmp_path):
    shown = run.report(height=321)._repr_html_()
    (page,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert unescape(page) == (run.folder / "report.html").read_text(encoding="utf-8")
    assert "321px" in shown
    raises(ModelError, "report.html: cannot be read", Run(tmp_path).report)


def test_an_unfinished_run_says_so(tmp_path):
    told = f"<p>The run in <code>{tmp_path}/&lt;run&gt;</code> is not finished.</p>"
    assert Run(tmp_path / "<run>")._repr_html_() == told


class Screen(StringIO):
    """A stream that may be a terminal."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize(("terminal", "notebook"), [(True, False), (False, True), (False, False)])
def test_a_bar_is_shown_where_it_can_be_read(terminal, notebook, monkeypatch, caplog):
    screen = Screen(terminal)
    shell = SimpleNamespace(config={"IPKernelApp": {}} if notebook else {})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys, "stderr", screen)
    progress = Progress("seed 1", "accuracy")
    state = SimpleNamespace(global_step=0, max_steps=8, epoch=0.0, is_world_process_zero=True)
    with caplog.at_level("INFO", logger="bertkit"):
        progress.on_train_begin(None, state, None)
        for step in range(1, 9):
            state.global_step = step
            state.epoch = step / 8
            progress.on_step_end(None, state, None)
            progress.on_log(
                None, state, None, logs={"loss": 1 / step} if step % 4 else {"eval_accuracy": step / 10}
            )
        progress.on_train_end(None, state, None)
    if not terminal and not notebook:
        assert "step/s" not in screen.getvalue()  # what another test left may log there
        assert len(caplog.records) == 8
        return
    assert not caplog.records
    assert "8/8" in screen.getvalue()
    assert "loss=0.1429, accuracy=0.8000" in screen.getvalue().replace("\n", "")
    assert ("step 4/8" in screen.getvalue()) == terminal
    assert "step 3/8" not in screen.getvalue()
    state.is_world_process_zero = False
    other = Progress("seed 1", "accuracy")
    other.on_train_begin(None, state, None)
    assert other.bar is None


@pytest.mark.parametrize("terminal", [True, False])
def test_with_a_budget_the_progress_is_in_seconds(terminal, monkeypatch, caplog):
    monkeypatch.setattr(sys, "stderr", screen := Screen(terminal))
    now = [0.0]
    clock = Clock(60.0, lambda: now[0])
    clock.start(elapsed=6.0)
    progress = Progress("training", "accuracy", clock)
    monkeypatch.setattr("bertkit.engine.callbacks.time.monotonic", lambda: now[0])
    state = SimpleNamespace(global_step=7, max_steps=ENDLESS, epoch=0.5, is_world_process_zero=True)
    with caplog.at_level("INFO", logger="bertkit"):
        progress.on_train_begin(None, state, None)
        for now[0] in (6.0, 60.0):
            progress.on_step_end(None, state, None)
            progress.on_log(None, state, None, logs={"loss": 0.5})
        progress.on_train_end(None, state, None)
    if terminal:
        assert " 10%|" in screen.getvalue()
        assert "100%|" in screen.getvalue()
    else:
        assert [each.message for each in caplog.records] == [
            "training  step 7  epoch 0.50  loss 0.5000  48 s left",
            "training  step 7  epoch 0.50  loss 0.5000  0 s left",
        ]


def test_the_bar_of_a_resumed_training_begins_at_its_step(monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Screen(terminal=True))
    progress = Progress("training", "accuracy")
    state = SimpleNamespace(global_step=6, max_steps=8, epoch=0.75, is_world_process_zero=True)
    progress.on_train_begin(None, state, None)
    assert "6/8" in screen.getvalue()
    assert "| 0/8" not in screen.getvalue()
    progress.on_train_end(None, state, None)
