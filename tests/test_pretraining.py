"""The task of pretraining: what it learns, what it keeps, and the whole program from text to a model."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from cases import DOCUMENTS, DRAWN, SETTINGS, Case, encoder
from conftest import WORDS
from datasets import Dataset
from small import raises, write_rows
from steps import NoDoubles, arguments, made
from test_bert import gradients
from test_pretraining_data import made_documents, vocabulary
from test_qa_windows import by_bytes, by_metaspace
from test_resume import killed, last
from test_task_contract import ask, begun, fit, reopened
from tokenizers import AddedToken, decoders
from tokenizers.pre_tokenizers import PreTokenizer
from torch.testing import assert_close
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertTokenizer,
)

from bertkit.encoding.padding import Collator
from bertkit.errors import DataError, ModelError
from bertkit.evaluation.pretraining_metrics import COUNTED, scored, unigrams
from bertkit.inference.predictor import load
from bertkit.models.bert.bert import BertForMaskedLM, BertForPreTraining
from bertkit.models.bert.masking import Masking, fewer_masks
from bertkit.models.bert.pretraining_data import encode_documents
from bertkit.models.encoder import load_tokenizer, resolve_encoder
from bertkit.models.trained_parts import with_lora
from bertkit.recipe.recipe import load_recipe
from bertkit.sections import Lora, ModelSpec
from bertkit.tasks import masks
from bertkit.tasks.base import evaluate as evaluate_task
from bertkit.tasks.base import prepare
from bertkit.tasks.pretraining import Pretraining, PretrainingOptions
from bertkit.training.seed import save
from bertkit.training.train import train

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}

__all__ = ["begun"]  # a fixture

every_case = pytest.mark.parametrize("case", DRAWN, ids=[case.id for case in DRAWN])


def new(tokenizer, **fields):
    """An encoder that is drawn, not loaded."""
    return resolve_encoder(ModelSpec(config={**SIZES, **fields}, tokenizer=str(tokenizer), max_length=32))


COUNTING = ["one two three four five . " * 4, "red blue green down up . " * 4] * 4


def test_learns_what_can_be_known(tiny_encoder, tmp_path):
    """A masked word of a rhyme can be told by its neighbours; so can a rhyme that does not belong."""
    case = dataclasses.replace(DRAWN[1], columns={"text": COUNTING})
    task, model = fit(case, tiny_encoder, tmp_path, steps=400, batch=8)
    scores = evaluate_task(task, case.rows(), ask(task, model).predict_features)
    assert set(scores) == {"perplexity", *task.metrics}
    assert float(scores["mlm_accuracy"] or 0) > 0.8
    assert float(scores["nsp_accuracy"] or 0) > 0.7
    assert float(scores["perplexity"] or np.inf) < 2


@every_case
def test_saved_and_loaded_it_gives_the_same_answers(case, begun, tmp_path):
    task, model = begun(case)
    again = reopened(task, model, tmp_path / "model")
    asked = [*DOCUMENTS, "the [MASK] was [MASK] .", ""]
    with NoDoubles():
        answers = again(asked)
    assert answers == ask(task, model)(asked)
    assert [set(answer) for answer in answers[:-2]] == [
        {"masked", "right", "loss", "pairs", "pairs_right"}
    ] * 8
    assert len(answers[-2]["masks"]) == 2
    assert answers[-1]["masked"] == 0


@pytest.fixture(params=["bytes", "metaspace"])
def spaced(request, tmp_path):
    """Tokenizers whose tokens hold the space before a word, Ġ or ▁, read from a folder."""
    tokenizer = by_bytes() if request.param == "bytes" else by_metaspace()
    own = decoders.ByteLevel() if request.param == "bytes" else decoders.Metaspace()
    tokenizer.backend_tokenizer.decoder = own
    tokenizer.add_special_tokens({"mask_token": AddedToken("<mask>", lstrip=True, special=True)})
    tokenizer.save_pretrained(tmp_path)
    return load_tokenizer(tmp_path, split_special_tokens=False)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("the bus was <mask>s", "the bus was cats"),
        ("the bus was<mask>s", "the bus was cats"),
        ("<mask> bus", "cat bus"),
        ("a x<mask> bus", "a x cat bus"),
        ("</s> a <mask> <mask>", "</s> a cat o"),
    ],
)
def test_masks_are_filled_with_text_and_not_with_raw_tokens(text, filled, spaced):
    task = Pretraining(PretrainingOptions(name="pretraining", nsp="none"), spaced, 32)
    rows = Dataset.from_dict({"text": [text]})
    features = task.encode(rows)
    ids = features["input_ids"][0]
    assert ids.count(spaced.mask_token_id) == text.count("<mask>")
    if "</s>" in text:
        assert spaced.sep_token_id not in ids
    else:
        assert ids == spaced(text, add_special_tokens=False)["input_ids"]  # as transformers' own
    space = "Ġcat" if "Ġcat" in spaced.get_vocab() else "▁cat"
    guesses = [(spaced.convert_tokens_to_ids([first, "p"]), [0.75, 0.25]) for first in (space, "o")]
    item = masks.MaskedItem(np.zeros(len(COUNTED)), guesses[: text.count("<mask>")])
    (answer,) = task.decode([item], features, rows)
    assert answer["filled"] == filled
    cat, p = guesses[0][0]
    assert answer["masks"][0] == [
        {"token": "cat", "id": cat, "score": 0.75},
        {"token": "p", "id": p, "score": 0.25},
    ]


def test_sentences_keep_the_blank_before_them(spaced):
    options = PretrainingOptions(name="pretraining", nsp="none", short_sequences=0)
    text = "A cat. A cat. "
    features = Pretraining(options, spaced, 32).encode(Dataset.from_dict({"text": [text]}))
    assert features["input_ids"][0] == spaced(text.strip(), add_special_tokens=False)["input_ids"]
    assert features["sentences"][0][0] > 1


def test_masks_beyond_the_limit_stay(tiny_encoder):
    task = DRAWN[0].task(tiny_encoder)
    rows = Dataset.from_dict({"text": ["the [MASK]s [MASK]"]})
    ing = task.tokenizer.convert_tokens_to_ids("##ing")
    item = masks.MaskedItem(np.zeros(len(COUNTED)), [([ing], [1.0])])
    (answer,) = task.decode([item], task.encode(rows), rows)
    assert answer == {"filled": "the ings [MASK]", "masks": [[{"token": "##ing", "id": ing, "score": 1.0}]]}
    rows = Dataset.from_dict({"text": ["the " * 99 + "[MASK]"]})
    (answer,) = task.decode([masks.MaskedItem(np.ones(len(COUNTED)), [])], task.encode(rows), rows)
    assert answer == {"filled": rows["text"][0], "masks": []}


@every_case
def test_padding_changes_nothing(case, begun):
    task, model = begun(case)
    together, alone = (ask(task, model, batch_size=size)(DOCUMENTS) for size in (8, 1))
    for one, other in zip(together, alone, strict=True):
        assert {k: v for k, v in one.items() if k != "loss"} == {
            k: v for k, v in other.items() if k != "loss"
        }
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_the_loss_is_transformers_loss(tiny_encoder):
    case = DRAWN[1]
    task = case.task(tiny_encoder)
    model = task.model(encoder(tiny_encoder)).eval()
    features = task.encode(case.rows())
    drawn = task.examples(features, range(len(features)), (3, 1))
    batch = Collator.of(task.tokenizer, task.padding)(drawn)
    ours = (task.loss(task.forward(model, batch), batch) / torch.tensor(task.count(batch))).sum()
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**model.config.to_dict()))
    theirs.load_state_dict(model.state_dict())
    names = "input_ids attention_mask token_type_ids labels next_sentence_label".split()
    told = theirs.eval()(**{name: batch[name] for name in names})
    assert_close(ours, told.loss, rtol=1e-5, atol=0)


def test_a_foreign_masked_language_model_goes_on_learning(tiny_encoder, tmp_path):
    """Of another architecture: transformers' own class, and no pairs."""
    shutil.copytree(
        tiny_encoder, tmp_path / "distil", ignore=shutil.ignore_patterns("config.json", "*.safetensors")
    )
    config = transformers.DistilBertConfig(vocab_size=42, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
    transformers.DistilBertForMaskedLM(config).save_pretrained(tmp_path / "distil")
    task, model = fit(DRAWN[0], tmp_path / "distil", tmp_path / "out", steps=3)
    assert type(model).__name__ == "DistilBertForMaskedLM"
    save(model, task, tmp_path / "model", SETTINGS)
    assert load(tmp_path / "model")(DOCUMENTS) == ask(task, model)(DOCUMENTS)
    raises(
        ModelError,
        "distilbert, which has no head for pairs",
        DRAWN[1].task(tmp_path / "distil").model,
        encoder(tmp_path / "distil"),
    )


FOREIGN = {
    **dict.fromkeys("roberta electra albert modernbert".split(), SIZES),
    "squeezebert": {**SIZES, "embedding_size": 16},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "deberta-v2": {**SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "xlm": {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "n_langs": 2, "pad_index": 0},
}


@pytest.mark.parametrize(
    ("kind", "lora"),
    [
        *(
            pytest.param(kind, [], marks=() if kind in ("electra", "albert", "xlm") else pytest.mark.rare)
            for kind in FOREIGN
        ),
        ("modernbert", ["Wqkv"]),
    ],
)
def test_heads_of_other_architectures_read_the_chosen_tokens_only(kind, lora, tiny_encoder):
    """With the logits, the loss and the gradients of transformers' own forward, which computes them
    everywhere.
    """
    case = DRAWN[0]
    task = case.task(tiny_encoder)
    task.tokenizer.model_input_names = ["input_ids", "attention_mask"]
    ids = {"vocab_size": len(task.tokenizer), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **ids, **FOREIGN[kind])
    model = AutoModelForMaskedLM.from_config(config).eval()
    if lora:
        model = with_lora(model, Lora(r=2, target_modules=lora), {}).eval()
    features = task.encode(case.rows())
    batch = Collator.of(task.tokenizer, task.padding)(task.examples(features, range(len(features)), (3, 1)))
    outputs = task.forward(model, batch)
    chosen = batch["labels"] != -100
    assert outputs.logits.shape == (1, chosen.sum(), len(task.tokenizer))
    task.loss(outputs, batch).sum().backward()
    ours = gradients(model)
    model.zero_grad()
    everywhere = model(batch["input_ids"], attention_mask=batch["attention_mask"])
    assert_close(outputs.prediction_logits, everywhere.logits[chosen], rtol=1e-5, atol=1e-6)
    F.cross_entropy(everywhere.logits[chosen], batch["labels"][chosen], reduction="sum").backward()
    assert_close(ours, gradients(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", DRAWN[:2], ids=["mlm", "mlm-nsp"])
def test_plain_transformers_opens_it(case, tiny_encoder, tmp_path):
    task = case.task(tiny_encoder)
    model = task.model(new(tiny_encoder))
    save(model, task, tmp_path / "model", SETTINGS)
    pairs = case.options.get("nsp") != "none"
    assert isinstance(model, BertForPreTraining if pairs else BertForMaskedLM)
    for kind in (
        AutoModel,
        AutoModelForMaskedLM,
        AutoModelForSequenceClassification,
        transformers.BertForPreTraining,
    ):
        opened, report = kind.from_pretrained(tmp_path / "model", output_loading_info=True)
        missing = [key for key in report["missing_keys"] if "classifier" not in key]
        absent = ("pooler", "seq_relationship")
        assert all(not pairs and any(name in key for name in absent) for key in missing)
        told = dict(opened.base_model.named_parameters())
        assert all(torch.equal(p, told[n]) for n, p in model.bert.named_parameters() if n in told)


def test_errors_say_what_to_do(tiny_encoder):
    tokenizer = load_tokenizer(tiny_encoder)
    options = PretrainingOptions(name="pretraining")

    def check(rows):
        prepare(Pretraining, options, tokenizer, 32, rows, [])

    raises(
        DataError, "from another document, but there is only one", check, Dataset.from_dict({"text": ["a"]})
    )
    tokenizer.mask_token = None
    raises(ModelError, "MASK", check, DRAWN[0].rows())


def test_scores_are_ratios_of_sums_and_an_infinite_one_is_none_as_an_interval_up_to_it():
    answers = [
        {"masked": 3, "right": 1, "loss": 6.0, "pairs": 1, "pairs_right": 1},
        {"masked": 1, "right": 1, "loss": 2.0, "pairs": 3, "pairs_right": 0},
        {"filled": "a b", "masks": []},
    ]
    expected = {"mlm_accuracy": 0.5, "perplexity": pytest.approx(np.exp(2.0)), "nsp_accuracy": 0.25}
    assert scored(answers, pairs=True).scores == expected
    assert scored(answers[2:], pairs=False).scores == {"mlm_accuracy": None, "perplexity": None}
    answers = [{"masked": 1, "right": 1, "loss": loss, "pairs": 0, "pairs_right": 0} for loss in (0.0, 1e6)]
    one, both, resampled = (
        scored(rows, pairs=False) for rows in (answers[:1], answers, answers[:1] * 5 + answers)
    )
    assert (one.scores["perplexity"], one.intervals()["perplexity"]) == (1.0, (1.0, 1.0))
    for graded in (both, resampled):
        assert (graded.scores["perplexity"], graded.intervals()["perplexity"]) == (None, None)
        assert graded.intervals()["mlm_accuracy"] == (1.0, 1.0)


# --- the whole program


@pytest.fixture(scope="module")
def recipe(tiny_encoder_with_dropout, tmp_path_factory):
    return recipe_of(tmp_path_factory.mktemp("pretraining"), tiny_encoder_with_dropout, SIZES)


def recipe_of(room, tokenizer, config):
    """A recipe of six steps an epoch for a new encoder, with its files in this folder."""
    for split, count in (("train", 24), ("validation", 6)):
        rows = [{"text": f"{text}\n{text} !"} for text in (DOCUMENTS * 3)[:count]]
        write_rows(room / f"{split}.jsonl", rows)
    fields = ", ".join(f"{name}: {value}" for name, value in config.items())
    (room / "pretraining.yaml").write_text(
        "task: {name: pretraining}\n"
        f"model: {{config: {{{fields}}}, tokenizer: {tokenizer}, max_length: 32}}\n"
        "data: {source: {train: train.jsonl, validation: validation.jsonl}}\n"
        "training: {num_train_epochs: 3, per_device_train_batch_size: 4, per_device_eval_batch_size: 4,"
        " eval_strategy: steps, eval_steps: 4, learning_rate: 1e-3}\n"
    )
    return load_recipe(room / "pretraining.yaml")


def test_from_text_to_a_model_and_on_to_a_task(recipe, tmp_path):
    run = train(recipe, tmp_path / "run")
    results = run.results
    assert set(results["splits"]["validation"]["metrics"]) == {"mlm_accuracy", "perplexity", "nsp_accuracy"}
    assert "unigrams" in results["baselines"]["validation"]
    assert results["verified"]
    card = (run.model / "README.md").read_text()
    assert "pipeline_tag: fill-mask" in card
    assert "base_model" not in card
    assert "/tmp" not in card
    rows = [{"text": text, "label": str(index % 2)} for index, text in enumerate(DOCUMENTS)]
    write_rows(tmp_path / "rows.jsonl", rows)
    (tmp_path / "next.yaml").write_text(
        f"task: {{name: text-classification}}\nmodel: {{name: {run.model}, max_length: 32}}\n"
        "data: {source: {train: rows.jsonl}}\ntraining: {num_train_epochs: 1}\nverify: false\nexplain: "
        "false\n"
    )
    tuned = train(load_recipe(tmp_path / "next.yaml"), tmp_path / "tuned")
    assert tuned.finished


def test_a_training_that_diverges_ends_with_results(recipe, tmp_path):
    training = {**recipe.training, "learning_rate": 100.0, "eval_strategy": "no", "num_train_epochs": 1}
    changed = {"training": training, "verify": False, "explain": False}
    run = train(recipe.model_copy(update=changed), tmp_path / "run")
    scores = run.results["splits"]["validation"]
    assert scores["metrics"]["perplexity"] is None
    assert scores["intervals"]["perplexity"] is None
    assert 0 <= scores["metrics"]["mlm_accuracy"] <= 1
    assert (run.model / "README.md").is_file()
    assert (run.folder / "report.html").is_file()


def test_a_tokenizer_that_cannot_be_copied_is_refused(tiny_encoder):
    """RoFormer's: its words are found by a Python object."""

    class Words:
        def pre_tokenize(self, text):
            """All of the text is one word."""

    task = DRAWN[0].task(tiny_encoder)
    backend = task.tokenizer
    backend.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(Words())
    raises(ModelError, "cannot be copied, which pretraining requires", task.features, DRAWN[0].rows())


# --- what changes in its course: the share of masked tokens


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("nsp", ["nsp", "none"])
@pytest.mark.parametrize("more", [{}, {"whole_word": True}], ids=["tokens", "words"])
def test_fewer_masks_are_those_that_the_lower_share_draws(nsp, more):
    documents, words = made_documents(60)
    tokenizer = BertTokenizer(vocab=vocabulary(words))
    documents += ["a [MASK] b", "a b"]  # no masks of ours; one token at least
    features = encode_documents(Dataset.from_dict({"text": documents}), tokenizer, 64, nsp=nsp)
    indices = list(range(len(features)))[::-3]
    collate = Collator.of(tokenizer, Pretraining.padding)
    high = Masking(tokenizer, nsp=nsp, mask_probability=0.5, keep_order=True, **more)
    batch = collate(high(features, indices, 3, 4))
    masked = []
    for rate in (0.5, 0.3, 0.15, 0.01):
        low = Masking(tokenizer, nsp=nsp, mask_probability=rate, **more)
        expected = collate(low(features, indices, 3, 4))
        assert equal(fewer_masks(batch, rate), expected)
        masked.append(int((expected["labels"] != -100).sum()))
    assert masked == sorted(masked, reverse=True)
    assert masked[0] > 10 * masked[-1] > 0


def test_one_document_says_nothing_about_next_sentences(tiny_encoder):
    task = Case("", {"name": "pretraining"}, {"text": DOCUMENTS}).task(tiny_encoder)
    for documents, expected in ((DOCUMENTS[:1], True), (DOCUMENTS[:2], False)):
        features = task.features(Dataset.from_dict({"text": documents}))
        told = [finding.what for finding in task.check(features, "validation")]
        assert any("nsp_accuracy says nothing" in what for what in told) == expected


@pytest.mark.parametrize(("start", "end"), [(0.4, 0.1), (0.1, 0.4)])
def test_the_share_follows_the_progress_and_evaluation_has_the_last_one(start, end, tiny_encoder):
    def prepared(share):
        options = {"name": "pretraining", "mask_probability": share}
        return Case("", options, {"text": DOCUMENTS}).task(tiny_encoder)

    task = prepared({"start": start, "end": end})
    assert task.describe() == f"masked tokens ({start:.0%} to {end:.0%}), next sentences"
    features = task.encode(Dataset.from_dict({"text": DOCUMENTS}))
    collate = Collator.of(task.tokenizer, task.padding)
    batch = collate(task.examples(features, range(8), (1, 2)))
    for progress, share in ((0.0, start), (0.5, 0.25), (1.0, end)):
        constant = prepared(share)
        expected = collate(constant.examples(features, range(8), (1, 2)))
        assert equal(task.scheduled(batch, progress), expected)
        assert equal(constant.scheduled(expected, progress), expected)
    assert task.examples(features, range(8)) == prepared(end).examples(features, range(8))


def test_a_training_follows_the_schedule(tiny_encoder, tmp_path, monkeypatch):
    steps = []

    def loss(self, outputs, batch, smoothing=0.0, real=Pretraining.loss):
        masked = batch["labels"] != -100
        ordinary = torch.where(masked, batch["labels"], batch["input_ids"]) > WORDS.index("[MASK]")
        steps.append(zip(masked.sum(1).tolist(), ordinary.sum(1).tolist(), strict=True))
        return real(self, outputs, batch, smoothing)

    monkeypatch.setattr(Pretraining, "loss", loss)
    options = {"name": "pretraining", "nsp": "none", "short_sequences": 0.0}
    options |= {"mask_probability": {"start": 0.8, "end": 0.1}}
    case = Case("falling", options, {"text": [" ".join(DOCUMENTS)] * 8}, max_length=64)
    made(case, tiny_encoder, arguments(tmp_path, 8, 1, max_steps=8)).train()
    assert len(steps) == 8
    for step, counts in enumerate(steps):
        probability = 0.8 - 0.7 * step / 8
        assert all(abs(masked - probability * ordinary) < 0.5 + 1e-6 for masked, ordinary in counts)


def test_resumed_in_the_middle_of_a_schedule_it_is_the_run_that_was_never_stopped(recipe, tmp_path):
    share = {"start": 0.5, "end": 0.1}
    options = {"name": "pretraining", "nsp": "none", "mask_probability": share}
    training = {**recipe.training, "num_train_epochs": 3, "per_device_train_batch_size": 2}
    task = PretrainingOptions.model_validate(options)
    changed = recipe.model_copy(
        update={"task": task, "training": training, "verify": False, "explain": False}
    )
    whole = train(changed, tmp_path / "whole")
    run = killed(changed, tmp_path / "killed", at=10)
    assert last(train(changed, run.folder, resume=True)) == last(whole)
    assert (run.model / "model.safetensors").read_bytes() == (whole.model / "model.safetensors").read_bytes()
    assert [run.results[k] for k in ("splits", "baselines")] == [
        whole.results[k] for k in ("splits", "baselines")
    ]


def test_unigrams_by_hand():
    features = Dataset.from_dict({"input_ids": [[0, 1, 1], [1, 2]]})  # with one more of each: 2 4 2 1 of 9
    scores = unigrams(features, [[-100, 1], [3, -100]], 4)["unigrams"]
    assert scores == {"mlm_accuracy": 0.5, "perplexity": pytest.approx((9 / 4 * 9 / 1) ** 0.5)}
