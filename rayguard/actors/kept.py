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
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rayguard.actors.incarnation import ActorMemory
from rayguard.errors import StateLostError
from rayguard.private import open_private, open_regular
from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rayguard.actors.incarnation import Incarnation

_PART = "kept"
_CHUNK = 1 << 20
_FETCH_S = 300.0  # a state of gigabytes, over a network


@runtime_checkable
class Stateful(Protocol):
    """An actor that can hand its state over. The names are torch's."""

    def state_dict(self) -> Any:
        """Return all that the next process needs to go on: anything that pickles."""

    def load_state_dict(self, state: Any) -> Any:
        """Take up what ``state_dict`` returned in an earlier process; called after ``__init__``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Where the state lies, and how to know that it is whole."""

    node: str
    path: str
    digest: str
    size: int


def keep(instance: Stateful, life: Incarnation, home: Path) -> Word:
    """Write the state of ``instance`` and leave word for its next life.

    Raises:
        OSError: There is no room, or no right to write.
        Exception: What ``state_dict`` or pickling it raised; nothing is left behind then.
    """
    word = write(instance.state_dict(), "state", life, home)
    if not ActorMemory(life.actor_id, _PART).save(asdict(word)):
        forget(word, life)
        raise OSError("Ray's control process did not take the word of where the state lies")
    return word


def write(value: Any, what: str, life: Incarnation, home: Path) -> Word:
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
    return Word(node=life.node_id, path=str(path), digest=hashed.digest.hexdigest(), size=hashed.size)


def drop(life: Incarnation) -> None:
    """Forget a state that is not needed after all: this process goes on."""
    memory = ActorMemory(life.actor_id, _PART)
    word = memory.load()
    if word:
        memory.delete()
        _forget(word["path"])


def resume(instance: object, life: Incarnation) -> bool:
    """Give ``instance`` the state that its earlier life kept; say whether there was one.

    Raises:
        StateLostError: There was one, and it cannot be had or is damaged.
        Exception: What ``load_state_dict`` raised.
    """
    memory = ActorMemory(life.actor_id, _PART)
    found = memory.load()
    if not found:
        return False
    word = Word(**found)
    if not isinstance(instance, Stateful):
        raise StateLostError(
            f"{type(instance).__name__} no longer has load_state_dict; {word.path} has its state"
        )
    instance.load_state_dict(read(word, life))
    memory.delete()
    forget(word, life)
    return True


def read(word: Word, life: Incarnation) -> Any:
    """Return what was written.

    Raises:
        StateLostError: It cannot be had, or is damaged.
    """
    import ray.cloudpickle as pickle  # noqa: PLC0415 - an actor runs here

    data = _read(word, life)
    if len(data) != word.size or hashlib.sha256(data).hexdigest() != word.digest:
        raise StateLostError(f"what {word.path} kept of the actor's last process is damaged")
    return pickle.loads(data)


def forget(word: Word, life: Incarnation) -> None:
    """Remove the file, on whichever node it lies."""
    with harmless("kept state"):
        if word.node == life.node_id:
            _forget(word.path)
        else:
            _on(word.node, _forget, word.path)


def _read(word: Word, life: Incarnation) -> bytes:
    try:
        if word.node == life.node_id:
            return _bytes_of(word.path)
        return bytes(_get(_on(word.node, _bytes_of, word.path)))
    except Exception as error:
        raise StateLostError(
            f"the state in {word.path} on node {word.node} cannot be read: {error}"
        ) from error


def _on(node: str, function: Any, path: str) -> Any:
    """Call ``function(path)`` on another node; return the reference to its answer."""
    import ray  # noqa: PLC0415 - an actor runs here
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, max_retries=2, scheduling_strategy=there)(function).remote(path)


def _get(ref: Any) -> Any:
    import ray  # noqa: PLC0415 - an actor runs here

    return ray.get(ref, timeout=_FETCH_S)


def _forget(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _bytes_of(path: str) -> bytes:
    file = open_regular(Path(path))
    if file is None:
        raise FileNotFoundError(path)
    with os.fdopen(file, "rb") as opened:
        return b"".join(_chunks(opened))


def _chunks(file: Any) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


class _Hashed:
    """A file that knows the digest of what was written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.digest.update(view)
        self.size += view.nbytes
        self._file.write(view)
        return view.nbytes
