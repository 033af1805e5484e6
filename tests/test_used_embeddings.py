"""Training only the used rows of the word embedding: the same weights as of the whole table, files and
messages.
"""

from dataclasses import replace
from unittest.mock import Mock

import multitask
import pytest
import small
import torch
from cases import BY_ID
from conftest import WORDS, build_encoder
from safetensors.torch import load_file
from small import CHECKPOINTING, of_family, raised, raises, read_rows, said, write_recipe
from steps import arguments, made
from test_resume import RHYTHM, killed, last, newest
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
)

from bertkit.attachments.used_rows import UsedEmbeddings, UsedRows, token_ids
from bertkit.engine.checkpoint import checkpoints
from bertkit.errors import ModelError, UserError
from bertkit.files import read_json
from bertkit.run import Run
from bertkit.training.train import train

Weights = dict[str, torch.Tensor]
USED = ("training.used_embeddings=true", "training.weight_decay=0.3", "training.bf16=false")
STEPS = {
    "max_steps": 5,
    "learning_rate": 1e-2,
    "weight_decay": 0.3,
    "lr_scheduler_type": "cosine",
    "max_grad_norm": 0.3,
}


class Rows(TrainerCallback):
    """The number of rows of the word embedding that each update trains."""

    def __init__(self):
        self.trained = []

    def on_optimizer_step(self, *_, model, optimizer=None, **__):
        self.trained.append(len(model.get_input_embeddings().weight))


def trained(case, encoder, out, batch=2, accumulate=2, **more):
    """The weights after a few steps, and the rows of the word embedding that were trained."""
    divide = more.pop("divide", False)
    rows = Rows()
    args = arguments(out, batch, accumulate, **{**STEPS, **more})
    trainer = made(case, encoder, args, divide=divide, callbacks=[rows])
    trainer.train()
    assert type(trainer.model.get_input_embeddings()) is nn.Embedding
    (count,) = {*rows.trained}
    return trainer.model.state_dict(), count


def assert_equal(one, other):
    """To 1e-6 of each tensor; of 0.1 where it is smaller: a key's bias has no gradient but rounding."""
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert (other[name].double() - weight).norm() <= 1e-6 * max(weight.double().norm(), 0.1), name


# --- the steps


ARCHITECTURES = {
    "albert": {"embedding_size": 8},
    "deberta-v2": {"type_vocab_size": 2},
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    "xlm": {"emb_dim": 16, "n_layers": 2, "n_heads": 2},
}


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        *(("single-label", kind, {}) for kind in ARCHITECTURES),
        *((name, "", {}) for name in ("ner-crf", "similarity-in-batch", "text-to-text")),
        ("single-label", "", {"optim": "adamw_torch"}),
        (
            "single-label",
            "",
            {"optim": "muon", "max_grad_norm": 0.0},
        ),  # in bf16, which rounds what is clipped
        ("single-label", "", {"batch": 4, "divide": True}),
        ("single-label", "", {"weight_decay": 0.0}),
        ("single-label", "", {CHECKPOINTING: True}),
    ],
    ids=str,
)
def test_every_task_architecture_and_setting_takes_the_same_steps(
    name, kind, more, tiny_encoder_with_dropout, tmp_path
):
    encoder = tiny_encoder_with_dropout
    if kind:
        encoder = of_family(kind, encoder, tmp_path / "encoder", **ARCHITECTURES[kind])
    if kind in ("modernbert", "xlm"):  # which have no token types
        tokenizer = AutoTokenizer.from_pretrained(encoder, model_input_names=["input_ids", "attention_mask"])
        tokenizer.save_pretrained(encoder)
    whole, rows = trained(BY_ID[name], encoder, tmp_path, used_embeddings=False, **more)
    used, fewer = trained(BY_ID[name], encoder, tmp_path, used_embeddings=True, **more)
    assert_equal(whole, used)
    assert fewer < rows == len(WORDS)


def test_other_rows_only_decay(tiny_encoder, tmp_path):
    """By the rates of the schedule: the steps are made at 1, 0.9045, 0.6545, 0.3455, 0.0955 of the learning
    rate.
    """
    case = BY_ID["single-label"]
    name = "bert.embeddings.word_embeddings.weight"
    before = made(case, tiny_encoder, arguments(tmp_path, 2, 2)).model.state_dict()[name].clone()
    after = trained(case, tiny_encoder, tmp_path, used_embeddings=True)[0][name]
    other = [WORDS.index(word) for word in ("red", "green", "four")]
    decay = 1.0
    for step in range(5):
        decay *= (
            1
            - 1e-2 * 0.3 * (1 + torch.cos(torch.tensor(torch.pi * step / 5, dtype=torch.float64)).item()) / 2
        )
    torch.testing.assert_close(after[other], (before[other] * decay), rtol=1e-6, atol=0)
    assert not torch.allclose(after, before * decay, rtol=1e-3), "and the used ones are trained"


def test_what_is_not_trained_alone_is_trained_as_ever(tiny_encoder, tmp_path):
    """Optimizers that look at whole tensors or have momentum, and heads that share the weights."""
    for name, more in (
        ("single-label", {"optim": "sgd"}),
        ("single-label", {"optim": "adafactor"}),
        ("single-label", {"neftune_noise_alpha": 5.0}),
        ("mlm-nsp", {}),
    ):
        assert trained(BY_ID[name], tiny_encoder, tmp_path, used_embeddings=True, **more)[1] == len(WORDS)


# --- the module


def embeddings():
    """A model with one embedding in two places, and the used rows that take them."""
    torch.manual_seed(0)
    whole = nn.Embedding(9, 4, padding_idx=1)
    used = UsedRows(whole, torch.tensor([7, 1, 3]), decay=0.5)
    return nn.ModuleDict({"one": used, "two": nn.Sequential(used)}), whole, used


def test_a_token_without_a_row_is_an_error_in_training():
    _, whole, used = embeddings()
    assert torch.equal(used(torch.tensor([[3, 7], [1, 1]])), whole.weight[[3, 7, 1, 1]].view(2, 2, 4))
    raises(
        UserError,
        r"the tokens with ids \[0, 8\] are in no training row",
        used,
        torch.tensor([[3, 8], [0, 7]]),
    )
    for wrong in (-1, 9):
        raised(IndexError, used, torch.tensor([3, wrong]))
        raised(IndexError, used.eval(), torch.tensor([3, wrong]))
        used.train()


def test_in_evaluation_it_is_the_whole_embedding():
    model, whole, used = embeddings()
    with torch.no_grad():
        used.weight += 1.0
    before = whole.weight.detach().clone()
    ids = torch.arange(9).view(3, 3)
    given = used.eval()(ids)
    assert torch.equal(given, used.table()[ids])
    assert torch.equal(given[0, 0], before[0] * 0.5)
    assert torch.equal(given[1, 0], before[3] + 1.0)
    assert torch.equal(model.state_dict()["two.0.weight"], used.table())
    used.restore(model)
    assert model["one"] is whole
    assert model["two"][0] is whole
    assert torch.equal(whole(ids), given)
    assert whole.weight.requires_grad


def test_padding_has_no_gradient():
    _, _, used = embeddings()
    used(torch.tensor([1, 3, 3])).sum().backward()
    assert used.weight.grad.tolist() == [[0.0] * 4, [0.0] * 4, [2.0] * 4], "in the order of the ids"


def test_loading_other_weights():
    model, _, used = embeddings()
    table = torch.randn(9, 4)
    model.load_state_dict({"one.weight": table, "two.0.weight": table})
    assert torch.equal(used.weight, table[[7, 1, 3]])
    assert torch.allclose(used.table(), table, rtol=1e-6)
    raises(RuntimeError, "Missing key", model.load_state_dict, {"one.weight": table})


# --- the program


def recipe_of(folder, encoder, *overrides):
    return small.recipe(folder, encoder, *RHYTHM, *USED, *overrides)


def evaluations(run):
    """The scores in the course of a training."""
    return [event.get("eval_accuracy") for event in read_rows(run.folder / "metrics.jsonl")]


def test_a_run_is_that_of_the_whole_table(tiny_encoder_with_dropout, tmp_path):
    recipe = recipe_of(tmp_path, tiny_encoder_with_dropout)
    runs = [
        train(recipe.with_(f"training.used_embeddings={each}"), tmp_path / each) for each in ("true", "false")
    ]
    used, whole = runs
    assert_equal(*(load_file(run.model / "model.safetensors") for run in (whole, used)))
    assert used.results["splits"]["test"]["metrics"] == pytest.approx(
        whole.results["splits"]["test"]["metrics"], abs=1e-5
    )
    assert evaluations(used) == evaluations(whole)
    assert sorted(file.name for file in used.model.iterdir()) == sorted(
        file.name for file in whole.model.iterdir()
    )
    folders = [checkpoints(run.checkpoints / f"seed-{recipe.seeds[0]}")[-1] for run in runs]
    assert_equal(*(load_file(folder / "model.safetensors") for folder in folders))
    shapes = [
        {tuple(tensor.shape) for tensor in load_file(folder / "optimizer.safetensors").values()}
        for folder in folders
    ]
    count = len(load_file(folders[0] / "used_embeddings.safetensors")["ids"])
    assert count < len(WORDS)
    assert (count, 16) in shapes[0]
    assert (len(WORDS), 16) not in shapes[0]
    assert (len(WORDS), 16) in shapes[1]
    assert not (folders[1] / "used_embeddings.safetensors").exists()
    for folder in (used.model, folders[0]):
        model, told = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
        assert model.get_input_embeddings().weight.shape == (len(WORDS), 16)
        assert not any(told.values())


def resumed(recipe, folder, texts):
    """The last checkpoint of a run whose training rows have been changed in the middle."""
    before = texts.read_text()
    run = killed(recipe, folder)
    texts.write_text(before.replace("the cat", "red green four"))
    train(recipe, run.folder, resume=True, changed=True)
    texts.write_text(before)
    return load_file(newest(run) / "model.safetensors")


def test_changed_data_may_use_more_rows(tiny_encoder_with_dropout, tmp_path):
    recipe = recipe_of(tmp_path, tiny_encoder_with_dropout)
    texts = tmp_path / "train.jsonl"
    used = resumed(recipe, tmp_path / "used", texts)
    whole = resumed(recipe.with_("training.used_embeddings=false"), tmp_path / "whole", texts)
    assert_equal(whole, used)
    assert (
        WORDS.index("red") in load_file(newest(Run(tmp_path / "used")) / "used_embeddings.safetensors")["ids"]
    )


@pytest.mark.parametrize(("first", "then"), [("true", "false"), ("false", "true")])
def test_the_checkpoint_decides(first, then, tiny_encoder_with_dropout, tmp_path):
    recipe = recipe_of(tmp_path, tiny_encoder_with_dropout, f"training.used_embeddings={first}")
    run = killed(recipe, tmp_path / "killed")
    train(recipe.with_(f"training.used_embeddings={then}"), run.folder, resume=True, changed=True)
    assert last(run) == last(train(recipe, tmp_path / "whole"))


def test_what_needs_all_rows_cannot_continue(tiny_encoder_with_dropout, tmp_path):
    recipe = recipe_of(tmp_path, tiny_encoder_with_dropout)
    run = killed(recipe, tmp_path / "killed")
    said = "the checkpoint has another optimizer, schedule or trained weights"
    for other in ("training.neftune_noise_alpha=5", "training.optim=sgd", "freeze={embeddings: true}"):
        changed = recipe.with_("~training.used_embeddings", other)
        raises(ModelError, said, train, changed, run.folder, resume=True, changed=True)
    trainer = Mock(args=replace(arguments(tmp_path, 2, 2), optim="adafactor"))
    raises(ModelError, said, UsedEmbeddings().start, trainer, newest(run))


def test_several_tasks(tiny_encoder, tmp_path):
    """The union of the tokens of all tasks, of which `sentiment` alone has fewer."""
    more = {"weight_decay": 0.3, "eval_strategy": "epoch", "num_train_epochs": 1}
    runs = {}
    for value in (True, False):
        given = multitask.recipe(tiny_encoder, *multitask.OF, training={**more, "used_embeddings": value})
        runs[value] = train(given, tmp_path / str(value))
    folders = [newest(runs[value]) for value in (False, True)]
    assert_equal(*(load_file(folder / "model.safetensors") for folder in folders))
    ids = load_file(folders[1] / "used_embeddings.safetensors")["ids"]
    assert 20 < len(ids) < len(WORDS)
    for name in multitask.OF:
        models = [runs[value].folder / name / "model/model.safetensors" for value in (False, True)]
        assert_equal(*map(load_file, models))


# --- when it is used, and the note


LARGE = 6000  # rows of an embedding of 16 numbers, of which a few dozen rows take 1 MB less memory


def larger(folder, size=LARGE):
    """The tiny BERT with so many rows in its word embedding."""
    build_encoder(folder)
    config = AutoConfig.from_pretrained(folder)
    config.vocab_size = size
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("size", "key", "some"),
    [(LARGE, None, True), (LARGE, False, False), (5000, None, False), (60, True, True)],
)
def test_by_default_where_it_saves_a_megabyte(size, key, some, tmp_path):
    encoder = larger(tmp_path / "encoder", size)
    rows = trained(BY_ID["single-label"], encoder, tmp_path, used_embeddings=key)[1]
    assert (rows < len(WORDS)) == some
    assert rows == size or some


@pytest.mark.parametrize(
    ("size", "overrides", "wanted"),
    [
        (LARGE, (), "of 6,000 tokens are used, and only these are trained: 1 MB less memory"),
        (LARGE, ("training.used_embeddings=false",), "of 6,000 tokens are used, and all are trained"),
        (len(WORDS), (), f"of {len(WORDS)} tokens are used, and all are trained"),
    ],
)
def test_check_says_what_is_used(size, overrides, wanted, tmp_path, capsys):
    file = write_recipe(tmp_path, larger(tmp_path / "encoder", size))
    told = said(capsys, "check", file, *overrides)
    words = {word for row in read_rows(tmp_path / "train.jsonl") for word in row["text"].split()} & {*WORDS}
    assert f"word embedding: {len(words) + 5} {wanted}\n" in told


def test_frozen_embeddings_are_as_ever(tmp_path):
    """By default, with a table of which only the used rows would be trained."""
    encoder = larger(tmp_path / "encoder")
    run = small.trained(tmp_path, encoder, "freeze={embeddings: true}")
    assert not (newest(run) / "used_embeddings.safetensors").exists()
    name = "bert.embeddings.word_embeddings.weight"
    before = load_file(encoder / "model.safetensors")[name.removeprefix("bert.")]
    assert torch.equal(load_file(run.model / "model.safetensors")[name], before)
    assert read_json(run.model / "config.json")["vocab_size"] == LARGE


def test_of_a_corpus_all_rows_are_used(tiny_encoder):
    """A mask may be replaced by any token."""
    case = BY_ID["mlm"]
    task = case.task(tiny_encoder)
    ids = torch.arange(len(task.tokenizer))
    assert torch.equal(token_ids([(task, task.encode(case.rows()))], len(ids)), ids)
