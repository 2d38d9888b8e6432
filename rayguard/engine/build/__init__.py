"""How an engine is built from its recipe, and what it then holds."""
