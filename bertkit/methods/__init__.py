"""Methods of fitting a model other than by steps: a head on vectors, contrastive fine-tuning."""
