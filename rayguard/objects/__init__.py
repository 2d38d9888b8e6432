"""The object store: who holds which object, since when, and what nobody will use again."""
