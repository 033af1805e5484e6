"""Tokenizers trained from text: WordPiece as BERT's, byte-level BPE as RoBERTa's, whose tokens spell any
text.

WordPiece forgets the spaces around punctuation and characters that it does not know, which does not matter to
a model that only reads. One that writes needs a tokenizer whose tokens spell the text.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from unicodedata import category, name

from tokenizers import Tokenizer, models, normalizers, trainers
from tokenizers.normalizers import BertNormalizer, Normalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, FixedLength
from tokenizers.pre_tokenizers import Sequence as InOrder
from transformers import BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, RobertaTokenizer

from bertkit.data.on_disk import in_blocks
from bertkit.data.readers import one_text_per_line, read_texts
from bertkit.data.scripts import UNSPACED
from bertkit.errors import DataError, Problem
from bertkit.files import folder_aside, is_taken, write_text
from bertkit.models.encoder import load_tokenizer, save_tokenizer
from bertkit.models.untrusted import vet
from bertkit.recipe.recipe import parse_layout
from bertkit.sections import DataSpec

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_LAYOUT = (  # ids 0 to 998 of BERT's published vocabulary, whose characters and words begin at 999
    "[PAD]",
    *(f"[unused{n}]" for n in range(99)),
    *SPECIALS[1:],
    *(f"[unused{n}]" for n in range(99, 994)),
)
BYTE_LEVEL_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # ids 0 to 4
SMALLEST = {"vocab_size": len(SPECIALS) + 1, "min_frequency": 1, "limit_alphabet": 1, "max_length": 3}
PART = 10_000  # characters that are processed at a time
# characters learned by default: at least, and up to which share of the corpus
ALPHABET = 1000
COVERAGE = 0.9995
# First words of the names of characters whose marks are accents, and of the selectors that emoji have.
ACCENTED = ("LATIN", "GREEK", "CYRILLIC", "COMBINING", "VARIATION")
MARKED = 0.01  # of the characters: from this share on, marks of other scripts are kept
CLAUSE = (
    200  # characters; WordPiece's 100 are too few for a clause without blanks, and its time is cubic in them
)
_LONG = re.compile(rf"[{UNSPACED}]{{101}}")

logger = logging.getLogger(__name__)


def train_tokenizer(
    input: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    vocab_size: int = 30522,
    byte_level: bool = False,
    cased: bool = False,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
    columns: str | Sequence[str] = ("text",),
    max_length: int = 512,
    overrides: Sequence[str] = (),
) -> PreTrainedTokenizerBase:
    """Train WordPiece (Devlin et al. 2019, section 3) on the texts of files, or byte-level BPE.

    Writes a folder that AutoTokenizer opens, and returns that tokenizer.

    input: see `read_texts`, written as `overrides` say, such as `data.delimiter=";"`; missing texts are
    skipped. They are read twice for each of `columns`, and only the counts of words are held in memory. They
    are read once more if marks are kept, and once more if characters are left out. output: a new or an empty
    folder. vocab_size: of the result, special tokens included (see `reserved`).
    byte_level: BPE of bytes (Radford et al. 2019, section 2.2), as a RobertaTokenizer. Case is kept, no text
    has an unknown token, and what is decoded is the text that was encoded. cased: keep case and accents.
    Otherwise accents are removed, except where marks are vowel signs or parts of letters, as in Hindi, Thai
    and Japanese.
    min_frequency: of pairs that are merged. limit_alphabet: how many characters WordPiece learns, the most
    frequent; words with any other become [UNK]. By default 1,000, or as many as are 99.95 % of the corpus, if
    the vocabulary holds them. max_length: tokens that the model will read. The same texts and settings give
    the same bytes.

    Where clauses without blanks are longer than 100 characters, as in Thai, the tokenizer is a
    PreTrainedTokenizerFast: transformers' BertTokenizer would read them as [UNK].

    Raises RecipeError, and DataError with all that is wrong with settings or files. Then nothing is left
    behind.

    >>> len(bertkit.train_tokenizer(["reviews.csv"], "tokenizer", vocab_size=60))
    29
    """
    files = [*map(Path, [input] if isinstance(input, str | Path) else input)]
    columns = [columns] if isinstance(columns, str) else columns
    output = Path(output).expanduser()
    spec = parse_layout(overrides)
    sizes = {
        "vocab_size": vocab_size,
        "min_frequency": min_frequency,
        "max_length": max_length,
        "limit_alphabet": limit_alphabet,
    }
    _check_settings(files, output, sizes, byte_level)
    normalizer = normalizers.Sequence([]) if byte_level else BertNormalizer(lowercase=not cased)
    corpus = Corpus(files, columns, spec, normalizer)
    if byte_level:
        vocab, merges = _learn_bytes(corpus, vocab_size, min_frequency)
        trained: Any = RobertaTokenizer(vocab=vocab, merges=merges, model_max_length=max_length)
        return _written(trained, output, corpus, vocab_size)
    strip_accents = None
    if not cased and _needs_marks(corpus):
        strip_accents = False
        corpus = Corpus(files, columns, spec, BertNormalizer(lowercase=True, strip_accents=False))
    layout = reserved(vocab_size)
    alphabet = corpus.alphabet(limit_alphabet, vocab_size - len(layout))
    if (needed := len(layout) + len(alphabet)) > vocab_size:
        raise DataError(
            "vocab_size",
            f"{vocab_size:,} is too small: {len(layout)} are special, {len(alphabet):,} are the alphabet",
            f"Use more than {needed:,}, or lower limit_alphabet.",
        )
    tokens = [*layout, *_learn(corpus, alphabet, vocab_size - len(layout), min_frequency)]
    vocab = {token: index for index, token in enumerate(tokens)}
    trained = BertTokenizer(
        vocab=vocab, do_lower_case=not cased, strip_accents=strip_accents, model_max_length=max_length
    )
    if 1000 * corpus.long >= corpus.texts:
        trained = _for_clauses(trained)
    return _written(trained, output, corpus, vocab_size, tokens, sum(len(token) == 1 for token in alphabet))


def _learn_bytes(corpus: Corpus, size: int, min_frequency: int) -> tuple[dict[str, int], Any]:
    """Vocabulary and merges of byte-level BPE."""
    alphabet = sorted(ByteLevel.alphabet())
    if (needed := len(BYTE_LEVEL_SPECIALS) + len(alphabet)) > size:
        raise DataError(
            "vocab_size",
            f"{size:,} is too small: {len(BYTE_LEVEL_SPECIALS)} are special, {len(alphabet)} are bytes",
            f"Use {needed:,} or more.",
        )
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=list(BYTE_LEVEL_SPECIALS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    learned.train_from_iterator(corpus.parts(), trainer)
    model = json.loads(learned.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def reserved(vocab_size: int) -> tuple[str, ...]:
    """The tokens before the learned ones: as much of BERT's layout as a tenth of the vocabulary holds.

    From 9,990 on: ids 0 to 998 as BERT's. From 1,040 on: ids 0 to 103, which still gives [PAD] 0 and [UNK],
    [CLS], [SEP] and [MASK] 100 to 103. Below: these five, as 0 to 4.
    """
    sizes = (len(BERT_LAYOUT), BERT_LAYOUT.index("[MASK]") + 1)
    return next((BERT_LAYOUT[:size] for size in sizes if 10 * size <= vocab_size), SPECIALS)


class Corpus:
    """The texts in these columns of files, one column of a file after the other, and statistics of their
    reading.
    """

    def __init__(
        self, files: Sequence[Path], columns: Sequence[str], spec: DataSpec, normalizer: Normalizer
    ) -> None:
        """Read everything once. Raises DataError with all that is wrong, or where there are no words."""
        self.files = files
        self.columns = columns
        self.spec = spec
        self.normalizer = normalizer
        self.texts = 0
        self.words = 0  # between spaces
        # before and after normalisation
        self.raw = Counter[str]()
        self.characters = Counter[str]()
        self.long = 0  # clauses without blanks that are too long for WordPiece
        self.continuing = set[str]()  # characters seen within words, not only at their beginning
        self.alone = set[str]()  # characters that are words of their own: punctuation, CJK
        problems = list[Problem]()
        for file in files:
            try:
                for text in self._texts(file):
                    self.texts += bool(text.strip())
                    for part in cut(text, PART):
                        self._count(part)
            except DataError as error:
                problems += error.problems
        if not problems and not self.words:
            problems = [Problem(", ".join(map(str, files)), "contains no words", "Use files with text.")]
        if problems:
            raise DataError(problems)

    def _texts(self, file: Path) -> Iterator[str]:
        lines = one_text_per_line(file, self.spec).format == "lines"  # without columns
        for column in self.columns[:1] if lines else self.columns:
            yield from (row.text for row in read_texts(file, self.spec, column, skip_missing=True))

    def parts(self) -> Iterator[str]:
        """Everything once more, in parts."""
        return (part for file in self.files for text in self._texts(file) for part in cut(text, PART))

    def _count(self, part: str) -> None:
        self.raw.update(part)
        text = self.normalizer.normalize_str(part)
        self.long += _LONG.search(text) is not None
        self.words += len(text.split())
        self.characters.update(text)
        if new := set(text) - self.continuing - self.alone:
            split = BertPreTokenizer().pre_tokenize_str
            self.continuing.update(char for word, _ in split(text) for char in word[1:])
            spaced = {char: self.normalizer.normalize_str(f"a{char}a") for char in new - self.continuing}
            self.alone.update(char for char, between in spaced.items() if len(split(between)) > 1)

    def alphabet(self, limit: int | None, room: int) -> list[str]:
        """The `limit` most frequent characters; then, as ##c, those that continue words. Both are sorted.

        limit: None: by COVERAGE, at least ALPHABET, and beyond it no more than half of the `room` for tokens.
        """
        ranked = sorted((-count, char) for char, count in self.characters.items() if not char.isspace())
        if limit is None:
            sums = list(accumulate(-count for count, _ in ranked))
            limit = max(ALPHABET, min(bisect(sums, COVERAGE * sums[-1]) + 1, room // 2))
        chosen = sorted(char for _, char in ranked[:limit])
        return [*chosen, *(f"##{char}" for char in chosen if char in self.continuing)]


def _needs_marks(corpus: Corpus) -> bool:
    """Whether `corpus`, read without accents, lost marks other than accents; logs it."""
    lost = 0
    for char, count in corpus.raw.items():
        if category(char)[0] in "LM" and char.lower() not in corpus.characters:
            lost += count * (not name(char, "").startswith(ACCENTED))
    share = lost / corpus.raw.total()
    kept = (
        f"with all marks, since they are not accents: without them {share:.1%} of the characters would change"
    )
    logger.info("lower case, %s", "without accents" if share < MARKED else kept)
    return share >= MARKED


def _for_clauses(tokenizer: BertTokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer for words of up to CLAUSE characters, where longer ones are cut; no BertTokenizer saves
    this.
    """
    backend: Any = tokenizer.backend_tokenizer
    backend.model.max_input_chars_per_word = CLAUSE
    backend.pre_tokenizer = InOrder([BertPreTokenizer(), FixedLength(CLAUSE)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        model_max_length=tokenizer.model_max_length,
        model_input_names=tokenizer.model_input_names,
        **tokenizer.special_tokens_map,
    )


def cut(text: str, size: int) -> Iterator[str]:
    """The text in parts of at most `size` characters, cut after spaces; a longer word is split."""
    start = 0
    while len(text) - start > size:
        space = max(text.rfind(" ", start, start + size), text.rfind("\n", start, start + size))
        end = space + 1 if space >= 0 else start + size
        yield text[start:end]
        start = end
    yield text[start:]


def _check_settings(
    files: Sequence[Path], output: Path, sizes: Mapping[str, int | None], byte_level: bool
) -> None:
    """Raises DataError with all errors that are known before the first text is read. sizes: by SMALLEST's
    names.
    """
    problems = [
        Problem(name, f"{value} is too small", f"Use {SMALLEST[name]} or more.")
        for name, value in sizes.items()
        if value is not None and value < SMALLEST[name]
    ]
    if byte_level and sizes["limit_alphabet"] is not None:
        problems.append(Problem("limit_alphabet", "has no effect with byte_level", "Remove it."))
    if not files:
        problems.append(Problem("", "no files to train on", "Pass at least one file."))
    for file in files:
        if not file.is_file():
            what = "cannot be read twice: not a regular file" if file.exists() else "no such file"
            problems.append(Problem(str(file), what, "Use a regular file."))
    if is_taken(output):
        problems.append(Problem(str(output), "already exists", "Choose a new folder, or an empty one."))
    if problems:
        raise DataError(problems)


def _learn(corpus: Corpus, alphabet: Sequence[str], size: int, min_frequency: int) -> list[str]:
    """At most `size` word pieces: the alphabet, then merges in the order in which they were made.

    Of equally frequent pairs the trainer takes the one with the smallest ids. It gives ids to ##c in the
    order of a hash map, which differs between processes, except to its special tokens: so all of the alphabet
    are special tokens.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = corpus.normalizer
    tokenizer.pre_tokenizer = BertPreTokenizer()
    characters = [token for token in alphabet if len(token) == 1]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=list(alphabet),
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.parts(), trainer=trainer)
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def _written(
    trained: PreTrainedTokenizerBase,
    output: Path,
    corpus: Corpus,
    vocab_size: int,
    tokens: Sequence[str] = (),
    learned: int = 0,
) -> PreTrainedTokenizerBase:
    """Write the folder aside, give it its name when it is complete, and open it; log what it is.

    tokens, learned: a vocabulary of WordPiece, and the number of characters in it.
    """
    with folder_aside(output) as aside:
        save_tokenizer(trained, aside)
        if tokens:
            write_text(aside / "vocab.txt", "".join(f"{token}\n" for token in tokens))
    tokenizer = load_tokenizer(vet(output), split_special_tokens=False)
    characters = sum(not char.isspace() for char in corpus.characters)
    rare = ""
    reason = "the corpus yields"
    if 0 < learned < characters:
        ids = Counter[int]()
        backend = tokenizer.backend_tokenizer
        for texts in in_blocks(corpus.parts()):
            for encoding in backend.encode_batch_fast(texts, add_special_tokens=False):
                ids.update(encoding.ids)
        unknown = ids[tokenizer.unk_token_id] / ids.total()
        rare = f", {characters - learned:,} rarer ones become [UNK], {unknown:.2%} of the tokens"
        reason = f"with an alphabet of {learned:,} characters the corpus yields"
    logger.info(
        "%s texts, %s words, %s characters%s",
        f"{corpus.texts:,}",
        f"{corpus.words:,}",
        f"{characters:,}",
        rare,
    )
    special = ", ".join(
        f"{token} {tokenizer.convert_tokens_to_ids(token)}" for token in tokenizer.all_special_tokens
    )
    logger.info("%s tokens in %s: %s", f"{len(tokenizer):,}", tokenizer.name_or_path, special)
    if tokens and reserved(vocab_size) == SPECIALS:
        logger.info("a vocabulary this small has no room for BERT's own ids of special tokens")
    if len(tokenizer) < vocab_size:
        logger.warning("%s only these tokens, of %s requested", reason, f"{vocab_size:,}")
    return tokenizer
