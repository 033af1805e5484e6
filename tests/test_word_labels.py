"""Labels of words that form no entities, such as parts of speech: `scheme: none`."""

import json

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from small import problems_of, raises, refused, said, write_rows
from test_crf import enumerate_paths
from test_token_classification import get as read
from transformers import AutoModelForTokenClassification, pipeline

import bertkit
from bertkit.data.tagging import find_scheme, to_bio, without_prefixes, word_tags
from bertkit.errors import DataError, UserError
from bertkit.evaluation.word_metrics import GradedWords, graded, lookup
from bertkit.files import read_json
from bertkit.inference.display import answer_line
from bertkit.models.encoder import load_tokenizer
from bertkit.models.heads import posteriors
from bertkit.models.heads.tagger import decode_tags
from bertkit.recipe.recipe import load_recipe
from bertkit.report.facts import read_facts
from bertkit.report.mistakes import sentence_mistake
from bertkit.tasks.token_classification import TokenClassification, TokenClassificationOptions
from bertkit.training.train import train

LABELS = "ADJ B-X NOUN O -LRB-".split()  # B-X and O are labels as any other


def conll(path, *sentences):
    """Sentences of `word/TAG`, as a CoNLL file."""
    words = ["\n".join(pair.replace("/", "\t") for pair in sentence.split()) for sentence in sentences]
    path.write_text("\n\n".join(words) + "\n")
    return path


# --- scores


@st.composite
def graded_words(draw):
    """Any labels, some of them in no sentence; predicted ones may be none."""
    gold = draw(st.lists(st.lists(st.sampled_from(LABELS), max_size=6), min_size=1, max_size=6).filter(any))
    predicted = [[draw(st.sampled_from([tag, *LABELS[:3], ""])) for tag in tags] for tags in gold]
    return GradedWords(gold, predicted, LABELS)


def expected_scores(gold, predicted):
    """By scikit-learn's functions with their defaults; 0 / 0 is 0. A word without a label counts as wrong."""
    labels = sorted({*gold, *predicted} - {""})
    each = sklearn_metrics.precision_recall_fscore_support(gold, predicted, labels=labels, zero_division=0)
    names = "precision recall f1 support".split()
    per_label = {
        f"{n}/{label}": of[i] for i, label in enumerate(labels) for n, of in zip(names, each, strict=True)
    }
    macro = sklearn_metrics.f1_score(gold, predicted, labels=labels, average="macro", zero_division=0)
    return {"accuracy": sklearn_metrics.accuracy_score(gold, predicted), "f1_macro": macro, **per_label}


@given(graded_words())
def test_scores_are_those_of_scikit_learn(graded):
    gold, predicted = ([tag for tags in side for tag in tags] for side in (graded.gold, graded.predicted))
    wanted = expected_scores(gold, predicted)
    found = {name: value for name, value in graded.scores.items() if value is not None and value != 0}
    assert found == pytest.approx({name: value for name, value in wanted.items() if value})
    absent = set(LABELS) - {*gold, *predicted}
    assert {name for name, value in graded.scores.items() if value is None} == {
        f"{score}/{label}" for label in absent for score in ("precision", "recall", "f1")
    }
    details = graded.details()
    matrix = sklearn_metrics.confusion_matrix(gold, predicted, labels=LABELS).tolist()
    assert details["confusion"] == {"labels": LABELS, "matrix": matrix}
    assert (details["calibration"]["decisions"], details["calibration"]["errors"]) == (
        len(gold),
        sum(a != b for a, b in zip(gold, predicted, strict=True)),
    )


@given(graded_words(), st.data())
def test_a_weight_is_a_repeated_sentence(graded, data):
    rows = len(graded.gold)
    weights = data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    again = [row for row, count in enumerate(weights) for _ in range(count)]
    gold = list(graded.gold)
    predicted = list(graded.predicted)
    if not any(gold[row] for row in again):
        return
    repeated = GradedWords([gold[row] for row in again], [predicted[row] for row in again], LABELS).scores
    values = graded.scored.weighted(np.array(weights, dtype=float)[:, None])
    assert {name: float(value[0]) for name, value in values.items()} == pytest.approx(
        {name: np.nan if value is None else value for name, value in repeated.items()}, nan_ok=True
    )


def test_confidences_are_graded_by_word():
    words = [{"word": "a", "tag": "NOUN", "score": 0.9}, {"word": "b", "tag": "", "score": 0.0}]
    found = graded([["NOUN", "ADJ"]], [{"words": words}], LABELS, "none", 1.5, {})
    assert found.scores["accuracy"] == 0.5
    calibration = found.details()["calibration"]
    assert calibration == {"temperature": 1.5, "decisions": 2, "errors": 1, "ece": pytest.approx(0.05)}
    assert found.pairs() == ([["NOUN", ""]], [["NOUN", "ADJ"]])


def test_sentences_without_words_have_no_scores():
    graded = GradedWords([[], []], [[], []], LABELS)
    assert {value for name, value in graded.scores.items() if not name.startswith("support/")} == {None}
    assert graded.details()["calibration"]["decisions"] == 0


def test_the_baseline_gives_an_unseen_word_the_most_frequent_label():
    train = [["a", "b"], ["a", "b", "b"]], [["O", "NOUN"], ["ADJ", "NOUN", "ADJ"]]
    rows = [["a", "b", "new"]], [["O", "NOUN", "NOUN"]]
    # a: O and ADJ, the first; NOUN before ADJ
    assert lookup(train, rows, LABELS, "none", {})["accuracy"] == 1.0
    assert lookup(train, (rows[0], [["O", "NOUN", "O"]]), LABELS, "none", {})["accuracy"] == pytest.approx(
        2 / 3
    )


# --- data


def test_tags_without_prefixes_are_refused_with_both_ways_out(tmp_path, tiny_encoder, capsys):
    file = conll(tmp_path / "train.conll", "Ada/PER Lovelace/PER wrote/O", "Bob/PER met/O IBM/ORG")
    (tmp_path / "r.yaml").write_text(
        "task: {name: token-classification}\ndata: {source: train.conll}\n"
        f"model: {{name: {tiny_encoder}, max_length: 24}}\n"
    )
    told = refused(capsys, "check", tmp_path / "r.yaml")
    assert f"{file}:1: tags without prefixes such as B- and I-: O, ORG, PER" in told
    assert "task: {scheme: none}" in told
    assert "task: {data_scheme: IO}" in told
    assert read(file, scheme="none").rows["train"]["tags"][:] == [["PER", "PER", "O"], ["PER", "O", "ORG"]]
    data = read(file, data_scheme="IO")
    assert data.rows["train"]["tags"][:] == [["B-PER", "I-PER", "O"], ["B-PER", "O", "B-ORG"]]
    assert "train: its tags are IO; read as BIO" in [finding.what for finding in data.findings]


@pytest.mark.parametrize(
    ("tags", "plain"),
    [
        ("NOUN O", True),
        ("NN-HL -LRB- .", True),
        ("O", False),
        ("", False),
        ("NOUN B-X", False),
        ("B- U", True),
    ],
)
def test_labels_are_told_from_entity_tags(tags, plain):
    assert without_prefixes(tags.split()) is plain
    if plain:
        raises(ValueError, "unknown scheme", find_scheme, [tags.split()])


def test_io_is_read_with_and_without_its_prefix():
    assert to_bio("PER I-PER ORG O".split(), "IO") == ("B-PER I-PER B-ORG O".split(), 0)
    raises(ValueError, "tag 2", to_bio, ["PER", ""], "IO")


def test_labels_stay_as_they_are_and_wrong_rows_are_named(tmp_path):
    data = read(conll(tmp_path / "a.conll", "a/B-X b/I-Y c/O d/B-X"), scheme="none")
    assert data.rows["train"]["tags"][0] == "B-X I-Y O B-X".split()
    assert "train: 4 words: B-X 2 (50.0%), I-Y 1 (25.0%), O 1 (25.0%)" in [
        finding.what for finding in bertkit.data.checks.check(data)]  # fmt: skip
    rows = [{"tokens": ["a", "b"], "tags": ["X", ""]}, {"tokens": ["a"], "tags": ["X", "Y"]}]
    write_rows(tmp_path / "b.jsonl", rows)
    assert [
        str(problem).partition("b.jsonl:")[2]
        for problem in problems_of(DataError, read, tmp_path / "b.jsonl", scheme="none")
    ] == [
        "1: tag 2 is empty",
        "2: 1 words, but 2 tags",
    ]
    write_rows(tmp_path / "c.jsonl", [{"text": "a b", "spans": [[0, 1, "X"]]}])
    raises(
        DataError, "needs a column `tags`; found: 'text', 'spans'", read, tmp_path / "c.jsonl", scheme="none"
    )


def test_class_labels_of_a_data_set_are_names_in_its_order(tiny_encoder, tmp_path):
    names = "NOUN PUNCT ADJ _".split()
    features = Features({"tokens": List(Value("string")), "upos": List(ClassLabel(names=names))})
    rows = Dataset.from_dict({"tokens": [["the", "cat"], ["."]], "upos": [[2, 0], [1]]}, features=features)
    rows.to_parquet(tmp_path / "train.parquet")
    options = {"scheme": "none", "class_weights": "auto"}
    data = read(tmp_path / "train.parquet", {"tags": "upos"}, **options)
    assert data.rows["train"]["tags"][:] == [["ADJ", "NOUN"], ["PUNCT"]]
    task = TokenClassificationOptions(name="token-classification", **options)
    settled = TokenClassification.infer_options(task, data.rows["train"], data.class_names)
    assert settled["labels"] == settled["tags"] == names
    assert settled["class_weights"] == {"NOUN": 0.75, "PUNCT": 0.75, "ADJ": 0.75, "_": 0.75}


def test_contradictions_are_refused(tiny_encoder, tmp_path):
    file = recipe(tmp_path, tiny_encoder)
    for overrides, message in (
        (["task.data_scheme=BIO"], r"task\.data_scheme: has no effect with scheme none"),
        (["task.labels=[A, A]"], "A more than once|listed 2 times"),
        (["task.labels=[A, B]", "task.tags=[A, C]"], "tags must be the labels"),
        (["task.labels=[A, B]", "task.class_weights={O: 2}"], r"class_weights\.O: not a label"),
    ):
        raises(UserError, message, load_recipe, file, overrides)
    tags = ["task.scheme=BIO", "task.labels=[O, B-PER, I-PER]"]
    load_recipe(file, [*tags, "task.class_weights={PER: 2, O: 0.5}"])
    weights = "task.class_weights={B-PER: 2}"
    message = r"class_weights\.B-PER: not a label(?s:.*)Labels: \['O', 'PER'\]"
    raises(UserError, message, load_recipe, file, [*tags, weights])
    conll(tmp_path / "one.conll", "the/X cat/X")
    for overrides, message in (
        (["task.labels=[DET, ADJ]"], r"task\.labels lacks: NOUN, VERB"),
        (["training.metric_for_best_model=f1_strict"], "Choose one of accuracy, f1_macro, precision/ADJ"),
        ([f"data.source={{train: {tmp_path}/one.conll}}"], "train has fewer than two labels"),
    ):
        raises(UserError, message, train, load_recipe(file, overrides), tmp_path / "run")


# --- decoding


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_of_labels_rules_nothing_out(seed):
    """The best of all paths, by trying each; with tags that a scheme of entities would rule out."""
    rng = np.random.default_rng(seed)
    tags = ["I-X", "O", "E-X"]
    scores = rng.normal(size=(4, 3)).astype(np.float32)
    chain = tuple(rng.normal(size=shape).astype(np.float32) for shape in ((3, 3), (3,), (3,)))
    brute = enumerate_paths(torch.from_numpy(scores), map(torch.from_numpy, chain))
    (best,) = decode_tags([scores], chain, tags, 1.0, plain=True)
    assert best.tags == [tags[i] for i in brute.paths[brute.scores.argmax()]]
    wanted = [
        brute.chances[brute.paths[:, word] == tags.index(tag)].sum() for word, tag in enumerate(best.tags)
    ]
    assert best.scores == pytest.approx(wanted, rel=1e-5)
    assert best.entities == []
    never = posteriors.forbidden(tags, plain=True)
    assert not any(part.any() for part in never)
    assert [part.shape for part in never] == [(3, 3), (3,), (3,)]


def test_words_that_nothing_reads_are_left_out_of_the_gold_labels():
    assert word_tags(["B-X", "O", "I-X"], [0, 2], "none") == ["B-X", "I-X"]


# --- a run, from file to answers


def sentence(number):
    noun = ("cat", "dog")[number % 2]
    verb = ("sat", "ran")[number // 2 % 2]
    return f"the/DET {'good/ADJ ' * (number % 3)}{noun}/NOUN {verb}/VERB"


def recipe(folder, encoder, head="softmax"):
    conll(folder / "train.conll", *map(sentence, range(24)))
    conll(folder / "dev.conll", *map(sentence, range(24, 36)), "the/DET cat/VERB sat/VERB")
    (folder / "pos.yaml").write_text(
        f"task: {{name: token-classification, scheme: none, head: {head}}}\n"
        f"model: {{name: {encoder}, max_length: 24}}\n"
        "data: {source: {train: train.conll, validation: dev.conll}}\n"
        "training: {num_train_epochs: 12, per_device_train_batch_size: 4, learning_rate: 1e-2, "
        "eval_strategy: no,"
        " save_strategy: no}\n"
        "verify: false\nexplain: false\n"
    )
    return folder / "pos.yaml"


@pytest.mark.parametrize("head", ["softmax", "crf"])
def test_parts_of_speech_are_learned_scored_and_shown(head, tiny_encoder, tmp_path, capsys):
    run = train(load_recipe(recipe(tmp_path, tiny_encoder, head)), tmp_path / "run")
    results = read_json(run.folder / "results.json")
    scores = results["splits"]["validation"]
    baseline = results["baselines"]["validation"]["lookup"]
    words = sum(len(sentence(number).split()) for number in range(24, 36)) + 3
    assert results["headline"] == "accuracy"
    assert results["task"]["description"] == f"{head}, 4 labels: ADJ, DET, NOUN, VERB"
    assert scores["metrics"]["accuracy"] == baseline["accuracy"] == pytest.approx(1 - 1 / words)
    assert scores["metrics"]["support/VERB"] == 14
    low, high = scores["intervals"]["f1_macro"]
    assert low < scores["metrics"]["f1_macro"] <= high
    assert sum(map(sum, scores["confusion"]["matrix"])) == scores["calibration"]["decisions"] == words
    text = "the  good dog \x7f ran"
    answer = run.load()(text)
    assert [text[word["start"] : word["end"]] for word in answer["words"]] == text.split()
    assert [word["word"] for word in answer["words"]] == text.split()
    assert [word["tag"] for word in answer["words"]] == ["DET", "ADJ", "NOUN", "", "VERB"]
    assert answer["words"][3]["score"] == 0.0
    assert answer.keys() == {"words", "truncated", "empty", "unreadable"}
    assert answer_line(answer) == "the/DET good/ADJ dog/NOUN \x7f/ ran/VERB"
    facts = read_facts(run.folder)
    (missed,) = (found for n, row in enumerate(facts.rows, 1) if (found := sentence_mistake(facts, n, row)))
    assert (missed.row, missed.gold, missed.answer) == (13, "VERB cat", "NOUN cat")
    assert missed.measure == facts.rows[12]["answer"]["words"][1]["score"]
    page, card = ((run.folder / name).read_text() for name in ("report.html", "model/README.md"))
    assert "Entities by kind of error" not in page
    assert "aggregation_strategy" not in card
    assert json.loads(said(capsys, "evaluate", run.folder, "--json"))["metrics"] == scores["metrics"]


def test_a_foreign_tagger_answers_as_the_pipeline_does(tiny_encoder, tmp_path):
    labels = "NOUN VERB DET PUNCT".split()
    torch.manual_seed(1)
    model = AutoModelForTokenClassification.from_pretrained(tiny_encoder, id2label=dict(enumerate(labels)))
    torch.nn.init.normal_(model.classifier.weight, std=2.0)
    model.save_pretrained(tmp_path)
    load_tokenizer(tiny_encoder).save_pretrained(tmp_path)
    predictor = bertkit.load(tmp_path, task="token-classification", precision="fp32")
    text = "the cat was catty , very good and sat on a mat"
    found = predictor(text)["words"]
    given = pipeline("token-classification", model=str(tmp_path), aggregation_strategy="none")(text)
    first = {token["start"]: token for token in given}
    assert [word["tag"] for word in found] == [first[word["start"]]["entity"] for word in found]
    assert [word["score"] for word in found] == pytest.approx(
        [first[w["start"]]["score"] for w in found], rel=1e-5
    )
    assert len({word["tag"] for word in found}) > 1
    conll(tmp_path / "dev.conll", "the/DET cat/NOUN", "ran/VERB")
    scores = bertkit.evaluate(tmp_path, data=tmp_path / "dev.conll", task="token-classification")
    assert {"accuracy", "f1_macro", "f1/DET"} <= scores["metrics"].keys()


def test_class_labels_of_io_may_have_dashes(tmp_path):
    tags = List(ClassLabel(names=["O", "art-film", "art-other"]))
    features = Features({"tokens": List(Value("string")), "tags": tags})
    file = tmp_path / "t.parquet"
    Dataset.from_dict({"tokens": [["a", "b"]], "tags": [[1, 0]]}, features=features).to_parquet(file)
    data = read(file, data_scheme="IO")
    options = TokenClassificationOptions(name="token-classification", data_scheme="IO")
    settled = TokenClassification.infer_options(options, data.rows["train"], data.class_names)
    assert settled["labels"] == ["art-film"]
