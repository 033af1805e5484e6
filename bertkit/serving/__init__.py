"""An HTTP server for the models of every task."""
