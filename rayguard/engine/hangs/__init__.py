"""An engine that makes no progress: who is silent, since when, and whose fault it is."""
