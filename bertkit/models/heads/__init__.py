"""Heads: what is put on an encoder beside a linear layer."""
