"""From a model folder to answers and scores."""
