"""`data.exclude` and `data.relabel`: the same rows as a file that was corrected by hand, and what is refused."""

import csv
import json
from functools import partial

import pandas
import pytest
from small import message_of, notes, raises, read_as, read_data, read_rows, write_recipe, write_rows

from bertkit.data import check
from bertkit.errors import DataError, RecipeError
from bertkit.files import read_json
from bertkit.inference.evaluate import rows_of_split
from bertkit.inference.predictor import load as load_model
from bertkit.recipe.recipe import load_recipe, to_yaml
from bertkit.tasks import get_task
from bertkit.training.train import train

TEXTS = ["the cat sat", "a dog ran", "the mat was red", "it was awful", "one good cat", "two bad dogs"]
LABELS = "good bad good bad good bad".split()
ROWS = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
PLAIN = {"name": "text-classification"}
NER = {"name": "token-classification"}


def read(source, task=PLAIN, splits=None, **data):
    return read_as(task, source, splits=splits, **data)


def write(path, rows):
    """The path as text."""
    return str(write_rows(path, rows))


fails = partial(message_of, DataError, read)


TAGGED = [
    {"tokens": ["the", "cat", "sat"], "tags": ["O", "S-ANIMAL", "O"]},
    {"tokens": ["a", "red", "dog"], "tags": ["O", "B-ANIMAL", "E-ANIMAL"]},
    {"tokens": ["yes"], "tags": ["O"]},
]
SPANS = [
    {"text": "the cat sat", "spans": [[4, 7, "ANIMAL"]]},
    {"text": "a red dog", "spans": []},
    {"text": "yes, no", "spans": []},
]
ASKED = [
    {"id": f"q{n}", "question": "who ?", "context": f"the {who} sat on the {what}", "answers": who}
    for n, (who, what) in enumerate([("cat", "mat"), ("dog", "cat"), ("mat", "dog")])
]
PAIRS = [{"text_a": text, "text_b": f"{text} up", "score": n / 2} for n, text in enumerate(TEXTS)]
NAMED = {**PLAIN, "labels": {"0": "bad", "1": "good"}}
TOPICS = [{"text": text, "labels": [label, "all"]} for text, label in zip(TEXTS, LABELS, strict=True)]
RANKED = [{"query": "a cat", "document": text, "label": n % 2} for n, text in enumerate(TEXTS)]
JUDGED = [{"query": f"{text} ?", "document": text, "grade": 1 + n % 2} for n, text in enumerate(TEXTS)]
# task, rows, what relabel lists for row 2 besides its location, what row 2 then holds in a corrected file
CASES = {
    "label": (PLAIN, ROWS, {"text": "a dog ran", "label": "good"}, {"label": "good"}),
    "a name of a label": (NAMED, [{**row, "label": str(int(row["label"] == "good"))} for row in ROWS], {"label": "1"},
                          {"label": "1"}),
    "labels": (PLAIN, TOPICS, {"labels": ["good", "all"]}, {"labels": ["good", "all"]}),
    "no labels": (PLAIN, TOPICS, {"labels": []}, {"labels": []}),
    "labels as text": (PLAIN, TOPICS, {"labels": "good|all"}, {"labels": ["good", "all"]}),
    "score": (PLAIN, [{"text": row["text_a"], "score": row["score"]} for row in PAIRS], {"score": 7}, {"score": 7.0}),
    "pair": ({"name": "sentence-similarity"}, PAIRS, {"text_b": "a dog ran up", "score": "7.5"}, {"score": 7.5}),
    "relevance": ({"name": "text-ranking"}, RANKED, {"label": 0}, {"label": 0}),
    "grade that teaches nothing": ({"name": "retrieval"}, JUDGED, {"grade": 0}, {"grade": 0}),
    "tags of a model, where the data are BIOES": (
        NER, TAGGED, {"tokens": ["a", "red", "dog"], "tags": ["B-COLOUR", "B-ANIMAL", "I-ANIMAL"]},
        {"tags": ["S-COLOUR", "B-ANIMAL", "E-ANIMAL"]}),
    "labels of words": (
        {**NER, "scheme": "none"},
        [{"tokens": row["tokens"], "tags": [word.upper() for word in row["tokens"]]} for row in TAGGED],
        {"tags": ["A", "YES", "DOG"]}, {"tags": ["A", "YES", "DOG"]}),
    "spans": (NER, SPANS, {"spans": [[6, 9, "ANIMAL"]]}, {"spans": [[6, 9, "ANIMAL"]]}),
    "entities of an answer": (
        NER, SPANS,
        {"text": "a red dog", "entities": [{"label": "ANIMAL", "text": "dog", "start": 6, "end": 9, "score": 0.9}]},
        {"spans": [[6, 9, "ANIMAL"]]}),
    "tags, where the data have spans": (NER, SPANS, {"tags": ["O", "O", "B-ANIMAL"]}, {"spans": [[6, 9, "ANIMAL"]]}),
    "answers": (
        {"name": "question-answering"}, ASKED,
        {"context": "the dog sat on the cat", "answers": {"text": ["cat"], "answer_start": [19]}}, {"answers": "cat"}),
    "no answer": ({"name": "question-answering"}, ASKED, {"answers": ""}, {"answers": ""}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_rows_are_those_of_a_corrected_file(name, tmp_path):
    task, rows, new, corrected = CASES[name]
    source = write(tmp_path / "train.jsonl", rows)
    by_hand = [{**rows[0]}, {**rows[1], **corrected}, *rows[3:]]
    expected = read(write(tmp_path / "by-hand/train.jsonl", by_hand), task)
    exclude = write(tmp_path / "out.jsonl", [{"location": "train.jsonl:3"}])
    relabel = write(tmp_path / "new.jsonl", [{"location": "train.jsonl:2", **new}])
    data = read(source, task, exclude=exclude, relabel=relabel)
    assert data.fingerprints == expected.fingerprints != read(source, task).fingerprints
    corrected = ["train: 1 row excluded by out.jsonl", "train: 1 row relabelled by new.jsonl"]
    assert [what for what in notes(data) if " is new, from " not in what] == corrected + notes(expected)
    cells = [json.dumps(value) if isinstance(value, list | dict) else value for value in new.values()]
    # with lists as predict has them
    with (tmp_path / "new.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["location", *new], ["train.jsonl:2", *cells]])
    again = read(source, task, exclude=exclude, relabel=f"{tmp_path}/new.csv")
    assert again.fingerprints == expected.fingerprints


def test_other_layouts(tmp_path):
    source = write(tmp_path / "train.conll", "the O\ncat B-X\n\na O\ndog B-X\n\nyes O\n")
    data = read(source, NER, exclude=write(tmp_path / "out.csv", "location\ntrain.conll:4\n"))
    assert data.rows["train"]["tokens"][:] == [["the", "cat"], ["yes"]]
    asked = [
        {"id": row["id"], "question": "who ?", "answers": [{"text": "cat", "answer_start": 4}]}
        for row in ASKED
    ]
    nested = {"data": [{"title": "", "paragraphs": [{"context": "the cat sat", "qas": asked}]}]}
    source = write(tmp_path / "train.json", json.dumps(nested))
    task = {"name": "question-answering"}
    listed = [{"location": "train.json, row 2, id q1"}, {"id": "q2"}]
    assert read(source, task, exclude=write(tmp_path / "out.jsonl", listed)).rows["train"]["id"][:] == ["q0"]
    starts = [2 * text.startswith("a") for text in TEXTS]
    marked = [
        {"id": n, "text": TEXTS[n], "spans": [[start, start + 3, "X"]]} for n, start in enumerate(starts)
    ]
    source = write(tmp_path / "spans.jsonl", marked)
    listed = [{"id": 3, "text": TEXTS[3], "entities": []}]
    data = read(source, NER, relabel=write(tmp_path / "new.jsonl", listed))
    assert [any(tag != "O" for tag in tags) for tags in data.rows["train"]["tags"]] == [True] * 3 + [
        False
    ] + [True] * 2


def test_rows_from_python(tmp_path, tiny_encoder):
    frame = pandas.DataFrame({**pandas.DataFrame(ROWS), "id": [f"r{n}" for n in range(6)]})
    exclude = write(tmp_path / "out.jsonl", [{"location": "train, row 2"}, {"id": "r2"}])
    recipe = load_recipe({"task": PLAIN, "model": str(tiny_encoder), "data": {"train": frame}})
    recipe = recipe.with_(exclude=tmp_path / "out.jsonl")
    assert recipe.data.exclude == exclude
    kind = get_task("text-classification")
    data = read_data(recipe.data, kind, kind.Options.model_validate(PLAIN))
    assert data.rows["train"]["id"][:] == "r0 r3 r4 r5".split()


def test_recipes_have_absolute_paths(tmp_path):
    write(tmp_path / "train.jsonl", ROWS)
    write(tmp_path / "lists/out.csv", "location\n")
    write_rows(
        tmp_path / "my.yaml",
        [
            {
                "task": PLAIN,
                "model": {"name": "x/y"},
                "data": {"source": "train.jsonl", "exclude": ["lists/out.csv"]},
            }
        ],
    )
    assert load_recipe(tmp_path / "my.yaml").data.exclude == [f"{tmp_path}/lists/out.csv"]
    said = r"data.relabel: no file or folder '.*/lists/outt.csv'; did you mean 'out.csv'"
    overrides = [f"data.relabel={tmp_path}/lists/outt.csv"]
    raises(RecipeError, said, load_recipe, tmp_path / "my.yaml", overrides)


def test_splits_are_corrected_before_anything_is_derived(tmp_path):
    """Validation by its own file name; the hold-out, its groups and the limit as of a corrected file."""
    rows = [
        {"text": f"{text} {n}", "label": LABELS[n % 6], "owner": n // 3}
        for n in range(30)
        for text in TEXTS[:1]
    ]
    source = write(tmp_path / "train.jsonl", rows)
    by_hand = [
        {**row, "label": "new" if n in (4, 5, 6, 7) else row["label"]} for n, row in enumerate(rows) if n > 2
    ]
    exclude = write(tmp_path / "out.jsonl", [{"location": f"train.jsonl:{n + 1}"} for n in range(3)])
    new = [{"location": f"train.jsonl:{n + 1}", "label": "new"} for n in (4, 5, 6, 7, 6)]
    relabel = write(tmp_path / "new.jsonl", [*new, {"location": "train.jsonl:9", "label": "good"}])
    for settings in ({"validation": 0.3}, {"validation": 0.3, "group_by": "owner"}, {"limit": 10}):
        expected = read(write(tmp_path / "by-hand/train.jsonl", by_hand), **settings)
        data = read(source, exclude=exclude, relabel=relabel, **settings)
        assert data.fingerprints == expected.fingerprints
        assert "train: 4 rows relabelled by new.jsonl; 1 more with the same target as before" in notes(data)
        assert "train: the label 'new' is new, from new.jsonl" in notes(data)
    both = {"train": source, "validation": write(tmp_path / "dev.jsonl", rows[:4])}
    data = read(both, exclude=write(tmp_path / "dev.csv", "location\ndev.jsonl:1\ndev.jsonl:2\n"))
    assert (len(data.rows["train"]), len(data.rows["validation"])) == (30, 2)
    assert "validation: 2 rows excluded by dev.csv" in [finding.what for finding in check(data)]


def test_a_file_name_in_two_folders_is_decided_by_the_inputs(tmp_path):
    source = {
        "train": [
            write(tmp_path / "a/x.jsonl", ROWS[:3]),
            write(tmp_path / "b/x.jsonl", [*ROWS[3:], ROWS[0]]),
        ],
        "test": write(tmp_path / "t.jsonl", ROWS[3:4]),
    }
    listed = [{"location": "x.jsonl:1", "text": "it was awful"}, {"location": f"{tmp_path}/a/x.jsonl:2"}]
    data = read(source, exclude=write(tmp_path / "out.jsonl", listed))
    assert data.rows["train"]["text"][:] == [TEXTS[0], TEXTS[2], TEXTS[4], TEXTS[5], TEXTS[0]]
    listed = [{"location": "x.jsonl:1"}, {"location": f"{tmp_path}/a/x.jsonl:2"}, {"location": "x.jsonl:9"}]
    said = fails(source, exclude=write(tmp_path / "out.jsonl", listed))
    assert "out.jsonl:2" not in said
    assert "out.jsonl:3: there is no row x.jsonl:9" in said
    assert (
        f"out.jsonl:1: x.jsonl:1 may be one of several rows: {tmp_path}/a/x.jsonl:1, {tmp_path}/b/x.jsonl:1"
        in said
    )
    assert "Write its full `location`, or add the columns of its texts." in said


def test_what_a_spreadsheet_saved_otherwise_is_told(tmp_path):
    source = write(tmp_path / "train.jsonl", ROWS)
    for text in (
        b"location;text\ntrain.jsonl:2;a dog ran\n",
        "location,text\ntrain.jsonl:2,gr\xf6\n".encode("cp1252"),
    ):
        (tmp_path / "new.csv").write_bytes(text)
        said = fails(source, exclude=f"{tmp_path}/new.csv")
        assert "Save it as jsonl, or as csv with commas, in UTF-8." in said
        assert "data.delimiter" not in said


BAD = {  # exclude, relabel -> what is said
    "no row": ([{"location": "train.jsonl:9"}, {"id": "x"}], [], [("out.jsonl:1: there is no row "
                                                                   "train.jsonl:9"),
        "out.jsonl:2: there is no row id x"]),
    "no location": ([{"text": "yes"}, {"location": ""}], [], [
        "out.jsonl:1: names no row", "out.jsonl:2: names no row"]),
    "another row": ([{"location": "train.jsonl:1", "text": "a dog ran"}], [], [
        "out.jsonl:1: train.jsonl:1 holds another row now"]),
    "another id": ([{"location": "train.jsonl:1", "id": "r1"}], [], ["train.jsonl:1 holds another row now"]),
    "both": ([{"location": "train.jsonl:1"}], [{"id": "r0", "label": "bad"}], [
        "new.jsonl:1: id r0 is excluded by ", "out.jsonl:1"]),
    "two targets": ([], [{"location": "train.jsonl:1", "label": "bad"}, {"id": "r0", "label": "good"}], [
        "new.jsonl:2: id r0 has another `label` in ", "new.jsonl:1"]),
    "no target": ([], [{"location": "train.jsonl:1"}, {"location": "train.jsonl:2", "label": ""}], [
        "new.jsonl:1: a new value for `label` is expected", "To leave the row out, list it in data.exclude.",
        "new.jsonl:2: a new value"]),
    "several problems": ([{"location": "train.jsonl:9"}], [{"location": "train.jsonl:8", "label": "x"}], [
        "out.jsonl:1", "new.jsonl:1"]),
    "a wrong value": ([{"location": ["x"]}], [{"location": "train.jsonl:2", "label": ["a", "b"]}], [
        "out.jsonl:1: `location` holds ['x']", "new.jsonl:1: `label` holds several labels"]),
    "nothing left": ([{"location": f"train.jsonl:{n}"} for n in range(1, 7)], [], [("no row of train "
                                                                                    "remains")]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_lists(name, tmp_path):
    exclude, relabel, said = BAD[name]
    source = write(tmp_path / "train.jsonl", [{**row, "id": f"r{n}"} for n, row in enumerate(ROWS)])
    given = {"exclude": exclude, "relabel": relabel}
    files = {"exclude": tmp_path / "out.jsonl", "relabel": tmp_path / "new.jsonl"}
    text = fails(source, **{key: write(files[key], rows) for key, rows in given.items() if rows})
    assert all(part in text for part in said), text


def test_targets_that_do_not_fit_their_row_and_lists_of_a_corpus_or_in_json(tmp_path):
    short = [
        {"location": "train.jsonl:1", "tags": ["O"]},
        {"location": "train.jsonl:2", "tags": ["O", "O", "S-X"]},
    ]
    twice = {"location": "train.jsonl:1", "tags": ["O", "O", "O"], "entities": []}
    for rows, name, listed, said in (
        (TAGGED, "token-classification", short, f"{tmp_path}/new.jsonl:1: 3 words, but 1 tags"),
        (TAGGED, "token-classification", short, "new.jsonl:2: tag 3, 'S-X'"),
        (SPANS, "token-classification", [twice], ("new.jsonl:1: a new value for `tags` or `spans` is "
                                                  "expected")),
        (ASKED, "question-answering", [{"id": "q0", "answers": "bird"}],
         "new.jsonl:1: answer 1, 'bird', does not stand in the context"),
        (RANKED, "text-ranking", [{"location": "train.jsonl:2", "label": 3}],
         "new.jsonl:1: `label` holds 3, where 0 or 1 is expected"),
    ):  # fmt: skip
        source = write(tmp_path / "train.jsonl", rows)
        relabel = write(tmp_path / "new.jsonl", listed)
        assert said in fails(source, {"name": name}, relabel=relabel)
    out = write(tmp_path / "out.jsonl", [{"location": "train.txt:1"}])
    said = fails(write(tmp_path / "train.txt", "one\n\ntwo\n"), {"name": "pretraining"}, exclude=out)
    assert "`exclude` and `relabel` are not for a corpus" in said
    said = fails(write(tmp_path / "train.jsonl", ROWS), exclude=write(tmp_path / "out.json", "[]"))
    assert "out.json: a list of rows is expected as .jsonl or .csv" in said


def test_new_labels_that_resemble_others_equal_answers_and_rows_without_a_target(tmp_path):
    source = write(tmp_path / "train.jsonl", ROWS)
    data = read(source, relabel=write(tmp_path / "new.csv", "location,label\ntrain.jsonl:1,goood\n"))
    assert "train: the label 'goood' is new, from new.csv; did you mean 'good'?" in notes(data)
    source = write(tmp_path / "train.jsonl", ASKED)
    task = {"name": "question-answering"}
    listed = [{"id": "q0", "answers": {"text": ["cat"], "answer_start": [4]}}, {"id": "q1", "answers": "cat"}]
    data = read(source, task, relabel=write(tmp_path / "new.jsonl", listed))
    assert "train: 1 row relabelled by new.jsonl; 1 more with the same target as before" in notes(data)
    assert data.rows["train"]["answers"][:2] == [
        listed[0]["answers"],
        {"text": ["cat"], "answer_start": [19]},
    ]
    rows = [TOPICS[0], {**TOPICS[1], "labels": None}, *TOPICS[2:]]
    source = write(tmp_path / "train.jsonl", rows)
    expected = read(write(tmp_path / "by-hand/train.jsonl", [rows[0], {**rows[1], "labels": []}, *rows[2:]]))
    listed = [{"location": "train.jsonl:2", "labels": []}]
    assert read(source, relabel=write(tmp_path / "new.jsonl", listed)).fingerprints == expected.fingerprints
    source = {
        "train": write(tmp_path / "train.jsonl", SPANS),
        "test": write(tmp_path / "t.jsonl", [{"text": "a dog"}]),
    }
    listed = [{"location": "t.jsonl:1", "tags": ["O", "B-ANIMAL"]}]
    data = read(source, NER, relabel=write(tmp_path / "new.jsonl", listed))
    assert data.rows["test"]["tags"][:] == [["O", "B-ANIMAL"]]


def test_warnings_about_tags_are_of_the_corrected_ones(tmp_path):
    rows = [{"tokens": ["a", "dog"], "tags": tags} for tags in (["O", "I-X"], ["O", "I-X"], ["O", "B-X"])]
    source = write(tmp_path / "train.jsonl", rows)
    task = {**NER, "data_scheme": "BIO"}
    relabel = write(tmp_path / "new.jsonl", [{"location": "train.jsonl:1", "tags": ["O", "B-X"]}])
    told = [what for what in notes(read(source, task, relabel=relabel)) if "begins with I-" in what]
    assert told == [f"train: 1 sentence with an entity that begins with I-; read as B-: {source}:2"]
    relabel = write(tmp_path / "only-b.jsonl", [{"location": "train.jsonl:3", "tags": ["O", "O"]}])
    told = notes(read(source, NER, relabel=relabel))  # the other rows alone would be IOB1
    assert any(
        what.startswith("train: 2 sentences with an entity that begins with I-; read as B-") for what in told
    )
    assert not [what for what in told if "IOB1" in what]
    relabel = write(
        tmp_path / "all.jsonl", [{"location": f"train.jsonl:{n}", "tags": ["O", "O"]} for n in (1, 2, 3)]
    )
    assert not [what for what in notes(read(source, task, relabel=relabel)) if "begins with I-" in what]


def test_a_split_by_itself_ignores_records_of_others(tmp_path):
    source = {
        "train": write(tmp_path / "train.jsonl", ROWS),
        "test": write(tmp_path / "test.jsonl", ROWS[:3]),
    }
    out = write(tmp_path / "out.jsonl", [{"location": "train.jsonl:1"}, {"location": "test.jsonl:2"}])
    assert read(source, splits={"test"}, exclude=out).rows["test"]["text"][:] == [TEXTS[0], TEXTS[2]]


def test_a_corrected_training_is_one_command(tmp_path, tiny_encoder):
    """Its findings are in the report; report and card name no folder; `--resume` notices that the list has
    changed.
    """
    recipe = write_recipe(tmp_path, tiny_encoder)
    out = write(tmp_path / "out.csv", "location\ntrain.jsonl:1\ntest.jsonl:2\n")
    run = tmp_path / "run"
    train(load_recipe(recipe, [f"data.exclude={out}", "training.num_train_epochs=0.2"]), run)
    assert read_json(run / "data.json")["rows"] == {"train": 15, "validation": 10, "test": 6}
    assert len(read_rows(run / "predictions/test.jsonl")) == 6
    for page in (run / "model/README.md", run / "report.html"):
        assert str(tmp_path) not in page.read_text()
    assert "train: 1 row excluded by out.csv" in (run / "report.html").read_text()
    assert "exclude: out.csv" in (run / "report.html").read_text()
    given = partial(rows_of_split, run, load_model(str(run)), preferred=("test",))
    assert len(given(None, None)[1]) == 6
    assert len(given(tmp_path / "test.jsonl", None)[1]) == 7  # not the rows that the run's lists are about
    only = write(tmp_path / "only.csv", "location\ntest.jsonl:2\n")
    assert len(given(tmp_path / "test.jsonl", None, overrides=[f"data.exclude={only}"])[1]) == 6
    (run / "results.json").unlink()
    write(tmp_path / "out.csv", "location\ntrain.jsonl:1\n")
    raises(DataError, "the data differ", train, load_recipe(run / "recipe.yaml"), run, resume=True)


def test_a_limit_of_the_run_does_not_cut_rows_that_are_given(learned, tmp_path):
    (tmp_path / "recipe.yaml").write_text(to_yaml(learned.recipe.with_("data.limit=2")))
    file = learned.folder.parent / "test.jsonl"
    _, rows = rows_of_split(tmp_path, learned.load(), file, None, ("test",))
    assert len(rows) == len(read_rows(file)) > 2
