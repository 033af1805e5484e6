"""Sentences, packing, pairs and masks: nothing lost, nothing leaked, and a pure function of seed, epoch and
index.
"""

import itertools
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import regex
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from small import raises
from transformers import BertTokenizer, PreTrainedTokenizerFast

from bertkit.errors import ModelError
from bertkit.models.bert.masking import Masking
from bertkit.models.bert.pretraining_data import encode_documents
from bertkit.models.bert.sentences import pack, sentences

SPECIAL = "[PAD] [UNK] [CLS] [SEP] [MASK]".split()
LENGTH = 64


def vocabulary(words):
    """Special tokens, some unused ones, these words, and letters to spell all others."""
    letters = sorted({letter for word in words for letter in word} | set("[]abcdefghijklmnopqrstuvwxyz.!?,'"))
    pieces = [
        *SPECIAL,
        *(f"[unused{i}]" for i in range(5)),
        *letters,
        *(f"##{letter}" for letter in letters),
        *words,
    ]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


def made_documents(count, seed=0):
    """Documents of 1 to 40 sentences of made-up words, of which every second one is in the vocabulary."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(1, 6))) for _ in range(400)]

    def sentence():
        return " ".join(rng.choices(words, k=rng.randint(2, 20))).capitalize() + "."

    documents = [" ".join(sentence() for _ in range(rng.randint(1, 40))) for _ in range(count)]
    return documents, words[::2]


@pytest.fixture(scope="module")
def made():
    """(documents, their rows, a tokenizer)."""
    documents, words = made_documents(120)
    return documents, Dataset.from_dict({"text": documents}), BertTokenizer(vocab=vocabulary(words))


def drawn(features, drawing, epoch=0, seed=1, size=64):
    """All examples of an epoch, as rows."""
    examples = []
    for start in range(0, len(features), size):
        columns = drawing(features, range(start, min(start + size, len(features))), seed, epoch)
        examples += [
            dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
        ]
    return examples


def unmasked(example):
    """The pieces before they were masked."""
    return [
        i if label == -100 else label
        for i, label in zip(example["input_ids"], example["labels"], strict=True)
    ]


def segments(example, sep):
    """The pieces of A and of B; of A alone where there is no B."""
    pieces = unmasked(example)[1:-1]
    parts = [[]]
    for piece in pieces:
        if piece == sep:
            parts.append([])
        else:
            parts[-1].append(piece)
    return parts


# --- sentences
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four… Five", "One. Two! Three? Four… Five".split()),
        ("He met Dr. Smith at 3.14 p.m. in St. Paul.", ["He met Dr. Smith at 3.14 p.m. in St. Paul."]),
        ("J. R. R. Tolkien wrote. He did.", ["J. R. R. Tolkien wrote.", "He did."]),
        ("The U.S. Army came, e.g. Troops, cf. Vol. 3.", ["The U.S. Army came, e.g. Troops, cf. Vol. 3."]),
        ("See No. 5. He said no. Then he left.", ["See No. 5.", "He said no.", "Then he left."]),
        ('"Stop!" he said. "Why?" She left.', ['"Stop!" he said.', '"Why?"', "She left."]),
        ("(It was late.) “So it was.” Good", ["(It was late.)", "“So it was.”", "Good"]),
        ("今日は。元気？「はい。」そう", ["今日は。", "元気？", "「はい。」", "そう"]),
        ("Title\nFirst line\n\n  Second.  ", ["Title", "First line", "Second."]),
        ("Wait... what? Well... Yes.", ["Wait... what?", "Well...", "Yes."]),
        (
            "彼は来た｡彼女は行った｡他来了？！好。３．１４だ．はい",
            "彼は来た｡ 彼女は行った｡ 他来了？！ 好。 ３．１４だ． はい".split(),
        ),
        ("राम गया। सीता आई॥ (क्या हुआ?)", ["राम गया।", "सीता आई॥", "(क्या हुआ?)"]),
        ("علی آیا۔ سارہ گئی۔ هل جاء؟! نعم.", ["علی آیا۔", "سارہ گئی۔", "هل جاء؟!", "نعم."]),
        ("សុខាមក។ដារ៉ាទៅ៕ ចប់", ["សុខាមក។", "ដារ៉ាទៅ៕", "ចប់"]),
        ("သူလာသည်။သူသွားသည်၊ နောက်", ["သူလာသည်။", "သူသွားသည်၊ နောက်"]),
        ("Նա եկավ։ Նա գնաց։ ሰላም። እሺ፧ አዎ", ["Նա եկավ։", "Նա գնաց։", "ሰላም።", "እሺ፧", "አዎ"]),
        ("เขามาแล้ว เธอไปแล้ว", ["เขามาแล้ว เธอไปแล้ว"]),
        ("In Jan. 1900 it rained. Jan. He came.", ["In Jan. 1900 it rained.", "Jan.", "He came."]),
        ("", []),
        (" \n\t ", []),
        (".", ["."]),
    ],
)
def test_sentences_end_where_they_end(text, expected):
    assert sentences(text) == expected


def test_all_marks_of_unicode_end_a_sentence_but_commas_and_those_of_latin_text():
    mark = regex.compile(r"(?![\u2000-\u206f\u2e00-\u2e7f၊᭎᭞꧈])\p{Sentence_Terminal}")
    marks = [char for char in map(chr, range(sys.maxunicode + 1)) if mark.match(char)]
    assert [char for char in marks if sentences(f"word{char} Word") != [f"word{char}", "Word"]] == []
    assert len(marks) > 150


@given(
    st.text(alphabet=st.sampled_from("aA1 .!?…。؟।．\"'”)]\n\t\u2028\x85Dr"), max_size=200)
    | st.text(max_size=100)
)
def test_no_character_of_a_text_is_lost(text):
    found = sentences(text)
    assert "".join("".join(sentence.split()) for sentence in found) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in found)


@pytest.mark.parametrize("unit", [".", '."', "a.", '.)"', "!?", "A. ", "。", " .", "'", "؟", "．", "।) "])
def test_sentences_of_any_input_take_linear_time(unit):
    # Quadratic time would be 10^10 steps here: the test would not end.
    text = unit * 100_000
    assert "".join("".join(sentence.split()) for sentence in sentences(text + "x")) == "".join(
        (text + "x").split()
    )


# --- packing
# ---------------------------------------------------------------------------------------------------------

lengths = st.lists(st.integers(1, 90), min_size=1, max_size=30)


@given(lengths, st.integers(5, 60), st.booleans(), st.sampled_from([0.0, 0.1, 1.0]), st.integers())
@settings(max_examples=400)
def test_packing_loses_nothing_and_never_goes_beyond_the_limit(sizes, limit, pairs, short, seed):
    if sum(sizes) < 2:
        return
    chunks = pack(sizes, limit, pairs, short, seed)
    assert all(0 < sum(chunk) <= limit and all(part > 0 for part in chunk) for chunk in chunks)
    assert all(len(chunk) >= 2 for chunk in chunks) or not pairs
    assert sum(map(sum, chunks)) == sum(sizes)
    ends = set(itertools.accumulate(part for chunk in chunks for part in chunk))
    assert ends >= set(itertools.accumulate(sizes))  # sentences may be parted, never joined
    assert chunks == pack(sizes, limit, pairs, short, seed)


def test_packing_is_greedy_without_short_sequences():
    assert pack([4, 4, 4, 4], 10, False, 0.0, 0) == [[4, 4], [4, 4]]
    assert pack([25], 10, False, 0.0, 0) == [[8], [8], [9]]
    assert pack([4, 4, 1, 4, 4], 10, True, 0.0, 0) == [[4, 4, 1], [4, 4]]
    assert pack([3, 3, 3, 4], 10, True, 0.0, 0) == [[3, 3], [3, 4]]
    assert pack([5, 5, 4], 10, True, 0.0, 0) == [[5, 5], [2, 2]]
    assert pack([5, 5, 1], 10, True, 0.0, 0) == [[5, 2], [3, 1]]
    assert pack([7], 100, True, 0.0, 0) == [[3, 4]]


def test_a_tenth_of_the_sequences_is_short():
    sizes = [2] * 100_000
    whole = pack(sizes, 100, True, 0.0, 5)
    assert {sum(chunk) for chunk in whole} == {100}
    chunks = [sum(chunk) for chunk in pack(sizes, 100, True, 0.1, 5)]
    short = [size for size in chunks if size < 100]
    assert 0.08 < len(short) / len(chunks) < 0.12
    assert 40 < np.mean(short) < 60
    assert min(short) < 10


# --- features
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nsp", ["nsp", "none"])
def test_every_piece_of_every_document_is_in_one_chunk(made, nsp):
    documents, rows, tokenizer = made
    features = encode_documents(rows, tokenizer, LENGTH, nsp=nsp)
    pieces = defaultdict(list)
    for feature in features.to_list():
        pieces[feature["row"]] += feature["input_ids"]
        assert sum(feature["sentences"]) == len(feature["input_ids"])
        assert feature["length"] == len(feature["input_ids"]) + (3 if nsp == "nsp" else 2) <= LENGTH
        assert feature["lost"] == 0
        assert nsp == "none" or len(feature["sentences"]) >= 2
    assert features["row"][:] == sorted(features["row"][:])
    expected = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in documents]
    assert dict(pieces) == {row: ids for row, ids in enumerate(expected) if len(ids) > 1}


def test_documents_too_short_for_a_pair_give_no_feature(made):
    rows = Dataset.from_dict({"text": ["a", "", "a b", " "]})
    features = encode_documents(rows, made[2], LENGTH, nsp="nsp")
    assert features["row"][:] == [2]
    assert features["sentences"][:] == [[1, 1]]
    nothing = encode_documents(rows.select([0, 1]), made[2], LENGTH, nsp="none")
    assert (len(nothing), nothing.column_names) == (0, features.column_names)


def test_features_of_a_document_do_not_depend_on_the_others(made):
    documents, rows, tokenizer = made
    features = encode_documents(rows, tokenizer, LENGTH, nsp="nsp")
    turned = encode_documents(rows.select(range(len(rows) - 1, -1, -1)), tokenizer, LENGTH, nsp="nsp")
    columns = ("input_ids", "sentences", "document")

    def by_text(encoded, texts):
        found = defaultdict(list)
        for feature in encoded.to_list():
            found[texts[feature["row"]]].append([feature[name] for name in columns])
        return found

    assert by_text(features, documents) == by_text(turned, documents[::-1])


def test_any_number_of_processes_keeps_the_same_features(made, tmp_path):
    _, rows, tokenizer = made
    plain = encode_documents(rows, tokenizer, LENGTH, nsp="nsp")
    for processes in (1, 2):
        cache = tmp_path / str(processes)
        kept = encode_documents(rows, tokenizer, LENGTH, nsp="nsp", cache=cache, processes=processes)
        assert kept.to_dict() == {name: plain[name][:] for name in kept.column_names}
        assert len(kept.cache_files) == processes
        assert all(cache in Path(file["filename"]).parents for file in kept.cache_files)
        assert len(list(cache.iterdir())) == 1  # nothing that was written aside is left


def test_kept_features_are_opened_again_and_only_for_the_same(made, tmp_path, monkeypatch):
    _, rows, tokenizer = made

    def kept(rows=rows, length=LENGTH, nsp="nsp", short=0.1):
        return encode_documents(rows, tokenizer, length, nsp=nsp, short_sequences=short, cache=tmp_path)

    first = kept()
    monkeypatch.setattr("bertkit.models.bert.pretraining_data._write", None)
    assert kept().to_dict() == first.to_dict()
    for other in ({"rows": rows.select(range(9))}, {"length": 32}, {"nsp": "none"}, {"short": 0.0}):
        raises(TypeError, "not callable", kept, **other)


def test_a_failed_encoding_leaves_nothing(made, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bertkit.models.bert.pretraining_data._write", full)
    raises(OSError, "No space", encode_documents, made[1], made[2], LENGTH, nsp="nsp", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_special_tokens_that_a_text_spells_out_are_text(made):
    tokenizer = made[2]
    rows = Dataset.from_dict({"text": ["a [SEP] b. [CLS] c [PAD] [UNK] d."]})
    feature = encode_documents(rows, tokenizer, LENGTH, nsp="nsp")[0]
    specials = {tokenizer.sep_token_id, tokenizer.cls_token_id, tokenizer.pad_token_id}
    assert not specials & set(feature["input_ids"])
    text = "".join(
        piece.removeprefix("##") for piece in tokenizer.convert_ids_to_tokens(feature["input_ids"])
    )
    assert text.startswith("a[sep]b.[cls]c[pad]")
    assert tokenizer.tokenize("[SEP]") == ["[SEP]"]  # the tokenizer itself is as it was


def test_a_text_with_the_mask_token_is_a_cloze(made):
    tokenizer = made[2]
    texts = ["a [MASK] b [SEP]. C d. [MASK]", "[MASK]", "a. B c.", "[MASK] " + "a " * 200]
    features = encode_documents(Dataset.from_dict({"text": texts}), tokenizer, 16, nsp="nsp")
    mask = tokenizer.mask_token_id
    assert features["row"][:] == [0, 1, 2, 3]
    assert [ids.count(mask) for ids in features["input_ids"][:]] == [2, 1, 0, 1]
    assert features["length"][:] == [15, 3, 8, 16]  # [CLS] a [MASK] b [ s e p ] . c d . [MASK] [SEP]
    assert features["lost"][:] == [0, 0, 0, 187]
    for epoch in range(5):
        columns = Masking(tokenizer, nsp="nsp")(features, [0, 1, 3], 0, epoch)
        assert [label for labels in columns["labels"] for label in labels if label != -100] == []
        assert columns["next_sentence_label"] == [-100] * 3
        assert [ids[1:-1] for ids in columns["input_ids"]] == [features["input_ids"][i] for i in (0, 1, 3)]
        assert not any(itertools.chain(*columns["token_type_ids"]))


# --- pairs
# -----------------------------------------------------------------------------------------------------------


def test_next_sentence_pairs_are_what_their_labels_say(made):
    _, rows, tokenizer = made
    features = encode_documents(rows, tokenizer, LENGTH, nsp="nsp")
    chunks = features["input_ids"][:]
    own = features["row"][:]
    starts = defaultdict(set)  # rows where a run of pieces stands at the beginning of a sentence
    for feature in features.to_list():
        ends = [0, *itertools.accumulate(feature["sentences"])]
        for start in ends[:-1]:
            starts[tuple(feature["input_ids"][start : start + 6])].add(feature["row"])
    labels = Counter()
    cut = 0
    drawing = Masking(tokenizer, nsp="nsp")
    for epoch in range(2_500 // len(features) + 1):
        for index, example in enumerate(drawn(features, drawing, epoch)):
            first, second = segments(example, tokenizer.sep_token_id)
            label = example["next_sentence_label"]
            labels[label] += 1
            assert first
            assert second
            assert example["row"] == own[index]
            assert example["length"] == len(example["input_ids"]) <= features["length"][index] <= LENGTH
            assert chunks[index][: len(first)] == first
            if label == 0:
                assert first + second == chunks[index]
            else:
                assert first + second != chunks[index]
                found = starts.get(tuple(second[:6]), set())
                cut += not found
                assert not found or found - {own[index]}
    assert labels[1] / labels.total() == pytest.approx(0.5, abs=0.03)
    assert cut / labels[1] < 0.2  # runs of fewer than six pieces, and the rare cut


def test_neither_length_nor_an_unfinished_sentence_tells_strange_from_real(made):
    _, rows, tokenizer = made
    features = encode_documents(rows, tokenizer, LENGTH, nsp="nsp", short_sequences=0.0)
    stop = tokenizer.convert_tokens_to_ids(".")
    lengths = defaultdict(list)
    finished = defaultdict(list)
    for example in drawn(features, Masking(tokenizer, nsp="nsp")):
        second = segments(example, tokenizer.sep_token_id)[1]
        lengths[example["next_sentence_label"]].append(example["length"])
        finished[example["next_sentence_label"]].append(second[-1] == stop)
    assert abs(np.mean(lengths[0]) - np.mean(lengths[1])) < 0.08 * LENGTH
    assert abs(np.mean(finished[0]) - np.mean(finished[1])) < 0.15


def test_pairs_of_equal_documents_are_real_and_a_small_one_beside_a_large_one_is_found(made):
    documents, _, tokenizer = made
    parts = [" ".join(documents[start:end]) for start, end in ((0, 20), (0, 60), (60, 80))]
    for texts, low, high in (([parts[0]], 0, 0), ([parts[0]] * 3, 0, 0), (parts[1:], 0.45, 0.55)):
        features = encode_documents(Dataset.from_dict({"text": texts}), tokenizer, LENGTH, nsp="nsp")
        examples = drawn(features, Masking(tokenizer, nsp="nsp"))
        assert low <= np.mean([example["next_sentence_label"] for example in examples]) <= high


def test_a_cloze_is_never_the_other_segment(made):
    documents, _, tokenizer = made
    texts = [documents[0], documents[1], *[f"a [MASK] b {i}" for i in range(200)]]
    features = encode_documents(Dataset.from_dict({"text": texts}), tokenizer, LENGTH, nsp="nsp")
    drawing = Masking(tokenizer, nsp="nsp")
    mask = tokenizer.mask_token_id
    pairs = [
        example for epoch in range(20) for example in drawn(features, drawing, epoch) if example["row"] < 2
    ]
    assert all(mask not in unmasked(example) for example in pairs)
    assert {0, 1} == {example["next_sentence_label"] for example in pairs}


def test_segments_have_their_types_and_special_tokens(made):
    _, rows, tokenizer = made
    cls = tokenizer.cls_token_id
    sep = tokenizer.sep_token_id
    for nsp, count in (("nsp", 2), ("none", 1)):
        features = encode_documents(rows, tokenizer, LENGTH, nsp=nsp)
        for example in drawn(features, Masking(tokenizer, nsp=nsp)):
            ids = example["input_ids"]
            assert ids[0] == cls
            assert ids[-1] == sep
            assert ids.count(sep) == count
            border = ids.index(sep) + 1
            assert example["token_type_ids"] == [0] * border + [1] * (len(ids) - border)
            assert (example["next_sentence_label"] == -100) == (nsp == "none")
    bare = BertTokenizer(vocab=tokenizer.get_vocab(), model_input_names=["input_ids", "attention_mask"])
    assert "token_type_ids" not in Masking(bare, nsp="none")(features, [0], 0, 0)


# --- masks
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole_word", [False, True])
def test_masks_have_the_shares_of_the_paper(made, whole_word):
    _, rows, tokenizer = made
    features = encode_documents(rows, tokenizer, 128, nsp="none", short_sequences=0.0)
    drawing = Masking(tokenizer, nsp="none", whole_word=whole_word)
    specials = set(tokenizer.all_special_ids)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    forbidden = {i for i, token in enumerate(tokens) if i in specials or token.startswith("[unused")}
    free = chosen = masked = kept = 0
    epochs = range(2_500 // len(features) + 1)
    for example in (example for epoch in epochs for example in drawn(features, drawing, epoch)):
        original = unmasked(example)
        own = [label for label in example["labels"] if label != -100]
        usable = sum(piece not in specials for piece in original)
        assert not specials & set(own)
        assert example["labels"][0] == example["labels"][-1] == -100
        assert len(own) <= max(1, round(0.15 * usable)) or whole_word
        free = free + usable
        chosen = chosen + len(own)
        for piece, label in zip(example["input_ids"], example["labels"], strict=True):
            if label != -100:
                masked += piece == tokenizer.mask_token_id
                kept += piece == label
                assert piece == tokenizer.mask_token_id or piece not in forbidden
    assert abs(chosen / free - 0.15) < 0.003
    assert abs(masked / chosen - 0.8) < 0.01
    assert abs(kept / chosen - 0.1) < 0.01


def test_random_pieces_are_any_ordinary_ones(made):
    _, rows, tokenizer = made
    features = encode_documents(rows, tokenizer, LENGTH, nsp="none")
    drawing = Masking(tokenizer, nsp="none", mask_probability=1.0)
    found = Counter()
    for example in (example for epoch in range(4) for example in drawn(features, drawing, epoch)):
        pairs = zip(example["input_ids"], example["labels"], strict=True)
        found.update(
            piece for piece, label in pairs if label not in (-100, piece) and piece != tokenizer.mask_token_id
        )
    ordinary = drawing.ordinary.tolist()
    assert set(found) == set(ordinary)
    mean = sum(found.values()) / len(ordinary)
    assert all(0.2 * mean < found[piece] < 2.5 * mean for piece in (ordinary[0], ordinary[-1]))


def test_whole_words_are_chosen_and_treated_as_one(made):
    _, rows, tokenizer = made
    features = encode_documents(rows, tokenizer, LENGTH, nsp="none")
    drawing = Masking(tokenizer, nsp="none", whole_word=True)
    treatments = Counter()
    for example in drawn(features, drawing):
        original = unmasked(example)
        words = []
        for position, piece in enumerate(original[1:-1], 1):
            if words and tokenizer.convert_ids_to_tokens(piece).startswith("##"):
                words[-1].append(position)
            else:
                words.append([position])
        taken = 0
        for word in words:
            (picked,) = {example["labels"][position] != -100 for position in word}
            if picked:
                taken += len(word)
                read = [example["input_ids"][position] for position in word]
                kept = [piece == original[position] for piece, position in zip(read, word, strict=True)]
                masked = [piece == tokenizer.mask_token_id for piece in read]
                treatments[len({*zip(masked, kept, strict=True)}), len(word) > 1] += 1
        budget = max(1, round(0.15 * (len(original) - 2)))
        assert 2 * abs(taken - budget) <= max(map(len, words)) or taken in map(len, words)
    assert treatments[1, True] > 200
    assert treatments[2, True] < 0.05 * treatments[1, True]  # a random piece that happens to be the right one
    alone = encode_documents(Dataset.from_dict({"text": ["abcdefghij"]}), tokenizer, LENGTH, nsp="none")
    assert len(alone["input_ids"][0]) > 4  # more than a budget of 15 %
    assert drawn(alone, drawing)[0]["labels"][1:-1] == alone["input_ids"][0]


def test_whole_words_of_a_script_without_blanks_are_tokens_and_as_many_as_asked_for():
    letters = "กขคงจิีึาะ"
    rng = random.Random(0)
    vocab = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), "a", "##b"]
    tokenizer = BertTokenizer(vocab={token: i for i, token in enumerate(vocab)}, strip_accents=False)
    texts = [" ".join("".join(rng.choices(letters, k=30)) for _ in range(3)) for _ in range(60)]
    features = encode_documents(
        Dataset.from_dict({"text": texts}), tokenizer, 128, nsp="none", short_sequences=0.0
    )
    shares = [
        sum(label != -100 for label in example["labels"]) / 90
        for example in drawn(features, Masking(tokenizer, nsp="none", whole_word=True))
    ]
    assert len(shares) == 60
    assert all(0.14 < share < 0.16 for share in shares)


def test_tokenizers_without_a_mask_or_for_whole_words_without_pieces_that_go_on_are_refused(made):
    bare = PreTrainedTokenizerFast(
        tokenizer_object=made[2].backend_tokenizer, cls_token="[CLS]", sep_token="[SEP]"
    )
    short = BertTokenizer(vocab={token: i for i, token in enumerate([*SPECIAL, "a", "b"])})
    assert Masking(short, nsp="none").ordinary.tolist() == [5, 6]
    for message, call in (
        ("no MASK token", lambda: Masking(bare, nsp="none")),
        ("no MASK token", lambda: encode_documents(made[1], bare, LENGTH, nsp="none")),
        ("begin with ##", lambda: Masking(short, nsp="none", whole_word=True)),
    ):
        raises(ModelError, message, call)


# --- purity
# ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", [{}, {"whole_word": True}])
@pytest.mark.parametrize("nsp", ["nsp", "none"])
def test_an_example_is_a_function_of_seed_epoch_and_index(made, nsp, masks):
    _, rows, tokenizer = made
    features = encode_documents(rows, tokenizer, LENGTH, nsp=nsp)
    drawing = Masking(tokenizer, nsp=nsp, **masks)
    indices = list(range(0, len(features), 7))
    alone = [drawing(features, [index], 5, 2) for index in indices]
    order = np.random.default_rng(0).permutation(len(indices))
    for source in (features, features.with_format("arrow"), features.with_format("numpy")):
        together = drawing(source, np.asarray(indices)[order], 5, 2)
        for place, index in enumerate(order):
            assert {name: [values[place]] for name, values in together.items()} == alone[index]
    other_epoch = drawing(features, indices, 5, 3)
    other_seed = drawing(features, indices, 6, 2)
    same = [example["input_ids"][0] for example in alone]
    for other in (other_epoch, other_seed):
        assert sum(a == b for a, b in zip(same, other["input_ids"], strict=True)) < 0.05 * len(indices)
