"""The training engine: one trainer, batches, checkpoints, resume, clock; it knows no attachment and
no program.
"""
