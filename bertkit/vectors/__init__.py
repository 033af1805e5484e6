"""Vectors of texts: of a file, of layers for other estimators, and their cache."""
