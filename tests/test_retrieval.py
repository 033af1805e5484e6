"""retrieval: a BEIR folder trained on, searched and scored, against brute force and sentence-transformers."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import small
from cases import BY_ID, SETTINGS, encoder
from datasets import Dataset
from numpy.testing import assert_allclose, assert_array_equal
from sentence_transformers import SentenceTransformer
from small import raises, read_as, read_rows, refused, write_rows
from torch.testing import assert_close
from transformers import set_seed

from bertkit import evaluate, load
from bertkit.cli.main import main
from bertkit.encoding.padding import Collator
from bertkit.errors import DataError, ModelError, UserError
from bertkit.evaluation.ranking import ids, searched
from bertkit.files import read_json
from bertkit.inference.evaluate import evaluate_two_stages, reranked
from bertkit.inference.predictor import load_as
from bertkit.models.encoder import load_tokenizer
from bertkit.report import rankings
from bertkit.retrieval.mining import mine, nearest
from bertkit.retrieval.vector_models import cached_vectors, dual_encoder, reranker
from bertkit.tasks import vector_task
from bertkit.tasks.base import prepare
from bertkit.tasks.retrieval import Retrieval, RetrievalOptions
from bertkit.training.seed import save

DOCUMENTS = {
    f"d{i}": f"the {a} was {b}"
    for i, (a, b) in enumerate([("cat", "good"), ("dog", "bad"), ("mat", "red"), ("cat", "blue")])
}
QUERIES = {"q1": "good cat", "q2": "bad dog", "q3": "red mat", "q4": "blue cat"}
JUDGED = {
    "train": [("q1", "d0", 1), ("q2", "d1", 1), ("q3", "d2", 1)],
    "test": [("q4", "d3", 2), ("q4", "d0", 0), ("q1", "d0", 1)],
}


def beir(folder):
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        rows = [{"_id": key, "title": "", "text": text} for key, text in texts.items()]
        write_rows(folder / f"{name}.jsonl", rows)
    for split, rows in JUDGED.items():
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def task(folder, **more):
    options = RetrievalOptions(name="retrieval", **more)
    rows = Dataset.from_dict({"query": ["a"], "document": ["b"], "grade": [1.0]})
    return prepare(Retrieval, options, load_tokenizer(folder), 32, rows, [])


def made(folder, out, **more):
    set_seed(2)
    own = task(folder, **more)
    save(own.model(encoder(folder)), own, out, SETTINGS)
    return out


def test_queries_are_not_padded_like_their_documents(tiny_encoder, monkeypatch):
    own = task(tiny_encoder)
    model = own.model(encoder(tiny_encoder)).train()
    rows = {"query": ["cat", "the dog"], "document": ["the cat was good " * 4, "dog"]}
    features = own.encode(Dataset.from_dict(rows))
    batch = Collator.of(own.tokenizer, own.padding)(own.examples(features, range(4)))
    whole = own.forward(model, batch)["vectors"]
    monkeypatch.setattr(vector_task, "WIDE", 8)
    widths = []
    model.register_forward_pre_hook(
        lambda _, args, inputs: widths.append(inputs["input_ids"].shape[1]), with_kwargs=True
    )
    assert_close(own.forward(model, batch)["vectors"], whole, rtol=0, atol=1e-6)
    assert widths == [4, 18]


def test_the_whole_way(tiny_encoder, tmp_path, capsys):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"task: {{name: retrieval}}\nmodel: {{name: {tiny_encoder}, max_length: 32}}\n"
        f"data: {{source: {beir(tmp_path / 'beir')}}}\n"
        "training: {num_train_epochs: 2, per_device_train_batch_size: 4}\nverify: false\n"
    )
    run = tmp_path / "run"
    assert main(["check", str(recipe)]) == 0
    said = capsys.readouterr()
    assert "empty `query`" not in said.err + said.out
    small.said(capsys, "train", recipe, "--output-dir", run)
    results = read_json(run / "results.json")
    test = results["splits"]["test"]
    assert test["queries"] == 2
    card = (run / "model/README.md").read_text()
    assert "library_name: sentence-transformers\npipeline_tag: sentence-similarity\n" in card
    assert "bootstrap over queries." in card
    assert set(results["baselines"]["test"]["tf-idf cosine"]) == set(test["metrics"])
    assert json.loads(small.said(capsys, "evaluate", run, "--json"))["metrics"] == test["metrics"]
    rows = read_rows(run / "predictions/test.jsonl")
    assert len(rows) == 3 + 2  # judged pairs, and the documents that nobody judged
    answers = [row.pop("answer") for row in rows]
    assert load(run).task.grade(answers, Dataset.from_list(rows)).scores == test["metrics"]


@pytest.mark.parametrize("normalize", [True, False])
def test_ranks_are_those_of_brute_force(normalize, tiny_encoder, tmp_path, monkeypatch):
    predictor = load(made(tiny_encoder, tmp_path / "m", normalize=normalize), precision="fp32")
    rows = [
        {"query": q, "document": d, "query_id": n, "document_id": m}
        for n, q in QUERIES.items()
        for m, d in DOCUMENTS.items()
    ]
    q, d = (
        predictor.encode(list(texts.values()), side)
        for texts, side in ((QUERIES, "query"), (DOCUMENTS, "document"))
    )
    cosines = (q / np.linalg.norm(q, axis=1)[:, None]) @ (d / np.linalg.norm(d, axis=1)[:, None]).T
    answers = predictor(rows)
    assert_allclose([a["score"] for a in answers], cosines.ravel(), atol=1e-6)
    ranks = [1 + int((row > value + 1e-7).sum()) for row in cosines for value in row]
    assert [a["rank"] for a in answers] == ranks
    monkeypatch.setattr(Retrieval, "chunk_size", 2)
    assert [a["rank"] for a in predictor(rows)] == ranks
    best = [list(DOCUMENTS)[i] for i in np.argsort(-cosines[0], kind="stable")]
    assert [each["id"] for each in answers[0]["found"]] == best
    assert "found" not in answers[1]


def test_a_query_that_is_a_document_does_not_find_itself():
    """As BEIR leaves it out; but where it is judged for itself it is one document more."""
    names = {"query_id": ["a", "b", "", ""], "document_id": "b b a c".split()}
    texts = {"query": ["x", "y", "", ""], "document": "y y x z".split()}
    unit = np.eye(3, dtype=np.float32)
    rows = Dataset.from_dict(names | texts)
    answers = list(searched(rows, ["a", "b"], ["b", "a", "c"], unit[[0, 1]], unit[[1, 0, 2]]))
    assert [hit["id"] for hit in answers[0]["found"]] == ["b", "c"]
    assert [hit["id"] for hit in answers[1]["found"]] == ["b", "a", "c"]
    assert (answers[0]["rank"], answers[1]["rank"]) == (2, 1)  # equally far as "c"; its own is the nearest
    unnamed = Dataset.from_dict({"query": ["a", ""], "document": ["b", "a"]})
    found = next(iter(searched(unnamed, ["a"], ["b", "a"], unit[[0]], unit[[1, 0]])))["found"]
    assert [hit["id"] for hit in found] == ["a", "b"]  # its text alone does not make it the query


def test_prefixes_travel_as_prompts(tiny_encoder, tmp_path):
    folder = made(tiny_encoder, tmp_path / "m", query_prefix="the ", document_prefix="it was ")
    theirs = SentenceTransformer(str(folder), device="cpu")
    ours = load(folder, precision="fp32")
    texts = list(DOCUMENTS.values())
    assert_allclose(ours.encode(texts, "query"), theirs.encode_query(texts), atol=1e-6)
    assert_allclose(ours.encode(texts, "document"), theirs.encode_document(texts), atol=1e-6)
    assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-6)
    raises(UserError, "side: no side 'passage'", ours.encode, texts, "passage")
    config = read_json(folder / "config.json")
    del config["bertkit"]
    (folder / "config.json").write_text(json.dumps(config))
    foreign = load(folder, task="retrieval", precision="fp32")
    assert_array_equal(foreign.encode(texts, "query"), ours.encode(texts, "query"))


def test_pairs_with_grade_0_teach_nothing(tiny_encoder, tmp_path):
    folder = beir(tmp_path / "beir")
    (folder / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td0\t1\nq1\td1\t0\n")
    data = read_as({"name": "retrieval"}, folder)
    assert data.rows["train"]["document_id"][:] == ["d0"]
    assert any("1 of 2 rows are not used for training" in finding.what for finding in data.findings)


PAIR = {"query": "cat", "document": "the cat", "grade": 1}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [PAIR, {**PAIR, "document": "dog", "grade": 0.5}],
            "train.jsonl:2: `grade` holds 0.5, where a whole number",
        ),
        (
            [PAIR, {**PAIR, "document": "dog", "grade": -1}],
            "train.jsonl:2: `grade` holds -1, where a whole number",
        ),
        ([PAIR, {**PAIR, "grade": 2}], "train.jsonl:2: the pair has another grade at .*train.jsonl:1"),
        (
            [{**PAIR, "query_id": 1}, {**PAIR, "query_id": 1, "query": "dog"}],
            "train.jsonl:2: the query '1' has another text at .*train.jsonl:1",
        ),
        (
            [{**PAIR, "document_id": "d"}, {**PAIR, "document_id": "d", "document": "dog"}],
            "train.jsonl:2: the document 'd' has another text at .*train.jsonl:1",
        ),
        ([{**PAIR, "grade": 0}], "train: 1 of 1 rows are not used for training"),
        ([{**PAIR, "query": ""}], "train: 1 of 1 rows are not used for training"),
    ],
)
def test_bad_rows_are_named(rows, said, tmp_path):
    file = write_rows(tmp_path / "train.jsonl", rows)
    raises(DataError, said, read_as, {"name": "retrieval"}, file)


def test_a_document_without_a_query_needs_no_grade(tmp_path):
    for name in ("train", "test"):
        write_rows(tmp_path / f"{name}.jsonl", [PAIR, {"query": "", "document": "far", "grade": None}])
    data = read_as({"name": "retrieval"}, tmp_path)
    assert data.rows["test"]["grade"][:] == [1.0, 0.0]
    assert data.rows["train"]["document"][:] == ["the cat"]


def test_bad_input_is_said(tiny_encoder, tmp_path, monkeypatch):
    predictor = load(made(tiny_encoder, tmp_path / "m"))
    rows = [
        {"query": "a", "query_id": "1", "document": "x"},
        {"query": "b", "query_id": "1", "document": "y"},
    ]
    raises(DataError, "the query '1' has another text in row", predictor, rows)
    options = RetrievalOptions(name="retrieval")
    texts = Dataset.from_dict({"text": ["a"]})
    raises(
        DataError,
        "needs the columns `query` and `document`",
        prepare,
        Retrieval,
        options,
        load_tokenizer(tiny_encoder),
        32,
        texts,
        [],
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    raises(UserError, r"bertkit\[retrieval\]", task, tiny_encoder)


def test_mined_negatives_are_the_nearest_that_do_not_answer(tiny_encoder, tmp_path):
    model = dual_encoder(str(made(tiny_encoder, tmp_path / "m")))
    folder = beir(tmp_path / "beir")
    asked = model.encode_queries(list(QUERIES.values()))
    there = model.encode_documents(list(DOCUMENTS.values()))
    order = {
        q: [list(DOCUMENTS)[i] for i in np.argsort(-row, kind="stable")]
        for q, row in zip(QUERIES, asked @ there.T, strict=True)
    }
    assert nearest(model, list(QUERIES.values()), DOCUMENTS, 3) == [names[:3] for names in order.values()]
    out = tmp_path / "mined.jsonl"
    assert mine(tmp_path / "m", folder, out, form="negatives", count=2, skip=1) == (6, 3, 0, 0)
    rows = read_rows(out)
    for query, document, _ in JUDGED["train"]:
        wanted = [DOCUMENTS[name] for name in order[query] if name != document][1:3]
        assert [row["negative"] for row in rows if row["query_id"] == query] == wanted
    assert mine(tmp_path / "m", folder, out, split="test", form="candidates", count=2) == (6, 2, 0, 0)
    rows = read_rows(out)
    assert [row["label"] for row in rows] == [1, 0, 0, 1, 0, 0]
    assert rows[0]["document"] == DOCUMENTS["d3"]


def test_mining_in_blocks_finds_the_same(tiny_encoder, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "bertkit")
    monkeypatch.setattr("bertkit.inference.progress.EVERY", 0.0)
    model = dual_encoder(str(made(tiny_encoder, tmp_path / "m")))
    whole = nearest(model, list(QUERIES.values()), DOCUMENTS, 3)
    for most in (1, 12):  # so that a block has one document, and three
        monkeypatch.setattr("bertkit.retrieval.mining.MOST_SCORES", most)
        assert nearest(model, list(QUERIES.values()), DOCUMENTS, 3) == whole
    assert "1 of 4 documents (25%)" in caplog.text
    assert [sorted(names) for names in nearest(model, ["cat"], DOCUMENTS, 10**9)] == [sorted(DOCUMENTS)]


def test_what_answers_under_any_id_and_the_query_itself_are_never_mined(tiny_encoder, tmp_path, capsys):
    made(tiny_encoder, tmp_path / "m")
    folder = beir(tmp_path / "beir")
    with (folder / "corpus.jsonl").open("a") as corpus:
        for name, text in (("twin", DOCUMENTS["d0"]), ("q1", "good cat"), ("empty", " ")):
            corpus.write(json.dumps({"_id": name, "title": "", "text": text}) + "\n")
    out = tmp_path / "mined.jsonl"
    with (folder / "qrels/train.tsv").open("a") as qrels:
        qrels.write("q4\td0\t0\nq1\tempty\t1\n")
    words = ["mine", f"{tmp_path}/m", "--data", str(folder), "--count", "9", "--output", str(out)]
    assert main(words) == 0
    told = (
        f"{{}} rows in {out}; 4 of 4 queries had fewer than 9 documents to mine; 1 had no relevant document\n"
    )
    assert capsys.readouterr().err == told.format(len(read_rows(out)))
    rows = read_rows(out)
    mined = [row["negative"] for row in rows if row["query_id"] == "q1"]
    assert sorted(mined) == sorted(DOCUMENTS[name] for name in ("d1", "d2", "d3"))
    assert "" not in [row["negative"] for row in rows]
    for form in ("negatives", "candidates"):
        raises(
            DataError,
            "no query has both a relevant document and another after the 9 skipped",
            mine,
            tmp_path / "m",
            folder,
            tmp_path / "none.jsonl",
            form=form,
            count=1,
            skip=9,
        )
    assert not (tmp_path / "none.jsonl").exists()


@pytest.fixture
def ranker_folder(tiny_encoder, tmp_path):
    """A model for text-ranking."""
    set_seed(5)
    own = BY_ID["ranking-binary"].task(tiny_encoder)
    # of its recipe's rows; these are canonical
    swapped = {"columns": {"query": "document", "document": "query"}}
    save(own.model(encoder(tiny_encoder)), own, tmp_path / "r", SETTINGS | swapped)
    return tmp_path / "r"


def test_models_of_other_tasks_are_refused(ranker_folder, tiny_encoder, tmp_path):
    ranker = str(ranker_folder)
    retriever = str(made(tiny_encoder, tmp_path / "m"))
    raises(
        ModelError,
        r"a model for text-ranking gives no vectors of texts\n.*or retrieval",
        dual_encoder,
        ranker,
    )
    with pytest.raises(ModelError, match="a model for text-ranking gives no vectors of texts"):
        cached_vectors(ranker, "text")(["a text that is not kept"])
    raises(ModelError, r"a model for retrieval does not rank texts\n.*text-ranking", reranker, retriever)
    for depth in (0, -1, 101):
        raises(
            UserError,
            f"depth: expected 1 to 100, found {depth}",
            evaluate_two_stages,
            load(retriever),
            load(ranker),
            Dataset.from_dict({}),
            depth,
        )


def test_cached_vectors_need_no_weights(tiny_encoder, tmp_path, monkeypatch):
    folder = made(tiny_encoder, tmp_path / "m")
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/cache")
    first = cached_vectors(str(folder), "query")(["good cat", "bad dog"])
    assert_array_equal(first, load(folder).encode(["good cat", "bad dog"], "query"))
    again = cached_vectors(str(folder), "query")
    changing = cached_vectors(str(folder), "query")
    config = read_json(folder / "config.json")
    small.change_json(folder / "config.json", changed=True)
    raises(ModelError, "its files have changed since it was loaded", changing, ["a text that is not kept"])
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("bertkit.retrieval.vector_models.load_as", None)  # nothing may be loaded any more
    assert_array_equal(again(["bad dog", "good cat"]), first[::-1])


def test_two_stages_are_the_second_ones_order(ranker_folder, tiny_encoder, tmp_path, capsys):
    folder = made(tiny_encoder, tmp_path / "m")
    ranker = load_as("text-ranking", ranker_folder)
    documents = list(DOCUMENTS.values())
    rows = Dataset.from_dict(
        {"query": ["good cat"] * 4, "document": documents, "document_id": list(DOCUMENTS)}
    )
    retriever = load(folder)
    answers = list(retriever.task.answer(rows, retriever.predict_features))
    both = reranked(answers, rows, ranker, 3)
    first = [hit["id"] for hit in answers[0]["found"]]
    scores = {name: ranker(query="good cat", document=DOCUMENTS[name])["score"] for name in first[:3]}
    order = [*sorted(scores, key=lambda name: -scores[name]), first[3]]
    assert [hit["id"] for hit in both[0]["found"]] == order
    places = sorted(scores.values(), reverse=True)
    for answer, name in zip(both, DOCUMENTS, strict=True):
        assert answer["rank"] == (places.index(scores[name]) + 1 if name in scores else 4)
    constant = SimpleNamespace(stream=lambda pairs: ({"score": 0.5} for _ in pairs))
    unnamed = rows.remove_columns("document_id").add_column("grade", [1.0, 0.0, 0.0, 0.0])
    again = retriever.task.answer(unnamed, retriever.predict_features)
    tied = reranked(list(again), unnamed, constant, 4)
    assert [answer["rank"] for answer in tied] == [4] * 4
    assert retriever.task.grade(tied, unnamed).scores["mrr@10"] == 1 / 4
    said = "does not support metrics of your own"
    raises(UserError, said, evaluate_two_stages, retriever, ranker, unnamed, 4, [len])
    ranked = load(ranker_folder)([{"query": DOCUMENTS[name], "document": "good cat"} for name in first[:3]])
    assert [answer["score"] for answer in ranked] == pytest.approx(list(scores.values()), abs=1e-5)
    direct = reranker(str(ranker_folder))("good cat", [DOCUMENTS[name] for name in first[:3]])
    assert list(direct) == pytest.approx(list(scores.values()), abs=1e-5)
    plain = rows.remove_columns("document_id")
    ids = [None, "other", None, "last"]
    texts = {text: text for text in documents} | dict(zip(ids, documents, strict=True))
    # a document without an id is named by its text
    for unnamed in (plain, plain.add_column("document_id", ids)):
        answers = list(retriever.task.answer(unnamed, retriever.predict_features))
        found = reranked(answers, unnamed, ranker, 3)[0]["found"]
        assert [texts[hit["id"]] for hit in found] == [DOCUMENTS[name] for name in order]
    data = beir(tmp_path / "beir")
    said = json.loads(
        small.said(capsys, "evaluate", folder, "--data", data, "--rerank", ranker_folder, "--json")
    )
    assert said["first_stage"] == evaluate(folder, data=data)["metrics"]
    assert said["metrics"].keys() == said["first_stage"].keys()
    assert "Use one for text-ranking" in refused(
        capsys, "evaluate", folder, "--data", data, "--rerank", folder
    )


def test_embed_index_and_search(tiny_encoder, tmp_path, capsys):
    folder = str(made(tiny_encoder, tmp_path / "m"))
    store = f"{tmp_path}/store"
    corpus = beir(tmp_path / "beir") / "corpus.jsonl"
    file = tmp_path / "v.npy"
    small.said(capsys, "embed", folder, "--input", corpus, "--output", file, "--side", "document")
    vectors = np.load(file)
    assert_allclose(vectors, load(folder).encode(list(DOCUMENTS.values()), "document"), atol=1e-6)
    assert "documents: 4 added" in small.said(
        capsys, "index", folder, "--documents", corpus, "--store", store
    )
    hits = [
        json.loads(line)
        for line in small.said(capsys, "search", store, "good cat", "--top-k", "2", "--json").splitlines()
    ]
    near = nearest(dual_encoder(folder), ["good cat"], DOCUMENTS, 2)[0]
    assert [hit["id"] for hit in hits] == near
    asked = write_rows(tmp_path / "asked.jsonl", [{"_id": "q", "q": "good cat"}])
    out = tmp_path / "found.jsonl"
    words = ["search", store, "--input", str(asked), "--column", "q", "--top-k", "2"]
    assert main([*words, "--output", str(out)]) == 0
    assert f"1 row in {out}" in capsys.readouterr().err
    assert read_rows(out) == [{"_id": "q", "q": "good cat", "hits": hits}]
    assert small.said(capsys, *words) == out.read_text()
    for wrong in (["search", store], ["search", store, "good", "cat"], [*words, "good cat"]):
        assert "search needs one query, in quotes, or --input FILE" in refused(capsys, *wrong)
    told = refused(capsys, "search", store, "good cat", "--output", out, "--column", "text")
    assert "--output and --column work only with --input FILE" in told


def test_documents_that_are_cut_are_counted(tiny_encoder):
    rows = Dataset.from_dict({"query": ["a", "b"], "document": ["cat " * 100, "b"], "grade": [1.0, 1.0]})
    own = task(tiny_encoder)
    found = [finding.what for finding in own.check(own.encode(rows), "train")]
    assert any("1 of 2 rows (50.0%) is truncated at 32 tokens" in what for what in found), found


def test_a_blank_id_is_no_id():
    rows = {"query": ["a", "b", ""], "query_id": ["", "1", ""], "document": ["x", "y", "z"]}
    assert [*ids(Dataset.from_dict(rows), "query")] == ["a", "1", ""]
    for query in ("a", "b"):  # of two queries without an id
        assert rankings._identity({"query": query, "group": ""}, "query") == query


def test_a_depth_without_a_reranker_is_refused(tmp_path):
    raises(UserError, "depth: has no effect without rerank", evaluate, tmp_path, depth=5)


def test_the_code_of_the_card_gives_the_cosines(tiny_encoder, tmp_path):
    folder = made(tiny_encoder, tmp_path / "m", truncate_dim=3)
    *before, last = Retrieval.usage.plain.replace("PATH_OR_HUB_ID", str(folder)).splitlines()
    names = {}
    exec("\n".join(before), names)
    rows = [{"query": "your question", "document": document} for document in ("a text", "another")]
    scores = [answer["score"] for answer in load(folder, precision="fp32")(rows)]
    assert_allclose(np.ravel(eval(last, names)), scores, atol=1e-5)


def test_prefixes_of_the_encoder_that_a_recipe_leaves_out_are_told(tiny_encoder, tmp_path):
    folder = made(tiny_encoder, tmp_path / "m", query_prefix="the ")
    rows = Dataset.from_dict({"query": ["a"], "document": ["b"], "grade": [1.0]})
    for more, told in (({}, True), ({"query_prefix": "the "}, False)):
        own = task(folder, **more)
        fixes = [finding.fix for finding in own.check(own.encode(rows), "train")]
        assert ("To keep it, set task.query_prefix." in fixes) == told


def test_another_form_than_those_of_mined_rows_is_refused(tmp_path):
    out = tmp_path / "out.jsonl"
    raises(DataError, "form: no form 'candidate'", mine, tmp_path, tmp_path, out, form="candidate")


def test_vectors_of_queries_and_documents_are_kept_apart(tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setenv("BERTKIT_CACHE", f"{tmp_path}/cache")
    folder = str(made(tiny_encoder, tmp_path / "m", query_prefix="the ", document_prefix="it was "))
    for side in ("query", "document", "text"):
        assert_array_equal(
            cached_vectors(folder, side)(["good cat"]), load(folder).encode(["good cat"], side)
        )
