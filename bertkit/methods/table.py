"""The methods by which a model is fitted other than by steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from datasets import Dataset

from bertkit.inference.runner import Runner
from bertkit.methods import contrastive, head

Fit = Callable[[Runner, Dataset, int], tuple[Any, dict[str, Any]]]
"""The task and its untrained model, features, seed -> the model, and its steps, seconds and best step."""

METHODS: Mapping[str, Fit] = {"head": head.fit, "contrastive": contrastive.fit}  # by `Task.method`
