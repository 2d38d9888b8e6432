"""Named classes that cannot be guarded as asked: said once in a job, in the log and in an incident.

Nothing is imported to find out: modules are looked up as Python would, and their source is read.
"""

from __future__ import annotations

import dis
import logging
import os
import sys
import time
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from rayguard.actors.life import current_life, incidents
from rayguard.actors.life.incarnation import ActorMemory, Incarnation
from rayguard.actors.mark import StateRule, mark_of
from rayguard.faults.diagnosis import Kind, Scope
from rayguard.ray_internals import kv
from rayguard.ray_internals.module_names import user_class
from rayguard.ray_internals.worker import this_actor
from rayguard.recovery.incident import Incident, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec

_log = logging.getLogger("rayguard")
_DEADLINE_S = 2.0
_MAX_SOURCE_BYTES = 4 << 20
_ANYTHING = "*"  # what a module may define in ways that its source does not show
_STAR = ("*",)  # the constant of ``from ... import *``
_OTHER_WAYS = {"globals", "exec", "setattr", "vars", "__dict__"}
_BY_HAND = "max_restarts=-1, max_task_retries=-1"
_HOOKS = "RAY_RUNTIME_ENV_HOOK=rayguard.cluster.driver.prepare"


def check(classes: dict[str, dict[str, Any]]) -> None:
    """Say of each named class what is wrong with it; once for each job and mistake."""
    for path in classes:
        problem = problem_of(path)
        if problem:
            say(path, f"{path} is not guarded: {problem}", 'correct the path under "guard"')
    actor = this_actor()
    mark = None if actor is None else mark_of(type(actor))
    if mark is None or mark.watching or not mark.by_plugin:
        return
    name, life = type(actor).__name__, current_life.state.incarnation
    plain = user_class(type(actor))
    asked = classes.get(f"{plain.__module__}:{plain.__qualname__}")
    if asked is None or life.max_restarts != 0 or _has_word(life.actor_id):
        return  # whoever created it left word, if only that its user wants no restart
    if not (asked["max_restarts"] or (asked["max_restarts"] is None and mark.state is not StateRule.UNSAID)):
        return
    cause = f"{name} is guarded, but Ray will not restart it: the plugin set no options where it was created"
    say(name, cause, f"start the driver with {_HOOKS}, or create it with {_BY_HAND}")


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
    try:  # no ast.parse: up to Python 3.11.7, two threads in it at once make each other's fail (gh-106905)
        code = compile(Path(origin).read_bytes(), origin, "exec", flags=0, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:  # ValueError for NUL, in older Pythons
        return f"the module {module!r} does not import: {error}"
    found = dict(_bound(code))
    if name not in found and _ANYTHING not in found:
        return f"the module {module!r} has no {name!r}"
    return "" if found.get(name, True) else f"{module}.{name} is a function and no class"


def _bound(code: CodeType, *, is_module: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield the names that a module binds, each with whether it may be a class."""
    previous = ""
    for step in dis.get_instructions(code):
        if step.opname == "STORE_GLOBAL" or (is_module and step.opname == "STORE_NAME"):
            is_function = previous in {"MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"}  # undecorated
            yield (_ANYTHING if step.argval == "__getattr__" else step.argval), not is_function
        previous = step.opname
    if _STAR in code.co_consts or not _OTHER_WAYS.isdisjoint(code.co_names):
        yield _ANYTHING, True
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _bound(inner, is_module=False)


def _has_word(actor_id: str) -> bool:
    return bool(ActorMemory(actor_id, "options").load())


def say(target: str, cause: str, advice: str, *, job_id: str = "") -> None:
    """Say it once in a job: this process's, or that of ``job_id``."""
    life = current_life.state.incarnation
    if job_id:
        life = Incarnation(job_id=job_id, pid=os.getpid())
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
    incidents.record(incidents.closed(incidents.of_life(incident, life), Outcome.ANSWERED))


def _first(key: str) -> bool:
    """Say whether no other process of the job has said it."""
    return not kv.connected() or kv.put(key, b"1", overwrite=False, deadline_s=_DEADLINE_S)
