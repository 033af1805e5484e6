"""The command doctor: what this machine and installation can do, and which of bertkit's promises hold
here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from bertkit.cli.shared import JSON, command, say
from bertkit.text import Json, columns

INSTRUCTIONS = "avx2 avx512_f avx512_vnni avx_vnni avx512_bf16 amx_bf16 asimd sve".split()
VARIABLES = "BERTKIT_CACHE CUDA_VISIBLE_DEVICES HF_HOME HF_HUB_OFFLINE OMP_NUM_THREADS".split()


def examine() -> Json:
    """Versions, devices, precision and promises.

    It holds no secrets: only whether there is a Hub token. Uses no network.
    """
    from huggingface_hub import get_token

    from bertkit.run import environment
    from bertkit.tasks import announced_tasks

    device = "cpu"
    precision = "fp32"
    why = "torch is not installed"
    if find_spec("torch"):
        from bertkit.models.device import best_device, best_precision

        device = best_device().type
        precision = best_precision(best_device())
        why = _reason(device, precision)
    return {
        "environment": environment(device, precision),
        "tested_versions": tested_versions(),
        "devices": list(_devices()),
        "precision": {"used": precision, "why": why},
        "promises": _promises(device),
        "tasks": announced_tasks(),
        "variables": {name: os.environ.get(name) for name in VARIABLES},
        "hub_token": get_token() is not None,
    }


def tested_versions() -> dict[str, str]:
    """Package -> the version that bertkit is tested with: constraints.txt, of the checkout or the wheel."""
    package = Path(__file__).resolve().parents[1]
    file = next(filter(Path.is_file, (package / "constraints.txt", package.parent / "constraints.txt")))
    lines = (line.partition("==") for line in file.read_text(encoding="utf-8").splitlines() if "==" in line)
    return {name.replace("_", "-"): version for name, _, version in lines}


def _promises(device: str) -> dict[str, str]:
    """Promise -> whether it holds on this type of device."""
    resume = {
        "cpu": "byte for byte, with the same number of threads",
        "cuda": (
            "the same steps; some kernels add up in another order each time, so that last digits may differ"
        ),
    }
    faster = "bertkit's own dropout and attention" if device == "cpu" else "those of torch"
    return {
        "exact resume": resume.get(device, "not tested on this device"),
        "kernels in training": faster,
        "attention": "sdpa, or eager where an architecture lacks it; the log of a training names its own",
        "int8 exports": "the same sums on every processor",
    }


def doctor_text(facts: Json) -> str:
    """The result of `examine` as tables."""
    host = facts["environment"]
    tested = facts["tested_versions"]
    threads = f", torch uses {host['threads']}" if host["threads"] else ""
    about = [
        ["python", host["python"]],
        ["platform", host["platform"]],
        ["machine", f"{host['device']}, {host['cpus']} cores{threads}"],
        *(["device", text] for text in facts["devices"]),
        ["precision", f"{facts['precision']['used']}: {facts['precision']['why']}"],
        *([name, text] for name, text in facts["promises"].items()),
        *([f"task {name}", text] for name, text in facts["tasks"].items()),
        ["Hub token", "yes" if facts["hub_token"] else "no"],
        *([name, value] for name, value in facts["variables"].items() if value is not None),
    ]
    versions = [
        [name, version or "not installed", tested.get(name, "")] for name, version in host["versions"].items()
    ]
    tables = [
        columns([["what", "value"], *about]),
        columns([["package", "installed", "tested with"], *versions]),
    ]
    if not find_spec("torch"):
        install = 'pip install "bertkit[torch]"'
        tables.append(f"torch is not installed: only exported models can be run. To train:\n    {install}")
    return "\n\n".join(tables)


def _devices() -> Iterator[str]:
    """The usable devices: name, memory in GB, compute capability; of a CPU, its vector instructions."""
    features = ""
    if find_spec("torch"):
        import torch

        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            capability = f"capability {facts.major}.{facts.minor}"
            yield f"cuda:{index}: {facts.name}, {facts.total_memory / 1e9:.0f} GB, {capability}"
        if torch.backends.mps.is_available():
            yield "mps: an Apple GPU"
        from bertkit.models.device import cpu_instructions

        capabilities = cpu_instructions()
        features = ", ".join(name for name in INSTRUCTIONS if capabilities.get(name))
    yield f"cpu: {features}" if features else "cpu"


def _reason(device: str, precision: str) -> str:
    """Why this precision is used on this type of device."""
    if precision == "bf16":
        return f"this {device} has it in hardware; weights, losses and stored logits stay fp32"
    if precision == "fp16":
        return f"this {device} has no bf16 in hardware; weights and losses stay fp32, and losses are scaled"
    needed = {"cuda": "a GPU of compute capability 7.0 or more", "cpu": "AVX512-BF16 or AMX"}.get(device)
    return f"bf16 or fp16 is faster with {needed} only" if needed else f"no other is used on {device}"


@command("show what this machine and installation can do", JSON, example="bertkit doctor", page="install")
def doctor(as_json: bool) -> None:
    facts = examine()
    say(json.dumps(facts, indent=2) if as_json else doctor_text(facts))
