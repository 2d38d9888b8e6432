"""What is leaked: it outlived its scope, or its line makes more each step and nobody reads them. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rayguard.objects.lease import Lease
    from rayguard.objects.ledger import Ledger

STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Objects that one line made and nobody will use again, as far as can be told."""

    site: str  # "file:line in function"; empty: not seen being made
    object_ids: tuple[str, ...]
    since_step: int
    size_bytes: int | None = None  # of those whose size is known
    outlived: bool = False  # they were declared in a scope, and it ended
    holders: tuple[str, ...] = ()  # who holds them, named
    what: str = "objects"

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.object_ids)

    @property
    def sentence(self) -> str:
        """One line for a person."""
        size = f" ({self.size_bytes / 1e6:.1f} MB)" if self.size_bytes else ""
        why = "outlived their object_scope" if self.outlived else "grow step by step, and nobody reads them"
        held = f"; held by {', '.join(self.holders)}" if self.holders else ""
        made = f"made at {self.site or 'unknown lines'} since step {self.since_step}"
        return f"{self.count} {self.what}{size} {made} {why}{held}"


def outlived(leases: Iterable[Lease]) -> list[Leak]:
    """Return what is due to end: ``leases`` as ``Ledger.due`` gives them, by the line that made them."""
    return _by_site(leases, declared=True)


def growing(ledger: Ledger, step: int, steps: int = STEPS) -> list[Leak]:
    """Return what lines left behind whose objects became more in each of ``steps`` steps, all unread.

    Invariant: an object made or read within the last ``steps`` steps is no part of a leak; neither is one
    that a task in flight needs, nor one that the user took out of its scope.
    """
    grows: dict[str, bool] = {}
    found: list[Lease] = []
    for lease in ledger:
        kept = lease.opened_at and not lease.scope
        used = max(lease.step, lease.read_step) > step - steps
        if not lease.site or lease.submitted or not lease.local or kept or used:
            continue
        if lease.site not in grows:
            grows[lease.site] = ledger.grows(lease.site, steps)
        if grows[lease.site]:
            found.append(lease)
    return _by_site(found, declared=False)


def named(leak: Leak, holders: Collection[str]) -> Leak:
    """Return ``leak`` with its holders."""
    return replace(leak, holders=tuple(holders))


def _by_site(leases: Iterable[Lease], *, declared: bool) -> list[Leak]:
    by_site: dict[str, list[Lease]] = defaultdict(list)
    for lease in leases:
        by_site[lease.site].append(lease)
    leaks = [
        Leak(
            site=site,
            object_ids=tuple(lease.object_id for lease in of_site),
            since_step=min(lease.step for lease in of_site),
            size_bytes=sum(lease.size_bytes or 0 for lease in of_site) or None,
            outlived=declared,
        )
        for site, of_site in by_site.items()
    ]
    return sorted(leaks, key=lambda leak: (-(leak.size_bytes or 0), -leak.count, leak.site))
