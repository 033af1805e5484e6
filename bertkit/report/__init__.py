"""The report of a run, its model card, and comparisons of runs."""
