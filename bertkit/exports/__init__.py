"""Export: one ONNX graph from tokens to what answers are decoded from, compared with the trained model."""
