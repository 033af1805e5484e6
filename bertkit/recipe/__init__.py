"""The recipe: its schema, reading, overriding, checking and writing."""

from __future__ import annotations
