"""The calls that ended since an actor's state was kept: in a file beside it, made again by the next life.

Only those that answer at once and may run twice are made again, in the order in which they had ended. The
others are lost, and told by name. Where the state is kept after each call there is nothing to note.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rayguard.actors.mark import may_run_twice
from rayguard.actors.methods import bare
from rayguard.process.call_log import CallLog
from rayguard.ray_internals.object_refs import unpinned

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rayguard.actors.methods import Given

_MOST_BYTES = 64 << 20  # then the state is kept, whatever the policy says
_FAILED, _DONE = b"\0", b"\1"


def log_of(snapshot: Path) -> Path:
    """Return where the calls since ``snapshot`` lie: beside it."""
    return snapshot.with_name(f"{snapshot.name}.calls")


class CallsSince:
    """Those of one actor's life. Told within a lock, and with what is raised here counted.

    ``replays``: what calls are given is kept, for those that may run twice.
    """

    def __init__(self, cls: type, snapshot: Path, *, replays: bool) -> None:
        self._log = CallLog(log_of(snapshot))
        self._twice, self.replays = partial(may_run_twice, cls), replays
        self._given: dict[int, bytes] = {}

    @property
    def full(self) -> bool:
        """Whether the state has to be kept now: a death would have too much made again."""
        return self._log.size >= _MOST_BYTES

    def begun(self, place: int, name: str, given: Given | None) -> None:
        """A call begins: its arguments are kept as they are now, since it may change them."""
        if self.replays and place >= 0 and given is not None and self._twice(name):
            self._given[place] = _packed(given)

    def ended(self, place: int) -> bytes:
        """It has ended; return what it takes to make it again: nothing where it must not be."""
        return self._given.pop(place, b"")

    def note(self, number: int, name: str, given: bytes, *, failed: bool) -> None:
        """The state was not kept since the call of this number ended.

        Raises:
            OSError: There is no room: a death will tell that a call is lost, and not which one.
        """
        if not self.full:
            self._log.add(number, name.encode() + b"\0" + (_FAILED if failed else _DONE) + given)

    def kept(self) -> None:
        """The state has been kept: all of them are in it."""
        if self._log.size:
            self._log.clear()

    def forget(self) -> None:
        """Drop also those of the life before: its state has been taken up, and kept."""
        self._log.clear()


def _packed(given: Given) -> bytes:
    from ray import cloudpickle  # noqa: PLC0415 - an actor runs here

    try:
        with unpinned():
            packed = bytes(cloudpickle.dumps(given))
    except Exception:  # noqa: BLE001 - what cannot be packed cannot be made again, and is told as lost
        return b""
    return packed if len(packed) < _MOST_BYTES else b""


def replay(instance: object, lost: int, since: Iterable[bytes]) -> tuple[str, ...]:
    """Make calls again after the state before them was taken up; return the names of those that are lost.

    ``lost``: how many had ended since; of those that nobody could note, the name is ''.
    """
    names, known = [], 0
    for record in since:
        known += 1
        name, _, rest = record.partition(b"\0")
        if not _made_again(instance, name.decode(), rest[1:], failed=rest[:1] == _FAILED):
            names.append(name.decode())
    return (*[""] * (lost - known), *names)


def _made_again(instance: object, name: str, given: bytes, *, failed: bool) -> bool:
    from ray import cloudpickle  # noqa: PLC0415 - as above

    if not given:
        return False
    try:
        args, kwargs = cloudpickle.loads(given)
        bare(instance, name)(*args, **kwargs)
    except Exception:  # noqa: BLE001 - its caller had an answer
        return failed  # as it did the first time
    return True
