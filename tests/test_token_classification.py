"""Named entities from files to answers: nothing lost, nothing shifted, and Hugging Face reads what is
saved.
"""

import copy
import dataclasses
import json
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import small
import steps
import torch
import transformers
from cases import BY_ID, NER, encoder
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from safetensors.torch import load_file, save_file
from seqeval.metrics.sequence_labeling import get_entities
from small import message_of, raises, read_as, read_rows, write_rows
from small import read_data as load_data
from test_task_contract import ask, opened
from torch import nn
from torch.nn import functional as F

import bertkit
from bertkit.data.checks import check
from bertkit.data.tagging import entities, from_bio, invalid, tag_names
from bertkit.data.units import sentences, text_of, words_of
from bertkit.data.word_spans import spans_to_tags, words
from bertkit.encoding.padding import Collator
from bertkit.errors import DataError, ModelError
from bertkit.files import read_json
from bertkit.models.encoder import load_tokenizer
from bertkit.models.heads import crf, posteriors
from bertkit.models.heads.tagger import Emissions, decode_tags, gold_posteriors
from bertkit.recipe.recipe import load_recipe
from bertkit.report.mistakes import sentence_mistake
from bertkit.report.verdict import score_findings
from bertkit.sections import DataSpec
from bertkit.tasks.base import calibrate, prepare
from bertkit.tasks.token_classification import TokenClassification, TokenClassificationOptions
from bertkit.training.train import train

NAMES = ("cat", "dog")
ADJECTIVES = ("good", "bad")


def sentence(number):
    """Words and tags that a small model can learn: animals, and adjectives of one or two words."""
    tokens = ["the", NAMES[number % 2], "was"] + (["very"] if number % 3 else []) + [ADJECTIVES[number % 2]]
    tags = ["O", "B-ANIMAL", "O"] + (["B-SENSE", "I-SENSE"] if number % 3 else ["B-SENSE"])
    tail = "and it sat on the mat".split() * (number % 4)
    return tokens + tail, tags + ["O"] * len(tail)


def write_conll(path, numbers):
    lines = []
    for number in numbers:
        lines += [f"{token}\t{tag}" for token, tag in zip(*sentence(number), strict=True)] + [""]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_recipe(folder, encoder, head="crf"):
    write_conll(folder / "train.conll", range(24))
    write_conll(folder / "dev.conll", range(24, 36))
    file = folder / "ner.yaml"
    file.write_text(
        f"task: {{name: token-classification, head: {head}}}\n"
        f"model: {{name: {encoder}, max_length: 24}}\n"
        "data: {source: {train: train.conll, validation: dev.conll}}\n"
        "training: {num_train_epochs: 12, per_device_train_batch_size: 4, learning_rate: 1e-2, "
        "eval_strategy: no,"
        " save_strategy: no}\n"
        "verify: false\nexplain: false\n",
    )
    return file


@pytest.fixture(scope="module", params=["softmax", "crf"])
def run(request, tiny_encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return train(load_recipe(write_recipe(folder, tiny_encoder, request.param)), folder / "run")


def get(source, columns=None, **options):
    return read_as({**NER, **options}, {"train": source}, columns=columns or {})


# --- data


def test_every_scheme_is_read_as_bio_and_others_are_refused(tmp_path):
    expected = "B-X I-X B-X O B-Y".split()
    for name, tags in (
        ("iob1", "I-X I-X B-X O I-Y"),
        ("bio", "B-X I-X B-X O B-Y"),
        ("bioes", "B-X E-X S-X O S-Y"),
    ):
        path = tmp_path / f"{name}.conll"
        path.write_text("".join(f"w{i} {tag}\n" for i, tag in enumerate(tags.split())))
        data = get(path)
        assert data.rows["train"]["tags"][0] == expected
        notes = [f.what for f in data.findings]
        assert (f"train: its tags are {name.upper()}; read as BIO" in notes) == (name != "bio")
    (tmp_path / "bad.conll").write_text("a O\n\nb O\nc Q-X\n")
    raises(DataError, r"bad\.conll:1: .*tags without prefixes.*O, Q-X", get, tmp_path / "bad.conll")


def test_the_notes_count_entities_as_seqeval_and_rows_only_where_there_are_few(tmp_path):
    tags = ["B-PER I-PER B-PER O".split(), ["O"], "B-LOC O B-PER B-LOC".split()]
    rows = [{"tokens": ["word"] * len(row), "tags": row} for row in tags]
    found = [finding.what for finding in check(get(write_rows(tmp_path / "a.jsonl", rows)))]
    kinds = Counter(kind for kind, _, _ in get_entities(tags))
    assert kinds == {"PER": 3, "LOC": 2}
    assert "train: 5 entities: PER 3 (60.0%), LOC 2 (40.0%)" in found
    assert "train: labels with fewer than 10 rows: LOC 1, PER 2" in found
    found = [finding.what for finding in check(get(write_rows(tmp_path / "b.jsonl", rows[1:2])))]
    assert "train: no labels" in found


def test_an_entity_that_begins_with_i_is_counted_and_kept(tmp_path):
    path = tmp_path / "wild.conll"
    path.write_text("a B-X\nb O\n\nc O\nd I-X\n\ne B-Y\nf I-X\n")
    data = get(path)
    assert data.rows["train"]["tags"][:] == [["B-X", "O"], ["O", "B-X"], ["B-Y", "B-X"]]
    (finding,) = [f for f in data.findings if f.level == "warn"]
    assert "2 sentences" in finding.what
    assert "wild.conll:4" in finding.what


def test_spans_that_cut_words_are_told_with_the_setting_that_moves_them(tmp_path):
    cut = {"text": "Ada Brixton", "spans": [[5, 8, "X"]]}
    path = write_rows(tmp_path / "spans.jsonl", [cut] * 30)
    message = message_of(DataError, lambda: get(path, words="words"))
    assert message.count("cuts a word") == 20
    assert "spans.jsonl:1" in message
    assert message.count("alignment: expand") == 1
    longer = write_rows(
        tmp_path / "spans.jsonl",
        [{"text": "Brixtonians sing loudly", "spans": [{"start": 0, "end": 14, "label": "X"}]}],
    )
    assert get(longer, alignment="expand").rows["train"]["tags"][0] == ["B-X", "I-X", "O"]
    assert get(longer, alignment="contract").rows["train"]["tags"][0] == ["B-X", "O", "O"]
    assert "alignment" not in message_of(
        DataError, get, write_rows(tmp_path / "spans.jsonl", [{"text": "Ada", "spans": [[0, 9, "X"]]}])
    )


def test_spans_are_of_the_text_of_tokens_and_nothing_is_asked_of_rows_without_either(tmp_path):
    rows = get(write_rows(tmp_path / "spans.jsonl", [{"tokens": ["a", "b"], "spans": [[2, 3, "X"]]}])).rows
    assert rows["train"][0] == {
        "text": "a b",
        "spans": [{"start": 2, "end": 3, "label": "X"}],
        "tags": ["O", "B-X"],
    }
    path = write_rows(tmp_path / "plain.jsonl", [{"tokens": ["a", "b"]}])
    data = read_as(NER, {"test": path}, splits={"test"})
    assert data.rows["test"].column_names == ["tokens"]


def test_documents_of_two_files_are_two_documents_and_drawing_rows_from_them_is_reported(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.conll").write_text("-DOCSTART- O\n\nAda B-X\n\nran O\n")
    task = TokenClassificationOptions(name="token-classification", context="document")
    spec = DataSpec(source={"train": [f"{tmp_path}/a.conll", f"{tmp_path}/b.conll"]})
    names = load_data(spec, TokenClassification, task).rows["train"]["document"][:]
    assert names[0] == names[1] != names[2] == names[3]
    (tmp_path / "a.conll").write_text("-DOCSTART- O\n\n" + "Ada B-X\n\nran O\n\n" * 10)
    for context, told in (("sentence", 0), ("document", 1)):
        own = {**NER, "context": context}
        findings = read_as(own, {"train": tmp_path / "a.conll"}, limit=5).findings
        assert sum("documents lose sentences" in finding.what for finding in findings) == told


def test_a_chain_learns_faster_and_does_not_decay(tiny_encoder, tmp_path):
    args = steps.arguments(tmp_path, 4, 1, learning_rate=1e-3, weight_decay=0.1)
    trainer = steps.made(BY_ID["ner-crf"], tiny_encoder, args)
    groups = [(group, p) for group in trainer.create_optimizer().param_groups for p in group["params"]]
    found = {p: (group["lr"], group["weight_decay"]) for group, p in groups}
    names = {p: name for name, p in trainer.model.named_parameters()}
    assert len(groups) == len(found)
    assert found.keys() == names.keys()
    chain = [found.pop(p) for p, name in names.items() if "crf" in name.split(".")]
    assert chain == [(pytest.approx(0.1), 0.0)] * 3
    assert set(found.values()) == {(1e-3, 0.1), (1e-3, 0.0)}


def test_a_chain_within_an_adapted_head_of_several_tasks_learns_faster(tiny_encoder, tmp_path):
    """LoRA puts modules between the names that a task knows; the other task's chain has a rate of its own."""
    args = steps.arguments(tmp_path, 4, 1, learning_rate=1e-3)
    trainer = steps.made(BY_ID["ner-crf"], tiny_encoder, args)
    heads = {name: nn.ModuleDict({"adapted": copy.deepcopy(trainer.model)}) for name in ("entities", "other")}
    trainer.model = nn.ModuleDict({"heads": nn.ModuleDict(heads)})
    trainer.learner = SimpleNamespace(learning_rate_factors={"heads.entities.crf": 30.0})
    rates = {p: group["lr"] for group in trainer.create_optimizer().param_groups for p in group["params"]}
    fast = [name for name, p in trainer.model.named_parameters() if rates[p] != 1e-3]
    assert len(fast) == 3
    assert all(name.startswith("heads.entities.adapted.crf.") for name in fast)
    assert max(rates.values()) == pytest.approx(3e-2)


def test_rows_without_words_do_not_stop_training(tiny_encoder, tmp_path):
    rows = [{"text": "", "spans": []}] * 8 + [{"text": "the cat", "spans": [[4, 7, "X"]]}] * 8
    write_rows(tmp_path / "rows.jsonl", rows)
    for head in ("softmax", "crf"):
        (tmp_path / "r.yaml").write_text(
            f"task: {{name: token-classification, head: {head}}}\nmodel: {{name: {tiny_encoder}, "
            f"max_length: 24}}\n"
            "data: {source: {train: rows.jsonl}}\nverify: false\nexplain: false\n"
            "training: {num_train_epochs: 1, per_device_train_batch_size: 8, logging_steps: 1, "
            "learning_rate: 1e-2}\n"
        )
        run = train(load_recipe(tmp_path / "r.yaml"), tmp_path / head)
        events = read_rows(run.folder / "metrics.jsonl")
        empty, full = sorted(event["loss"] for event in events if "loss" in event)
        assert empty == 0.0  # a step without any word
        assert 0 < full < math.inf
        assert all(weight.isfinite().all() for weight in load_file(run.model / "model.safetensors").values())
        silent, spoken = run.load()(["", "the cat"])
        assert (silent["words"], silent["entities"]) == ([], [])
        assert [word["word"] for word in spoken["words"]] == ["the", "cat"]


@pytest.mark.parametrize("name", ["spans", "entities"])
def test_missing_spans_are_named_as_the_column_is(name, tmp_path):
    mapped = {} if name == "spans" else {"spans": name}
    path = write_rows(
        tmp_path / "spans.jsonl", [{"text": "Ada", name: [[0, 3, "PER"]]}, {"text": "Bo", name: None}]
    )
    raises(DataError, f"1 of 2 rows of train has no `{name}`: .*spans.jsonl:2", get, path, columns=mapped)


def test_spans_become_tags_and_what_was_done_is_reported(tmp_path):
    text = "Ada Brixton went to Lower Brin."
    spans = [[0, 12, "PER"], [20, 26, "LOC"], [20, 30, "LOC"], [3, 3, "PER"]]
    data = get(write_rows(tmp_path / "spans.jsonl", [{"text": text, "spans": spans}]))
    assert data.rows["train"]["tags"][0] == "B-PER I-PER O O B-LOC I-LOC O".split()
    trimmed = [(0, 11, "PER"), (20, 25, "LOC"), (20, 30, "LOC")]
    assert [tuple(each.values()) for each in data.rows["train"]["spans"][0]] == trimmed
    told = " ".join(finding.what for finding in data.findings)
    assert "2 spans with outer spaces or format characters, which were removed" in told
    assert "1 span that shared a word with a longer one" in told
    assert "1 span without a word, left out" in told
    assert all(finding.fix for finding in data.findings if finding.level == "warn")


def test_types_of_which_nothing_is_left_are_named(tmp_path):
    rows = [{"text": "김철수는서울에", "spans": [[0, 3, "PER"], [4, 6, "LOC"]]}] * 3
    path = write_rows(tmp_path / "spans.jsonl", rows)
    (lost,) = [f.what for f in get(path, alignment="expand").findings if f.level == "severe"]
    assert lost.startswith("train: types of which no span is left: LOC 3; scores")
    raises(DataError, "with contract, none of the 6 spans of train is left", get, path, alignment="contract")


@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
@pytest.mark.parametrize("alignment", ["expand", "contract", "strict"])
def test_scores_are_against_the_spans_as_given(alignment, scheme):
    """Sets of characters are compared, whatever was moved or dropped for training; seqeval's where nothing
    was.
    """
    types = ["A", "B"]
    moved = 0
    for case in range(150):
        rng = default_rng(case)
        texts = ["".join(rng.choice(list("ab c-"), rng.integers(1, 12))) for _ in range(4)]
        spans = []
        for text in texts:
            if alignment == "strict":  # whole words, which may share some
                ends = [(a, b) for a, _ in words(text) for _, b in words(text) if a < b]
            else:
                ends = [
                    (a, b) for a in range(len(text)) for b in range(a + 1, len(text) + 1) if text[a:b].strip()
                ]
            chosen = rng.permutation(ends)[: rng.integers(0, 4)].tolist() if ends else []
            spans.append([{"start": a, "end": b, "label": str(rng.choice(types))} for a, b in chosen])
        aligned = [spans_to_tags(*pair, alignment) for pair in zip(texts, spans, strict=True)]
        columns = {
            "text": texts,
            "tags": [each.tags for each in aligned],
            "spans": [each.spans for each in aligned],
        }
        answers = []
        right = [0, 0, 0]
        for text, own, each in zip(texts, spans, aligned, strict=True):
            learned = from_bio(each.tags, scheme)
            tags = [rng.choice(tag_names(types, scheme)) if rng.random() < 0.2 else tag for tag in learned]
            places = words(text)
            borders = [(kind, places[first][0], places[end - 1][1]) for kind, first, end in entities(tags)]
            found = [{"label": kind, "start": a, "end": b, "score": 0.5} for kind, a, b in borders]
            of_words = [{"tag": t, "start": a, "end": b} for t, (a, b) in zip(tags, places, strict=True)]
            answers.append({"words": of_words, "entities": found})
            stripped = [(s["label"], text[s["start"] : s["end"]], s["start"], s["end"]) for s in own]
            gold = {(k, b - len(t.lstrip()), a + len(t.rstrip())) for k, t, a, b in stripped}
            right = [
                a + b for a, b in zip(right, (len(gold & {*borders}), len(borders), len(gold)), strict=True)
            ]
            moved += gold != {(k, places[a][0], places[b - 1][1]) for k, a, b in entities(each.tags)}
        options = TokenClassificationOptions(name="token-classification", scheme=scheme, labels=types)
        rows = Dataset.from_dict(columns)
        graded = TokenClassification(options, None, 16).grade(answers, rows)
        expected = [right[0] / right[1] if right[1] else 0.0, right[0] / right[2] if right[2] else 0.0]
        if right[1] + right[2]:
            assert [graded.scores["precision"], graded.scores["recall"]] == expected
        assert sum(graded.scores[f"support/{name}"] for name in types) == right[2]
        errors = graded.errors()
        assert (errors["correct"], sum(errors.values()) - errors["spurious"]) == (right[0], right[2])
        assert sum(graded.decisions().get("after", [(), ()])[1]) == right[0]
        aside = {name: values for name, values in columns.items() if name != "spans"}
        if all(
            not any(each.counts[name] for name in ("misaligned", "lost", "overlapping")) for each in aligned
        ):
            of_tags = TokenClassification(options, None, 16).grade(answers, Dataset.from_dict(aside))  # type: ignore
            assert of_tags.scores == graded.scores
    assert moved > 50


def test_a_type_that_only_the_given_spans_have_is_scored():
    columns = {
        "text": ["삼삼거북경"],
        "tags": [["B-PER"]],
        "spans": [[{"start": 3, "end": 5, "label": "LOC"}]],
    }
    options = TokenClassificationOptions(name="token-classification", labels=["PER"])
    task = TokenClassification(options, None, 16)
    whole = {"start": 0, "end": 5, "score": 0.9}
    answer = {"words": [{"tag": "B-PER", **whole}], "entities": [{"label": "PER", **whole}]}
    graded = task.grade([answer], Dataset.from_dict(columns))
    assert [graded.scores[name] for name in "f1 f1/LOC support/LOC support/PER".split()] == [0, 0, 1, 0]
    assert graded.errors() | {"both": 1, "spurious": 0} == graded.errors()
    (baseline,) = task.baselines(Dataset.from_dict(columns), Dataset.from_dict(columns)).values()
    assert (baseline["f1"], baseline["accuracy"]) == (0.0, 1.0)
    row = {**{name: values[0] for name, values in columns.items()}, "answer": answer}
    row["answer"]["words"][0]["word"] = row["text"]
    wrong = sentence_mistake(SimpleNamespace(options={"scheme": "BIO"}), 1, row)
    assert (wrong.gold, wrong.answer) == ("LOC 북경", "PER 삼삼거북경")
    assert [span.mark for line in wrong.lines for span in line[1]] == ["missed", "", "wrong", ""]


# --- windows, chains, answers


def made(head, folder, max_length=16, **options):
    rows = Dataset.from_dict({"tokens": [sentence(0)[0]], "tags": [sentence(0)[1]]})
    given = {"name": "token-classification", "head": head, "stride": 4, **options}
    task = prepare(
        TokenClassification,
        TokenClassificationOptions.model_validate(given),
        load_tokenizer(folder),
        max_length,
        rows,
        [],
    )
    torch.manual_seed(3)
    model = task.model(encoder(folder))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "crf" in name or "classifier" in name:
                parameter.normal_()
    return task, model.eval()


@pytest.mark.parametrize("head", ["softmax", "crf"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.one_of(
            st.text(max_size=80),
            st.lists(
                st.sampled_from(["cat", "", " ", "\u200b", "🏳️‍🌈", "x" * 30, "\x00", "new york", "É"]),
                max_size=30,
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_word_gets_a_tag_whatever_the_input(head, rows, tiny_encoder):
    task, model = made(head, tiny_encoder)
    for row in rows:
        given_row = {"text": row} if isinstance(row, str) else {"tokens": row}
        answer = ask(task, model)(given_row)
        expected = words_of(Dataset.from_dict({k: [v] for k, v in given_row.items()}), task.unit)[0]
        assert [word["word"] for word in answer["words"]] == expected
        tags = [word["tag"] for word in answer["words"]]
        assert [(e["label"]) for e in answer["entities"]] == [kind for kind, _, _ in entities(tags)]
        assert all(0 <= word["score"] <= 1 for word in [*answer["words"], *answer["entities"]])
        text = text_of(given_row)
        assert all(text[e["start"] : e["end"]] == e["text"] for e in answer["entities"])
        if head == "crf":
            assert invalid(tags) == 0


def test_one_chain_runs_over_all_windows(tiny_encoder):
    """Viterbi by hand over the scores of all words, as if there were no windows."""
    task, model = made("crf", tiny_encoder)
    rows = Dataset.from_dict({"tokens": ["the cat was very bad".split() * 12]})
    features = task.encode(rows)
    assert len(features) > 3
    predictor = ask(task, model)
    kept = predictor.predict_features(features)
    scores = np.concatenate([window.scores for window in kept])
    assert scores.shape[0] == 60
    chain = crf.constrain(model.crf(), task.tags)
    best = posteriors.decode(scores[None], np.array([60]), [part.detach().numpy() for part in chain])[0]
    answer = predictor({"tokens": rows[0]["tokens"]})
    assert [word["tag"] for word in answer["words"]] == [task.tags[i] for i in best.tolist()]


def test_a_softmax_takes_each_words_best_tag(tiny_encoder):
    task, model = made("softmax", tiny_encoder)
    text = "the cat was very bad"
    answer = ask(task, model)(text)
    inputs = task.tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        table = model(**inputs).logits[0, 1:-1].softmax(-1)
    assert [word["tag"] for word in answer["words"]] == [task.tags[i] for i in table.argmax(-1).tolist()]
    assert [word["score"] for word in answer["words"]] == pytest.approx(table.amax(-1).tolist(), rel=1e-5)


def test_a_flawless_validation_makes_no_answer_surer_than_its_size_supports(tiny_encoder):
    task, model = made("crf", tiny_encoder)

    def sure(features):
        found = ask(task, model).predict_features(features)
        return [Emissions(5 * each.scores, tuple(5 * part for part in each.chain or ())) for each in found]

    tokens = ["the cat was very bad".split() * 3, ["good", "dog"], "it sat on the mat".split()]
    answers = task.answer(Dataset.from_dict({"tokens": tokens}), sure)
    tags = [[word["tag"] for word in answer["words"]] for answer in answers]
    rows = Dataset.from_dict({"tokens": tokens, "tags": tags})
    fitted = calibrate(task, rows, sure)
    found = list(fitted.answer(rows, sure))
    scores = [word["score"] for answer in found for word in answer["words"]]
    assert 0.8 < np.mean(scores) < 23 / 24
    assert [[word["tag"] for word in answer["words"]] for answer in found] == tags
    calibration = fitted.grade(found, rows).details()["calibration"]
    assert (calibration["decisions"], calibration["errors"]) == (22, 0)
    wrong = Dataset.from_dict({"tokens": tokens, "tags": [*tags[:2], [*tags[2][:4], "B-ANIMAL"]]})
    assert fitted.grade(found, wrong).details()["calibration"]["errors"] == (tags[2][4] != "B-ANIMAL")


def test_context_changes_scores_and_never_the_words(tiny_encoder):
    task, model = made("softmax", tiny_encoder, context="sentence")
    rows = [{"tokens": ["cat"], "document": "1"}, {"tokens": ["was", "bad"], "document": "1"}]
    alone = ask(task, model)(rows)
    options = task.options.model_copy(update={"context": "document"})
    around = ask(TokenClassification(options, task.tokenizer, 16), model)(rows)
    assert [[w["word"] for w in a["words"]] for a in alone] == [
        [w["word"] for w in a["words"]] for a in around
    ]
    assert alone[0]["words"][0]["score"] != around[0]["words"][0]["score"]
    unknown = [{**rows[0], "document": "1"}, {**rows[1], "document": "2"}]
    apart = ask(TokenClassification(options, task.tokenizer, 16), model)(unknown)
    assert apart[0]["words"][0]["score"] == pytest.approx(alone[0]["words"][0]["score"], rel=1e-5)


def test_words_without_pieces_do_not_tear_an_entity_in_training(tiny_encoder):
    task, _ = made("crf", tiny_encoder)
    tokens = "very \u200b bad \u200b bad".split()
    tags = "B-SENSE I-SENSE I-SENSE B-SENSE I-SENSE".split()
    features = task.encode(Dataset.from_dict({"tokens": [tokens], "tags": [tags]}))
    assert [task.tags[i] for i in features["labels"][0]] == ["B-SENSE", "I-SENSE", "B-SENSE"]
    assert features["mute"][0] == 2


def test_a_word_without_pieces_is_o_and_changes_no_other_tag(tiny_encoder):
    """The chain goes on across it, as in training; an entity around it is parted, and keeps type and
    score.
    """
    for scheme in ("BIO", "BIOES"):
        task, model = made("crf", tiny_encoder, max_length=64, scheme=scheme)
        predict = ask(task, model)
        rng = default_rng(0)
        seen = 0
        for _ in range(40):
            words = rng.choice("cat dog very bad the was".split(), size=8).tolist()
            plain = predict({"tokens": words})
            gap = int(rng.integers(1, 8))
            torn = predict({"tokens": [*words[:gap], "\u200b", *words[gap:]]})
            tags = [word["tag"] for word in torn["words"]]
            assert tags[gap] == "O"
            assert invalid(tags, scheme) == 0
            kinds = [word["tag"][2:] for word in plain["words"]]
            assert [tag[2:] for i, tag in enumerate(tags) if i != gap] == kinds
            scores = [word["score"] for i, word in enumerate(torn["words"]) if i != gap]
            assert scores == pytest.approx([word["score"] for word in plain["words"]], rel=1e-4, abs=1e-5)
            inside = [e for e in plain["entities"] if e["start"] < len(" ".join(words[:gap])) < e["end"]]
            assert len(torn["entities"]) == len(plain["entities"]) + len(inside)
            seen += len(inside)
        assert seen > 3


# --- runs


def test_a_validation_without_entities_is_told_and_keeps_the_last_checkpoint(tiny_encoder, tmp_path, caplog):
    file = write_recipe(tmp_path, tiny_encoder, "softmax")
    (tmp_path / "dev.conll").write_text("the O\ncat O\nwas O\nvery O\ngood O\n")
    more = ["training.eval_strategy=epoch", "training.save_strategy=epoch", "training.num_train_epochs=3"]
    with caplog.at_level("WARNING", "bertkit"):
        run = train(load_recipe(file, more), tmp_path / "run")
    assert "validation: no row has an entity; some of its scores" in caplog.text
    (seed,) = run.results["seeds"]
    assert (seed["best_step"], seed["undecided"]["evaluations"]) == (seed["steps"], 3)
    (told,) = [each for each in score_findings(run.results) if "checkpoint" in each.what]
    assert told.what.endswith("of 3 evaluations: it selects no checkpoint; the last is kept")


def test_a_run_learns(run):
    results = run.results
    assert results["headline"] == "f1"
    assert results["splits"]["validation"]["metrics"]["f1"] > 0.9
    assert results["baselines"]["validation"]["lookup"]["f1"] is not None
    assert set(results["splits"]["validation"]["errors"]) >= {"correct", "boundary", "missed", "spurious"}


def test_plain_transformers_loads_it_without_a_warning(run, capfd):
    model = opened(transformers.AutoModelForTokenClassification, run.model, capfd)
    pipe = transformers.pipeline("token-classification", model=str(run.model), aggregation_strategy="simple")
    assert {entity["entity_group"] for entity in pipe("the cat was very bad")} <= {"ANIMAL", "SENSE"}
    assert pipe.tokenizer.split_special_tokens  # special tokens in a text are text there too
    assert type(model).__name__ == "BertForTokenClassification"
    assert read_json(run.model / "config.json")["architectures"] == ["BertForTokenClassification"]


def test_the_crf_travels_beside_the_model(run):
    section = read_json(run.model / "config.json")["bertkit"]
    if section["task"]["head"] == "softmax":
        assert section["extra_weights"] == {}
        return
    assert section["extra_weights"] == {"crf": "crf.safetensors"}
    file = run.model / "crf.safetensors"
    weights = load_file(file)
    assert float(weights["transitions"].abs().max()) > 0.05  # it has learned something
    assert not any("crf" in name for name in load_file(run.model / "model.safetensors"))
    whole = file.read_bytes()
    for broken in (None, whole[:40]):
        file.unlink(missing_ok=True) if broken is None else file.write_bytes(broken)
        raises(ModelError, r"crf\.safetensors", run.load)
    save_file({name: tensor[:1].clone() for name, tensor in weights.items()}, file)
    raises(ModelError, r"crf\.safetensors", run.load)
    file.write_bytes(whole)
    assert run.load()("the cat")["entities"]


def test_predict_reads_conll_and_writes_csv(run, tmp_path, capsys):
    write_conll(tmp_path / "new.conll", range(3))
    arguments = ("predict", run.folder, "--input", tmp_path / "new.conll", "--output")
    small.said(capsys, *arguments, tmp_path / "out.jsonl")
    answers = [line["answer"] for line in read_rows(tmp_path / "out.jsonl")]
    assert answers == run.load()([{"tokens": sentence(n)[0]} for n in range(3)])
    small.said(capsys, *arguments, tmp_path / "out.csv")
    assert "answer.entities" in (tmp_path / "out.csv").read_text().splitlines()[0]
    assert "ANIMAL cat (" in small.said(capsys, "predict", run.folder, "the cat was very bad")


def test_a_foreign_model_answers_with_its_own_tags(tiny_encoder, tmp_path):
    tags = ["I-LOC", "O", "B-LOC"]
    kind = transformers.AutoModelForTokenClassification
    model = kind.from_pretrained(tiny_encoder, num_labels=3, id2label=dict(enumerate(tags)))
    model.save_pretrained(tmp_path)
    load_tokenizer(tiny_encoder).save_pretrained(tmp_path)
    predictor = bertkit.load(tmp_path, task="token-classification")
    assert predictor.task.tags == tags
    assert {word["tag"] for word in predictor("the cat was bad")["words"]} <= set(tags)
    (tmp_path / "dev.conll").write_text("the O\ncat B-LOC\n")
    assert bertkit.evaluate(tmp_path, data=tmp_path / "dev.conll", task="token-classification")["rows"] == 1
    for wrong, said in (("I-A I-B I-C", "lack O"), ("O B-A X", "not tags such as")):
        model.config.id2label = dict(enumerate(wrong.split()))
        model.save_pretrained(tmp_path)
        raises(ModelError, said, bertkit.load, tmp_path, task="token-classification")


def test_lora_trains_and_saves_the_chain(tiny_encoder, tmp_path):
    recipe = load_recipe(write_recipe(tmp_path, tiny_encoder), ["peft={}", "training.num_train_epochs=3"])
    run = train(recipe, tmp_path / "run")
    adapter = load_file(run.folder / "adapter/adapter_model.safetensors")
    assert any("crf" in name for name in adapter)
    beside = load_file(run.model / "crf.safetensors")
    saved = next(tensor for name, tensor in adapter.items() if name.endswith("crf.transitions"))
    assert torch.equal(beside["transitions"], saved)
    assert float(saved.abs().max()) > 0


def test_contradictions_are_refused(tiny_encoder, tmp_path):
    file = write_recipe(tmp_path, tiny_encoder)
    for override, message in (
        ("task.context=document", "needs to know which sentences belong together"),
        ("task.labels=[ANIMAL]", r"task\.labels lacks: SENSE"),
    ):
        raises(bertkit.UserError, message, train, load_recipe(file, [override]), tmp_path / "run")
    assert not (tmp_path / "run/recipe.yaml").exists()
    for override, message in (
        ("training.label_smoothing_factor=0.1", r"label_smoothing_factor: has no effect with task\.head crf"),
        ("task.tags=[O, O, B-ANIMAL, I-ANIMAL]", "O more than once"),
        ("task.tags=[B-ANIMAL, I-ANIMAL]", "tags must be O and BIO tags"),
        ("task.labels=[ANIMAL, ANIMAL]", "there 2 times|more than once"),
    ):
        raises(bertkit.UserError, message, load_recipe, file, [override])
    (tmp_path / "train.conll").write_text("the B-O\ncat B-ANIMAL\n")
    recipe = load_recipe(file, ["~data.source.validation"])
    raises(bertkit.UserError, "'O' cannot be an entity type", train, recipe, tmp_path / "run")


def test_words_in_a_frame_are_read_and_a_crf_of_nan_is_refused(tiny_encoder):
    task, model = made("crf", tiny_encoder)
    rows = [{"tokens": ["the", "cat"]}, {"tokens": ["dog"]}]
    frame = pandas.DataFrame(rows)
    assert ask(task, model)(frame) == ask(task, model)(rows)
    table = ask(task, model).frame(frame)
    assert [json.loads(cell) for cell in table["entities"]] == [
        answer["entities"] for answer in ask(task, model)(rows)
    ]
    with torch.no_grad():
        model.crf.transitions.fill_(float("nan"))
    raises(ModelError, "its CRF contains NaN or infinity", ask(task, model), "the cat")
    words = Dataset.from_dict({"tokens": [["cat"]]})
    emissions = np.full((1, len(task.tags)), np.nan, np.float32)
    raises(
        ModelError,
        "NaN or infinite for 1 of 1 rows",
        task.decode,
        [Emissions(emissions, None)],
        task.encode(words),
        words,
    )


def test_tokens_stand_where_blanks_join_them():
    texts, places = sentences(Dataset.from_dict({"tokens": [["a", "", "new york"], []]}))
    assert texts == ["a  new york", ""]
    assert places == [[(0, 1), (2, 2), (3, 11)], []]


def test_lists_that_pandas_wrote_as_text_name_the_format_to_use(tmp_path):
    path = tmp_path / "t.csv"
    pandas.DataFrame({"tokens": [["EU", "rejects"]], "tags": [["B-ORG", "O"]]}).to_csv(path, index=False)
    assert "write JSON lists in jsonl" in message_of(DataError, read_as, NER, path)


def read_by_a_model(case, folder, **more):
    """A task of this case, its first batch, and what a model says of it."""
    task = dataclasses.replace(case, options={**case.options, **more}).task(folder)
    features = task.features(case.rows())
    batch = Collator.of(task.tokenizer, task.padding)(task.examples(features, range(len(features))))
    torch.manual_seed(0)
    model = task.model(encoder(folder)).eval()
    small.stir(model.parameters())
    with torch.no_grad():
        return task, batch, task.forward(model, batch)


def test_class_weights_are_those_of_torch_and_twice_as_high_double_a_chain(tiny_encoder):
    task, batch, outputs = read_by_a_model(BY_ID["ner-document"], tiny_encoder)  # ANIMAL: 2
    words, labels = task.loss_inputs(outputs, batch)
    weight = torch.tensor([2.0 if tag.endswith("ANIMAL") else 1.0 for tag in task.tags])
    expected = F.cross_entropy(words.logits.flatten(0, -2), labels.flatten(), weight).item()
    assert task.loss(outputs, batch).item() / task.count(batch) == pytest.approx(expected, rel=1e-5)
    case = BY_ID["ner-crf"]
    plain, batch, outputs = read_by_a_model(case, tiny_encoder)
    twice = dict.fromkeys(("O", "ANIMAL", "SENSE"), 2.0)
    double = dataclasses.replace(case, options={**case.options, "class_weights": twice}).task(tiny_encoder)
    assert double.loss(outputs, batch).item() == pytest.approx(
        2 * plain.loss(outputs, batch).item(), rel=1e-5
    )
    assert double.count(batch) == 2 * plain.count(batch)


def test_an_entity_of_independent_words_has_the_probability_of_its_tags_and_of_its_end():
    tags = "O B-X I-X".split()
    table = np.array([[0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.5, 0.2, 0.3]])
    logits = (2 * np.log(table)).astype(np.float32)
    whole, ending = decode_tags([logits, logits[:2]], None, tags, 2.0, plain=False)
    assert whole.tags == ["B-X", "I-X", "O"]
    assert whole.scores == pytest.approx([0.7, 0.7, 0.5], rel=1e-5)
    scores = [row.entities[0].score for row in (whole, ending)]
    assert scores == pytest.approx([0.7 * 0.7 * (1 - 0.3), 0.7 * 0.7], rel=1e-5)
    ((found, ids),) = gold_posteriors([logits], [[1, 2, 0]], None, tags, 2.0, plain=False)
    assert found == pytest.approx(table, rel=1e-5)
    assert ids.tolist() == [1, 2, 0]
