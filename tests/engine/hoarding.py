"""A leak in a real engine's worker: ``Hoarder`` runs there."""

from __future__ import annotations


class Hoarder:
    def hoard(self, mib: int) -> int:
        """Take so many MiB and keep them; return how many there are."""
        hoarded = self.__dict__.setdefault("hoarded", [])
        hoarded.append(bytearray(b"x") * (mib << 20))
        return sum(len(each) for each in hoarded) >> 20
