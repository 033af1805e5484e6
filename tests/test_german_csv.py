"""German csv as Excel writes it, from file to predictions that open there again."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import small

from bertkit.cli.main import main
from bertkit.data import load
from bertkit.errors import DataError
from bertkit.inference.predict_file import _write_csv, predict_file
from bertkit.recipe.recipe import Recipe, load_recipe
from bertkit.run import Run
from bertkit.tasks.text_classification import TextClassification
from bertkit.training.train import train

COUNT = 40


def tickets(path: Path, encoding: str = "cp1252") -> list[list[str]]:
    """Tickets as a German Excel saves them: semicolons, decimal commas, cells of several lines, quotes, umlauts."""
    rows = [["Nr", "Text", "Status", "Aufwand", "Größe"]]
    for number in range(COUNT):
        body = f'{small.text(number, number % 2).strip()}; für Müller & Söhne – 5 €\nmit "Grüßen", {number}'
        rows.append([f"{number:05}", body, ("gelöst", "offen")[number % 2], f"{number % 2 * 3},{number % 7}", "groß"])
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=";").writerows(rows)
    return rows


def edits(message: str) -> list[str]:
    """The overrides that a message names, as a shell would pass them."""
    return [shlex.split(found)[0] for found in re.findall(r"command line: ('[^']*')\)", message)]


def recipe_by_messages(folder: Path, encoder: Path, source: Path, target: str) -> tuple[Any, list[list[str]]]:
    """A recipe that grows by what each message names, and those edits."""
    file = folder / "tickets.yaml"
    file.write_text(
        f"task: {{name: text-classification}}\nmodel: {{name: {encoder}, max_length: 32}}\n"
        f"data: {{source: {source.name}, validation: 0.2, columns: {{text: Text, {target}}}}}\n"
        "training: {max_steps: 2}\nverify: false\nexplain: false\n",
        encoding="utf-8",
    )
    given, asked = list[str](), []
    while message := refusal(load_recipe(file, given)):
        asked.append(edits(message))
        assert asked[-1], message
        given += asked[-1]
    return load_recipe(file, given), asked


def refusal(recipe: Recipe) -> str:
    """Why the data of a recipe cannot be read; "" where they can."""
    try:
        load(recipe.data, TextClassification.schema)
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("encoding", "target", "expected"),
    [
        ("cp1252", "label: Status", [['data.delimiter=";"', "data.encoding=cp1252"]]),
        ("utf-8-sig", "label: Status", [['data.delimiter=";"']]),
        ("utf-16", "label: Status", [["data.encoding=utf-16"], ['data.delimiter=";"']]),
        ("cp1252", "score: Aufwand", [['data.delimiter=";"', "data.encoding=cp1252"], ['data.decimal=","']]),
    ],
)
def test_from_a_german_file_to_predictions_that_open_in_excel(
    encoding: str, target: str, expected: list[list[str]], tiny_encoder: Path, tmp_path: Path
) -> None:
    rows = tickets(tmp_path / "tickets.csv", encoding)
    recipe, asked = recipe_by_messages(tmp_path, tiny_encoder, tmp_path / "tickets.csv", target)
    assert [sorted(each) for each in asked] == expected
    predictor = train(recipe, tmp_path / "run").load()
    out = tmp_path / "out.csv"
    assert predict_file(predictor, str(tmp_path / "run"), str(tmp_path / "tickets.csv"), out, {}) == COUNT
    marks = {"cp1252": b"Nr;", "utf-8-sig": b"\xef\xbb\xbfNr;", "utf-16": "Nr;".encode("utf-16")}
    assert out.read_bytes().startswith(marks[encoding])
    with out.open(encoding=encoding, newline="") as file:
        written = list(csv.reader(file, delimiter=";"))
    assert [row[:5] for row in written] == rows
    told = predictor([row[1] for row in rows[1:]])
    at = written[0].index("answer.score")
    separator = "," if "score" in target else "."
    assert [row[at] for row in written[1:]] == [str(answer["score"]).replace(".", separator) for answer in told]


def test_the_layout_of_a_file_is_given_to_predict(
    learned: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tickets(tmp_path / "t.csv")
    command = ["predict", str(learned.folder), "--input", str(tmp_path / "t.csv"), "--column", "text=Text"]
    command += ["--output", str(tmp_path / "out.csv")]
    assert main(command) == 2
    found = edits(capsys.readouterr().err)
    assert not (tmp_path / "out.csv").exists()
    assert main([*command, *found]) == 0
    with (tmp_path / "out.csv").open(encoding="cp1252", newline="") as file:
        assert [row[:5] for row in csv.reader(file, delimiter=";")] == rows
    assert main([*command, "data.limit=3"]) == 2
    assert "only the layout of the file can be given here: data.format, data.header" in capsys.readouterr().err
    assert main([*command, "a text"]) == 2
    assert "predict needs texts, or --input FILE" in capsys.readouterr().err


def test_what_the_encoding_of_the_input_lacks_is_told(tmp_path: Path) -> None:
    pairs = [({"label": "ł"}, {"text": "a"})]
    with (tmp_path / "out.csv").open("w", encoding="cp1252") as file, pytest.raises(DataError) as caught:
        _write_csv(file, pairs, ";", ",", [], False)
    assert "'ł' cannot be written in cp1252, the encoding of the input" in str(caught.value)
