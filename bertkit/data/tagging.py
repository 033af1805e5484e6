"""Named entities as tags of words in the schemes IOB1, BIO and BIOES, and the entities that tags describe.

A tag is O or PREFIX-TYPE; a type may contain hyphens. In IO it is O or TYPE. In the scheme `none` it is the
label of a word, such as its part of speech, and there are no entities. IOB1 is from Ramshaw and Marcus 1995,
BIO (there IOB2) from Tjong Kim Sang and Veenstra 1999. BIOES has other letters in BILOU (Ratinov and Roth
2009; L for E, U for S), BMES (M for I) and BMEWO (W for S).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

Scheme = Literal["IO", "IOB1", "BIO", "BIOES"]
Learned = Literal["BIO", "BIOES", "none"]  # the schemes of models; IO and IOB1 are only read
Entity = tuple[str, int, int]  # type, first word, end: words are counted from 0, the end is exclusive

_PREFIXES = {"IOB1": "BI", "BIO": "BI", "BIOES": "BIESLUMW"}
BIOES = str.maketrans("LUMW", "ESIS")  # letters of other schemes -> those of BIOES


def find_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of a data set, from the tags of its sentences; BIO where they fit several.

    BIOES: a tag has E- or S-, or a letter that BIOES lacks. IOB1: an I- begins an entity, and every B-
    directly follows an entity of its type. Raises ValueError for a tag that no scheme has.
    """
    ends = False
    begun_by_i = False
    needless_b = False
    for tags in sentences:
        check_prefixes(tags, "BIOES")
        for before, tag in pairwise(["O", *tags]):
            ends |= tag[0] in "ESLUMW"
            begun_by_i |= tag[0] == "I" and not _joined(before, tag)
            needless_b |= tag[0] == "B" and before[2:] != tag[2:]
    if ends:
        return "BIOES"
    return "IOB1" if begun_by_i and not needless_b else "BIO"


def to_bio(tags: Sequence[str], scheme: Scheme) -> tuple[list[str], int]:
    """The tags of a sentence in BIO, and how many of them were repaired: an I-X of BIO that follows no X
    begins one.

    Raises ValueError, with the tag's number from 1: a tag that the scheme does not have; in BIOES, one that
    continues an entity that did not begin, or an entity that does not end.
    """
    if scheme == "IO":
        tags = ["O" if tag == "O" else f"I-{tag.removeprefix('I-')}" for tag in tags]
        scheme = "IOB1"
    check_prefixes(tags, scheme)
    repaired = 0
    if scheme == "BIOES":
        tags = [tag[0].translate(BIOES) + tag[1:] for tag in tags]
    for number, (before, tag) in enumerate(pairwise(["O", *tags, "O"]), 1):
        if scheme == "IOB1" or _allowed(before, tag, scheme):
            continue
        if scheme == "BIOES" and before[0] in "BI":
            raise ValueError(f"tag {number - 1}, {before!r}: the entity does not end with E-{before[2:]}")
        if scheme == "BIOES":
            raise ValueError(
                f"tag {number}, {tag!r}: continues an entity that did not begin with B-{tag[2:]}"
            )
        repaired += 1
    return from_bio(tags, "BIO"), repaired


def from_bio(tags: Sequence[str], scheme: Learned) -> list[str]:
    """Tags in BIO -> the same entities in `scheme`."""
    return tags_of(entities(tags), len(tags), scheme)


def tags_of(spans: Iterable[Entity], words: int, scheme: Learned) -> list[str]:
    """The tags of a sentence of so many words, from its entities, which must not overlap."""
    tags = ["O"] * words
    for name, first, end in spans:
        tags[first:end] = [f"B-{name}", *[f"I-{name}"] * (end - first - 1)]
        if scheme == "BIOES":
            tags[end - 1] = f"E-{name}" if end - first > 1 else f"S-{name}"
    return tags


def tag_names(types: Sequence[str], scheme: Learned) -> list[str]:
    """All tags of these types, in the order of their ids: O, then B-, I- (BIOES: B-, I-, E-, S-) of each
    type.

    In the scheme `none` the labels themselves.
    """
    if scheme == "none":
        return list(types)
    prefixes = "BI" if scheme == "BIO" else "BIES"
    return ["O", *(f"{prefix}-{name}" for name in types for prefix in prefixes)]


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence in IOB1, BIO or BIOES by the lenient rules of conlleval (CoNLL-2000).

    An I- or E- that continues nothing begins an entity; an entity without an end tag ends before the next
    tag.
    """
    spans: list[Entity] = []
    for index, (before, tag) in enumerate(pairwise(["O", *tags])):
        if _joined(before, tag):
            spans[-1] = (*spans[-1][:2], index + 1)
        elif tag != "O":
            spans.append((tag[2:], index, index + 1))
    return spans


def labelled(tags: Sequence[str], scheme: Learned) -> list[Entity]:
    """What the tags of a sentence label: its entities; in the scheme `none` each word by itself."""
    return [(tag, word, word + 1) for word, tag in enumerate(tags)] if scheme == "none" else entities(tags)


def strict_entities(tags: Sequence[str], scheme: Learned = "BIO") -> list[Entity]:
    """Those of `entities` that begin, and in BIOES end, as the scheme requires; seqeval's strict mode."""
    first, last = ("B", "BI") if scheme == "BIO" else ("BS", "ES")
    return [
        (name, start, end)
        for name, start, end in entities(tags)
        if tags[start][0] in first and tags[end - 1][0] in last
    ]


def invalid(tags: Sequence[str], scheme: Learned = "BIO") -> int:
    """Number of transitions that the scheme does not allow, those into the first and out of the last word
    too.

    BIO: to I-X from anything but B-X and I-X. BIOES: that for I-X and E-X, and from B-X and I-X to all else.
    """
    return sum(not _allowed(before, tag, scheme) for before, tag in pairwise(["O", *tags, "O"]))


def word_tags(tags: Sequence[str], words: Sequence[int], scheme: Learned) -> list[str]:
    """The tags of these words alone; an entity continues across a word that is not among them."""
    if scheme == "none":
        return [tags[word] for word in words]
    index_of = {word: index for index, word in enumerate(words)}
    kept = list[Entity]()
    for kind, first, end in entities(tags):
        indices = [index_of[word] for word in range(first, end) if word in index_of]
        if indices:
            kept.append((kind, indices[0], indices[-1] + 1))
    return tags_of(kept, len(words), scheme)


def of_group(tags: Sequence[str]) -> str:
    """The tag of a token with several words that have these tags; see `tagger.expand_groups`."""
    prefix = {"BE": "S", "IE": "E"}.get(tags[0][:1] + tags[-1][:1], tags[0][:1])
    return prefix + tags[0][1:]


def _joined(before: str, tag: str) -> bool:
    """Whether this tag continues the entity of the tag before."""
    return tag[0] in "IE" and before[0] in "BI" and tag[2:] == before[2:]


def _allowed(before: str, tag: str, scheme: Scheme | Learned) -> bool:
    """In BIO or BIOES; the tag before the first and after the last word is O."""
    return _joined(before, tag) or (tag[0] not in "IE" and (scheme == "BIO" or before[0] not in "BI"))


def without_prefixes(tags: Iterable[str]) -> bool:
    """Whether these tags are labels, or types of entities in IO: none of them has a prefix, and some are not
    O.
    """
    others = {tag for tag in tags if tag != "O"}
    return bool(others) and not any(
        tag[1:2] == "-" and tag[0] in _PREFIXES["BIOES"] and tag[2:] for tag in others
    )


def check_prefixes(tags: Sequence[str], scheme: Scheme) -> None:
    """Raises ValueError, with its number from 1, for a tag that the scheme does not have."""
    for number, tag in enumerate(tags, 1):
        if tag != "O" and not (tag[:1] in [*_PREFIXES[scheme]] and tag[1:2] == "-" and tag[2:]):
            forms = ", ".join(f"{letter}-TYPE" for letter in _PREFIXES[scheme])
            raise ValueError(f"tag {number}, {tag!r}: unknown scheme; {scheme} has O, {forms}")
