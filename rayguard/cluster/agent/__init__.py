"""One agent on each node: its workers, their deaths and stalls, its journal and metrics."""
