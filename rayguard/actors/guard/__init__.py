"""The decorator: what a guarded class is made of, and what becomes of a call that failed."""
