"""Incidents joined into one story per cause: "node 3 lost its GPU", and not eight deaths of actors.

Which incidents belong together is ``rayguard.cluster.supervisor.story_links``; here they are joined, and told
to people. A story is a set of incidents that hang together, directly or through others, so it does not depend
on the order in which they came. Reading journals is ``rayguard.recovery.tail``; when a story calls for an act
is ``rayguard.cluster.supervisor.job_machine``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rayguard.cluster.supervisor.story_links import Links, mentioned, of_node, rank
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

KEPT = 2_000  # incidents of one job: about 2 MB; the oldest stories that are over go first
_CAUSE_CHARS = 300
_MENTIONS = 256  # of other actors, in one incident


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One cause and all that came of it. ``id`` is that of its first incident.

    ``began_at`` and ``ended_at`` are wall-clock seconds; ``ended_at`` is None while it is open.
    ``actors``: how many were hit. ``sentence`` says in one line what broke, how many it hit, what was done,
    whether it is over, what it cost.
    """

    id: str
    kind: str
    scope: str
    cause: str
    sentence: str
    began_at: float
    ended_at: float | None = None
    signature: str = ""
    job_id: str = ""
    node: str = ""
    actors: int = 0
    incidents: tuple[str, ...] = ()
    advice: str = ""

    @property
    def open(self) -> bool:
        """Say whether something of it is not repaired yet."""
        return self.ended_at is None


def stories_of(incidents: Iterable[Incident]) -> list[Story]:
    """Return the stories of ``incidents``, oldest first; the order in which they come does not matter."""
    stories = Stories(kept=None)
    for incident in incidents:
        stories.add(incident)
    return stories.all()


def slim(incident: Incident) -> Incident:
    """Return what a story needs of an incident: it makes the same links, in about half a kilobyte."""
    others = mentioned(incident)[:_MENTIONS]
    return replace(
        incident,
        cause=incident.cause[:_CAUSE_CHARS],
        advice=incident.advice[:_CAUSE_CHARS],
        evidence=(),
        consequences=others,
        settings=(),
        notes=(),
    )


class Stories:
    """The stories of what was added so far; adding one more costs the same however many there are."""

    def __init__(self, kept: int | None = KEPT) -> None:
        self.gone: dict[str, float] = {}  # actors that are dead for good: nobody closes their incidents
        self._kept = kept
        self._begin_again()

    def __len__(self) -> int:
        return len(self._incidents)

    def add(self, incident: Incident) -> None:
        """Take a record of an incident: a new one, or a later state of one that is known."""
        incident = slim(incident)
        known = self._incidents.get(incident.id)
        if known is None:
            self._put(incident)
            if self._kept is not None and len(self._incidents) > self._kept:
                self._make_room(self._kept)
            return
        newer = max(known, incident, key=_lateness)
        self._incidents[incident.id] = newer
        if self._links.same(known, newer):
            self._touch(newer)
        else:
            self._rebuild(self._incidents.values())

    def actor_gone(self, actor_id: str, at: float) -> None:
        """Note that an actor is dead for good: what is open of it is over."""
        if actor_id in self._of_actor and actor_id not in self.gone:
            self.gone[actor_id] = at
            for one in self._of_actor[actor_id]:
                self._told.pop(self._root(one), None)

    def incidents(self) -> list[Incident]:
        """Return what is kept, oldest first; ``slim`` ones."""
        return sorted(self._incidents.values(), key=lambda one: (one.detected_at, one.id))

    def of_actor(self, actor_id: str) -> list[Incident]:
        """Return the incidents of one actor, oldest first."""
        ids = self._of_actor.get(actor_id, ())
        return sorted((self._incidents[one] for one in ids), key=lambda one: (one.detected_at, one.id))

    def all(self) -> list[Story]:
        """Return the stories, oldest first."""
        for root, members in self._members.items():
            if root not in self._told:
                self._told[root] = self._tell(members)
        return sorted(self._told.values(), key=lambda story: (story.began_at, story.id))

    def spans(self) -> list[tuple[float, float | None]]:
        """Return from when to when each incident was open; None where it still is."""
        return [(one.detected_at, self._end(one)) for one in self._incidents.values()]

    def _begin_again(self) -> None:
        self._incidents: dict[str, Incident] = {}
        self._links = Links()
        self._parent: dict[str, str] = {}
        self._members: dict[str, list[str]] = {}  # of each root of `_parent`
        self._told: dict[str, Story] = {}  # by root; absent where something changed
        self._of_actor: dict[str, list[str]] = {}

    def _rebuild(self, incidents: Iterable[Incident]) -> None:
        kept = list(incidents)
        self._begin_again()
        for incident in kept:
            self._put(incident)

    def _put(self, incident: Incident) -> None:
        self._incidents[incident.id] = incident
        self._parent[incident.id] = incident.id
        self._members[incident.id] = [incident.id]
        if incident.actor_id:
            self._of_actor.setdefault(incident.actor_id, []).append(incident.id)
        for other in self._links.add(incident):
            self._join(incident.id, other)
        self._touch(incident)

    def _touch(self, incident: Incident) -> None:
        """Tell again: the story of ``incident``, and those that a later life of its actor ends."""
        self._told.pop(self._root(incident.id), None)
        for one in self._of_actor.get(incident.actor_id, ()):
            if self._incidents[one].outcome is Outcome.OPEN:
                self._told.pop(self._root(one), None)

    def _root(self, one: str) -> str:
        while self._parent[one] != one:
            self._parent[one] = self._parent[self._parent[one]]
            one = self._parent[one]
        return one

    def _join(self, one: str, other: str) -> None:
        here, there = self._root(one), self._root(other)
        if here == there:
            return
        if len(self._members[here]) < len(self._members[there]):
            here, there = there, here
        self._parent[there] = here
        self._members[here] += self._members.pop(there)
        self._told.pop(here, None)
        self._told.pop(there, None)

    def _make_room(self, kept: int) -> None:
        """Forget the oldest stories that are over, then the oldest of all."""
        dropped: set[str] = set()
        for story in sorted(self.all(), key=lambda one: (one.open, one.began_at)):
            if len(self._incidents) - len(dropped) <= kept * 3 // 4:
                break
            dropped |= set(story.incidents)
        self._rebuild(one for one in self._incidents.values() if one.id not in dropped)
        self.gone = {actor: at for actor, at in self.gone.items() if actor in self._of_actor}

    def _end(self, incident: Incident) -> float | None:
        """Return when an incident was over; at the latest when a later life of its actor served."""
        if incident.outcome is not Outcome.OPEN:
            return max(incident.detected_at, incident.closed_at or 0.0)
        later = [
            one.closed_at or one.detected_at
            for one in (self._incidents[other] for other in self._of_actor.get(incident.actor_id, ()))
            if one.incarnation > incident.incarnation and one.outcome is Outcome.RECOVERED
        ]
        if incident.actor_id in self.gone:
            later.append(self.gone[incident.actor_id])
        return max(incident.detected_at, min(later)) if later else None

    def _tell(self, ids: list[str]) -> Story:
        members = sorted((self._incidents[one] for one in ids), key=lambda one: (one.detected_at, one.id))
        actors = {one.actor_id for one in members if one.actor_id}
        head = min(members, key=lambda one: (rank(one, actors), one.detected_at, one.id))
        for one in members:
            if of_node(one):
                actors |= set(mentioned(one))
        ends = [self._end(one) for one in members]
        over = [end for end in ends if end is not None]
        ended_at = max(over) if len(over) == len(ends) else None
        jobs = {one.job_id for one in members if one.job_id}
        return Story(
            id=members[0].id,
            cause=head.cause,
            kind=head.kind,
            scope=head.scope,
            sentence=_sentence(head, members, len(actors), ended_at),
            signature=head.signature,
            advice=head.advice,
            node=head.node,
            job_id=head.job_id or min(jobs, default=""),
            incidents=tuple(one.id for one in members),
            actors=len(actors),
            began_at=members[0].detected_at,
            ended_at=ended_at,
        )


def _sentence(head: Incident, members: list[Incident], actors: int, ended_at: float | None) -> str:
    hit = f" ({actors} actors)" if actors > 1 else ""
    where = f"{head.target}{hit}: " if head.target else ""
    remedies = Counter(one.remedy for one in members if one.remedy)
    counts = sorted(remedies.items(), key=lambda pair: (-pair[1], pair[0]))
    done = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in counts)
    failed = sum(one.outcome is Outcome.FAILED for one in members)
    end = "open" if ended_at is None else f"over after {max(0.0, ended_at - members[0].detected_at):.1f} s"
    if failed and ended_at is not None:
        end += f", {failed} of {len(members)} without recovery"
    parts = [f"{where}{head.cause}", done or "no remedy", end]
    saved, lost = sum(one.tokens_saved for one in members), sum(one.tokens_lost or 0 for one in members)
    if saved or lost:
        parts.append(f"{saved} tokens saved, {lost} lost")
    return "; ".join(parts)


def _lateness(incident: Incident) -> tuple[bool, float, str]:
    """Order the records of one incident: closed after open, then anything that does not depend on arrival."""
    return incident.outcome is not Outcome.OPEN, incident.closed_at or 0.0, repr(incident)
