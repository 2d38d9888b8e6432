"""Questions of our own to a vLLM core: canaries and audits, beside what its callers ask."""
