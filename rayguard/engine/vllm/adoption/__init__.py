"""vLLM's part of adoption: the core that outlives its owner, and the client that takes it over."""
