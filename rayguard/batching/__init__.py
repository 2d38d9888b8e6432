"""Batches that do not divide: shared out over any number of ranks, with the right loss weights."""
