"""The report of a run: what it says, its mistakes and verdict, and that nothing of the data gets out of hand
in it.
"""

import json
import re
import shlex
import shutil
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import small
from cases import BY_ID, CASES, DRAWN, Case, every
from finished import finished, report
from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure
from sacrebleu.metrics.chrf import CHRF
from small import copy_of, raises, read_csv, read_rows, refused

from bertkit.audits.audit import Section
from bertkit.audits.audit import page as audit_page
from bertkit.data.schema import Finding, leak
from bertkit.errors import ModelError, UserError
from bertkit.files import read_json
from bertkit.report import comparison, examples, matrices, mistakes, pictures, rankings, report_sections, view
from bertkit.report.card import card, write_card
from bertkit.report.examples import write_explanations
from bertkit.report.facts import read_facts
from bertkit.report.html import isolated, library, page_of, render, write_mistakes, write_report
from bertkit.report.score_tables import after_training, number, selection
from bertkit.report.verdict import BASELINES, Verdict, best_baseline, score_findings, verdict
from bertkit.run import Run
from bertkit.tasks import get_task
from bertkit.training.publish import write_reports

EVIL = "<script>alert('bad')</script> & <img src=x onerror=alert(1)> $x_1$ 'good'"
VOID = {"meta", "input", "img", "br"}
IDS = (
    "single-label multi-label regression qa-windows-or-none similarity-mse similarity-labels "
    "similarity-in-batch retrieval ner-crf-windows-bioes ranking-graded-windows mlm-nsp"
).split()


@pytest.fixture(scope="module")
def facts(two_seeds):
    return read_facts(two_seeds.folder)


@pytest.fixture
def copy(two_seeds, tmp_path):
    """A copy of the run, to be changed."""
    return copy_of(two_seeds, tmp_path / "copy").folder


class Page(HTMLParser):
    """The text of a page, its elements, and its tags that are not closed, or not where they should be.

    plain: its texts whose direction is not chosen by what they say.
    """

    def __init__(self, page):
        super().__init__()
        self.open = []
        self.wrong = []
        self.words = []
        self.plain = []
        self.elements = []
        self.isolates = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open += [] if tag in VOID else [tag]
        self.isolates += [] if tag in VOID else [tag in ("bdi", "title", "pre") or ("dir", "auto") in attrs]

    def handle_endtag(self, tag):
        if tag not in VOID and (self.isolates.pop(), self.open.pop())[1] != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)
            self.plain += [] if any(self.isolates) else [data]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def well_formed(html, beside=r"[\w-]*mistakes\.csv"):
    """The page, after what holds for every report. beside: files that it may link to."""
    page = Page(html)
    assert not page.open
    assert not page.wrong
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert not [
        attrs for tag, attrs in page.elements if {"src", "onerror", "onload"} & set(attrs) or tag == "link"
    ]
    links = {value for _, attrs in page.elements for key, value in attrs.items() if key.endswith("href")}
    inside = {str(link) for link in links if not re.fullmatch(beside, str(link))}
    assert all(link.startswith("#") for link in inside)
    assert "url(" not in re.sub(r"url\(#\w+\)", "", html)
    for tag, attrs in page.elements:
        assert attrs.get("role") != "img" or attrs.get("aria-label")
        assert tag != "svg" or not {"width", "height"} & set(attrs)
    known = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert {link.removeprefix("#") for link in inside} <= set(known)
    assert len(html.encode()) < 3_000_000
    return page


# --- every task


@every([case for case in [*CASES, *DRAWN] if case.id in IDS])
def test_every_task_has_a_report(case, tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "EXAMPLES", 1)
    folder = finished(case, tiny_encoder, tmp_path / "run").folder
    write_explanations(folder)
    path = write_report(folder)
    assert path == folder / "report.html"
    page = well_formed(path.read_text())
    results = read_json(folder / "results.json")
    scores = results["splits"]["validation"]
    assert (
        f"{results['headline']} on validation {number(scores['metrics'][results['headline']])}" in page.text
    )
    assert "something is `odd`" in page.text
    assert str(tiny_encoder.parent) not in path.read_text()
    own = read_facts(folder)
    wrong = mistakes.mistakes(own)
    assert (wrong is None) == (own.task == "pretraining")
    if wrong:
        assert f"{len(wrong.every)} of {wrong.total} {wrong.unit}" in page.text
        assert [each.measure for each in wrong.top] == sorted(
            (each.measure for each in wrong.top), reverse=True
        )
        assert all(any(each.texts) or each.lines for each in wrong.top)
    shown = view.Run(folder)
    assert f"<td>{number(scores['metrics'][own.headline])}</td>" in shown._repr_html_()
    assert len(shown.plot().axes) == 2
    assert (len(shown.frame()), len(shown.mistakes(10**6))) == (
        len(own.rows),
        len(wrong.every) if wrong else 0,
    )
    ece = scores.get("calibration", {})
    if ece and own.options.get("temperature") is not None:
        assert f"decisions of validation, {ece['errors']} of them incorrect." in page.text
    picture = report_sections.reliability(own)
    after = next(
        (ece[name] for name in ("ece_after", "ece", "ece_entities") if ece.get(name) is not None), None
    )
    assert (picture is None) == (after is None)
    if picture:  # the picture is of the same decisions as the number in the results
        assert f"after calibration the expected calibration error is {after:.3f}" in picture.alt
    why = own.explanations["examples"]
    assert ("Explanations" in page.text) == bool(why)
    assert len(why) <= 2
    assert all(f"{report_sections.KINDS[each['kind']]}, row {each['row']}" in page.text for each in why)
    # An untrained tagger may find no entity that is there.
    assert why or own.task in ("token-classification", "pretraining")
    if picture and "ece_before" in ece:
        assert f"before calibration the expected calibration error is {ece['ece_before']:.3f}" in picture.alt


def test_only_so_many_mistakes_are_shown_and_their_texts_not_without_end(facts):
    answer = {"label": "good", "score": 0.75, "scores": {"bad": 0.25, "good": 0.75}, "truncated": False}
    texts = [f"{'long ' * 4000}{'x' * i}" for i in range(200)]
    rows = [
        {"text": text, "label": "bad", "answer": {**answer, "score": i / 200}} for i, text in enumerate(texts)
    ]
    found = mistakes.mistakes(replace(facts, rows=tuple(rows)))
    assert (len(found.every), found.total, len(found.top)) == (200, 200, mistakes.MAX_MISTAKES)
    assert found.top[0].measure == 199 / 200
    assert len(found.top[0].texts[0]) < mistakes.MAX_CHARACTERS + 10
    assert len(report(replace(facts, rows=tuple(rows))).encode()) < 600_000


def test_entities_are_cut_where_they_stand(facts):
    words = [
        {"word": "abcd"[i], "tag": tag, "start": 2 * i, "end": 2 * i + 1, "score": 0.9}
        for i, tag in enumerate("B-X I-X O B-Y".split())
    ]
    entities = [{"text": "a b", "label": "X", "score": 0.8}, {"text": "d", "label": "Y", "score": 0.7}]
    row = {"text": "a b c d", "tags": "B-X O O B-Y".split(), "answer": {"words": words, "entities": entities}}
    found = mistakes.sentence_mistake(facts, 7, row)
    assert (found.row, found.gold, found.answer, found.measure) == (7, "X a; Y d", "X a b; Y d", 0.8)
    gold, predicted = (dict(found.lines)[name] for name in ("gold", "predicted"))
    assert [(p.text, p.mark, p.label) for p in gold if p.text] == [
        ("a", "missed", "X"),
        (" b c ", "", ""),
        ("d", "right", "Y"),
    ]
    assert [(p.text, p.mark) for p in predicted if p.text] == [("a b", "wrong"), (" c ", ""), ("d", "right")]


def test_spans_that_overlap_are_cut_and_nothing_is_lost():
    text = "the cat sat on the mat"
    found = mistakes.marked_spans(text, {(4, 11)}, {(8, 14)})
    assert "".join(piece.text for piece in found) == text
    assert [(p.text, p.mark) for p in found if p.mark] == [
        ("cat ", "gold"),
        ("sat", "both"),
        (" on", "answer"),
    ]


@pytest.mark.parametrize("name", ["retrieval", "ranking-binary"])
def test_ndcg_of_each_query_has_the_mean_that_was_scored(name, tiny_encoder, tmp_path):
    facts = read_facts(finished(BY_ID[name], tiny_encoder, tmp_path / "run").folder)
    ndcgs = [query.ndcg for query in rankings.queries(facts) if query.ndcg is not None]
    assert np.mean(ndcgs) == pytest.approx(facts.scores["metrics"]["ndcg@10"])


# --- why did it say that


def test_the_surest_are_explained_wrong_and_right(copy, monkeypatch):
    write_explanations(copy)
    facts = read_facts(copy)
    found = mistakes.mistakes(facts)
    why = facts.explanations["examples"]
    wrong, right = ([each["row"] for each in why if each["kind"] == kind] for kind in ("mistake", "hit"))
    assert len(wrong) == min(3, len(found.every))
    assert len(right) == min(3, len(facts.rows) - len(found.every)) > 0
    assert {*wrong} <= {each.row for each in found.every}
    assert not {*right} & {each.row for each in found.every}
    assert all(facts.rows[each["row"] - 1]["text"] == each["texts"]["text"] for each in why)
    well_formed(report(facts))
    assert report(facts) == report(read_facts(copy))
    monkeypatch.setattr(examples, "MAX_LENGTH", 8)  # longer texts are left out
    write_explanations(copy)
    assert all(len(each["texts"]["text"].split()) <= 6 for each in read_facts(copy).explanations["examples"])


def test_explained_are_the_most_confident_of_different_labels(two_seeds, facts):
    answers = [
        ("a", "b", 0.9),
        ("a", "c", 0.8),
        ("b", "a", 0.7),
        ("c", "a", 0.6),
        ("a", "a", 0.99),
        ("a", "a", 0.98),
    ]
    answers += [("b", "b", 0.5), ("c", "c", 0.4)]
    rows = [
        {"text": f"text {place}", "label": gold, "answer": {"label": label, "score": score, "scores": {}}}
        for place, (gold, label, score) in enumerate(answers)
    ]
    wrong, right = examples._wrong_and_right(two_seeds.load().task, replace(facts, rows=tuple(rows)))
    assert [each.number for each in wrong] == [1, 3, 4, 2]
    assert [each.number for each in right] == [5, 7, 8, 6]


def test_a_document_is_explained_by_what_was_found_first(tiny_encoder, tmp_path):
    folder = finished(BY_ID["retrieval"], tiny_encoder, tmp_path / "run").folder
    write_explanations(folder)
    facts = read_facts(folder)
    for each in facts.explanations["examples"]:
        row = facts.rows[each["row"] - 1]
        assert each["texts"] == {"query": f"the {row['query']}", "document": row["answer"]["found"][0]["id"]}


def test_explain_of_a_run_writes_what_its_report_shows(copy, capsys):
    (copy / "explanations.json").unlink(missing_ok=True)
    assert "Explanations" not in report(read_facts(copy))
    assert small.said(capsys, "explain", copy) == f"{copy / 'explanations.json'}\n"
    assert "Explanations" in report(read_facts(copy))
    refused(capsys, "explain", copy, "--json")
    assert "texts or --input FILE, not both" in refused(capsys, "explain", copy, "a dog", "--input", "x.csv")


# --- what comes from the data


def evil_explanation():
    words = [[0, 8, 0.5], [8, len(EVIL) - 6, -0.5], [len(EVIL) - 6, len(EVIL), None]]
    one = {
        "what": EVIL,
        "unit": "logit",
        "value": 1.0,
        "baseline": 0.0,
        "error": 0.0,
        "complete": True,
        "steps": 16,
    }
    why = [{**one, "words": {"text": words}, "rest": 0.0}]
    about = {"kind": "mistake", "row": 1, "gold": EVIL, "texts": {"text": EVIL}}
    return {**about, "said": EVIL, "attributed": why}


def test_text_of_the_data_is_text(facts):
    answer = {"label": "good", "score": 0.9, "scores": {"bad": 0.1, "good": 0.9}, "truncated": True}
    findings = {**facts.data, "findings": [{"level": "warn", "what": EVIL, "fix": EVIL}]}
    evil = replace(
        facts,
        name=EVIL,
        recipe_text=EVIL,
        data=findings,
        rows=({"text": EVIL, "label": "bad", "answer": answer},),
        environment={EVIL: EVIL},
        results={**facts.results, "task": {**facts.results["task"], "description": EVIL}},
        explanations={"examples": [evil_explanation()]},
    )
    for html in (report(evil), page_of([evil, facts], [])):
        page = well_formed(html)
        assert "img" not in {tag for tag, _ in page.elements}
        assert EVIL in page.text
    assert report(evil).count("<script") == 1


def test_labels_are_escaped_and_never_drawn(facts):
    metrics = {**facts.scores["metrics"], f"f1/{EVIL}": 0.5, f"support/{EVIL}": 3.0}
    page = well_formed(
        report(with_scores(facts, labels=[EVIL, "b"], confusion_matrix=[[1, 2], [3, 4]], metrics=metrics))
    )
    assert page.text.count(EVIL) >= 3
    assert "3 few" in page.text


def with_confusions(facts, counts, names):
    """A run without predictions whose split has this confusion matrix."""
    return with_scores(facts, labels=names, confusion_matrix=np.asarray(counts).tolist())


def with_scores(facts, **changed):
    """A run without predictions whose split has these scores and details in place of its own."""
    own = {**facts.scores, **changed}
    return replace(
        facts, rows=(), results={**facts.results, "splits": {**facts.results["splits"], facts.split: own}}
    )


def test_a_cell_of_the_confusion_matrix_leads_to_its_mistakes(facts):
    found = mistakes.mistakes(facts)
    assert len(found.every) == round((1 - facts.scores["metrics"]["accuracy"]) * facts.scores["rows"])
    assert all(each.gold != each.answer for each in found.top)
    matrix = matrices.confusion(facts, found)
    counts = facts.scores["confusion_matrix"]
    assert [[cell.text or "0" for cell in row] for row in matrix.rows] == [
        [str(n) for n in row] for row in counts
    ]
    linked = {cell.pair for row in matrix.rows for cell in row if cell.pair}
    assert linked == {(each.gold, each.answer) for each in found.every}
    page = well_formed(report(facts))
    links = [attrs for tag, attrs in page.elements if tag == "a" and "data-gold" in attrs]
    assert {(link["data-gold"], link["data-answer"]) for link in links} == linked
    assert {link["href"] for link in links} == {"#mistakes"}
    assert not any(cell.pair for row in matrices.confusion(facts, None).rows for cell in row)


def test_many_labels_get_small_cells_and_a_list_of_confusions(facts):
    names = [f"label {i}" for i in range(matrices.MAX_NUMBERS + 1)]
    counts = np.eye(len(names), dtype=int) * 9
    counts[3, 5] = 7
    counts[2, 1] = 8
    many = with_confusions(facts, counts, names)
    matrix = matrices.confusion(many, None)
    cells = [cell for row in matrix.rows for cell in row if cell.title]
    assert len(cells) == len(names) + 2
    assert sorted(cell.text for cell in cells if cell.text) == ["7", "8"]
    assert "label 2, predicted label 1: 8 (47.1%)" in {cell.title for cell in cells}
    shares = {cell.title.partition(",")[0]: cell.share for cell in cells if cell.mark == "minus"}
    assert shares["label 2"] == 1 > shares["label 3"] > matrices.FAINTEST
    assert matrices.confused(many)[1:] == [
        ["label 2", "label 1", "8", "47.1%"],
        ["label 3", "label 5", "7", "43.8%"],
    ]
    assert "The most frequent confusions" in well_formed(report(many)).text
    names = [f"label {i}" for i in range(matrices.MAX_LABELS + 1)]
    assert matrices.confusion(with_confusions(facts, np.eye(len(names), dtype=int), names), None) is None
    assert matrices.confused(with_confusions(facts, counts[:9, :9], names[:9])) == []


def test_labels_have_thresholds_and_bars_the_most_frequent_first(facts):
    metrics = {f"{kind}/{name}": 0.25 for kind in ("precision", "recall", "f1") for name in ("rare", "often")}
    own = with_scores(facts, metrics={**metrics, "support/rare": 3, "support/often": 40, "accuracy": 0.5})
    many = replace(own, options={**facts.options, "thresholds": {"rare": 0.125, "often": 0.75}})
    assert [row[:4] for row in report_sections.label_rows(many)] == [
        "label support threshold precision".split(),
        "often 40 0.7500 0.2500".split(),
        ["rare", "3 few", "0.1250", "0.2500"],
    ]
    assert report(many).count('<td class="bar" style="--share:0.2500">0.2500</td>') == 6
    assert not [name for name in report_sections.fitted_options(many.options) if "threshold" in name]
    assert "threshold" not in report_sections.label_rows(facts)[0]


# --- the run as a whole


def test_the_top_says_how_well_against_what_and_what_was_trained_as_train_does(
    facts, two_seeds, tiny_encoder
):
    expected = replace(facts, results={**facts.results, "expected": {"accuracy": [2.0, 3.0]}})
    page = well_formed(report(expected)).text
    own = report_sections.headline(facts)
    scores = facts.scores
    best = best_baseline(facts.results, "test")
    low, high = scores["intervals"]["accuracy"]
    said = (
        own.verdict.text,
        f"accuracy on test {scores['metrics']['accuracy']:.4f} 95 % interval {low:.4f} … {high:.4f} 7 rows",
        f"best baseline: {best.name} {best.score:.4f} {best.does} same rows",
        (
            f"{tiny_encoder.name}, fine-tuned for text-classification (single texts, single-label, 2 labels: "
            "bad, good)"
        ),
        "on local files (16 training rows); 2 seeds of up to",
        "the recipe expects 2.0 to 3.0",
    )
    places = [page.index(each) for each in said]
    assert places == sorted(places)
    assert "the recipe expects" not in well_formed(report(facts)).text
    assert own.verdict.text in report_sections.summary(facts)
    assert report_sections.trained(facts) in report_sections.summary(facts)
    printed = after_training(two_seeds.folder, two_seeds.results)
    assert own.verdict.text in printed.splitlines()
    assert all(
        f"{each.level}: {each.what}\n    {each.fix}" in printed for each in report_sections.of_scores(facts)
    )


def test_scores_say_which_split_chose_and_which_one_judges(facts, two_seeds):
    """The checkpoint only where several were compared and the best was kept; what the recipe fixes is not
    chosen.
    """
    judge = "Scores of test judge the model; validation chose the seed and the temperature."
    assert selection(facts) == judge
    for page in (well_formed(report(facts)).text, card(facts)):
        assert judge in page
    assert judge in after_training(two_seeds.folder, facts.results)
    seed = facts.results["seeds"][0] | {"undecided": None}
    splits = facts.results["splits"]
    one = {**facts.results, "seeds": [seed]}
    training = {**facts.recipe.training, "load_best_model_at_end": False}
    last = facts.recipe.model_copy(update={"training": training})
    for changed, stated, chosen in (
        ({}, facts, "the checkpoint and the temperature"),
        ({}, replace(facts, log=facts.log[:3]), "the temperature"),  # one evaluation
        ({"best_step": None}, facts, "the temperature"),
        ({"undecided": {"metric": "loss"}}, facts, "the temperature"),
        ({}, replace(facts, recipe=last), "the temperature"),
        ({"best_step": None}, replace(facts, options={**facts.options, "temperature": None}), ""),
    ):
        own = replace(stated, results={**one, "seeds": [{**seed, **changed}]})
        assert selection(own) == (
            f"Scores of test judge the model; validation chose {chosen}." if chosen else ""
        )
        own = replace(
            own, results={**own.results, "splits": {"validation": splits["validation"]}}, split="validation"
        )
        said = f"Validation also chose {chosen}, so its scores are optimistic"
        assert selection(own) == (f"{said}." if "check" in chosen else "")
        own = replace(own, data={**facts.data, "rows": {"train": 1, "validation": 1}})
        assert selection(own) == (
            f"{said}; hold out a test split: data: {{test: 0.1}}" if "check" in chosen else ""
        )


def test_at_most_three_findings_are_open_the_most_severe_first(facts):
    levels = "note warn severe warn warn severe note".split()
    found = [
        {"level": level, "what": f"<{place}>", "fix": f"do {place}"} for place, level in enumerate(levels)
    ]
    seeds = [{**seed, "undecided": None} for seed in facts.results["seeds"]]
    quiet = {**facts.results, "baselines": {}, "expected": None, "seeds": seeds}
    calm = {
        name: {**each, "calibration": {"decisions": 7, "errors": 1}}
        for name, each in facts.results["splits"].items()
    }
    html = report(replace(facts, data={**facts.data, "findings": found}, results={**quiet, "splits": calm}))
    shown, folded = html.partition("<summary>2 more</summary>")[::2]
    top = shown[shown.index('id="act"') :]
    assert re.findall(r"<b>(\w+)</b> <span>&lt;(\d)&gt;<i>do (\d)</i>", top) == [
        ("Severe", "2", "2"),
        ("Severe", "5", "5"),
        ("Warning", "1", "1"),
    ]
    assert re.findall(r"<b>Warning</b> <span>&lt;(\d)", folded) == ["3", "4"]
    assert re.findall(r"<li>&lt;(\d)&gt;. do", folded) == ["0", "6"]
    well_formed(html)


def test_a_baseline_as_good_is_said(facts):
    better = {split: {"tfidf": {"accuracy": 1.0}} for split in facts.results["splits"]}
    own = replace(facts, results={**facts.results, "baselines": better}, data={**facts.data, "findings": []})
    assert (
        report_sections.to_act_on(own)[0].what
        == "the baseline tfidf is at least as good on validation and test"
    )
    assert "Clearly worse than a linear model on TF-IDF." in well_formed(report(own)).text


def test_labels_are_drawn_as_they_are():
    assert "f1/$$" in pictures.curves("f1/$$", {"": [(1, 0.1), (2, 0.2), (3, 0.3)]}).svg


def test_mistakes_about_pairs_are_sorted_by_their_distance_from_the_threshold(tiny_encoder, tmp_path):
    facts = read_facts(finished(BY_ID["similarity-labels"], tiny_encoder, tmp_path / "run").folder)
    rows = [
        {**facts.rows[0], "label": label, "answer": {"score": score, "label": 1 - label}}
        for label, score in ((0, 0.71), (1, 0.05), (0, 0.9))
    ]
    options = {**facts.options, "threshold": 0.7, "labels": None}
    found = mistakes.mistakes(replace(facts, rows=tuple(rows), options=options)).every
    assert [(each.row, each.measure) for each in found] == [
        (2, pytest.approx(0.65)),
        (3, pytest.approx(0.2)),
        (1, pytest.approx(0.01)),
    ]


def test_curves_have_all_seeds_the_baselines_and_the_kept_checkpoint(facts):
    log = [
        {"seed": seed, "step": 2 * step, "eval_accuracy": step / 7} for seed in (1, 2) for step in range(1, 5)
    ]
    others = {
        "validation": {"majority": {"accuracy": 0.5}, "nothing": {"accuracy": 0.0}, "other": {"f1": 0.5}}
    }
    more = replace(facts, log=(*facts.log, *log), results={**facts.results, "baselines": others})
    loss, headline = report_sections.training(more)
    for picture in (loss, headline):
        assert "seed 1 from" in picture.alt
        assert "seed 2 from" in picture.alt
    assert "Ring" in headline.note
    assert headline.alt.endswith("; majority 0.5; nothing 0.")
    assert "majority" not in loss.alt
    assert len(report_sections.points_of(facts, "loss", 1)) == 4
    assert report_sections.seed_rows(facts)[-1][0] == "mean ± sd"


def test_transitions_of_a_crf_by_sign(facts):
    scores = np.array([[0.5, -1.0], [0.0, 0.25]])
    matrix = matrices.transitions(replace(facts, options={"tags": ["O", "B-X"]}, transitions=scores))
    assert [[cell.text for cell in row] for row in matrix.rows] == [["+0.50", "-1.00"], ["+0.00", "+0.25"]]
    assert [cell.title for cell in matrix.rows[0]] == ["O after O: +0.50", "B-X after O: -1.00"]
    assert [(cell.mark, cell.share) for cell in matrix.rows[0]] == [("plus", 0.5), ("minus", 1.0)]
    assert matrices.transitions(facts) is None


def test_an_axis_does_not_magnify_noise():
    for values, score, ends in (
        ([0.91, 0.92], True, (0.8, 1.0)),
        ([0.31, 0.84], True, (0.3, 0.9)),
        ([0.01, 0.02], True, (0.0, 0.2)),
        ([-0.15, 0.02], True, (-0.2, 0.1)),
        ([1.0, 1.0], True, (0.8, 1.0)),
        ([0.5, 2.0], False, (0.0, None)),
        ([6.5, 7.0], False, (None, None)),
        ([3.0, 40.0], True, (0.0, None)),
    ):
        axes = Figure().add_subplot()
        axes.plot(values)
        cut = pictures._limit(axes, values, score)
        low, high = axes.get_ylim()
        assert low <= min(values) <= max(values) <= high
        for limit, end in zip((low, high), ends, strict=True):
            assert end is None or round(limit, 1) == end  # 0.01 beyond a whole tenth
        assert cut == (low > 0.05)


def without_pictures(page):
    """A run that other tests made has empty ones: see conftest.py."""
    return re.sub(r"<svg.*?</svg>\s*", "", page, flags=re.DOTALL)


def test_training_makes_the_report(two_seeds):
    """That of the finished run; its recipe asks for no explanations."""
    page = without_pictures((two_seeds.folder / "report.html").read_text())
    text = well_formed(page).text
    results = two_seeds.results
    test = results["splits"]["test"]["metrics"]["accuracy"]
    assert f"accuracy on test {number(test)} 95 % interval" in text
    order = "act scores labels mistakes closer calibration data training how".split()
    assert re.findall(r'<h2 id="(\w+)">', page) == order
    assert all(number(seed["metrics"]["test"]["accuracy"]) in text for seed in results["seeds"])
    assert all(
        sha256 in text for sha256 in read_json(two_seeds.folder / "data.json")["fingerprints"].values()
    )
    rows = read_rows(two_seeds.folder / "predictions/test.jsonl")
    wrong = [row["text"] for row in rows if row["answer"]["label"] != row["label"]]
    assert wrong
    assert all(each in text.partition("Mistakes")[2] for each in wrong)
    assert "Explanations" not in text
    assert page == without_pictures(report(replace(read_facts(two_seeds.folder), explanations={})))


def test_a_report_that_fails_does_not_lose_the_run(tiny_encoder, tmp_path, monkeypatch, caplog):
    def fails(*_):
        raise ValueError("no ink")

    monkeypatch.setattr("bertkit.report.html.write_report", fails)
    monkeypatch.setattr("bertkit.report.examples.write_explanations", fails)
    made = Run(tmp_path / "run")
    with caplog.at_level("WARNING", logger="bertkit"):
        write_reports(made, True)
    assert "no explanation was written (ValueError: no ink); the run is complete" in caplog.text
    assert "no report was written (ValueError: no ink); the run is complete" in caplog.text
    assert f"bertkit report {shlex.quote(str(made.folder))}" in caplog.text
    assert "Traceback" in caplog.text


# --- any script

ARABIC = "سلام (عادي)"
EXPLAINED = {
    "what": f"label {ARABIC}",
    "unit": "logit",
    "value": 1.0,
    "baseline": 0.0,
    "error": 0.0,
    "complete": True,
}
EXPLANATION = {
    "texts": {"text": f"{ARABIC} 5.", "context": ARABIC},
    "said": f"PER {ARABIC} (0.97)",
    "attributed": [EXPLAINED | {"steps": 16, "words": {"text": [[0, 4, 0.5]], "context": [[0, 4, None]]}}],
}


def in_arabic(facts):
    answer = {"label": "good", "score": 0.9, "scores": {ARABIC: 0.1, "good": 0.9}, "truncated": False}
    told = [
        {"level": level, "what": f"train: {ARABIC} 10 (33.3%)", "fix": f"Read {ARABIC}."}
        for level in ("warn", "note")
    ]
    shown = with_confusions(facts, [[1, 2], [3, 4]], [ARABIC, "good"])
    described = {**facts.results["task"], "description": f"2 labels: {ARABIC}, good"}
    return replace(
        shown,
        results={**shown.results, "task": described},
        name=ARABIC,
        options={**facts.options, "labels": {ARABIC: ARABIC, "good": "good"}},
        rows=({"text": f"{ARABIC} 5.", "label": ARABIC, "answer": answer, "location": f"{ARABIC}.csv:2"},),
        data={**facts.data, "findings": told},
        explanations={"examples": [{"kind": "mistake", "row": 1, "gold": ARABIC, **EXPLANATION}]},
    )


def audited():
    row = {"location": f"{ARABIC}.csv:2", "text": ARABIC, "given": ARABIC}
    part = Section(
        "labels", "Labels to check", f"Of {ARABIC} 5.", [row], ["given"], notes=[f"Of {ARABIC} 5."]
    )
    return audit_page(get_task("text-classification").schema, [part], Path(ARABIC), ["a.yaml"])


def served():
    info = {"title": ARABIC, "description": f"2 labels: {ARABIC}", "version": "1"}
    pages = Environment(loader=PackageLoader("bertkit.serving", "."), autoescape=True)
    pages.filters["as_json"] = str
    return pages.get_template("page.html").render(
        openapi={"info": info, "paths": {}, "components": {"schemas": {}}}
    )


PAGES = {
    "report": lambda facts: report(in_arabic(facts)),
    "comparison": lambda facts: page_of(both := [in_arabic(facts), facts], comparison.pairs(both)),
    "audit": lambda facts: audited(),
    "explanation": lambda facts: render(
        "explanation.html", name=ARABIC, explained=report_sections.explained([EXPLANATION])
    ),
    "server": lambda facts: served(),
}


@pytest.mark.parametrize("name", PAGES)
def test_text_of_the_data_is_written_in_its_own_direction(name, facts):
    page = Page(PAGES[name](facts))
    assert "سلام" in page.text
    assert not [text for text in page.plain if re.search(r"[\u0600-\u06ff]", text)]


@pytest.mark.parametrize(
    ("sentence", "html"),
    [
        ("Not bad & good", "Not bad &amp; good"),
        ("PER ليلى حسن (0.97), LOC <b>", "PER <bdi>ليلى حسن</bdi> (0.97), LOC &lt;b&gt;"),
        ("2 labels: שלום-עולם, bad", "2 labels: <bdi>שלום-עולם</bdi>, bad"),
        ("(سلام) and 5", "(<bdi>سلام</bdi>) and 5"),
    ],
)
def test_words_from_right_to_left_do_not_move_what_follows(sentence, html):
    assert isolated(sentence) == html
    assert isolated(sentence, answer=True) == (sentence if sentence[0] == "(" else html)


def test_a_word_that_is_marked_in_part_stays_one_word():
    """Nothing but joiners stands between its letters: a blank would end the word."""
    parts = mistakes.marked_spans("سافر فلسطيني لباريس.", {(5, 11), (14, 19)}, ())
    drawn = library().get_template("parts.html").module.marked(parts).strip()
    label = '<small dir="auto">gold</small>'
    first = f'<mark class="gold">فلسطين&zwj; {label}</mark>&zwj;ي ل'
    assert drawn == f'سافر {first}<mark class="gold">باريس {label}</mark>.'


# --- several runs


def test_runs_side_by_side(facts):
    recipe = facts.recipe.model_copy(update={"seeds": [7]})
    prints = {**facts.data["fingerprints"], "test": "0" * 64}
    other = replace(facts, name="other", recipe=recipe, data={**facts.data, "fingerprints": prints})
    page = well_formed(page_of([facts, other, facts], comparison.pairs([facts, other, facts])))
    assert "3 runs compared" in page.text
    assert "The rows of test differ between the runs" in page.text
    assert "1. run, 2. other, 3. run." in page.text  # they share the highest score
    assert comparison.names([facts, other]) == ["1. run", "2. other"]
    rows = comparison.recipe_rows([facts, other], ["a", "b"])
    assert rows == [["setting", "a", "b"], ["seeds", "[1, 2]", "[7]"]]
    data = facts.recipe.data.model_copy(update={"source": "/home/me/x.csv"})
    moved = replace(facts, recipe=facts.recipe.model_copy(update={"data": data}))
    rows = comparison.recipe_rows([facts, moved], ["a", "b"])
    assert ["data.source", "x.csv"] in [[row[0], row[2]] for row in rows]


# --- the command, and what it refuses


def test_the_command(two_seeds, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert small.said(capsys, "report", two_seeds.folder, "--output", "one.html") == "one.html\n"
    assert small.said(capsys, "report", two_seeds.folder, two_seeds.folder).endswith("\ncomparison.html\n")
    well_formed((tmp_path / "one.html").read_text())
    well_formed((tmp_path / "comparison.html").read_text())


def test_what_is_no_finished_run_or_is_damaged_is_refused(copy, tmp_path, capsys):
    assert "is not a run: no results.json" in refused(capsys, "report", tmp_path)
    file = copy / "predictions/test.jsonl"
    file.write_text(file.read_text() + "{half")
    raises(UserError, r"test\.jsonl:8: is damaged", read_facts, copy)
    shutil.rmtree(copy / "predictions")  # and the report is shorter
    page = well_formed(report(read_facts(copy)))
    assert "Mistakes" not in page.text
    assert "Scores" in page.text
    (copy / "data.json").unlink()
    raises(ModelError, r"data\.json: is missing", read_facts, copy)


@pytest.mark.parametrize(
    ("file", "path", "value"),
    [
        ("results.json", ["splits"], {}),
        ("results.json", "splits validation metrics accuracy".split(), "<b>"),
        ("predictions/test.jsonl", ["answer"], None),
        ("explanations.json", ["examples"], 5),
        ("explanations.json", ["examples"], [{}]),
    ],
)
def test_what_bertkit_never_wrote_is_told_and_no_traceback(file, path, value, copy, capsys):
    (copy / "explanations.json").write_text('{"examples": []}')
    first, *rest = (
        (copy / file).read_text().splitlines() if file.endswith("l") else [(copy / file).read_text()]
    )
    stated = json.loads(first)
    *way, last = path
    inner = reduce(lambda found, key: found[key], way, stated)
    inner[last] = value
    (copy / file).write_text("\n".join([json.dumps(stated), *rest]))
    page = (copy / "report.html").read_bytes()
    assert "has unexpected content" in refused(capsys, "report", copy)
    assert (copy / "report.html").read_bytes() == page
    if file == "results.json":  # what the card repeats of the other files is escaped
        raises(ModelError, "has unexpected content", write_card, Run(copy))


def test_labels_by_their_value_in_the_data(tiny_encoder, tmp_path):
    """`labels: {0: negative, 1: positive}`: the rows have the values, answers and pictures the names."""
    values = [str(int(label == "good")) for label in BY_ID["single-label"].columns["label"]]
    named = {"name": "text-classification", "labels": {"1": "positive", "0": "negative"}}
    own = Case("", named, {**BY_ID["single-label"].columns, "label": values})
    facts = read_facts(finished(own, tiny_encoder, tmp_path / "run").folder)
    assert [row[0] for row in report_sections.label_rows(facts)] == ["label", "positive", "negative"]
    assert "reliab" in report(facts).lower()


# --- the mistakes: the most confident first, and the table of all of them

LABELS = ["a", "b", "c"]


def with_rows(facts, rows):
    """These facts with other rows of three labels."""
    return replace(
        facts, rows=tuple(rows), options={**facts.options, "labels": dict(zip(LABELS, LABELS, strict=True))}
    )


def row_of(text, label, answer, score, **more):
    scores = dict.fromkeys(LABELS, (1 - score) / 2) | {answer: score}
    return {
        "text": text,
        "label": label,
        **more,
        "answer": {"label": answer, "score": score, "scores": scores},
    }


def test_generated_texts_are_listed_by_their_chrf(tiny_encoder, tmp_path):
    facts = read_facts(finished(BY_ID["text-to-text"], tiny_encoder, tmp_path / "run").folder)
    texts = {
        "a cat sat on a mat": "a cat sat on a mat",
        "a cat sat on the mat": "a cat sat on a mat",
        "": "two dogs",
    }
    rows = [{"text": "x", "target": t, "answer": {"generated_text": text}} for text, t in texts.items()]
    found = mistakes.mistakes(replace(facts, rows=tuple(rows)))
    assert [each.row for each in found.every] == [3, 2]
    chrf = CHRF().sentence_score("a cat sat on the mat", ["a cat sat on a mat"]).score
    assert [each.measure for each in found.every] == pytest.approx([100, 100 - chrf])
    assert found.every[0].answer == "(none)"
    # better or worse, not right or wrong, where two runs are compared
    assert found.measure in mistakes.DISTANCES


def test_every_confusion_is_listed(facts):
    letters = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(80)]
    rows = [row_of(text, "a", "b", 0.8) for text in letters]
    rows += [row_of(text, "c", "b", 0.5 - i / 100) for i, text in enumerate(letters[:3])]
    found = mistakes.mistakes(with_rows(facts, rows))
    assert [each.row for each in found.top] == [*range(1, mistakes.MAX_MISTAKES + 1), 81]
    many = [row_of(f"{text}{i}", f"{text}{i}", "b", 0.8) for i in range(2) for text in letters]
    assert len(many) > mistakes.MAX_CONFUSIONS
    for row in many:
        row["answer"]["scores"][row["label"]] = 0.0
    listed = mistakes.mistakes(with_rows(facts, many))
    assert len(listed.top) == mistakes.MAX_MISTAKES


def test_all_mistakes_are_written_beside_the_page(copy, facts, tmp_path):
    assert write_report(copy) == copy / "report.html"
    found = mistakes.mistakes(facts)
    rows = read_csv(copy / "mistakes.csv")
    assert (copy / "mistakes.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    assert len(rows) == len(found.every) > 0
    for row, each in zip(rows, found.every, strict=True):
        own = facts.rows[each.row - 1]
        assert row == {
            "row": str(each.row),
            "id": own.get("id", ""),
            "location": own["location"],
            "gold": own["label"],
            "answer": own["answer"]["label"],
            "confidence": str(own["answer"]["score"]),
            "text": own["text"],
        }
    assert 'href="mistakes.csv" download' in (copy / "report.html").read_text()
    (tmp_path / "pages").mkdir()
    write_report(copy, tmp_path / "pages/one.html")
    assert {file.name for file in (tmp_path / "pages").iterdir()} == {"one.html", "one-mistakes.csv"}
    assert 'href="one-mistakes.csv"' in (tmp_path / "pages/one.html").read_text()
    formula = with_rows(facts, [row_of("=1+1", "a", "b", 0.9)])
    write_mistakes(formula, mistakes.mistakes(formula), tmp_path / "formula.csv")
    assert (tmp_path / "formula.csv").read_text().rstrip().endswith(",'=1+1")


# --- the verdict, and findings of the scores

CLEAR = Verdict("good", "Clearly better than the best baseline.")
CHANCE = Verdict("unclear", "Better than the best baseline, but this difference may be chance.")
LEAKED = Verdict("bad", "Some of these rows are in train too: expect a lower score on new texts.")


def results(
    score=0.9,
    bounds=None,
    split="test",
    rows=500,
    expected=None,
    ece=None,
    **baselines,
):
    """What results.json has of one split."""
    intervals = {"accuracy": bounds} if bounds else {}
    scores = {
        "rows": rows,
        "metrics": {"accuracy": score},
        "intervals": intervals,
        "calibration": {"ece_after": ece},
    }
    simple = {split: {name: {"accuracy": value} for name, value in baselines.items()}}
    return {
        "headline": "accuracy",
        "splits": {split: scores},
        "baselines": simple,
        "expected": expected,
        "seeds": [{}],
    }


def test_the_verdict_follows_from_the_figures():
    for made, expected in (
        (results(0.9, [0.88, 0.92], tfidf=0.8), CLEAR),
        (results(0.9, [0.88, 0.92], tfidf=0.89), CHANCE),  # inside the interval
        (results(0.9, [0.88, 0.92], tfidf=0.875), CHANCE),  # outside, but nearer than √2 times its half
        (results(0.9, [0.88, 0.92], tfidf=0.871), CLEAR),
        (results(0.9, [0.88, 0.92], tfidf=0.8, majority=0.89), CHANCE),  # the best baseline counts
        (results(0.9, None, tfidf=0.8), CHANCE),
        (results(0.9, [0.88, 0.92], tfidf=0.9), Verdict("bad", "No better than a linear model on TF-IDF.")),
        (
            results(0.5, [0.4, 0.6], majority=0.6),
            Verdict("bad", "No better than always giving the same answer."),
        ),
        (results(0.5, [0.4, 0.6], mine=0.6), Verdict("bad", "No better than mine.")),
        (results(0.5, **{"no answer": 0.5}), Verdict("bad", "No better than never giving an answer.")),
        (results(0.5, [0.3, 0.6], mine=0.64), Verdict("bad", "No better than mine.")),
        (results(0.5, [0.3, 0.6], mine=0.65), Verdict("bad", "Clearly worse than mine.")),
        (results(0.9, [0.88, 0.92]), Verdict("unclear", "There is no baseline to compare it with.")),
        (
            results(0.9, [0.88, 0.92], tfidf=None),
            Verdict("unclear", "There is no baseline to compare it with."),
        ),
        (results(None, tfidf=0.8), Verdict("bad", "accuracy is not defined on these rows.")),
        (
            results(1.0, [1.0, 1.0], rows=19, majority=0.5),
            Verdict("unclear", "Better than the best baseline, but on too few rows to be sure (19)."),
        ),
        (results(1.0, [1.0, 1.0], rows=20, majority=0.5), CLEAR),
        (
            results(0.5, [0.2, 0.8], rows=19, majority=0.5),
            Verdict("bad", "No better than always giving the same answer."),
        ),
        (
            results(0.99, [0.98, 1.0], split="train", tfidf=0.5),
            Verdict("bad", "Scored on its own training rows: this says nothing about new texts."),
        ),
    ):
        assert verdict(made, []) == expected


def with_metric(made, name, score, bounds, **baselines):
    """The results with one more metric of model and baselines."""
    (scores,), (others,) = made["splits"].values(), made["baselines"].values()
    scores["metrics"][name] = score
    scores["intervals"][name] = bounds
    for baseline, value in baselines.items():
        others.setdefault(baseline, {})[name] = value
    return made


def test_the_verdict_says_where_a_metric_without_threshold_disagrees():
    better = results(0.9, [0.88, 0.92], tfidf=0.8)
    worse = results(0.5, [0.4, 0.6], tfidf=0.8)
    for made, name, score, bounds, theirs, level, said in (
        (
            better,
            "roc_auc",
            0.8,
            [0.77, 0.83],
            0.9,
            "unclear",
            "But clearly worse in roc_auc, which does not depend on a threshold",
        ),
        (
            better,
            "average_precision",
            0.8,
            [0.77, 0.83],
            0.9,
            "unclear",
            "where a linear model on TF-IDF has 0.9",
        ),
        (better, "roc_auc", 0.8, [0.7, 0.88], 0.9, "good", ""),  # by chance
        (better, "roc_auc", 0.8, [0.8, 0.9], 0.85, "good", ""),  # by the bound on the baseline's side
        (better, "roc_auc", 0.95, [0.93, 0.97], 0.9, "good", ""),
        (worse, "roc_auc", 0.9, [0.88, 0.92], 0.8, "unclear", "But clearly better in roc_auc"),
        (worse, "roc_auc", 0.9, [0.85, 0.9], 0.88, "bad", ""),
        (worse, "roc_auc", 0.8, [0.77, 0.83], 0.9, "bad", ""),
    ):
        found = verdict(with_metric(deepcopy(made), name, score, bounds, tfidf=theirs), [])
        assert (found.level, said in found.text, "But" in found.text) == (level, True, bool(said))
        assert found.text.startswith(verdict(made, []).text)
    chance = with_metric(
        results(0.9, [0.88, 0.92], tfidf=0.8), "roc_auc", 0.8, [0.77, 0.83], majority=0.5, tfidf=0.9
    )
    assert "linear model" in verdict(chance, []).text  # the best baseline of that metric
    assert (
        verdict({**chance, "headline": "roc_auc"}, []).text == "Clearly worse than a linear model on TF-IDF."
    )


def test_the_verdict_is_on_macro_f1_where_accuracy_does_not_see_the_other_labels():
    rare = results(0.95, [0.93, 0.97], majority=0.96, tfidf=0.96)
    rare = with_metric(rare, "f1_macro", 0.76, [0.7, 0.82], majority=0.49, tfidf=0.49)
    why = " This is by f1_macro, because always giving the same answer has an accuracy of 0.9600."
    assert verdict(rare, []) == Verdict("good", CLEAR.text + why)
    assert not [*score_findings(rare)]
    low = with_metric(deepcopy(rare), "f1_macro", 0.49, [0.49, 0.5])
    assert verdict(low, []) == Verdict("bad", "No better than always giving the same answer." + why)
    assert [each.what for each in score_findings(low)] == [
        f"the baseline {name} is at least as good in f1_macro on test" for name in ("majority", "tfidf")
    ]
    assert "metric_for_best_model: f1_macro, or task.class_weights" in next(score_findings(low)).fix
    even = with_metric(deepcopy(rare), "accuracy", 0.88, [0.86, 0.9], majority=0.89, tfidf=0.89)
    assert verdict(even, []).text == "No better than always giving the same answer."
    assert verdict({**rare, "headline": "f1_macro"}, []) == CLEAR


def test_a_leak_into_the_scored_rows_decides_the_verdict():
    clear = results(0.9, [0.88, 0.92], tfidf=0.8)
    seen = Verdict("bad", "Scored on its own training rows: this says nothing about new texts.")
    for made, found, expected in (
        (clear, leak("test", 50, 500, "…"), LEAKED),
        (clear, leak("test", 4, 500, "…"), CLEAR),  # under 1 %
        (clear, leak("validation", 50, 500, "…"), CLEAR),  # not the rows that are scored
        (clear, Finding("severe", "train: 50 rows repeat an earlier text with another target"), CLEAR),
        (results(0.5, tfidf=0.9), leak("test", 50, 500, "…"), LEAKED),  # before a baseline
        (results(0.9, split="train"), leak("train", 50, 500, "…"), seen),  # before a leak
    ):
        assert verdict(made, [found]) == expected
    found = best_baseline(results(majority=0.7, tfidf=0.8, none=None), "test")
    assert found == ("tfidf", BASELINES["tfidf"], 0.8)


def test_scores_that_mislead_are_findings():
    for made, level, what in (
        (results(split="train"), "severe", "these scores are on training rows"),
        (
            results(0.6, majority=0.6, tfidf=0.5),
            "severe",
            "the baseline majority is at least as good on test",
        ),
        (results(ece=0.28), "warn", "the expected calibration error on test is 0.28"),
        (
            results(expected={"accuracy": [0.95, 1]}),
            "warn",
            "accuracy on test is 0.9000; the recipe expects 0.95 to 1",
        ),
        (
            results(expected={"accuracy": [0.9, 1]}),
            "note",
            "accuracy on test is 0.9000; the recipe expects 0.9 to 1",
        ),
    ):
        (found,) = score_findings(made)
        assert (found.level, found.what) == (level, what)
        assert bool(found.fix) == (level != "note")
    for good in (results(0.6, majority=0.59), results(ece=0.1), results(None, majority=0.5)):
        assert not [*score_findings(good)]
    made = results(0.6, majority=0.6)
    (found,), (linear,) = score_findings(made), score_findings({**made, "seeds": [{"C": 1.0}]})
    assert "learning rate" in found.fix  # which a linear method does not have
    assert linear.fix == "Try another task.method, or look at the data."


def test_lengths_of_generated_texts_are_findings():
    for ratio, unfinished, expected in (
        (0.79, 0, [("warn", "test: generated texts have 0.79 times the length of their targets")]),
        (0.8, 0, [("note", "test: generated texts have 0.80 times the length of their targets")]),
        (1.26, 0, [("warn", "test: generated texts have 1.26 times the length of their targets")]),
        (
            1.0,
            4,
            [("note", "length"), ("note", "test: 4 of 500 generated texts (0.8%) are cut at max_new_tokens")],
        ),
        (
            1.0,
            5,
            [("note", "length"), ("warn", "test: 5 of 500 generated texts (1.0%) are cut at max_new_tokens")],
        ),
    ):
        made = results(0.9, [0.88, 0.92], tfidf=0.8)
        made["splits"]["test"] |= {"length_ratio": ratio, "unfinished": unfinished}
        found = list(score_findings(made))
        assert [each.level for each in found] == [level for level, _ in expected]
        assert all(what in each.what for each, (_, what) in zip(found, expected, strict=True))


def test_targets_are_shown_whole(tiny_encoder, tmp_path):
    own = read_facts(finished(BY_ID["regression"], tiny_encoder, tmp_path / "run").folder)
    rows = tuple({**row, "score": 1234567.25} for row in own.rows)
    assert mistakes.mistakes(replace(own, rows=rows)).every[0].gold == "1234567.25"


def test_a_search_of_few_queries_is_unclear_whatever_its_rows_are():
    few = results(0.9, [0.88, 0.92], rows=500, tfidf=0.5)
    few["splits"]["test"]["queries"] = 3
    assert verdict(few, []).level == "unclear"
    assert "too few queries to be sure (3)" in verdict(few, []).text


def test_an_only_seed_is_not_the_best(facts):
    one = replace(facts, results={**facts.results, "seeds": facts.results["seeds"][:1]})
    assert "best seed" not in report(one)
    assert "best seed" in report(facts)
