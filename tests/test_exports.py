"""Label Studio's exports and CoNLL-U, read without any mapping; and files that are wrong, refused with their
place.
"""

import copy
import json
from functools import partial

import pandas
import pytest
import small
from cases import BY_ID
from finished import finished
from small import message_of, notes, read_as, refused, write_rows

from bertkit.cli.main import main
from bertkit.data import load, read_rows
from bertkit.errors import DataError
from bertkit.inference.output_formats import entity_cells
from bertkit.sections import DataSpec
from bertkit.tasks import get_task


def write(path, content):
    """.json from anything; .jsonl from a list, a line each; text as it is."""
    return write_rows(path, json.dumps(content) if path.suffix == ".json" else content)


def get(source, task="token-classification", options=None, **settings):
    return read_as({"name": task, **(options or {})}, source, **settings)


fails = partial(message_of, DataError, get)


def tagged(data, split="train"):
    rows = data.rows[split]
    return list(zip(rows["text"][:], rows["tags"][:], strict=True))


# --- Label Studio, as its guide on exporting annotations has it


def region(start, end, label, text, name="label"):
    value = {"start": start, "end": end, "labels": [label], **({} if text is None else {"text": text})}
    return {
        "value": value,
        "id": "wqB0",
        "from_name": name,
        "to_name": "text",
        "type": "labels",
        "origin": "manual",
    }


def choice(name, *chosen):
    value = {"choices": list(chosen)}
    return {
        "value": value,
        "id": "Ao1",
        "from_name": name,
        "to_name": "text",
        "type": "choices",
        "origin": "manual",
    }


def annotation(*results, **given):
    return {
        "id": 7, "completed_by": 1, "result": list(results), "was_cancelled": False, "ground_truth": False,
        "created_at": "2024-02-05T10:02:03.137Z", "lead_time": 9.2, "prediction": {}, "unique_id": "c1", "task": 1,
        "parent_annotation": None, **given,
    }  # fmt: skip


def task(data, *annotations):
    return {
        "id": 1, "annotations": list(annotations), "file_upload": "a1b2-texts.json", "drafts": [], "predictions": [],
        "data": {"text": data} if isinstance(data, str) else data, "meta": {}, "created_at": "2024-02-05T10:01:39.1Z",
        "total_annotations": len(annotations), "last_comment_updated_at": None, "comment_authors": [],
    }  # fmt: skip


RELATION = {"from_id": "wqB0", "to_id": "Ao1", "type": "relation", "direction": "right"}
MET = task("Ann met Bo", annotation(region(0, 3, "PER", "Ann"), RELATION, region(8, 10, "PER", "Bo")))
TAGS = ["B-PER", "O", "B-PER"]


def test_label_studio_with_entities(tmp_path):
    skipped = task("skipped", annotation(region(0, 7, "PER", "skipped"), was_cancelled=True))
    none = {**task("none"), "annotations": None}
    empty = [
        task("no name", annotation()),
        task("none", {**annotation(), "result": None}),
        task("skip", {"id": 1}),
    ]
    path = write(tmp_path / "t.json", [MET, task("nobody looked"), skipped, *empty, none])
    assert "3 of 7 rows of train have no `spans`" in fails(path)
    data = get(path, missing_labels="ignore")
    assert tagged(data) == [("Ann met Bo", TAGS), ("no name", ["O", "O"]), ("none", ["O"]), ("skip", ["O"])]
    assert notes(data)[0] == f"{path}: read as Label Studio's JSON export: 7 tasks"
    assert [data.origins["train"][row] for row in range(2)] == [
        f"{path}, row 1, id 1",
        f"{path}, row 4, id 1",
    ]


def test_label_studio_reads_the_ground_truth_or_else_the_first_annotation(tmp_path):
    one = annotation(region(0, 3, "PER", "Ann"))
    other = annotation(region(0, 3, "ORG", "Ann"))
    tasks = [task("Ann", one, other), task("Ann", one, {**other, "ground_truth": True})]
    data = get(write(tmp_path / "t.json", tasks))
    assert [tags for _, tags in tagged(data)] == [["B-PER"], ["B-ORG"]]
    said = "1 task with several annotations, none of them the ground truth; the first of each was read"
    assert notes(data)[1].endswith(said)
    assert "mark the ground truth" in data.findings[1].fix


@pytest.mark.parametrize("counted", ["code points", "UTF-16"])
def test_label_studio_counts_characters_in_either_way(tmp_path, counted):
    text = "😀 Ann met 👍👍 Bo\nLee"
    wide = counted == "UTF-16"
    results = [
        region(2 + wide, 5 + wide, "PER", "Ann"),
        region(13 + 3 * wide, 19 + 3 * wide, "PER", "Bo\\nLee"),  # how Label Studio writes a line break
    ]
    data = get(write(tmp_path / "t.json", [task(text, annotation(*results))]))
    assert tagged(data) == [(text, "O B-PER O O O B-PER I-PER".split())]
    lines = annotation(region(3, 6, "PER", "Ann"))  # a browser has one character for a line end
    assert tagged(get(write(tmp_path / "t.json", [task("A\r\n\r\nAnn", lines)])))[0][1] == ["O", "B-PER"]
    without = get(write(tmp_path / "t.json", [task("Ann met Bo 😀", annotation(region(8, 10, "PER", None)))]))
    assert tagged(without)[0][1] == "O O B-PER O".split()  # a region without its text


def test_label_studio_with_a_region_that_is_not_in_its_text(tmp_path):
    for results, said in (
        (region(1, 4, "PER", "Ann"), "t.json, row 2: the region 'Ann' is from 1 to 4, where the text has 'nn '"),
        (region(6, 9, "PER", None), "row 2: a region from 6 to 9 has no `text`, by which to tell"),
        ({**region(0, 3, "PER", "Ann"), "value": {"start": "/p[1]/text()[1]", "end": "/p[1]/text()[1]",
          "startOffset": 0, "endOffset": 3, "hypertextlabels": ["PER"]}}, ("row 2: a region has "
                                                                           "`hypertextlabels`")),
    ):  # fmt: skip
        assert said in fails(write(tmp_path / "t.json", [MET, task("Ann 😀 met", annotation(results))]))


def test_label_studio_with_choices(tmp_path):
    tasks = [
        task("good", annotation(choice("mood", "Positive"))),
        task("bad", annotation(choice("mood", "Negative"))),
    ]
    path = write(tmp_path / "t.json", tasks)
    assert get(path, "text-classification").rows["train"]["label"][:] == ["Positive", "Negative"]
    tasks.append(task("both", annotation(choice("mood", "Positive", "Negative"))))
    more = write(tmp_path / "more.json", tasks)
    moods = [["Positive"], ["Negative"], ["Positive", "Negative"]]
    assert get(more, "text-classification").rows["train"]["labels"][:] == moods
    data = get({"train": path, "validation": more}, "text-classification", columns={"labels": "mood"})
    assert (data.rows["train"]["labels"][:], data.rows["validation"]["labels"][:]) == (moods[:2], moods)
    both = write(path, [task("Ann", annotation(region(0, 3, "PER", "Ann"), choice("kind", "name")))])
    assert get(both).rows["train"]["tags"][:] == [["B-PER"]]
    assert get(both, "text-classification").rows["train"]["label"][:] == ["name"]


def test_label_studio_with_several_controls_names_them(tmp_path):
    two = [
        choice("mood", "good"),
        choice("topic", "art", "war"),
        region(0, 1, "X", "a", "ner"),
        region(0, 1, "Y", "a"),
    ]
    path = write(tmp_path / "t.json", [task("a b", annotation(*two))])
    said = fails(path, "text-classification")
    assert (
        "needs a column `label`, or `labels`, or `score`; found: 'id', 'text', 'ner', 'mood', 'topic'" in said
    )
    assert "data: {columns: {label: " in said
    assert "needs a column `tags`, or `spans`; found: 'id', 'text', 'ner'" in fails(path)
    assert get(path, "text-classification", columns={"label": "mood"}).rows["train"]["label"][:] == ["good"]
    assert get(path, "text-classification", columns={"labels": "topic"}).rows["train"]["labels"][:] == [
        ["art", "war"]
    ]
    assert get(path, columns={"spans": "label"}).rows["train"]["tags"][:] == [["B-Y", "O"]]


def test_label_studio_with_several_texts_names_them_and_finds_the_only_one(tmp_path):
    path = write(
        tmp_path / "t.json", [task({"subject": "Ann", "body": "xx Ann", "n": 1}, *MET["annotations"])]
    )
    assert "needs a column `tokens`, or `text`; found: 'id', 'subject', 'body', 'n', 'spans'" in fails(path)
    tasks = [task({"subject": "Ann", "body": "xx Ann"}, annotation(region(3, 6, "PER", "Ann")))]
    assert tagged(get(write(path, tasks), columns={"text": "body"})) == [("xx Ann", ["O", "B-PER"])]
    data = {"review": "Ann", "stars": 2, "label": "old"}
    path = write(tmp_path / "t.json", [task(data, annotation(choice("a", "b")))])
    assert get(path, "text-classification").rows["train"][:] == {"text": ["Ann"], "label": ["b"], "id": ["1"]}


def test_label_studio_that_nobody_annotated_or_that_is_cut_short_and_ordinary_rows(tmp_path):
    path = write(tmp_path / "t.json", [task("a"), task("b")])
    assert "needs a column" in fails(path)
    rows = [row for _, row in read_rows(path, DataSpec(source=str(path)))]
    assert [row["text"] for row in rows] == ["a", "b"]  # for `predict`
    write(path, [MET, {"id": 2, "annotations": [{"result": [{"from_name": "label"}]}], "data": {}}])
    assert "t.json, row 2: not as Label Studio's JSON export has it: KeyError('value')" in fails(path)
    rows = [
        {"id": 1, "text": "a", "labels": ["x", "y"], "data": 1},
        {"id": 2, "text": "b", "labels": ["x"], "data": 1},
    ]
    for name in ("t.jsonl", "t.json"):
        path = write(tmp_path / name, copy.deepcopy(rows))
        data = load(DataSpec(source=str(path)), get_task("text-classification").schema)
        assert not data.findings
        assert [row for _, row in read_rows(path, DataSpec(source=str(path)))] == rows


# --- CoNLL-U, with a sentence of its own documentation


UD = """# newdoc id = d1
# sent_id = s1
# text = Vámonos al mar
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tV\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP\tCase=Acc\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\tE\t_\t5\tcase\t_\t_
4\tel\tel\tDET\tD\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\tN\t_\t1\tobl\t_\tSpaceAfter=No
5.1\tvamos\tir\tVERB\tV\t_\t_\t_\t1:conj\t_

# sent_id = s2
1\tSí\tsí\tINTJ\tI\t_\t0\troot\t_\t_

"""


def test_conllu(tmp_path):
    path = write(tmp_path / "t.conllu", UD)
    data = load(DataSpec(source=str(path)), get_task("token-classification").schema)
    rows = data.rows["train"]
    assert rows["tokens"][:] == ["Vamos nos a el mar".split(), ["Sí"]]
    assert rows["tags"][:] == ["VERB PRON ADP DET NOUN".split(), ["INTJ"]]
    assert [data.origins["train"][row] for row in range(2)] == [f"{path}:5", f"{path}:14"]
    xpos = DataSpec(source=str(path), columns={"tags": "xpos"})
    assert load(xpos, get_task("token-classification").schema).rows["train"]["tags"][1] == ["I"]
    path = write(tmp_path / "t.conllu", UD + "1\tSí\tsí\n")
    assert "t.conllu:16: expected 10 fields, found 3" in fails(path)


# --- questions


def test_questions_in_csv_and_with_several_answers_in_parquet_as_on_the_hub(tmp_path):
    text = (
        'id,question,context,answers\n1,Who?,"Ann met Bo, yes.",Bo\n2,Why?,Ann met Bo.,\n3,Why?,Ann met '
        'Bo.," "\n'
    )
    data = get(write(tmp_path / "t.csv", text), "question-answering")
    assert [answers["text"] for answers in data.rows["train"]["answers"]] == [["Bo"], [], []]
    assert notes(data) == ["train: 2 of 3 questions without an answer in the context"]
    path = write(tmp_path / "t.csv", "question,context,answers\nWho?,Ann met Bo.,Eve\n")
    assert "t.csv:2: answer 1, 'Eve', does not stand in the context" in fails(path, "question-answering")
    from datasets import Dataset

    answers = [{"text": ["Bo", "met Bo"], "answer_start": [8, 4]}, {"text": [], "answer_start": []}]
    rows = {"id": ["a", "b"], "title": ["t", "t"], "context": ["Ann met Bo."] * 2, "question": ["Who?"] * 2}
    Dataset.from_dict({**rows, "answers": answers}).to_parquet(tmp_path / "t.parquet")
    assert list(get(tmp_path / "t.parquet", "question-answering").rows["train"]["answers"]) == answers
    path = write(
        tmp_path / "t.jsonl", [{"question": "Who?", "context": "Ann met Bo.", "answers": ["Ann", "Bo"]}]
    )
    found = get(path, "question-answering").rows["train"]["answers"][0]
    assert found == {"text": ["Ann", "Bo"], "answer_start": [0, 8]}


# --- what predict writes for other tools


@pytest.fixture(scope="module")
def ner(tiny_encoder, tmp_path_factory):
    return finished(BY_ID["ner-softmax"], tiny_encoder, tmp_path_factory.mktemp("ner") / "run").folder


def predicted(run, rows, output, *given):
    assert main(["predict", str(run), "--input", str(rows), "--output", str(output), *given]) == 0
    return output.read_text()


def test_entities_for_other_tools(ner, tmp_path):
    given = [
        {"text": "the cat 😀 was good, and it sat on the mat", "n": 1},
        {"text": "the dog\nwas bad", "n": 2},
    ]
    rows = write(tmp_path / "rows.jsonl", given)
    predicted(ner, rows, tmp_path / "a.jsonl")
    full = small.read_rows(tmp_path / "a.jsonl")
    found = [row["answer"]["entities"] for row in full]
    assert any(found)
    by_entity = ("--format", "entities")
    keys = "start end label text".split()
    expected = [
        (number, *(entity[key] for key in keys)) for number, own in enumerate(found, 1) for entity in own
    ]
    scores = [entity["score"] for own in found for entity in own]
    readers = {
        "b.jsonl": partial(pandas.read_json, lines=True),
        "b.csv": pandas.read_csv,
        "b.xlsx": pandas.read_excel,
    }
    for name, read in readers.items():
        assert (
            main(["predict", str(ner), "--input", str(rows), "--output", f"{tmp_path}/{name}", *by_entity])
            == 0
        )
        table = read(tmp_path / name)
        assert [*table.columns] == "row id start end label text score".split()
        assert [*table.drop(columns=["id", "score"]).itertuples(index=False, name=None)] == expected
        assert table["score"].tolist() == pytest.approx(scores, rel=1e-9)
    mapped = entity_cells([(full[0]["answer"], {"no": 7})], 0, {"id": "no"})
    assert {cells[1] for cells in mapped} == {"id", 7}
    named = write(tmp_path / "named.jsonl", [{"id": "x", "text": ""}, {"id": "y", **given[0]}])
    told = predicted(ner, named, tmp_path / "b.jsonl", *by_entity).splitlines()
    assert {(each["row"], each["id"]) for each in map(json.loads, told)} == {(2, "y")}
    none = predicted(ner, write(tmp_path / "none.jsonl", [{"text": ""}]), tmp_path / "none.csv", *by_entity)
    assert none.split() == ["row,id,start,end,label,text,score"]
    predicted(ner, rows, tmp_path / "m.jsonl", "--format", "masked")
    masked = small.read_rows(tmp_path / "m.jsonl")
    for row, own, line in zip(given, found, masked, strict=True):
        ends = [0, *(entity["end"] for entity in own)]
        starts = [*(entity["start"] for entity in own), len(row["text"])]
        kept = [row["text"][end:start] for end, start in zip(ends, starts, strict=True)]
        labels = [*(f"[{entity['label']}]" for entity in own), ""]
        assert line == {"text": "".join(part + label for part, label in zip(kept, labels, strict=True))}
    predicted(ner, rows, tmp_path / "c.conll", "--format", "conll")
    words = [row["answer"]["words"] for row in full]
    expected = [
        {"tokens": [word["word"] for word in own], "tags": [word["tag"] for word in own]} for own in words
    ]
    assert [row for _, row in read_rows(tmp_path / "c.conll", DataSpec(source="unused"))] == expected
    named = write(tmp_path / "named.jsonl", [{"n": row["n"], "review": row["text"]} for row in given])
    renamed = predicted(
        ner, named, tmp_path / "r.json", "--format", "label-studio", "--column", "text=review"
    )
    assert [each["data"]["text"] for each in json.loads(renamed)] == [row["text"] for row in given]
    lists = write(tmp_path / "lists.jsonl", [{"tokens": ["the", "cat"]}])
    (joined,) = json.loads(predicted(ner, lists, tmp_path / "l.json", "--format", "label-studio"))
    assert joined["data"]["text"] == "the cat"
    tasks = json.loads(predicted(ner, rows, tmp_path / "d.json", "--format", "label-studio"))
    assert [each["data"] for each in tasks] == given
    results = [each["predictions"][0]["result"] for each in tasks]
    for row, own, result in zip(given, found, results, strict=True):
        regions = [
            {**each["value"], "labels": each["value"]["labels"][0], "score": each["score"]} for each in result
        ]
        assert regions == [
            {**{k: v for k, v in e.items() if k != "label"}, "labels": e["label"]} for e in own
        ]
        assert all(row["text"][each["start"] : each["end"]] == each["text"] for each in regions)
    # accepted in Label Studio and exported, they are read again
    path = write(
        tmp_path / "e.json", [task(row, annotation(*own)) for row, own in zip(given, results, strict=True)]
    )
    assert [text for text, _ in tagged(get(path))] == [row["text"] for row in given]


def test_a_format_needs_entities_and_its_own_suffix(ner, tmp_path, capsys):
    rows = write(tmp_path / "rows.jsonl", [{"tokens": ["New York", "is"]}, {"tokens": ["a"]}])
    words = ("predict", ner, "--input", rows, "--format", "conll", "--output")
    assert "Use .conll" in refused(capsys, *words, tmp_path / "a.json")
    told = refused(capsys, *words, tmp_path / "a.conll")
    assert "row 1: the word 'New York' is empty or contains a space" in told
    assert not (tmp_path / "a.conll").exists()
    refused(capsys, "predict", ner, "a text", "--format", "conll")
