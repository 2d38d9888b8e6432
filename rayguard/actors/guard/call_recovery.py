"""A guarded call has failed: judge it, repeat it, or let the user's own error go out with its incident.

The verdict is ``rayguard.faults.diagnose``, the decision ``rayguard.recovery.calls``; this carries it out.
The wrappers that call it are ``rayguard.actors.guard.wrappers``, ending the process is
``rayguard.actors.life.process_exit``.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from tenacity import AsyncRetrying, Retrying, retry_if_exception, wait_random_exponential

from rayguard.actors.life import current_life, incidents, process_exit, process_group
from rayguard.actors.life.retries import ray_repeats
from rayguard.actors.mark import Guarding, StateRule, mark_of
from rayguard.actors.methods import GUARDED_CALL, GUARDED_INIT, IDEMPOTENT, RAY_RETRIES
from rayguard.errors import RayguardError
from rayguard.faults.diagnosis import Diagnosis, Kind
from rayguard.faults.fault import ExceptionFact, Fault, facts_of
from rayguard.harmless import harmless
from rayguard.ray_internals.worker import this_actor
from rayguard.recovery.calls import Restart, decide_call, needs_new_process
from rayguard.recovery.incident import Incident, Outcome, attach, incident_of
from rayguard.recovery.remedy import WATCHED, Action, Remedy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import FrameType

    T = TypeVar("T")

_OWN_FRAMES = frozenset({GUARDED_CALL, GUARDED_INIT, "_rayguard_watched"})
_RAY_ERRORS = "ray.exceptions."
# How Ray and Python steer; not failures.
_STEERING = frozenset({"AsyncioActorExit", "TaskCancelledError", "StopIteration", "StopAsyncIteration"})
_BACK_OFF = wait_random_exponential(multiplier=0.1, max=2.0)


def judge(
    instance: object, name: str, method: Callable[..., object], error: Exception, *, repeatable: bool = True
) -> Rescue | None:
    """Say what is to become of a failed call: a ``Rescue`` repeats it, None lets ``error`` go out.

    Never raises, and may not return: where the process must die, it dies here. ``repeatable`` is False where
    the caller has already got a part of the answer.
    """
    with harmless("call"):
        if _verdict_is_out(error) or process_group.is_led() or _nested():
            return None
        rescue = Rescue(instance, name, method, repeatable=repeatable)
        if rescue.decide(error):
            return rescue
    return None


def repeat(rescue: Rescue, run: Callable[[], T]) -> T:
    """Call ``run`` until it answers or the rescue is over.

    Tenacity's first attempt is the call that has failed already.
    """
    tenacious = Retrying(retry=retry_if_exception(rescue.repeats), wait=_BACK_OFF, reraise=True)
    answer = tenacious(rescue.after_failure(run))
    rescue.succeeded()
    return answer


async def repeat_async(rescue: Rescue, run: Callable[[], Awaitable[T]]) -> T:
    """Do as ``repeat``, without blocking the actor's other calls."""
    run_again = rescue.after_failure(run)

    async def attempt() -> T:
        return await run_again()

    tenacious = AsyncRetrying(retry=retry_if_exception(rescue.repeats), wait=_BACK_OFF, reraise=True)
    answer: T = await tenacious(attempt)
    rescue.succeeded()
    return answer


class Rescue:
    """One failed call: its attempts, and the incident it has become."""

    def __init__(
        self, instance: object, name: str, method: Callable[..., object], *, repeatable: bool
    ) -> None:
        cls = type(instance)
        self._instance = instance
        self._method = method
        self._target = f"{cls.__name__}.{name}"
        self._mark = mark_of(cls) or Guarding()
        self._creating = name == "__init__"
        self._idempotent = bool(getattr(method, IDEMPOTENT, self._mark.idempotent))
        self._attempt = 0 if repeatable else self._mark.policy.call_retries
        self._repeated = False
        self._error: BaseException | None = None
        self._incident: Incident | None = None

    def decide(self, error: Exception) -> bool:
        """Diagnose ``error``, decide, enact; say whether the call is to be repeated."""
        now = time.time()
        facts = _without_us(facts_of(error, role=self._mark.role, at=now))
        fault = Fault(role=self._mark.role, operation=self._target, exceptions=facts, at=now)
        diagnosis = incidents.diagnosed(fault)
        remedy = WATCHED if self._mark.watching else self._remedy(fault, diagnosis)
        incident = incidents.opened(
            fault, diagnosis, remedy, target=self._target, incarnation=current_life.state.incarnation
        )
        incident = replace(incident, pid=os.getpid())
        if self._incident is not None:  # one call, one incident, however often it is repeated
            self._repeated = True
            incident = replace(incident, id=self._incident.id, detected_at=self._incident.detected_at)
        self._incident = incident
        return self._enact(error, diagnosis, remedy, incident)

    def _remedy(self, fault: Fault, diagnosis: Diagnosis) -> Remedy:
        return decide_call(
            diagnosis,
            attempt=self._attempt,
            idempotent=self._idempotent,
            restart=self._restart(fault, diagnosis),
            policy=self._mark.policy,
        )

    def repeats(self, error: BaseException) -> bool:
        """Answer tenacity: is the call to be made (again) after ``error``?"""
        if error is self._error:  # the failure that `judge` has decided on already
            self._error = None
            return True
        with harmless("call"):
            return isinstance(error, Exception) and not _verdict_is_out(error) and self.decide(error)
        return False

    def after_failure(self, run: Callable[[], T]) -> Callable[[], T]:
        """Return ``run``, preceded by the failure that has happened: tenacity waits before it repeats."""

        def attempt() -> T:
            if self._error is not None:
                raise self._error
            return run()

        return attempt

    def succeeded(self) -> None:
        """Close the incident: a repeat of the call was answered."""
        with harmless("journal"):
            if self._incident is not None:
                incidents.record_unless_repeated(
                    incidents.closed(self._incident, Outcome.RECOVERED, served=True)
                )

    def _enact(self, error: Exception, diagnosis: Diagnosis, remedy: Remedy, incident: Incident) -> bool:
        match remedy.action:
            case Action.RETRY:
                self._attempt += 1
                self._error = error
                if diagnosis.kind is Kind.CUDA_OOM:
                    _free_device_memory(error)
                return True
            case Action.RESTART_PROCESS:
                if self._ray_repeats():
                    process_exit.end_process(incident)
                attach(error, incident)
                process_exit.end_process_after_answer(incident)
            case _:
                failed = remedy.action is Action.GIVE_UP or self._repeated
                incident = incidents.closed(incident, Outcome.FAILED if failed else Outcome.ANSWERED)
                attach(error, incident)
                incidents.record_unless_repeated(incident)
        return False

    def _restart(self, fault: Fault, diagnosis: Diagnosis) -> Restart:
        if not needs_new_process(diagnosis):
            return Restart.NOT_ALLOWED  # not asked for
        local = tuple(takewhile(lambda fact: not fact.type_name.startswith(_RAY_ERRORS), fault.exceptions))
        if local != fault.exceptions:
            in_process = replace(fault, exceptions=local)
            if not local or not needs_new_process(incidents.diagnosed(in_process)):
                return Restart.ELSEWHERE
        if self._mark.state is StateRule.UNSAID:
            return Restart.NOT_ALLOWED  # nobody could restore what it holds
        if process_group.is_member(self._mark):
            return Restart.NOT_ALLOWED  # a member is not begun anew alone
        if this_actor() is not self._instance or not current_life.state.incarnation.restartable:
            return Restart.NOT_ALLOWED
        budget = self._mark.policy.process_budget
        return Restart.POSSIBLE if budget.allows(current_life.state.restarts, fault.at) else Restart.SPENT

    def _ray_repeats(self) -> bool:
        if self._creating:
            return True  # a restart is a new __init__, whatever the options say about calls
        retries = getattr(self._method, RAY_RETRIES, None)
        if not self._idempotent or retries == 0:
            return False
        return retries is not None or ray_repeats(current_life.state.incarnation.actor_id, self._mark)


def _without_us(facts: tuple[ExceptionFact, ...]) -> tuple[ExceptionFact, ...]:
    """Leave our wrappers out of the tracebacks: they are no part of what went wrong."""
    kept = (tuple(f for f in fact.frames if f.function not in _OWN_FRAMES) for fact in facts)
    return tuple(replace(fact, frames=frames) for fact, frames in zip(facts, kept, strict=True))


def _verdict_is_out(error: Exception) -> bool:
    """Say whether nothing is left to judge: our own final words, control flow, or an error that was judged.

    An error with an incident comes from a guarded call further in or in another actor, which has done what
    could be done. When the user wrapped it in another error, the incident moves along: pickling drops causes.
    """
    if isinstance(error, RayguardError) or type(error).__name__ in _STEERING:
        return True
    incident = incident_of(error)
    if incident is not None and getattr(error, "__dict__", {}).get("__rayguard_incident__") is None:
        attach(error, incident)
    return incident is not None


def _nested() -> bool:
    """Say whether the failed call was made by another guarded call, which will see the error in its turn.

    Looked up on the stack, at failure, so that a call that works pays nothing for it.
    """
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - Python's documented way to the stack
    while frame is not None and frame.f_code.co_name not in _OWN_FRAMES:
        frame = frame.f_back  # the wrappers' helpers, up to the wrapper of the failed call itself
    while frame is not None:
        frame = frame.f_back
        if frame is not None and frame.f_code.co_name == GUARDED_CALL:
            return True
    return False


def _free_device_memory(error: Exception) -> None:
    """Give back what can be given back before the call is made again."""
    with harmless("relief"):
        traceback.clear_frames(error.__traceback__)  # its frames hold the tensors of the failed call
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
