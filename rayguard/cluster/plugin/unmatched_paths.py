"""Paths under ``guard`` that matched no actor of their job: told once, at its end, with what comes nearest.

A typo guards nothing and says nothing, nor does a class that its framework wraps in another. A job that made
no actor is told nothing: it ended before it came so far. The driver tells before it lets go of Ray; where it
does not (it had no hook, or was killed), the supervisor of the job does.
"""

from __future__ import annotations

import difflib
import json
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from rayguard.cluster.plugin import named_classes
from rayguard.harmless import harmless
from rayguard.ray_internals import gcs_tables, kv, worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOST_S = 2.0  # an exit is held up no longer
_KEY_S = 1.0
_NEAREST = 3
_ADVICE = (
    'where the job came so far as to make one: name the class that Ray runs, as "module:Class"; of one that '
    "its framework wraps, that is the class around it"
)
_named: tuple[str, ...] = ()  # by this driver's job


def tell_at_end(paths: Iterable[str]) -> None:
    """Have this driver tell which of ``paths`` guarded nothing, before it lets go of Ray."""
    global _named  # noqa: PLW0603 - a driver has one job at a time
    _named = tuple(paths)
    if _named:
        worker.before_leaving(_driver_ends)


def of_runtime_env(serialized: str) -> tuple[str, ...]:
    """Return the paths that a job named, of its ``runtime_env`` in JSON."""
    asked = json.loads(serialized or "{}").get("rayguard") or {}
    return tuple(asked.get("guard") or ()) if isinstance(asked, dict) else ()


def tell(paths: Iterable[str], seen: Mapping[str, int], job_id: str) -> None:
    """Tell of each path that is none of the classes that were ``seen``, unless something was told of it."""
    for path in paths:
        if seen and not _matches(path, seen) and not kv.keys(f"plugin:{job_id}:{path} ", deadline_s=_KEY_S):
            cause = f"{path} guarded nothing: no actor of this job was of that class"
            named_classes.say(path, f"{cause}; seen: {_nearest(path, seen)}", _ADVICE, job_id=job_id)


def _matches(path: str, seen: Iterable[str]) -> bool:
    if path in seen:
        return True
    module, _, name = path.partition(":")  # Ray has the name of the driver's file for its `__main__`
    return module == "__main__" and any(one.partition(":")[2] == name for one in seen)


def _nearest(path: str, seen: Mapping[str, int]) -> str:
    near = difflib.get_close_matches(path, seen, n=_NEAREST, cutoff=0.0)
    more = len(seen) - len(near)
    counted = [f"{one} ({seen[one]} actor{'s' * (seen[one] > 1)})" for one in near]
    return ", ".join(counted) + (f", and {more} other classes" if more else "")


def _driver_ends() -> None:
    global _named
    with harmless("named classes"):
        if _named and kv.connected():
            paths, _named = _named, ()
            looking = threading.Thread(target=_look, args=(paths,), name="rayguard-paths", daemon=True)
            looking.start()
            looking.join(_MOST_S)


def _look(paths: tuple[str, ...]) -> None:
    import ray  # noqa: PLC0415 - a driver of it runs here

    with harmless("named classes"):
        job_id = ray.get_runtime_context().get_job_id()
        kv.keys(
            f"plugin:{job_id}:", deadline_s=_KEY_S
        )  # raises where nobody answers: the table has no deadline
        tell(paths, classes_of(gcs_tables.job_actors(job_id)), job_id)


def classes_of(rows: Iterable[Any]) -> Counter[str]:
    """Return how many actors there were of each class of users, by its path."""
    return Counter(row.class_path for row in rows if row.class_path and not row.ours)
