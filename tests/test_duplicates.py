"""Near-duplicates are the connected components of brute-force cosines, whatever the size of a block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
from sentence_transformers.util import paraphrase_mining_embeddings

from bertkit.cli.main import main
from bertkit.errors import DataError, UserError
from bertkit.retrieval import duplicates
from bertkit.retrieval.duplicates import connected, find_duplicates


def unit(vectors: Any) -> Any:
    vectors = np.asarray(vectors, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def groups(pairs: Any, count: int) -> set[frozenset[int]]:
    """The connected components of more than one, joined pair by pair."""
    own = [{number} for number in range(count)]
    for one, other in pairs:
        own[one] |= own[other]
        for number in own[one]:
            own[number] = own[one]
    return {frozenset(each) for each in own if len(each) > 1}


@pytest.mark.parametrize("block", [1, 7, 60, 2048])
@pytest.mark.parametrize("threshold", [0.85, 0.95])
def test_clusters_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch, block: int, threshold: float) -> None:
    monkeypatch.setattr(duplicates, "BLOCK", block)
    random = np.random.default_rng(0)
    vectors = unit(np.repeat(random.normal(size=(20, 6)), 3, axis=0) + 0.4 * random.normal(size=(60, 6)))
    vectors = vectors[random.permutation(60)]
    cosines = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    pairs = [(i, j) for i in range(60) for j in range(i) if cosines[i, j] >= threshold]
    labels = connected(vectors, threshold)
    found = {frozenset(np.flatnonzero(labels == label).tolist()) for label in labels}
    expected = groups(pairs, 60)
    assert {each for each in found if len(each) > 1} == expected
    assert len(expected) > 3
    mined = paraphrase_mining_embeddings(np.asarray(vectors), max_pairs=10**6, top_k=60)
    assert groups([(i, j) for score, i, j in mined if score >= threshold], 60) == expected


ANGLES = {"east": 0, "nearly east": 10, "chained to nearly east": 20, "north": 90, "nearly north": 95, "west": 180}


def compass(texts: list[str]) -> Any:
    angles = np.radians([ANGLES[text] for text in texts])
    return 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)  # vectors of any length


def files(folder: Path) -> list[Path]:
    train = [{"id": n, "text": text} for n, text in enumerate(["north", "east", "west", "nearly east", "east"])]
    test = [{"text": text} for text in ["nearly north", "chained to nearly east"]]
    return [small.write_rows(folder / "train.jsonl", train), small.write_rows(folder / "test.jsonl", test)]


def test_exact_and_near_duplicates_with_their_places(tmp_path: Path) -> None:
    given = files(tmp_path)
    clusters, texts = find_duplicates(compass, given, np.cos(np.radians(12)))
    assert texts == 7
    train, test = map(str, given)
    found = [
        [tuple(each[name] for name in ("cluster", "where", "id", "text")) for each in cluster] for cluster in clusters
    ]
    assert found == [
        [
            (1, f"{train}:2", 1, "east"),
            (1, f"{train}:4", 3, "nearly east"),
            (1, f"{train}:5", 4, "east"),
            (1, f"{test}:2", None, "chained to nearly east"),
        ],
        [(2, f"{train}:1", 0, "north"), (2, f"{test}:1", None, "nearly north")],
    ]
    cosines = [each["cosine"] for cluster in clusters for each in cluster]
    # The last of the first cluster is below the threshold: `nearly east` joins it.
    np.testing.assert_allclose(cosines, np.cos(np.radians([0, 10, 0, 20, 0, 5])), atol=1e-6)
    assert (cosines[0], cosines[2], cosines[4]) == (1, 1, 1)


@pytest.mark.parametrize(("degrees", "sizes"), [(12, [4, 2]), (6, [2]), (4, []), (0, [])])
def test_across_files_only_what_they_share_is_found(tmp_path: Path, degrees: float, sizes: list[int]) -> None:
    threshold = float(np.cos(np.radians(degrees)))
    within = [len(each) for each in find_duplicates(compass, files(tmp_path), threshold)[0]]
    clusters, _ = find_duplicates(compass, files(tmp_path), threshold, across=True)
    assert [len(each) for each in clusters] == sizes
    assert within == (sizes if degrees == 12 else [2, *sizes])  # two rows of train are equal


def test_a_threshold_of_1_finds_equal_texts_and_equal_vectors(tmp_path: Path) -> None:
    texts = [{"text": text} for text in ["a", "b", "a", "c"]]
    vectors = {"a": [0.1, 0.2, 0.3], "b": [0.3, 0.6, 0.9], "c": [0.3, 0.6, 0.95]}
    encode = lambda given: np.asarray([vectors[text] for text in given])  # noqa: E731
    clusters, _ = find_duplicates(encode, [small.write_rows(tmp_path / "x.jsonl", texts)], 1)
    assert [[each["text"] for each in cluster] for cluster in clusters] == [["a", "b", "a"]]


@pytest.mark.parametrize("threshold", [0, -0.5, 1.01, float("nan")])
def test_a_threshold_is_a_cosine(tmp_path: Path, threshold: float) -> None:
    with pytest.raises(DataError, match=r"threshold: is .*\n.*above 0, and at most 1"):
        find_duplicates(compass, files(tmp_path), threshold)


def test_bad_files_are_named_all_at_once(tmp_path: Path) -> None:
    bad = small.write_rows(tmp_path / "bad.jsonl", [{"text": "east"}, {"text": None}, {"body": "x"}])
    (tmp_path / "empty.csv").write_text("text\n")
    with pytest.raises(UserError) as error:
        find_duplicates(compass, [bad, tmp_path / "empty.csv", tmp_path / "absent.txt"], 0.9)
    assert [problem.where.rpartition("/")[2] for problem in error.value.problems] == [
        "bad.jsonl:2", "bad.jsonl:3", "empty.csv", "absent.txt"
    ]  # fmt: skip


def test_the_command_prints_or_writes_them(tiny_encoder: Path, tmp_path: Path, capsys: Any) -> None:
    rows = ["nr;body", "1;the cat was good", "2;yes", "3;the cat was good", '4;"the  cat; was good\a"']
    file, out = tmp_path / "data.csv", tmp_path / "clusters.jsonl"
    file.write_text("\n".join(rows), encoding="utf-8")
    words = ["duplicates", str(file), "--model", str(tiny_encoder), "--column", "body", "data.delimiter=;"]
    assert main([*words, "--threshold", "1"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "cluster 1: 2 texts",
        f"  1.0000  {file}:2  the cat was good",
        f"  1.0000  {file}:4  the cat was good",
    ]
    assert told.err == "2 of 4 texts (50.0%) are in 1 cluster of near-duplicates\n"
    assert main([*words, "--threshold", "0.0001", "--output", str(out)]) == 0
    written = small.read_rows(out)
    assert [(row["cluster"], row["where"], row["text"]) for row in written][:3] == [
        (1, f"{file}:2", "the cat was good"),
        (1, f"{file}:3", "yes"),
        (1, f"{file}:4", "the cat was good"),
    ]
    assert json.loads(out.read_text().splitlines()[3])["text"] == "the  cat; was good\a"
    capsys.readouterr()
    assert main([*words, "--across"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "0 of 4 texts (0.0%) are in 0 clusters of near-duplicates\n")
    assert main(["duplicates", "data.delimiter=;", "--model", "m"]) == 2
    assert "no files to compare" in capsys.readouterr().err
    assert main([*words, "--output", "clusters.csv"]) == 2
    assert "cannot write .csv" in capsys.readouterr().err
