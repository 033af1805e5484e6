"""From a model folder to answers, scores and vectors."""
