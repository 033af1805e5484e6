"""sentence-similarity: losses and layout against sentence-transformers, thresholds and ranks against brute
force.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import small
import torch
import torch.nn.functional as F
from cases import BY_ID, SETTINGS, TEXTS, Case, encoder
from datasets import Dataset
from finished import finished
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses, modules
from sklearn.metrics import average_precision_score
from small import change_json, raises, write_rows
from torch.testing import assert_close
from transformers import set_seed

from bertkit import evaluate, load, load_recipe, train
from bertkit.errors import DataError, ModelError, RecipeError, UserError
from bertkit.evaluation import similarity
from bertkit.files import read_json, write_json
from bertkit.inference.evaluate import score
from bertkit.inference.runner import Runner
from bertkit.models.encoder import load_tokenizer
from bertkit.models.heads.losses import cosent, in_batch
from bertkit.models.trained_parts import with_lora
from bertkit.retrieval.vector_models import dual_encoder
from bertkit.sections import Lora
from bertkit.tasks.base import prepare
from bertkit.tasks.sentence_similarity import SentenceSimilarity, SentenceSimilarityOptions
from bertkit.tasks.vector_task import VectorTask
from bertkit.training.seed import save

ODD = [*TEXTS, "", "🙂", "word " * 500]


def options(**more):
    return SentenceSimilarityOptions(name="sentence-similarity", **more)


def made(folder, tmp_path, **more):
    """The tiny encoder with fresh heads, saved as bertkit saves."""
    set_seed(4)
    task = Case("x", {"name": "sentence-similarity", **more}, BY_ID["similarity-mse"].columns).task(folder)
    save(task.model(encoder(folder)), task, tmp_path / "model", SETTINGS)
    return tmp_path / "model"


def vectors(folder, texts, **how):
    return np.asarray([answer["vector"] for answer in load(folder, precision="fp32", **how)(texts)])


def test_each_side_of_a_pair_has_its_prefix():
    task = SentenceSimilarity(options(query_prefix="q ", document_prefix="d "), None, 8)
    assert task.schema.texts == "text text_a text_b anchor positive negative".split()
    assert [*map(task.prefix, task.schema.texts)] == ["", "", "", "q ", "d ", "d "]
    assert [*map(task.prefix, ("text", "query", "document"))] == ["", "q ", "d "]


def test_losses_are_those_of_sentence_transformers():
    sides = torch.randn(3, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([0.1, 0.9, 0.9, 0.4, 0.0, 1.0, 0.5], dtype=torch.float64)
    embedded, (a, b, c) = [{"sentence_embedding": side} for side in sides], sides
    theirs = losses.CoSENTLoss(torch.nn.Identity(), scale=20.0)(embedded[:2], targets)
    assert_close(cosent(torch.cosine_similarity(a, b), targets, 20.0), theirs)
    ranking = losses.MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0)
    ours = in_batch(a, b, c, torch.arange(21), 20.0) / 7
    assert_close(ours, ranking(embedded, torch.empty(0)))
    pairs = in_batch(a, b, c[:0], torch.arange(14), 20.0) / 7
    assert_close(pairs, ranking(embedded[:2], torch.empty(0)))


def test_a_text_that_is_the_own_positive_is_no_negative():
    """At scale 1, where each rival weighs enough to be missed."""
    a, b, c = torch.randn(3, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    b[3] = b[0]
    c[2] = b[0]
    texts = torch.arange(21)  # anchors, positives, negatives
    texts[7 + 3] = texts[14 + 2] = texts[7]
    texts[5] = texts[1]  # the anchor 5 asks what 1 asks
    by_hand = 0.0
    scores = torch.nn.functional.cosine_similarity(a[:, None], torch.cat([b, c])[None], dim=-1)
    for row in range(7):
        twins = [j for j in range(14) if j != row and texts[7 + j] == texts[7 + row]]
        twins += {1: [5], 5: [1]}.get(row, [])
        rivals = [j for j in range(14) if j not in twins]
        by_hand += float(torch.logsumexp(scores[row, rivals], 0) - scores[row, row])
    assert float(in_batch(a, b, c, texts, 1.0)) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    "more",
    [
        {"pooling": "mean"},
        {"pooling": "mean", "normalize": False},
        {"pooling": "cls", "dense": 5, "activation": "Tanh"},
        {"pooling": "mean", "dense": 9, "bias": False},
    ],
)
def test_sentence_transformers_opens_what_is_saved(more, tiny_encoder, tmp_path):
    folder = made(tiny_encoder, tmp_path, **more)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(ODD)
    assert_allclose(vectors(folder, ODD), theirs, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_what_sentence_transformers_saves_is_opened(pooling, tiny_encoder, tmp_path):
    set_seed(3)
    transformer = modules.Transformer(str(tiny_encoder))
    stack = [
        transformer,
        modules.Pooling(transformer.get_embedding_dimension(), pooling),
        modules.Dense(transformer.get_embedding_dimension(), 6),
        modules.Normalize(),
    ]
    model = SentenceTransformer(modules=stack, device="cpu")
    model.save(f"{tmp_path}/theirs")
    texts = [text for text in ODD if len(text) < 200]
    ours = vectors(tmp_path / "theirs", texts, task="sentence-similarity")
    assert_allclose(ours, model.encode(texts), atol=1e-6)


def test_a_plain_encoder_gets_mean_pooling(tiny_encoder):
    theirs = SentenceTransformer(str(tiny_encoder), device="cpu").encode(TEXTS)
    ours = vectors(tiny_encoder, TEXTS, task="sentence-similarity")
    unit = theirs / np.linalg.norm(theirs, axis=1, keepdims=True)
    found = ours / np.linalg.norm(ours, axis=1, keepdims=True)
    assert_allclose(found, unit, atol=1e-6)


MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
DENSE = "2_Dense/config.json"
LENGTH = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"


def foreign(tiny_encoder, tmp_path, file, edit):
    """A model with a dense layer that does not say that bertkit made it, one of its JSON files edited."""
    folder = made(tiny_encoder, tmp_path, dense=5)
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {name: config[name] for name in config if name != "bertkit"})
    content = read_json(folder / file)
    write_json(folder / file, edit(content) or content)
    return folder


def put(**values):
    return lambda content: content.update(values)


@pytest.mark.parametrize(
    ("file", "edit", "said"),
    [
        (MODULES, lambda m: m[1].update(path="../../elsewhere"), "outside of the model"),
        (
            MODULES,
            lambda m: m.append({"path": "4_X", "type": "my.Module"}),
            "Normalize, my.Module\n.*in this order",
        ),
        (MODULES, lambda m: m[1].update(type="my.Pooling"), "Transformer, my.Pooling, Dense"),
        (MODULES, lambda m: m.reverse(), "Normalize, Dense, Pooling, Transformer"),
        (MODULES, lambda m: m[:2] + m[3:1:-1], "Pooling, Normalize, Dense\n"),
        (MODULES, lambda m: m.clear(), "its modules are none"),
        (MODULES, lambda m: m.append(m[1]), "names two modules Pooling"),
        (MODULES, lambda m: m[0].update(path="0_Transformer"), "its Transformer is not in the folder itself"),
        (MODULES, lambda m: m[1].update(path="absent"), "absent/config.json: cannot be read: No such file"),
        (MODULES, lambda m: ["x"], "not a list of modules"),
        (
            POOLING,
            put(pooling_mode_cls_token=True),
            "expected exactly one of mean, cls and max, found mean, cls",
        ),
        (POOLING, put(pooling_mode=["mean", "lasttoken"]), "max, found mean, lasttoken"),
        (POOLING, put(pooling_mode_lasttoken=True), "max, found mean, pooling_mode_lasttoken"),
        (POOLING, lambda c: {"embedding_dimension": 16}, "max, found no way of pooling"),
        (POOLING, put(include_prompt=False), "include_prompt is false"),
        (DENSE, lambda c: ["x"], "is not a JSON object"),
        (DENSE, put(activation_function="os.system"), "a dense layer with system is not supported"),
        (DENSE, put(use_residual=True), "is a residual"),
        (DENSE, put(module_input_name="token_embeddings"), "does not read the pooled vector"),
        *(
            (DENSE, put(out_features=size), "out_features: expected")
            for size in (10**12, 0, -1, "5", None, True, 1e300)
        ),
        *(
            (LENGTH, put(max_seq_length=length), "max_seq_length: expected")
            for length in (-1, 0, 3, "long", True, 9.5)
        ),
        (PROMPTS, lambda c: ["x"], "is not a JSON object"),
        (PROMPTS, put(prompts=["query: "]), "its `prompts` do not map names to texts"),
        (PROMPTS, put(prompts={"query": 5}), "its `prompts` do not map names to texts"),
        (
            PROMPTS,
            put(prompts={"query": "one "}, default_prompt_name="query"),
            "default_prompt_name is 'query', .*, not 'one ' to every text",
        ),
        (PROMPTS, put(similarity_fn_name="euclidean"), "similarity_fn_name is 'euclidean', but bertkit"),
        (PROMPTS, put(similarity_fn_name="dot", truncate_dim=3), "similarity_fn_name is 'dot', but bertkit"),
        *((PROMPTS, put(truncate_dim=size), "truncate_dim: expected") for size in (0, -1, True, "3", 2.0)),
    ],
)
def test_odd_modules_are_refused(file, edit, said, tiny_encoder, tmp_path):
    raises(ModelError, said, load, foreign(tiny_encoder, tmp_path, file, edit), task="sentence-similarity")


def test_case_that_only_a_module_folds_is_refused(tiny_encoder, tmp_path):
    folder = foreign(tiny_encoder, tmp_path, LENGTH, put(do_lower_case=True))
    load(folder, task="sentence-similarity")  # whose tokenizer tells no case anyway
    tokenizer, config = (read_json(folder / name) for name in ("tokenizer.json", "tokenizer_config.json"))
    tokenizer["normalizer"]["lowercase"] = False
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", config | {"do_lower_case": False})
    raises(ModelError, "for a case-sensitive tokenizer", load, folder, task="sentence-similarity")


def test_prompts_of_queries_are_read(tiny_encoder, tmp_path):
    folder = foreign(
        tiny_encoder, tmp_path, PROMPTS, put(prompts={"query": "one ", "x": ""}, default_prompt_name="x")
    )
    predictor = load(folder, task="sentence-similarity", precision="fp32")
    np.testing.assert_array_equal(predictor.encode(["a cat"], "query"), predictor.encode(["one a cat"]))


@pytest.mark.parametrize(
    ("size", "task"), [(3, "sentence-similarity"), (99, "sentence-similarity"), (3, "retrieval")]
)
def test_vectors_are_cut_as_in_sentence_transformers(size, task, tiny_encoder, tmp_path):
    folder = foreign(tiny_encoder, tmp_path, PROMPTS, put(truncate_dim=size))
    model = load(folder, task=task, precision="fp32")
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert theirs.encode(TEXTS).shape[1] == min(size, 5)
    assert_allclose(model.encode(TEXTS), theirs.encode(TEXTS), atol=1e-6)
    a, b = TEXTS[:2]
    if task == "sentence-similarity":
        expected = float(theirs.similarity(*theirs.encode([a, b])))
        assert model(text_a=a, text_b=b)["score"] == pytest.approx(expected, abs=1e-5)
    assert dual_encoder(str(folder)).size == min(size, 5)


@pytest.mark.parametrize("loss", ["cosent", "cosine-mse", "multiple-negatives-ranking"])
def test_prefixes_have_the_mean_of_their_losses(loss, tiny_encoder):
    sides = {"anchor": ["a", "b", "c"], "positive": ["d", "e", "f"]}
    if loss != "multiple-negatives-ranking":
        sides = {"text_a": ["a", "b", "c"], "text_b": ["d", "e", "f"], "score": [0.0, 0.4, 1.0]}
    case = Case("dims", {"name": "sentence-similarity", "loss": loss}, sides)
    whole = case.task(tiny_encoder)
    cut = replace(case, options={**case.options, "dims": [8, 3, 5]}).task(tiny_encoder)
    vectors = torch.randn(6, 8, generator=torch.manual_seed(1), requires_grad=True)
    batch = {"side": torch.tensor([0, 1] * 3), "same": torch.arange(6)}
    batch["labels"] = torch.tensor([0.0, 0.0, 0.4, 0.4, 1.0, 1.0])
    parts = [whole.loss({"vectors": F.normalize(vectors[:, :size], dim=-1)}, batch) for size in (8, 3, 5)]
    assert cut.loss({"vectors": vectors}, batch).item() == pytest.approx(sum(parts).item() / 3, rel=1e-5)
    assert len({round(part.item(), 4) for part in parts}) == 3
    one = replace(case, options={**case.options, "dims": [8]}).task(tiny_encoder)
    assert torch.equal(one.loss({"vectors": vectors}, batch), whole.loss({"vectors": vectors}, batch))


@pytest.mark.parametrize("identifier", ["similarity-cosent", "retrieval"])
def test_each_size_is_scored_and_the_largest_saved(identifier, tiny_encoder, tmp_path, monkeypatch):
    case = BY_ID[identifier]
    run = finished(replace(case, options={**case.options, "dims": [2, 5]}), tiny_encoder, tmp_path / "run")
    assert read_json(run.model / "config_sentence_transformers.json")["truncate_dim"] == 5
    predictor = load(run.model)
    monkeypatch.setattr(VectorTask, "chunk_size", 3)  # so that vectors are predicted in several parts
    seen = []
    run_features = Runner.__call__
    monkeypatch.setattr(
        Runner, "__call__", lambda self, rows: seen.append(len(rows)) or run_features(self, rows)
    )
    answers, scores = score(predictor, case.rows())
    assert len(seen) > 2
    once = seen
    seen = []
    assert list(answers) == list(predictor.task.answer(case.rows(), predictor.predict_features))
    assert seen == once  # the other sizes did not run the model again
    assert scores["dims"]["5"] == scores["metrics"]
    config = read_json(run.model / "config.json")
    config["bertkit"]["task"] |= {"dims": None, "truncate_dim": 2}
    write_json(run.model / "config.json", config)
    less = score(load(run.model), case.rows())[1]
    assert "dims" not in less
    assert scores["dims"]["2"] == pytest.approx(less["metrics"])
    assert scores["dims"]["2"] != scores["metrics"]


def test_a_product_of_unit_vectors_is_a_cosine(tiny_encoder, tmp_path):
    folder = foreign(tiny_encoder, tmp_path, PROMPTS, put(similarity_fn_name="dot"))
    theirs = SentenceTransformer(str(folder), device="cpu")
    a, b = theirs.encode(TEXTS[:2])
    score = load(folder, task="sentence-similarity", precision="fp32")(text_a=TEXTS[0], text_b=TEXTS[1])[
        "score"
    ]
    assert score == pytest.approx(float(theirs.similarity(a, b)), abs=1e-5)
    (folder / MODULES).write_text(json.dumps(read_json(folder / MODULES)[:3]))  # without Normalize
    raises(
        ModelError,
        "similarity_fn_name is 'dot', but bertkit compares vectors by their cosine",
        load,
        folder,
        task="sentence-similarity",
    )


def test_a_range_that_leaves_scores_out_and_sizes_that_vectors_do_not_have_are_refused(tiny_encoder):
    case = BY_ID["similarity-mse"]
    more = {"name": "sentence-similarity", "loss": "cosine-mse"}
    raises(
        DataError,
        r"task.score_range: \[7, 7\], but scores of train go from",
        Case("x", {**more, "score_range": [7, 7]}, case.columns).task,
        tiny_encoder,
    )
    distances = Case("x", {**more, "score_range": [100, -100]}, case.columns)
    raises(
        DataError,
        r"task.score_range: \[100, -100\], but scores(?s:.*)make distances negative",
        distances.task,
        tiny_encoder,
    )
    raises(
        UserError,
        r"task\.dims: 1000 exceeds the vector size \d+",
        Case("x", {**more, "dims": [4, 1000]}, case.columns).task(tiny_encoder).model,
        encoder(tiny_encoder),
    )


scored = st.lists(
    st.tuples(st.booleans(), st.sampled_from([-0.5, 0.0, 0.25, 0.5, 0.75, 1.0])), min_size=1, max_size=12
)


@given(scored)
def test_the_best_threshold_is_best(pairs):
    truth, given_ = zip(*pairs, strict=True)

    def right(threshold):
        return sum((cosine >= threshold) == same for same, cosine in pairs)

    best = max(right(t) for t in [*given_, 2.0, -2.0])
    assert right(similarity.best_threshold(truth, given_)) == best


@given(scored.filter(lambda pairs: any(p[0] for p in pairs)))
def test_average_precision_is_scikit_learns(pairs):
    truth, given_ = zip(*pairs, strict=True)
    ours = similarity.labelled(truth, given_, 0.3).scores
    assert ours["average_precision"] == pytest.approx(average_precision_score(truth, given_))
    assert ours["accuracy"] == pytest.approx(np.mean((np.asarray(given_) >= 0.3) == np.asarray(truth)))


def test_ranks_and_their_scores():
    table = np.asarray([[0.9, 0.1, 0.95], [0.5, 0.5, 0.5], [0.0, 0.1, 0.05]])
    assert similarity.places(table, np.arange(3)) == [2, 3, 2]
    rows = Dataset.from_dict({"anchor": ["a", "b", "c"], "positive": ["same", "same", "other"]})
    sides = [np.eye(3)[[0, 0, 1]], np.eye(3)[[0, 0, 2]]]
    # a text ties once
    assert [answer["rank"] for answer in similarity.by_cosine(sides, rows, [], None)] == [
        1,
        1,
        2,
    ]
    scores = similarity.ranked([2, 1, 2], [True, False, True]).scores
    assert scores == pytest.approx({"mrr": 2 / 3, "accuracy_at_1": 1 / 3, "triplet_accuracy": 2 / 3})


@pytest.mark.parametrize(
    ("columns", "more", "said"),
    [
        ({"text": TEXTS, "score": [1.0] * 8}, {}, "column `text_a`: not in the rows"),
        ({"text_a": TEXTS, "text_b": TEXTS, "positive": TEXTS}, {}, "column `anchor`: not in the rows"),
        (
            {"text_a": TEXTS, "text_b": TEXTS, "score": [1.0] * 8},
            {"loss": "multiple-negatives-ranking"},
            "multiple-negatives-ranking does not support the rows' column `score`",
        ),
        (
            {"text_a": TEXTS, "text_b": TEXTS, "label": list("abcabcab")},
            {},
            r"two labels, but train has a, b, c\n.*text-classification, which supports pairs too",
        ),
        (
            {"text_a": TEXTS, "text_b": TEXTS, "score": [*range(8)]},
            {"score_range": [8, 0]},
            "task.score_range: has no effect on rows with `score` and loss cosent",
        ),
    ],
)
def test_contradictions_are_said(columns, more, said, tiny_encoder):
    raises(
        DataError,
        said,
        prepare,
        SentenceSimilarity,
        options(**more),
        load_tokenizer(tiny_encoder),
        32,
        Dataset.from_dict(columns),
        [],
    )


def test_indices_of_labels_that_the_recipe_names(tiny_encoder, tmp_path):
    """From train to evaluate."""
    pairs = zip(TEXTS * 2, TEXTS[3:] * 4, strict=False)
    file = write_rows(
        tmp_path / "rows.jsonl",
        [{"text_a": a, "text_b": b, "label": i % 2} for i, (a, b) in enumerate(pairs)],
    )
    recipe = {
        "task": {"name": "sentence-similarity", "labels": ["differ", "agree"]},
        "model": {"name": str(tiny_encoder), "max_length": 32},
        "data": {"source": {"train": str(file), "validation": str(file)}},
        "training": {"num_train_epochs": 2, "per_device_train_batch_size": 4},
    }
    run = train(load_recipe(recipe).with_("verify=false", "explain=false"), tmp_path / "run")
    noticed = (run.folder / "data.json").read_text()
    assert "train: differ 8 (50.0%), agree 8 (50.0%)" in noticed
    assert "pairs with the label 'agree' are trained as similar" in noticed
    assert (run.folder / "report.html").is_file()
    assert evaluate(run.folder)["metrics"] == run.results["splits"]["validation"]["metrics"]


def test_a_text_and_a_pair_are_answered(tiny_encoder, tmp_path, capsys):
    folder = made(tiny_encoder, tmp_path)
    predictor = load(folder)
    one = predictor("the cat")
    pair = predictor(text_a="the cat", text_b="the cat")
    assert len(one["vector"]) == 16
    assert pair["score"] == pytest.approx(1.0)
    assert np.linalg.norm(one["vector"]) == pytest.approx(1.0, abs=1e-5)
    assert "16 numbers" in small.said(capsys, "predict", folder, "the cat")
    with torch.no_grad():
        predictor.model.embeddings.word_embeddings.weight.fill_(torch.nan)
    raises(ModelError, "NaN or infinite for 1 of 1 texts", predictor, "the cat")


@pytest.mark.parametrize(
    ("labels", "values", "ids"),
    [
        (["-1", "0"], "-1 0 0 -1".split(), [0, 1, 1, 0]),  # names, one of which looks like an index
        (["1", "2"], "0 1 1 0".split(), [0, 1, 1, 0]),  # indices, one of which looks like a name
        (["yes", "no"], ["0", "1"], [0, 1]),
        ({"0": "far", "1": "far", "2": "near"}, ["2", "0", "1"], [1, 0, 0]),
        (None, ["b", "a"], [1, 0]),
    ],
)
def test_label_ids_follow_the_order_of_the_names(labels, values, ids, tmp_path):
    rows = Dataset.from_dict({"text_a": TEXTS[: len(ids)], "text_b": TEXTS[: len(ids)], "label": values})
    tokenizer = None
    task = prepare(SentenceSimilarity, options(labels=labels), tokenizer, 32, rows, [])
    graded = task.grade([{"score": float(id)} for id in ids], rows)
    assert graded.scores["accuracy"] == 1.0
    assert graded.similar.tolist() == ids
    saved = SentenceSimilarityOptions(**json.loads(task.options.model_dump_json()))
    assert replace(task, options=saved).names == task.names


@pytest.mark.parametrize(("fixed", "reported"), [(None, 1.0), (0.0, 0.5), (0.5, 0.5)])
def test_the_checkpoint_is_selected_at_the_fitted_threshold(fixed, reported, tiny_encoder):
    case = BY_ID["similarity-labels"]
    own = Case("x", {**case.options, "threshold": fixed}, case.columns).task(tiny_encoder)
    cosines = [0.3 if label == own.names[1] else 0.2 for label in case.columns["label"]]
    graded = own.grade([{"score": cosine} for cosine in cosines], case.rows()).after_fit()
    assert graded.scores["accuracy"] == reported
    assert graded.intervals()["accuracy"] is not None


def test_vectors_of_texts_that_were_cut_are_told_of(tiny_encoder, tmp_path, caplog):
    load(made(tiny_encoder, tmp_path)).encode(["the cat", "the cat " * 100])
    assert "1 of 2 texts are truncated at 32 tokens" in caplog.text


def test_baselines_that_know_nothing_of_pairs_rank_positives_by_chance_or_last(monkeypatch):
    """As of sentences and their translations: where no word is shared, all cosines are 0."""
    rows = Dataset.from_dict(
        {"anchor": [f"Satz a{n}" for n in range(12)], "positive": [f"line b{n}" for n in range(12)]}
    )
    options = SentenceSimilarityOptions(name="sentence-similarity", loss="multiple-negatives-ranking")
    found = SentenceSimilarity(options, None, 32).baselines(rows, rows)
    assert found["tf-idf cosine"] == {"mrr": 1 / 12, "accuracy_at_1": 0.0}
    assert 1 / 12 < found["random"]["mrr"] < 0.6
    monkeypatch.setattr(SentenceSimilarity, "chunk_size", 5)  # ranks are among so many rows
    found = SentenceSimilarity(options, None, 32).baselines(rows, rows)
    assert found["tf-idf cosine"]["mrr"] == pytest.approx((10 / 5 + 2 / 2) / 12)


def test_another_layout_than_that_of_the_model_that_is_trained_further_is_told(tiny_encoder, tmp_path):
    own = {"name": "sentence-similarity", "pooling": "cls", "dense": 6, "activation": "Tanh"}
    case = Case("x", own, BY_ID["similarity-mse"].columns)
    folder = finished(case, tiny_encoder, tmp_path / "run").model
    others = ({**own, "pooling": "mean"}, {**own, "activation": "Identity"})
    for options, told in ((own, False), *((other, True) for other in others)):
        task = replace(case, options=options).task(folder)
        fixes = [finding.fix for finding in task.check(task.encode(case.rows()), "train")]
        assert ("To keep them, write  task: {pooling: cls, dense: 6, activation: Tanh}" in fixes) == told


def test_all_linear_adapts_every_layer_of_the_encoder_and_not_the_dense_layer(tiny_encoder):
    task = Case("x", {"name": "sentence-similarity", "dense": 6}, BY_ID["similarity-mse"].columns).task(
        tiny_encoder
    )
    model = task.model(encoder(tiny_encoder))
    layers = {name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    adapted = with_lora(model, Lora(r=2, target_modules="all-linear"), task.extra_modules(model))
    found = {name.split(".lora_A")[0] for name, _ in adapted.named_parameters() if "lora_A" in name}
    assert found == {f"base_model.model.{name}" for name in layers if not name.startswith("vector_dense")}


@pytest.mark.parametrize("setting", [{"labels": {"0": "no", "1": "yes"}}, {"threshold": 0.7}])
def test_settings_of_labels_are_refused_for_rows_with_scores(setting, tiny_encoder):
    case = BY_ID["similarity-mse"]
    own = Case("x", {**case.options, **setting}, case.columns)
    raises(DataError, "has no effect on rows with `score`", own.task, tiny_encoder)


def test_a_metric_of_rows_with_negatives_needs_them(tiny_encoder, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"anchor": f"a {n}", "positive": f"b {n}"} for n in range(9)])
    written = tmp_path / "recipe.yaml"
    written.write_text(
        f"task: {{name: sentence-similarity}}\nmodel: {{name: {tiny_encoder}, max_length: 32}}\n"
        f"data: {{source: {{train: {rows}, validation: {rows}}}}}\n"
        "training: {num_train_epochs: 1, metric_for_best_model: triplet_accuracy}\n"
    )
    raises(RecipeError, "no metric 'triplet_accuracy'", train, load_recipe(written), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_positive_of_the_query_is_never_its_negative():
    a, b, c = torch.randn(3, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    c[2] = b[1]
    texts = torch.arange(9)
    texts[1] = texts[0]  # one query with two positives
    texts[8] = texts[4]  # the second of which is the negative of another query
    scores = torch.nn.functional.cosine_similarity(a[:, None], torch.cat([b, c])[None], dim=-1)
    left_out = {0: [1, 5], 1: [0, 5], 2: []}
    by_hand = 0.0
    for row, twins in left_out.items():
        rivals = [column for column in range(6) if column not in twins]
        by_hand += float(torch.logsumexp(scores[row, rivals], 0) - scores[row, row])
    assert float(in_batch(a, b, c, texts, 1.0)) == pytest.approx(by_hand)


def test_scores_are_learned_as_shares_of_their_range(tiny_encoder):
    columns = {"text_a": TEXTS[:3], "text_b": TEXTS[3:6], "score": [1.0, 2.0, 5.0]}
    case = Case("x", {"name": "sentence-similarity", "loss": "cosine-mse"}, columns)
    assert case.task(tiny_encoder).encode(case.rows())["labels"][::2] == [0.0, 0.25, 1.0]


def test_baselines_of_triplets_learn_from_pairs():
    texts = {"anchor": ["a cat", "a dog"], "positive": ["the cat", "the dog"], "negative": ["dogs", "cats"]}
    rows = Dataset.from_dict(texts)
    options = SentenceSimilarityOptions(name="sentence-similarity", loss="multiple-negatives-ranking")
    scores = SentenceSimilarity(options, None, 32).baselines(rows.remove_columns("negative"), rows)
    assert "triplet_accuracy" in scores["tf-idf cosine"]


def test_a_dense_layer_of_another_size_is_a_new_one(tiny_encoder, tmp_path):
    folder = made(tiny_encoder, tmp_path, dense=6)
    change_json(folder / "2_Dense/config.json", activation_function="torch.nn.modules.activation.LeakyReLU")
    for size in (4, 6):
        case = Case("x", {"name": "sentence-similarity", "dense": size}, BY_ID["similarity-mse"].columns)
        assert case.task(folder).model(encoder(folder)).vector_dense.linear.out_features == size


def test_an_older_name_of_the_length_file_is_read(tiny_encoder, tmp_path):
    folder = foreign(tiny_encoder, tmp_path, LENGTH, put(max_seq_length=9))
    (folder / LENGTH).rename(folder / "sentence_roberta_config.json")
    assert load(folder, task="sentence-similarity").task.max_length == 9
    assert SentenceTransformer(str(folder)).max_seq_length == 9
