"""Vectors of the texts of a folder on a Ray cluster, with a model in each worker: one per GPU, or else per
core.

Run:       python recipes/cluster/embed_ray.py runs/similarity reviews vectors --side document

Each row keeps its columns, and gets `vector`. Order, killed workers and what machines need: see
predict_ray.py.
"""

from __future__ import annotations

import argparse

import ray.data

import bertkit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a run folder, a model folder or a Hub id")
    parser.add_argument("input", help="a folder, or a file")
    parser.add_argument("output", help="a new folder of parquet files")
    parser.add_argument(
        "--format", default="parquet", choices=("csv", "json", "parquet"), help="json: a row a line"
    )
    parser.add_argument(
        "--side", default="text", choices=("text", "query", "document"), help="which prefix to prepend"
    )
    parser.add_argument("--text", default="text", help="the column of texts")
    parser.add_argument("--batch-size", type=int, default=4096, help="texts that a worker encodes at a time")
    args = parser.parse_args()

    ray.init(ignore_reinit_error=True)  # RAY_ADDRESS, the cluster of this machine, or a new one
    there = {"GPU": 0, **ray.cluster_resources()}
    workers = int(there["GPU"] or max(1, there["CPU"] - 1))  # a core is left to read and write
    options = {"compute": ray.data.ActorPoolStrategy(size=workers), "num_gpus": min(there["GPU"], 1)}
    chosen = {"side": args.side, "columns": {"text": args.text}}
    options |= {"fn_constructor_args": [args.model], "fn_constructor_kwargs": chosen}
    rows = getattr(ray.data, f"read_{args.format}")(args.input)
    rows = rows.map_batches(bertkit.batch, batch_size=args.batch_size, batch_format="pyarrow", **options)
    rows.write_parquet(args.output, mode="error")


if __name__ == "__main__":
    main()
