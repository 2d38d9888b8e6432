"""One program, run on Ray in one way: its actors created, its calls sent, its answers written down.

Between two rounds of calls it waits until Ray has dealt with a death: a call that comes while an actor starts
again is chance, with and without rayguard. Which programs, and over which pipe, is ``driver``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayTaskError

from tests.benchmarks.never_worse import actors, errors
from tests.benchmarks.never_worse.oracle import STATE_LOST, Oracle
from tests.benchmarks.never_worse.program import Call, Flavor, Program, Strike

PATIENCE_S = 90.0  # an actor is begun anew in a few seconds, on a busy machine in many
SHORT_S = 3.0  # for calls to an actor of which one hangs already
GIVES_UP_S = 0.5  # after which the caller of a slow call does
STOPPED_S = 1.5
ENDED_S = 2.0  # after which a process that rayguard ends, once it has answered, is gone
TOLD_S = 20.0  # a watched actor is told of a moment after it serves again; only waited for where it must be
_lock = threading.Lock()


class Play:
    """A run of ``program``; ``home`` is where rayguard keeps its journal."""

    def __init__(self, program: Program, way: str, home: Path, folder: Path) -> None:
        self._program, self._way, self._home, self._folder = program, way, home, folder
        self._handles: list[Any] = []
        self._answers: list[dict[str, Any]] = []
        self._hangs: set[int] = set()

    def run(self) -> dict[str, Any]:
        """Return what became of its calls, the incidents of its actors, and which strikes fired."""
        began, program = time.monotonic(), self._program
        try:
            for number in range(len(program.actors)):
                self._handles.append(self._created(number))
            if program.actors[0].group:
                self._join()
            for together in program.rounds():
                self._answers += self._called(together)
        except Exception as error:
            self._answers += [_error(call, error) for call in program.calls[len(self._answers) :]]
        incidents = self._incidents() if self._way != "bare" else []
        for handle in self._handles:
            with contextlib.suppress(Exception):
                ray.kill(handle)
        fired = {call.strike.value for call in program.calls if call.strike and self._fired(call)}
        return {
            "seed": program.seed,
            "answers": self._answers,
            "incidents": incidents,
            "fired": sorted(fired),
            "wall_s": round(time.monotonic() - began, 2),
        }

    def _created(self, number: int) -> Any:
        spec = self._program.to_json()["actors"][number]
        options: dict[str, Any] = {"num_cpus": 0}
        if spec["restarts"] is not None:
            options["max_restarts"] = spec["restarts"]
        if spec["retries"] is not None:
            options["max_task_retries"] = spec["retries"]
        if spec["flavor"] is Flavor.THREADED:
            options["max_concurrency"] = 2
        if spec["name"]:
            name = f"{spec['name']}-{self._program.seed}-{time.monotonic_ns()}"
            options |= {"name": name, "namespace": "programs"}
        if spec["detached"]:
            options["lifetime"] = "detached"
        with _lock:
            cls = _remote_class(actors.class_of(spec), guarded=self._way == "guarded")
        return cls.options(**options).remote(str(self._folder))

    def _join(self) -> None:
        place = f"{self._folder}/group"
        joined = [one.join.remote(n, len(self._handles), place) for n, one in enumerate(self._handles)]
        ray.get(joined, timeout=PATIENCE_S)

    def _called(self, together: list[Call]) -> list[dict[str, Any]]:
        sent = [self._sent_or_error(call) for call in together]
        answers = [self._answered(call, one) for call, one in zip(together, sent, strict=True)]
        for call in together:
            if call.strike is None or call.actor < 0 or not self._fired(call):
                continue
            if self._way != "bare" and errors.poisons(call.error):
                time.sleep(ENDED_S)  # noqa: TID251 - a process that lives on gives no sign
                self._settle(call.actor)
            elif call.strike.kills:
                self._settle(call.actor)
        return answers

    def _sent_or_error(self, call: Call) -> Any:
        try:
            return self._sent(call)
        except Exception as error:  # a dead actor's call may fail here already
            return error

    def _sent(self, call: Call) -> Any:
        strike = "" if call.strike is None else call.strike.value
        plain = {"number": call.number, "key": call.key, "error": call.error, "strike": strike}
        if call.actor < 0:
            with _lock:
                task = _remote_task(guarded=self._way == "guarded")
            return task.remote(str(self._folder), plain)
        handle = self._handles[call.actor]
        if call.strike in {Strike.KILL_BETWEEN, Strike.KILL_UNSEEN, Strike.STOP}:
            self._strike(call, ray.get(handle.pid.remote(), timeout=self._patience(call)))
        if self._program.actors[call.actor].flavor is Flavor.GENERATOR:
            return handle.step.options(num_returns="streaming").remote(plain)
        return handle.step.remote(plain)

    def _strike(self, call: Call, pid: int) -> None:
        actors.Struck(str(self._folder)).now(call.key)
        if call.strike is not Strike.STOP:
            os.kill(pid, signal.SIGKILL)
            if call.strike is Strike.KILL_BETWEEN:
                self._settle(call.actor)
            return
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        threading.Timer(STOPPED_S, go_on).start()

    def _settle(self, actor: int) -> None:
        """Wait until Ray has begun it anew, or has said twice that it will not."""
        until, dead = time.monotonic() + PATIENCE_S, 0
        while time.monotonic() < until and dead < 2:
            try:
                ray.get(self._handles[actor].__ray_ready__.remote(), timeout=PATIENCE_S)
            except ActorDiedError:
                dead += 1
            except RayActorError:  # it is on its way
                dead = 0
            except GetTimeoutError:
                return
            else:
                return
            time.sleep(0.2)  # noqa: TID251 - there is nothing to wait at

    def _answered(self, call: Call, sent: Any) -> dict[str, Any]:
        try:
            value, digest = self._got(call, sent)
        except Exception as error:
            if isinstance(error, GetTimeoutError) and not isinstance(error, RayTaskError):
                self._hangs.add(call.actor)
                return {"number": call.number, "outcome": "hung"}
            return _error(call, error)
        return {"number": call.number, "outcome": "value", "value": value, "digest": digest}

    def _got(self, call: Call, sent: Any) -> Any:
        if isinstance(sent, Exception):
            raise sent
        if call.strike is Strike.SLOW:
            ready, _ = ray.wait([sent], timeout=GIVES_UP_S)
            if not ready:
                Path(self._folder, f"{call.key}-{actors.GIVEN_UP}").touch()
                ray.wait([sent], timeout=self._patience(call))  # so that the next call finds it ended
                raise TimeoutError("the caller has given up")
        if isinstance(sent, ray.ObjectRefGenerator):
            ready, _ = ray.wait([sent], timeout=self._patience(call))
            if not ready:
                raise GetTimeoutError("no item came")
            sent = next(sent)
        return ray.get(sent, timeout=self._patience(call))

    def _patience(self, call: Call) -> float:
        return SHORT_S if call.actor in self._hangs else PATIENCE_S

    def _fired(self, call: Call) -> bool:
        return (self._folder / call.key).exists()

    def _incidents(self) -> list[dict[str, Any]]:
        """Return those of the program's actors; wait for those that are owed."""
        owed = Oracle().begun_anew(self._program, self._answers)
        ids = [handle._actor_id.hex() for handle in self._handles]
        until = time.monotonic() + TOLD_S
        while True:
            found = _journal(self._home, ids)
            told = [one["actor"] for one in found if one["outcome"] == STATE_LOST]
            if time.monotonic() > until or all(told.count(actor) >= n for actor, n in owed.items()):
                return found
            time.sleep(0.3)  # noqa: TID251 - the journal is a file


@functools.cache
def _remote_class(cls: type, *, guarded: bool) -> Any:
    if guarded:
        import rayguard

        cls = rayguard.guard(type(cls.__name__, (cls,), {}))
    return ray.remote(cls)


@functools.cache
def _remote_task(*, guarded: bool) -> Any:
    function = actors.task
    if guarded:
        import rayguard

        function = rayguard.guard(function)
    return ray.remote(num_cpus=0)(function)


def _error(call: Call, error: Exception) -> dict[str, Any]:
    said = str(error).strip()[-300:]
    return {"number": call.number, "outcome": "error", "error": type(error).__name__, "said": said}


def _journal(home: Path, ids: list[str]) -> list[dict[str, Any]]:
    from rayguard.recovery.journal import Journal

    found = [one for one in Journal(home).read() if one.actor_id in ids]
    return [
        {
            "actor": ids.index(one.actor_id),
            "kind": one.kind,
            "outcome": one.outcome.value,
            "cause": one.cause[:300],
        }
        for one in found
    ]
