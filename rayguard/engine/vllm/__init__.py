"""The vLLM adapter: its engine, its core's stand-in, and what runs inside its own processes."""
