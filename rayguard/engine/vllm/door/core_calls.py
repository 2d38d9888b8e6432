"""What a stand-in for vLLM's engine-core client passes on to its core: the calls that are no requests.

Requests are ``rayguard.engine.vllm.client``'s. Who may be told what about a call that a death cut off is
decided elsewhere (``rayguard.recovery.machine``, ``rayguard.engine.supervision.supervisor``).
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING, Any

from rayguard.engine.calls import mark
from rayguard.engine.vllm import output_state
from rayguard.engine.vllm.changes.own_calls import WATCHED, OwnCalls
from rayguard.engine.vllm.door.calls import CallDoor, named, only_reads
from rayguard.engine.vllm.door.unasked_ends import UnaskedEnds
from rayguard.engine.weights.changes import WeightChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rayguard.engine.vllm.interfaces import EngineCoreClient, EngineCoreOutput, EngineCoreOutputs

_NEVER_SENT = frozenset({"EngineDeadError", "ZMQError"})  # raised by a client that knows its core as dead
# What a core that was told to end answers calls with: it does not make them, and goes as soon as what runs
# has ended (vllm/v1/engine/core.py: _reject_utility_in_shutdown).
_ENDING = ("Server shutting down",)
LOOK_S = 0.05  # between two looks whether it has gone


def wake(core: EngineCoreClient, error: Exception) -> None:
    """Hand ``error`` to whoever waits for ``core``: vLLM leaves them blocked when it is killed."""
    for waiting in list(getattr(core, "utility_results", {}).values()):
        if not waiting.done():
            waiting.set_exception(error)
    queue = getattr(core, "outputs_queue", None)
    if queue is not None:
        queue.put_nowait(error)


def refused_at_its_end(error: Exception) -> bool:
    """Say whether ``error`` is what a core that ends answers with to calls that it does not make."""
    return type(error) is Exception and error.args == _ENDING


class CoreCalls:
    """The core of now, and the calls to it."""

    core: EngineCoreClient

    def __init__(self, core: EngineCoreClient) -> None:
        self.turns = 0
        self.own_calls = OwnCalls(WeightChanges())
        self._interrupts: deque[Exception] = deque(maxlen=8)  # that woke whoever waited for a core
        self._not_again: Mapping[str, str] = {}  # calls that only read, but were there at too many deaths
        self.go_to(core)

    def go_to(self, core: EngineCoreClient) -> None:
        """Send to ``core`` from now on, and hear no other."""
        self._calls = CallDoor.of(core, lambda: self.turns)
        self._unasked_ends = UnaskedEnds(self._calls, functools.partial(self._end_late, core))
        self.core = core

    def _end_late(self, core: EngineCoreClient, ends: list[EngineCoreOutput]) -> None:
        if core is self.core:
            self._put(core, output_state.as_from_a_core(ends))

    def _put(self, core: EngineCoreClient, outputs: EngineCoreOutputs) -> None:
        """Let whoever waits for ``core`` have ``outputs`` next; from any thread."""
        raise NotImplementedError

    def passed_on(self, name: str) -> object:
        """Return what the core of now has by this name; a method of it as callers of this client get it."""
        found = self._method(self.core, name)
        return self._call(name, found) if callable(found) and not name.startswith("_") else found

    def _method(self, core: EngineCoreClient, name: str) -> Any:
        found = getattr(core, name)
        return self.own_calls.before(core, name, found) if name in WATCHED else found

    def _call(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        """Return a method that goes on with the next core where it may."""
        raise NotImplementedError

    def _is_gone(self, core: EngineCoreClient) -> bool:
        return core is not self.core or bool(getattr(getattr(core, "resources", None), "engine_dead", False))

    def _made_again(
        self, name: str, given: Sequence[object], error: Exception, core: EngineCoreClient
    ) -> bool:
        """Say whether a call that raised ``error`` is made to the next core; if not, mark ``error``.

        It is where it never reached ``core``, or only reads and was not there at too many deaths.
        """
        cut_off = any(error is known for known in self._interrupts)
        if self._is_gone(core) and not cut_off and type(error).__name__ in _NEVER_SENT:
            return True
        if cut_off and only_reads(name) and name.removesuffix("_async") not in self._not_again:
            return True
        mark(error, named(name, given), core)
        return False
