"""Moved to rayguard.faults.printed.line; goes when nobody imports it from here."""

from rayguard.faults.printed.line import MAX_LINE_CHARS, Line, peel, printable

__all__ = ["MAX_LINE_CHARS", "Line", "peel", "printable"]
