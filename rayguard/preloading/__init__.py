"""Ray workers that begin with their imports done: forked from one process on each node that has them."""
