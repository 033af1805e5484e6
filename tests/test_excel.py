"""Files as Excel writes them: .xlsx, and German csv from file to predictions that open there again."""

import csv
import gzip
import io
import re
import shlex
import sys
import zipfile
from datetime import date, datetime, time, timedelta

import openpyxl
import pytest
import small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openpyxl.cell.cell import ERROR_CODES

from bertkit.data import load, read_rows
from bertkit.data.excel import MAX_CELL, _text, sheet_records, write_sheet
from bertkit.data.problems import Problems
from bertkit.data.values import read_name
from bertkit.errors import DataError, UserError
from bertkit.inference.predict_file import _write_csv, predict
from bertkit.recipe.recipe import load_recipe
from bertkit.sections import DataSpec
from bertkit.tasks.text_classification import TextClassification
from bertkit.training.train import train


def workbook(path, *rows, more=()):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name in more:
        book.create_sheet(name).append(["of another sheet"])
    book.save(path)
    return path


def read(path, **layout):
    return list(read_rows(path, DataSpec(source="unused", **layout)))


def fails(path, **layout):
    return small.message_of(DataError, read, path, **layout).replace(str(path), path.name)


def patched(path, *changes):
    """The workbook with these patterns of its sheet replaced."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    for pattern, content in changes:
        parts[sheet] = re.sub(pattern, content, parts[sheet])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


# --- reading .xlsx


def test_a_sheet_is_named_and_the_others_are_reported(tmp_path):
    path = workbook(
        tmp_path / "a.xlsx", ["text", "label"], ["a", "x"], ["b", "y"], more=("Notes", "More notes")
    )
    rows = [(2, {"text": "a", "label": "x"}), (3, {"text": "b", "label": "y"})]
    assert read(path, sheet="Sheet") == read(path) == rows
    book = openpyxl.load_workbook(path)
    book["Notes"].append(["text"])
    book["Notes"].append(["c"])
    book.save(path)
    assert read(path, sheet="Notes", header=["text"])[-1] == (3, {"text": "c"})
    message = fails(path, sheet="notes")
    assert "a.xlsx: has no sheet 'notes'; did you mean 'Notes'?" in message
    assert "data.sheet is one of: Sheet, Notes, More notes" in message

    def findings(**layout):
        spec = DataSpec(source={"train": str(path)}, **layout)
        return [each for each in load(spec, TextClassification.schema).findings if "sheet" in each.what]

    assert findings(sheet="Sheet") == []
    (found,) = findings()
    assert found.what == f"{path}: the first of 3 sheets is read, 'Sheet'; others: Notes, More notes"
    assert "'data.sheet=NAME'" in found.fix


def test_cells_of_all_types_are_texts(tmp_path):
    path = workbook(
        tmp_path / "a.xlsx",
        [" text ", "label", "n", "day"],
        ["first\nsecond", "x", 3, datetime(2024, 3, 5)],
        [],
        ["ä=1", True, 1.5, datetime(2024, 3, 5, 14, 30)],
        [7, "z", 1e-9, date(2024, 3, 5)],
        ["short"],
        [None, "y", 12.0, time(8, 5)],
        ["'quoted", "z", -0.1, timedelta(hours=30)],
        more=("second",),
    )
    rows = read(path)
    assert rows == [
        (2, {"text": "first\nsecond", "label": "x", "n": "3", "day": "2024-03-05"}),
        (4, {"text": "ä=1", "label": "true", "n": "1.5", "day": "2024-03-05 14:30:00"}),
        (5, {"text": "7", "label": "z", "n": "1e-09", "day": "2024-03-05"}),
        (6, {"text": "short", "label": "", "n": "", "day": ""}),
        (7, {"text": "", "label": "y", "n": "12", "day": "08:05:00"}),
        (8, {"text": "'quoted", "label": "z", "n": "-0.1", "day": rows[-1][1]["day"]}),
    ]
    packed = tmp_path / "a.xlsx.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed) == rows
    assert read(workbook(tmp_path / "b.xlsx", ["a", 1]), header=["text", "n"]) == [
        (1, {"text": "a", "n": "1"})
    ]


def test_the_last_value_of_a_formula_is_read_but_no_row_numbers_without_end(tmp_path):
    path = workbook(tmp_path / "a.xlsx", ["text", "n"], ["a", "=1+1"])
    dimension = (rb'<dimension ref="[^"]*"', b'<dimension ref="A1:A1"')  # as some programs write it
    assert read(patched(path, (rb"<v\s*/>|<v></v>", b"<v>2</v>"), dimension)) == [
        (2, {"text": "a", "n": "2"})
    ]
    path = workbook(tmp_path / "a.xlsx", ["text"], ["a"])
    patched(path, (b'<row r="2"', b'<row r="99999999999"'), (b'"A2"', b'"A99999999999"'))
    assert "numbers its rows beyond 1,048,576" in fails(path)


def test_what_is_wrong_is_located_by_row_and_what_is_no_workbook_or_unpacks_to_too_much(
    tmp_path, monkeypatch
):
    path = workbook(tmp_path / "a.xlsx", ["text", "label"], ["a", "x"], ["b", "x", "more"])
    assert "a.xlsx, row 3: expected 2 fields, found 3" in fails(path)
    assert len(read(path, extra_fields="ignore")) == 2
    assert "a.xlsx, row 1: duplicate columns in the header: a" in fails(
        workbook(path, ["a", "a"], ["1", "2"])
    )
    assert "a.xlsx: the file is empty" in fails(workbook(path))
    assert "a.xlsx: is empty: no rows" in fails(workbook(path, ["a"]))
    path = tmp_path / "a.xlsx"
    path.write_bytes(b"\xd0\xcf\x11\xe0 of a password")
    assert "not an .xlsx workbook, or password-protected" in fails(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "hello")
    assert "a.xlsx: cannot be read as xlsx" in fails(path)
    path = workbook(tmp_path / "a.xlsx", ["text"], ["word " * 1000])
    assert path.stat().st_size < 10_000
    monkeypatch.setattr("bertkit.data.excel.MAX_WHOLE", 11_000)
    message = fails(path)
    assert "holds more than 11,000 bytes when unpacked" in message
    assert "save it as csv" in message


def test_without_openpyxl(tmp_path, monkeypatch):
    path = workbook(tmp_path / "a.xlsx", ["text"], ["a"])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    small.raises(UserError, r'pip install "bertkit\[excel\]"', read, path)


@given(content=st.binary(max_size=200), cut=st.integers(0, 5000), byte=st.integers(0, 255))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_is_a_data_error(tmp_path, content, cut, byte):
    path = workbook(tmp_path / "a.xlsx", ["text", "n"], ["a", 1.5], ["b", datetime(2024, 1, 2)])
    whole = bytearray(path.read_bytes())
    whole[cut % len(whole)] = byte
    for data in (bytes(whole), bytes(whole[:cut]), content):
        (tmp_path / "b.xlsx").write_bytes(data)
        try:
            rows = read(tmp_path / "b.xlsx")
        except DataError:
            continue
        assert rows, "a file that is read has rows"
        assert all(number > 1 and isinstance(row, dict) for number, row in rows)


# --- writing .xlsx


def test_a_sheet_holds_what_was_written(tmp_path):
    rows = [["text", "n"], ["=1+1", 0.25], ["a\nb", True], ["+49", None], ["00123", 7]]
    with (tmp_path / "a.xlsx").open("wb") as file:
        write_sheet(file, rows)
    assert [list(row) for row in openpyxl.load_workbook(tmp_path / "a.xlsx").active.values] == rows
    with (tmp_path / "a.xlsx").open("rb") as stream:
        assert [texts for _, texts in sheet_records(stream, Problems("a"))][1] == ["=1+1", "0.25"]


@pytest.mark.parametrize(
    ("value", "said"), [("x" * (MAX_CELL + 1), "32,767 characters"), ("a\x01", "control")]
)
def test_what_a_sheet_cannot_hold_is_refused(value, said):
    small.raises(DataError, rf"xlsx output, row 2: .*{said}", write_sheet, io.BytesIO(), [["text"], [value]])


# --- German csv, from file to predictions


COUNT = 40


def tickets(path, encoding="cp1252"):
    """Tickets as a German Excel saves them: semicolons, decimal commas, cells of several lines, quotes,
    umlauts.
    """
    rows = ["Nr Text Status Aufwand Größe".split()]
    for number in range(COUNT):
        body = f'{small.text(number, number % 2).strip()}; für Müller & Söhne – 5 €\nmit "Grüßen", {number}'
        rows.append(
            [f"{number:05}", body, ("gelöst", "offen")[number % 2], f"{number % 2 * 3},{number % 7}", "groß"]
        )
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=";").writerows(rows)
    return rows


def edits(message):
    """The overrides that a message names, as a shell would pass them."""
    return [shlex.split(found)[0] for found in re.findall(r"command line: ('[^']*')\)", message)]


def recipe_by_messages(folder, encoder, source):
    """A recipe that grows by what each message names, and those edits."""
    file = folder / "tickets.yaml"
    file.write_text(
        f"task: {{name: text-classification}}\nmodel: {{name: {encoder}, max_length: 32}}\n"
        f"data: {{source: {source.name}, validation: 0.2, columns: {{text: Text, label: Status}}}}\n"
        "training: {max_steps: 2}\nverify: false\nexplain: false\n",
    )
    given = []
    asked = []
    for _ in range(3):
        recipe = load_recipe(file, given)
        try:
            load(recipe.data, TextClassification.schema)
        except DataError as error:
            asked.append(edits(str(error)))
            given += asked[-1]
    return recipe, asked


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("cp1252", [['data.delimiter=";"', "data.encoding=cp1252"]]),
        ("utf-8-sig", [['data.delimiter=";"']]),
        ("utf-16", [["data.encoding=utf-16"], ['data.delimiter=";"']]),
    ],
)
def test_from_a_german_file_to_predictions_that_open_in_excel(encoding, expected, tiny_encoder, tmp_path):
    rows = tickets(tmp_path / "tickets.csv", encoding)
    recipe, asked = recipe_by_messages(tmp_path, tiny_encoder, tmp_path / "tickets.csv")
    assert [sorted(each) for each in asked] == expected
    predictor = train(recipe, tmp_path / "run").load()
    out = tmp_path / "out.csv"
    assert predict(tmp_path / "run", tmp_path / "tickets.csv", out) == COUNT
    marks = {"cp1252": b"Nr;", "utf-8-sig": b"\xef\xbb\xbfNr;", "utf-16": "Nr;".encode("utf-16")}
    assert out.read_bytes().startswith(marks[encoding])
    with out.open(encoding=encoding, newline="") as file:
        written = list(csv.reader(file, delimiter=";"))
    assert [row[:5] for row in written] == rows
    told = predictor([row[1] for row in rows[1:]])
    at = written[0].index("answer.score")
    assert [row[at] for row in written[1:]] == [str(answer["score"]) for answer in told]
    assert predict(tmp_path / "run", tmp_path / "tickets.csv", tmp_path / "o.xlsx") == COUNT
    sheet = list(openpyxl.load_workbook(tmp_path / "o.xlsx").active.values)
    assert [list(row[:5]) for row in sheet] == rows
    assert [row[at] for row in sheet[1:]] == pytest.approx([answer["score"] for answer in told], rel=1e-14)


def test_a_workbook_is_answered(learned, tmp_path):
    path = tmp_path / "a.xlsx"
    predictor = learned.load()
    workbook(path, ["text", "n"], ["the cat was good", 1], ["the dog was bad\nand it sat", 2.5])
    assert predict(learned.folder, path, tmp_path / "out.xlsx") == 2
    told = predictor(["the cat was good", "the dog was bad\nand it sat"])
    header, *rows = openpyxl.load_workbook(tmp_path / "out.xlsx").active.values
    assert header[:3] == ("text", "n", "answer.label")
    texts = [("the cat was good", "1"), ("the dog was bad\nand it sat", "2.5")]
    assert [row[:3] for row in rows] == [
        (*text, answer["label"]) for text, answer in zip(texts, told, strict=True)
    ]


def test_what_the_encoding_of_the_input_lacks_is_told(tmp_path):
    with (tmp_path / "out.csv").open("w", encoding="cp1252") as file, pytest.raises(DataError) as caught:
        _write_csv(file, [["label"], ["ł"]], "out.csv", ";", False)
    assert "'ł' cannot be written in cp1252, the encoding of the input" in str(caught.value)


def test_an_error_is_no_value_and_a_carriage_return_is_one(tmp_path):
    path = workbook(tmp_path / "a.xlsx", ["text", "label"], ["a_x000D_\nb", "#N/A"])
    assert read(path) == [(2, {"text": "a\r\nb", "label": ""})]


def test_a_number_that_excel_has_rounded_names_nothing(tmp_path):
    ((_, row),) = read(workbook(tmp_path / "a.xlsx", ["id"], [1.2345678901234567e19]))
    small.raises(ValueError, "a spreadsheet has rounded", read_name, row["id"])


def test_an_error_of_a_sheet_is_missing():
    assert {_text(code) for code in ERROR_CODES} == {""}


def test_a_long_whole_number_keeps_its_digits():
    file = io.BytesIO()
    write_sheet(file, [["id"], [1234567890123456789], [-(10**15)], [999_999_999_999_999]])
    cells = [row[0] for row in openpyxl.load_workbook(file).active.values]
    assert cells == ["id", "1234567890123456789", "-1000000000000000", 999_999_999_999_999]
