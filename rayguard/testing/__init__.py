"""Faults on purpose, for tests and demos."""
