"""The plug-in of `--margins`: the share of a tolerance that a comparison uses."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from margins import MOST, Margins, used

ONE = torch.ones(())


def test_the_share_is_the_largest_difference_over_what_is_allowed():
    assert used([1.0, 2.0], [1.0, 4.0], 0.25, 1.0) == 1.0  # 2 of 1 + 0.25 * 4
    assert used([[1.0], [2.0, 3.0]], [[1.0], [2.0, 3.5]], 0, 1.0) == 0.5
    assert used({"a": ONE, "b": ONE + 1}, {"b": ONE + 1.5, "a": ONE}, 0, 1.0) == 0.5
    assert used(np.inf, np.inf, 0, 1.0) == used(np.nan, np.nan, 0, 1.0) == 0.0
    assert used(ONE.bfloat16(), ONE.double(), 0, 1.0) == 0.0


@pytest.mark.parametrize(
    "compare",
    [
        lambda share: np.testing.assert_allclose(1 + share, 1.0, rtol=0, atol=1),
        lambda share: np.allclose(1 + share, 1.0, 0, 1),
        lambda share: torch.allclose(ONE + share, ONE, 0, 1),
        lambda share: torch.testing.assert_close(ONE + share, ONE, rtol=0, atol=1),
        lambda share: torch.testing.assert_close(ONE + share * 1.13e-5, ONE),
        lambda share: pytest.approx([1.0], abs=1) == [1 + share],
        lambda share: pytest.approx({"a": 1.0}, abs=1) == {"a": 1 + share},
    ],
)
def test_a_run_fails_where_a_comparison_uses_more_than_a_third(compare):
    for share, narrow in ((MOST - 0.05, False), (MOST + 0.05, True)):
        margins = Margins(SimpleNamespace())
        margins.test = "a test"
        try:
            compare(share)
        finally:
            margins.patch.undo()
        assert margins.shares == {"a test": pytest.approx(share, abs=0.01)}
        session = SimpleNamespace(exitstatus=0)
        margins.pytest_sessionfinish(session)
        assert session.exitstatus == narrow
