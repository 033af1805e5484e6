"""Training: the program."""
