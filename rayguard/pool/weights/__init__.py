"""Which weights a pool serves: pushes, and the vote of the canaries."""
