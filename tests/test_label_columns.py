"""Labels as a column of 0 and 1 for each: read as the lists that they stand for, learned, and written again."""

import json
from functools import partial

import pandas as pd
import pytest
from sklearn.preprocessing import MultiLabelBinarizer
from small import message_of, raises, read_data, text, write_rows

import bertkit
from bertkit.cache import file_digest
from bertkit.data import check
from bertkit.data.python_inputs import data_section
from bertkit.data.python_rows import store_rows
from bertkit.errors import DataError
from bertkit.sections import DataSpec
from bertkit.tasks import get_task

KIND = get_task("text-classification")
WORDS = get_task("token-classification")
NAMES = ["rude", "Angry", "10"]
LABELS = [["rude"], [], ["10", "rude"], ["Angry"], ["Angry", "10"], ["10", "Angry", "rude"]] * 4
TEXTS = [text(number, bool(labels)) for number, labels in enumerate(LABELS)]
FORMS = {  # of a cell
    "numbers": {0: 0, 1: 1},
    "texts": {0: "0", 1: " 1 "},
    "booleans": {0: False, 1: True},
    "words": {0: "FALSE", 1: "True"},
    "floats": {0: 0.0, 1: 1.0},
    "floats as text": {0: "0.0", 1: "1.0"},
}
LISTS = pd.DataFrame({"text": TEXTS, "labels": ["|".join(sorted(labels)) for labels in LABELS]})


def marks(form="numbers"):
    """The rows with a column for each label, as scikit-learn makes it."""
    binarizer = MultiLabelBinarizer(classes=NAMES)
    cells = pd.DataFrame(binarizer.fit_transform(LABELS), columns=NAMES)
    cells = cells.map(FORMS[form].__getitem__)
    return pd.concat([pd.DataFrame({"comment": TEXTS}), cells], axis=1)


COLUMNS = {"text": "comment", "labels": NAMES}


def read(source, kind=KIND, **settings):
    section = {"source": str(source)}
    if isinstance(source, pd.DataFrame):
        section, rows = data_section(source)
        section |= store_rows(rows)
    return read_data(DataSpec(**section, **settings), kind, kind.Options(name=kind.name))


def write(frame, file):
    """The frame as the format that the file's name says."""
    if file.suffix == ".parquet":
        frame.to_parquet(file)
    elif file.suffix == ".jsonl":
        frame.to_json(file, orient="records", lines=True)
    elif file.suffix == ".xlsx":
        frame.to_excel(file, index=False)
    else:
        frame.to_csv(file, sep="\t" if file.suffix == ".tsv" else ",", index=False)
    return file


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".xlsx", ""])
def test_they_are_read_as_lists(suffix, form, tmp_path):
    if suffix == ".xlsx":
        pytest.importorskip("openpyxl")
    frame = marks(form)
    loaded = read(
        write(frame, tmp_path / f"a{suffix}") if suffix else frame, columns=COLUMNS, validation=0.25
    )
    expected = read(write(LISTS, tmp_path / "lists.csv"), validation=0.25)
    assert loaded.fingerprints == expected.fingerprints
    assert loaded.rows["validation"][:] == expected.rows["validation"][:]
    assert loaded.class_names == sorted(NAMES)
    turned = read(frame, columns={**COLUMNS, "labels": NAMES[::-1]}, validation=0.25)
    assert (turned.fingerprints, turned.class_names) == (loaded.fingerprints, loaded.class_names)


def test_other_cells_are_named_all_at_once(tmp_path):
    frame = marks().astype(object)
    frame.loc[1, "rude"] = "yes"
    frame.loc[[2, 5], "10"] = 0.5
    file = write(frame, tmp_path / "a.csv")
    told = message_of(DataError, read, file, columns=COLUMNS)
    assert f"{file}:3: `rude` holds 'yes', where 0 or 1 is expected\n" in told
    assert f"{file}:4: `10` holds '0.5', where 0 or 1 is expected; also in {file}:7" in told
    without = {**COLUMNS, "labels": ["rude", "angry", "10"]}
    raises(DataError, r"no column `angry`.*\n.*labels: \[rude, Angry, \"10\"\]", read, file, columns=without)
    raises(DataError, "label` cannot be read", read, file, columns={"label": NAMES})
    write(marks()[["comment", "rude"]], tmp_path / "test.csv")
    write(marks(), tmp_path / "train.csv")
    raises(DataError, "test.csv: no column `Angry`", read, tmp_path, columns=COLUMNS)
    write(marks()[["comment"]], tmp_path / "test.csv")
    assert "labels" not in read(tmp_path, columns=COLUMNS).rows["test"].column_names


@pytest.mark.parametrize("empty", [None, "", " ", float("nan")])
def test_an_empty_cell_is_a_missing_label(empty, tmp_path):
    frame = marks().astype(object)
    frame.loc[3, "rude"] = empty
    file = write(frame, tmp_path / "a.jsonl")
    where = f"1 of 24 rows of train has no `rude`, `Angry`, `10`: {file}:4"
    raises(DataError, where, read, file, columns=COLUMNS)
    loaded = read(file, columns=COLUMNS, missing_labels="ignore")
    assert loaded.rows["train"]["labels"][:] == [sorted(labels) for labels in LABELS[:3] + LABELS[4:]]


def test_a_column_of_zeros_is_a_label_that_is_missed(tmp_path):
    loaded = read(marks().assign(calm=0), columns={**COLUMNS, "labels": [*NAMES, "calm"]})
    assert loaded.class_names == sorted([*NAMES, "calm"])
    assert "train: no row has the label 'calm'" in [finding.what for finding in check(loaded)]


def test_a_list_of_corrections_has_the_names(tmp_path):
    file = write(marks(), tmp_path / "a.csv")
    new = write_rows(tmp_path / "new.jsonl", [{"location": f"{file}:3", "labels": ["rude"]}])
    loaded = read(file, columns=COLUMNS, relabel=str(new))
    assert loaded.rows["train"]["labels"][1] == ["rude"]


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_encoder):
    """A run that was trained on columns of 0 and 1, and one on lists."""
    folder = tmp_path_factory.mktemp("runs")
    section = {
        "task": {"name": "text-classification", "labels": {"10": "ten", "rude": "rude", "Angry": "Angry"}},
        "model": {"name": str(tiny_encoder), "max_length": 16},
        "training": {"num_train_epochs": 1, "per_device_train_batch_size": 8},
        "verify": False,
        "explain": False,
    }
    runs = []
    for name, frame, columns in (("marks", marks(), COLUMNS), ("lists", LISTS, {})):
        source = str(write(frame, folder / f"{name}.csv"))
        data = {"source": source, "columns": columns, "validation": 0.25}
        runs.append(bertkit.train(bertkit.Recipe(**section, data=data), folder / name))
    assert file_digest(runs[0].model / "model.safetensors") == file_digest(
        runs[1].model / "model.safetensors"
    )
    return runs[0]


def test_what_was_learned_is_scored_and_written_back(run, tmp_path):
    file = write(marks(), tmp_path / "new.csv")
    scored = [bertkit.evaluate(source, data=file) for source in (run.folder, run.model)]
    assert scored[0] == scored[1]
    model = bertkit.load(run.folder)
    answers = model(TEXTS)
    table = model.with_decisions(threshold=0.5).frame(marks())
    names = ["rude", "Angry", "ten"]
    assert [*table][:4] == ["labels", *names]
    assert {f"scores.{name}" for name in names} < {*table}
    out = tmp_path / "out.csv"
    bertkit.predict(run.folder, file, out)
    written = pd.read_csv(out, keep_default_na=False)
    assert [*written][:8] == [*marks(), "answer.labels", *(f"answer.{name}" for name in names)]
    expected = MultiLabelBinarizer(classes=names).fit_transform([answer["labels"] for answer in answers])
    assert (written[[f"answer.{name}" for name in names]].to_numpy() == expected).all()
    batch = bertkit.batch(str(run.folder), columns={"text": "comment"})
    assert batch(marks())["answer.rude"].tolist() == written["answer.rude"].tolist()


# --- spellings

SPELLED = ["Billing", "billing", "Billing", " billing ", "New  card", "new card", "Refund", "refund"]
CLEAN = ["Billing"] * 4 + ["New  card"] * 2 + ["Refund"] * 2
MERGED = "data.labels merged 4 spellings: 'Billing' 4 = 'billing' 2 = ' billing ' 2, "
MERGED += "'New  card' 2 = 'new card' 2, 'Refund' 2 = 'refund' 2"


def labelled(target, values):
    return [{"text": f"the cat {number} sat", target: value} for number, value in enumerate(values * 2)]


@pytest.mark.parametrize("several", [False, True])
def test_spellings_become_the_most_frequent_one_of_train(several, tmp_path):
    target = "labels" if several else "label"
    wrap = (lambda name: [name, f"{name} "]) if several else str
    files = {"spelled": [wrap(name) for name in SPELLED], "clean": [wrap(name) for name in CLEAN]}
    if several:
        files["clean"] = [[name] for name in CLEAN]
    loaded = {}
    for name, values in files.items():
        file = write_rows(tmp_path / f"{name}.jsonl", labelled(target, values))
        loaded[name] = read(file, labels="casefold", validation=0.25)
    if not several:
        assert loaded["spelled"].fingerprints == loaded["clean"].fingerprints
        assert MERGED in [finding.what for finding in check(loaded["spelled"])]
        plain = [
            finding for finding in check(read(tmp_path / "spelled.jsonl")) if "differ only" in finding.what
        ]
        assert [(finding.what.count("="), finding.fix[-25:]) for finding in plain] == [
            (4, " data: {labels: casefold}")
        ]
    rows = loaded["spelled"].rows["train"][target]
    assert {*map(json.dumps, rows)} == {*map(json.dumps, loaded["clean"].rows["train"][target])}


def test_other_splits_and_models_decide_nothing(tmp_path):
    write_rows(tmp_path / "train.jsonl", labelled("label", ["a b", "c"]))
    write_rows(tmp_path / "test.jsonl", labelled("label", ["A  B", "A  B", "C "]))
    raises(DataError, "data: {labels: casefold}", read, tmp_path)
    assert read(tmp_path, labels="casefold").rows["test"]["label"][:3] == ["a b", "a b", "c"]
    options = KIND.Options(name=KIND.name)
    spec = DataSpec(source={"test": f"{tmp_path}/test.jsonl"}, labels="casefold")
    known = partial(read_data, spec, KIND, options, splits={"test"})
    assert known(known_labels=["A b", "c"]).rows["test"]["label"][:3] == ["A b", "A b", "c"]


def test_types_of_entities_and_labels_of_words(tmp_path):
    tags = "B-Loc I-Loc O B-LOC B-Loc".split()
    rows = [{"tokens": list("abcde"), "tags": tags}] * 3
    file = write_rows(tmp_path / "a.jsonl", rows)
    assert read(file, WORDS, labels="casefold").rows["train"]["tags"][0] == [*tags[:3], "B-Loc", "B-Loc"]
    spans = [{"start": 0, "end": 3, "label": "pet"}, {"start": 4, "end": 7, "label": "Pet"}]
    file = write_rows(tmp_path / "b.jsonl", [{"text": "cat dog", "spans": spans}])
    row = read(file, WORDS, labels="casefold").rows["train"][0]
    assert row["tags"] == ["B-pet", "B-pet"]
    assert [span["label"] for span in row["spans"]] == ["pet", "pet"]
