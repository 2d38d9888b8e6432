"""What grows in the heap of a process, and who holds it."""
