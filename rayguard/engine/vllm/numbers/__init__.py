"""Logits that are no numbers to sample from: seen in the worker, told to the caller with the request's id."""
