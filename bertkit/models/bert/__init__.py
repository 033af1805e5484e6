"""BERT of our own: its architecture, and what is made for pretraining it."""
