"""Inference engines: one seam, its adapters, and the supervisor that keeps one alive."""
