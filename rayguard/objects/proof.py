"""May a reference be ended? Decided from how it is held; how that is found out is ``heap``.

Data is what a leak lives in: a list, a dict's values, an attribute, a global. Code that can still run is a
reader: a variable, a closure, a suspended generator or coroutine, a future, the arguments of a callable.
Ended is only what nothing but data holds, with every single reference accounted for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Grip(str, Enum):
    """How something holds a reference."""

    DATA = "data"
    KEY = "key"  # of a dict, in a set, or part of one: its hash must not change
    CLOSURE = "closure"
    SUSPENDED = "suspended"  # a generator, coroutine or iterator that will go on
    MACHINERY = "machinery"  # a future, a queue, a thread, a callable with its arguments, Ray itself
    RUNNING = "running"  # a variable of another running thread
    UNSEEN = "unseen"  # more references than holders: a local variable, or C code
    UNKNOWN = "unknown"  # a holder of a kind that is not understood


REASONS = {
    Grip.KEY: "it is a key of a dict or in a set, which would not find it again",
    Grip.CLOSURE: "a closure has it as a variable",
    Grip.SUSPENDED: "a suspended generator, coroutine or loop may still read it",
    Grip.MACHINERY: "a future, queue, thread or callable holds it and may still read it",
    Grip.RUNNING: "another thread works with it",
    Grip.UNSEEN: "a variable of running code, or C code, holds it",
    Grip.UNKNOWN: "what holds it is not understood",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """All that is known about who holds one object in this process."""

    object_id: str
    copies: int = 0  # references found
    grips: tuple[Grip, ...] = ()
    local: int = 0  # references that Ray counts
    submitted: int = 0
    ready: bool = True  # False: the task that makes it has not finished
    plain: bool = True  # False: a kind of reference with a transport of its own (tensors on a device)


def objection(held: Held) -> str:
    """Return why ``held`` must be left alone; empty when nothing speaks against ending it."""
    if held.submitted:
        return "a task in flight has it as an argument"
    if not held.ready:
        return "the task that makes it has not finished"
    if not held.plain:
        return "it is a tensor outside the object store"
    if held.copies == 0 or held.local != held.copies:
        return f"Ray counts {held.local} references, {held.copies} were found"
    against = [grip for grip in held.grips if grip is not Grip.DATA]
    if against or not held.grips:
        return REASONS[against[0]] if against else "nothing was found that holds it"
    return ""
