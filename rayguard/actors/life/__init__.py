"""One process of an actor: what it remembers, how it ends, what its death tells."""
