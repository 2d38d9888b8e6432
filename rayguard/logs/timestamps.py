"""When a line was printed, by its own word: what orders the facts of several files.

Only the wall clock as it stands there; zones are not told apart, since a job's processes print the same one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import datetime, timezone

_SEEN_CHARS = 400  # a stamp stands at the beginning, behind other prefixes
_STAMP = re.compile(
    r"(?<![\d.])(?:(?P<year>20\d\d)[-/])?(?P<month>[01]\d)[-/](?P<day>[0-3]\d)[T ]"
    r"(?P<hour>[012]\d):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)(?:[.,](?P<part>\d{1,6}))?"
    r"|\b[DIWEF](?P<month2>[01]\d)(?P<day2>[0-3]\d) "
    r"(?P<hour2>[012]\d):(?P<minute2>[0-5]\d):(?P<second2>[0-5]\d)(?:\.(?P<part2>\d{1,6}))?"
)
_NO_YEAR = 2000  # a leap year: 29 February is a day
_DAY_S = 86_400.0


def stamp(line: str, year: int = _NO_YEAR) -> float | None:
    """Return the seconds that ``line`` says, or None. ``year`` is taken where it names none."""
    found = _STAMP.search(line[:_SEEN_CHARS])
    if found is None:
        return None
    told = found.groupdict()
    month, day, hour, minute, second, part = (
        told[name] or told[f"{name}2"] or "0" for name in ("month", "day", "hour", "minute", "second", "part")
    )
    try:
        at = datetime(
            int(told["year"] or year),
            int(month),
            int(day),
            int(hour),
            int(minute),
            int(second),
            tzinfo=timezone.utc,
        )
    except ValueError:  # a number that only looks like a date
        return None
    return at.timestamp() + float(f"0.{part}")


def year_of(written_at: float) -> int:
    """Return the year of a file's last writing, which lines without a year share."""
    try:
        return datetime.fromtimestamp(written_at, tz=timezone.utc).year if written_at > 0 else _NO_YEAR
    except (OverflowError, ValueError, OSError):
        return _NO_YEAR


@dataclass(slots=True)
class Clock:
    """The stamps of one file, by line. Invariant: the lines grow."""

    written_at: float = 0.0
    _lines: list[int] = field(default_factory=list)
    _times: list[float] = field(default_factory=list)
    _last: float = float("nan")

    def see(self, line: int, text: str) -> None:
        """Look at a line; a stamp that repeats is not kept."""
        at = stamp(text, year_of(self.written_at))
        if at is None or at == self._last:
            return
        if self.written_at > 0 and at > self.written_at + 2 * _DAY_S:  # last year's, without its year
            at = stamp(text, year_of(self.written_at) - 1) or at
        self._last = at
        self._lines.append(line)
        self._times.append(at)

    def at(self, line: int) -> float | None:
        """Return when ``line`` was printed: the last stamp up to it, else the first one after it."""
        if not self._lines:
            return None
        return self._times[max(bisect_right(self._lines, line) - 1, 0)]
