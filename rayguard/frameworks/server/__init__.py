"""A trainer's link to its inference server: lost, found again, and never served by old weights."""
