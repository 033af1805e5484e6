"""Tokenizers from texts: `bertkit tokenizer train`."""
