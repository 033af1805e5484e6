"""Training: the program, the trainer, its batches and its checkpoints."""

from __future__ import annotations
