"""text2text-generation: a recipe from data to answers, warm starts, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases import EVEN, TEXTS, encoder
from small import write_rows

import bertkit
from bertkit.errors import RecipeError
from bertkit.models.bert.warm_start import encoder_decoder
from bertkit.models.encoder import load_tokenizer
from bertkit.recipe.recipe import load_recipe
from bertkit.tasks.text2text_generation import Text2TextGeneration, Text2TextGenerationOptions
from bertkit.training.train import train

ROWS = [{"text": text, "target": target} for text, target in zip(TEXTS, EVEN, strict=True)]


@pytest.fixture(scope="module")
def run(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory):
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
  per_device_train_batch_size: 4
  label_smoothing_factor: 0.1
  eval_strategy: "no"
"""
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    return train(load_recipe(folder / "recipe.yaml"), folder / "run")


def test_a_run_has_scores_baselines_and_a_card(run) -> None:
    scores = run.results["splits"]["validation"]["metrics"]
    assert scores["exact_match"] > 0.8
    assert run.results["baselines"]["validation"].keys() == {"copy", "nearest"}
    predictor = bertkit.load(run.folder)
    assert predictor(TEXTS[0])["generated_text"]
    assert "AutoModelForSeq2SeqLM" in (run.model / "README.md").read_text(encoding="utf-8")


def test_a_warm_start_takes_every_weight_but_the_attention_to_the_source(tiny_encoder: Path) -> None:
    from transformers import BertModel

    model = encoder_decoder(encoder(tiny_encoder), start=2, end=3, new_head=True)
    known = BertModel.from_pretrained(tiny_encoder, add_pooling_layer=False).state_dict()
    for half in (model.encoder, model.decoder.bert):
        own = half.state_dict()
        assert [name for name in known if not torch.equal(own[name], known[name])] == []
    new = {name.split(".")[3] for name in model.decoder.bert.state_dict() if name not in known}
    assert new == {"crossattention"}


def test_answers_longer_than_the_positions_are_refused(tiny_encoder: Path) -> None:
    options = Text2TextGenerationOptions(name="text2text-generation")
    with pytest.raises(RecipeError, match="64 tokens, but the model generates at most 32"):
        Text2TextGeneration(options, load_tokenizer(tiny_encoder), 32)
