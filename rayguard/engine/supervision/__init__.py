"""What keeps one engine alive: the slot, its supervisor, the way back from a fault."""
