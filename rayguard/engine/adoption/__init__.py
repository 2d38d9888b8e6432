"""Engines that outlive their actor: what is kept of each for its heir, and how long one waits for an heir."""
