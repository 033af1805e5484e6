"""Likely wrong labels: confident learning compared with cleanlab, then the lists, the page and the command."""

import csv
import re
import shlex
import warnings
from html import unescape
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import small
from numpy.random import default_rng
from small import copy_of, raises, read_csv, read_data, read_rows, refused, write_recipe, write_rows
from test_report import EVIL, well_formed

import bertkit
from bertkit import processes
from bertkit.audits import audit as program
from bertkit.audits.audit import corrections, labels, page, write_lists
from bertkit.audits.confident import guesses, likely_wrong, margins, wrong_share
from bertkit.audits.entity_errors import sentences
from bertkit.audits.label_errors import label_sets, numbers, questions, single_labels
from bertkit.audits.parts import Section
from bertkit.cli.main import main
from bertkit.data import tagging
from bertkit.inference.predictor import load
from bertkit.recipe.recipe import load_recipe, to_yaml
from bertkit.sections import DataSpec
from bertkit.tasks import get_task


def noisy(seed, rows=400, labels=4, absent=False):
    """Probabilities that follow the true labels loosely, and labels of which a third are drawn anew."""
    rng = default_rng(seed)
    true = rng.integers(0, labels - absent, rows)
    logits = rng.normal(size=(rows, labels)) + 2 * np.eye(labels)[true]
    table = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    given = np.where(rng.random(rows) < 0.3, rng.integers(0, labels - absent, rows), true)
    return table, given


def test_wrong_labels_are_those_of_cleanlab_in_its_order():
    find_label_issues = pytest.importorskip("cleanlab.filter").find_label_issues
    how = {"filter_by": "confident_learning", "return_indices_ranked_by": "normalized_margin", "n_jobs": 1}
    for seed, count, absent in product(range(5), (2, 4), (False, True)):
        table, given = noisy(seed, labels=count + absent, absent=absent)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a label that no row has
            expected = find_label_issues(given, table, **how)
        found = np.flatnonzero(likely_wrong(table, given))
        assert len(found) > 20
        assert found[np.argsort(margins(table, given)[found], kind="stable")].tolist() == expected.tolist()


def unsure(seed):
    """Probabilities without relation to the labels, so that a row reaches the averages of several; the only
    row of the last label is counted for the first.
    """
    rng = default_rng(seed)
    table = rng.dirichlet(np.ones(4), 300)
    given = rng.integers(0, 3, 300)
    table[0] = (0.5, 0.2, 0.2, 0.1)
    given[0] = 3
    return table, given


@pytest.mark.parametrize(("table", "given"), [noisy(7), noisy(7, absent=True), unsure(7)])
def test_the_share_of_wrong_labels_is_that_of_cleanlabs_joint(table, given):
    compute_confident_joint = pytest.importorskip("cleanlab.count").compute_confident_joint
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        joint = compute_confident_joint(given, table, calibrate=False)
    counts = np.bincount(given, minlength=4)
    expected = 1 - (np.diag(joint) / joint.sum(axis=1) * counts).sum() / len(given)
    found = wrong_share(given, table.argmax(axis=1), guesses(table, given), np.arange(len(given)))
    assert found.agreed == np.mean([row.argmax() == label for row, label in zip(table, given, strict=True)])
    assert found.value == pytest.approx(expected, abs=1e-12)
    assert found.interval[0] < found.value < found.interval[1]


def evidence(rows, **task):
    defaults = {"labels": None, "scheme": "BIO", "by_cosine": "loss" in task}
    recipe = SimpleNamespace(task=SimpleNamespace(**defaults | task))
    placed = [{"location": f"train.csv:{number}", "fold": 1, **row} for number, row in enumerate(rows, 2)]
    return recipe, placed


def test_a_wrong_label_is_listed_with_the_value_of_the_data_for_the_suggested_name():
    table, given = noisy(1, labels=3)
    names = ["red", "green", "blue"]
    rows = [
        {"text": f"row {row}", "id": str(row), "tone": str(given[row]), "answer": answer}
        for row, answer in enumerate(
            {"p": dict(zip(names, scores, strict=True))} for scores in table.tolist()
        )
    ]
    part = single_labels(*evidence(rows, labels={"0": "red", "1": "green", "2": "blue"}), "tone", "p")
    expected = np.flatnonzero(likely_wrong(table, given))
    assert sorted(int(row["id"]) for row in part.rows) == expected.tolist()
    first = min(expected, key=lambda row: table[row, given[row]] - np.delete(table[row], given[row]).max())
    best = int(table[first].argmax())
    assert part.rows[0] == {
        "location": f"train.csv:{first + 2}",
        "id": str(first),
        "text": f"row {first}",
        "tone": str(best),
        "given": names[given[first]],
        "suggested": names[best],
        "probability": round(table[first].max(), 4),
    }
    assert (
        part.summary
        == f"{len(expected)} of 400 rows ({len(expected) / 400:.1%}) are likely to have a wrong label."
    )
    assert part.figures["rows to check"] == str(len(expected))


@pytest.mark.parametrize("seed", range(3))
def test_wrong_sets_of_labels_are_those_of_cleanlab(seed):
    cleanlab = pytest.importorskip("cleanlab.multilabel_classification.filter")

    rng = default_rng(seed)
    names = ["a", "b", "c"]
    true = rng.random((300, 3)) < 0.4
    table = 1 / (1 + np.exp(-(rng.normal(size=true.shape) + 4 * true - 2)))
    given = true ^ (rng.random(true.shape) < 0.15)
    lists = [np.flatnonzero(row).tolist() for row in given]
    how = {"filter_by": "confident_learning", "n_jobs": 1}
    wrong = cleanlab.find_multilabel_issues_per_class(lists, table, **how)
    answers = [{"scores": dict(zip(names, scores, strict=True))} for scores in table.tolist()]
    rows = [
        {"text": str(row), "labels": [names[label] for label in lists[row]], "answer": answer}
        for row, answer in enumerate(answers)
    ]
    part = label_sets(*evidence(rows), "labels", "scores")
    found = np.flatnonzero(cleanlab.find_label_issues(lists, table, **how)).tolist()
    assert sorted(int(row["text"]) for row in part.rows) == found
    for row in part.rows:
        index = int(row["text"])
        assert row["labels"] == [names[label] for label in np.flatnonzero(given[index] ^ wrong[index])]
        doubts = np.where(given[index], 1 - table[index], table[index])[wrong[index]]
        assert row["probability"] == pytest.approx(doubts.max(), abs=2e-4)  # it has four decimals
    found = [row["probability"] for row in part.rows]
    assert found == sorted(found, reverse=True)
    flipped = float((given != true).mean())
    estimate = float(part.figures["wrong decisions about labels, estimated"].split("%")[0]) / 100
    assert estimate == pytest.approx(flipped, abs=0.06)


def test_numbers_far_from_the_answers_are_listed_whatever_the_scale_of_these():
    rng = default_rng(0)
    cosines = rng.uniform(-1, 1, 200)
    scores = 2.5 + 2.5 * cosines + rng.normal(0, 0.1, 200)
    scores[17] += 3
    scores[40] -= 2
    rows = [
        {"text_a": str(row), "text_b": "", "score": score, "answer": {"score": cosine}}
        for row, (score, cosine) in enumerate(zip(scores.tolist(), cosines.tolist(), strict=True))
    ]
    part = numbers(*evidence(rows), "score", "score")
    assert [row["text_a"] for row in part.rows] == ["17", "40"]
    assert part.rows[0]["score"] == pytest.approx(2.5 + 2.5 * cosines[17], abs=0.2)
    line = np.polyfit(cosines, scores, 1)
    error = scores - np.polyval(line, cosines)
    assert part.rows[0]["deviations"] == pytest.approx(error[17] / error.std(), abs=1e-3)
    assert not numbers(
        *evidence([{**row, "answer": {"score": 0.5}, "score": 1.0} for row in rows]), "score", "score"
    ).rows


def sentence(text, gold, found, sure=0.9):
    """A row and its answer, whose tags all have this probability; tags are such as `O B-PER I-PER`."""
    words = text.split()
    tags = found.split()
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    types = [tag.partition("-")[2] or tag for tag in tags]
    rest = {name: (1 - sure) / 2 for name in ("O", "PER", "LOC")}
    answer = [
        {
            "word": word,
            "tag": tag,
            "score": sure,
            "scores": {**rest, kind: sure},
            "start": start,
            "end": start + len(word),
        }
        for word, tag, kind, start in zip(words, tags, types, starts, strict=True)
    ]
    entities = [{"label": kind, "score": sure - 0.1} for kind, _, _ in tagging.entities(tags)]
    return {"tokens": words, "tags": gold.split(), "answer": {"words": answer, "entities": entities}}


RIGHT = [sentence("Ann Lee met Bob in Rome", *["B-PER I-PER O B-PER O B-LOC"] * 2, 0.8) for _ in range(5)]


def test_a_wrong_entity_is_suggested_with_the_tags_of_its_sentence():
    for gold, found, given, suggested in (
        ("O O O O O B-LOC", "B-PER I-PER O O O B-LOC", "(none)", "PER: Ann Lee"),
        ("B-PER I-PER O B-PER O B-LOC", "O O O B-PER O B-LOC", "PER: Ann Lee", "(none)"),
        ("B-PER I-PER O B-PER O B-LOC", "B-LOC I-LOC O B-PER O B-LOC", "PER: Ann Lee", "LOC: Ann Lee"),
        ("O B-PER O O O O", "B-PER I-PER O O O O", "PER: Lee", "PER: Ann Lee"),
        ("B-PER O O O O B-PER", "B-PER I-PER O O O B-LOC", "PER: Ann; PER: Rome", "PER: Ann Lee; LOC: Rome"),
    ):
        part = sentences(
            *evidence([*RIGHT, sentence("Ann Lee met Bob in Rome", gold, found)]), "tags", "words"
        )
        (row,) = part.rows
        assert (row["given"], row["suggested"], row["tags"]) == (given, suggested, found.split())
        assert row["location"] == "train.csv:7"
        assert row["probability"] == pytest.approx(0.9 if suggested == "(none)" else 0.8)
        assert set(row) == set("location tokens tags given suggested probability".split())


def test_an_entity_that_the_model_doubts_stays_and_a_word_without_a_token_is_not_judged():
    both = sentence("Ann Lee met Bob in Rome", "O O O O O B-LOC", "B-PER I-PER O B-PER O B-LOC")
    for scores in (both["answer"]["words"][0]["scores"], both["answer"]["words"][1]["scores"]):
        scores.update(O=0.3, PER=0.4)  # less than PER has on average
    (row,) = sentences(*evidence([*RIGHT, both]), "tags", "words").rows
    assert (row["suggested"], row["tags"]) == ("PER: Bob", "O O O B-PER O B-LOC".split())
    row = sentence("Ann Lee met Bob in Rome", "B-PER I-PER O B-PER O B-LOC", "O I-PER O B-PER O B-LOC")
    row["answer"]["words"][0] |= {"score": 1.0, "scores": {"O": 1.0}}
    assert not sentences(*evidence([*RIGHT, row]), "tags", "words").rows


def test_a_change_has_the_probability_of_its_least_probable_entity_and_a_sentence_that_of_its_most_probable_change():
    several = sentence(
        "Ann Lee met Bob in Rome", "B-LOC I-LOC I-LOC I-LOC O O", "O B-PER O B-PER O B-LOC", 0.95
    )
    # overlaps LOC, which is doubtful as a whole
    several["answer"]["words"][3]["scores"].update(O=0.5, PER=0.3)
    for entity, score in zip(several["answer"]["entities"], (0.75, 0.6, 0.85), strict=True):
        entity["score"] = score
    (row,) = sentences(*evidence([*RIGHT, several]), "tags", "words").rows
    assert (row["suggested"], row["probability"]) == ("PER: Lee; PER: Bob; LOC: Rome", 0.85)
    assert row["tags"] == "O B-PER O B-PER O B-LOC".split()
    del several["answer"]["entities"][2]
    several["answer"]["words"][5] |= {"tag": "O", "scores": {"O": 0.95, "PER": 0.02, "LOC": 0.03}}
    assert [row["probability"] for row in sentences(*evidence([*RIGHT, several]), "tags", "words").rows] == [
        0.6
    ]


def test_sentences_are_ranked_by_their_least_probable_word_as_by_cleanlab():
    from cleanlab.token_classification.rank import get_label_quality_scores

    gold = "O O O O O B-LOC"
    types = ["O", "PER", "LOC"]
    text = "Ann Lee met Bob in Rome"
    found = "O O O B-PER O B-LOC"
    rows = [sentence(text, gold, found, sure) for sure in (0.85, 0.97, 0.9, 0.99, 0.88)]
    for row, score in zip(rows, (0.9, 0.8, 0.6, 0.7, 0.5), strict=True):
        row["answer"]["entities"][0]["score"] = score
    tables = [
        np.array([[w["scores"][kind] for kind in types] for w in row["answer"]["words"]]) for row in rows
    ]
    tables = [table / table.sum(axis=1, keepdims=True) for table in tables]
    quality, _ = get_label_quality_scores([[0, 0, 0, 0, 0, 2]] * len(rows), tables)
    found = [row["probability"] for row in sentences(*evidence([*RIGHT, *rows]), "tags", "words").rows]
    assert found == [rows[index]["answer"]["entities"][0]["score"] for index in np.argsort(quality)]


def test_labels_of_words_are_judged_one_by_one():
    def words(gold, found):
        row = sentence("a b c", gold, found)
        del row["answer"]["entities"]
        return row

    rows = [*(words("O PER LOC", "O PER LOC") for _ in range(5)), words("O LOC LOC", "O PER LOC")]
    (row,) = sentences(*evidence(rows, scheme="none"), "tags", "words").rows
    assert (row["given"], row["suggested"], row["tags"]) == ("LOC: b", "PER: b", ["O", "PER", "LOC"])


def question(gold, answer, score, null=0.0):
    answers = {"text": [gold], "answer_start": [0]} if gold else {"text": [], "answer_start": []}
    said = {"answer": answer, "start": 4 if answer else 0, "score": score, "null_score": null}
    return {"question": "who?", "context": "a long text", "answers": answers, "answer": said}


PEOPLE = [["B-PER", "O", "B-LOC"]] * 4
SURE = [sentence("Ann in Rome", *["B-PER O B-LOC"] * 2)["answer"]] * 5
LABELS = {"name": "text-classification"}
WORDS = {"name": "token-classification"}
# task -> the file, the columns of its rows, the answers to them, and the target of the first after that
CORRECTED = {
    "label": (
        {**LABELS, "labels": {"0": "bad", "1": "good"}},
        [{"text": f"row {row}", "label": str(int(row in (0, 2)))} for row in range(4)],
        [{"scores": {"bad": 1 - p, "good": p}} for p in (0.1, 0.1, 0.9, 0.2)], "0"),
    "labels": (
        LABELS,
        [{"text": f"row {row}", "labels": each} for row, each in enumerate((["a"], ["a", "b"], ["b"], ["a", "b"]))],
        [{"scores": {"a": a, "b": b}} for a, b in ((0.8, 0.9), (0.8, 0.8), (0.1, 0.8), (0.8, 0.8))], ["a", "b"]),
    "tags": (
        WORDS, [{"tokens": ["Ann", "in", "Rome"], "tags": tags} for tags in (["O", "O", "B-LOC"], *PEOPLE)],
        SURE, PEOPLE[0]),
    "spans": (
        WORDS, [{"text": "Ann in Rome", "spans": [{"start": a, "end": b, "label": kind} for a, b, kind in spans]}
                for spans in ([(7, 11, "LOC")], *[[(0, 3, "PER"), (7, 11, "LOC")]] * 4)],
        SURE, PEOPLE[0]),
    "answers": (
        {"name": "question-answering"},
        [{"question": f"what sat {row}?", "context": "the cat sat on the mat", "answers": ["mat", "cat"][row > 0]}
         for row in range(3)],
        [{"answer": "cat", "start": 4, "score": 0.9, "null_score": 0.0}] * 3, {"text": ["cat"], "answer_start": [4]}),
    "score": (
        {**LABELS, "kind": "regression"},
        [{"text": f"row {row}", "score": row + 9.0 * (row == 0)} for row in range(30)],
        [{"score": float(row)} for row in range(30)], 0.0),
}  # fmt: skip


@pytest.mark.parametrize("target", CORRECTED)
def test_the_list_corrects_the_rows_that_it_was_made_from(target, tmp_path):
    task, given, answers, expected = CORRECTED[target]
    file = write_rows(tmp_path / "train.jsonl", given)
    kind = get_task(task["name"])
    options = kind.Options.model_validate(task)

    def read(**data):
        return read_data(DataSpec(source={"train": str(file)}, **data), kind, options)

    before = read()
    places = [before.origins["train"].public(row) for row in range(len(given))]
    rows = [
        {**row, "location": place, "fold": 1, "answer": answer}
        for row, place, answer in zip(before.rows["train"], places, answers, strict=True)
    ]
    part = labels(SimpleNamespace(task=options), rows)
    assert [row["location"] for row in part.rows] == ["train.jsonl:1"]
    write_lists(part, tmp_path)
    column = "tags" if target == "spans" else target
    for name in ("labels.jsonl", "labels.csv"):
        after = read(relabel=f"{tmp_path}/{name}").rows["train"]
        changed = after[column][0]
        assert abs(changed - expected) < 2 if target == "score" else changed == expected
        assert changed == part.rows[0][column]
        assert list(after)[1:] == list(before.rows["train"])[1:]


TEXTS = ["=1+1", "'=1+1", "''@me", "'tis", "'", "+49 30", "-5 %", "\ta tab", "\ra return", "a, b", '"q"']


def test_no_cell_of_a_csv_is_a_formula_and_the_list_still_names_its_rows(tmp_path):
    labels = "-1 '-1 =x 'x'".split()
    rows = [{"text": text, "label": labels[n % 4], "score": -0.5} for n, text in enumerate(TEXTS)]
    file = write_rows(tmp_path / "train.jsonl", rows)
    kind = get_task("text-classification")
    new = [{"location": f"train.jsonl:{n}", **row, "label": labels[n % 4]} for n, row in enumerate(rows, 1)]
    write_lists(Section("labels", "", "", [{**row, "=cmd": "x"} for row in new]), tmp_path)
    with (tmp_path / "labels.csv").open(encoding="utf-8-sig", newline="") as opened:
        header, *cells = list(csv.reader(opened))
    assert header == "location text label score '=cmd".split()
    assert not [cell for line in cells for cell in (line[1], line[2]) if cell[:1] in "=+-@\t\r"]
    assert cells[0][3] == "-0.5"  # a number is none
    options = kind.Options(name=kind.name, kind="single-label")
    for name in ("labels.jsonl", "labels.csv"):
        spec = DataSpec(source={"train": str(file)}, relabel=f"{tmp_path}/{name}")
        assert read_data(spec, kind, options).rows["train"]["label"] == [row["label"] for row in new]


def test_wrong_answers_are_those_without_a_shared_word_that_are_as_probable_as_right_ones():
    right = [
        question("the red cat", "red cat", 0.6),
        question("a dog", "dog", 0.8),
        question("", "", 0.5, 0.5),
    ]
    wrong = [
        question("a dog", "green mat", 0.705),
        question("", "blue mat", 0.75, 0.25),
        question("a dog", "", 0.9, 0.9),
        question("a dog", "", 0.45, 0.45),
    ]
    unsure = [
        question("a dog", *said) for said in (("green mat", 0.69), ("", 0.37, 0.37), ("dog house", 0.7))
    ]
    part = questions(*evidence([*right, *wrong, *unsure]), "answers", "null_score")
    assert [(row["given"], row["suggested"], row["probability"]) for row in part.rows] == [
        ("a dog", "(no answer)", 0.9),
        ("(no answer)", "blue mat", 0.75),
        ("a dog", "green mat", 0.705),
        ("a dog", "(no answer)", 0.45),
    ]
    assert part.rows[0]["answers"] == {"text": [], "answer_start": []}
    assert part.rows[1]["answers"] == {"text": ["blue mat"], "answer_start": [4]}


# --- the command


def run_with_answers(folder, encoder):
    """A run's recipe, data and out-of-fold answers: its models are sure of the true label of each row but
    one.
    """
    write_recipe(folder, encoder, splits=("train",))
    rows = read_rows(folder / "train.jsonl")
    for index in (4, 9):
        rows[index]["label"] = "good" if rows[index]["label"] == "bad" else "bad"
    rows[9]["text"] = EVIL
    write_rows(folder / "train.jsonl", rows)
    lines = []
    for index, row in enumerate(rows):
        true = ("good", "bad")[index % 2]
        score = 0.6 if index == 7 else 0.85 + index / 100
        scores = {name: score if name == true else 1 - score for name in ("bad", "good")}
        answer = {"label": true, "score": score, "scores": scores}
        lines.append({**row, "location": f"train.jsonl:{index + 1}", "fold": 1 + index % 2, "answer": answer})
    run = folder / "run"
    write_rows(run / "predictions/train-oof.jsonl", lines)
    (run / "recipe.yaml").write_text(to_yaml(load_recipe(folder / "small.yaml", ["folds=2"])))
    return run


def test_the_audit_of_a_run_lists_its_flipped_labels_first(tiny_encoder, tmp_path, capsys, monkeypatch):
    run = run_with_answers(tmp_path, tiny_encoder)
    told = small.said(capsys, "audit", run, "--output-dir", tmp_path / "a b")
    assert told.startswith("2 of 16 rows (12.5%) are likely to have a wrong label.\n")
    assert told.endswith(f"\n\nall parts: {tmp_path}/a b/audit.html\n")
    rows = read_rows(tmp_path / "a b/labels.jsonl")
    assert [(row["location"], row["given"], row["label"]) for row in rows] == [
        ("train.jsonl:10", "good", "bad"),
        ("train.jsonl:5", "bad", "good"),
    ]
    assert rows[0]["probability"] == 0.94
    table = read_csv(tmp_path / "a b/labels.csv")
    assert table == [{name: str(value) for name, value in row.items()} for row in rows]
    text = (tmp_path / "a b/audit.html").read_text()
    assert f"data.relabel={tmp_path}/a b/labels.jsonl&#39;" in text
    # self-contained, and texts are escaped
    page = well_formed(text, beside=r"(labels|duplicates)\.(jsonl|csv)")
    assert EVIL in page.text
    assert "<script>alert" not in text
    assert "train.jsonl:10" in page.text
    again = bertkit.audit(run, tmp_path / "a b")
    assert again.frame()["location"].tolist() == ["train.jsonl:10", "train.jsonl:5"]
    assert callable(bertkit.audit)  # still, after its modules were imported
    monkeypatch.setattr(processes, "first", lambda: False)  # of several processes, the first alone writes
    assert not bertkit.audit(run, tmp_path / "other").parts
    assert not (tmp_path / "other").exists()


WRONG = {"validation.jsonl:3", "validation.jsonl:6", "test.jsonl:2"}  # as `small` writes them
LOOKED = "Audited rows: 16 of train, 10 of validation, 7 of test."


def test_the_rows_of_validation_and_test_are_audited_by_a_run_with_its_model(learned, tmp_path, monkeypatch):
    run = copy_of(learned, tmp_path / "run")
    rows = read_rows(learned.folder.parent / "train.jsonl")
    predictor = load(run.folder)
    answers = [
        {**row, "location": f"train.jsonl:{n}", "answer": predictor(row)} for n, row in enumerate(rows, 1)
    ]
    write_rows(run.predictions("train-oof"), answers)
    audit = bertkit.audit(run.folder, tmp_path / "audit")
    assert {*audit.frame()["location"]} == WRONG
    assert set(zip(audit.frame()["split"], audit.frame()["label"], strict=True)) == {
        ("validation", "good"), ("validation", "bad"), ("test", "bad")}  # fmt: skip
    words = ["bertkit", "train", f"{run.folder}/recipe.yaml", f"data.relabel={tmp_path}/audit/labels.jsonl"]
    assert shlex.join(words) in unescape(page_of(audit))
    unlabelled = [{"split": "test", "text": "x", "answer": answers[0]["answer"]}]
    assert labels(run.recipe, answers, unlabelled).notes[0] == "Audited rows: 16 of train."
    (run.model / "config.json").unlink()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "Audited rows: 16 of train.<" in page_of(bertkit.audit(run, "~/without"))
    assert (tmp_path / "without/audit.html").is_file()


def page_of(audit):
    return (audit.folder / "audit.html").read_text()


@pytest.mark.parametrize("kind", ["single-label", "tags"])
def test_the_rows_of_validation_and_test_are_audited_by_a_fold_with_its_model(
    kind, tiny_encoder, tmp_path, capsys
):
    """And the page trains the recipe that was named, not the one that judges."""
    file = write_recipe(tmp_path, tiny_encoder)
    folder = tmp_path / "audit"
    judge = "folds=2 task.method=head ~training data.limit=16".split()
    if kind == "tags":
        file = Path("ner-quickstart")
        judge = [f"model.name={tiny_encoder}", "model.max_length=32", "folds=2"]
        judge += ["training.max_steps=2", "data.limit=16"]
    small.said(capsys, "audit", file, *judge, "--output-dir", folder)
    audit = bertkit.audit(str(file), folder, overrides=judge)
    words = ["bertkit", "train", str(file), "data.limit=16", f"data.relabel={folder}/labels.jsonl"]
    assert shlex.join(words) in unescape(page_of(audit))
    if kind == "tags":
        assert "16 of train, 16 of validation, 16 of test." in page_of(audit)
        return
    assert f"{LOOKED} Rows of train are" in page_of(audit)
    assert {*audit.frame()["location"]} >= WRONG
    corrected = small.recipe(tmp_path, tiny_encoder, f"data.relabel={folder}/labels.jsonl")
    for split, index in (("validation", 2), ("validation", 5), ("test", 1)):
        before = read_rows(tmp_path / f"{split}.jsonl")[index]["label"]
        after = read_data(corrected.data, get_task(corrected.task.name), corrected.task).rows[split][index]
        assert {before, after["label"]} == {"good", "bad"}


def test_a_long_list_is_whole_in_its_files_and_shortened_on_the_page():
    rows = [{"location": f"train.csv:{number}", "text": "x", "given": "a"} for number in range(250)]
    recipe = SimpleNamespace(data=SimpleNamespace(relabel="first.jsonl"))
    lists = corrections(recipe, Path("audit"))
    part = Section("labels", "Labels to check", "Many.", rows, ["given"])
    html = page(get_task("text-classification").schema, [part], Path("audit"), ["a.yaml", lists])
    assert well_formed(html, beside=r"labels\.(jsonl|csv)").text.count("train.csv:") == 100
    assert "The first 100 are listed here" in html
    assert 'bertkit train a.yaml \'data.relabel=["first.jsonl", "audit/labels.jsonl"]\'' in unescape(html)


def test_a_run_with_overrides_is_cross_validated_again(tiny_encoder, tmp_path, monkeypatch):
    run = run_with_answers(tmp_path, tiny_encoder)
    trained = []

    def cross_validate(recipe, folder):
        trained.append((recipe.folds, folder))
        return run / "predictions/train-oof.jsonl"

    monkeypatch.setattr(program, "cross_validate", cross_validate)
    bertkit.audit(run, tmp_path / "as it is")
    assert not trained
    bertkit.audit(run, tmp_path / "changed", folds=3)
    assert main(["audit", str(run), "folds=4", "--output-dir", f"{tmp_path}/by command"]) == 0
    assert trained == [(3, tmp_path / "changed"), (4, tmp_path / "by command")]

    def near_duplicates(*_):
        return {}["bug"]

    monkeypatch.setattr(program, "near_duplicates", near_duplicates)  # a bug is not told as damage
    raises(KeyError, "bug", bertkit.audit, run, tmp_path / "audit")


def test_what_cannot_be_audited_is_said_before_anything_is_written(tiny_encoder, tmp_path, capsys):
    run = run_with_answers(tmp_path, tiny_encoder)
    other = tmp_path / "other"
    audited = tmp_path / "audited"
    new = tmp_path / "new"

    def said(*words, into=new):
        return refused(capsys, "audit", *words, "--output-dir", into)

    write_rows(other / "notes.jsonl", [])
    bertkit.audit(run, audited)
    recipe = tmp_path / "small.yaml"
    assert "is neither empty nor an audit" in said(run, into=other)
    assert "is a file" in said(run, into=other / "notes.jsonl")
    assert "was started with another recipe" in said(recipe, "folds=3", into=audited)
    assert "none.yaml" in said(tmp_path / "none.yaml")
    assert str(other) in said(other)
    assert "no labels to audit" in said(recipe, "task.name=pretraining")
    assert "next: there is no file to choose rows from" in said(run, "--next", 5)
    (audited / "results.json").write_text("{}")  # as in a finished run, which an audit does not write into
    assert "is neither empty nor an audit" in said(run, into=audited)
    answers = run / "predictions/train-oof.jsonl"
    lines = answers.read_text().splitlines()
    for damage, what in (
        ([*lines[:3], lines[3][:-20]], "train-oof.jsonl:4: is damaged"),
        ([], "train-oof.jsonl:1: is not a row with a model's answer"),
        (
            [line.replace('"scores"', '"other"') for line in lines],
            "train-oof.jsonl:1: is not a row with a model's answer",
        ),
        ([*lines[:3], "[]"], "train-oof.jsonl:4: is damaged"),
    ):
        answers.write_text("\n".join(damage))
        assert what in said(run)
    assert not new.exists()


@pytest.mark.parametrize(
    "task", [{"name": "text-ranking"}, {"name": "sentence-similarity", "loss": "cosent"}]
)
def test_scores_that_are_no_probabilities_have_no_audit_of_labels(task):
    rows = [{"query": "q", "document": "d", "label": 1.0, "answer": {"score": 0.5}}]
    part = labels(*evidence(rows, **task))
    assert not part.rows
    assert part.summary.startswith(f"There is no audit of labels for {task['name']}")


def test_the_command_has_data_settings_of_python_too(tiny_encoder, tmp_path):
    file = write_recipe(tmp_path, tiny_encoder)
    out = write_rows(tmp_path / "out.jsonl", [{"location": "train.jsonl:1"}])
    done = bertkit.audit(str(file), tmp_path / "a", folds=2, exclude=str(out))
    text = (done.folder / "audit.html").read_text()
    assert "data.relabel=" not in text or f"{done.folder}/recipe.yaml folds=null" in text


def test_small_numbers_are_corrected_by_small_numbers():
    cosines = default_rng(0).uniform(-1, 1, 200)
    scores = 2.5e-5 + 2.5e-5 * cosines
    scores[17] += 3e-5
    rows = [
        {"text_a": str(row), "text_b": "", "score": score, "answer": {"score": cosine}}
        for row, (score, cosine) in enumerate(zip(scores.tolist(), cosines.tolist(), strict=True))
    ]
    part = numbers(*evidence(rows), "score", "score")
    assert part.rows[0]["text_a"] == "17"
    assert part.rows[0]["score"] == pytest.approx(2.5e-5 + 2.5e-5 * cosines[17], rel=0.05)
