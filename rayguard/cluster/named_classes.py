"""Named classes that cannot be guarded as asked: said once in a job, in the log and in an incident.

Nothing is imported to find out: modules are looked up as Python would, and their source is read.
"""

from __future__ import annotations

import ast
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.actors import records, standing
from rayguard.actors.incarnation import ActorMemory, this_actor
from rayguard.actors.mark import mark_of
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.machinery import ModuleSpec

_log = logging.getLogger("rayguard")
_NAMESPACE = b"rayguard"
_DEADLINE_S = 2.0
_MAX_SOURCE_BYTES = 4 << 20
_ANYTHING = "*"  # what a module may define in ways that its source does not show
_BY_HAND = "max_restarts=-1, max_task_retries=-1"
_HOOKS = "RAY_RUNTIME_ENV_HOOK=rayguard.cluster.driver.prepare"


def check(classes: dict[str, dict[str, Any]]) -> None:
    """Say of each named class what is wrong with it; once for each job and mistake."""
    for path in classes:
        problem = problem_of(path)
        if problem:
            _say(path, f"{path} is not guarded: {problem}", 'correct the path under "guard"')
    actor = this_actor()
    mark = None if actor is None else mark_of(type(actor))
    if mark is None or mark.watching or not mark.by_plugin:
        return
    name, life = type(actor).__name__, standing.present.incarnation
    plain = getattr(type(actor), "__ray_actor_class__", type(actor))
    asked = classes.get(f"{plain.__module__}:{plain.__qualname__}")
    if asked is None or asked["max_restarts"] == 0 or life.max_restarts != 0 or _told(life.actor_id):
        return  # whoever created it left word, if only that its user wants no restart
    cause = f"{name} is guarded, but Ray will not restart it: the plugin set no options where it was created"
    _say(name, cause, f"start the driver with {_HOOKS}, or create it with {_BY_HAND}")


def problem_of(path: str) -> str:
    """Say why ``package.module:Class`` cannot be a class of this process; an empty string: it may be one."""
    module, _, name = path.partition(":")
    if module == "__main__":
        return ""  # of the driver; here it is another one
    spec, parent = None, None
    parts = module.split(".")
    for depth in range(len(parts)):
        try:
            spec = _spec_of(".".join(parts[: depth + 1]), parent)
        except KeyError:  # a namespace in a namespace: Python looks its path up in the parent, once imported
            return ""
        if spec is None:
            return f"there is no module {'.'.join(parts[: depth + 1])!r} on this node"
        parent = spec.submodule_search_locations
        if parent is None and depth + 1 < len(parts):
            return f"the module {'.'.join(parts[: depth + 1])!r} is no package"
    return _problem_in(spec, module, name.partition(".")[0])


def _spec_of(name: str, parent: list[str] | None) -> ModuleSpec | None:
    """Ask all finders, as ``import`` does: a package that was installed as editable may lie on no path."""
    found = (finder.find_spec(name, parent) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


def _problem_in(spec: ModuleSpec | None, module: str, name: str) -> str:
    origin = None if spec is None else spec.origin
    if origin is None or not origin.endswith(".py") or os.path.getsize(origin) > _MAX_SOURCE_BYTES:  # noqa: PTH202 - as below
        return ""  # compiled, or made otherwise: nobody can tell
    try:
        body = ast.parse(Path(origin).read_bytes()).body
    except (SyntaxError, ValueError) as error:  # the latter for NUL, in older Pythons
        return f"the module {module!r} does not import: {error}"
    found = dict(_bound(body))
    if name not in found and _ANYTHING not in found:
        return f"the module {module!r} has no {name!r}"
    return "" if found.get(name, True) else f"{module}.{name} is a function and no class"


def _bound(body: Iterable[ast.stmt]) -> Iterator[tuple[str, bool]]:
    """Yield the names that a module binds, each with whether it may be a class."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (_ANYTHING if node.name == "__getattr__" else node.name), False
        elif isinstance(node, ast.ClassDef):
            yield node.name, True
        else:
            for part in ast.walk(node):
                if isinstance(part, ast.alias):
                    yield (part.asname or part.name).partition(".")[0], True
                elif isinstance(part, ast.ClassDef) or (
                    isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                ):
                    yield (part.name if isinstance(part, ast.ClassDef) else part.id), True


def _told(actor_id: str) -> bool:
    return bool(ActorMemory(actor_id, "options").load())


def _say(target: str, cause: str, advice: str) -> None:
    life = standing.present.incarnation
    if not _first(f"plugin:{life.job_id}:{cause}"):
        return
    _log.warning("rayguard: %s; %s", cause, advice)
    now = time.time()
    incident = Incident(
        id=os.urandom(6).hex(),
        kind=Kind.CONFIG_INVALID.value,
        scope=Scope.JOB.value,
        cause=cause,
        signature="plugin_config",
        confidence=1.0,
        advice=advice,
        target=target,
        detected_at=now,
    )
    records.record(records.closed(records.of_life(incident, life), Outcome.ANSWERED))


def _first(key: str) -> bool:
    """Say whether no other process of the job has said it."""
    from ray.experimental.internal_kv import internal_kv_get_gcs_client  # noqa: PLC0415 - a worker runs here

    client = internal_kv_get_gcs_client()
    return client is None or bool(client.internal_kv_put(key.encode(), b"1", False, _NAMESPACE, _DEADLINE_S))  # noqa: FBT003 - a C signature
