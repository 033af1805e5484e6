"""Search finds what comparing with every vector finds, and says what is wrong with a query."""

import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small import message_of, raised, raises, read_rows, refused, said
from small import write_rows as write
from test_store import MODEL, SIZE, Encoder, dual, index, numbered

from bertkit.cli.main import main
from bertkit.errors import DataError, ModelError, UserError
from bertkit.retrieval import commands
from bertkit.retrieval.filters import parse_filter, to_sql
from bertkit.retrieval.search import FUSION, _Ranked, search
from bertkit.retrieval.store import Store
from bertkit.retrieval.vector_models import ModelFiles

Vectors = np.ndarray[Any, np.dtype[np.float32]]


def random_vectors(count, seed):
    """Of unit length."""
    made = np.random.default_rng(seed).normal(size=(count, SIZE)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def looked_up(vectors):
    """An encoder of texts that end in a number: the vector of that number."""
    return lambda texts: vectors[[int(text.split()[-1]) for text in texts]]


def ask(store, query, top_k=10, **options):
    return search(store, query, Encoder()([query])[0], top_k, **options)


def ids(hits):
    return [hit.id for hit in hits]


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store", dual())


@pytest.fixture(scope="module")
def animals(tmp_path_factory):
    """Read only."""
    store = Store.open(tmp_path_factory.mktemp("animals") / "store", dual())
    documents = [
        {"id": "cat", "text": "the cat sat on the mat", "legs": 4, "score": 0.5, "in house": True},
        {"id": "dog", "text": "the dog sat on the mat", "legs": 4},
        {
            "id": "bird",
            "title": "Ornithology",
            "text": "a bird flew over the sea",
            "legs": 2,
            "in house": False,
        },
        {"id": "fish", "text": "one fish swam below the waves", "legs": 0},
    ]
    index(store, documents)
    return store


def test_exact_search_is_brute_force_and_approximate_search_finds_nearly_the_same(store):
    vectors = random_vectors(1500, 0)
    queries = random_vectors(50, 1)
    index(store, numbered(1500), looked_up(vectors), ann_from=1500)
    assert store.approximate
    exact, found = (
        [search(store, "q", query, 10, exact=each) for query in queries] for each in (True, False)
    )
    cosines = vectors @ queries.T
    assert [ids(hits) for hits in exact] == [
        [f"d{n}" for n in np.argsort(-column)[:10]] for column in cosines.T
    ]
    shared = [len({*ids(a)}.intersection(ids(b))) / 10 for a, b in zip(exact, found, strict=True)]
    assert np.mean(shared) > 0.95
    for hits, query in zip(exact + found, [*queries, *queries], strict=True):  # not of the compressed vectors
        expected = [float(vectors[int(hit.id[1:])] @ query) for hit in hits]
        np.testing.assert_allclose([hit.score for hit in hits], expected, atol=1e-6)
        assert [hit.relevance for hit in hits] == [hit.score for hit in hits]


def test_an_approximate_index_knows_what_came_and_went_since(store):
    vectors = random_vectors(400, 0)
    index(store, numbered(300), looked_up(vectors), ann_from=300)
    assert ids(search(store, "q", vectors[7], 1)) == ["d7"]
    store.delete(["d7"])
    assert "d7" not in ids(search(store, "q", vectors[7], 50))
    index(store, numbered(400)[300:], looked_up(vectors), ann_from=300)
    assert ids(search(store, "q", vectors[399], 1)) == ["d399"]


def test_a_narrow_filter_still_fills_the_list(store, monkeypatch):
    """Whatever the approximate index finds: here one document."""
    vectors = random_vectors(300, 0)
    far = np.argsort(vectors @ vectors[0])[:5].tolist()
    documents = [{**document, "far": number in far} for number, document in enumerate(numbered(300))]
    index(store, documents, looked_up(vectors), ann_from=300)
    whole = _Ranked._rows
    exact = []

    def fewer(self, query, limit, extra):
        exact.append(bool(query._bypass_vector_index))
        rows = whole(self, query, limit, extra)
        return rows if exact[-1] else rows[:1]

    monkeypatch.setattr(_Ranked, "_rows", fewer)
    hits = search(store, "q", vectors[0], 5, filter={"far": True})
    assert ids(hits) == [f"d{number}" for number in far[::-1]]
    assert exact == [False, True]


def test_a_document_of_many_passages_hides_no_other_and_its_best_passage_counts(store):
    long = " ".join(["cat"] * 900)  # some hundred passages, all nearer than any other document
    documents = [
        {"id": "long", "text": long},
        *({"id": f"d{n}", "text": f"cat and word{n}"} for n in range(30)),
    ]
    index(store, documents)
    assert len(store) > 120
    hits = ask(store, "cat", 25)
    assert len(set(ids(hits))) == 25
    assert hits[0].id == "long"
    assert long[hits[0].start : hits[0].end] == hits[0].text
    assert len(ask(store, "cat", 1000)) == 31
    text = (
        "one two three four five six seven eight nine ten the bird flew over a sea of eleven twelve thirteen"
    )
    index(store, [{"id": "sea", "text": text}])
    hit = ask(store, "bird flew over a sea", 1)[0]
    assert (hit.id, hit.passage, hit.text) == ("sea", 1, text[hit.start : hit.end])
    assert "bird flew over a sea" in hit.text


FILTERS = [
    ({}, "abcd"),
    ({"id": "a"}, "a"),
    ({"lang": "en"}, "ab"),
    ({"lang": ["en", "de"]}, "abc"),
    ({"lang": {"ne": "en"}}, "c"),
    ({"lang": {"gt": "de"}}, "ab"),
    ({"lang": "it's \\ \" ` ; -- %"}, ""),
    ({"year": 2020}, "a"),
    ({"year": {"gte": 2020, "lt": 2024}}, "ab"),
    ({"year": {"gt": 2020}, "lang": "en"}, "b"),
    ({"year": {"ne": 2020}}, "bc"),
    ({"price": {"gt": 1}}, "b"),
    ({"price": [0.5, 7]}, "a"),
    ({"in stock": True}, "a"),
    ({"in stock": {"ne": True}}, "b"),
    ({"tags": "red"}, "a"),
    ({"tags": ["red", "it's"]}, "ab"),
    ({"tags": "re"}, ""),
    ({"tags": {"ne": "red"}}, "b"),
    ({"tags": {"eq": "blue", "ne": "red"}}, "b"),
    ({"sizes": [1, 2001]}, "ab"),
    ({"ratios": 1}, "a"),
]
GOODS = [
    {
        "id": "a",
        "lang": "en",
        "year": 2020,
        "price": 0.5,
        "in stock": True,
        "tags": ["red", "blue"],
        "sizes": [1, 2],
    },
    {
        "id": "b",
        "lang": "en",
        "year": 2023,
        "price": 1.5,
        "in stock": False,
        "tags": ["blue", "it's"],
        "sizes": [2001],
    },
    {"id": "c", "lang": "de", "year": 2024, "price": 1, "tags": []},
    {"id": "d"},
]


@pytest.fixture(scope="module")
def goods(tmp_path_factory):
    """Read only; every document has the same text, and `d` nothing else."""
    store = Store.open(tmp_path_factory.mktemp("goods") / "store", dual())
    made = [
        {"text": "the same", **row} | ({"ratios": [1.0, 0.5]} if row["id"] == "a" else {}) for row in GOODS
    ]
    index(store, [made[place] for place in (1, 0, 3, 2)])  # not in the order of their ids
    return store


def test_filters_choose_documents(goods):
    for wanted, chosen in FILTERS:
        for hybrid in (False, True):
            assert "".join(ids(ask(goods, "the same", filter=wanted, hybrid=hybrid))) == chosen, wanted
    assert ids(ask(goods, "the same", 4)) == ids(ask(goods, "the same", 4, hybrid=True)) == list("abcd")
    hits = ask(goods, "the same", filter={"id": ["c", "a"]})
    assert ids(hits) == ["a", "c"]
    assert {"id": "a", **hits[0].metadata} == {**GOODS[0], "ratios": [1.0, 0.5]}
    assert {"id": "c", "tags": [], **hits[1].metadata} == GOODS[2]


COLUMNS = (
    r"there are id \(text\), text \(text\), title \(text\), lang \(text\), year \(whole numbers\), price"
)
BAD_FILTERS = [
    ({"yeer": 2020}, f"filter: there is no column 'yeer'; {COLUMNS}"),
    ({"vector": 1}, "there is no column 'vector'"),
    ({"year": {"like": 1}}, "`year`: 'like' is not one of eq, ne, gt, gte, lt, lte"),
    ({"year": "2020"}, r"`year` holds whole numbers, and cannot be compared with \['2020'\]"),
    ({"year": 2020.5}, "`year` holds whole numbers"),
    ({"year": True}, "`year` holds whole numbers"),
    ({"year": 2**63}, "`year` holds whole numbers"),
    ({"year": []}, "`year` holds whole numbers"),
    ({"year": {"gt": {"lt": 1}}}, "`year` holds whole numbers"),
    ({"price": float("inf")}, "`price` holds numbers"),
    ({"price": 10**400}, "`price` holds numbers"),
    ({"in stock": 1}, "`in stock` holds true or false"),
    ({"in stock": {"gt": True}}, "`gt` compares a text or a number with one value"),
    ({"tags": 3}, "`tags` holds lists of text"),
    ({"tags": {"gte": "a"}}, "`gte` compares a text or a number with one value"),
    ({"year": {"gte": [1, 2]}}, "`gte` compares a text or a number with one value"),
    ({"lang": "x" * 1001}, "`lang` holds text"),
    ({"id": list(map(str, range(101)))}, "more than 100 values"),
    ({"year": "x", "lang": 1}, r"`year` holds(.|\n)*`lang` holds"),
]


def test_a_bad_filter_is_refused_with_the_columns(goods):
    for wanted, message in BAD_FILTERS:
        raises(DataError, message, ask, goods, "the same", filter=wanted)
    assert ask(goods, "the same", filter={"id": list(map(str, range(100)))}) == []


def test_conditions_of_the_command_line_are_read_by_their_columns(goods):
    columns = goods.columns
    assert parse_filter(
        ["lang=en", "year >= 2020", "year<2024", "in stock=true", "price!=1e-2"], columns
    ) == {
        "lang": {"eq": ["en"]},
        "year": {"gte": [2020], "lt": [2024]},
        "in stock": {"eq": [True]},
        "price": {"ne": [0.01]},
    }
    assert parse_filter("lang=en", columns) == parse_filter(["lang=en"], columns)
    assert parse_filter(["lang=2020", "lang=a=b>c", "tags=true"], columns) == {
        "lang": {"eq": ["2020", "a=b>c"]},
        "tags": {"eq": ["true"]},
    }
    wanted = "filter 'range': expected a column, one of = != > >= < <=, and a value"
    raises(DataError, wanted, parse_filter, ["range"], columns)


def test_hybrid_search_finds_rare_words_and_fuses_ranks(store):
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


def test_hybrid_search_shows_the_passage_with_the_greater_cosine(store):
    """One document with two passages: the first is the best by cosine, the second by words."""
    text = "one two three four five six seven eight nine ten zebra zebra zebra eleven twelve thirteen"
    passage = {"zebra" not in name: row for name, row in (("zebra", [0.0, 1.0]), ("first", [1.0, 0.0]))}

    def encode(texts):
        return np.pad([passage["zebra" not in each] for each in texts], ((0, 0), (0, SIZE - 2))).astype(
            np.float32
        )

    index(store, [{"id": "a", "text": text}, {"id": "b", "text": "nothing alike"}], encode)
    assert len(store) == 3
    hits = search(store, "zebra", encode(["first"])[0], 2, hybrid=True)
    assert [(hit.id, hit.passage, hit.score) for hit in hits] == [("a", 0, 1.0), ("b", 0, 1.0)]
    assert hits[0].relevance > hits[1].relevance


def relevance(hits):
    return {hit.id: hit.relevance for hit in hits}


def test_hybrid_queries_are_words_and_never_a_language(animals):
    """Only documents with a word of the query gain by it."""
    for query, best in (
        *((query, "") for query in ("!!! ?", "🙂", "it's \\ %_")),
        ('title:"cat" AND (', "cat"),
        ("ornithology^2 -title", "bird"),
        ("cat " * 2000, "cat"),
        ("c?t d*g fish~1 [x TO z]", "fish"),
    ):
        by_cosine = {name: 1 / (FUSION + rank) for rank, name in enumerate(ids(ask(animals, query, 4)), 1)}
        fused = relevance(ask(animals, query, 4, hybrid=True))
        assert fused.keys() == by_cosine.keys() == {"cat", "dog", "bird", "fish"}
        gain = {name: fused[name] - by_cosine[name] for name in fused}
        assert gain == pytest.approx({name: (name == best) / (FUSION + 1) for name in fused}, abs=1e-9)
    assert ids(ask(animals, "\ud83d waves", 1, hybrid=True)) == ["fish"]  # half of a surrogate, as it is kept
    assert ask(animals, "cat", filter={"text": "\ud83d"}) == []


WORDS = {  # documents; query -> which have it, in any order
    "zh": (
        "张三昨天去了北京大学读书。|上海今天下雨，很冷。|王芳在广州的大学教书。|我们明天坐火车去上海。|机器学习是人工智能的分支。",
        {"北京大学": "0", "上海": "13", "下雨": "1", "火车": "3", "学习": "4"},
    ),
    "ja": (
        "田中さんは東京に住んでいます。|大阪はとても寒いです。|昨日、ラーメンを食べた。|東京タワーは高い。",
        {"東京": "03", "田中": "0", "寒い": "1", "ラーメン": "2"},
    ),
    "th": (
        "สมชายไปกรุงเทพเมื่อวานนี้|มาลีอยู่ที่เชียงใหม่|อาหารร้านนี้อร่อยมาก|กรุงเทพเป็นเมืองหลวงของประเทศไทย",
        {"กรุงเทพ": "03", "เชียงใหม่": "1", "อร่อย": "2"},
    ),
    "ko": (
        "김철수는 서울에서 일한다.|부산은 바다가 아름답다.|서울의 지하철은 빠르다.",
        {"서울": "02", "김철수": "0", "부산": "1"},
    ),
    "ar": (
        "ذهب يوسف إلى باريس.|القاهرة مدينة كبيرة.|سافر أحمد من القاهرة وباريس.",
        {"باريس": "02", "القاهرة": "12", "يوسف": "0"},
    ),
    "en": (
        "Cats are running.|A cat sat on the mat.|Category theory; 500mg|L'été à l'école|Was will er hier?",
        {"cat": "01", "runs": "0", "500mg": "2", "école": "3", "was": "4"},
    ),
    "long": (f"{'a' * 45} end|nothing", {"a" * 45: "0"}),
}


@pytest.mark.parametrize("name", WORDS)
def test_hybrid_search_finds_words_in_every_script(store, name):
    texts, queries = WORDS[name]
    index(store, [], ann_from=10**9)  # a store without documents, whose script is still unknown
    index(store, [{"id": str(number), "text": text} for number, text in enumerate(texts.split("|"))])
    same = np.ones(SIZE, dtype=np.float32)  # of which cosines say nothing
    for query, wanted in queries.items():
        found = [row["id"] for row in _Ranked(store, same, None, None).matching(query, 10)]
        assert sorted(found[: len(wanted)]) == list(wanted), query
        assert sorted(ids(search(store, query, same, len(wanted), hybrid=True))) == list(wanted)


def test_a_reranker_decides(animals, monkeypatch):
    seen = []

    def rerank(query, texts):
        seen.append((query, list(texts)))
        return [float("bird" in text) + len(text) / 1000 for text in texts]

    hits = ask(animals, "the cat sat", 2, rerank=rerank)
    assert ids(hits) == ["bird", "fish"]
    assert hits[0].relevance == pytest.approx(1 + len("Ornithology a bird flew over the sea") / 1000)
    assert seen == [("the cat sat", [*seen[0][1]])]
    assert seen[0][1][0] == "the cat sat on the mat"
    assert "Ornithology a bird flew over the sea" in seen[0][1]
    monkeypatch.setattr("bertkit.retrieval.search.CANDIDATES", 2)
    assert set(ids(ask(animals, "the cat sat", 2, rerank=rerank))) == {"cat", "dog"}


def test_a_bad_query_is_refused(animals, store):
    for changes, message in (
        ({"query": " \n"}, "query: is empty"),
        ({"top_k": 0}, "top_k: must be at least 1, found 0"),
        ({"store": store}, r"the store is empty\n.*Index documents"),
    ):
        raises(
            DataError,
            message,
            search,
            **{"store": animals, "query": "cat", "vector": np.ones(SIZE), **changes},
        )


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """The commands load the model of the stores here, or one with another fingerprint; these are noted."""
    names = []

    def load(name, revision=None):
        names.append((name, revision))
        return dual(files=MODEL if name == MODEL.name else ModelFiles(name, revision, name))

    monkeypatch.setattr(commands, "dual_encoder", load)
    return names


def search_store(store, query, **options):
    (hits,) = commands.searcher(store, **options)([query])
    return hits


def test_index_and_search_from_files(tmp_path, capsys):
    file = write(tmp_path / "corpus.jsonl", numbered(5))
    store = f"{tmp_path}/store"
    command = ["index", MODEL.name, "--store", store]
    printed = said(capsys, *command, "--documents", file)
    assert (
        printed
        == f"documents: 5 added, 0 replaced, 0 unchanged; 5 passages written\n{store} holds 5 passages\n"
    )
    csv = tmp_path / "more.csv"
    csv.write_text("id,title,text,lang\nd1,,a new text,en\nx,A title,,de\ny,,,\nx,A title,,de\n")
    assert main([*command, "--documents", str(csv), "--delete", "d4", "\x1bgone"]) == 0
    printed, told = capsys.readouterr()
    assert printed == (
        "1 document deleted\ndocuments: 1 added, 1 replaced, 0 unchanged, 1 repeated, 1 empty; 2 passages "
        "written\n"
        f"{store} holds 5 passages\n"
    )
    assert told == "not in the store: \\x1bgone\n"
    assert (
        said(capsys, *command, "--delete", "d3", "\udcff")
        == f"1 document deleted\n{store} holds 4 passages\n"
    )
    assert commands.index(MODEL.name, store, delete="d3").absent == ["d3"]
    assert commands.index(MODEL.name, store, delete=[3]).absent == ["3"]
    (hit,) = search_store(store, "a new text", filter=["lang=en"])
    assert (hit.id, hit.text) == ("d1", "a new text")
    command = ["search", store, "a new text", "--filter", "lang=en"]
    assert said(capsys, *command) == f"  1  {hit.relevance:.4f}  d1\n     a new text\n"
    assert json.loads(said(capsys, *command, "--json")) == asdict(hit)
    assert said(capsys, "search", store, "x", "--filter", "lang=en", "--filter", "id=x") == "no hits\n"
    unsafe = {"id": "\a", "title": "\x1b[2J", "text": "one\ntwo \x1b[31m " + "x" * 300}
    said(capsys, "index", MODEL.name, "--store", store, "--documents", write(file, [unsafe]))
    first, *others = said(capsys, "search", store, "one two", "--top-k", "1").splitlines()
    assert first.endswith(r"  \x07  \x1b[2J")
    assert len(others) == 1
    assert others[0].startswith(r"     one two \x1b[31m xxx")


ATTACKS = [
    "+".join(["year"] * 1600) + " > 1",
    "length(repeat(text, 20000000)) > 5",
    "lpad(text, 1000000000, 'x') = 'x'",
    "range(0, 1e8) IS NOT NULL",
    "array_length(array_repeat(text, 500000000)) > 1",
    "=1) OR (1=1",
    "1) OR (1=1",
    "year=1) OR (1=1",
]


def test_a_filter_is_no_code(goods, loaded, capsys):
    """What ended the process as a filter in SQL: an error before the model is loaded, or a text like any
    other.
    """
    for attack in ATTACKS:
        assert "filter" in refused(capsys, "search", goods.uri, "x", "--filter", attack)
        assert loaded == []
        assert ask(goods, "x", filter={"lang": attack[:1000]}) == []
        raises(DataError, "there is no column", ask, goods, "x", filter={attack: 1})
    # which is not loaded
    assert "there is no column 'wings'" in refused(
        capsys, "search", goods.uri, "cat", "--filter", "wings=2", "--rerank", "no/such"
    )


def test_messages_of_the_commands(tmp_path, loaded):
    file = write(tmp_path / "corpus.jsonl", [{"id": "a", "text": "x"}, {"id": "b"}])
    store = f"{tmp_path}/store"
    raises(DataError, r"absent\.jsonl", commands.index, MODEL.name, store, tmp_path / "absent.jsonl")
    raises(DataError, "is not a bertkit store", commands.index, MODEL.name, store, file, delete=["a"])
    assert main(["index", MODEL.name, "--store", store]) == 2
    assert main(["index", MODEL.name, "--store", store, "--delete", "a"]) == 2
    assert loaded == []  # no model is loaded before these are found
    raises(
        DataError, r"corpus.jsonl:2: has no column `text`; it has id", commands.index, MODEL.name, store, file
    )
    raises(DataError, "the store is empty", search_store, store, "x")
    other = "was made with a/model at revision c0ffee; b/model is another model"
    raises(ModelError, other, search_store, store, "x", model="b/model")
    raises(SystemExit, "2", main, ["search", store, "x", "--filter"])


def test_nothing_is_deleted_where_the_rest_can_not_be_done(tmp_path):
    store = Store.open(tmp_path / "store", dual())
    index(store, numbered(3))
    file = write(tmp_path / "more.jsonl", numbered(1))
    raises(
        DataError,
        r"absent\.jsonl",
        commands.index,
        MODEL.name,
        store.uri,
        tmp_path / "absent.jsonl",
        delete=["d2"],
    )
    raises(ModelError, "is another model", commands.index, "b/model", store.uri, file, delete=["d2"])
    assert len(store) == 3


def test_a_search_loads_the_model_that_the_store_names_or_one_that_is_named(tmp_path, loaded, monkeypatch):
    def absent(name, revision=None):
        raise ModelError(f"no model {name}")

    index(Store.open(tmp_path / "store", dual()), numbered(3))
    hits = search_store(f"{tmp_path}/store", "document")
    assert commands.search(tmp_path / "store", ["document"] * 2, filter={"id": {"ne": "x"}}) == [hits, hits]
    assert (len(hits), loaded.pop()) == (3, ("a/model", "c0ffee"))
    assert loaded == [("a/model", "c0ffee")]
    monkeypatch.setattr(commands, "dual_encoder", absent)
    lost = r"no model a/model\n.*was made with a/model\n.*new folder: model"
    raises(ModelError, lost, search_store, f"{tmp_path}/store", "document")
    assert "name it" not in message_of(
        ModelError, search_store, f"{tmp_path}/store", "document", model="c/model"
    )


QUERIES = ["the cat", "below the waves", "a bird", "sat on the mat", "sea", "the cat", "one"]


@pytest.mark.parametrize(
    ("name", "options"),
    [("q.jsonl", {}), ("q.csv", {"hybrid": True, "top_k": 2}), ("q.txt", {"filter": ["legs>0"]})],
)
def test_queries_of_a_file_are_answered_as_one_by_one(animals, tmp_path, monkeypatch, name, options):
    monkeypatch.setattr(commands, "QUERY_BATCH", 3)
    rows = [{"_id": f"q{n}", "query": text} for n, text in enumerate(QUERIES)]
    if name == "q.txt":
        rows = [{"text": text} for text in QUERIES]
        (tmp_path / name).write_text("\n".join(QUERIES))
    elif name == "q.csv":
        lines = ["_id;query", *(";".join(row.values()) for row in rows)]
        (tmp_path / name).write_text("\n".join(lines))
    else:
        write(tmp_path / name, rows)
    file = tmp_path / name
    overrides = ["data.delimiter=;"] if name == "q.csv" else []
    done = commands.search_file(
        animals.uri, file, tmp_path / "out.jsonl", column="query", overrides=overrides, **options
    )
    assert done == len(QUERIES)
    found = read_rows(tmp_path / "out.jsonl")
    if "filter" in options:
        options = {**options, "filter": {"legs": {"gt": 0}}}
    expected = [list(map(asdict, ask(animals, query, **options))) for query in QUERIES]
    assert found == [{**row, "hits": hits} for row, hits in zip(rows, expected, strict=True)]
    assert expected[0] != expected[1]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (["cat", "", "dog", " "], {}, r"q\.txt:2: the query is empty\n(.*\n)?.*q\.txt:4: the query is empty"),
        ([{"text": "cat"}, {"q": "cat"}, {"text": 3}], {}, (r"q\.jsonl:2: no column 'text'(.|\n)*:3: " r"'text' " r"holds 3")),
        ([{"text": "cat", "hits": []}], {}, r"q\.jsonl:1: has a column `hits` already"),
        ([{"text": "cat"}], {"filter": ["wings=2"]}, "there is no column 'wings'"),
        ([{"text": "cat"}], {"top_k": 0}, "top_k: must be at least 1, found 0"),
        ([{"text": "cat"}], {"overrides": ["data.columns.text=query"]}, "only the layout of the file"),
    ],
)  # fmt: skip
def test_bad_queries_are_named_and_nothing_is_written(animals, tmp_path, loaded, rows, options, message):
    file = tmp_path / ("q.txt" if isinstance(rows[0], str) else "q.jsonl")
    write(file, rows) if file.suffix == ".jsonl" else file.write_text("\n".join(rows))
    raises(UserError, message, commands.search_file, animals.uri, file, tmp_path / "out.jsonl", **options)
    assert list(tmp_path.iterdir()) == [file]
    assert bool(loaded) is ("top_k" in options)  # rows and filter are checked before a model is loaded


def test_a_condition_may_hold_numbers_of_numpy():
    columns = {"year": pa.int64()}
    assert to_sql({"year": {"gte": np.int64(2020)}}, columns) == to_sql({"year": {"gte": 2020}}, columns)


def test_a_query_is_given_its_time(animals, monkeypatch):
    class Query:
        def select(self, names):
            return self

        def limit(self, count):
            return self

        def to_arrow(self, timeout):
            raise LookupError(timeout)

    real = _Ranked._rows
    monkeypatch.setattr(_Ranked, "_rows", lambda self, query, *more: real(self, Query(), *more))
    assert raised(LookupError, ask, animals, "cat", timeout=1.5).args == (timedelta(seconds=1.5),)
