"""What was printed: one line without its prefixes, tracebacks line by line."""
