"""Files answered or embedded by the workers of a Ray cluster, with a model each.

Each input file has an output file of its own, which a worker writes as the same command does without Ray.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from glob import glob, has_magic
from itertools import takewhile
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from bertkit.cache import fingerprint
from bertkit.data.readers import COMPRESSIONS, FORMATS, suffix_of
from bertkit.data.table import MAX_PROBLEMS, Problems
from bertkit.errors import DataError, Problem, UserError, extras_required
from bertkit.files import read_json, require_suffix, write_json
from bertkit.inference.predictor import model_folder
from bertkit.models.quiet import quiet_logger
from bertkit.text import counted, first_line

WriteFile: TypeAlias = Callable[[Path, Path], int | None]  # an input file and its output -> the number of its rows

RECORD = ".bertkit.json"  # in an output folder: what its files were made with
TRIES = 3  # how often a file is begun whose worker dies; Ray begins it again for ever

logger = logging.getLogger(__name__)


class Planned(NamedTuple):
    """An input file, and its output."""

    file: Path
    output: Path

    @property
    def finished(self) -> bool:
        """Whether the output is there, and not older than the file."""
        return self.output.exists() and self.output.stat().st_mtime_ns >= self.file.stat().st_mtime_ns


class Written(NamedTuple):
    """What a worker says of a file."""

    file: str
    rows: int
    notes: Sequence[str]
    problems: Sequence[Sequence[str]]  # as `Problem`


class FileWorker:
    """In a process of its own: writes the output of one file after another."""

    def __init__(self, open_model: Callable[[], WriteFile]) -> None:
        """open_model: called with the first file, so that what is wrong with the model is a problem like any other."""
        self.open_model = cache(open_model)

    def __call__(self, item: Mapping[str, str]) -> dict[str, str]:
        rows, problems, file, output = 0, list[Problem](), Path(item["file"]), Path(item["output"])
        with _noted() as notes:
            try:
                with _begun(file, output):
                    rows = self.open_model()(file, output) or 0
            except UserError as error:
                problems += error.problems
            except OSError as error:
                problems.append(Problem(str(error.filename or output), str(error.strerror or error)))
        return {"written": json.dumps(Written(str(file), rows, notes, problems))}


@contextmanager
def _begun(file: Path, output: Path) -> Iterator[None]:
    """Counts in a file beside the output how often the block was begun and not ended. Raises UserError after TRIES."""
    tries = _tries(output)
    tries.parent.mkdir(parents=True, exist_ok=True)
    with tries.open("ab") as stream:
        stream.write(b".")
    try:
        if tries.stat().st_size > TRIES:
            fix = "If there was too little memory: fewer --workers, or smaller files. The same command continues."
            raise UserError(Problem(str(file), f"{TRIES} workers died of it", fix))
        yield
    finally:
        tries.unlink(missing_ok=True)


def _tries(output: Path) -> Path:
    return output.with_name(f".{output.name}.tries")


def write_files(
    open_model: Callable[..., WriteFile],
    model: str,
    options: Mapping[str, Any],
    files: str,
    output: Path,
    suffixes: Sequence[str],
    *,
    address: str | None = None,
    workers: int | None = None,
) -> str:
    """Write the output of each input file that has none yet, with the workers of a Ray cluster; returns a summary.

    open_model: called as `open_model(model, **options)`: once here, to raise UserError where one of them is wrong, and
    once in each worker, to which it is sent by cloudpickle.
    model: a run, folder or Hub id. options: as JSON. Outputs of another model or other options are not continued.
    files: a file, a folder or a glob. output: a folder, or `FOLDER/*.SUFFIX`; without a suffix the first of `suffixes`.
    Workers on other machines must find all of these under the same paths.
    address: of the cluster; None: the one that this process is connected to, that RAY_ADDRESS names, or that runs on
    this machine, or else a new one. workers: None: as many as the cluster has GPUs, or else cores.
    Raises DataError with the problems of the files, and UserError where there is no cluster; finished outputs are kept.
    """
    folder, planned = plan_files(files, output, suffixes)
    made_with = json.loads(json.dumps({"model": fingerprint(model_folder(model, options.get("revision"))), **options}))
    _require_same(folder, made_with)
    left = [each for each in planned if not each.finished]
    earlier = f"; {counted(len(planned) - len(left), 'other')} finished before" if len(left) < len(planned) else ""
    opening = partial(open_model, located(model), **options)
    rows, found = 0, dict[Problem, None]()
    if left:
        with connected(address):
            opening()
            write_json(folder / RECORD, made_with)
            for each in left:
                _tries(each.output).unlink(missing_ok=True)  # those of a command that was killed
            for number, written in enumerate(_written(opening, left, workers), 1):
                for note in written.notes:
                    logger.warning("%s: %s", written.file, note)
                rows += written.rows
                found |= dict.fromkeys(Problem(*each) for each in written.problems)
                logger.info("%d of %d files: %s", number, len(left), written.file)
                if len(found) >= MAX_PROBLEMS:
                    break
    problems = Problems()
    for problem in found:
        problems.add(*problem)
    problems.raise_if_any()
    return f"{counted(rows, 'row')} of {counted(len(left), 'file')} in {folder}{earlier}"


def plan_files(files: str, output: Path, suffixes: Sequence[str]) -> tuple[Path, list[Planned]]:
    """The folder of the outputs, and the planned, sorted; see `write_files`. Raises DataError.

    An output has the path of its file, relative to the folder or to the part of the glob before the first wildcard.
    Of a folder, all files that bertkit reads are taken, also from folders below, except `.NAME` and `_NAME`.
    """
    output, path = output.expanduser().absolute(), Path(files).expanduser().absolute()
    named = output.stem == "*"
    folder, suffix = (output.parent, output.suffix) if named else (output, suffixes[0])
    if named:
        require_suffix(output, *suffixes)
    elif output.suffix in suffixes:
        fix = f"Name a folder; or '{output.with_suffix('')}/*{output.suffix}', for files of this format."
        raise DataError(Problem(str(output), "each input file has an output of its own", fix))
    root, found = _found(path)
    if root == folder:
        raise DataError(Problem(str(folder), "is the folder of the input", "Name another for the output."))
    planned = [
        Planned(file, folder / _bare(file).relative_to(root).with_suffix(suffix))
        for file in found
        if folder not in file.parents
    ]
    if not planned:
        raise DataError(Problem(files, "no such file, or a folder without files that bertkit reads"))
    twice = [name for name, count in Counter(each.output for each in planned).items() if count > 1]
    if twice:
        same = ", ".join(str(each.file) for each in planned if each.output == twice[0])
        raise DataError(Problem(str(twice[0]), f"would be the output of several files: {same}", "Rename one."))
    return folder, planned


def _found(path: Path) -> tuple[Path, list[Path]]:
    """The files, sorted, and the folder that all are in."""
    if path.is_dir():
        files = (file for file in path.rglob("*") if suffix_of(file) in FORMATS and file.is_file())
        return path, sorted(f for f in files if not any(p[0] in "._" for p in f.relative_to(path).parts))
    if path.exists():
        return path.parent, [path]
    root = Path(*takewhile(lambda part: not has_magic(part), path.parts))
    return root, sorted(file for name in glob(str(path), recursive=True) if (file := Path(name)).is_file())


def _bare(file: Path) -> Path:
    """Without a compression's suffix."""
    return file.with_suffix("") if file.suffix in COMPRESSIONS else file


def _require_same(folder: Path, made_with: Mapping[str, Any]) -> None:
    """Raises DataError unless the folder is new, empty, or has outputs of the same model and options."""
    if not (folder / RECORD).exists():
        if folder.exists() and any(folder.iterdir()):
            what = "has files which were not written with --engine ray"
            raise DataError(Problem(str(folder), what, "Name a new folder."))
        return
    there = read_json(folder / RECORD)
    if there != made_with:
        names = [name for name in made_with if not isinstance(there, dict) or there.get(name) != made_with[name]]
        what = f"its files were made with another {', '.join(names)}"
        raise DataError(Problem(str(folder), what, "Name a new folder, or repeat the command that made them."))


@contextmanager
def _noted() -> Iterator[list[str]]:
    """What bertkit logs and libraries warn of in the block, once it has ended."""
    notes, handler, ours = list[str](), BufferingHandler(sys.maxsize), logging.getLogger("bertkit")
    ours.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            yield notes
    finally:
        ours.removeHandler(handler)
    notes += [record.getMessage() for record in handler.buffer] + [str(each.message) for each in caught]


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """A connection to a Ray cluster, for the block; one that there is already is kept. Raises UserError."""
    with extras_required():
        import ray
        import ray.data  # which sets the level of its logger
    with quiet_logger("ray.data"):  # else it prints its plans
        if ray.is_initialized():
            yield
            return
        with quiet_logger("ray", logging.WARNING):
            try:
                ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
            except (ConnectionError, ValueError, RuntimeError) as error:
                fix = "Name the address of its head node, HOST:6379, or leave --address out."
                what = f"no Ray cluster: {first_line(error)}"
                raise UserError(Problem(f"--address {address}", what, fix)) from error
            try:
                yield
            finally:
                ray.shutdown()


def located(model: str) -> str:
    """The path of a model as processes in other folders need it; a Hub id as it is."""
    path = Path(model).expanduser()
    return str(path.absolute()) if path.exists() else model


def pool(workers: int | None) -> tuple[int, dict[str, int]]:
    """The number of workers, by default as many as the cluster has GPUs, or else cores; and Ray's options of each."""
    import ray

    there = ray.cluster_resources()
    gpus = int(there.get("GPU", 0))
    return workers or gpus or int(there.get("CPU", 1)), {"num_cpus": 1, "num_gpus": min(gpus, 1)}


def _written(open_model: Callable[[], WriteFile], planned: Sequence[Planned], workers: int | None) -> Iterator[Written]:
    """What the workers say of each file, as they finish."""
    import ray

    size, options = pool(workers)
    items = [{"file": str(each.file), "output": str(each.output)} for each in planned]
    made = ray.data.from_items(items, override_num_blocks=len(items)).map(
        FileWorker,
        fn_constructor_args=[open_model],
        compute=ray.data.ActorPoolStrategy(size=min(size, len(planned)), max_tasks_in_flight_per_actor=1),
        **options,
    )
    made.context.enable_progress_bars = False
    made.context.execution_no_progress_timeout_s = -1  # a file may take hours
    for row in made.iter_rows():
        yield Written(*json.loads(row["written"]))
