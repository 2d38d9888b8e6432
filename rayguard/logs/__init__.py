"""Logs: files of printed lines, of many processes, and what they say of a failure."""
