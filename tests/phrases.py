"""The rules that wrote the packaged sample `translation`: English and German sentences of one small grammar.

German articles and adjectives follow gender, case and article; the verb is second, infinitives, participles and
separated particles are last, and the time comes before the object.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

SUBJECTS = {  # English -> German, gender
    "man": ("Mann", "m"),
    "teacher": ("Lehrer", "m"),
    "boy": ("Junge", "m"),
    "woman": ("Frau", "f"),
    "doctor": ("Ärztin", "f"),
    "neighbour": ("Nachbarin", "f"),
    "girl": ("Mädchen", "n"),
    "child": ("Kind", "n"),
}
OBJECTS = {
    "apple": ("Apfel", "m"),
    "letter": ("Brief", "m"),
    "key": ("Schlüssel", "m"),
    "coat": ("Mantel", "m"),
    "flower": ("Blume", "f"),
    "cup": ("Tasse", "f"),
    "newspaper": ("Zeitung", "f"),
    "lamp": ("Lampe", "f"),
    "book": ("Buch", "n"),
    "picture": ("Bild", "n"),
    "knife": ("Messer", "n"),
    "wheel": ("Rad", "n"),
}
ADJECTIVES = {"": "", "old": "alt", "new": "neu", "small": "klein", "big": "groß", "red": "rot", "green": "grün"}
VERBS = (  # infinitive, present, past; German present, particle, participle, infinitive
    ("buy", "buys", "bought", "kauft", "", "gekauft", "kaufen"),
    ("find", "finds", "found", "findet", "", "gefunden", "finden"),
    ("look for", "looks for", "looked for", "sucht", "", "gesucht", "suchen"),
    ("draw", "draws", "drew", "zeichnet", "", "gezeichnet", "zeichnen"),
    ("see", "sees", "saw", "sieht", "", "gesehen", "sehen"),
    ("hide", "hides", "hid", "versteckt", "", "versteckt", "verstecken"),
    ("pick up", "picks up", "picked up", "hebt", "auf", "aufgehoben", "aufheben"),
    ("put away", "puts away", "put away", "räumt", "weg", "weggeräumt", "wegräumen"),
)
TIMES = {"present": ("today", "heute"), "past": ("yesterday", "gestern"), "future": ("tomorrow", "morgen")}
PLACES = {
    "": "",
    "in the garden": "im Garten",
    "in the kitchen": "in der Küche",
    "at the market": "auf dem Markt",
    "in front of the house": "vor dem Haus",
}
AUXILIARIES = {"past": ("did", "hat"), "future": ("will", "wird"), "must": ("must", "muss"), "can": ("can", "kann")}
STEMS = {"the": "d", "this": "dies", "a": "ein", "no": "kein"}
STRONG = {("m", "nom"): "er", ("m", "acc"): "en", ("f", "nom"): "e", ("f", "acc"): "e", ("n", "nom"): "es"}
ENDINGS = {**STRONG, ("n", "acc"): "es"}
THE = {"er": "er", "en": "en", "e": "ie", "es": "as"}


def noun_phrase(article: str, adjective: str, noun: str, gender: str, case: str) -> str:
    """Article, adjective and noun in German, with their endings."""
    ending = ENDINGS[gender, case]
    definite = article in ("the", "this")
    bare = not definite and ending in ("er", "es")  # ein and kein show neither, and then the adjective does
    end = THE[ending] if article == "the" else "" if bare else ending
    weak = "en" if ending == "en" else "e"
    quality = ADJECTIVES[adjective]
    words = (STEMS[article] + end, quality and quality + (ending if bare else weak), noun)
    return " ".join(word for word in words if word)


def sentence(rng: random.Random) -> tuple[str, str]:
    """A sentence in English, and in German."""
    subject, thing, verb = rng.choice([*SUBJECTS]), rng.choice([*OBJECTS]), rng.choice(VERBS)
    tense, form = rng.choice(["present", "past", "future", "must", "can"]), rng.choice(["plain", "fronted", "question"])
    question, quality, place = form == "question", rng.choice([*ADJECTIVES]), rng.choice([*PLACES])
    who, what = rng.choice(["the", "a"]), rng.choice(["the", "a", "this"] if question else [*STEMS])
    when, wann = TIMES.get(tense, TIMES["future"])
    when, wann = (when, wann) if form == "fronted" or rng.random() < 0.3 else ("", "")

    auxiliary, hilfsverb = AUXILIARIES.get(tense, ("does", ""))
    base, present, past, finite, particle, participle, infinitive = verb
    plain = {"present": present, "past": past}.get(tense, f"{auxiliary} {base}")
    article = "an" if what == "a" and (quality or thing)[0] in "aeiou" else what
    actor, objects = f"{who} {subject}", " ".join(filter(None, [article, quality, thing]))
    action = [auxiliary, actor, base] if question else [actor, plain]
    english = [*action, objects, place]
    english = [when, *english] if form == "fronted" else [*english, when]

    last = {"present": particle, "past": participle}.get(tense, infinitive)
    wer = noun_phrase(who, "", *SUBJECTS[subject], "nom")
    german_thing, gender = OBJECTS[thing]
    rest = [noun_phrase(what, quality, german_thing, gender, "acc"), PLACES[place], last]
    verb_form = hilfsverb or finite
    order = {"plain": [wer, verb_form, wann], "fronted": [wann, verb_form, wer], "question": [verb_form, wer, wann]}
    german = [*order[form], *rest]
    end = "?" if question else "."
    one, other = (" ".join(filter(None, words)) + end for words in (english, german))
    return one[0].upper() + one[1:], other[0].upper() + other[1:]


def sentences(seed: int = 0) -> Iterator[tuple[str, str]]:
    """Sentences in a fixed order, each once."""
    rng, seen = random.Random(seed), set[str]()
    while True:
        pair = sentence(rng)
        if pair[0] not in seen:
            seen.add(pair[0])
            yield pair
