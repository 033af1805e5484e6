"""Extras of a training that the engine does not know: used rows, Muon, distillation."""
