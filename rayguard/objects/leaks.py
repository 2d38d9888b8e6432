"""What is leaked: it outlived its scope. Told by the line that made it. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rayguard.objects.ledger import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Objects that one line made in scopes that have ended."""

    site: str  # "file:line in function"; empty: not seen being made
    object_ids: tuple[str, ...]
    since_step: int
    holders: tuple[str, ...] = ()  # who holds them, named
    what: str = "objects"

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.object_ids)

    @property
    def sentence(self) -> str:
        """One line for a person."""
        held = f"; held by {', '.join(self.holders)}" if self.holders else ""
        made = f"made at {self.site or 'unknown lines'} since step {self.since_step}"
        return f"{self.count} {self.what} {made} outlived their object_scope{held}"


def by_site(leases: Iterable[Lease], what: str = "objects") -> list[Leak]:
    """Return ``leases`` by the line that made them, the most first."""
    sites: dict[str, list[Lease]] = defaultdict(list)
    for lease in leases:
        sites[lease.site].append(lease)
    leaks = [
        Leak(
            site=site,
            object_ids=tuple(lease.object_id for lease in of_site),
            since_step=min(lease.step for lease in of_site),
            what=what,
        )
        for site, of_site in sites.items()
    ]
    return sorted(leaks, key=lambda leak: (-leak.count, leak.site))
