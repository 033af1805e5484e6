"""Answers for the rows of a folder or of files in Spark, with a model in each task.

Run:       spark-submit recipes/cluster/predict_spark.py runs/sst2 reviews answers --column text=sentence

Each row keeps its columns, and gets those of csv output, such as `answer.label`. The rows are in any order. A
task
that fails is tried again, `spark.task.maxFailures` times. All machines need bertkit, and the same paths.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

import bertkit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a run folder, a model folder or a Hub id")
    parser.add_argument("input", help="a folder, a file or a glob that Spark reads")
    parser.add_argument("output", help="a new folder of parquet files")
    parser.add_argument(
        "--format", default="parquet", choices=("csv", "json", "parquet"), help="json: a row a line"
    )
    parser.add_argument(
        "--column", action="append", default=[], metavar="text=NAME", help="the column to read as text"
    )
    parser.add_argument(
        "--tasks", type=int, default=64, help="each loads the model; the larger, the less is repeated"
    )
    args = parser.parse_args()

    spark = SparkSession.builder.appName("bertkit predict").getOrCreate()
    header = {"header": True} if args.format == "csv" else {}
    rows = spark.read.format(args.format).options(**header).load(args.input).repartition(args.tasks)
    answers = bertkit.batch(args.model, columns=dict(pair.split("=") for pair in args.column))
    schema = spark.createDataFrame(answers(rows.limit(10).toArrow())).schema
    rows.mapInPandas(lambda batches: map(answers, batches), schema).write.parquet(args.output)


if __name__ == "__main__":
    main()
