"""What is kept of an engine beside its requests, for the core that comes next."""
