"""How much of its tolerance each comparison uses: a pytest plug-in, `--margins`.

A comparison that uses most of its tolerance on one processor fails on another. So comparisons by
`assert_allclose`, `assert_close`, `allclose` and `approx` are measured, and a run fails in which one uses
more than a third, unless MEANT says why it may.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

MOST = 1 / 3
MEANT = {"tests/test_margins.py": "narrow on purpose"}  # file or test -> why it may use more than a third
NAMES = ("rtol", "atol")
OF_TYPE = {  # the tolerances of torch.testing.assert_close
    None: (0.0, 0.0),
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}
COMPARED = [
    (np.testing, "assert_allclose", {None: (1e-7, 0.0)}),
    (np, "allclose", {None: (1e-5, 1e-8)}),
    (torch, "allclose", {None: (1e-5, 1e-8)}),
    (torch.testing, "assert_close", OF_TYPE),
]


def reason(test):
    """Why a test may use more than a third of a tolerance; empty if it may not."""
    return next((why for name, why in MEANT.items() if test.startswith(name)), "")


def used(actual, expected, relative, absolute):
    """The largest difference as a share of what is allowed; 0 where nothing differs or both are infinite or
    NaN.
    """
    if isinstance(actual, Mapping):
        return used([*actual.values()], [expected[key] for key in actual], relative, absolute)
    if isinstance(actual, Sequence):
        return max(
            (used(*pair, relative, absolute) for pair in zip(actual, expected, strict=True)), default=0.0
        )
    first, second = np.broadcast_arrays(numbers(actual), numbers(expected))
    with np.errstate(invalid="ignore"):
        difference = np.abs(first - second)
        allowed = absolute + relative * np.abs(second)
    differing = np.isfinite(difference) & (difference > 0)
    tiny = np.finfo(np.float64).tiny
    return float((difference[differing] / np.maximum(allowed[differing], tiny)).max(initial=0))


def numbers(value):
    """As an array of fp64."""
    return np.asarray(
        value.detach().cpu().double() if isinstance(value, torch.Tensor) else value, dtype=np.float64
    )


class Margins:
    """Wraps the functions that compare, remembers the largest share of each test, and fails the run over a
    third.

    With pytest-xdist each worker sends its shares when it ends.
    """

    def __init__(self, config):
        self.config = config
        self.test = ""
        self.shares = {}
        self.patch = pytest.MonkeyPatch()
        for owner, name, tolerances in COMPARED:
            self.patch.setattr(owner, name, self.measured(getattr(owner, name), tolerances))
        scalar = type(pytest.approx(1.0))  # which compares the elements of sequences, arrays and mappings too
        self.patch.setattr(scalar, "__eq__", self.measured_scalar(scalar.__eq__))

    def note(self, share):
        self.shares[self.test] = max(share, self.shares.get(self.test, 0))

    def measured(self, compare, tolerances):
        """The function, which notes its share where it passes."""

        def wrapper(actual, expected, *args, **options):
            outcome = compare(actual, expected, *args, **options)
            options = {**options, **dict(zip(NAMES, args, strict=False))}
            defaults = tolerances.get(getattr(actual, "dtype", None), tolerances[None])
            if outcome is not False:
                relative, absolute = (
                    options.get(name, usual) for name, usual in zip(NAMES, defaults, strict=True)
                )
                self.note(used(actual, expected, relative, absolute))
            return outcome

        return wrapper

    def measured_scalar(self, compare):
        """`approx`, of one number."""

        def wrapper(approx, actual):
            outcome = compare(approx, actual)
            number = isinstance(approx.expected, int | float | np.number)
            if outcome and number and np.isfinite(approx.expected) and approx.tolerance:
                self.note(used(actual, approx.expected, 0, approx.tolerance))
            return outcome

        return wrapper

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.test = item.nodeid
        return (yield)

    def pytest_sessionfinish(self, session):
        """A worker sends its shares; the process that has all of them fails the run where one is over a
        third.
        """
        self.patch.undo()
        if worker := getattr(self.config, "workeroutput", None):
            worker["margins"] = self.shares
        elif self.narrow() and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """The shares of a worker."""
        self.shares |= getattr(node, "workeroutput", {}).get("margins", {})

    def narrow(self):
        """Test -> its share, where it is over a third and not meant."""
        return {test: share for test, share in self.shares.items() if share > MOST and not reason(test)}

    def pytest_terminal_summary(self, terminalreporter):
        """A table of what uses more than a third, the largest first."""
        wide = sorted(((share, test) for test, share in self.shares.items() if share > MOST), reverse=True)
        terminalreporter.section("margins")
        for share, test in wide:
            terminalreporter.write_line(f"{share:7.1%}  {test}  {reason(test) or 'NOT MEANT'}")
        terminalreporter.write_line(
            f"{len(self.shares)} tests compare with a tolerance; {len(wide)} use more than a third of it, "
            f"{len(self.narrow())} of them without a reason in tests/margins.py"
        )
