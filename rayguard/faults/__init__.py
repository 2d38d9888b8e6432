"""What went wrong: facts, the catalog of known failures, the diagnosis."""
