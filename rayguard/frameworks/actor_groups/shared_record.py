"""What all processes that have a group know of it: who keeps its record, its ranks of now, its first calls.

A framework makes a group in one process and sends it to another, which trains with it. One of them at a time
keeps the record of its calls, and can bring its ranks back: the one that last changed their state. What
initialised the ranks goes with that if it can be sent by value; updates cannot.
Kept in Ray's table of names.
"""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import asdict, dataclass, replace
from typing import Any

from rayguard.frameworks.actor_groups.sent_call import Arguments, SentCall, SentPart
from rayguard.frameworks.worker_groups.calls import Effect
from rayguard.ray_internals import kv, object_refs, worker
from rayguard.ray_internals.object_refs import is_reference

_KEY = "actor_groups:"
_MOST_BYTES, _MOST_CALLS = 256 << 10, 4  # they lie in the memory of Ray's control process
_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Head:
    """``holder``: the process that keeps the record. ``told``: how many calls of it all can read.

    ``more``: whether it has others. ``doubt``: why nobody can bring the ranks back; '' if somebody can.
    """

    holder: str
    epoch: int = 1
    told: int = 0
    more: bool = False
    doubt: str = ""


class SharedRecord:
    """The part of a group's record that is shared. All here raise where Ray's table cannot be asked."""

    def __init__(self, group_id: str) -> None:
        self._key = f"{_KEY}{group_id}:"

    def head(self) -> Head | None:
        """Return who keeps it; None where nobody does."""
        found = kv.get(f"{self._key}head", deadline_s=_DEADLINE_S)
        return None if found is None else Head(**json.loads(found))

    def lead(self, head: Head) -> Head:
        """Write who keeps it."""
        kv.put(f"{self._key}head", json.dumps(asdict(head)).encode(), deadline_s=_DEADLINE_S)
        return head

    def claim(self, epoch: int) -> bool:
        """Say whether nobody else makes the ranks of this epoch."""
        return kv.put(f"{self._key}claim:{epoch}", b"", overwrite=False, deadline_s=_DEADLINE_S)

    def tell(self, head: Head, call: SentCall) -> Head:
        """Let all read a call that was sent, if it can be; else that there are more."""
        said = b""
        if call.effect is Effect.SETTING and head.told < _MOST_CALLS and not head.more:
            try:
                said = _by_value(call)
            except Exception:  # noqa: BLE001 - whatever the arguments are
                said = b""
        if not said or len(said) > _MOST_BYTES:
            return head if head.more else self.lead(replace(head, more=True))
        kv.put(f"{self._key}told:{head.told}", said, deadline_s=_DEADLINE_S)
        return self.lead(replace(head, told=head.told + 1))

    def told(self, head: Head) -> list[SentCall]:
        """Return the calls that all can read.

        Raises:
            LookupError: One of them is not there.
        """
        return [_read(self._found(f"told:{at}")) for at in range(head.told)]

    def ranks(self, epoch: int) -> list[object]:
        """Return the handles of an epoch after the first.

        Raises:
            LookupError: They are not there.
        """
        found: list[object] = pickle.loads(self._found(f"ranks:{epoch}"))  # noqa: S301 - written by this job
        return found

    def put_ranks(self, epoch: int, handles: list[object]) -> None:
        """Let all read the handles of an epoch."""
        import ray  # noqa: PLC0415 - only where a group was made

        with object_refs.unpinned():
            said = ray.cloudpickle.dumps(handles)
        kv.put(f"{self._key}ranks:{epoch}", said, deadline_s=_DEADLINE_S)

    def ends_with_us(self) -> None:
        """Have the record removed as this process lets go of Ray."""
        worker.before_leaving(self._remove)

    def _remove(self) -> None:
        for key in kv.keys(self._key, deadline_s=_DEADLINE_S) if kv.connected() else ():
            kv.delete(key, deadline_s=_DEADLINE_S)

    def _found(self, name: str) -> bytes:
        found = kv.get(f"{self._key}{name}", deadline_s=_DEADLINE_S)
        if found is None:
            raise LookupError(f"{name} of a group is not in Ray's table")
        return found


def _by_value(call: SentCall) -> bytes:
    """Return a call as bytes.

    Raises:
        TypeError: It refers to objects in the store, which would be kept for ever.
    """
    import ray  # noqa: PLC0415 - as above

    pickler: Any = type("ByValue", (ray.cloudpickle.CloudPickler,), {"persistent_id": _refuse})
    read: dict[int, tuple[tuple[object, ...], dict[str, object]]] = {}
    for part in call.parts:  # most often, all have the same
        read.setdefault(id(part.kept), part.kept.read())
    parts = [(part.rank, part.method, read[id(part.kept)]) for part in call.parts]
    to = io.BytesIO()
    with object_refs.unpinned():  # engines among the arguments end as ever
        pickler(to).dump((call.name, call.effect.value, parts))
    return to.getvalue()


def _refuse(_pickler: object, value: object) -> None:
    if is_reference(value):
        raise TypeError("a reference has no value of its own")


def _read(said: bytes) -> SentCall:
    name, effect, parts = pickle.loads(said)  # noqa: S301 - as above
    call = SentCall(name, Effect(effect), 0, whole=True)
    for rank, method, (args, kwargs) in parts:
        call.parts.append(SentPart(rank, method, Arguments(args, kwargs), "", answered=True))
    return call
