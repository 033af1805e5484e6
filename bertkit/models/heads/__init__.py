"""Heads on an encoder, other than a linear layer, and their losses."""
