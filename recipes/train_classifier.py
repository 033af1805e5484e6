# /// script
# requires-python = ">=3.11"
# dependencies = ["bertkit[torch]"]
#
# [tool.hf-jobs]
# flavor = "t4-small"
# timeout = "2h"
# secrets = ["HF_TOKEN"]
# ///
"""Train a text classifier on a csv file or a Hub data set, and push it to the Hub.

uv run train_classifier.py reviews.csv --text review --label stars
hf jobs uv run train_classifier.py stanfordnlp/sst2 --text sentence --push-to me/sst2-classifier
"""

import argparse
import json
import sys

import bertkit

parser = argparse.ArgumentParser(description="Train a text classifier, and push it.")
parser.add_argument("data", help="a csv, json or parquet file, or a data set of the Hub")
parser.add_argument("--text", default="text", help="its column of texts")
parser.add_argument("--label", default="label", help="its column of labels")
parser.add_argument(
    "--model", default="google-bert/bert-base-uncased", help="the encoder: a Hub id or a folder"
)
parser.add_argument("--max-length", type=int, default=128, help="tokens of a text that the model reads")
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--output-dir", default="run", help="the run folder: model, scores, predictions, report")
parser.add_argument("--push-to", metavar="OWNER/NAME", help="push to this private repository of the Hub")
given = parser.parse_args()

try:
    run = bertkit.train(
        "text-classification",
        given.output_dir,
        data={"source": given.data, "columns": {"text": given.text, "label": given.label}, "validation": 0.1},
        model=given.model,
        max_length=given.max_length,
        epochs=given.epochs,
        **({"hub": {"repo_id": given.push_to}} if given.push_to else {}),
    )
except bertkit.UserError as error:  # what is wrong, where, and what to do; nothing was written
    sys.exit(str(error))
print(json.dumps(run.results["splits"]["validation"]["metrics"], indent=2))
