"""Guarded tasks: ``@rayguard.guard`` on a plain function, below ``@ray.remote``.

A task is guarded as a call of an object that stands for it: a failure is judged (``call_recovery``), it
stands in the flight recorder while it runs, memory is watched meanwhile and relieved where it ends
(``rayguard.actors.memory``). Its process is Ray's: the next task gets it (never an actor, which Ray 2.60
gives a worker of its own). So it is never ended from here: ``@ray.remote(max_calls=n)`` has Ray replace it
after ``n`` tasks, answers delivered.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import TYPE_CHECKING

from rayguard.actors.guard import wrappers
from rayguard.actors.life import current_life, publishing
from rayguard.actors.life.incarnation import Incarnation
from rayguard.actors.mark import Guarding, Task, mark_of
from rayguard.actors.methods import MARK, is_guarded, leave
from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.process.flight import recorder
from rayguard.ray_internals.worker import inside_ray_worker, this_actor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FunctionType

CALL = "task"  # what the one call of a task is called: `tokenize.task`


def guard_function(function: FunctionType, mark: Guarding) -> Callable[..., object]:
    """Return ``function`` under guard: same kind, signature and attributes.

    Raises:
        ConfigError: It is a coroutine function, a method, guarded already, or its policy names a step.
    """
    _check(function, mark)
    return guarded(function, stand_in(function.__name__, mark))


def stand_in(name: str, mark: Guarding) -> Task:
    """Return what stands for a function of this name."""
    owner: Task = type(name, (Task,), {MARK: mark, "__module__": __name__})()
    return owner


def guarded(function: FunctionType, owner: Task) -> Callable[..., object]:
    """Return ``function`` as a call of ``owner``, whatever it is: see ``guard_function``."""

    def _rayguard_guarded(
        _owner: Task, /, *args: object, **kwargs: object
    ) -> object:  # for the name, see ``wrappers``
        return function(*args, **kwargs)

    call = wrappers.wrap(CALL, function, through=_rayguard_guarded)

    def plain(*args: object, **kwargs: object) -> object:
        arrive(owner)
        return call(owner, *args, **kwargs)

    def stream(*args: object, **kwargs: object) -> Generator[object, object, object]:
        arrive(owner)
        return (yield from call(owner, *args, **kwargs))

    task: Callable[..., object] = stream if inspect.isgeneratorfunction(function) else plain
    functools.update_wrapper(task, function)
    return leave(task)


def arrive(task: Task) -> None:
    """Have this process record itself and watch its memory, if it is one that Ray lends to tasks."""
    with harmless("task"):
        if not inside_ray_worker() or this_actor() is not None:
            return  # called as a plain function
        name, mark = type(task).__name__, mark_of(type(task)) or Guarding()
        if not mark.watching:
            publishing.guards()
        if not current_life.state.incarnation.pid:
            current_life.state = current_life.LifeState(_life())
            publishing.show_if_asked(current_life.state.incarnation, name)
        if mark.policy.flight_recorder and recorder.current() is None:
            publishing.record(current_life.state.incarnation, name)
        from rayguard.actors.memory import memory_guard  # noqa: PLC0415 - costs 0.1 s, and drivers have no use for it

        memory_guard.watch(task, mark)


def _life() -> Incarnation:
    import ray  # noqa: PLC0415 - a task of it runs here

    context = ray.get_runtime_context()
    return Incarnation(job_id=context.get_job_id(), node_id=context.get_node_id(), pid=os.getpid())


def _check(function: FunctionType, mark: Guarding) -> None:
    name, around = function.__qualname__, function.__qualname__.rpartition(".")[0]
    if is_guarded(function):
        raise ConfigError(f"{name} is guarded twice; one @rayguard.guard is enough")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"guard() was put on {name}, an async function: Ray runs none as a task")
    if around and not around.endswith("<locals>"):
        raise ConfigError(f"guard() was put on the method {name}; put it on the class {around}")
    if mark.policy.memory is not None and mark.policy.memory.step is not None:
        raise ConfigError(f"MemoryPolicy.step names a method; the function {name} has none: leave it away")
