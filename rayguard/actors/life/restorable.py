"""The state of an actor that can say it, kept outside its process: the next life goes on from there.

After ``__init__`` and after each call, when no other one runs, what the actor says its state is (by the
methods that ``rayguard.actors.methods`` finds) goes into a mapped file of this node
(``rayguard.process.snapshot_file``); after any death the next life takes it up. A call that the death cut off
is made again where it may run twice, and else answered with ``CallLostError``. Calls that ended since are
``calls_since``; what a recycled process takes along is ``saved_state``.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.actors.life import saved_state
from rayguard.actors.life.calls_since import CallsSince, log_of
from rayguard.actors.life.incarnation import ActorMemory, Incarnation
from rayguard.actors.life.last_answer import Answer, current_task
from rayguard.actors.life.snapshot_files import path_of
from rayguard.actors.mark import Guarding, mark_of
from rayguard.errors import StateLostError
from rayguard.harmless import count, harmless
from rayguard.process import state_bytes
from rayguard.process.call_log import read_calls
from rayguard.process.snapshot_file import Snapshot, SnapshotFile, read_snapshot
from rayguard.ray_internals.object_refs import unpinned

if TYPE_CHECKING:
    from pathlib import Path

    from rayguard.actors.methods import Given
    from rayguard.recovery.policy import SnapshotPolicy

_PART = "snapshot"
_UNKEPT = "unkept"  # in the word of an actor's states: none could be kept yet
_WITHIN = -2  # the place of a call that another one makes
_ANSWERS = 16  # that are kept: Ray delivers an answer within milliseconds
_ANSWER_BYTES = 4 << 20  # of all of them together
_CARRIED = 16  # calls of an earlier life that Ray may still repeat


class StateKeeper:
    """Keeps the state of one actor current; told of its calls. Neither method raises.

    A snapshot has the answers of the last calls, too: whose effect is in the state, is not made again,
    whether its answer was delivered or not. ``before`` is what the last life left: its calls may still be
    repeated.
    """

    def __init__(self, instance: object, life: Incarnation, before: KeptState | None = None) -> None:
        self._state, self._life = saved_state.hands(instance)[0], life
        self._file = SnapshotFile(path_of(life))
        self._due = _policy_of(type(instance)).due
        self._since = CallsSince(type(instance), path_of(life), replays=is_kept_seldom(type(instance)))
        self._calls, self._kept_at = 0, time.monotonic()  # since the last snapshot; when that was
        self._lock = threading.RLock()  # methods of a threaded actor end side by side
        self._running: set[str] = set()
        self._unnamed = 0  # calls that no task of Ray's has made
        self._left: list[tuple[str, int]] = []  # calls, and their places, that said `sys.exit`
        self._answers: dict[str, bytes | None] = dict(before.answers) if before else {}
        self._told = self._failed = False
        self._keeping = False  # `state_dict` may call guarded methods
        for call in sorted(before.running | before.undone)[:_CARRIED] if before else ():
            self._file.begun(call)

    def begun(self, name: str, given: Given | None = None) -> int:
        """A call begins; what is returned is for ``ended``. One within another is a part of that."""
        with harmless("snapshot"), self._lock:
            call = current_task()
            if self._keeping or call in self._running:
                return _WITHIN
            if self._running or self._unnamed:
                self._since.replays = True  # calls run side by side: one may end where no state can be kept
            if call:
                self._running.add(call)
            self._unnamed += not call
            place = self._file.begun(call)
            self._since.begun(place, name, given)
            return place
        return _WITHIN

    def ended(self, place: int, name: str, answer: object = None) -> None:
        """A call has ended: with an ``Answer``, or with the error that is raised now.

        ``sys.exit`` is no answer: it ends the process, so the call is one that a death cut off. Others that
        run beside it end before their process does, and are kept, with what it had done by then.
        """
        error = sys.exc_info()[1]
        if place == _WITHIN:
            return
        with harmless("snapshot"), self._lock:
            call = current_task()
            self._running.discard(call)
            self._unnamed -= not call
            if isinstance(error, SystemExit):
                self._left.append((call, place))
                return
            if call:  # a call of the user's own thread is repeated by nobody
                self._answers.pop(call, None)
                self._answers[call] = _packed(error if answer is None else answer)
                _bound(self._answers)
            self._calls += 1
            given = self._since.ended(place)
            due = self._since.full or self._due(self._calls, time.monotonic() - self._kept_at)
            try:
                if due and not self._running and not self._unnamed:
                    self._keep(ending=1)
            finally:
                if self._calls and self._told:
                    with harmless("snapshot"):
                        self._since.note(self._file.calls + 1, name, given, failed=answer is None)
                self._file.ended(place)

    def keep(self) -> None:
        """Keep the state as it is now: once ``__init__`` is over."""
        with harmless("snapshot"), self._lock:
            if not self._running and not self._unnamed:
                self._keep()

    def _keep(self, ending: int = 0) -> None:
        self._keeping = True
        try:
            for call, place in self._left:
                if call:
                    self._answers[call] = None
                self._since.ended(place)  # what it was given is not the next call's at this place
                self._file.ended(place)
            self._left.clear()
            kept = (self._state(), self._answers)
            with unpinned():
                parts = state_bytes.to_parts(kept)
            self._file.write(parts, ending)
            self._calls, self._kept_at = 0, time.monotonic()
            self._since.kept()
        except Exception:
            if self._failed:  # it was said; a death will tell which calls are lost
                count("snapshot")
                return
            self._failed = True
            if not self._told:
                ActorMemory(self._life.actor_id, _PART).save({_UNKEPT: True})
            raise
        finally:
            self._keeping = False
        if not self._told:
            self._since.forget()
            self._told = ActorMemory(self._life.actor_id, _PART).save({"node": self._life.node_id})


@dataclass(frozen=True, slots=True)
class KeptState:
    """What the last life left: its state, the calls that it was in, its last answers (None: too large).

    ``undone``: calls that had ended after that state was kept; ``since``: what is known of those.
    """

    state: object
    lost: int
    running: frozenset[str]
    answers: dict[str, bytes | None]
    undone: frozenset[str] = frozenset()
    since: tuple[bytes, ...] = ()

    @property
    def tasks(self) -> frozenset[str]:
        """Return the calls that are answered here, by Ray's ids."""
        return frozenset(self.answers)

    def to(self, task: str) -> Answer | None:
        """Return what the call ``task`` had answered, or raise the error; None: only that it had is known."""
        from ray import cloudpickle  # noqa: PLC0415 - an actor runs here

        packed = self.answers[task]
        found: Answer | BaseException | None = None if packed is None else cloudpickle.loads(packed)
        if isinstance(found, BaseException):
            raise found
        return found

    def forget(self) -> None:
        """Nobody will ask any more."""
        self.answers.clear()


def _bound(answers: dict[str, bytes | None]) -> None:
    while len(answers) > _ANSWERS:
        del answers[next(iter(answers))]
    room = _ANSWER_BYTES
    for call, packed in reversed(answers.items()):
        size = len(packed or b"")
        if size > room:
            answers[call] = None
        else:
            room -= size


def _packed(answer: object) -> bytes | None:
    try:
        with unpinned():
            return state_bytes.packed_within(answer, _ANSWER_BYTES)
    except Exception:  # noqa: BLE001 - what cannot be kept is known to have been answered, and no more
        return None


def found(life: Incarnation) -> KeptState | None:
    """Return what the life before ``life`` left; None where it had kept nothing.

    Raises:
        StateLostError: It had, and that cannot be had or is damaged.
    """
    where = ActorMemory(life.actor_id, _PART).load()
    if not where or _UNKEPT in where:
        return None
    path = path_of(life)
    try:
        here = where["node"] == life.node_id
        snapshot, since = _read(path) if here else saved_state.call_on(where["node"], _read, path)
        found = None if snapshot is None else state_bytes.from_bytes(snapshot.data)
    except Exception as error:
        raise StateLostError(f"the state in {path} cannot be read: {error!r}") from error
    if snapshot is None or not isinstance(found, tuple):
        raise StateLostError(f"the state that {path} held is not there any more")
    state, answers = found
    return KeptState(state, snapshot.lost, snapshot.running, answers, snapshot.undone, since)


def is_kept_seldom(cls: type) -> bool:
    """Say whether the state of ``cls`` is, as its user wishes, not kept after each call."""
    return not _policy_of(cls).due(1, 0.0)


def _policy_of(cls: type) -> SnapshotPolicy:
    return (mark_of(cls) or Guarding()).policy.snapshot


def is_unkept(life: Incarnation) -> bool:
    """Say whether the lives before ``life`` had a state that could not be kept."""
    return _UNKEPT in ActorMemory(life.actor_id, _PART).load()


def restore(instance: object, kept: KeptState) -> None:
    """Give ``instance`` the state that was kept.

    Raises:
        StateLostError: The class no longer takes it.
    """
    take_up = saved_state.hands(instance)[1]
    try:
        take_up(kept.state)
    except Exception as error:
        raise StateLostError(f"{type(instance).__name__} does not take its last state: {error!r}") from error


def _read(path: Path) -> tuple[Snapshot | None, tuple[bytes, ...]]:
    found = read_snapshot(path)
    if found is None or not found.lost:
        return found, ()
    return found, tuple(read_calls(log_of(path), found.ended - found.lost, found.ended))
