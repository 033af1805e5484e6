"""Device and precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from bertkit import processes
from bertkit.errors import UserError, extras_required

if TYPE_CHECKING:
    import torch


Precision = Literal["fp32", "bf16", "fp16"]
ModelPrecision = Literal["fp32", "bf16", "fp16", "int8"]  # int8: of exported models alone


def best_precision(device: torch.device) -> Precision:
    """bf16 where this device multiplies it in hardware (CUDA from Ampere; CPUs with AVX512-BF16 or AMX);
    fp16 on GPUs before Ampere that have units for it (Volta and Turing, such as V100 and T4).
    """
    import torch

    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16"
        return "fp16" if torch.cuda.get_device_capability(device) >= (7, 0) else "fp32"
    if device.type == "cpu":
        able = cpu_instructions()
        return "bf16" if able.get("avx512_bf16") or able.get("amx_bf16") else "fp32"
    return "fp32"


def cpu_instructions() -> Mapping[str, Any]:
    """What torch knows of this processor, such as {"avx2": True}; nothing before torch 2.11."""
    import torch

    read: Callable[[], Mapping[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)
    return read()


def resolve_precision(wanted: str, device: torch.device) -> Precision:
    """What a model's settings say ("auto" or "fp32"), as this device does it."""
    return "fp32" if wanted == "fp32" else best_precision(device)


def autocast(device: torch.device, precision: ModelPrecision) -> torch.autocast:
    """Within the block, models compute in this precision what torch does not keep in fp32."""
    import torch

    half = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, half, enabled=precision in ("bf16", "fp16"))


def best_device() -> torch.device:
    """This process's accelerator, or the CPU. Raises UserError where torch is not installed."""
    with extras_required():
        import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    rank = processes.local_rank()
    count = torch.accelerator.device_count()
    if rank and rank >= count:
        what = f"{rank}, but this machine has accelerators 0 to {count - 1}"
        raise UserError("LOCAL_RANK", what, "Start a process per accelerator, or set training.use_cpu=true.")
    return torch.device(accelerator.type, rank)


def attention_kernels(device: torch.device) -> AbstractContextManager[Any]:
    """On CUDA, disables cuDNN's attention within the block: it is compiled for 0.1 s at each new shape of a
    batch.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(kernels) if device.type == "cuda" else nullcontext()
