"""Every encoder family x every task: does it train and predict correctly, is it refused before training, or
wrong?

A family is a config of transformers with random weights, and the family's own tokenizer, trained in memory. A
cell trains it for two steps on the rows of a case of tests/cases.py, loads the run and predicts. It is
`right` if answers one by one, in one batch and in predictions/ are the same, `evaluate` gives the scores of
results.json, transformers gives the same features and probabilities of labels and masked tokens, and frozen
embeddings have not moved. `warned`: the same, but answers depend on their batch, of which bertkit warns.
`refused`: an error for the user before anything is trained. Everything else, a traceback included, is
`WRONG`. Reports are not written.

Run:  python benchmarks/families.py [--family bert] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import datasets
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from cases import CASES, DRAWN, TEXTS

import bertkit
from bertkit.errors import UserError
from bertkit.training import publish

TRAINING = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "bf16": False}
LORA, FREEZE = {"peft": {"r": 2}}, {"freeze": {"embeddings": True, "layers": 1}}
CELLS: dict[str, tuple[str, dict[str, Any]]] = {  # name -> case of tests/cases.py, sections of the recipe
    **{
        case: (case, {})
        for case in "single-label pair multi-label regression windows ner-softmax ner-crf".split()
    },
    **{case: (case, {}) for case in "qa similarity-cosent retrieval ranking-binary text-to-text mlm".split()},
    **{f"{case}, LoRA": (case, LORA) for case in ("single-label", "ner-crf", "mlm")},
    **{f"{case}, freeze": (case, FREEZE) for case in ("single-label", "mlm")},
}
FEATURES, BY_BATCH = "features", "answers one by one differ from those of a batch"

TOKENIZERS = {  # class -> model types; after a plus, what distinguishes two families of one type
    "BertTokenizer": "bert bros convbert distilbert electra ernie layoutlm megatron-bert mobilebert "
    "nomic_bert "
    "roberta+Bert roc_bert roformer squeezebert",
    "RobertaTokenizer": "data2vec-text ibert lilt longformer mra roberta roberta-prelayernorm",
    "XLMRobertaTokenizer": "gte jina_embeddings_v3 xlm-roberta xlm-roberta-xl xmod",
    "AlbertTokenizer": "albert nystromformer yoso",
    **{"BigBirdTokenizer": "big_bird", "CamembertTokenizer": "camembert", "DebertaTokenizer": "deberta"},
    **{"DebertaV2Tokenizer": "deberta-v2", "EsmcTokenizer": "esmc", "FNetTokenizer": "fnet"},
    **{"FunnelTokenizer": "funnel", "HerbertTokenizer": "bert+Herbert", "LayoutLMv3Tokenizer": "layoutlmv3"},
    **{"LukeTokenizer": "luke", "MPNetTokenizer": "mpnet"},
    **{"RemBertTokenizer": "rembert", "SplinterTokenizer": "splinter", "XLNetTokenizer": "xlnet"},
    "PreTrainedTokenizerFast": "eurobert flaubert modernbert ultrabert xlm",  # byte-level BPE
}
IN_PYTHON = {  # implemented in Python, or needs another library
    **{
        "BertweetTokenizer": "roberta+Bertweet",
        "PhobertTokenizer": "roberta+Phobert",
        "XLMTokenizer": "xlm+XLM",
    },
    **{"FlaubertTokenizer": "flaubert+Flaubert", "RoFormerTokenizer": "roformer+RoFormer"},
    **{"CanineTokenizer": "canine", "PerceiverTokenizer": "perceiver"},
}
FAMILIES = {family: name for name, each in (TOKENIZERS | IN_PYTHON).items() for family in each.split()}
BRACKETS, ROBERTA = (
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
)
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
FIRST = {  # tokenizer -> first tokens of its vocabulary, where they are not BRACKETS
    **dict.fromkeys(
        ("HerbertTokenizer", "LayoutLMv3Tokenizer", "LukeTokenizer", "RobertaTokenizer"), ROBERTA
    ),
    "DebertaTokenizer": ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"],
    "MPNetTokenizer": [*ROBERTA[:3], "[UNK]", "<unk>", "<mask>"],
}
SIZES = {  # value -> config fields; each model type has some of them
    24: "hidden_size d_model dim emb_dim true_hidden_size intra_bottleneck_size d_latents",
    2: "num_hidden_layers num_attention_heads num_key_value_heads n_layer n_layers n_head n_heads n_langs "
    "channel_shrink_ratio type_vocab_size",
    32: "intermediate_size hidden_dim d_inner",
    12: "d_head embedding_size entity_emb_size input_embedding_size output_embedding_size",
    4: "attention_window block_size num_landmarks segment_means_seq_len local_attention num_latents",
    1: "num_random_blocks num_decoder_layers",
    40: "pronunciation_vocab_size shape_vocab_size entity_vocab_size",
    130: "max_position_embeddings",
    0.2: "initializer_range",
}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
OWN: dict[str, dict[str, Any]] = {
    **{"deberta": DISENTANGLED, "deberta-v2": DISENTANGLED, "funnel": {"block_sizes": [1, 1]}},
    **{"roberta": {"type_vocab_size": 1}, "roberta+Bert": {"type_vocab_size": 1}},
    **{"squeezebert": {"embedding_size": 24}, "xmod": {"languages": ["en_XX"], "default_language": "en_XX"}},
}


def trained_tokenizer(name: str) -> Any:
    """A tokenizer of this class with the words of the rows."""
    vocab = {token: index for index, token in enumerate(FIRST.get(name, BRACKETS))}
    if name == "PreTrainedTokenizerFast":
        backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
        ids = [*vocab.items()]
        backend.post_processor = processors.TemplateProcessing(
            "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ids
        )
        given: dict[str, Any] = {"tokenizer_object": backend, **dict(zip(ROLES, BRACKETS, strict=False))}
    else:
        given = {"vocab": vocab} if name in FIRST else {}
    tokenizer = getattr(transformers, name)(**given)
    if len(tokenizer) < 20:  # else its tokens are fixed, such as amino acids
        texts = [str(value) for case in CASES for row in case.rows() for value in row.values()] * 20
        model, known = tokenizer.backend_tokenizer.model, tokenizer.get_vocab()
        options: dict[str, Any] = {
            "special_tokens": sorted(known, key=known.__getitem__),
            "show_progress": False,
        }
        suffix = getattr(model, "end_of_word_suffix", None) or ""
        trainer: Any = trainers.BpeTrainer(**options, end_of_word_suffix=suffix)
        if isinstance(model, models.WordPiece):
            trainer = trainers.WordPieceTrainer(**options)
        elif isinstance(model, models.Unigram):
            trainer = trainers.UnigramTrainer(**options, unk_token=tokenizer.unk_token)
        tokenizer.backend_tokenizer.train_from_iterator(texts, trainer)
    tokenizer.model_max_length = 128
    return tokenizer


def small_config(family: str, **fields: Any) -> Any:
    """The config of a small model, with these fields."""
    kind = family.partition("+")[0]
    known = transformers.AutoConfig.for_model(kind).to_dict()
    sizes: dict[str, Any] = {
        field: value for value, each in SIZES.items() for field in each.split() if field in known
    }
    return transformers.AutoConfig.for_model(kind, **(sizes | fields | OWN.get(family, {})))


def build(folder: Path, family: str) -> None:
    """A folder as the Hub would give it, with random weights."""
    name, kind = FAMILIES[family], family.partition("+")[0]
    folder.mkdir()
    fields: dict[str, Any] = {}
    if name in TOKENIZERS:
        tokenizer = trained_tokenizer(name)
        tokenizer.save_pretrained(folder)
        ids = {f"{role}_id": each for role in ROLES if (each := getattr(tokenizer, f"{role}_id")) is not None}
        fields = ids | {"vocab_size": len(tokenizer)}
    else:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
        (folder / "vocab.txt").write_text("a 1\nb 1\n")
        (folder / "bpe.codes").write_text("")
    torch.manual_seed(0)
    config = small_config(family, **fields)
    auto = transformers.AutoModelForMaskedLM if kind in MASKED else transformers.AutoModel
    auto.from_config(config).save_pretrained(folder)


def differs(one: Any, other: Any) -> bool:
    """Whether two answers are not the same, but for the rounding of fp32."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(differs(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) != len(other) or any(map(differs, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return not math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-4)
    return bool(one != other)


def verdict(folder: Path, cell: str) -> str:
    """What becomes of a cell, in a folder with an encoder."""
    name, sections = CELLS[cell]
    case = next(case for case in [*CASES, *DRAWN] if case.id == name)
    room, rows = Path(tempfile.mkdtemp(dir=folder.parent)), case.rows().to_list()
    (room / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {
        **{
            "task": case.options,
            "model": {"name": str(folder), "max_length": case.max_length},
            "training": TRAINING,
        },
        **{
            "data": {"source": {"train": "rows.jsonl", "test": "rows.jsonl"}},
            "verify": False,
            "explain": False,
        },
    }
    (room / "recipe.yaml").write_text(json.dumps(recipe | sections))
    try:
        try:
            run = bertkit.train(bertkit.load_recipe(room / "recipe.yaml"), room / "run")
        except UserError as error:  # do as it says
            if not (named := re.search(r"`target_modules` among: (\w+)", str(error))):
                raise
            again = bertkit.load_recipe(room / "recipe.yaml", [f"peft.target_modules=[{named[1]}]"])
            run = bertkit.train(again, room / "run")
    except UserError as error:
        return f"{'WRONG: refused late' if (room / 'run').exists() else 'refused'}: {error}"
    wrong = [*mistakes(run, folder, rows, cell)]
    if wrong == [BY_BATCH] and "padding changes" in (run.folder / "data.json").read_text():
        return "warned"
    return f"WRONG: {'; '.join(wrong)}" if wrong else "right"


def mistakes(run: Any, encoder: Path, rows: list[dict[str, Any]], cell: str) -> Iterator[str]:
    """What is wrong with a finished run."""
    predictor, masked = bertkit.load(run.folder), cell.startswith("mlm")
    results = json.loads((run.folder / "results.json").read_text())["splits"]["test"]["metrics"]
    if differs(bertkit.evaluate(run.folder)["metrics"], results):
        yield "evaluate differs from results.json"
    written = (run.folder / "predictions" / "test.jsonl").read_text().splitlines()
    if masked:  # the masks sampled for scores depend on all rows
        rows = [{"text": f"{text} {predictor.task.tokenizer.mask_token} ."} for text in TEXTS]
    elif differs([json.loads(line)["answer"] for line in written], predictor(rows)):
        yield "predict differs from predictions/test.jsonl"
    single, batch = [predictor(row) for row in rows], predictor(rows)
    if cell == "retrieval":  # whose answers rank the documents of all rows
        single, batch = (
            [predictor.encode([text])[0].tolist() for text in TEXTS],
            predictor.encode(TEXTS).tolist(),
        )
    if differs(single, batch):
        yield BY_BATCH
    if masked or cell.startswith("single-label"):
        task = "fill-mask" if masked else "text-classification"
        pipe = transformers.pipeline(task, model=str(run.model), top_k=5)
        cut = {} if masked else {"truncation": True, "max_length": predictor.task.max_length}
        expected = [
            sorted(each["score"] for each in best) for best in pipe([row["text"] for row in rows], **cut)
        ]
        ours = [[each["score"] for each in a["masks"][0]] if masked else a["scores"].values() for a in single]
        if differs(expected, [sorted(each) for each in ours]):
            yield f"transformers' {task} gives other probabilities"
    if CELLS[cell][1] is FREEZE:
        before, after = (transformers.AutoModel.from_pretrained(each) for each in (encoder, run.model))
        if not torch.equal(before.get_input_embeddings().weight, after.get_input_embeddings().weight):
            yield "frozen embeddings have moved"


def features(folder: Path) -> str:
    """The verdict on `Features`, compared with the mean of transformers' last hidden states."""
    try:
        reader = bertkit.Features(folder, cache=False, precision="fp32").fit(TEXTS)
        batch, single = (
            reader.transform(TEXTS).tolist(),
            [reader.transform([text])[0].tolist() for text in TEXTS],
        )
    except UserError as error:
        return f"refused: {error}"
    model = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        states = [model(**tokenizer(text, return_tensors="pt"))[0][0].mean(0).tolist() for text in TEXTS]
    if differs(single, states):
        return "WRONG: transformers gives other features"
    return f"WRONG: {BY_BATCH}" if differs(single, batch) else "right"


def verdicts(family: str) -> tuple[str, dict[str, str]]:
    """The family, and cell -> what becomes of it."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    datasets.disable_progress_bars()
    publish.write_reports = lambda *_: None
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room) / "encoder"
        build(folder, family)
        for cell in [*CELLS, FEATURES]:
            try:
                found[cell] = features(folder) if cell == FEATURES else verdict(folder, cell)
            except Exception as error:
                found[cell] = f"WRONG: {type(error).__name__}: {str(error)[:150]!r}"
    return family, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", action="append", choices=[*FAMILIES], help="by default all")
    parser.add_argument("--jobs", type=int, default=1, help="families at a time")
    args = parser.parse_args()
    total: Counter[str] = Counter()
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        for family, found in pool.map(verdicts, args.family or FAMILIES):
            cells: dict[str, list[str]] = {}
            for cell, outcome in found.items():
                cells.setdefault(outcome, []).append(cell)
            for outcome, names in cells.items():
                total[outcome.partition(":")[0]] += len(names)
                print(
                    f"{family:20} {len(names):2} {outcome.splitlines()[0]:8} ({', '.join(names)})", flush=True
                )
    print(*(f"{outcome}: {count}" for outcome, count in total.most_common()), sep="\n")


if __name__ == "__main__":
    main()
