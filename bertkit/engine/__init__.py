"""The engine of a training: one trainer, batches, checkpoints, resume, clock; it knows no extra and no
program.
"""
