"""WordPiece trained from text: against the definition and the library, byte for byte, and opened again by
others.
"""

import gzip
import logging
import lzma
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import raises, read_rows, refused, said, write_rows
from tokenizers import BertWordPieceTokenizer
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import AutoTokenizer, BertTokenizer

import bertkit
from bertkit.errors import DataError
from bertkit.recipe.recipe import parse_layout
from bertkit.tokenizer.train import BERT_LAYOUT, SPECIALS, Corpus, cut, reserved, train_tokenizer

SAMPLES = Path(bertkit.__file__).parent / "samples/sentiment"
HARD = (
    "",
    " \t\n",
    "Crème brûlée, naïve Ångström; İstanbul and STRASSE",
    "東京タワー and 서울 and 北京",
    "a 🙂 and 👩‍👩‍👧, \u200bzero width",
    "bell \x07, nul \x00, half \ufffd, and a no-break\xa0space",
    "can't stop -- won't: (x+y)=3.14 [MASK] ##ing",
    "long " + "ab" * 60,
)
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


def sentiment(split):
    """The texts of a split of the sample: 500 of train, 19,000 words; 120 of test."""
    return [row["text"] for row in read_rows(SAMPLES / f"{split}.jsonl")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The sample's training texts."""
    return write_rows(
        tmp_path_factory.mktemp("corpus") / "texts.jsonl", [{"text": text} for text in sentiment("train")]
    )


def merged_by_definition(texts, size, min_frequency):
    """Byte-pair merges as Sennrich et al. (2016, algorithm 1) have them, and BERT's ##; ties go to older
    symbols.
    """
    normalizer = BertNormalizer()
    split = BertPreTokenizer().pre_tokenize_str
    words = Counter(word for text in texts for word, _ in split(normalizer.normalize_str(text)))
    pieces = sorted({c for word in words for c in word}) + sorted(
        {f"##{c}" for word in words for c in word[1:]}
    )
    symbols = {word: [word[0], *(f"##{c}" for c in word[1:])] for word in words}
    while len(pieces) < size:
        pairs = Counter()
        for word, parts in symbols.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        ids = {piece: index for index, piece in enumerate(pieces)}
        best = min(pairs, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]), default=None)
        if best is None or pairs[best] < min_frequency:
            break
        new = best[0] + best[1].removeprefix("##")
        pieces += [new] if new not in ids else []
        for parts in symbols.values():
            for index in range(len(parts) - 1):
                if tuple(parts[index : index + 2]) == best:
                    parts[index : index + 2] = [new]
    return pieces


def vocabulary(folder):
    return (folder / "vocab.txt").read_text().removesuffix("\n").split("\n")


def assert_equal(folder, other):
    """Byte for byte."""
    for name in FILES:
        assert (folder / name).read_bytes() == (other / name).read_bytes()


# --- what is learned


def test_merges_are_those_of_the_definition(tmp_path):
    file = write_rows(tmp_path / "texts.jsonl", [{"text": text} for text in sentiment("test")])
    tokenizer = train_tokenizer([file], tmp_path / "out", vocab_size=300)
    wanted = [*SPECIALS, *merged_by_definition(sentiment("test"), 295, 2)]
    assert len(tokenizer) == 300
    assert vocabulary(tmp_path / "out") == wanted
    assert tokenizer.convert_tokens_to_ids(wanted) == list(range(300))


@pytest.mark.parametrize("lowercase", [True, False])
def test_words_are_cut_as_after_the_librarys_own_training(lowercase, corpus, tmp_path):
    """Their trainer breaks ties by chance, so not all is the same: 12 to 16 of 1,000 pieces were not."""
    theirs = BertWordPieceTokenizer(lowercase=lowercase)
    theirs.train_from_iterator(sentiment("train"), vocab_size=1000, show_progress=False)
    ours = train_tokenizer([corpus], tmp_path / "out", vocab_size=1000, cased=not lowercase)
    assert len(ours.get_vocab().keys() & theirs.get_vocab().keys()) > 970
    words = [word for text in sentiment("train") for word in text.split()]
    cut = theirs.encode_batch(words, add_special_tokens=False)
    same = [ours.tokenize(word) == each.tokens for word, each in zip(words, cut, strict=True)]
    assert sum(same) / len(same) > 0.97


TIES = "".join(f"{a}{b}{c} " for a in "hgfedcba" for b in "stuvwxyz" for c in "12345678")
PROGRAM = """
import sys
from pathlib import Path
from bertkit.tokenizer.train import train_tokenizer
train_tokenizer([Path(sys.argv[1])], Path(sys.argv[2]), vocab_size=150, min_frequency=1)
"""


def test_the_same_bytes_in_every_process_and_with_threads(tmp_path):
    """Every pair is as frequent as many others, and 126 of 1,192 merges are wanted: chance would show."""
    (tmp_path / "ties.txt").write_text(TIES + "\n" + TIES[::-1] + "\n")
    train_tokenizer([tmp_path / "ties.txt"], tmp_path / "here", vocab_size=150, min_frequency=1)
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "3"}
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        PROGRAM,
        f"{tmp_path}/ties.txt",
        f"{tmp_path}/there",
    ]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    assert_equal(tmp_path / "here", tmp_path / "there")


# --- ids and size


@pytest.mark.parametrize(
    ("vocab_size", "count", "ids"),
    [
        (30522, 999, [0, 100, 101, 102, 103]),
        (9990, 999, [0, 100, 101, 102, 103]),
        (9989, 104, [0, 100, 101, 102, 103]),
        (1040, 104, [0, 100, 101, 102, 103]),
        (1039, 5, [0, 1, 2, 3, 4]),
    ],
)
def test_special_tokens_have_berts_ids_where_there_is_room(vocab_size, count, ids):
    layout = reserved(vocab_size)
    assert len(layout) == len(set(layout)) == count
    assert [layout.index(token) for token in SPECIALS] == ids
    # as in bert-base-uncased's file
    places = {
        1: "[unused0]",
        99: "[unused98]",
        104: "[unused99]",
        998: "[unused993]",
    }
    assert {place: BERT_LAYOUT[place] for place in places} == places


def test_a_vocabulary_is_as_large_as_was_asked_for_or_says_so(corpus, tmp_path, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    tokenizer = train_tokenizer([corpus], tmp_path / "full", vocab_size=1200)
    assert len(tokenizer) == len(vocabulary(tmp_path / "full")) == 1200
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIALS] == [0, 100, 101, 102, 103]
    assert "requested" not in caplog.text
    assert "no room" not in caplog.text
    assert "1,200 tokens" in caplog.text
    (tmp_path / "few.txt").write_text("low lower lowest\n" * 9)
    caplog.clear()
    assert len(train_tokenizer([tmp_path / "few.txt"], tmp_path / "few", vocab_size=60)) == 24
    one = train_tokenizer(tmp_path / "few.txt", tmp_path / "one", vocab_size=60, columns="text")
    assert len(one) == 24
    assert "only these tokens, of 60 requested" in caplog.text
    assert "no room for BERT's own ids" in caplog.text
    assert "9 texts, 27 words, 7 characters\n" in caplog.text


def test_rare_characters_are_left_out_and_counted(tmp_path, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    (tmp_path / "some.txt").write_text("abc abc abc abd zab yab xab\n")
    tokenizer = train_tokenizer([tmp_path / "some.txt"], tmp_path / "out", vocab_size=60, limit_alphabet=4)
    singles = [
        piece.removeprefix("##") for piece in vocabulary(tmp_path / "out")[5:] if len(piece.lstrip("#")) == 1
    ]
    assert sorted(set(singles)) == "a b c d".split()
    assert tokenizer.tokenize("abc yab") == ["abc", "[UNK]"]
    assert "7 characters, 3 rarer ones become [UNK], 37.50% of the tokens" in caplog.text
    assert (
        "with an alphabet of 4 characters the corpus yields only these tokens, of 60 requested" in caplog.text
    )


# --- other scripts


@pytest.mark.parametrize(
    ("text", "kept", "said_of_it"),
    [
        ("राम दिल्ली में रहता है", True, "18.2% of"),
        ("がかだたば", True, "with all marks"),
        ("เมื่อวานมาลีอยู่ที่เชียงใหม่", True, "with all marks"),
        ("김철수는 서울에서 일한다", True, "with all marks"),
        ("昨天张三去了上海", False, "without accents"),
        ("Crème brûlée, Ωμέγα, й, tiê\u0301ng ❤\ufe0f", False, "without accents"),
        ("Crème " * 60 + "में", False, "without accents"),
    ],
)
def test_marks_are_removed_only_where_they_are_accents(text, kept, said_of_it, tmp_path, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    train_tokenizer([write(tmp_path / "some.txt", [text])], tmp_path / "out", vocab_size=300)
    opened = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert said_of_it in caplog.records[0].getMessage()
    assert (opened.strip_accents, opened.backend_tokenizer.normalizer.strip_accents) == (
        (False,) * 2 if kept else (None,) * 2
    )
    spelled = opened.decode(opened(text, add_special_tokens=False)["input_ids"])
    assert (spelled.replace(" ", "") == text.replace(" ", "")) is (kept or text[0] == "昨")


def test_a_clause_without_blanks_is_read_whole_and_a_longer_one_in_parts(tmp_path):
    clause = "สมชายไปกรุงเทพแล้วกลับบ้านที่เชียงใหม่"  # of 38 characters
    returned = train_tokenizer([write(tmp_path / "th.txt", [clause * 5])], tmp_path / "out", vocab_size=300)
    opened = AutoTokenizer.from_pretrained(tmp_path / "out", model_max_length=9999)
    for text, parts in ((clause * 5, 1), (clause * 30, 6)):
        ids = opened(text, add_special_tokens=False)["input_ids"]
        assert ids == returned(text, add_special_tokens=False)["input_ids"]
        assert opened.unk_token_id not in ids
        assert opened.decode(ids).replace(" ", "") == text
        assert sum(not token.startswith("##") for token in opened.convert_ids_to_tokens(ids)) == parts
    assert opened("ไป", "ไป")["token_type_ids"].count(1) > 1


@pytest.mark.parametrize(("room", "count"), [(9_999, 2_000), (2_500, 1_250), (900, 1_000)])
def test_the_alphabet_is_as_large_as_the_script_requires(room, count, tmp_path):
    """2,000 characters that occur 20 times each, and 9 that occur once: 0.02 % of all."""
    common, rare = (
        "".join(map(chr, range(0x4E00 + start, 0x4E00 + end))) for start, end in ((0, 2_000), (2_000, 2_009))
    )
    file = write(tmp_path / "zh.txt", [*[common] * 20, rare])
    corpus = Corpus([file], ["text"], parse_layout([]), BertNormalizer())
    assert len(corpus.alphabet(None, room)) == count
    assert len(corpus.alphabet(7, room)) == 7


# --- the folder


@pytest.mark.filterwarnings("ignore:Deprecated in 0.9.0:DeprecationWarning")  # by transformers before 5.20
@pytest.mark.parametrize("lowercase", [True, False])
def test_others_open_the_folder_and_read_the_same(lowercase, corpus, tmp_path):
    out = tmp_path / "deep/out"
    returned = train_tokenizer([corpus], out, vocab_size=600, cased=not lowercase, max_length=77)
    assert {path.name for path in out.iterdir()} == set(FILES)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    opened = AutoTokenizer.from_pretrained(out)
    assert type(opened) is type(returned) is BertTokenizer
    assert (opened.do_lower_case, opened.model_max_length) == (lowercase, 77)
    plain = BertTokenizer(f"{out}/vocab.txt", do_lower_case=lowercase)
    for text in [*HARD, *sentiment("test")]:
        assert dict(returned(text)) == dict(opened(text)) == dict(plain(text))
    pair = opened("the film", "was good")
    first = opened("the film")["input_ids"]
    second = opened("was good")["input_ids"]
    assert pair["input_ids"] == [*first, *second[1:]]
    assert (first[0], first[-1]) == (opened.cls_token_id, opened.sep_token_id)
    assert pair["token_type_ids"] == [0] * len(first) + [1] * (len(second) - 1)
    assert (
        opened.decode(opened("the film was good")["input_ids"], skip_special_tokens=True)
        == "the film was good"
    )
    assert (opened.tokenize("THE FILM") == opened.tokenize("the film")) is lowercase


# --- the corpus


def write(path, texts):
    """The texts in the format of the file's name: .parquet, or .txt, maybe compressed."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path)
        return path
    packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(packed("".join(f"{text}\n" for text in texts).encode()))
    return path


def test_one_corpus_in_two_formats_and_two_files_gives_the_same(corpus, tmp_path):
    texts = sentiment("train")
    parts = [write(tmp_path / "a.txt.xz", texts[:200]), write(tmp_path / "b.parquet", texts[200:])]
    train_tokenizer(parts, tmp_path / "parts", vocab_size=300)
    train_tokenizer([corpus], tmp_path / "whole", vocab_size=300)
    assert_equal(tmp_path / "parts", tmp_path / "whole")


@given(st.text(alphabet="ab \n", max_size=60), st.integers(1, 9))
def test_long_texts_are_cut_at_blanks_and_nothing_is_lost(text, size):
    pieces = list(cut(text, size))
    assert "".join(pieces) == text
    assert all(len(piece) <= size for piece in pieces)
    if all(len(word) < size for word in text.split()):
        assert [word for piece in pieces for word in piece.split()] == text.split()


def test_one_endless_line_is_as_many_short_ones(tmp_path):
    for name, joint in (("line", " "), ("lines", "\n")):
        file = write(tmp_path / f"{name}.txt", [joint.join(sentiment("train"))])
        train_tokenizer([file], tmp_path / name, vocab_size=300)
    assert vocabulary(tmp_path / "line") == vocabulary(tmp_path / "lines")


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """Python's own: a text that is held, once or twice, shows as its own size."""
    line = "so much depends upon a red wheel barrow glazed with rain water beside the white chickens"
    peaks = []
    for name, lines in (("first", 1_000), ("small", 1_000), ("large", 7_000)):
        (tmp_path / f"{name}.txt").write_text(f"{line}\n" * lines)
        tracemalloc.start()
        train_tokenizer([tmp_path / f"{name}.txt"], tmp_path / name, vocab_size=100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (tmp_path / "large.txt").stat().st_size > 600_000
    assert abs(peaks[2] - peaks[1]) < 200_000  # bytes


# --- what the user has to put right


def test_everything_that_is_wrong_is_said_at_once(capsys, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    good = write(tmp_path / "good.txt", ["a text"])
    command = ("tokenizer", "train", "--output")
    told = refused(
        capsys, *command, tmp_path / "full", "--vocab-size", 5, "--min-frequency", 0, "--limit-alphabet", 0,
        "--max-length", 2, "--input", good, tmp_path / "nowhere.txt", tmp_path,
    )  # fmt: skip
    for words in (
        "vocab_size: 5",
        "min_frequency: 0",
        "limit_alphabet: 0",
        "max_length: 2",
        "already exists",
    ):
        assert words in told
    assert f"{tmp_path / 'nowhere.txt'}: no such file" in told
    assert told.count("error: ") == 7

    (tmp_path / "bytes.txt").write_bytes(b"a\n\xff\n")
    (tmp_path / "nul.txt").write_bytes(b"text\n\0\nb\0c\n")
    write(tmp_path / "empty.txt", [])
    write_rows(tmp_path / "rows.jsonl", [{"text": "a"}, {"body": "b"}, {"text": 3}, {"text": None}])
    broken = write(tmp_path / "cut.txt.gz", ["a text" * 99])
    broken.write_bytes(broken.read_bytes()[:-9])
    files = [tmp_path / name for name in "bytes.txt nul.txt empty.txt rows.jsonl cut.txt.gz".split()]
    told = refused(capsys, *command, tmp_path / "out", "--input", good, *files)
    for words in (
        "bytes.txt:2: byte 0xFF",
        "nul.txt:2: a NUL byte",
        "nul.txt:3: a NUL byte",
        "empty.txt: is empty: no rows",
        "rows.jsonl:2: no column 'text'; found body",
        "rows.jsonl:3: 'text' holds 3",
        "cut.txt.gz: the archive is damaged",
    ):
        assert words in told
    assert told.count("error: ") == 7
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_that_can_not_hold_the_alphabet(tmp_path):
    file = write(tmp_path / "some.txt", ["abc cab bca"])
    with pytest.raises(
        DataError, match=r"10 is too small: 5 are special, 6 are the alphabet\n.*more than 11"
    ):
        train_tokenizer([file], tmp_path / "out", vocab_size=10, min_frequency=1)
    assert len(train_tokenizer([file], tmp_path / "out", vocab_size=11, min_frequency=1)) == 11
    for files, said_of_them in (
        ([], "no files"),
        ([write(tmp_path / "blank.txt", ["", " \t "])], "contains no words"),
    ):
        raises(DataError, said_of_them, train_tokenizer, files, tmp_path / "none")


# --- the command, and real text


def test_the_command_reports_and_writes_what_the_function_writes(capsys, corpus, tmp_path):
    out = tmp_path / "out"
    rows = [{"body": text} for text in sentiment("train")]
    other = write_rows(tmp_path / "other.jsonl", rows)
    said(capsys, "tokenizer", "train", "--input", other, "--column", "body", "--output", out, "--vocab-size", "300",
         "--cased", "--min-frequency", "3", "--limit-alphabet", "50", "--max-length", "64")  # fmt: skip
    train_tokenizer(
        [corpus],
        tmp_path / "same",
        vocab_size=300,
        cased=True,
        min_frequency=3,
        limit_alphabet=50,
        max_length=64,
    )
    assert_equal(out, tmp_path / "same")
    assert "already exists" in refused(capsys, "tokenizer", "train", "--input", other, "--output", out)


def test_lines_are_counted_once_whatever_the_columns_are(tmp_path):
    rows = write_rows(tmp_path / "a.jsonl", [{"en": "a", "de": "b"}])
    (tmp_path / "b.txt").write_text("one text\n")
    corpus = Corpus([rows, tmp_path / "b.txt"], ["en", "de"], parse_layout([]), BertNormalizer())
    assert (corpus.texts, corpus.words) == (3, 4)
