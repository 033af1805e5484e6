"""Exported models: one ONNX graph from word pieces to answers, and the running of it."""
