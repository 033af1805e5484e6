"""The commands that have to do with vectors: parsers, and one call of the API each."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from bertkit.cli.shared import MODEL, quiet_libraries
from bertkit.errors import Problem, UserError


def vector_commands(commands: Any) -> None:
    """Add embed, mine, cache, index and search to the subparsers of `bertkit`."""
    command = commands.add_parser("embed", help="the vector of each row's text, as parquet or npy")
    command.add_argument("source", metavar="MODEL", help=MODEL)
    kinds = "csv, tsv, json, jsonl, parquet, or txt with a text a line"
    command.add_argument("--input", type=Path, required=True, metavar="FILE", help=kinds)
    command.add_argument("--output", type=Path, required=True, metavar="FILE", help=".parquet or .npy")
    command.add_argument("--column", default="text", metavar="NAME", help="the column of texts; default: text")
    command.add_argument(
        "--side", choices=("text", "query", "document"), default="text", help="whose prefix is put before"
    )
    command.add_argument(
        "--layers", type=int, nargs="+", metavar="N", help="hidden layers instead of the model's own vector"
    )
    command.add_argument("--combine", choices=("concat", "sum", "mean"), default="concat", help="of several --layers")
    command.add_argument("--pool", choices=("mean", "cls", "max"), default="mean", help="of --layers")
    command.set_defaults(run=_embed)

    command = commands.add_parser("mine", help="hard negatives for retrieval, or candidates for text-ranking")
    command.add_argument("source", metavar="MODEL", help=MODEL)
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="a folder in BEIR's layout")
    command.add_argument("--split", default="train", help="whose queries; default: train")
    command.add_argument("--output", type=Path, required=True, metavar="FILE", help=".jsonl")
    command.add_argument("--form", choices=("negatives", "candidates"), default="negatives", help="default: negatives")
    command.add_argument("--count", type=int, default=1, metavar="N", help="documents a query; default: 1")
    command.add_argument("--skip", type=int, default=0, metavar="N", help="the nearest, passed over; default: 0")
    command.set_defaults(run=_mine)

    command = commands.add_parser("cache", help="vectors that are kept on disk: shown, or cleared")
    command.add_argument("action", nargs="?", choices=("show", "clear"), default="show")
    command.add_argument("--days", type=float, metavar="N", help="clear: only what was last used longer ago")
    command.set_defaults(run=_cache)

    _store_commands(commands)


def _store_commands(commands: Any) -> None:
    command = commands.add_parser("index", help="put documents into a vector store, replace or delete them")
    command.add_argument("source", metavar="MODEL", help=MODEL)
    command.add_argument("--documents", type=Path, metavar="FILE", help="rows with id, text, and what else is known")
    command.add_argument("--store", required=True, metavar="DIR", help="a folder, or an object store's URI")
    command.add_argument(
        "--delete", action="extend", nargs="+", default=[], metavar="ID", help="documents to be deleted first"
    )
    command.set_defaults(run=_index)

    command = commands.add_parser("search", help="the documents of a store that are nearest to a query")
    command.add_argument("store", metavar="STORE", help="a folder, or an object store's URI")
    command.add_argument("query", metavar="QUERY")
    command.add_argument("--top-k", type=int, default=10, metavar="N", help="documents; default: 10")
    command.add_argument("--rerank", metavar="MODEL", help="a cross-encoder that orders what was found")
    command.add_argument("--filter", metavar="SQL", help="such as \"year >= 2020 and town = 'Ulm'\"")
    command.add_argument("--hybrid", action="store_true", help="full-text search too, the two ranks fused")
    command.add_argument("--exact", action="store_true", help="compare with every passage, not by the index")
    command.add_argument("--model", metavar="MODEL", help="where the store's model is now, if it was moved")
    command.add_argument("--json", action="store_true", help="print JSON lines")
    command.set_defaults(run=_search)


def _embed(args: argparse.Namespace) -> None:
    from bertkit.inference.embed import embed_features, embed_file

    quiet_libraries()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        if args.layers:
            from bertkit.inference.features import Features

            features = Features(args.source, layers=tuple(args.layers), combine=args.combine, pool=args.pool)
            count = embed_features(features, args.input, args.output, column=args.column)
        else:
            from bertkit.retrieval.models import kept_vectors

            count = embed_file(kept_vectors(args.source, args.side), args.input, args.output, column=args.column)
    for warning in said:
        print(f"warning: {warning.message}", file=sys.stderr)
    print(f"{count:,} vectors in {args.output}", file=sys.stderr)


def _mine(args: argparse.Namespace) -> None:
    from bertkit.retrieval.mining import mine_file
    from bertkit.retrieval.models import dual_encoder

    quiet_libraries()
    model = dual_encoder(args.source)
    count = mine_file(model, args.data, args.split, args.output, form=args.form, count=args.count, skip=args.skip)
    print(f"{count:,} rows in {args.output}", file=sys.stderr)


def _cache(args: argparse.Namespace) -> None:
    from bertkit.inference.embed import cache_table, clear_cache

    if args.action == "show" and args.days is not None:
        raise UserError(Problem("", "--days goes with clear"))
    print(clear_cache(args.days) if args.action == "clear" else cache_table())


def _index(args: argparse.Namespace) -> None:
    from bertkit.retrieval.commands import index_file
    from bertkit.retrieval.models import dual_encoder

    quiet_libraries()
    print(index_file(args.source, args.store, dual_encoder, documents=args.documents, delete=args.delete))


def _search(args: argparse.Namespace) -> None:
    from dataclasses import asdict

    from bertkit.retrieval.commands import search_store, shown
    from bertkit.retrieval.models import dual_encoder, reranker

    quiet_libraries()
    hits = search_store(
        args.store,
        args.query,
        dual_encoder,
        top_k=args.top_k,
        filter=args.filter,
        hybrid=args.hybrid,
        exact=args.exact,
        rerank=reranker(args.rerank) if args.rerank else None,
        model=args.model,
    )
    for hit in hits if args.json else ():
        print(json.dumps(asdict(hit), ensure_ascii=False, default=str))
    if not args.json:
        print(shown(hits))
