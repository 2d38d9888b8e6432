"""Who killed a process: the evidence, and the verdict on it."""
