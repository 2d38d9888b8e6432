"""Weights: the value, where the current version comes from, and the proof that an engine has it."""
