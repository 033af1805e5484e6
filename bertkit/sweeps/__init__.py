"""Sweeps: which values of a recipe's settings score best, tried one after another by optuna."""
