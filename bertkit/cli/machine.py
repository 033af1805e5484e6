"""`doctor`: what this machine and this installation can do, and whether its fast paths compute the right numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.text import columns

if TYPE_CHECKING:
    import torch

VARIABLES = ("BERTKIT_CACHE", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "OMP_NUM_THREADS")


def doctor() -> dict[str, Any]:
    """Versions, devices, precision, extras, caches and parity checks; `ok` is whether every check passed.

    Nothing secret is in it: of the Hub's token, only whether there is one. Reads no network. Without torch there is
    nothing to check.
    """
    from bertkit.run import environment

    device, precision, why, checks = "cpu", "fp32", "torch is not installed", list[dict[str, Any]]()
    if find_spec("torch"):
        from bertkit.models.device import best_device
        from bertkit.models.parity import parity

        own = best_device()
        device, (precision, why) = own.type, _precision(own)
        checks = [{**check._asdict(), "ok": check.ok} for check in parity()]
    for check in checks:  # JSON has no NaN
        if check["difference"] is not None and check["difference"] != check["difference"]:
            check.update(difference=None, why="not a number")
    return {
        "environment": environment(device, precision),
        "devices": list(_devices()),
        "precision": {"used": precision, "why": why},
        "extras": _extras(),
        "caches": list(_caches()),
        "variables": {name: os.environ.get(name) for name in VARIABLES},
        "hub_token": _has_token(),
        "checks": checks,
        "ok": all(check["ok"] for check in checks),
    }


def shown(found: dict[str, Any]) -> str:
    """What `doctor` found, for people."""
    own = found["environment"]
    versions, threads = {"python": own["python"], **own["versions"]}, own["threads"]
    about = [
        ["what", "here"],
        *([name, version or "not installed"] for name, version in versions.items()),
        ["platform", own["platform"]],
        ["machine", f"{own['device']}, {own['cpus']} cores" + (f", torch uses {threads}" if threads else "")],
        *(["device", text] for text in found["devices"]),
        ["precision", f"{found['precision']['used']}: {found['precision']['why']}"],
        ["Hub token", "yes" if found["hub_token"] else "no"],
        *([name, value] for name, value in found["variables"].items() if value is not None),
    ]
    extras = [["extra", "state", "to install"]]
    extras += [[each["name"], _short(each["state"]), each["fix"]] for each in found["extras"]]
    caches = [["cache", "MB", "folder"]]
    caches += [[each["name"], f"{each['bytes'] / 1e6:,.1f}", each["folder"]] for each in found["caches"]]
    checks = [["attention, held against eager on the CPU in fp32", "", "difference", "limit"]]
    for each in found["checks"]:
        figure = f"{each['difference']:.1e}" if each["difference"] is not None else each["why"]
        checks.append([each["name"], "ok" if each["ok"] else "FAIL", figure, f"{each['limit']:.0e}"])
    failed = sum(not each["ok"] for each in found["checks"])
    if not found["checks"]:
        last = 'torch is not installed: only exported models answer. For all else:\n    pip install "bertkit[torch]"'
        return "\n\n".join([*map(columns, (about, extras, caches)), last])
    last = "All paths agree." if not failed else (
        f"{failed} of {len(found['checks'])} checks FAIL: do not trust what is trained or predicted on this machine.\n"
        "    Update torch and the device's driver, or use another device; then run bertkit doctor again."
    )  # fmt: skip
    return "\n\n".join([*map(columns, (about, extras, caches, checks)), last])


def _short(state: str) -> str:
    """The first packages of an extra that lacks many."""
    lacking = state.split(", ")
    return state if len(lacking) < 6 else f"{', '.join(lacking[:4])} and {len(lacking) - 4} more"


def _devices() -> Iterator[str]:
    """Each device that can be used: its name, memory in GB, compute capability."""
    if find_spec("torch") is None:
        yield "cpu"
        return
    import torch

    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        yield f"cuda:{index}: {facts.name}, {facts.total_memory / 1e9:.0f} GB, capability {facts.major}.{facts.minor}"
    if torch.backends.mps.is_available():
        yield "mps: an Apple GPU"
    yield "cpu"


def _precision(device: torch.device) -> tuple[str, str]:
    from bertkit.models.device import best_precision

    precision = best_precision(device)
    if precision == "bf16":
        return precision, f"this {device.type} multiplies it in hardware; weights, losses and kept logits stay fp32"
    needed = {"cuda": "a GPU from Ampere on", "cpu": "AVX512-BF16 or AMX"}.get(device.type)
    return precision, f"bf16 is faster with {needed} only" if needed else f"bf16 is not used on {device.type}"


def _extras() -> list[dict[str, str]]:
    """Each extra of bertkit: what of it is missing or too old, and the command that installs it."""
    from packaging.requirements import Requirement

    found = []
    needed = [Requirement(text) for text in metadata.requires("bertkit") or []]
    for extra in metadata.metadata("bertkit").get_all("Provides-Extra") or []:
        own = [each for each in needed if each.marker and each.marker.evaluate({"extra": extra})]
        own = [each for each in own if each.name != "bertkit"]  # dev, which names the other extras
        missing = [text for text in map(_lacking, own) if text]
        fix = f'pip install "bertkit[{extra}]"' if missing else ""
        found.append({"name": extra, "state": ", ".join(missing) or "there", "fix": fix})
    return found


def _lacking(needed: Any) -> str:
    """What is wrong with an installed package, or nothing."""
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
        "models and data of the Hub": Path(constants.HF_HUB_CACHE),
        "data sets, as read": Path(config.HF_DATASETS_CACHE),
        "vectors and teachers' outputs": cache_root(),
    }
    for name, folder in folders.items():
        yield {"name": name, "folder": str(folder), "bytes": sum(_sizes(folder))}


def _sizes(folder: Path) -> Iterator[int]:
    """The size of every file below; links, which the Hub's cache is full of, are not followed."""
    for room, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(room, name)).st_size
            except OSError:  # it went while we looked
                continue


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None
