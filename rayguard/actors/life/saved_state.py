"""What an actor takes along when its process is recycled: written by one life, read by the next.

A file and not an object: an object dies with the process that made it, and takes memory where there is
little left. The next life may be on another node; it then has the file read there, by a task.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from rayguard.actors.life.incarnation import ActorMemory, Incarnation
from rayguard.actors.methods import bare, state_methods
from rayguard.errors import StateLostError
from rayguard.harmless import harmless
from rayguard.private import open_private, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable

    from ray import ObjectRef
    from typing_extensions import Buffer


T = TypeVar("T")
_PART = "kept"
_FETCH_S = 300.0  # a state of gigabytes, over a network


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNote:
    """Where the state lies, and how to know that it is whole."""

    node: str
    path: str
    digest: str
    size: int


def hands(instance: object, then: str = "") -> tuple[Callable[[], object], Callable[[object], object]]:
    """Return the methods by which ``instance`` hands over all that its next process needs, and takes it up.

    Raises:
        StateLostError: Its class has none, or no longer; ``then`` says what becomes of the state.
    """
    names = state_methods(type(instance))
    if names is None:
        raise StateLostError(f"{type(instance).__name__} no longer has load_state_dict, or the like{then}")
    return bare(instance, names[0]), bare(instance, names[1])


def keep(instance: object, life: Incarnation, home: Path) -> StateNote:
    """Write the state of ``instance`` and leave a note for its next life.

    Raises:
        OSError: There is no room, or no right to write.
        StateLostError: Its class has no way to hand it over.
        Exception: What that method or pickling raised; nothing is left behind then.
    """
    note = write(hands(instance)[0](), "state", life, home)
    if not ActorMemory(life.actor_id, _PART).save(asdict(note)):
        forget(note, life)
        raise OSError("Ray's control process did not take the word of where the state lies")
    return note


def write(value: object, what: str, life: Incarnation, home: Path) -> StateNote:
    """Pickle ``value`` into a file of this actor's, whole or not at all.

    Raises:
        OSError: There is no room, or no right to write.
        Exception: What pickling it raised; nothing is left behind then.
    """
    import ray.cloudpickle as pickle  # noqa: PLC0415 - an actor runs here

    folder = home / "kept"
    os.close(open_private(folder))
    handle, name = tempfile.mkstemp(prefix=f"{life.actor_id}-", suffix=".writing", dir=folder)
    path = folder / f"{life.actor_id}.{what}"
    try:
        with os.fdopen(handle, "wb") as file:
            hashed = _Hashed(file)
            pickle.dump(value, hashed, protocol=5)
            file.flush()
            os.fsync(handle)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return StateNote(node=life.node_id, path=str(path), digest=hashed.digest.hexdigest(), size=hashed.size)


def drop(life: Incarnation) -> None:
    """Forget a state that is not needed after all: this process goes on."""
    memory = ActorMemory(life.actor_id, _PART)
    note = memory.load()
    if note:
        memory.delete()
        _forget(note["path"])


def resume(instance: object, life: Incarnation) -> bool:
    """Give ``instance`` the state that its earlier life kept; say whether there was one.

    Raises:
        StateLostError: There was one, and it cannot be had or is damaged.
        Exception: What the method that takes it up raised.
    """
    memory = ActorMemory(life.actor_id, _PART)
    found = memory.load()
    if not found:
        return False
    note = StateNote(**found)
    take_up = hands(instance, f"; {note.path} has its state")[1]
    take_up(read(note, life))
    memory.delete()
    forget(note, life)
    return True


def read(note: StateNote, life: Incarnation) -> Any:
    """Return what was written.

    Raises:
        StateLostError: It cannot be had, or is damaged.
    """
    import ray.cloudpickle as pickle  # noqa: PLC0415 - an actor runs here

    data = _read(note, life)
    if len(data) != note.size or hashlib.sha256(data).hexdigest() != note.digest:
        raise StateLostError(f"what {note.path} kept of the actor's last process is damaged")
    return pickle.loads(data)


def forget(note: StateNote, life: Incarnation) -> None:
    """Remove the file, on whichever node it lies."""
    with harmless("kept state"):
        if note.node == life.node_id:
            _forget(note.path)
        else:
            _on(note.node, _forget, note.path)


def _read(note: StateNote, life: Incarnation) -> bytes:
    try:
        if note.node == life.node_id:
            return _bytes_of(note.path)
        import ray  # noqa: PLC0415 - an actor runs here

        return bytes(ray.get(_on(note.node, _bytes_of, note.path), timeout=_FETCH_S))
    except Exception as error:
        raise StateLostError(
            f"the state in {note.path} on node {note.node} cannot be read: {error}"
        ) from error


def _on(node: str, function: Callable[[str], object], path: str) -> ObjectRef:
    """Call ``function(path)`` on another node; return the reference to its answer."""
    import ray  # noqa: PLC0415 - an actor runs here
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, max_retries=2, scheduling_strategy=there)(function).remote(path)


def call_on(node: str, function: Callable[[Path], T], path: Path) -> T:
    """Return what ``function(path)`` returns on another node: a file that lies there, read."""
    import ray  # noqa: PLC0415 - an actor runs here

    found: T = ray.get(_on(node, lambda name: function(Path(name)), str(path)), timeout=_FETCH_S)
    return found


def _forget(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _bytes_of(path: str) -> bytes:
    file = open_regular(Path(path))
    if file is None:
        raise FileNotFoundError(path)
    with os.fdopen(file, "rb") as opened:
        return opened.read()


class _Hashed:
    """A file that knows the digest of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        self.digest.update(view)
        self.size += view.nbytes
        self._file.write(view)
        return view.nbytes
