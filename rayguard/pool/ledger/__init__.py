"""The ledger of a pool: every request and its answer, on disk."""
