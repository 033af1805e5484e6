"""Training data audited by cross-validation: labels that are likely wrong, and other rows to look at."""
