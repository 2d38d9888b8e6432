"""One life of a command: what it finds, what it prints, which signals reach it, what it leaves."""
