"""The command line: it parses arguments, calls the API and prints."""
