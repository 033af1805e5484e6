"""bertkit's own BERT: its architecture, tokenizer and pretraining examples."""
