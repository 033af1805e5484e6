"""Scores and their intervals, calibration, and the baselines to beat."""
