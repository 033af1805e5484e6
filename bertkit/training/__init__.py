"""Training: the program, the trainer, its batches and its checkpoints."""
