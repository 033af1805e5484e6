"""Few rows per label with SetFit (Tunstall et al. 2022), on the draws and held-out rows of
benchmarks/few_shot.py.

SetFit needs transformers 4, so it runs in an environment of its own, without bertkit:
    python -m venv setfit-env && setfit-env/bin/pip install setfit "transformers<5"
Run:  setfit-env/bin/python benchmarks/few_shot_setfit.py FILE --text COLUMN --label COLUMN [--dev FILE]
[--shots 8 16] --model is a folder or a Hub id. Settings are SetFit's own; --iterations 20 is its paper's: 40
pairs for each row."""

from __future__ import annotations

import argparse
import tempfile
from functools import partial

import pandas
from datasets import Dataset
from few_shot_rows import arguments, compare
from setfit import SetFitModel, Trainer, TrainingArguments


def by_setfit(
    args: argparse.Namespace, train: pandas.DataFrame, dev: pandas.DataFrame, seed: int
) -> list[str]:
    """The labels of the held-out rows, by SetFit."""
    model = SetFitModel.from_pretrained(args.model, labels=sorted(set(train["label"])))
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            num_iterations=args.iterations,
            seed=seed,
            report_to="none",
            save_strategy="no",
            show_progress_bar=False,
        )
        Trainer(model, settings, train_dataset=Dataset.from_pandas(train, preserve_index=False)).train()
    return list(model.predict(dev["text"].tolist(), show_progress_bar=False))


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--iterations", type=int, default=20)
    given = parser.parse_args()
    compare(given, {"SetFit": partial(by_setfit, given)})
