"""Few rows per label with SetFit (Tunstall et al. 2022), on the draws and held-out rows of benchmarks/few_shot.py.

SetFit needs transformers 4, so it runs in an environment of its own, without bertkit:
    python -m venv setfit-env && setfit-env/bin/pip install setfit "transformers<5"
Run:  setfit-env/bin/python benchmarks/few_shot_setfit.py FILE --text COLUMN --label COLUMN [--dev FILE] [--shots 8 16]
--model is a folder or a Hub id. Settings are SetFit's own; --iterations 20 is its paper's: 40 pairs for each row.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev

import pandas
from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments


def read(file: Path, text: str, label: str) -> pandas.DataFrame:
    """The columns `text` and `label`."""
    rows = pandas.read_csv(file, sep="\t" if file.suffix == ".tsv" else ",", dtype=str, keep_default_na=False)
    return rows.rename(columns={text: "text", label: "label"})[["text", "label"]]


def labels_of(train: pandas.DataFrame, dev: pandas.DataFrame, seed: int, args: argparse.Namespace) -> list[str]:
    """SetFit's labels of the held-out rows."""
    model = SetFitModel.from_pretrained(args.model, labels=sorted(set(train["label"])))
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, num_iterations=args.iterations, seed=seed, report_to="none", save_strategy="no",
            show_progress_bar=False,
        )  # fmt: skip
        Trainer(model, settings, train_dataset=Dataset.from_pandas(train, preserve_index=False)).train()
    return list(model.predict(dev["text"].tolist(), show_progress_bar=False))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--label", default="label")
    parser.add_argument("--dev", type=Path)
    parser.add_argument("--dev-rows", type=int, default=2000, help="at most so many held-out rows")
    parser.add_argument("--shots", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    args = parser.parse_args()
    rows = read(args.file, args.text, args.label)
    for shots in args.shots:
        scores, times = [], []
        for draw in range(args.draws):
            train = rows.sample(frac=1, random_state=draw).groupby("label").head(shots)
            dev = read(args.dev, args.text, args.label) if args.dev else rows.drop(train.index)
            dev = dev.sample(min(len(dev), args.dev_rows), random_state=0)
            started = time.perf_counter()
            found = labels_of(train, dev, draw, args)
            times.append(time.perf_counter() - started)
            scores.append(fmean(a == b for a, b in zip(found, dev["label"], strict=True)))
            print(f"{shots} rows per label, draw {draw}: {scores[-1]:.4f}, {times[-1]:.1f} s", flush=True)
        spread = f" ± {stdev(scores):.4f}" if len(scores) > 1 else ""
        print(f"{shots} rows per label: accuracy {fmean(scores):.4f}{spread}, {fmean(times):.1f} s", flush=True)


if __name__ == "__main__":
    main()
