"""What may be reaped: judged from facts alone, and for every "no" a reason that a person can read.

Values only. Who finds the facts is ``orphans`` (processes), ``belongings`` and ``shm`` (what they left in
``/dev/shm`` and ``/tmp``) and ``own_files`` (rayguard's own home); who acts is ``reaper``.

A thing is reaped when it is provably ours *and* dead. Whatever is unknown speaks against it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class ProcessLife(str, Enum):
    """Whether a process lives, as far as it can be told from here."""

    ALIVE = "alive"  # also stopped, also while any of its threads runs
    DEAD = "dead"
    UNKNOWN = "unknown"  # another boot, another container, or hidden from us


class Sort(str, Enum):
    """What is left behind."""

    PROCESS = "process"
    SEGMENT = "shared memory"
    SOCKET = "socket"
    RENDEZVOUS = "rendezvous file"  # where an engine's workers find each other (torch's FileStore)
    FILE = "file of rayguard"


class Fate(str, Enum):
    """What becomes of it."""

    LEFT = "left alone"
    REAP = "to be reaped"
    REAPED = "reaped"
    FAILED = "not reaped"  # proved, but the kernel refused or a deadline passed


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing that was looked at. ``size_bytes`` is what its end gives back, as far as it is known."""

    sort: Sort
    name: str
    owner: str = ""  # the mark of its owner: pid and start time
    size_bytes: int = 0
    fate: Fate = Fate.LEFT
    why: str = ""
    ports: tuple[int, ...] = ()  # that it listens on


# What libraries make up themselves. A name that a user chose (weights in /dev/shm) is never ours.
_MADE_UP = {
    Sort.SEGMENT: re.compile(r"psm_[0-9a-f]{8}|sem\.mp-[0-9a-z_]{8}|nccl-[0-9A-Za-z]{6}|torch_\d+_\d+_\d+"),
    Sort.SOCKET: re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    Sort.RENDEZVOUS: re.compile(r"vllm_dist_[0-9a-f]{32}"),
}


def made_up(sort: Sort, name: str) -> bool:
    """Say whether a library made up ``name`` (without its directory) for such a thing."""
    return sort in _MADE_UP and _MADE_UP[sort].fullmatch(name) is not None


_ENGINE_TITLES = ("VLLM::", "rayguard::prefork")


def titled_as_engine(title: str) -> bool:
    """Say whether a process calls itself a part of an engine. That alone proves nothing."""
    return title.startswith(_ENGINE_TITLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """What was seen of one process that carries a mark."""

    ours: bool  # runs as our user
    in_our_namespace: bool  # in our pid and time namespace: elsewhere the owner's pid means another process
    title: str
    claimed: bool  # it holds the memory file that only an engine's process makes for itself
    inherited: bool  # the mark stands in its environment, which any child of the owner may inherit
    under_stranger: bool  # a process with a mark that is not proved is its parent, and lives
    owner: ProcessLife
    since_owner: bool  # it started after its owner did
    itself: bool = False  # the calling process


def judge_process(facts: ProcessFacts) -> tuple[Fate, str]:
    """Return what becomes of a process, and why."""
    why = _why_not_ours(facts) or _why_not_orphaned(facts)
    if why:
        return Fate.LEFT, why
    return Fate.REAP, "an engine whose owner is dead"


def _why_not_ours(facts: ProcessFacts) -> str:
    return _first(
        (facts.itself, "it is the calling process"),
        (not facts.ours, "another user's"),
        (
            not facts.in_our_namespace,
            "in another pid or time namespace, where its owner's pid means another process",
        ),
        (not (facts.claimed or facts.inherited), "not ours: no mark"),
        (not (facts.claimed or titled_as_engine(facts.title)), "no engine: it only inherited the mark"),
    )


def _why_not_orphaned(facts: ProcessFacts) -> str:
    return _first(
        (facts.owner is ProcessLife.ALIVE, "its owner lives"),
        (facts.owner is ProcessLife.UNKNOWN, "whether its owner lives cannot be told from here"),
        (not facts.since_owner, "older than the owner that its mark names"),
        (
            facts.under_stranger and not facts.claimed,
            "the child of a living process that is no engine of ours",
        ),
    )


def _first(*reasons: tuple[bool, str]) -> str:
    """Return the first reason that holds; '' when none does."""
    return next((why for holds, why in reasons if holds), "")


_ANOTHER = "not ours: another file has the name now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which file it is: a name can be given to another one, all of these together cannot.

    ``changed_ns`` tells a chmod, a link, a rename and a resize. But on tmpfs each store through a map moves
    it too: of shared memory, the birth says which one it is (no two have inode and birth in common), mode and
    size whether somebody made it another thing.
    """

    device: int
    inode: int
    changed_ns: int  # st_ctime_ns
    user: int
    born_ns: int = 0  # stx_btime; 0 where the kernel does not tell
    mode: int = 0  # 0 in the notes of an older rayguard, as all of these
    size: int = 0

    def still_is(self, noted: Shape, sort: Sort) -> bool:
        """Say whether this, found now, is the file that was noted, with nothing done to it but use."""
        return not why_another(self, noted, sort)


def why_another(found: Shape, noted: Shape, sort: Sort) -> str:
    """Return why what was found is not the file that was noted, as it was; '' if it is."""
    births = found.born_ns and noted.born_ns  # both are known
    another = (found.device, found.inode) != (noted.device, noted.inode)
    as_it_was = found.user == noted.user and (
        noted.mode == 0 or (found.mode, found.size) == (noted.mode, noted.size)
    )
    in_time = found.changed_ns == noted.changed_ns
    if sort is Sort.SEGMENT and births:
        in_time = found.changed_ns >= noted.changed_ns
    return _first(
        (another or bool(births and found.born_ns != noted.born_ns), _ANOTHER),
        (not as_it_was or not in_time, "changed since it was noted"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What was seen of one file, beside what was noted of it while the engine that used it lived."""

    sort: Sort
    name: str  # without its directory
    noted: Shape
    found: Shape | None  # None: no such file any more
    right_kind: bool  # a regular file, or a socket, as its sort asks: no symlink, no directory
    links: int
    our_user: int
    owner: ProcessLife
    users: ProcessLife  # of the processes that used it: dead when all of them are
    asked_by_owner: bool = False  # who ended the engine itself, and need not be dead


def why_not_file(facts: FileFacts) -> str:
    """Return what speaks against reaping a file before anybody is asked who holds it; '' if nothing does."""
    if facts.found is None:
        return "gone"
    return _why_not_that_file(facts, facts.found) or _why_not_dead(facts)


def _why_not_that_file(facts: FileFacts, found: Shape) -> str:
    why = why_another(found, facts.noted, facts.sort)
    return _first(
        (not made_up(facts.sort, facts.name), "not ours: somebody chose its name"),
        (not facts.right_kind, "not ours: another kind of file has the name now"),
        (found.user != facts.our_user, "another user's"),
        (bool(why), why),
        (facts.links != 1, "it has another name too"),
    )


def _why_not_dead(facts: FileFacts) -> str:
    # Who asks after having ended the engine itself is its owner, and lives.
    owner = ProcessLife.DEAD if facts.asked_by_owner else facts.owner
    return _first(
        (facts.users is ProcessLife.ALIVE, "a process that used it lives"),
        (facts.users is ProcessLife.UNKNOWN, "whether those that used it live cannot be told from here"),
        (owner is ProcessLife.ALIVE, "its owner lives"),
        (owner is ProcessLife.UNKNOWN, "whether its owner lives cannot be told from here"),
    )


def judge_file(facts: FileFacts, *, held: bool | None, holders: tuple[int, ...] = ()) -> tuple[Fate, str]:
    """Return what becomes of a file, and why.

    ``held`` is the kernel's word on whether anybody at all has it open, mapped or bound; None when it does
    not say. ``holders`` are those that could be found.
    """
    why = why_not_file(facts)
    if why:
        return Fate.LEFT, why
    if held is None:
        return Fate.LEFT, "the kernel does not tell whether somebody holds it"
    if held:
        who = f"pid {', '.join(map(str, holders[:3]))}" if holders else "a process that we cannot see"
        return Fate.LEFT, f"held by {who}"
    return Fate.REAP, "of a dead engine, and nobody holds it"
