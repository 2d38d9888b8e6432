"""The memory of a guarded actor: what relieves it, at the end of a call and between."""
