"""WordPiece trained from text, with BERT's normalisation, special tokens and ids (Devlin et al. 2019, section 3)."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer, models, trainers
from tokenizers.normalizers import BertNormalizer, Normalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import BertTokenizer, PreTrainedTokenizerBase

from bertkit.data.readers import TextRow, read_texts
from bertkit.errors import DataError, Problem
from bertkit.files import write_text
from bertkit.models.encoder import load_tokenizer, save_tokenizer
from bertkit.sections import DataSpec

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_LAYOUT = (  # ids 0 to 998 of BERT's published vocabulary, whose characters and words begin at 999
    "[PAD]",
    *(f"[unused{n}]" for n in range(99)),
    *SPECIALS[1:],
    *(f"[unused{n}]" for n in range(99, 994)),
)
SMALLEST = {"vocab_size": len(SPECIALS) + 1, "min_frequency": 1, "limit_alphabet": 1, "max_length": 3}
PART = 10_000  # characters that are processed at a time

logger = logging.getLogger(__name__)


def train_wordpiece(
    files: Sequence[Path],
    output: Path,
    *,
    vocab_size: int = 30522,
    lowercase: bool = True,
    min_frequency: int = 2,
    limit_alphabet: int = 1000,
    columns: Sequence[str] = ("text",),
    max_length: int = 512,
    spec: DataSpec | None = None,
) -> PreTrainedTokenizerBase:
    """Train WordPiece on the texts of `files`, write a folder that AutoTokenizer opens, and return that tokenizer.

    files: see `read_texts`, written as `spec` says; missing texts are skipped. They are read twice for each of
    `columns`, and only the counts of words are held in memory. output: a new or an empty folder. vocab_size: of the
    result, special tokens included (see `reserved`). min_frequency: of pairs that are merged. limit_alphabet: how many
    characters are learned, the most frequent; words with any other become [UNK]. max_length: tokens that the model will
    read. The same texts and settings give the same bytes.

    Raises DataError, with all that is wrong with the settings or the files. Then nothing is left behind.
    """
    sizes = {"vocab_size": vocab_size, "min_frequency": min_frequency, "limit_alphabet": limit_alphabet}
    check_settings(files, output, {**sizes, "max_length": max_length})
    normalizer, layout = BertNormalizer(lowercase=lowercase), reserved(vocab_size)
    read = reader(columns, spec)
    corpus = scan(files, read, normalizer)
    alphabet = corpus.alphabet(limit_alphabet)
    if (needed := len(layout) + len(alphabet)) > vocab_size:
        what = f"{vocab_size:,} is too small: {len(layout)} are special, {len(alphabet):,} are the alphabet"
        fix = f"Take more than {needed:,}, or learn fewer characters (limit_alphabet)."
        raise DataError(Problem("vocab_size", what, fix))
    parts = (part for file in files for each in read(file) for part in cut(each.text, PART))
    tokens = [*layout, *_learn(parts, normalizer, alphabet, vocab_size - len(layout), min_frequency)]
    vocab = {token: index for index, token in enumerate(tokens)}
    trained = BertTokenizer(vocab=vocab, do_lower_case=lowercase, model_max_length=max_length)
    write(trained, output, {"vocab.txt": "".join(f"{token}\n" for token in tokens)})
    tokenizer = load_tokenizer(output, split_special_tokens=False)
    report(tokenizer, corpus, vocab_size, limit_alphabet)
    return tokenizer


def reader(columns: Sequence[str], spec: DataSpec | None) -> Callable[[Path], Iterator[TextRow]]:
    """What streams the texts in these columns of a file, one column after the other; see `read_texts`."""
    layout = spec or DataSpec(source="-")
    return lambda file: (row for column in columns for row in read_texts(file, layout, column, skip_missing=True))


def reserved(vocab_size: int) -> tuple[str, ...]:
    """The tokens before the learned ones: as much of BERT's layout as a tenth of the vocabulary holds.

    From 9,990 on: ids 0 to 998 as BERT's. From 1,040 on: ids 0 to 103, which still gives [PAD] 0 and [UNK], [CLS],
    [SEP] and [MASK] 100 to 103. Below: these five, as 0 to 4.
    """
    sizes = (len(BERT_LAYOUT), BERT_LAYOUT.index("[MASK]") + 1)
    return next((BERT_LAYOUT[:size] for size in sizes if 10 * size <= vocab_size), SPECIALS)


@dataclass
class Corpus:
    """Statistics of the first reading. normalizer: of the tokenizer."""

    normalizer: Normalizer
    texts: int = 0
    words: int = 0  # between spaces
    characters: Counter[str] = field(default_factory=Counter)
    continuing: set[str] = field(default_factory=set)  # characters seen within words, not only at their beginning
    alone: set[str] = field(default_factory=set)  # characters that are words of their own: punctuation, CJK

    def add(self, part: str) -> None:
        """Count a part of a text."""
        text = self.normalizer.normalize_str(part)
        self.words += len(text.split())
        self.characters.update(text)
        if new := set(text) - self.continuing - self.alone:
            split = BertPreTokenizer().pre_tokenize_str
            self.continuing.update(char for word, _ in split(text) for char in word[1:])
            spaced = {char: self.normalizer.normalize_str(f"a{char}a") for char in new - self.continuing}
            self.alone.update(char for char, between in spaced.items() if len(split(between)) > 1)

    def alphabet(self, limit: int) -> list[str]:
        """The `limit` most frequent characters; then, as ##c, those that continue words. Both are sorted."""
        ranked = sorted((-count, char) for char, count in self.characters.items() if not char.isspace())
        chosen = sorted(char for _, char in ranked[:limit])
        return [*chosen, *(f"##{char}" for char in chosen if char in self.continuing)]


def scan(files: Sequence[Path], read: Callable[[Path], Iterator[TextRow]], normalizer: Normalizer) -> Corpus:
    """Read everything once. Raises DataError with all that is wrong, or where there are no words."""
    corpus, problems = Corpus(normalizer), list[Problem]()
    for file in files:
        try:
            for each in read(file):
                corpus.texts += bool(each.text.strip())
                for part in cut(each.text, PART):
                    corpus.add(part)
        except DataError as error:
            problems += error.problems
    if not problems and not corpus.words:
        problems = [Problem(", ".join(map(str, files)), "holds no words")]
    if problems:
        raise DataError(problems)
    return corpus


def cut(text: str, size: int) -> Iterator[str]:
    """The text in parts of at most `size` characters, cut after spaces; a longer word is split."""
    start = 0
    while len(text) - start > size:
        space = max(text.rfind(" ", start, start + size), text.rfind("\n", start, start + size))
        end = space + 1 if space >= 0 else start + size
        yield text[start:end]
        start = end
    yield text[start:]


def check_settings(files: Sequence[Path], output: Path, sizes: Mapping[str, int]) -> None:
    """Raises DataError with all errors that are known before the first text is read. sizes: by SMALLEST's names."""
    problems = [
        Problem(name, f"{value} is too small", f"Take {SMALLEST[name]} or more.")
        for name, value in sizes.items()
        if value < SMALLEST[name]
    ]
    if not files:
        problems.append(Problem("", "no files to train on", "Name them: --input FILE."))
    for file in files:
        if not file.is_file():
            what = "cannot be read twice: not a regular file" if file.exists() else "no such file"
            problems.append(Problem(str(file), what))
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        problems.append(Problem(str(output), "already exists", "Name a new folder, or an empty one."))
    if problems:
        raise DataError(problems)


def _learn(
    parts: Iterator[str], normalizer: BertNormalizer, alphabet: Sequence[str], size: int, min_frequency: int
) -> list[str]:
    """At most `size` word pieces: the alphabet, then merges in the order in which they were made.

    Of equally frequent pairs the trainer takes the one with the smallest ids. It gives ids to ##c in the order of a
    hash map, which differs between processes, except to its special tokens: so all of the alphabet are special tokens.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, BertPreTokenizer()
    characters = [token for token in alphabet if len(token) == 1]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=list(alphabet),
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    tokenizer.train_from_iterator(parts, trainer=trainer)
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def write(trained: PreTrainedTokenizerBase, output: Path, more: Mapping[str, str]) -> None:
    """Write the folder aside, and give it its name when it is complete. more: file name -> content."""
    output = Path(os.path.realpath(output))
    aside = output.with_name(f".{output.name}.{os.getpid()}.writing")
    try:
        save_tokenizer(trained, aside)
        for name, content in more.items():
            write_text(aside / name, content)
        aside.replace(output)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def report(
    tokenizer: PreTrainedTokenizerBase, corpus: Corpus, vocab_size: int, limit_alphabet: int = sys.maxunicode
) -> None:
    """Log what the tokenizer is."""
    known = sum(not char.isspace() for char in corpus.characters)
    rare = f", {known - limit_alphabet:,} rarer ones become [UNK]" if known > limit_alphabet else ""
    logger.info("%s texts, %s words, %s characters%s", f"{corpus.texts:,}", f"{corpus.words:,}", f"{known:,}", rare)
    special = ", ".join(f"{token} {tokenizer.convert_tokens_to_ids(token)}" for token in tokenizer.all_special_tokens)
    logger.info("%s tokens in %s: %s", f"{len(tokenizer):,}", tokenizer.name_or_path, special)
    if isinstance(tokenizer, BertTokenizer) and reserved(vocab_size) == SPECIALS:
        logger.info("a vocabulary this small has no room for BERT's own ids of special tokens")
    if len(tokenizer) < vocab_size:
        logger.warning("the corpus gives no more than these, of %s requested", f"{vocab_size:,}")
