"""Parts of an audit: each finds what was planted, and agrees with brute force, scipy or published numbers."""

from pathlib import Path

import numpy as np
import pytest
import small
from numpy.random import default_rng
from small import raises, read_rows, refused, said, write_recipe, write_rows

import bertkit
from bertkit.audits import duplicates as module
from bertkit.audits.audit import page
from bertkit.audits.duplicates import PROBLEMS, clusters, connected, duplicates, near_duplicates
from bertkit.audits.next_rows import Unlabelled, chosen, next_part, next_rows, read_unlabelled
from bertkit.audits.parts import centred, joined, unit_vectors
from bertkit.data import load
from bertkit.errors import DataError, RecipeError, UserError
from bertkit.recipe.recipe import load_recipe
from bertkit.tasks import get_task


def unit(vectors):
    vectors = np.asarray(vectors, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def turned(*degrees):
    """Unit vectors at these angles."""
    angles = np.radians(degrees)
    return unit(np.stack([np.cos(angles), np.sin(angles)], axis=1))


def schema_of(row):
    """The schema of the task that has such rows."""
    tasks = {
        "tokens": "token-classification",
        "context": "question-answering",
        "anchor": "sentence-similarity",
    }
    return get_task(next((tasks[name] for name in tasks if name in row), "text-classification")).schema


def placed(rows):
    return [
        {"split": "train", "location": f"train.csv:{number}", **row} for number, row in enumerate(rows, 2)
    ]


# --- near-duplicates


def groups(pairs, count):
    """The connected components of more than one, joined pair by pair."""
    own = [{number} for number in range(count)]
    for one, other in pairs:
        own[one] |= own[other]
        for number in own[one]:
            own[number] = own[one]
    return {frozenset(each) for each in own if len(each) > 1}


@pytest.mark.parametrize("block", [1, 7, 60, 2048])
@pytest.mark.parametrize("threshold", [0.85, 0.95])
def test_clusters_are_those_of_all_pairs(monkeypatch, block, threshold):
    monkeypatch.setattr(module, "BLOCK", block)
    random = default_rng(0)
    vectors = unit(np.repeat(random.normal(size=(20, 6)), 3, axis=0) + 0.4 * random.normal(size=(60, 6)))
    vectors = vectors[random.permutation(60)]
    cosines = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    pairs = [(i, j) for i in range(60) for j in range(i) if cosines[i, j] >= threshold]
    labels = connected(vectors, threshold)
    found = {frozenset(np.flatnonzero(labels == label).tolist()) for label in labels}
    expected = groups(pairs, 60)
    assert {each for each in found if len(each) > 1} == expected
    assert len(expected) > 3


def test_rows_are_near_duplicates_where_all_of_their_texts_are():
    rng = default_rng(0)
    vectors = [
        unit(np.repeat(rng.normal(size=(8, 4)), 5, axis=0) + 0.3 * rng.normal(size=(40, 4))) for _ in range(2)
    ]
    texts = [[f"{column} {number}" for number in range(40)] for column in "qc"]
    number = clusters(texts, vectors, 0.9)
    expected = []
    for own in vectors:
        near = own @ own.T >= 0.9
        for _ in range(6):
            near = near @ near
        expected.append(near)
    assert np.array_equal(number[:, None] == number[None], expected[0] & expected[1])
    assert 1 < len(set(number)) < 40


def test_the_mirror_of_a_pair_is_a_duplicate_where_order_does_not_count():
    pairs = [("a", "b", 1.0), ("B", "a ", 5.0), ("c", "d", 1.0), ("d.", "c", 1.0), ("a", "c", 1.0)]
    rows = placed([{"text_a": a, "text_b": b, "score": score} for a, b, score in pairs])
    angle = {"a": 0, "b": 60, "c": 120, "d": 180}
    sides = [turned(*(angle[pair[side].lower()[0]] for pair in pairs)) for side in (0, 1)]
    found = duplicates(get_task("sentence-similarity").schema, rows, [unit(sides[0] + sides[1])]).rows
    problem = ["same text, different target"] * 2 + ["repeated"] * 2
    assert [(row["location"], row["problem"], row["cosine"]) for row in found] == [
        (f"train.csv:{line}", what, 1.0) for line, what in zip((2, 3, 4, 5), problem, strict=True)
    ]
    assert not duplicates(get_task("sentence-similarity").schema, rows, sides).rows


def test_conflicts_are_listed_before_leaks_and_leaks_before_repetition():
    rows = placed([
        {"text": "a", "label": "x"}, {"text": "a ", "label": "x"},
        {"text": "b", "label": "x"}, {"text": "b.", "label": "x", "split": "test", "location": "test.csv:2"},
        {"text": "c", "label": "x"}, {"text": "c.", "label": "y"},
        {"text": "d", "label": "x", "id": 7}, {"text": "D", "label": "y"},
        {"text": "e", "label": "x"},
    ])  # fmt: skip
    part = duplicates(schema_of({}), rows, [turned(0, 0, 60, 62, 120, 122, 180, 180, 240)])
    found = [(row["cluster"], row["location"], row["problem"], row["target"]) for row in part.rows]
    assert found == [
        (1, "train.csv:8", "same text, different target", "x"),
        (1, "train.csv:9", "same text, different target", "y"),
        (2, "train.csv:6", "nearly the same text, different target", "x"),
        (2, "train.csv:7", "nearly the same text, different target", "y"),
        (3, "train.csv:4", "in several splits", "x"),
        (3, "test.csv:2", "in several splits", "x"),
        (4, "train.csv:2", "repeated", "x"),
        (4, "train.csv:3", "repeated", "x"),
    ]
    assert part.rows[0]["id"] == 7
    assert part.rows[2]["cosine"] == 1
    assert part.rows[3]["cosine"] == pytest.approx(np.cos(np.radians(2)), abs=1e-4)
    assert part.summary == "4 clusters of near-duplicates: 2 with different targets; 1 is in several splits."


def test_what_contradicts_depends_on_the_target():
    for first, second, problem in (
        ({"text": "a", "labels": ["x", "y"]}, {"text": "a", "labels": ["y", "x"]}, "repeated"),
        ({"text": "a", "labels": ["x", "y"]}, {"text": "a.", "labels": ["x"]},
         "nearly the same text, different target"),
        ({"text": "a", "score": 1.0}, {"text": "a.", "score": 1.9}, "repeated"),
        ({"text": "a", "score": 1.0}, {"text": "a.", "score": 2.1}, "nearly the same text, different target"),
        ({"tokens": ["a", "b"], "tags": ["O", "B-X"]}, {"tokens": ["a", "b"], "tags": ["B-X", "O"]},
         "same text, different target"),
        ({"tokens": ["a", "b"], "tags": ["O", "B-X"]}, {"tokens": ["a", "c"], "tags": ["O", "O"]}, "repeated"),
        ({"question": "q", "context": "c", "answers": {"text": ["c"], "answer_start": [0]}},
         {"question": "q", "context": "c", "answers": {"text": [], "answer_start": []}}, "same text, different target"),
        ({"question": "q", "context": "c", "answers": {"text": ["c"], "answer_start": [0]}},
         {"question": "q", "context": "C", "answers": {"text": ["C"], "answer_start": [0]}}, "repeated"),
        ({"anchor": "a", "positive": "b"}, {"anchor": "a", "positive": "b."}, "repeated"),
    ):  # fmt: skip
        far = {"score": 6.0} if "score" in first else {}
        third = {name: "far" if isinstance(value, str) else value for name, value in first.items()} | far
        third |= {"tokens": ["far"], "tags": ["O"]} if "tokens" in first else {}
        columns = [turned(0, 1, 90)] * (1 + ("context" in first or "positive" in first))
        part = duplicates(schema_of(first), placed([first, second, third]), columns)
        assert [row["problem"] for row in part.rows] == [problem] * 2


def test_rows_are_compared_by_the_mean_of_their_columns_and_without_what_all_vectors_share():
    vectors = joined([turned(0, 60), turned(0, 0)])
    assert vectors @ vectors.T == pytest.approx(np.asarray([[1, 0.75], [0.75, 1]]))
    vectors = unit([[10, 1, 0], [10, 0, 1], [10, -1, 0], [10, 0, -1]])
    assert (vectors @ vectors.T).min() > 0.95
    found = centred(vectors)
    expected = np.asarray([[1, 0, -1, 0], [0, 1, 0, -1], [-1, 0, 1, 0], [0, -1, 0, 1]])
    assert found @ found.T == pytest.approx(expected, abs=1e-6)


def evidence(folder, encoder, kind="single-label"):
    """The rows of a small recipe, with answers that are right but for the rows 2 and 5."""
    recipe = small.recipe(folder, encoder, kind=kind)
    rows = []
    names = ("good", "bad", *["long"] * (kind == "multi-label"))
    for number, row in enumerate(read_rows(folder / "train.jsonl")):
        p = 0.9 if number not in (2, 5) else 0.2
        own = row.get("labels", [row.get("label")])
        scores = {name: p if name in own else 1 - p for name in names}
        rows.append({**row, "location": f"train.jsonl:{number + 1}", "fold": 1, "answer": {"scores": scores}})
    return recipe, rows


def test_near_duplicates_of_all_splits_but_no_documents_that_splits_of_retrieval_share(
    tiny_encoder, tmp_path
):
    write_recipe(tmp_path, tiny_encoder)
    recipe, rows = evidence(tmp_path, tiny_encoder)
    test = read_rows(tmp_path / "test.jsonl")
    write_rows(tmp_path / "test.jsonl", [*test, {**rows[3], "label": "good"}])
    near = near_duplicates(recipe, rows, unit_vectors(recipe.model))
    first = [(row["location"], row["target"]) for row in near.rows if row["problem"] == PROBLEMS[0]]
    assert {("train.jsonl:4", "bad"), ("test.jsonl:8", "good")} <= set(first)
    assert all(row[name] is not None for row in near.rows for name in (*near.columns, "text"))
    recipe = load_recipe("retrieval-quickstart", [f"model.name={tiny_encoder}", "model.max_length=32"])
    kind = get_task("retrieval")
    data = load(recipe.data, kind.schema_of(recipe.task), kind.rules(recipe.task), splits={"train"})
    rows = [
        {**row, "location": f"train:{number}", "answer": {}} for number, row in enumerate(data.rows["train"])
    ]
    alike = near_duplicates(recipe, rows, unit_vectors(recipe.model))
    assert {row["split"] for row in alike.rows} <= {"train"}


def test_texts_of_unknown_tokens_are_compared_as_they_are_written(tiny_encoder, tmp_path):
    write_recipe(tmp_path, tiny_encoder)
    recipe, rows = evidence(tmp_path, tiny_encoder)
    others = ["ខ្ញុំស្រឡាញ់ភាពយន្ត", "ឡានរបស់គាត់ខូច.", "ផ្ទះបាយមានក្លិនឈ្ងុយ", "ផ្ទះបាយមានក្លិនឈ្ងុយ "]
    rows += [
        {"text": text, "label": "good", "location": f"x:{n}", "answer": {}} for n, text in enumerate(others)
    ]
    near = near_duplicates(recipe, rows, unit_vectors(recipe.model)).rows
    assert [(row["location"], row["cosine"]) for row in near if row["location"][0] == "x"] == [
        ("x:2", 1),
        ("x:3", 1),
    ]


# --- what to label next


def test_the_least_sure_rows_are_chosen_each_text_once_and_of_words_the_mean_entropy_counts():
    table = [[0.45, 0.5, 0.05], [0.5, 0.44, 0.06], [0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [1.0, 0.0, 0.0]]
    rows = placed([{"text": text} for text in "abcde"])
    answers = [{"scores": dict(zip("xyz", each, strict=True))} for each in table]
    part = next_rows(Unlabelled("new.csv", 4, rows, rows, schema_of({})), answers)
    assert [row["text"] for row in part.rows] == "a b d c".split()  # by margins of 0.05, 0.06, 0.2 and 0.8
    scores = np.asarray([0.95, 0.94, 0.2, 0.8, 0.0])
    assert chosen(scores, ["a", "A ", "c", "d", "e"], 3) == [0, 3, 2]
    assert chosen(scores, "a b c d e".split(), 3) == [0, 1, 3]
    assert chosen(scores, ["a", "A ", "c", "d", "e"], 9) == [0, 3, 2, 4]
    several = [{"labels": [], "scores": scores} for scores in ({"x": 0.3, "y": 0.3}, {"x": 0.01, "y": 0.48})]
    rows = placed([{"text": "both a little"}, {"text": "one hardly known"}])
    part = next_rows(Unlabelled("new.csv", 2, rows, rows, schema_of({})), several)
    # by the least sure label
    assert [each["text"] for each in part.rows] == [
        "one hardly known",
        "both a little",
    ]

    def answer(*probabilities):
        words = [{"word": f"w{n}", "scores": {"O": p, "X": 1 - p}} for n, p in enumerate(probabilities)]
        words.append({"word": "\ufffd", "scores": {}})
        return {"words": words, "entities": [{"text": "w0", "label": "X"}]}

    answers = [answer(0.5, 1.0, 1.0), answer(0.9, 0.1), answer(), answer(0.3)]
    rows = placed([{"text": f"text {number}"} for number in range(4)])
    part = next_rows(Unlabelled("new.csv", 9, rows, rows, schema_of({})), answers)
    assert [row["text"] for row in part.rows] == ["text 3", "text 1", "text 0", "text 2"]
    assert [(row["answer"], row["probability"], row["reason"]) for row in part.rows] == [
        ("w0 (X)", 0.7, "“w0”: X 70%"),
        ("w0 (X)", 0.9, "“w0”: O 90%"),
        ("w0 (X)", 0.5, "“w0”: O 50%"),
        ("", 1.0, "no words"),
    ]


@pytest.mark.parametrize("kind", ["single-label", "multi-label"])
def test_rows_to_label_next_are_those_of_the_file_as_they_are(tiny_encoder, tmp_path, kind):
    recipe, labelled = evidence(tmp_path, tiny_encoder, kind)
    recipe = recipe.with_(columns={"text": "body"})
    rows = [{"body": small.text(number, 0), "nr": number} for number in range(8)]
    file = write_rows(tmp_path / "new.jsonl", rows)
    part = next_part(
        recipe, labelled, read_unlabelled(recipe, file, 3, None), unit_vectors(recipe.model), None
    )
    assert part.summary == "3 of 8 rows (37.5%) are to be labelled next, from new.jsonl."
    assert part.columns == ("body", "answer", "probability", "reason")
    for row in part.rows:
        number = int(row["location"].removeprefix("new.jsonl:")) - 1
        assert {"body": row["body"], "nr": row["nr"]} == rows[number]
        assert 0.5 <= row["probability"] <= 1
        assert "%" in row["reason"]
    assert len({row["nr"] for row in part.rows}) == 3
    bad = write_rows(tmp_path / "bad.jsonl", [{"body": "x", "reason": 1}])
    raises(
        DataError,
        r"bad\.jsonl: the rows have a column `reason` already",
        read_unlabelled,
        recipe,
        bad,
        3,
        None,
    )
    raises(UserError, "next: must be at least 1, found 0", read_unlabelled, recipe, file, 0, None)


def test_rows_are_not_chosen_without_probabilities(tiny_encoder, tmp_path):
    recipe, _ = evidence(tmp_path, tiny_encoder)
    given = read_unlabelled(recipe, tmp_path / "train.jsonl", 3, None)
    part = next_part(recipe, [{"text": "a", "score": 1.0}], given, unit_vectors(recipe.model), None)
    assert part.rows == ()
    assert "regression predictions have no probabilities" in part.summary
    words = load_recipe("ner-quickstart")
    raises(
        RecipeError,
        "token-classification is not supported without a trained model",
        read_unlabelled,
        words,
        tmp_path / "train.jsonl",
        3,
        None,
    )


# --- the command


def test_the_command_chooses_rows(tiny_encoder, tmp_path, capsys):
    file = write_recipe(tmp_path, tiny_encoder)
    new = write_rows(tmp_path / "new.jsonl", [{"text": small.text(n, 0), "nr": n} for n in range(30)])
    more = write_rows(tmp_path / "more.jsonl", small.rows("single-label", 24))
    words = ("audit", file, f"data.source.train={more}", "folds=2", "--output-dir", tmp_path / "audit")
    told = said(capsys, *words, "--unlabelled", new, "--next", 4)
    assert "4 of 30 rows (13.3%) are to be labelled next, from new.jsonl." in told
    found = read_rows(tmp_path / "audit/next.jsonl")
    assert [row["location"] for row in found] == [f"new.jsonl:{row['nr'] + 1}" for row in found]
    assert (tmp_path / "audit/next.csv").is_file()
    page = (tmp_path / "audit/audit.html").read_text()
    assert all(f'id="{part}"' in page for part in ("duplicates", "next"))
    answers = (tmp_path / "audit/predictions/train-oof.jsonl").read_bytes()
    (tmp_path / "audit/audit.html").unlink()
    said(capsys, *words)  # it continues where it was stopped
    assert (tmp_path / "audit/audit.html").is_file()
    assert (tmp_path / "audit/predictions/train-oof.jsonl").read_bytes() == answers
    bad = write_rows(tmp_path / "bad.jsonl", [{"body": "x"}])
    other = ("audit", file, "--output-dir", tmp_path / "other", "--unlabelled", bad)
    assert "text" in refused(capsys, *other)
    assert not (tmp_path / "other").exists()  # before anything is trained


def test_a_run_with_a_model_answers_the_rows_to_choose_from(tiny_encoder, tmp_path):
    run = small.trained(tmp_path, tiny_encoder, "folds=2", "training.num_train_epochs=1")
    new = write_rows(tmp_path / "new.jsonl", [{"text": f"the {word} was good"} for word in small.WORDS])
    done = bertkit.audit(run.folder, tmp_path / "audit", unlabelled=new, next=2)
    texts = [row["text"] for row in read_rows(new)]
    answers = dict(zip(texts, bertkit.load(run.folder)(texts), strict=True))
    for row in read_rows(tmp_path / "audit/next.jsonl"):
        answer = answers[row["text"]]
        score = pytest.approx(answer["score"], abs=2e-4)  # it has four decimals
        assert (row["answer"], row["probability"]) == (answer["label"], score)
    assert [part.name for part in done.parts] == ["labels", "duplicates", "next"]


@pytest.mark.parametrize(("mapped", "own"), [("body", "text"), ("review.text", "review.text"), ("0", "0")])
def test_the_page_shows_rows_to_label_whatever_their_columns_are_called(tiny_encoder, tmp_path, mapped, own):
    recipe, labelled = evidence(tmp_path, tiny_encoder)
    recipe = recipe.with_(columns={"text": mapped})
    file = write_rows(tmp_path / "new.jsonl", [{own: small.text(number, 0)} for number in range(4)])
    rows = read_unlabelled(recipe, file, 2, None)
    part = next_part(recipe, labelled, rows, unit_vectors(recipe.model), None)
    shown = page(get_task("text-classification").schema, [part], Path("a"), ["recipe.yaml"])
    assert small.text(0, 0).split()[-1] in shown.partition("<tbody")[2]


def test_values_of_one_label_do_not_contradict(tiny_encoder, tmp_path):
    recipe, rows = evidence(tmp_path, tiny_encoder)
    recipe = recipe.with_(task={"labels": {"good": "good", "fine": "good", "bad": "bad"}})
    good = next(row for row in rows if row["label"] == "good")
    pairs = near_duplicates(recipe, [good, {**good, "label": "fine"}], unit_vectors(recipe.model)).rows
    alike = [row for row in pairs if row["text"] == good["text"]]
    assert alike
    assert {row["target"] for row in alike if row["split"] == "train"} == {"good"}
    assert all("different" not in row["problem"] for row in alike)


def test_a_text_with_two_targets_in_two_splits_is_counted_in_both():
    rows = [
        {"text": "a", "label": "x"},
        {"text": "a", "label": "y", "split": "test", "location": "test.csv:2"},
    ]
    summary = duplicates(schema_of({}), placed(rows), [turned(0, 0)]).summary
    assert summary.endswith("1 with different targets; 1 is in several splits.")
