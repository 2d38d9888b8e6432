"""One page of metrics for a node: every process writes its numbers, one serves them."""
