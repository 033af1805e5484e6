"""What has a tag: words, characters or given tokens; decided from train, and the same in every use of a
model.
"""

import itertools
from array import array
from pathlib import Path

import numpy as np
import pytest
import small
import torch
from cases import NER
from datasets import Dataset
from seqeval.metrics import f1_score
from small import raises, read_as, write_rows
from transformers import BertConfig, BertModel, BertTokenizer

import bertkit
from bertkit.data import tagged, tagging, units
from bertkit.data.origin import Origin
from bertkit.data.readers import read_rows
from bertkit.data.scripts import joined
from bertkit.data.table import Table
from bertkit.data.word_spans import spans_to_tags, words
from bertkit.errors import DataError
from bertkit.sections import DataSpec
from bertkit.tasks.token_classification import TokenClassification, TokenClassificationOptions

SCRIPTS = Path(__file__).parent.parent.parent / "shared" / "data" / "scripts"
NAMES = ("张三", "李明", "王芳")
PLACES = ("北京", "上海")
CHINESE = [(f"{name}在{place}读书。", [(0, 2, "PER"), (3, 5, "LOC")]) for name in NAMES for place in PLACES]
JAPANESE = [
    ("田中さんは東京にいる。", [(0, 2, "PER"), (5, 7, "LOC")]),
    ("iPhoneは石川さんの。", [(7, 9, "PER")]),
]
KOREAN = [
    ("김철수는 서울에서 일한다.", [(0, 3, "PER"), (5, 7, "LOC")]),
    ("이영희는 부산에 산다.", [(0, 3, "PER"), (5, 7, "LOC")]),
]
THAI = [
    ("มาลีอยู่ที่เชียงใหม่", [(0, 4, "PER"), (11, 20, "LOC")]),
    ("สมชายไปกรุงเทพ", [(0, 5, "PER"), (7, 14, "LOC")]),
]
ARABIC = [
    ("وزيد في بيروت.", [(1, 4, "PER"), (8, 13, "LOC")]),
    ("سلمى وعلي هنا.", [(0, 4, "PER"), (6, 9, "PER")]),
]
DOSES = [(f"take 5{n}0mg of X200", [(5, 8, "DOSE"), (8, 10, "UNIT")]) for n in range(3)]
LANGUAGES = {"zh": CHINESE, "ja": JAPANESE, "ko": KOREAN, "th": THAI, "ar": ARABIC, "doses": DOSES}
UNITS = {
    "zh": "words",
    "ja": "words",
    "ko": "characters",
    "th": "words",
    "ar": "characters",
    "doses": "characters",
}


def encoder(folder, texts, by=1):
    """A small BERT whose tokens are the single characters of these texts; with `by` 2, pairs of them too."""
    characters = sorted({c for text in texts for c in text if not c.isspace()})
    pairs = sorted(
        {text[i : i + 2] for text in texts for i in range(len(text) - 1) if " " not in text[i : i + 2]}
    )
    pieces = characters + (pairs if by == 2 else [])
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *(f"##{piece}" for piece in pieces)]
    ids = {token: number for number, token in enumerate(vocabulary)}
    BertTokenizer(vocab=ids, do_lower_case=False, strip_accents=False, model_max_length=128).save_pretrained(
        folder
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 128}
    BertModel(BertConfig(vocab_size=len(vocabulary), **sizes, **still)).save_pretrained(folder)
    return folder


def of_file(path, **settings):
    return read_as(NER, {"train": path}, **settings)


def data(rows, tmp_path):
    return of_file(write_rows(tmp_path / "rows.jsonl", rows))


def said(read):
    return " ".join(finding.what for finding in read.findings)


def with_spans(rows):
    return [{"text": text, "spans": spans} for text, spans in rows]


def by_characters(rows):
    """Lists of all characters, blanks too, with tags in BMES."""
    lists = []
    for text, spans in rows:
        tags = ["O"] * len(text)
        for start, end, kind in spans:
            tags[start:end] = [f"B-{kind}", *[f"M-{kind}"] * (end - start - 2), f"E-{kind}"]
        lists.append({"tokens": [*text], "tags": tags})
    return lists


def by_words(rows):
    """Entities, and what is between them, as tokens beside the text."""
    lists = []
    for text, spans in rows:
        tokens = []
        tags = []
        done = 0
        for start, end, kind in spans:
            between = text[done:start].split()
            tokens += [*between, text[start:end]]
            tags += ["O"] * len(between) + [f"B-{kind}"]
            done = end
        between = text[done:].split()
        lists.append({"text": text, "tokens": tokens + between, "tags": tags + ["O"] * len(between)})
    return lists


def entities(answer):
    return [(entity["start"], entity["end"], entity["label"]) for entity in answer["entities"]]


@pytest.mark.parametrize("form", [with_spans, by_characters, by_words])
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_unit_is_the_coarsest_that_cuts_no_entity(language, form, tmp_path):
    rows = LANGUAGES[language]
    if form is by_characters and language in ("ar", "doses"):
        pytest.skip("spelled words are of scripts that write them so")
    read = data(form(rows), tmp_path)
    assert read.options.words == UNITS[language]
    assert [tuple(span.values()) for span in read.rows["train"]["spans"][0]] == rows[0][1]
    assert read.rows["train"]["text"][:] == [text for text, _ in rows]
    notes = [
        finding.what for finding in read.findings if finding.what.startswith("units: characters, since ")
    ]
    assert len(notes) == (UNITS[language] == "characters")


@pytest.mark.parametrize(
    ("language", "form"), [("zh", by_characters), ("ko", with_spans), ("ar", by_words), ("th", with_spans)]
)
def test_what_was_learned_is_found_in_raw_text_wherever_it_is_asked(language, form, tmp_path, monkeypatch):
    rows = LANGUAGES[language]
    folder = encoder(tmp_path / "encoder", [text for text, _ in rows])
    training = {"num_train_epochs": 100, "learning_rate": 3e-3, "bf16": False}
    settings = {"training": training, "verify": False, "explain": False}
    run = bertkit.train(
        "token-classification", tmp_path / "run", data=form(rows), model=str(folder), **settings
    )
    texts = [text for text, _ in rows]
    gold = [spans for _, spans in rows]
    predictor = run.load()
    answers = list(predictor(texts))
    assert [entities(answer) for answer in answers] == gold
    lists = [{name: row[name] for name in ("text", "tokens") if name in row} for row in form(rows)]
    assert [entities(answer) for answer in predictor(lists)] == gold
    bertkit.export(run.folder, tmp_path / "onnx")
    assert [entities(answer) for answer in bertkit.load(tmp_path / "onnx")(texts)] == gold
    (explanation,) = bertkit.explain(run.folder, texts[:1])
    text = explanation["texts"]["text"]
    parts = [text[start:end] for start, end, _ in explanation["attributed"][0]["words"]["text"]]
    assert "".join(parts) == "".join(texts[0].split())
    assert len(parts) == len(answers[0]["words"])
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    bertkit.predict(run.folder, input="in.jsonl", output="masked.jsonl", format="masked")
    for row, (text, spans) in zip(small.read_rows(tmp_path / "masked.jsonl"), rows, strict=True):
        for start, end, kind in reversed(spans):
            text = f"{text[:start]}[{kind}]{text[end:]}"
        assert row["text"] == text


def test_a_boundary_within_a_token_is_counted_before_training(tmp_path):
    folder = encoder(tmp_path / "encoder", [text for text, _ in KOREAN], by=2)  # 김철 | 수는
    checked = bertkit.check("token-classification", data=with_spans(KOREAN), model=str(folder))
    (findings,) = checked.findings.values()
    (cut,) = [finding for finding in findings if "inside a token of" in finding.what]
    assert cut.what.startswith("train: 2 entities")


def test_answers_to_a_text_say_that_the_model_learned_other_tokens(tmp_path):
    rows = [{"tokens": ["I", verb, "n't", "know"], "tags": ["O"] * 4} for verb in ("do", "did")]
    rows[0]["tags"][0] = "B-X"
    read = data(rows, tmp_path)
    assert read.options.words == "given"
    assert "of 2 sentences of train, 2 would be divided otherwise" in said(read)
    folder = encoder(tmp_path / "encoder", ["I do n't know did"])
    settings = {"training": {"max_steps": 1, "bf16": False}, "verify": False, "explain": False}
    predictor = bertkit.train(
        "token-classification", tmp_path / "run", data=rows, model=str(folder), **settings
    ).load()
    of_text = predictor([{"text": "I don't"}])[0]
    of_tokens = predictor([{"tokens": ["I", "do", "n't"]}])[0]
    assert of_text["other_words"]
    assert "other_words" not in of_tokens


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("I like it .", "I like it ."),
        ("S E X Y", "S E X Y"),
        ("他 叫 Tom Lee ， 来自 纽约 。", "他叫Tom Lee，来自纽约。"),
        ("มาลี ไป กรุงเทพ", "มาลีไปกรุงเทพ"),
        ("김철수 는 서울 에", "김철수 는 서울 에"),
        ("경 찰 은 A 형", "경찰은A형"),
    ],
)
def test_tokens_make_the_text_that_was_written(tokens, text):
    joined_text, places = joined(tokens.split())
    assert joined_text == text
    assert [joined_text[start:end] for start, end in places] == tokens.split()


def test_tokens_that_are_not_in_their_text_are_named(tmp_path):
    row = {"text": "Ada met Bo", "tokens": ["Ada", "saw", "Bo"], "tags": ["B-X", "O", "O"]}
    raises(DataError, r"rows.jsonl:1: token 2, 'saw', is not in the text at character", data, [row], tmp_path)


def test_a_few_spans_that_cut_a_word_are_expanded_and_counted(tmp_path):
    rows = [{"text": "Ada met Bo", "spans": [[0, 3, "X"], [8, 10, "X"]]}] * 600
    read = data([*rows, {"text": "Adam met Bo", "spans": [[0, 2, "X"]]}], tmp_path)
    assert (read.options.words, read.options.alignment) == ("words", "expand")
    assert "1 of 1,201 spans cut a word, and are expanded" in said(read)


@pytest.mark.parametrize(
    ("unit", "before", "count"),
    [
        ("UTF-16", "naïve 😀 ", lambda text, place: len(text[:place].encode("utf-16-le")) // 2),
        ("bytes of UTF-8", "naïve 😀 ", lambda text, place: len(text[:place].encode())),
        ("from 1", "plain ", lambda text, place: place + 1),
        ("to the last character", "plain ", lambda text, place: place - (place > 6)),
    ],
)
def test_offsets_that_are_counted_otherwise_are_recognised(unit, before, count, tmp_path):
    texts = [f"{before}Adelaide{n} met Bo" for n in range(5)]
    start = len(before)
    end = len(before) + 9
    rows = [{"text": text, "spans": [[count(text, start), count(text, end), "X"]]} for text in texts]
    if unit == "UTF-16":
        assert data(rows, tmp_path).rows["train"]["spans"][0] == [{"start": start, "end": end, "label": "X"}]
    else:
        raises(DataError, f"would fit it if their offsets were .*{unit}", data, rows, tmp_path)


def test_spans_with_their_own_text_say_whether_their_offsets_are_right(tmp_path):
    right = {"text": "张三在北京", "spans": [{"start": 0, "end": 2, "label": "X", "text": "张三"}]}
    wrong = {"text": "张三在北京", "spans": [{"start": 0, "end": 1, "label": "X", "text": "北京"}]}
    assert "1 span whose own text is not" in said(data([right, right, wrong], tmp_path))
    raises(DataError, "2 of 3 spans whose own text is not", data, [right, wrong, wrong], tmp_path)
    last = {"text": "张三在北京", "spans": [{"start": 0, "end": 1, "label": "X", "text": "张三"}]}
    raises(DataError, "to the last character", data, [last], tmp_path)


@pytest.mark.parametrize(
    ("row", "said_of_it"),
    [
        ({"text": "Tom去上海", "tags": "B-P I-P O O B-L I-L".split()}, "units: characters"),
        (
            {"tokens": ["Ada", "flew", " ", "to", "Bo"], "tags": "B-P O O O B-P".split()},
            "would be divided otherwise",
        ),
        ({"tokens": [*"김철수는", "Tom"], "tags": "B-P I-P I-P O B-P".split()}, "units: characters"),
        (
            {"text": "x", "tokens": ["Ada"], "tags": ["B-P"]},
            "token 1, 'Ada', is not in the text at character",
        ),
    ],
)
def test_tokens_and_tags_of_odd_rows(row, said_of_it, tmp_path):
    try:
        result = said(data([row] * 3, tmp_path))
    except DataError as error:
        result = str(error)
    assert said_of_it in result


PLACED = "科技全方位资讯智能快捷的汽车生活需要有三"
CONLL = {  # what a file has -> its lines, and the tokens of its first sentence
    "blank tokens": ("경\tB-X\n찰\tI-X\n \tO\n또\tO\n\n", ["경", "찰", " ", "또"]),
    "blank tokens and spaces": ("경 B-X\n찰 I-X\n  O\n또 O\n\n", ["경", "찰", " ", "또"]),
    "comments": ("## id\t<x>\n# text = a b\n#\tO\na\tB-X\n\n# b = c\nb\tO\n", ["#", "a"]),
    "comments and spaces": ("# sent_id = 3\n# O\na B-X\n", ["#", "a"]),
    "places": ("".join(f"{c}{n % 2}\tO\n" for n, c in enumerate(PLACED)), [*PLACED]),
    "blanks in words": ("บ่อย ๆ\tO\nไป\tB-X\n", ["บ่อย ๆ", "ไป"]),
}


@pytest.mark.parametrize("what", CONLL)
def test_conll_files_as_they_are(what, tmp_path):
    lines, tokens = CONLL[what]
    (tmp_path / "a.conll").write_text(lines)
    _, row = next(read_rows(tmp_path / "a.conll", DataSpec(source="a.conll")))
    assert row["tokens"] == tokens


def test_corrections_are_of_the_text_that_tokens_make(tmp_path):
    rows = by_characters(CHINESE)
    new = [{"location": "rows.jsonl:1", "text": CHINESE[0][0], "tags": "B-PER I-PER O O O O O O".split()}]
    new.append({"location": "rows.jsonl:2", "entities": [{"start": 3, "end": 5, "label": "LOC"}]})
    relabel = write_rows(tmp_path / "new.jsonl", new)
    train = of_file(write_rows(tmp_path / "rows.jsonl", rows), relabel=str(relabel)).rows["train"]
    spans = [[(span["start"], span["end"], span["label"]) for span in row] for row in train["spans"][:]]
    assert spans == [[(0, 2, "PER")], [(3, 5, "LOC")], *(entities for _, entities in CHINESE[2:])]
    assert train["tags"][0] == new[0]["tags"]
    assert train["tags"][1] == "O O O B-LOC I-LOC O O O".split()


def of_tags(tags):
    return [{"start": first, "end": end, "label": kind} for kind, first, end in tagging.entities(tags)]


def as_predicted(text, tags):
    """The answer that has these entities of characters."""
    found = spans_to_tags(text, of_tags(tags), "expand", "characters").tags
    places = zip(words(text, "characters"), found, strict=True)
    tagged_words = [{"tag": tag, "start": start, "end": end, "score": 1.0} for (start, end), tag in places]
    return {"words": tagged_words, "entities": [{**span, "score": 1.0} for span in of_tags(tags)]}


@pytest.mark.skipif(not SCRIPTS.is_dir(), reason=f"{SCRIPTS} is absent")
def test_scores_of_characters_are_those_of_seqeval_on_the_characters_of_the_file():
    """KLUE's own measure: entities of characters, blanks included."""
    path = SCRIPTS / "klue_ko.tsv"
    rng = np.random.default_rng(0)
    sentences = [
        row for _, row in itertools.islice(read_rows(path, DataSpec(source="x", format="conll")), 300)
    ]
    texts = []
    gold = []
    predicted = []
    for row in sentences:
        kept = [rng.random() < 0.9 for _ in row["tags"]]
        kept = [kept[max(0, place - token.isspace())] for place, token in enumerate(row["tokens"])]
        predicted.append([tag if keep else "O" for tag, keep in zip(row["tags"], kept, strict=True)])
        texts.append("".join(row["tokens"]))
        gold.append(of_tags(row["tags"]))
    table = Table(
        {"text": texts, "spans": gold}, Origin(["klue:"], array("H", bytes(600)), array("q", range(300)))
    )
    table, _ = tagged.tag_spans(table, "test", "strict", "characters")
    labels = sorted({span["label"] for spans in gold for span in spans})
    options = TokenClassificationOptions(name="token-classification", words="characters", labels=labels)
    rows = Dataset.from_dict({name: [*values] for name, values in table.values.items()})
    answers = [as_predicted(text, tags) for text, tags in zip(texts, predicted, strict=True)]
    scores = TokenClassification(options, None, 9).grade(answers, rows).scores
    assert scores["f1"] == pytest.approx(f1_score([row["tags"] for row in sentences], predicted))


FILES = {  # file -> sentences, entities, unit: counted from its lines
    "weibo_zh.train.conll": (1350, 1895, "characters"),
    "wikipedia_ja.json": (4274, 10500, "characters"),
    "klue_ko.tsv": (3500, 10036, "characters"),
    "thainer_th.conll": (2000, 5056, "words"),
}


@pytest.mark.parametrize("name", FILES)
def test_real_files_lose_no_entity(name):
    if not SCRIPTS.is_dir():
        pytest.skip(f"{SCRIPTS} is absent")
    rows, count, unit = FILES[name]
    read = of_file(SCRIPTS / name, format="conll" if name.endswith("tsv") else None)
    train = read.rows["train"]
    assert (len(train), read.options.words, read.options.alignment) == (rows, unit, "strict")
    found = [tagging.entities(tags) for tags in train["tags"][:]]
    assert sum(map(len, found)) == count
    for text, spans, entities_of_tags in zip(train["text"][:], train["spans"][:], found, strict=True):
        places = words(text, unit)
        assert [(span["start"], span["end"]) for span in spans] == [
            (places[a][0], places[b - 1][1]) for _, a, b in entities_of_tags
        ]


@pytest.mark.parametrize("tokens", [["Hello", "！", "@user"], ["in", "東京", "now"]])
def test_a_row_in_another_script_keeps_a_tag_per_token(tokens):
    rows = Dataset.from_dict({"tokens": [["Ada", "met", "Bo"], tokens], "tags": [["B-X", "O", "O"]] * 2})
    assert [len(places) for places in units.sentences(rows, "words")[1]] == [3, 3]
