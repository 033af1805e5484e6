"""Cross-validation: a row is answered by a model that has never seen it."""

import shutil
from array import array
from collections import Counter

import pytest
import small
from cases import CASES, QA
from finished import report
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from small import raises, read_as, read_rows, write_rows
from test_resume import killed, timeless

from bertkit.data.origin import Origin
from bertkit.data.schema import Column
from bertkit.data.splits import fold_rows, folds, names_of
from bertkit.data.table import Table
from bertkit.data.values import text_keys
from bertkit.errors import DataError, RecipeError
from bertkit.files import read_json, sha256, write_text
from bertkit.recipe.recipe import load_recipe, to_yaml
from bertkit.report import report_sections
from bertkit.report.card import card
from bertkit.report.facts import read_facts
from bertkit.report.score_tables import after_training
from bertkit.report.verdict import score_findings, verdict
from bertkit.run import Run, delete_checkpoints
from bertkit.tasks import get_task
from bertkit.training.folds import cross_validate
from bertkit.training.train import train

LABEL = names_of(Column("label", ""))


def table(labels, texts=None, groups=None):
    origin = Origin(
        ["f:"], array("H", [0] * len(labels)), array("q", range(len(labels))), array("q", groups or [])
    )
    return Table({"label": labels, "text": texts or [f"text {n}" for n in range(len(labels))]}, origin)


@given(st.lists(st.sampled_from("aab"), min_size=4, max_size=60), st.integers(2, 4), st.integers(0, 9))
def test_folds_of_single_rows_have_nearly_equal_sizes_and_shares_of_labels(labels, count, seed):
    of = folds(table(labels), count, seed, "label", LABEL, ["text"])
    assert len(of) == len(labels)
    sizes = Counter(of)
    assert sizes.keys() == set(range(1, count + 1))
    assert max(sizes.values()) - min(sizes.values()) <= 1
    by_label = Counter(zip(of, labels, strict=True))
    for label in set(labels):
        shares = [by_label[fold, label] for fold in range(1, count + 1)]
        assert max(shares) - min(shares) <= 1


def test_pairs_in_either_order_are_in_one_fold():
    first, second = ([f"{side} {n}" for n in range(20)] for side in "ab")
    pairs = Table({"text": first + second, "b": second + first}, table(["a"] * 40).origin)
    of = folds(pairs, 2, 1, None, None, ["text", "b"], unordered=2)
    assert of[:20] == of[20:]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 12)), min_size=6, max_size=50)
)
def test_rows_of_one_text_or_group_are_in_one_fold(rows):
    rows = [*rows, ("a", 10, 13), ("b", 11, 14)]  # at least two groups
    labels, texts, groups = ([*column] for column in zip(*rows, strict=True))
    given_rows = table(
        labels, [f"Text  {n}" if place % 2 else f"text {n}" for place, n in enumerate(texts)], groups
    )
    of = folds(given_rows, 2, 1, "label", LABEL, ["text"])
    assert set(of) == {1, 2}
    for keys in (texts, groups):
        for key in set(keys):
            assert len({fold for fold, own in zip(of, keys, strict=True) if own == key}) == 1


def test_folds_of_groups_are_of_about_the_same_size_and_those_of_numbers_have_all_sizes():
    groups = [group for group in range(40) for _ in range(1 + group % 7)]
    of = folds(table(["ab"[group % 2] for group in groups], groups=groups), 5, 3, "label", LABEL)
    sizes = Counter(of).values()
    assert max(sizes) - min(sizes) <= 2
    shares = Counter(zip(of, (group % 2 for group in groups), strict=True))
    assert max(shares.values()) - min(shares.values()) <= 4
    numbers = [float(n) for n in range(100)]
    of = folds(table(numbers), 5, 7, "label")
    for fold in range(1, 6):
        own = [number for number, each in zip(numbers, of, strict=True) if each == fold]
        assert [sum(low <= n < low + 10 for n in own) for low in range(0, 100, 10)] == [2] * 10


def test_folds_are_the_same_on_every_platform_and_refused_of_fewer_rows_or_groups():
    labels = list("aabbbabcab")
    expected = [3, 1, 1, 3, 2, 1, 3, 1, 2, 2]
    assert folds(table(labels), 3, 42, "label", LABEL) == expected
    assert folds(table(labels), 3, 43, "label", LABEL) != expected
    said = r"2 folds need at least 2 groups; train has 1 \(3 rows\)"
    raises(DataError, said, folds, table(["a", "b", "a"], groups=[5, 5, 5]), 2, 0, "label", LABEL)
    said = r"folds: 4 folds need at least 4 groups; train has 3 \(3 rows\)"
    raises(DataError, said, folds, table(["a", "b", "a"]), 4, 0, "label", LABEL)


def test_rows_that_a_task_or_the_recipe_groups_are_in_one_fold(tmp_path):
    asked = [
        (f"the {a} ?", f"it was {b} and red") for b in "good bad fine blue".split() for a in small.WORDS[:3]
    ]
    rows = [
        {"question": q, "context": c, "answers": ["red"], "customer": n % 5} for n, (q, c) in enumerate(asked)
    ]
    source = write_rows(tmp_path / "train.jsonl", rows)
    data = read_as(QA, {"train": source})
    of, findings = fold_rows(data, 2, 42, get_task("question-answering").schema.group_columns)
    assert not findings
    assert Counter(of) == {1: 6, 2: 6}
    assert len(set(zip(of, (row["context"] for row in rows), strict=True))) == 4
    grouped = read_as(QA, {"train": source}, group_by="customer", limit=11)
    of, _ = fold_rows(grouped, 2, 42, ())
    kept = [
        rows[int(grouped.origins["train"].public(place).rpartition(":")[2]) - 1]["customer"]
        for place in range(11)
    ]
    assert len(set(zip(of, kept, strict=True))) == len(set(kept))


# --- training


@pytest.fixture(scope="module")
def recipe(tiny_encoder_with_dropout, tmp_path_factory):
    """Without a validation split."""
    settings = ("folds=3", "task.labels=[good, bad]", "training.save_strategy=epoch")
    room = tmp_path_factory.mktemp("folds")
    return small.recipe(room, tiny_encoder_with_dropout, *settings, splits=("train",))


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    return train(recipe, tmp_path_factory.mktemp("run") / "run")


def test_answers_are_those_of_a_model_trained_on_the_other_rows(recipe, run, tmp_path):
    lines = read_rows(run.predictions("train-oof"))
    rows = small.rows("single-label", small.SIZES["train"])
    assert [line["text"] for line in lines] == [row["text"] for row in rows]
    assert [line["location"] for line in lines] == [f"train.jsonl:{n}" for n in range(1, len(rows) + 1)]
    others = [row for row, line in zip(rows, lines, strict=True) if line["fold"] != 2]
    held = [{"text": row["text"]} for row, line in zip(rows, lines, strict=True) if line["fold"] == 2]
    source = write_rows(tmp_path / "others.jsonl", others)
    alone = train(recipe.with_("folds=null", f"data.source.train={source}"), tmp_path / "alone")
    assert [line["answer"] for line in lines if line["fold"] == 2] == alone.load()(held)


def test_without_held_out_rows_the_out_of_fold_score_is_the_one_reported(run):
    results = run.results
    lines = read_rows(run.predictions("train-oof"))
    assert list(results["splits"]) == ["train-oof"]
    right = sum(line["answer"]["label"] == line["label"] for line in lines)
    pooled = results["splits"]["train-oof"]
    assert pooled["metrics"]["accuracy"] == right / len(lines)
    low, high = pooled["intervals"]["accuracy"]
    assert low <= right / len(lines) <= high
    found = results["folds"]
    assert found["count"] == 3
    assert [each["fold"] for each in found["each"]] == [1, 2, 3]
    assert sum(each["rows"] for each in found["each"]) == len(lines)
    each = [fold["metrics"]["accuracy"] for fold in found["each"]]
    assert found["mean"]["accuracy"] == pytest.approx(sum(each) / 3)
    assert found["sd"]["accuracy"] == pytest.approx((sum((x - sum(each) / 3) ** 2 for x in each) / 2) ** 0.5)
    assert not (run.folder / "predictions/train.jsonl").exists()


def test_the_model_has_the_temperature_of_the_out_of_fold_answers_and_folds_keep_no_checkpoints(
    run, tmp_path
):
    options = run.load().task.options
    assert options.temperature not in (None, 1.0)
    assert options.conformal is None
    kept = sorted(path.name for path in (run.checkpoints / "fold-2").iterdir())
    assert kept == "answers.jsonl done.json metrics.jsonl recipe.sha256".split()
    assert delete_checkpoints(Run(shutil.copytree(run.folder, tmp_path / "run")), "best") > 0


def test_report_card_and_summary_show_the_folds(run, capsys):
    facts = read_facts(run.folder)
    assert facts.split == "train-oof"
    rows = report_sections.fold_rows(facts)
    assert len(rows) == 5
    assert rows[-1][2] in report(facts)
    said = after_training(run.folder, run.results)
    assert f"over 3 folds (mean ± sd): {rows[-1][2]}" in said
    assert "training rows: this says nothing" not in said
    text = card(facts)
    for shown in (
        f"over 3 folds (mean ± sd): {rows[-1][2]}",
        "of train-oof, ",
        "models of folds  95 % interval",
    ):
        assert shown in text
    for hidden in ("scored above", "this model  95 %"):
        assert hidden not in text
    assert ModelCard(text).data.eval_results is None  # there is no held-out split
    assert (run.folder / "mistakes.csv").is_file()
    shown = report_sections.reliability(facts).alt  # models of folds are not calibrated
    assert (
        f"before calibration the expected calibration error is {facts.scores['metrics']['ece']:.3f}" in shown
    )
    assert "after calibration" not in shown


def test_baselines_learn_from_the_other_folds_and_are_compared_over_folds(run):
    results = run.results
    lines = read_rows(run.predictions("train-oof"))
    scores = []
    for fold in (1, 2, 3):
        counts = Counter(line["label"] for line in lines if line["fold"] != fold)
        # of equal ones, the first in the order of the ids
        majority = max(("good", "bad"), key=counts.__getitem__)
        own = [line["label"] for line in lines if line["fold"] == fold]
        scores.append(own.count(majority) / len(own))
    assert results["baselines"]["train-oof"]["majority"]["accuracy"] == pytest.approx(sum(scores) / 3)
    low = {**results["folds"], "mean": {"accuracy": 0.1}}
    assert verdict({**results, "folds": low}, []).text.startswith(("No better than", "Clearly worse than"))
    assert any("at least as good" in each.what for each in score_findings({**results, "folds": low}))
    high = {**results["folds"], "mean": {"accuracy": 1.1}}
    assert verdict({**results, "folds": high}, []).text.startswith("Better than")
    assert not any("at least as good" in each.what for each in score_findings({**results, "folds": high}))


def test_resumed_in_the_second_fold_it_is_the_run_that_was_never_stopped(recipe, run, tmp_path):
    """Each fold has two epochs of three steps; the second one is killed after its first checkpoint."""
    folder = killed(recipe, tmp_path / "run", at=6 + 5).folder
    first = sha256(folder / "checkpoints/fold-1/answers.jsonl")
    assert [path.name for path in (folder / "checkpoints/fold-2").glob("checkpoint-*")] == ["checkpoint-3"]
    resumed = train(recipe, folder, resume=True)
    assert sha256(folder / "checkpoints/fold-1/answers.jsonl") == first
    assert timeless(resumed.results) == timeless(run.results)
    for name in ("predictions/train-oof.jsonl", "model/model.safetensors", "model/config.json"):
        assert sha256(folder / name) == sha256(run.folder / name)


def test_a_fold_is_never_continued_with_other_rows(recipe, tmp_path):
    folder = tmp_path / "run"
    quick = recipe.with_("training.max_steps=1")
    cross_validate(quick, folder)
    write_text(folder / "recipe.yaml", to_yaml(other := quick.with_("data.seed=1")))
    said = "the folds differ from those this run was started with"
    raises(DataError, said, train, other, folder, resume=True, changed=True)
    assert Run(folder).recipe == other  # and nothing is written
    assert train(quick, folder, resume=True, changed=True).finished


def test_cross_validation_alone_writes_the_same_answers_and_continues(recipe, run, tmp_path):
    folder = tmp_path / "folds"
    file = cross_validate(recipe, folder)
    assert file == folder / "predictions/train-oof.jsonl"
    assert sha256(file) == sha256(run.predictions("train-oof"))
    found = read_json(folder / "folds.json")
    results = run.results
    assert timeless(found["folds"]) == timeless(results["folds"])
    assert found["train-oof"] == results["splits"]["train-oof"]
    assert not (folder / "model").exists()
    assert (folder / "recipe.yaml").is_file()
    assert (folder / "data.json").is_file()
    before = (folder / "checkpoints/fold-3/done.json").stat().st_mtime_ns
    assert cross_validate(recipe, folder) == file
    assert (folder / "checkpoints/fold-3/done.json").stat().st_mtime_ns == before


def test_with_a_validation_split_folds_are_selected_and_calibrated_on_it(tiny_encoder, tmp_path):
    run = small.trained(tmp_path, tiny_encoder, "folds=2", "seeds=[1, 2]", "training.eval_strategy=epoch")
    assert list(run.results["splits"]) == ["validation", "test", "train-oof"]
    assert all(each["best_step"] for each in run.results["folds"]["each"])
    assert "train-oof" not in run.results["over_seeds"]
    page = ModelCard((run.model / "README.md").read_text())
    assert {each.dataset_split for each in page.data.eval_results} == {"validation", "test"}
    assert "train-oof (16 rows)" in page.text
    (steps,) = {each["steps"] for each in run.results["folds"]["each"]}
    assert steps == 4  # two epochs of 8 rows, 4 at a time


def test_what_folds_cannot_do_is_refused(tiny_encoder, tmp_path):
    for override, told in (
        ("distillation.teacher=t", "folds: the teacher may have been trained on rows that a fold holds out"),
        ("task.name=pretraining", "folds: documents for pretraining have no targets"),
        ("folds=1", "folds: must be at least 2, found 1"),
    ):
        raises(RecipeError, told, small.recipe, tmp_path, tiny_encoder, "folds=2", override)


def test_early_stopping_still_needs_validation_rows_and_a_lonely_label_is_told(recipe, tmp_path):
    stopping = recipe.with_("early_stopping.patience=2")
    raises(DataError, "no validation split, which early_stopping", cross_validate, stopping, tmp_path / "run")
    raises(
        DataError,
        "folds: 17 folds need at least 17 groups",
        cross_validate,
        recipe.with_("folds=17"),
        tmp_path / "run",
    )
    assert not (tmp_path / "run").exists()
    rows = [*small.rows("single-label", 8), {"text": "a cat", "label": "rare"}]
    source = write_rows(tmp_path / "train.jsonl", rows)
    more = ("~task.labels", f"data.source.train={source}", "training.max_steps=1")
    cross_validate(recipe.with_(*more), tmp_path / "run")
    findings = [each["what"] for each in read_json(tmp_path / "run/data.json")["findings"]]
    assert "train: all rows with rare are in one fold, whose model has no such row to learn from" in findings


FOLDED = (
    "multi-label regression qa-windows-or-none retrieval ner-document ranking-listwise linear-head".split()
)


@pytest.mark.parametrize("case", [case for case in CASES if case.id in FOLDED], ids=lambda case: case.id)
def test_every_task_answers_its_training_rows_out_of_fold(case, tiny_encoder, tmp_path):
    rows = case.rows().to_list()
    if "group" in case.columns:  # here a query has several, which would join all of them
        rows = [{**row, "query": f"the {row['group']}"} for row in rows]
    write_rows(tmp_path / "train.jsonl", rows)
    recipe = {
        "task": case.options,
        "model": {"name": str(tiny_encoder), "max_length": case.max_length},
        "data": {"source": {"train": f"{tmp_path}/train.jsonl"}},
        "training": {} if case.options.get("method") == "head" else {"max_steps": 1, "save_strategy": "no"},
        "folds": 2,
    }
    file = cross_validate(load_recipe(recipe), tmp_path / "run")
    lines = read_rows(file)
    assert len(lines) == len(rows)
    assert {line["fold"] for line in lines} == {1, 2}
    found = read_json(tmp_path / "run/folds.json")
    assert found["train-oof"]["rows"] == len(rows)
    assert len(found["folds"]["each"]) == 2
    if "query" in case.columns and "group" not in case.columns:
        for query in {line["query"] for line in lines}:
            assert len({line["fold"] for line in lines if line["query"] == query}) == 1
    if case.options["name"] == "token-classification":
        for line in lines:
            assert all(sum(word["scores"].values()) == pytest.approx(1) for word in line["answer"]["words"])
    if case.options["name"] == "retrieval":  # a query is searched in the documents of all rows
        assert all(len(line["answer"]["found"]) == len(rows) for line in lines)


def test_a_row_without_a_text_has_no_key():
    assert [key is None for key in text_keys(["a", None, "A"])] == [False, True, False]


def test_folds_are_of_a_recipe_by_its_name_too(tmp_path):
    raises(RecipeError, "no such recipe", cross_validate, "none.yaml", tmp_path / "f")
