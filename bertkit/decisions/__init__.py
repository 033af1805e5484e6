"""Decisions of a saved model, fitted after the training: thresholds by goal."""
