"""The classification data of ../shared/data load through a recipe's `data:` section, as their authors wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertkit.data import check, label_names, load
from bertkit.sections import DataSpec
from bertkit.tasks.text_classification import TextClassification, TextClassificationOptions

OPTIONS = TextClassificationOptions(name="text-classification")

ROOT = Path(__file__).parents[2]
FOLDER = next((p for p in (ROOT.parent / "shared/data", ROOT / "shared/data") if p.is_dir()), None)
pytestmark = pytest.mark.skipif(FOLDER is None, reason="../shared/data is not on this machine")

COLA = {"header": ["source", "label", "star", "text"]}
STSB = {
    "format": "tsv",
    "header": ["genre", "file", "year", "id", "score", "sentence1", "sentence2"],
    "extra_fields": "ignore",
    "columns": {"text_a": "sentence1", "text_b": "sentence2", "score": "score"},
}
RTE = {"columns": {"text_a": "sentence1", "text_b": "sentence2"}}


def load_real(train: str, dev: str, **settings: Any) -> Any:
    assert FOLDER is not None
    source = {"train": str(FOLDER / train), "validation": str(FOLDER / dev)}
    return load(DataSpec.model_validate({"source": source, **settings}), TextClassification.schema)


@pytest.mark.parametrize(
    ("train", "dev", "settings", "rows", "target", "labels"),
    [
        ("sst2/train.tsv", "sst2/dev.tsv", {"columns": {"text": "sentence"}}, (67349, 872), "label", ["0", "1"]),
        ("cola/train.tsv", "cola/dev.tsv", COLA, (8551, 1043), "label", ["0", "1"]),
        ("rte/train.tsv", "rte/dev.tsv", RTE, (2490, 277), "label", ["entailment", "not_entailment"]),
        ("stsb/sts-train.csv", "stsb/sts-dev.csv", STSB, (5749, 1500), "score", None),
    ],
    ids=["sst2", "cola", "rte", "stsb"],
)
def test_every_row_is_read(train, dev, settings, rows, target, labels):
    data = load_real(train, dev, **settings)
    assert {split: len(part) for split, part in data.rows.items()} == dict(
        zip(("train", "validation"), rows, strict=True)
    )
    assert data.target == target
    values = list(data.rows["train"][target])
    if labels is None:
        assert min(values) == 0.0
        assert max(values) == 5.0
    else:
        assert label_names(values) == labels
    assert not [finding for finding in check(data) if finding.level == "fail"]


def test_a_folder_of_tsv_files_is_a_source():
    assert FOLDER is not None
    spec = DataSpec.model_validate({"source": str(FOLDER / "sst2"), "columns": {"text": "sentence"}, "limit": 50})
    data = load(spec, TextClassification.schema)
    assert {split: len(rows) for split, rows in data.rows.items()} == {"train": 50, "validation": 50}
    assert data.origins["train"][0].startswith(str(FOLDER / "sst2" / "train.tsv:"))


def test_quotes_and_ends_are_kept_as_they_stand():
    data = load_real("cola/train.tsv", "cola/dev.tsv", **COLA)
    assert data.rows["train"][0]["text"] == "Our friends won't buy this analysis, let alone the next one we propose."
    assert data.origins["validation"][1042].endswith("dev.tsv:1043")
