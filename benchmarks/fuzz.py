"""Files that anyone may have written, changed at random: how many, and what came of each.

A surface is a kind of file: a recipe, rows as csv, jsonl, CoNLL or SQuAD's JSON, a model folder. Each case is
a good one with one to five changes: bytes flipped, cut, doubled or replaced by what breaks parsers; in JSON
also a value replaced by one of another kind or size. It must be read, or refused with bertkit's own error. A
case that raises anything else, takes longer than ten seconds, or more than 4 GB beyond what the process had,
is a finding, and is kept in the output folder.

Run:  python benchmarks/fuzz.py --seconds 600 --output findings [--surface csv] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import resource
import shutil
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers

from bertkit import load, load_recipe
from bertkit.data import load as load_data
from bertkit.data.sources import samples_folder
from bertkit.errors import UserError
from bertkit.recipe import shipped_recipes
from bertkit.tasks import get_task

LIMIT, MEMORY = 10, 4 << 30  # seconds, bytes
SPICE = [
    *(
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n\n",
        b"\t",
        b'"',
        b"'",
        b"{",
        b"[",
        b"]",
        b",",
        b":",
    ),
    *(b"-", b"&a *a", b"!!python/object", b"NaN", b"1e999", b"\xe2\x80\xae", b"\xf0\x9f\x98\x80", b"\\ud83d"),
    *(b"[" * 2000, b"9" * 5000, b"a" * 200_000),
]
VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**30, -0.0, 1e308, float("nan"), float("inf")),
    *("", " ", "../..", "/etc/passwd", "\0", "😀", "x" * 100_000),
    *([], {}, [[]], [None], {"a": None}, list(range(1000))),
]


def in_bytes(content: bytes, rng: random.Random) -> bytes:
    """One change of a file that is any bytes."""
    at = rng.randrange(len(content) + 1)
    end = min(len(content), at + rng.choice([1, 1, 4, 50, 5000]))
    how = rng.randrange(5)
    if how == 0:
        return content[:at]
    if how == 1:
        return content[:at] + content[end:]
    if how == 2:
        return content[:at] + content[at:end] * rng.choice([2, 3, 100]) + content[end:]
    if how == 3 and content:
        return content[: at - 1] + bytes([rng.randrange(256)]) + content[at:]
    return content[:at] + rng.choice(SPICE) + content[end if rng.random() < 0.5 else at :]


def in_value(value: Any, rng: random.Random) -> Any:
    """A JSON value with one of the values inside it replaced, lost or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        rest = {name: each for name, each in value.items() if name != key}
        if rng.random() < 0.15:
            return rest
        return rest | {key if rng.random() < 0.95 else key + "x": in_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(min(len(value), 20))
        return [*value[:at], in_value(value[at], rng), *value[at + 1 :]]
    return rng.choice(VALUES)


def changed(content: bytes, rng: random.Random, *, is_json: bool) -> bytes:
    """The content with one to five changes."""
    if is_json and rng.random() < 0.7:
        value = json.loads(content)
        for _ in range(rng.randint(1, 5)):
            value = in_value(value, rng)
        return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")
    for _ in range(rng.randint(1, 5)):
        content = in_bytes(content, rng)
    return content


def lines(content: bytes, rng: random.Random) -> bytes:
    """JSON lines with some of them changed."""
    rows = content.splitlines()
    for at in rng.sample(range(len(rows)), rng.randint(1, 3)):
        rows[at] = changed(rows[at], rng, is_json=True)
    return b"\n".join(rows)


def rows_of(recipe_name: str, file: Path) -> None:
    """Read a file as the rows of a recipe's training split, checked as `bertkit check` does."""
    recipe = load_recipe(recipe_name, [f"data.source={{train: {file}}}"])
    kind = get_task(recipe.task.name)
    load_data(recipe.data, kind.schema, kind.rules(recipe.task))


def seeds() -> dict[
    str, tuple[list[bytes], str, Callable[[bytes, random.Random], bytes], Callable[[Path], None]]
]:
    """Surface -> good contents, the file's name, how one is changed, how it is read."""
    samples = samples_folder()
    sentiment = (samples / "sentiment" / "validation.jsonl").read_bytes().splitlines()[:40]
    rows = [json.loads(line) for line in sentiment]
    table = "text,label\n" + "".join(
        f"{json.dumps(row['text'], ensure_ascii=False)},{row['label']}\n" for row in rows
    )
    tagged = [
        json.loads(line) for line in (samples / "ner" / "validation.jsonl").read_bytes().splitlines()[:20]
    ]
    conll = "".join(
        "".join(f"{word} _ {tag}\n" for word, tag in zip(row["tokens"], row["tags"], strict=True)) + "\n"
        for row in tagged
        if "tokens" in row
    )
    conll = (
        conll
        or "EU _ B-ORG\nrejects _ O\nGerman _ B-MISC\ncall _ O\n\nPeter _ B-PER\nBlackburn _ I-PER\n\n" * 5
    )
    squad = (samples / "qa" / "validation.json").read_bytes()
    recipes = [file.read_bytes() for file in shipped_recipes().values()]
    plain = lambda content, rng: changed(content, rng, is_json=False)  # noqa: E731
    return {
        "recipe": (recipes, "r.yaml", plain, lambda file: void(load_recipe(file, check_files=False))),
        "csv": ([table.encode()], "rows.csv", plain, lambda file: rows_of("quickstart", file)),
        "jsonl": ([b"\n".join(sentiment)], "rows.jsonl", lines, lambda file: rows_of("quickstart", file)),
        "conll": ([conll.encode()], "rows.conll", plain, lambda file: rows_of("ner-quickstart", file)),
        "squad": (
            [squad],
            "rows.json",
            lambda content, rng: changed(content, rng, is_json=True),
            lambda file: rows_of("qa-quickstart", file),
        ),
    }


def void(_: object) -> None:
    """What was read is not looked at."""


def small_model(folder: Path) -> Path:
    """A model folder that loads in a tenth of a second."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghijklmnopqrstuvwxyz",
        "good",
        "bad",
        "film",
    ]
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(words), **sizes))
    model.save_pretrained(folder)
    BertTokenizer(vocab={word: index for index, word in enumerate(words)}).save_pretrained(folder)
    return folder


def model_case(good: Path, place: Path, rng: random.Random) -> None:
    """A copy of the model folder with one or two of its files changed."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(good, place)
    for file in rng.sample(sorted(place.iterdir()), rng.randint(1, 2)):
        file.write_bytes(changed(file.read_bytes(), rng, is_json=file.suffix == ".json"))


def run(
    seconds: float, read: Callable[[], None], make: Callable[[], None], keep: Callable[[int], None]
) -> Counter[str]:
    """Cases until the time is over; what came of them."""
    found: Counter[str] = Counter()
    start, number = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        make()
        number += 1
        signal.alarm(LIMIT)
        try:
            read()
            found["read"] += 1
        except UserError:
            found["refused"] += 1
        except Exception as error:  # the findings
            found[
                f"FINDING {type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
            ] += 1
            keep(number)
        finally:
            signal.alarm(0)
    return found


def late(*_: object) -> None:
    """The alarm of a case that takes too long."""
    raise TimeoutError(f"more than {LIMIT} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="per surface")
    parser.add_argument("--output", type=Path, required=True, help="where findings are kept")
    parser.add_argument(
        "--surface", action="append", choices=["recipe", "csv", "jsonl", "conll", "squad", "model"]
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGALRM, late)
    args.output.mkdir(parents=True, exist_ok=True)
    surfaces = seeds()
    for name in args.surface or [*surfaces, "model"]:
        rng = random.Random(args.seed)
        with tempfile.TemporaryDirectory() as room:
            place = Path(room) / "case"
            place.mkdir()
            if name == "model":
                good = small_model(Path(room) / "good")
                found = run(
                    args.seconds,
                    lambda place=place: void(load(place, task="text-classification")("a good film")),
                    lambda good=good, place=place, rng=rng: model_case(good, place, rng),
                    lambda number, place=place: void(
                        shutil.copytree(place, args.output / f"model-{args.seed}-{number}")
                    ),
                )
            else:
                contents, file_name, change, read = surfaces[name]
                file = place / file_name
                found = run(
                    args.seconds,
                    lambda read=read, file=file: read(file),
                    lambda file=file, contents=contents, change=change, rng=rng: void(
                        file.write_bytes(change(rng.choice(contents), rng))
                    ),
                    lambda number, file=file: void(
                        shutil.copy(file, args.output / f"{args.seed}-{number}-{file.name}")
                    ),
                )
        findings = sum(count for what, count in found.items() if what.startswith("FINDING"))
        told = f"{found['read']:,} read, {found['refused']:,} refused, {findings} findings"
        print(f"{name:8} {found.total():8,} cases  {told}")
        for what, count in found.items():
            if what.startswith("FINDING"):
                print(f"         {count:6,} x {what}", flush=True)


if __name__ == "__main__":
    main()
