"""What `check` and `train` find out about a model by letting it read a few texts."""

import pytest
import torch
from cases import BY_ID, CASES, encoder, every
from finished import finished
from small import change_json, message_of, of_family, read_rows, refused, said, write_recipe, write_rows
from test_qa_windows import by_bytes

from bertkit.cli.main import main
from bertkit.errors import ModelError
from bertkit.files import read_json
from bertkit.inference.predictor import load
from bertkit.inference.probe import padding_findings


def tokenizer_says(folder, **fields):
    change_json(folder / "tokenizer_config.json", **fields)


def probed(case, folder):
    task = case.task(folder)
    return [finding.what for finding in padding_findings(task, task.model(encoder(folder)))]


@every(CASES)
def test_padding_changes_nothing_in_a_bert(case, tiny_encoder):
    assert probed(case, tiny_encoder) == []


@pytest.mark.parametrize("kind", ["convbert", "fnet"])
@pytest.mark.parametrize("case", "single-label ner-crf qa similarity-cosent".split())
def test_an_architecture_whose_outputs_depend_on_padding_is_named(kind, case, tiny_encoder, tmp_path):
    folder = of_family(kind, tiny_encoder, tmp_path / kind, initializer_range=0.5)
    (what,) = probed(BY_ID[case], folder)
    assert what.startswith(f"padding changes the outputs of this {kind} by up to ")


def test_a_classifier_of_an_encoder_decoder_is_probed_whole(tiny_encoder, tmp_path):
    """BART's has no attribute `encoder`."""
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "eos_token_id": 3, "bos_token_id": 2}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    folder = of_family("bart", tiny_encoder, tmp_path / "bart", **sizes, **heads)
    assert probed(BY_ID["single-label"], folder) == []


def test_outputs_that_become_nan_are_named(tiny_encoder, monkeypatch):
    task = BY_ID["single-label"].task(tiny_encoder)
    model = task.model(encoder(tiny_encoder))
    forward = model.forward

    def spoilt(*args, **inputs):
        outputs = forward(*args, **inputs)
        if len(outputs.logits) > 1:
            outputs.logits = outputs.logits * float("nan")
        return outputs

    monkeypatch.setattr(model, "forward", spoilt)
    (finding,) = padding_findings(task, model)
    assert finding.what.startswith("padding changes the outputs of this bert by up to nan")


def test_check_warns_and_the_run_keeps_the_warning(tiny_encoder, tmp_path, capsys):
    folder = of_family("fnet", tiny_encoder, tmp_path / "fnet", initializer_range=0.5)
    recipe = write_recipe(tmp_path, folder)
    assert main(["check", str(recipe)]) == 0
    assert "padding changes the outputs of this fnet" in capsys.readouterr().err
    said(capsys, "train", recipe, "training.num_train_epochs=1", "--output-dir", tmp_path / "run")
    found = read_json(tmp_path / "run/data.json")["findings"]
    assert [finding["level"] for finding in found if "padding changes" in finding["what"]] == ["warn"]


def test_longformer_answers_questions(tiny_encoder, tmp_path):
    """Its head looks for three separators in every text: those of a pair, as RoBERTa's tokenizer writes
    it.
    """
    sizes = {"attention_window": 4, "sep_token_id": 3}
    folder = of_family("longformer", tiny_encoder, tmp_path / "longformer", vocab_size=300, **sizes)
    with pytest.raises(
        ModelError, match="cannot read its tokenizer's inputs: AssertionError: There should be exactly"
    ):
        probed(BY_ID["qa"], folder)
    by_bytes().save_pretrained(folder)
    assert probed(BY_ID["qa"], folder) == []


def test_an_embedding_of_padding_that_training_changes_is_thought_of(tiny_encoder, tmp_path):
    """MobileBERT reads each token with its neighbours, and pretraining moves what it has for padding from
    zero.
    """
    sizes = {"embedding_size": 8, "intra_bottleneck_size": 16, "true_hidden_size": 16}
    folder = of_family("mobilebert", tiny_encoder, tmp_path / "mobilebert", **sizes)
    mlm = BY_ID["mlm"]
    assert probed(BY_ID["single-label"], folder) == []
    (what,) = probed(mlm, folder)
    assert what.startswith("padding changes the outputs of this mobilebert by up to ")
    assert probed(mlm, tiny_encoder) == []


def test_a_long_text_is_read_the_same_before_and_after_a_short_one(tiny_encoder, tmp_path):
    """In transformers, BigBird's sparse attention becomes full for good when it first reads a short text."""
    sizes = {"block_size": 4, "num_random_blocks": 1, "initializer_range": 0.5}
    folder = of_family("big_bird", tiny_encoder, tmp_path / "big_bird", **sizes)
    model = BY_ID["single-label"].task(folder).model(encoder(folder)).eval()
    short = torch.full((1, 8), 7)
    long = torch.arange(5, 41)[None]
    with torch.inference_mode():
        before = model(input_ids=long).logits
        model(input_ids=short)
        assert torch.equal(model(input_ids=long).logits, before)


def test_check_refuses_token_types_without_embeddings(tiny_encoder, tmp_path, capsys):
    folder = of_family("roberta", tiny_encoder, tmp_path / "roberta", type_vocab_size=1)
    recipe = write_recipe(tmp_path, folder)
    said(capsys, "check", recipe)  # single texts have one type
    for split in ("train", "validation", "test"):
        rows = [{**row, "text_b": row["text"]} for row in read_rows(tmp_path / f"{split}.jsonl")]
        write_rows(tmp_path / f"{split}.jsonl", rows)
    pairs = ["data.columns={text_a: text, text_b: text_b}"]
    told = refused(capsys, "check", recipe, *pairs)
    assert "token types 0 to 1, but the model has embeddings for only 1" in told
    assert "model_input_names" in told
    refused(capsys, "train", recipe, *pairs, "--output-dir", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    tokenizer_says(folder, model_input_names=["input_ids", "attention_mask"])
    said(capsys, "check", recipe, *pairs)


def test_an_encoder_of_one_length_is_refused_for_that(tiny_encoder, tmp_path):
    folder = of_family(
        "nystromformer", tiny_encoder, tmp_path / "fixed", num_landmarks=4, segment_means_seq_len=64
    )
    message = message_of(ModelError, probed, BY_ID["single-label"], folder)
    assert "this nystromformer cannot read its tokenizer's inputs" in message
    assert "fixed lengths are not supported" in message
    assert "Use the tokenizer saved with these weights" not in message


@pytest.mark.parametrize("case", ["single-label", "similarity-cosent", "ner-crf"])
def test_padding_is_masked_whatever_the_tokenizer_names(case, tiny_encoder, tmp_path):
    """FNet's tokenizer names no attention mask."""
    run = finished(BY_ID[case], tiny_encoder, tmp_path / "run")
    row = {
        name: values[0]
        for name, values in BY_ID[case].columns.items()
        if name not in ("label", "score", "tags")
    }
    rows = [
        row,
        {name: [*value] * 5 if isinstance(value, list) else f"{value} " * 5 for name, value in row.items()},
    ]
    before = load(run.folder)(rows)
    tokenizer_says(run.model, model_input_names=["input_ids", "token_type_ids"])
    assert load(run.folder)(rows) == before
