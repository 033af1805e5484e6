"""`pytest --precision fp32` puts this folder into PYTHONPATH: subprocesses, too, see a processor without
bf16.

Python runs a `sitecustomize` when it starts. torch is slow to import and not always needed, so its function
is replaced when something imports it.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def without_bf16(module: ModuleType) -> None:
    """Replaces `torch.cpu.get_capabilities`, by which `bertkit.models.device.best_precision` decides."""
    capabilities = getattr(module, "get_capabilities", dict)
    module.get_capabilities = lambda: capabilities() | {"avx512_bf16": False, "amx_bf16": False}


class Finder(PathFinder):
    """Finds `torch.cpu` alone."""

    @classmethod
    def find_spec(cls, name, path=None, target=None) -> ModuleSpec | None:
        spec = super().find_spec(name, path, target) if name == "torch.cpu" else None
        if spec:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), without_bf16(module))
        return spec


if "torch.cpu" in sys.modules:
    without_bf16(sys.modules["torch.cpu"])
else:
    sys.meta_path.insert(0, Finder)
