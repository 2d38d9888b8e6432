"""A regular expression that is compiled when it is first asked: of a thousand, a failure asks a few."""

from __future__ import annotations

import re


class Expression:
    """As much of ``re.Pattern`` as a signature uses; equal where the text is."""

    __slots__ = ("_compiled", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._compiled: re.Pattern[str] | None = None

    def search(self, text: str) -> re.Match[str] | None:
        """Return the first match in ``text``."""
        if self._compiled is None:
            self._compiled = re.compile(self.pattern)
        return self._compiled.search(text)

    def __eq__(self, other: object) -> bool:
        """Say whether ``other`` finds the same."""
        return isinstance(other, Expression) and other.pattern == self.pattern

    def __hash__(self) -> int:
        """Return the same for those that are equal."""
        return hash(self.pattern)

    def __repr__(self) -> str:
        """Return what would make it."""
        return f"Expression({self.pattern!r})"
