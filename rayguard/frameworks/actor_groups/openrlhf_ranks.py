"""The ranks of an OpenRLHF group: how they are found in this process, and how new ones are made."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from rayguard.frameworks.actor_groups.effects import INIT
from rayguard.frameworks.actor_groups.group import LookedAfterGroup
from rayguard.frameworks.actor_groups.names import HANDLES, KEPT, MARK
from rayguard.frameworks.actor_groups.references import given
from rayguard.frameworks.actor_groups.shared_record import Head, SharedRecord
from rayguard.frameworks.actor_groups.watched_get import watch
from rayguard.frameworks.worker_groups import roll_call, store_room
from rayguard.frameworks.worker_groups.policy import GroupPolicy
from rayguard.ray_internals import actor_classes, kv, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rayguard.frameworks.actor_groups.sent_call import SentCall

# OpenRLHF's classes of ranks, and whether they load a checkpoint as they are initialised.
_CLASSES = {
    "PolicyModelActor": True,
    "CriticModelActor": True,
    "ReferenceModelActor": False,
    "RewardModelActor": False,
}
_END_S = 10.0
_HANDED_OUT = "the handles of its ranks were given to others, who would go on calling the dead"
_UNSEEN = "a call of its was sent of which no note was taken"
_lock = threading.Lock()
_groups: weakref.WeakValueDictionary[str, LookedAfterGroup] = weakref.WeakValueDictionary()
_unseen: set[str] = set()


def looked_after(
    group: object, make: Callable[..., None], policy: GroupPolicy | None, *, is_new: bool = False
) -> LookedAfterGroup | None:
    """Return what looks after a group, in all of its copies in this process; None where nothing does."""
    mark = vars(group).get(MARK)
    if mark is None or not kv.connected():
        return None
    with _lock:
        found = _groups.get(mark[0])
        if found is None:
            found = _groups[mark[0]] = _begun(group, make, policy or GroupPolicy(), is_new=is_new)
        if mark[0] in _unseen:
            found.doubt(_UNSEEN)
    if not isinstance(vars(group).get(KEPT), KeptGroup):
        vars(group)[KEPT] = KeptGroup(found)
    ranks = found.ranks
    if isinstance(ranks, OpenRlhfRanks):
        ranks.join(group)
    return found


def _begun(
    group: object, make: Callable[..., None], policy: GroupPolicy, *, is_new: bool
) -> LookedAfterGroup:
    import ray  # noqa: PLC0415 - only where a group was made

    me = str(ray.get_runtime_context().get_worker_id())
    kept = replace(policy, kept_bytes=min(policy.kept_bytes, store_room.room_bytes()))
    found = LookedAfterGroup(OpenRlhfRanks(group, make), SharedRecord(vars(group)[MARK][0]), me, kept)
    if is_new:
        found.made(Head(holder=me))
    worker.before_leaving(_forget)
    watch()
    return found


def _forget() -> None:
    """Know nothing of this cluster's references: the next one gives out the same ids again."""
    given.clear()
    for found in list(_groups.values()):
        found.leave()


def handed_out(group: object, make: Callable[..., None], policy: GroupPolicy | None) -> None:
    """Take note that somebody took the handles."""
    found = looked_after(group, make, policy)
    if found is not None:
        found.doubt(_HANDED_OUT)
        found.look()


def unseen(group: object) -> None:
    """Take note of a call that was sent as it is: what it did cannot be made again."""
    _unseen.add(vars(group)[MARK][0])


class KeptGroup:
    """Lives as long as a group, and what looks after it thereby; in another process it is nothing."""

    def __init__(self, group: LookedAfterGroup) -> None:
        self.group = group

    def __reduce__(self) -> tuple[type[str], tuple[()]]:
        """Send nothing with the group."""
        self.group.sent_away()
        return str, ()


class OpenRlhfRanks:
    """The ranks that one group made, for all copies of it."""

    def __init__(self, group: object, make: Callable[..., None]) -> None:
        self._class, self._make = type(group), make
        self._state = {name: value for name, value in vars(group).items() if name not in {HANDLES, KEPT}}
        self._copies: weakref.WeakSet[object] = weakref.WeakSet()
        self.handles: Sequence[object] = list(vars(group)[HANDLES])
        self._class_name = _class_name(group)

    @property
    def name(self) -> str:
        """Say which they are, for people."""
        return f"{self._class.__name__} of {len(self.handles)} ({self._class_name})"

    def join(self, group: object) -> None:
        """Take note of a copy, which may have been sent with other ranks than those that serve."""
        if group not in self._copies:
            self._copies.add(group)
            vars(group)[HANDLES][:] = self.handles

    def replace(self, handles: Sequence[object]) -> None:
        """Put others into the lists of all copies."""
        self.handles = list(handles)
        for group in list(self._copies):
            vars(group)[HANDLES][:] = handles

    def make_again(self) -> Sequence[object]:
        """Make new ones by the framework's own function, in the place of the first."""
        scratch = object.__new__(self._class)
        vars(scratch).update(self._state)
        _, place, share = vars(scratch).pop(MARK)
        try:
            self._make(scratch, place, share)
        except BaseException:
            roll_call.end_all(vars(scratch).get(HANDLES, ()), _END_S)
            raise
        made: Sequence[object] = vars(scratch)[HANDLES]
        return made

    def why_not(self, calls: Sequence[SentCall]) -> str:
        """Say why these would not lead where they led.

        What a checkpoint holds that was loaded then, and whether it is there, only its ranks' nodes know.
        """
        loads = _CLASSES.get(self._class_name, True)
        if loads and any(_may_load(call) for call in calls if call.name == INIT):
            return "it may have begun from a checkpoint (ckpt.load_enable), which may be another one now"
        if not any(call.name == INIT for call in calls):
            return "nobody knows how its ranks were initialised"
        return ""


def are_known(group: object) -> bool:
    """Say whether a group's ranks are of one of OpenRLHF's classes."""
    return _class_name(group) in _CLASSES


def _class_name(group: object) -> str:
    cls = actor_classes.written_class(vars(group)["ray_actor_type"])
    return "" if cls is None else cls.__name__


def _may_load(init: SentCall) -> bool:
    """Say whether ranks that were initialised so may have loaded a checkpoint."""
    args, kwargs = init.parts[0].kept.read()
    strategy = args[0] if args else kwargs.get("strategy")
    chosen = getattr(getattr(strategy, "args", None), "ckpt", None)
    return getattr(chosen, "load_enable", True) is not False
