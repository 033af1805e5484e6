"""Search finds what comparing with every vector finds, and says what is wrong with a query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_store import MODEL, SIZE, ByWords, Encoder, index, numbered

from bertkit.errors import DataError, ModelError, UserError
from bertkit.retrieval import commands
from bertkit.retrieval.models import DualEncoder
from bertkit.retrieval.search import FUSION, Hit, search
from bertkit.retrieval.store import Store

Vectors = np.ndarray[Any, np.dtype[np.float32]]


def random_vectors(count: int, seed: int) -> Vectors:
    """Of unit length."""
    made = np.random.default_rng(seed).normal(size=(count, SIZE)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def looked_up(vectors: Vectors) -> Any:
    """An encoder of texts that end in a number: the vector of that number."""
    return lambda texts: vectors[[int(text.split()[-1]) for text in texts]]


def ask(store: Store, query: str, top_k: int = 10, **options: Any) -> list[Hit]:
    return search(store, query, Encoder()([query])[0], top_k, **options)


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.id for hit in hits]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", MODEL)


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Read only."""
    store = Store.create(tmp_path_factory.mktemp("animals") / "store", MODEL)
    documents = [
        {"id": "cat", "text": "the cat sat on the mat", "legs": 4, "score": 0.5, "in house": True},
        {"id": "dog", "text": "the dog sat on the mat", "legs": 4},
        {"id": "bird", "title": "Ornithology", "text": "a bird flew over the sea", "legs": 2, "in house": False},
        {"id": "fish", "text": "one fish swam below the waves", "legs": 0},
    ]
    index(store, documents)
    return store


@pytest.mark.parametrize("seed", range(3))
def test_exact_search_is_brute_force(store: Store, seed: int) -> None:
    vectors, queries = random_vectors(300, seed), random_vectors(10, seed + 100)
    index(store, numbered(300), looked_up(vectors))
    for query in queries:
        hits = search(store, "q", query, 20)
        cosines = vectors.astype(np.float64) @ query.astype(np.float64)
        best = np.argsort(-cosines)[:20]
        assert ids(hits) == [f"d{number}" for number in best]
        np.testing.assert_allclose([hit.score for hit in hits], cosines[best], atol=1e-6)
        assert [hit.relevance for hit in hits] == [hit.score for hit in hits]


def test_approximate_search_finds_nearly_the_same(store: Store) -> None:
    vectors, queries = random_vectors(1500, 0), random_vectors(50, 1)
    index(store, numbered(1500), looked_up(vectors), ann_from=1500)
    assert store.approximate
    best = [set(ids(search(store, "q", query, 10, exact=True))) for query in queries]
    cosines = vectors @ queries.T
    assert best == [{f"d{number}" for number in np.argsort(-column)[:10]} for column in cosines.T]
    found = [search(store, "q", query, 10) for query in queries]
    assert np.mean([len(a.intersection(ids(b))) / 10 for a, b in zip(best, found, strict=True)]) > 0.95
    for hits, query in zip(found, queries, strict=True):  # the cosines are not those of the compressed vectors
        expected = [float(vectors[int(hit.id[1:])] @ query) for hit in hits]
        np.testing.assert_allclose([hit.score for hit in hits], expected, atol=1e-6)


def test_an_approximate_index_knows_what_came_and_went_since(store: Store) -> None:
    vectors = random_vectors(400, 0)
    index(store, numbered(300), looked_up(vectors), ann_from=300)
    assert ids(search(store, "q", vectors[7], 1)) == ["d7"]
    store.delete(["d7"])
    assert "d7" not in ids(search(store, "q", vectors[7], 50))
    index(store, numbered(400)[300:], looked_up(vectors), ann_from=300)
    assert ids(search(store, "q", vectors[399], 1)) == ["d399"]


def test_a_narrow_filter_still_fills_the_list(store: Store) -> None:
    vectors = random_vectors(800, 0)
    documents = [{**document, "n": number} for number, document in enumerate(numbered(800))]
    index(store, documents, looked_up(vectors), ann_from=800)
    far = np.argsort(vectors @ vectors[0])[:12]
    condition = f"n IN ({', '.join(map(str, far))})"
    hits = search(store, "q", vectors[0], 10, filter=condition)
    assert ids(hits) == [f"d{number}" for number in far[::-1][:10]]


def test_a_document_of_many_passages_hides_no_other(store: Store) -> None:
    long = " ".join(["cat"] * 900)  # some hundred passages, all nearer than any other document
    documents = [{"id": "long", "text": long}, *({"id": f"d{n}", "text": f"cat and word{n}"} for n in range(30))]
    index(store, documents)
    assert len(store) > 120
    hits = ask(store, "cat", 25)
    assert len(set(ids(hits))) == 25
    assert hits[0].id == "long"
    assert long[hits[0].start : hits[0].end] == hits[0].text
    assert len(ask(store, "cat", 1000)) == 31


def test_the_best_passage_counts(store: Store) -> None:
    text = "one two three four five six seven eight nine ten the bird flew over a sea of eleven twelve thirteen"
    index(store, [{"id": "a", "text": text}, {"id": "b", "text": "nothing alike"}])
    hit = ask(store, "bird flew over a sea", 1)[0]
    assert hit.passage == 1
    assert hit.text == text[hit.start : hit.end]
    assert "bird flew over a sea" in hit.text


def test_equal_scores_are_in_the_order_of_their_ids(store: Store) -> None:
    index(store, [{"id": name, "text": "the same"} for name in "dbca"])
    assert ids(ask(store, "the same", 4)) == list("abcd")
    assert ids(ask(store, "the same", 4, hybrid=True)) == list("abcd")


def test_metadata_travels_and_filters(animals: Store) -> None:
    hits = ask(animals, "cat", 4)
    assert hits[0].metadata == {"legs": 4, "score": 0.5, "in house": True}
    assert (hits[0].title, hits[0].score) != ("", 0.5)
    assert {hit.id: hit.title for hit in hits}["bird"] == "Ornithology"
    assert set(ids(ask(animals, "mat", 4, filter="legs < 4"))) == {"bird", "fish"}
    assert ids(ask(animals, "mat", 4, filter="`in house`")) == ["cat"]
    assert ids(ask(animals, "mat", 4, filter="title LIKE 'Orni%'")) == ["bird"]
    assert ids(ask(animals, "mat", 4, filter="score > 0.4", hybrid=True)) == ["cat"]
    assert ask(animals, "mat", 4, filter="legs > 100") == []


TAGS = {"a": ["red", "blue"], "b": ["blue"], "c": [], "d": None}
YEARS = {"a": [1999, 2001], "b": [2001], "c": [1], "d": None}


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        ("array_has(tags, 'red')", "a"),
        ("array_has(tags, 're')", ""),
        ("array_has(tags, 'blue')", "ab"),
        ("array_has_any(tags, ['red', 'green'])", "a"),
        ("array_has_all(tags, ['red', 'blue'])", "a"),
        ("array_has_all(tags, ['red', 'green'])", ""),
        ("NOT array_has(tags, 'red')", "b"),
        ("tags IS NULL", "cd"),
        ("tags IS NULL OR NOT array_has(tags, 'red')", "bcd"),
        ("array_length(tags) > 1", "a"),
        ("array_has(years, 2001) AND NOT array_has(years, 1999)", "b"),
        ("array_has_any(years, [1, 1999])", "ac"),
    ],
)
def test_lists_are_shown_and_filtered(store: Store, condition: str, chosen: str, hybrid: bool) -> None:
    index(store, [{"id": name, "text": "the same", "tags": TAGS[name], "years": YEARS[name]} for name in "abcd"])
    hits = ask(Store.open(store.uri), "the same", filter=condition, hybrid=hybrid)
    assert ids(hits) == list(chosen)
    for hit in hits:
        shown = {"tags": TAGS[hit.id], "years": YEARS[hit.id]}
        assert hit.metadata == {name: values for name, values in shown.items() if values}


@pytest.mark.parametrize("condition", ["tags = 'red'", "tags LIKE 'red'", "array_has(tags, 3)", "array_has(tags"])
def test_a_bad_filter_of_a_list_says_how(store: Store, condition: str) -> None:
    index(store, [{"id": "a", "text": "x", "tags": ["red"]}])
    with pytest.raises(DataError, match=r"tags \(lists of text\)\. For example: .* array_has\(tags, 'a7'\)"):
        ask(store, "x", filter=condition)


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("wings = 2", "No field named wings"),
        ("legs >", "sql parser error"),
        ("legs = 'four'", "could not convert to literal"),
        ("legs", "boolean"),
        ("legs > 1; DROP TABLE passages", "sql parser error"),
        ("legs > 1 AN score > 0", "sql parser error"),
        ("CAST(text AS INT) = 1", "cast"),
    ],
)
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_bad_filter_names_the_columns(animals: Store, condition: str, reason: str, hybrid: bool) -> None:
    with pytest.raises(DataError) as error:
        ask(animals, "cat", filter=condition, hybrid=hybrid)
    problem = error.value.problems[0]
    assert problem.where == f"filter {condition!r}"
    assert reason in problem.what
    assert "/cargo/" not in problem.what
    assert "Columns: id (text), title (text), text (text), legs (whole numbers), score (numbers)," in problem.fix


def test_hybrid_search_finds_rare_words_and_fuses_ranks(store: Store) -> None:
    vectors = random_vectors(60, 0)
    documents = numbered(60, "some words and {}")
    documents[31]["text"] = "zebra zebra 31"
    documents[32]["title"] = "zebra"
    index(store, documents, looked_up(vectors))
    query = -vectors[31]  # to which 31 is the farthest
    by_cosine = np.argsort(-(vectors @ query)).tolist()
    assert by_cosine[-1] == 31
    hits = search(store, "zebra?", query, 60, hybrid=True)
    by_words = [31, 32] if relevance(hits)["d31"] > 1 / (FUSION + 60) + 1 / (FUSION + 1.5) else [32, 31]
    expected = {f"d{n}": 1 / (FUSION + rank) for rank, n in enumerate(by_cosine, 1)}
    for rank, n in enumerate(by_words, 1):
        expected[f"d{n}"] += 1 / (FUSION + rank)
    assert relevance(hits) == pytest.approx(expected)
    assert [hit.relevance for hit in hits] == sorted(expected.values(), reverse=True)
    assert hits[-1].score > hits[ids(hits).index("d31")].score == pytest.approx(-1, abs=1e-6)
    assert "d31" not in ids(search(store, "zebra", query, 20))
    assert "d31" in ids(search(store, "zebra", query, 3, hybrid=True))


def relevance(hits: Sequence[Hit]) -> dict[str, float]:
    return {hit.id: hit.relevance for hit in hits}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("!!! ?", set()),
        ('title:"cat" AND (', {"cat"}),
        ("ornithology^2 -title", {"bird"}),
        ("🙂", set()),
        ("cat " * 2000, {"cat"}),
        ("it's \\ %_", set()),
        ("c?t d*g fish~1 [x TO z]", {"fish"}),
    ],
)
def test_hybrid_queries_are_words_and_never_a_language(animals: Store, query: str, found: set[str]) -> None:
    """Only documents with a word of the query gain by it."""
    by_cosine = {name: 1 / (FUSION + rank) for rank, name in enumerate(ids(ask(animals, query, 4)), 1)}
    fused = relevance(ask(animals, query, 4, hybrid=True))
    assert fused.keys() == by_cosine.keys() == {"cat", "dog", "bird", "fish"}
    assert {name: fused[name] - by_cosine[name] for name in fused} == pytest.approx(
        {name: 1 / (FUSION + 1) if name in found else 0 for name in fused}, abs=1e-9
    )


def test_a_reranker_decides(animals: Store) -> None:
    seen: list[tuple[str, list[str]]] = []

    def rerank(query: str, texts: Sequence[str]) -> list[float]:
        seen.append((query, list(texts)))
        return [float("bird" in text) + len(text) / 1000 for text in texts]

    hits = ask(animals, "the cat sat", 2, rerank=rerank)
    assert ids(hits) == ["bird", "fish"]
    assert hits[0].relevance == pytest.approx(1 + len("Ornithology a bird flew over the sea") / 1000)
    assert seen == [("the cat sat", [*seen[0][1]])]
    assert seen[0][1][0] == "the cat sat on the mat"
    assert "Ornithology a bird flew over the sea" in seen[0][1]
    assert set(ids(ask(animals, "the cat sat", 2, rerank=rerank, candidates=2))) == {"cat", "dog"}
    for bad in ([1.0], [float("nan")] * 4, [[1.0, 2.0]] * 4):
        with pytest.raises(ModelError, match="the re-ranker: gave scores of shape"):
            ask(animals, "cat", rerank=lambda query, texts, bad=bad: bad)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": " \n"}, "query: is empty"),
        ({"top_k": 0}, "top_k: is 0\n.*at least 1"),
        ({"top_k": -3}, "top_k: is -3"),
        ({"candidates": 0}, "candidates: is 0"),
        ({"vector": np.ones(SIZE + 1)}, r"has shape \(33,\), but the vectors of .* have size 32"),
        ({"vector": np.ones((1, SIZE))}, r"has shape \(1, 32\)"),
        ({"vector": np.full(SIZE, np.nan)}, "is 0 or not finite"),
        ({"vector": np.zeros(SIZE)}, "is 0 or not finite"),
    ],
)
def test_a_bad_query_is_refused(animals: Store, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        search(**{"store": animals, "query": "cat", "vector": np.ones(SIZE), **changes})


def test_halves_of_surrogates_are_asked_for_as_they_are_kept(animals: Store) -> None:
    assert ids(ask(animals, "\ud83d waves", 1, hybrid=True)) == ["fish"]
    assert ask(animals, "cat", filter="text = '\ud83d'") == []


def test_an_empty_store_says_so(store: Store) -> None:
    with pytest.raises(DataError, match=r"the store is empty\n.*bertkit index"):
        ask(store, "cat")


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """The commands load the model of the stores here, or one with another fingerprint; these are noted."""
    names: list[tuple[str, str | None]] = []

    def load(name: str, revision: str | None = None) -> DualEncoder:
        names.append((name, revision))
        other = replace(MODEL, fingerprint=name, name=name, revision=revision)
        tokenizer: Any = ByWords()
        return DualEncoder(MODEL if name == MODEL.name else other, tokenizer, Encoder(), Encoder())

    monkeypatch.setattr(commands, "dual_encoder", load)
    return names


def search_store(store: str, query: str, **options: Any) -> list[Hit]:
    (hits,) = commands.search_store(store, [query], **options)
    return hits


def write(path: Path, documents: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in documents), encoding="utf-8")
    return path


def test_index_and_search_from_files(tmp_path: Path) -> None:
    file, store = write(tmp_path / "corpus.jsonl", numbered(5)), str(tmp_path / "store")
    told = commands.index_file(MODEL.name, store, documents=file)
    assert told == f"5 documents added, 0 replaced, 0 unchanged: 5 passages written; {store} holds 5 passages"
    csv = tmp_path / "more.csv"
    csv.write_text("id,title,text,lang\nd1,,a new text,en\nx,A title,,de\ny,,,\nx,A title,,de\n", encoding="utf-8")
    told = commands.index_file(MODEL.name, store, documents=csv, delete=["d4", "gone"])
    assert told.splitlines() == [
        "1 document deleted; not in the store: gone; 4 passages left",
        "1 document added, 1 replaced, 0 unchanged, 1 repeated row, 1 without text, skipped: 2 passages written; "
        f"{store} holds 5 passages",
    ]
    hits = search_store(store, "a new text", top_k=2, filter="lang = 'en'")
    assert [(hit.id, hit.text) for hit in hits] == [("d1", "a new text")]
    assert commands.hits_text(hits) == f"  1  {hits[0].relevance:.4f}  d1\n     a new text"
    assert commands.hits_text([]) == "no hits"
    unsafe = replace(hits[0], id="\a", title="\x1b[2J", text="one\ntwo \x1b[31m " + "x" * 300)
    first, second = commands.hits_text([unsafe]).splitlines()
    assert first.endswith(r"  \x07  \x1b[2J")
    assert second == r"     one two \x1b[31m " + "x" * 186 + "…"


def test_messages_of_the_commands(tmp_path: Path, loaded: list[Any]) -> None:
    file, store = write(tmp_path / "corpus.jsonl", [{"id": "a", "text": "x"}, {"id": "b"}]), str(tmp_path / "store")
    with pytest.raises(DataError, match="nothing to do"):
        commands.index_file(MODEL.name, store)
    with pytest.raises(DataError, match=r"absent\.jsonl"):
        commands.index_file(MODEL.name, store, documents=tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="is not a store"):
        commands.index_file(MODEL.name, store, delete=["a"])
    assert loaded == []  # no model is loaded before these are found
    with pytest.raises(DataError, match=r"corpus.jsonl:2: has no column `text`; it has id"):
        commands.index_file(MODEL.name, store, documents=file)
    with pytest.raises(DataError, match="the store is empty"):
        search_store(store, "x")
    with pytest.raises(ModelError, match="was made with a/model at revision c0ffee; b/model is another model"):
        search_store(store, "x", model="b/model")
    with pytest.raises(ModelError, match="b/model is another model"):
        commands.index_file("b/model", store, documents=write(tmp_path / "fine.jsonl", numbered(1)))


def test_nothing_is_deleted_where_the_rest_can_not_be_done(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", MODEL)
    index(store, numbered(3))
    file = write(tmp_path / "more.jsonl", numbered(1))
    with pytest.raises(DataError, match=r"absent\.jsonl"):
        commands.index_file(MODEL.name, store.uri, documents=tmp_path / "absent.jsonl", delete=["d2"])
    with pytest.raises(ModelError, match="is another model"):
        commands.index_file("b/model", store.uri, documents=file, delete=["d2"])
    assert len(store) == 3
    told = commands.index_file(MODEL.name, store.uri, delete=["d2", "\udcff"])
    assert told == "1 document deleted; not in the store: \ufffd; 2 passages left"


def test_a_model_that_was_moved_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, revision: str | None = None) -> DualEncoder:
        raise ModelError(f"no model {name}")

    monkeypatch.setattr(commands, "dual_encoder", absent)
    index(Store.create(tmp_path / "store", MODEL), numbered(3))
    with pytest.raises(ModelError, match=r"no model a/model\n.*was made with a/model\n.*--model MODEL"):
        search_store(str(tmp_path / "store"), "document")
    with pytest.raises(ModelError) as error:
        search_store(str(tmp_path / "store"), "document", model="c/model")
    assert "--model" not in str(error.value)


def test_a_search_loads_the_model_that_the_store_names(tmp_path: Path, loaded: list[Any]) -> None:
    index(Store.create(tmp_path / "store", MODEL), numbered(3))
    assert len(search_store(str(tmp_path / "store"), "document")) == 3
    assert loaded == [("a/model", "c0ffee")]


QUERIES = ["the cat", "below the waves", "a bird", "sat on the mat", "sea", "the cat", "one"]


@pytest.mark.parametrize("options", [{}, {"hybrid": True, "top_k": 2}, {"filter": "legs > 0", "exact": True}])
@pytest.mark.parametrize("name", ["q.jsonl", "q.csv", "q.txt"])
def test_queries_of_a_file_are_answered_as_one_by_one(
    animals: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(commands, "QUERY_BATCH", 3)
    rows = [{"_id": f"q{n}", "query": text} for n, text in enumerate(QUERIES)]
    if name == "q.txt":
        rows = [{"text": text} for text in QUERIES]
        (tmp_path / name).write_text("\n".join(QUERIES), encoding="utf-8")
    elif name == "q.csv":
        lines = ["_id;query", *(";".join(row.values()) for row in rows)]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    else:
        write(tmp_path / name, rows)
    file = tmp_path / name
    overrides = ["data.delimiter=;"] if name == "q.csv" else []
    done = commands.search_file(
        animals.uri, file, tmp_path / "out.jsonl", column="query", overrides=overrides, **options
    )
    assert done == len(QUERIES)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    expected = [list(map(asdict, ask(animals, query, **options))) for query in QUERIES]
    assert found == [{**row, "hits": hits} for row, hits in zip(rows, expected, strict=True)]
    assert expected[0] != expected[1]


def test_queries_are_encoded_and_answered_in_batches(animals: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "QUERY_BATCH", 3)
    drawn: list[str] = []
    answers = commands.search_store(animals.uri, (drawn.append(text) or text for text in QUERIES))  # type: ignore[func-returns-value]
    assert drawn == []
    next(answers)
    assert drawn == QUERIES[:3]
    assert len(list(answers)) == len(QUERIES) - 1


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (["cat", "", "dog", " "], {}, r"q\.txt:2: the query is empty\n(.*\n)?.*q\.txt:4: the query is empty"),
        ([{"text": " "}, {"text": 3}], {}, r"q\.jsonl:1: the query is empty(.|\n)*q\.jsonl:2: 'text' holds 3"),
        ([{"text": "cat"}, {"q": "cat"}, {"text": 3}], {}, r"q\.jsonl:2: no column 'text'(.|\n)*:3: 'text' holds 3"),
        ([{"text": "cat", "hits": []}], {}, r"q\.jsonl: the rows have a column `hits` already"),
        ([{"text": "cat"}], {"filter": "wings = 2"}, "No field named wings"),
        ([{"text": "cat"}], {"top_k": 0}, "top_k: is 0"),
        ([{"text": "cat"}], {"overrides": ["data.columns.text=query"]}, "only the layout of the file"),
    ],
)  # fmt: skip
def test_bad_queries_are_named_and_nothing_is_written(
    animals: Store, tmp_path: Path, loaded: list[Any], rows: list[Any], options: dict[str, Any], message: str
) -> None:
    file = tmp_path / ("q.txt" if isinstance(rows[0], str) else "q.jsonl")
    write(file, rows) if file.suffix == ".jsonl" else file.write_text("\n".join(rows), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        commands.search_file(animals.uri, file, tmp_path / "out.jsonl", **options)
    assert list(tmp_path.iterdir()) == [file]
    assert bool(loaded) is bool({"filter", "top_k"} & options.keys())  # rows are checked before a model is loaded
