"""Explanations: the attribution of each word to an answer."""
