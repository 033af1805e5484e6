"""The CRF beside pytorch-crf, in one run: milliseconds of a training step's loss and of decoding, per batch.

Loss: forward and backward of the negative log-likelihood of a batch, by emissions and transitions. Decoding:
Viterbi, from emissions to tags. Sentences are of 50 to 100 % of the words, the first of all of them. Values
are compared in fp64, then both are timed in fp32, taking turns; medians over the rounds are printed: on the
CPU of processor time, which other work changes least, on CUDA of elapsed time.

Run:  python benchmarks/crf.py [--rounds 15] [--threads 1]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchcrf
from torch import Tensor

from bertkit.models.heads import crf, posteriors
from bertkit.models.heads.forward_backward import Chain

SHAPES = ((32, 128, 9), (24, 96, 17), (32, 128, 37), (16, 512, 9))  # (batch, words, tags)


class Contest:
    """The same emissions, tags and transitions for both."""

    def __init__(self, shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        batch, words, tags = shape
        lengths = torch.randint(words // 2, words + 1, (batch,))
        lengths[0] = words
        self.mask = (torch.arange(words) < lengths[:, None]).to(device)
        self.tags = torch.randint(tags, (batch, words)).to(device)
        self.emissions = torch.randn(shape, dtype=torch.float64).to(device, dtype).requires_grad_()
        self.theirs = torchcrf.CRF(tags, batch_first=True).to(device, dtype)
        self.ours = crf.CRF(tags).to(device, dtype)
        self.ours.load_state_dict(self.theirs.state_dict())

    def our_loss(self) -> tuple[Tensor, ...]:
        loss = crf.nll(self.emissions, self.tags, self.mask, self.ours()).sum()
        return loss, *torch.autograd.grad(loss, (self.emissions, self.ours.transitions))

    def their_loss(self) -> tuple[Tensor, ...]:
        loss = -self.theirs(self.emissions, self.tags, mask=self.mask)
        return loss, *torch.autograd.grad(loss, (self.emissions, self.theirs.transitions))

    def our_tags(self) -> Tensor:
        return best_paths(self.emissions, self.mask, self.ours())

    def their_tags(self) -> list[list[int]]:
        with torch.no_grad():
            return self.theirs.decode(self.emissions, mask=self.mask)  # type: ignore[no-any-return]

    def check(self) -> None:
        torch.testing.assert_close(self.our_loss(), self.their_loss(), rtol=1e-8, atol=1e-8)
        assert [row[row >= 0].tolist() for row in self.our_tags()] == self.their_tags()


@torch.no_grad()
def best_paths(emissions: Tensor, mask: Tensor, chain: Chain) -> Tensor:
    """The tags `(batch, words)`, -1 at padding, as answers are decoded; the arguments are checked as `nll`
    checks them.

    `pytorch-crf` checks its own too.
    """
    real, _ = crf._wide(emissions, mask, chain)
    scores = emissions.cpu()
    found = posteriors.decode(
        scores.numpy(), real.sum(1).cpu().numpy(), [part.to(scores).numpy() for part in chain]
    )
    return torch.from_numpy(found).to(emissions.device)


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    started = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (clock() - started) * 1000


def processor() -> str:
    """Its name, as Linux says it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor()
    )


def compare(shape: tuple[int, int, int], device: torch.device, rounds: int) -> None:
    """Prints a row of the table for each contest."""
    Contest(shape, device, torch.float64).check()
    contest = Contest(shape, device, torch.float32)
    for name, ours, theirs in (
        ("loss", contest.our_loss, contest.their_loss),
        ("decode", contest.our_tags, contest.their_tags),
    ):
        times = [(milliseconds(ours, device), milliseconds(theirs, device)) for _ in range(rounds + 2)][2:]
        mine, other = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(b / a for a, b in times)
        print(f"{device.type:6} {shape!s:14} {name:8} {mine:8.2f} {other:14.2f} {ratio:7.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    # 32 MiB, freed at once, as any model does: glibc then keeps memory instead of giving it back
    torch.ones(2**23)
    devices = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {processor()}")
    print(*(torch.cuda.get_device_name(device) for device in devices[1:]))
    print(f"{'device':6} {'shape':14} {'':8} {'ours ms':>8} {'pytorch-crf ms':>14} {'ratio':>7}")
    for device in devices:
        for shape in SHAPES:
            compare(shape, device, args.rounds)


if __name__ == "__main__":
    main()
