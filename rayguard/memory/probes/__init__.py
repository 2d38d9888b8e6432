"""What can be read about memory on this node: one outside thing a file, and no verdicts."""
