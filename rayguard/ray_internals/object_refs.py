"""Ray's references: counts, sizes, where they are made, and the end of one reference.

Ray has no ``free``. A reference is ended by pointing it, in place, at a small object that holds the error
``ScopeEndedError``: the count of what it pointed to goes down by one, exactly as if the user had dropped it,
and whoever reads the reference later gets that error by every way there is. Nothing is deleted: Ray keeps the
object for borrowers and tasks in flight, and a numpy view keeps its memory.
"""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rayguard.errors import CapabilityOffError
from rayguard.ray_internals.capability import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from typing_extensions import TypeIs

_BATCH = 500
_PATIENCE_S = 10.0


class Reference(Protocol):
    """Ray's ``ObjectRef``, as far as anybody but this file asks it."""

    def hex(self) -> str:
        """Return the object's id."""


def _is_let_go(found: Mapping[str, Any]) -> None:
    """End a reference to an object of our own, and see what Ray makes of it."""
    import ray  # noqa: PLC0415 - it is there: names of it were found

    trial = {"ended": ray.put(1), "other": ray.put(2), "stone": put_error("a trial", LookupError("read"))}
    try:
        _try_end(found["worker"], trial)
    except BaseException:
        keep_for_ever(trial)  # who knows what their own end would do
        raise


def _try_end(worker: Any, trial: dict[str, Any]) -> None:
    core, before = worker.core_worker, trial["ended"].hex()
    other, stone = trial["other"].hex(), trial["stone"].hex()
    end(core, trial["ended"], trial["stone"])
    now = counts(core)
    if trial["ended"].hex() != stone or before in now or now.get(stone) != (2, 0) or now.get(other) != (1, 0):
        raise RuntimeError("references are not counted as if the one that was ended had been dropped")
    read = [trial["other"], trial["ended"]]
    value, error = worker.get_objects(read, timeout=_PATIENCE_S, return_exceptions=True)[0]
    if value != 2 or not isinstance(getattr(error, "cause", None), LookupError):  # noqa: PLR2004 - what was put
        raise RuntimeError("another reference was touched, or an ended one can be read")
    read.clear()
    del trial["ended"]
    if counts(core).get(stone) != (1, 0):
        raise RuntimeError("an ended reference is counted after it was dropped")


_CORE = "ray._raylet:CoreWorker"
OBJECTS = Capability(
    "object scopes",
    "a scope ends nothing, and no leak is found",
    {
        "worker": "ray._private.worker:global_worker",
        "connected": "ray._private.worker:Worker.connected",
        "put": "ray._private.worker:Worker.put_object",
        "get": "ray._private.worker:Worker.get_objects",
        "create": "ray.actor:ActorClass._remote",  # see ``actor_creation``
        "task": "ray.remote_function:RemoteFunction._remote",
        "call": "ray.actor:ActorHandle._actor_method_call",
        "reference": "ray._raylet:ObjectRef",
        "counts": f"{_CORE}.get_all_reference_counts",
        "locations": f"{_CORE}.get_local_object_locations",
        "wait": f"{_CORE}.wait",
        "task id": f"{_CORE}.get_current_task_id",
        "worker id": f"{_CORE}.get_worker_id",
        "owner": f"{_CORE}.get_owner_address",
    },
)
ENDING = Capability(
    "ended references",
    "a scope ends no references: Ray frees what nobody holds, and no more",
    {
        "worker": "ray._private.worker:global_worker",
        "init": "ray._raylet:ObjectRef.__init__",  # called again, on a reference that lives
        "id": "ray._raylet:ObjectRef.binary",
        "owner": "ray._raylet:ObjectRef.owner_address",
        "site": "ray._raylet:ObjectRef.call_site",
        "remove": f"{_CORE}.remove_object_ref_reference",
        "error": "ray.exceptions:RayTaskError",
    },
    known=((2, 60), (2, 60)),
    only_known=True,
    test=_is_let_go,
    testable=lambda found: bool(found["worker"].connected),  # ``ray.put`` would start a cluster
)
_CONTEXT = "ray._private.serialization:SerializationContext"
_PICKLING = Capability(
    "pickled references",
    "what a kept state or answer of an actor refers to is held until its process ends",
    {
        "worker": "ray._private.worker:global_worker",
        "context": "ray._private.worker:Worker.get_serialization_context",
        "begin": f"{_CONTEXT}.set_in_band_serialization",
        "end": f"{_CONTEXT}.set_out_of_band_serialization",
        "contained": f"{_CONTEXT}.get_and_clear_contained_object_refs",
    },
)


@contextmanager
def unpinned() -> Iterator[None]:
    """Let this thread pickle references without that: pickled by anybody but Ray they are held for ever.

    For what is read after this process only, with which its references end anyway.
    """
    found = _PICKLING.found() if core_worker() is not None and _PICKLING.usable() else None
    if found is None:
        yield
        return
    context = found["worker"].get_serialization_context()
    context.set_in_band_serialization()
    try:
        yield
    finally:
        context.set_out_of_band_serialization()
        context.get_and_clear_contained_object_refs()


def core_worker() -> Any | None:
    """Return this process's core worker, or None where Ray is not connected (or is Ray Client)."""
    if not hasattr(sys.modules.get("ray"), "is_initialized"):  # not loaded, or not to its end
        return None
    try:
        worker = OBJECTS.found()["worker"]
    except CapabilityOffError:
        return None
    return getattr(worker, "core_worker", None) if worker.connected else None


@functools.cache
def reference_type() -> type[Reference]:
    """Return Ray's ``ObjectRef``: exactly this type is ended, no subclass."""
    kind: type[Reference] = OBJECTS.found()["reference"]
    return kind


def is_reference(value: object) -> TypeIs[Reference]:
    """Say whether ``value`` is a reference."""
    return type(value) is reference_type()


def task_result(value: object) -> Reference | None:
    """Return the reference by which Ray knows what a call returned: its own, or that of a stream."""
    found = getattr(value, "_generator_ref", value)
    return found if hasattr(found, "hex") else None


def counts(core: Any) -> dict[str, tuple[int, int]]:
    """Return (local, submitted) by object id, of all objects that this process refers to.

    4 ms for 10,000 references.
    """
    return {
        key.decode(): (count["local"], count["submitted"])
        for key, count in core.get_all_reference_counts().items()
    }


def current_task(core: Any) -> str:
    """Return the hex id of the task that runs here: the right one in an async actor, too."""
    task: str = core.get_current_task_id().hex()
    return task


def own_id(core: Any) -> str:
    """Return the hex id of this process."""
    worker: str = core.get_worker_id().hex()
    return worker


def is_owner(core: Any, object_id: str) -> bool:
    """Say whether this process owns the object: with it, the object would be lost."""
    probe: Any = reference_type()
    address = core.get_owner_address(probe(bytes.fromhex(object_id), skip_adding_local_ref=True))
    return bool(core.get_worker_id().binary() in address)


def sizes(core: Any, references: Iterable[Reference]) -> dict[str, int]:
    """Return the bytes of those objects that this process owns and whose size it knows; no network."""
    known = core.get_local_object_locations(list(references))
    return {one.hex(): place["object_size"] for one, place in known.items() if place["object_size"]}


def ready(core: Any, references: Iterable[Reference]) -> set[str]:
    """Return the ids of those whose task has finished; asks, never waits, fetches nothing."""
    done: set[str] = set()
    distinct = list({one.hex(): one for one in references}.values())
    for start in range(0, len(distinct), _BATCH):
        batch = distinct[start : start + _BATCH]
        finished, _ = core.wait(batch, len(batch), 0, False)  # noqa: FBT003 - Ray's own signature
        done.update(one.hex() for one in finished)
    return done


def read(reference: Reference) -> object:
    """Return what ``reference``, which is ready, points to: ``ray.get`` warns in an async actor.

    Raises:
        Exception: Whatever the task raised, or came to.
    """
    values: Sequence[object] = OBJECTS.found()["worker"].get_objects([reference])[0]
    return values[0]


def is_plain(reference: object) -> bool:
    """Say whether the object lives in the object store, and not on a device."""
    transport = getattr(reference, "tensor_transport", None)
    return transport is None or transport() is None


_of_earlier_clusters: list[object] = []


def keep_for_ever(references: object) -> None:
    """Never let go of our references to a cluster that was shut down.

    A reference's end takes one off the count of its id, and the next cluster gives out the same ids again.
    """
    if references:
        _of_earlier_clusters.append(references)


def put_error(what: str, error: Exception) -> Reference:
    """Put ``error`` where whoever reads it gets it raised, as if the task ``what`` had failed with it."""
    import ray  # noqa: PLC0415 - whoever has references has Ray
    from ray.exceptions import RayTaskError  # noqa: PLC0415

    kind = type(error)
    stone: Reference = ray.put(RayTaskError(what, f"{kind.__module__}.{kind.__qualname__}: {error}", error))
    return stone


def end(core: Any, reference: Any, stone: Any) -> None:
    """Point ``reference`` at ``stone``: never at nothing in between, and no count is touched twice.

    Only where ``ENDING`` is usable.
    """
    kind = type(reference)
    before = kind(reference.binary(), reference.owner_address(), reference.call_site())  # one more
    kind.__init__(reference, stone.binary(), stone.owner_address(), stone.call_site())
    core.remove_object_ref_reference(before)  # the other goes with `before`
