"""Attachments, which the engine does not know: used rows, Muon, distillation."""
