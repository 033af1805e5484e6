"""`init`: a file of any kind becomes a recipe that trains, or a message with what is to be decided."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pandas as pd
import pytest
import small
from datasets import Dataset
from small import raises, refused, said, write_rows

import bertkit
from bertkit.data.layout import layout_of
from bertkit.data.sources import open_source
from bertkit.data.text_folders import text_folders
from bertkit.errors import DataError, UserError
from bertkit.files import read_json
from bertkit.recipe.yaml import parse
from bertkit.sections import DataSpec
from bertkit.tasks import get_task

CLASSIFICATION = "text-classification"
LONG = "the cat was good and it sat on the red mat and ran up and down"


def table(header, line, count=40):
    """A file with a row for each number: the line, in which {n} is the number, {side} good or bad, and {long}
    a long text.
    """
    rows = [
        line.format(n=number, side=("good", "bad")[number % 2], f=number / 8, long=LONG)
        for number in range(count)
    ]
    return "\n".join([*([header] if header else []), *rows]) + "\n"


def lines(count=40, **cells):
    """JSON lines of the same rows; lists stay lists."""
    text = json.dumps(cells)
    sides = [("good", "bad")[number % 2] for number in range(count)]
    return "".join(text.replace("N0", str(n)).replace("SIDE", side) + "\n" for n, side in enumerate(sides))


SPANS = [{"start": 0, "end": 3, "label": "PET"}]
SQUAD = {
    "data": [
        {
            "title": "cats",
            "paragraphs": [
                {
                    "context": f"the cat {n} sat on the mat",
                    "qas": [
                        {
                            "id": str(n),
                            "question": "who sat ?",
                            "answers": [{"text": "cat", "answer_start": 4}],
                        }
                    ],
                }
                for n in range(12)
            ],
        }
    ]
}
STUDIO = [
    {
        "id": n,
        "data": {"review": f"the cat {n} was good"},
        "annotations": [
            {"result": [{"from_name": "topic", "value": {"choices": [("good", "bad")[n % 2]]}}]},
        ],
    }
    for n in range(12)
]
FILES = {  # file -> its text, the task and its columns
    "unnamed.csv": (
        table("Beschreibung,Kategorie,", "the cat {n} sat,{side},")
        + table("", "a dog {n} ran,{side},see {side}", count=4),
        CLASSIFICATION,
        {"text": "Beschreibung", "label": "Kategorie"},
    ),
    "topics.csv": (
        table("id,day,topic,subject,body", "{n},2026-01-02,{side},cat {n} sat,{long} {n}"),
        CLASSIFICATION,
        {"text": "body", "label": "topic"},
    ),
    "gaps.csv": (
        table("text,note,label", "the cat {n} sat,,{side}"),
        CLASSIFICATION,
        {"text": "text", "label": "label"},
    ),
    "answered.csv": (
        table("question,passage,answer", "did cat {n} sit,{long} {n},{side}ly"),
        CLASSIFICATION,
        {"text_a": "question", "text_b": "passage", "label": "answer"},
    ),
    "judged.csv": (
        table("question,document,label", "did cat {n} sit,{long} {n},{side}"),
        CLASSIFICATION,
        {"text_a": "question", "text_b": "document", "label": "label"},
    ),
    "spans.csv": (
        table("text,spans", 'cat {n} sat on the mat,"[[0, 3, ""PET""]]"'),
        "token-classification",
        {"text": "text", "spans": "spans"},
    ),
    "headless.csv": (
        table("", "{side},the cat {n} sat"),
        CLASSIFICATION,
        {"text": "column2", "label": "column1"},
    ),
    "dates.csv": (
        table("Received,Complaint,Department", "05-01-2024,the cat {n} sat,{side}", count=20)
        + table("", "2024/01/06,a dog {n} ran,{side}"),
        CLASSIFICATION,
        {"text": "Complaint", "label": "Department"},
    ),
    "tabs.tsv": (
        table("text\tstars", "the cat {n} sat\t{side}"),
        CLASSIFICATION,
        {"text": "text", "label": "stars"},
    ),
    "index.csv": (
        table(",text,labels", "{n},the cat {n} sat,3", count=20) + table("", "{n},a dog {n} ran,4", count=20),
        CLASSIFICATION,
        {"text": "text", "label": "labels"},
    ),
    "good.csv": (
        table("text,good", "the cat {n} sat,{side}"),
        CLASSIFICATION,
        {"text": "text", "label": "good"},
    ),
    "clicked.csv": (
        table("query,document,grade,clicked", "where is cat {n},{long} {n},1,0"),
        "retrieval",
        {"query": "query", "document": "document", "grade": "grade"},
    ),
    "numbers.csv": (
        table("review,price", "the cat {n} sat,{f}"),
        CLASSIFICATION,
        {"text": "review", "score": "price"},
    ),
    "several.csv": (
        table("text,tags", "the cat {n} sat,{side}|cat"),
        CLASSIFICATION,
        {"text": "text", "labels": "tags"},
    ),
    "marks.csv": (
        table("id,comment,rude,angry", "{n},the cat {n} sat,0,1", count=20)
        + table("", "{n},a dog {n} ran,true,0.0", count=20),
        CLASSIFICATION,
        {"text": "comment", "labels": ["rude", "angry"]},
    ),
    "mark.csv": (
        table("comment,rude", "the cat {n} sat,0", count=20) + table("", "a dog {n} ran,1", count=20),
        CLASSIFICATION,
        {"text": "comment", "label": "rude"},
    ),
    "constant.csv": (
        table("comment,rude,active", "the cat {n} sat,0,1", count=20)
        + table("", "a dog {n} ran,1,1", count=20),
        CLASSIFICATION,
        {"text": "comment", "label": "rude"},
    ),
    "lists.jsonl": (
        lines(text="the cat N0 sat", label=["SIDE", "cat"]),
        CLASSIFICATION,
        {"text": "text", "labels": "label"},
    ),
    "relations.csv": (
        table("premise,hypothesis,gold_label", "the cat {n} sat,it sat {n},{side}"),
        CLASSIFICATION,
        {"text_a": "premise", "text_b": "hypothesis", "label": "gold_label"},
    ),
    "similar.csv": (
        table("sentence1,sentence2,similarity", "the cat {n} sat,it sat {n},{f}"),
        "sentence-similarity",
        {"text_a": "sentence1", "text_b": "sentence2", "score": "similarity"},
    ),
    "found.csv": (
        table("query,document,grade", "where is cat {n},{long} {n},1"),
        "retrieval",
        {"query": "query", "document": "document", "grade": "grade"},
    ),
    "doccano.jsonl": (
        lines(text="cat N0 sat on the mat", label=[[0, 3, "PET"]]),
        "token-classification",
        {"text": "text", "spans": "label"},
    ),
    "entities.jsonl": (
        lines(text="cat N0 sat on the mat", entities=SPANS, topic="SIDE"),
        "token-classification",
        {"text": "text", "spans": "entities"},
    ),
    "words.conll": (
        "".join(f"the O\ncat B-PET\n{n} O\n\n" for n in range(12)),
        "token-classification",
        {"tokens": "tokens", "tags": "tags"},
    ),
    "squad.json": (
        json.dumps(SQUAD),
        "question-answering",
        {"question": "question", "context": "context", "answers": "answers"},
    ),
    "studio.json": (json.dumps(STUDIO), CLASSIFICATION, {"text": "text", "label": "label"}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_a_recipe_that_is_checked(name, tmp_path, tiny_encoder):
    text, task, columns = FILES[name]
    first = bertkit.init(write_rows(tmp_path / name, text), model=str(tiny_encoder))
    written = first.text(tmp_path / "my.yaml")
    assert len(written.splitlines()) <= 15
    assert all("  # " in line or line[0] == "#" for line in written.splitlines())
    stated = parse(written).data
    assert (stated["task"]["name"], stated["data"]["columns"]) == (task, columns)
    (tmp_path / "my.yaml").write_text(written)
    assert bertkit.check(tmp_path / "my.yaml").jobs.recipe == first.recipe


def test_it_trains(tmp_path, tiny_encoder, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("data/pets.csv"), table("text,label", "the cat {n} sat,{side}", count=200))
    told = said(capsys, "init", "data/pets.csv", "--model", tiny_encoder)
    assert "label: label, 2 values\n200 rows\nvalidation: 0.1\n" in told
    *_, check, train = told.splitlines()
    said(capsys, *check.split()[1:])
    said(capsys, *train.split()[1:], "training.max_steps=2", "verify=false", "explain=false")
    assert read_json(Path("runs/pets/results.json"))["splits"]["validation"]["rows"] == 20


def test_rows_of_python_and_folders(tmp_path, tiny_encoder):
    frame = pd.DataFrame({"text": [f"the cat {n} sat" for n in range(40)], "mood": ["good", "bad"] * 20})
    first = bertkit.init(frame, model=str(tiny_encoder))
    assert bertkit.check(first.recipe).jobs.only.task.describe()
    assert bertkit.init({"train": frame, "validation": 0.25}).sections["data"]["validation"] == 0.25
    for split in ("train", "dev"):
        write_rows(tmp_path / f"{split}.csv", table("text,mood", "the cat {n} sat,{side}"))
    assert "validation" not in bertkit.init(tmp_path).sections["data"]


def test_what_is_ambiguous_is_asked(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("two.csv"), table("text,topic,mood", "the cat {n} sat,{side}\x1b,{side}"))
    write_rows(Path("one.csv"), table("text,mood", "the cat {n} sat,same"))
    write_rows(Path("both.csv"), table("left,right,mood,kind", "a cat {n} sat,it sat {n},{side},{side}"))
    told = refused(capsys, "init", "two.csv", "--label", "topics")
    assert "no column topics" in told
    assert "topic: good\\x1b, bad\\x1b\n" in told
    assert "no column looks like the label:\n    mood: same\n" in refused(capsys, "init", "one.csv")
    assert "--text NAME; twice for a pair" in refused(capsys, "init", "both.csv")
    assert "more than two" in refused(capsys, "init", "both.csv", *["--text", "left"] * 3)
    write_rows(Path("close.csv"), table("query,document,score", "a cat {n},it sat {n},{f}"))
    similar = bertkit.init("close.csv", task="sentence-similarity", label="score").sections["data"]["columns"]
    assert [*similar] == ["text_a", "text_b", "score"]
    assert "no columns of retrieval" in refused(capsys, "init", "two.csv", "--task", "retrieval")
    assert "no file or folder" in refused(capsys, "init", "three.csv")
    twice = table("Topic,What do you like?,What do you like?", "{side},the cat {n} sat,the dog")
    write_rows(Path("form.csv"), twice)
    assert "duplicate columns" in refused(capsys, "init", "form.csv")
    assert not [*Path().glob("*.yaml")]
    write_rows(Path("short.csv"), table("text,mood", "the cat {n} sat,{side}") + "the cat\n")
    assert "data.missing_fields=ignore" in refused(capsys, "init", "short.csv")
    section = bertkit.init("short.csv", layout=["data.missing_fields=ignore"]).sections["data"]
    assert section["missing_fields"] == "ignore"
    pair = "init both.csv --text right --text left --output my.yaml".split()
    told = refused(capsys, *pair)
    assert (
        "several columns could be the label:\n    mood: good, bad\n    kind: good, bad\n    Name it: --label"
        in told
    )
    said(capsys, *pair, "--label", "kind")
    assert parse(Path("my.yaml").read_bytes()).data["data"]["columns"]["text_a"] == "right"
    before = Path("my.yaml").read_text()
    assert "already exists" in refused(capsys, "init", "two.csv", "--output", "my.yaml")
    assert Path("my.yaml").read_text() == before


@pytest.mark.parametrize("encoding", "utf-8 utf-8-sig utf-16 cp1252".split())
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_encodings_and_delimiters(encoding, delimiter, tmp_path):
    text = table("Überschrift,note", "die größte Katze {n},{side}").replace(",", delimiter)
    (tmp_path / "a.csv").write_text(text, encoding=encoding)
    first = bertkit.init(tmp_path / "a.csv")
    stated = {"delimiter": delimiter} if delimiter != "," else {}
    stated |= {"encoding": encoding} if "utf-8" not in encoding else {}
    data = first.sections["data"]
    assert {key: data[key] for key in ("delimiter", "encoding") if key in data} == stated
    assert data["columns"]["text"] == "Überschrift"
    assert first.recipe.model.name == "jhu-clsp/mmBERT-small"
    given = bertkit.init(tmp_path / "a.csv", layout=[f"data.delimiter={json.dumps(delimiter)}"])
    assert given.sections["data"]["columns"] == data["columns"]


@pytest.mark.parametrize(
    "name", ["no", "a: b", "#x", "two\nlines", "{x}", "'\"", "- y", "\u2028", "1e3", "!!t"]
)
def test_no_name_is_yaml(name, tmp_path):
    rows = lines(**{name: "the cat N0 sat", f"{name}2": "SIDE"})
    first = bertkit.init(write_rows(tmp_path / "#a: b.jsonl", rows))
    document = parse(first.text(tmp_path / "my.yaml"))
    assert not document.faults
    assert document.data == json.loads(json.dumps(first.sections, default=str))
    assert document.data["data"]["columns"] == {"text": name, "label": f"{name}2"}
    assert not [character for line in first.why for character in line if not character.isprintable()]


def test_the_encoder_and_its_settings_follow_the_rows(tmp_path):
    many = write_rows(tmp_path / "many.csv", table("text,label", LONG * 9 + " {n},{side}", count=5001))
    first = bertkit.init(many)
    assert first.why[-3] == "the first 5,000 rows"
    assert first.recipe.model.max_length == 256
    assert first.recipe.training["num_train_epochs"] == 4
    assert first.recipe.task.method is None
    few = bertkit.init(write_rows(tmp_path / "few.csv", table("text,label", "{long} {n},{side}")))
    assert few.recipe.task.method == "contrastive"
    assert few.recipe.model.name == "sentence-transformers/all-MiniLM-L6-v2"


def test_sources_other_than_one_file(tmp_path):
    rows = [{"text": f"the cat {n} sat", "label": ("good", "bad")[n % 2]} for n in range(40)]
    Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    columns = {"text": "text", "label": "label"}
    assert bertkit.init(tmp_path / "saved").sections["data"]["columns"] == columns
    held = bertkit.init(rows)
    assert held.sections["data"].items() > {"validation": 0.1, "test": 0.1}.items()
    assert held.sections["data"]["columns"] == columns
    raises(UserError, "in no file", held.text, tmp_path / "my.yaml")
    write_rows(tmp_path / "tests" / "test.csv", table("text,label", "the cat {n} sat,{side}"))
    raises(UserError, "no split train; it has test", bertkit.init, tmp_path / "tests")
    several = dict.fromkeys(("train", "test"), f"{tmp_path}/tests/test.csv")
    raises(UserError, "several files", bertkit.init, several)
    bad = table("text,label", "die größte Katze {n},{side}").encode() + b"\xff,good\n"
    (tmp_path / "bad.csv").write_bytes(bad)
    raises(DataError, "bad.csv:42: byte 0xFF", bertkit.init, tmp_path / "bad.csv")


def test_columns_of_0_and_1_that_are_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = table('text,mood,"a,b",c,d', "the cat {n} sat,{side},1,0,1")
    write_rows(Path("a.csv"), text + table("", "a dog {n} ran,{side},0,1,0"))
    told = refused(capsys, "init", "a.csv")
    assert "    mood: good, bad\n    a,b, c, d: ['a,b', 'd'], ['c']\n" in told
    assert "unlike these:\n    mood: good, bad\n" in refused(capsys, "init", "a.csv", "--label", "mood,c")
    assert "labels: a,b, d, 2 values" in said(
        capsys, "init", "a.csv", "--label", "a,b", "--label", "d", "--label", "d"
    )
    assert parse(Path("a.yaml").read_bytes()).data["data"]["columns"]["labels"] == ["a,b", "d"]
    assert bertkit.init("a.csv", label="c,d").sections["data"]["columns"]["labels"] == ["c", "d"]
    assert bertkit.init("a.csv", label="c").sections["data"]["columns"]["label"] == "c"


def test_labels_in_several_spellings(tmp_path):
    rows = lines(text="the cat N0 sat", label="SIDE") + lines(text="a dog N0 sat", label="SIDE ")
    first = bertkit.init(write_rows(tmp_path / "a.jsonl", rows))
    assert first.sections["data"]["labels"] == "casefold"
    assert {*read_data(first).rows["train"]["label"]} == {"good", "bad"}


@pytest.mark.parametrize("separator", ["|", ",", "; ", "、"])
def test_what_stands_between_labels_is_recognised(separator, tmp_path):
    pairs = [one if one == other else f"{one}{separator}{other}" for one in "abc" for other in "abc"]
    rows = [{"text": f"the cat number {n}", "topics": pairs[n % 9]} for n in range(36)]
    first = bertkit.init(write_rows(tmp_path / "a.jsonl", rows), label="topics")
    assert first.sections["data"].get("labels_separator", "|") == separator.strip()
    assert "topics, 3 values" in first.why[2]
    assert {label for labels in read_data(first).rows["train"]["labels"] for label in labels} == {*"abc"}
    bars = [{"text": f"the cat number {n}", "label": f"{n % 6}|{n % 5}"} for n in range(60)]
    assert "labels" in bertkit.init(write_rows(tmp_path / "c.jsonl", bars)).sections["data"]["columns"]
    commas = [{"text": f"the cat number {n}", "label": f"{n % 6},{n % 5}"} for n in range(60)]
    assert "labels_separator" not in bertkit.init(write_rows(tmp_path / "b.jsonl", commas)).sections["data"]


def read_data(first):
    """The rows of a recipe."""
    task = first.recipe.task
    return small.read_data(first.recipe.data, get_task(task.name), task)


@pytest.mark.parametrize("splits", [[""], ["train", "test"]])
def test_a_folder_of_texts_by_label(splits, tmp_path, tiny_encoder):
    folder = tmp_path / "reviews"
    for split in splits:
        for number in range(12):
            side = ("pos", "neg")[number % 2]
            write_rows(folder / split / side / f"{number:02}.txt", f"the größte {number}\n\n{split}\n")
    write_rows(folder / splits[0] / "unsup" / "1.txt", "the cat")
    write_rows(folder / "README", "about it")
    for hidden in ("pos/._00.txt", "pos/folder.txt/1.txt", "__MACOSX/._pos"):  # as macOS packs them
        write_rows(folder / splits[0] / hidden, "\0")
    first = bertkit.init(folder, model=str(tiny_encoder))
    (tmp_path / "my.yaml").write_text(first.text(tmp_path / "my.yaml"))
    assert bertkit.check(tmp_path / "my.yaml").jobs.recipe == first.recipe
    loaded = read_data(first)
    assert [*loaded.rows] == ["train", "validation", "test"]
    counts = {name: len(rows) for name, rows in loaded.rows.items()}
    assert sum(counts.values()) == 12 * len(splits)
    row = {"text": f"the größte 1\n\n{splits[-1]}".strip(), "label": "neg", "id": "neg/01.txt"}
    assert any(row in [*rows] for rows in loaded.rows.values())
    assert f"{folder / splits[0] / 'unsup'}" in loaded.findings[0].what
    (folder / splits[0] / "pos" / "00.txt").write_bytes(b"gr\xf6\xdfte")
    raises(DataError, r"00.txt:1: byte 0xF6", read_data, first)


def test_no_split_of_texts_by_label_is_left_out_unsaid(tmp_path):
    for part in ("train/pos", "train/neg", "dev/pos"):
        write_rows(tmp_path / part / "1.txt", f"the {part}")
    spec = DataSpec(source=str(tmp_path))
    kind = get_task("text-classification")
    rows = small.read_data(spec, kind, kind.Options(name=kind.name)).rows
    assert [row["text"] for row in rows["validation"]] == ["the dev/pos"]
    write_rows(tmp_path / "test" / "1.txt", "a cat")
    raises(DataError, "test: holds no texts by label\n    Write test/LABEL/", open_source, spec, None, None)


def test_a_label_may_have_the_name_of_a_split(tmp_path):
    for label in ("valid", "invalid"):
        write_rows(tmp_path / label / "1.txt", f"the {label}")
    (part,) = open_source(DataSpec(source=str(tmp_path)), None, None)["train"]
    assert {row["label"] for _, row in part.rows} == {"valid", "invalid"}


def test_numbers_of_tags_are_not_labels_of_words(tmp_path):
    first = bertkit.init(write_rows(tmp_path / "a.jsonl", lines(tokens=["the", "cat"], ner_tags=[0, 1])))
    assert "scheme" not in first.sections["task"]
    raises(DataError, "its tags are numbers", read_data, first)


def test_a_guessed_encoding_shows_what_it_reads(tmp_path):
    (tmp_path / "a.csv").write_text(table("text,label", "güzel ışık {n},{side}"), encoding="cp1254")
    assert "in this encoding it reads 'gьzel эюэk" in bertkit.init(tmp_path / "a.csv").why[-1]


def test_sentences_without_spans_are_not_left_out_unasked(tmp_path):
    rows = lines(text="cat N0 sat on the mat", spans=SPANS) + lines(text="a dog N0 ran away", count=40)
    first = bertkit.init(write_rows(tmp_path / "a.jsonl", rows))
    assert "missing_labels" not in first.sections["data"]
    raises(DataError, "40 of 80 rows of train have no `spans`", read_data, first)


def test_a_folder_of_a_label_may_be_empty(tmp_path):
    for side in ("neg", "pos"):
        write_rows(tmp_path / "train" / side / "1.txt", f"the cat was {side}")
    (tmp_path / "train" / "aside").mkdir()
    assert bertkit.init(tmp_path).sections["data"]["columns"] == {"text": "text", "label": "label"}


def test_decimal_commas_are_numbers(tmp_path):
    first = bertkit.init(write_rows(tmp_path / "a.csv", table("text;rating", "the cat {n} sat;{n},5")))
    assert [*first.sections["data"]["columns"]] == ["text", "score"]
    raises(DataError, "decimal comma", read_data, first)


def test_positives_count_for_the_length(tmp_path):
    rows = table("query,document", "where is cat {n}," + LONG * 9 + " {n}")
    first = bertkit.init(write_rows(tmp_path / "p.csv", rows))
    assert (first.recipe.task.name, first.recipe.model.max_length) == ("sentence-similarity", 256)


def test_a_column_of_texts_alone_has_no_label_to_name(capsys, tmp_path):
    told = refused(capsys, "init", write_rows(tmp_path / "t.csv", table("text", "the cat {n} sat")))
    assert told.endswith("bertkit copy domain-minilm my.yaml\n")


def test_a_line_without_an_end_is_not_read_whole(tmp_path):
    with gzip.open(tmp_path / "a.csv.gz", "wb") as packed:
        packed.write(b"text,label\n" + b"x" * 60_000_000)
    tracemalloc.start()
    layout_of(tmp_path / "a.csv.gz", DataSpec(source="x"))
    assert tracemalloc.get_traced_memory()[1] < 45e6
    tracemalloc.stop()


def test_a_title_is_not_a_header(tmp_path):
    path = write_rows(tmp_path / "a.csv", table("Survey,\ntext,label", "the cat {n} sat,{side}"))
    raises(UserError, "no column looks like the label", bertkit.init, path)
    path = write_rows(tmp_path / "b.csv", table("Survey\ntext,label", "the cat {n} sat,{side}"))
    raises(DataError, "title above the header", bertkit.init, path)


def test_rows_with_no_label_of_several_are_kept(tmp_path):
    rows = table("text,tags", "the cat {n} sat,{side}|cat") + table("", "a dog {n} ran,", count=4)
    first = bertkit.init(write_rows(tmp_path / "a.csv", rows))
    assert "missing_labels" not in first.sections["data"]


def test_folders_without_labels_are_no_label(tmp_path):
    for name in ("pos", "neg", "unsup", "unlabeled", "unlabelled"):
        write_rows(tmp_path / name / "1.txt", "the cat")
    assert [*text_folders(tmp_path, ["train"])["train"]] == ["neg", "pos"]
