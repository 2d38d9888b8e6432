"""A command that is a server: whether its engine is there, and whether it makes progress."""
