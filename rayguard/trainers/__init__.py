"""Trainers: what keeps their numbers, and their processes, alive."""
