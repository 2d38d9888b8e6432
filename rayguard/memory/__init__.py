"""What runs out: measured, foreseen, relieved in time."""
