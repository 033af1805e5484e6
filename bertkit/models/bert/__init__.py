"""bertkit's own BERT: its architecture, tokenizer and pretraining examples, and an encoder–decoder of two."""
