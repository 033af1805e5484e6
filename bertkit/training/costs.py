"""The costs of wrong labels: read from a file or given from Python, checked, and completed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, RootModel

from bertkit.evaluation.calibration import Costs
from bertkit.recipe.errors import Report
from bertkit.tasks.labels import Cost
from bertkit.validation import KeyProblem, unknown_key, validate

ERRORS = ("false_positive", "false_negative")  # about one of several labels


class _Given(RootModel):  # type: ignore[type-arg]  # with it, pydantic adds a public class to this module
    root: dict[str, dict[str, Cost]]
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def read_costs(given: str | Path | Mapping[str, Any], names: Sequence[str], *, several: bool) -> Costs:
    """The cost of every kind of error.

    given: a YAML or JSON file, or its content as a dict: {gold label: {predicted label: cost}}, where a pair that is
    left out costs 1 if it is an error, and 0 if not. several, for rows with several labels: {label: {false_positive:
    cost, false_negative: cost}}, each 1 if left out. Raises RecipeError with everything that is wrong.
    """
    report = Report("" if isinstance(given, Mapping) else str(given))
    if isinstance(given, Mapping):
        data = dict(given)
    else:
        data = report.read_file(Path(given), "file of costs", "Write what the errors of each label cost.")
    kinds = ERRORS if several else names
    report.add(*validate(_Given, data), *_unknown(data, names, kinds))
    report.raise_if_any()
    return {
        label: {kind: float(data.get(label, {}).get(kind, several or kind != label)) for kind in kinds}
        for label in names
    }


def _unknown(data: Mapping[Any, Any], names: Sequence[str], kinds: Sequence[str]) -> Iterator[KeyProblem]:
    """The keys that are no label, and under labels those that are no kind of error."""
    for label, costs in data.items():
        if label not in names:
            yield unknown_key((label,), names)
        for kind in costs if isinstance(costs, Mapping) else ():
            if kind not in kinds:
                yield unknown_key((label, kind), kinds)
