"""The command doctor: what this machine and installation can do, and whether the fast paths compute correctly."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bertkit.cli.shared import JSON, command
from bertkit.text import columns, listed

VARIABLES = ("BERTKIT_CACHE", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS")


def examine() -> dict[str, Any]:
    """Versions, devices, precision, extras, caches and parity checks; `ok` is whether every check passed.

    It holds no secrets: only whether there is a Hub token. Uses no network. Without torch there are no checks.
    """
    from huggingface_hub import get_token

    from bertkit.run import environment

    device, precision, why, checks = "cpu", "fp32", "torch is not installed", list[dict[str, Any]]()
    if find_spec("torch"):
        from bertkit.models.device import best_device, best_precision
        from bertkit.models.parity import parity

        device, precision = best_device().type, best_precision(best_device())
        why = _reason(device, precision)
        checks = [{**check._asdict(), "ok": check.ok} for check in parity()]
    for check in checks:
        if check["difference"] != check["difference"]:  # NaN, which JSON does not have
            check.update(difference=None, why="not a number")
    return {
        "environment": environment(device, precision),
        "devices": list(_devices()),
        "precision": {"used": precision, "why": why},
        "extras": list(_extras()),
        "caches": list(_caches()),
        "variables": {name: os.environ.get(name) for name in VARIABLES},
        "hub_token": get_token() is not None,
        "checks": checks,
        "ok": all(check["ok"] for check in checks),
    }


def doctor_text(facts: dict[str, Any]) -> str:
    """The result of `examine` as tables."""
    host, checks = facts["environment"], facts["checks"]
    threads = f", torch uses {host['threads']}" if host["threads"] else ""
    about = [
        ["python", host["python"]],
        *([name, version or "not installed"] for name, version in host["versions"].items()),
        ["platform", host["platform"]],
        ["machine", f"{host['device']}, {host['cpus']} cores{threads}"],
        *(["device", text] for text in facts["devices"]),
        ["precision", f"{facts['precision']['used']}: {facts['precision']['why']}"],
        ["Hub token", "yes" if facts["hub_token"] else "no"],
        *([name, value] for name, value in facts["variables"].items() if value is not None),
    ]
    extras = [[each["name"], _short(each["state"]), each["fix"]] for each in facts["extras"]]
    caches = [[each["name"], f"{each['bytes'] / 1e6:,.1f}", each["folder"]] for each in facts["caches"]]
    results = [
        [each["name"], "ok" if each["ok"] else "FAIL",
         each["why"] if each["difference"] is None else f"{each['difference']:.1e}", f"{each['limit']:.0e}"]
        for each in checks
    ]  # fmt: skip
    tables = [
        columns([["what", "value"], *about]),
        columns([["extra", "state", "to install"], *extras]),
        columns([["cache", "MB", "folder"], *caches]),
        columns([["attention, compared with eager on the CPU in fp32", "", "difference", "limit"], *results]),
    ]
    if not checks:
        last = 'torch is not installed: only exported models can be run. To train:\n    pip install "bertkit[torch]"'
        return "\n\n".join([*tables[:-1], last])
    failed = sum(not each["ok"] for each in checks)
    last = "All paths agree." if not failed else (
        f"{failed} of {len(checks)} checks FAIL: models trained or run on this machine may be wrong.\n"
        "    Update torch and the device's driver, or use another device; then run bertkit doctor again."
    )  # fmt: skip
    return "\n\n".join([*tables, last])


def _short(state: str) -> str:
    """The state of an extra; only the first packages where many are missing."""
    missing = state.split(", ")
    return state if len(missing) < 6 else listed(missing, 4)


def _devices() -> Iterator[str]:
    """The usable devices: name, memory in GB, compute capability."""
    if find_spec("torch"):
        import torch

        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            capability = f"capability {facts.major}.{facts.minor}"
            yield f"cuda:{index}: {facts.name}, {facts.total_memory / 1e9:.0f} GB, {capability}"
        if torch.backends.mps.is_available():
            yield "mps: an Apple GPU"
    yield "cpu"


def _reason(device: str, precision: str) -> str:
    """Why this precision is used on this type of device."""
    if precision == "bf16":
        return f"this {device} has it in hardware; weights, losses and stored logits stay fp32"
    needed = {"cuda": "a GPU from Ampere on", "cpu": "AVX512-BF16 or AMX"}.get(device)
    return f"bf16 is faster with {needed} only" if needed else f"bf16 is not used on {device}"


def _extras() -> Iterator[dict[str, str]]:
    """Each extra of bertkit: what is missing or too old, and the command that installs it."""
    from packaging.requirements import Requirement

    requirements = [Requirement(text) for text in metadata.requires("bertkit") or []]
    for extra in metadata.metadata("bertkit").get_all("Provides-Extra") or []:
        needed = [each for each in requirements if each.marker and each.marker.evaluate({"extra": extra})]
        # an extra may name others of bertkit
        missing = [text for each in needed if each.name != "bertkit" and (text := _missing(each))]
        fix = f'pip install "bertkit[{extra}]"' if missing else ""
        yield {"name": extra, "state": ", ".join(missing) or "installed", "fix": fix}


def _missing(needed: Any) -> str:
    """What is wrong with the installation of a package, or nothing."""
    try:
        version = metadata.version(needed.name)
    except metadata.PackageNotFoundError:
        return f"no {needed.name}"
    return "" if needed.specifier.contains(version, prereleases=True) else f"{needed.name} {version} is too old"


def _caches() -> Iterator[dict[str, Any]]:
    from datasets import config
    from huggingface_hub import constants

    from bertkit.cache import cache_root

    folders = {
        "Hub models and data": Path(constants.HF_HUB_CACHE),
        "prepared data sets": Path(config.HF_DATASETS_CACHE),
        "vectors and teacher outputs": cache_root(),
    }
    for name, folder in folders.items():
        yield {"name": name, "folder": str(folder), "bytes": sum(_sizes(folder))}


def _sizes(folder: Path) -> Iterator[int]:
    """The sizes of all files below a folder, in bytes; links, as in the Hub's cache, are not followed."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                yield os.lstat(os.path.join(parent, name)).st_size


@command("show devices, versions and extras, and check the fast paths numerically", JSON)
def doctor(as_json: bool) -> int:
    facts = examine()
    print(json.dumps(facts, indent=2) if as_json else doctor_text(facts))
    return 0 if facts["ok"] else 2
