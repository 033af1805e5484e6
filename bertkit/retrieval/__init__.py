"""Documents as passages in a vector store, and search over them."""
