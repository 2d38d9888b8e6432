"""Operating-system processes: identity, death, trees, progress."""
