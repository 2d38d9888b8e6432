"""The commands that read logs: ``rayguard diagnose`` and ``rayguard catalog``."""
