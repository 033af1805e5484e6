"""Texts to features: tokens, windows, offsets and padded batches."""
