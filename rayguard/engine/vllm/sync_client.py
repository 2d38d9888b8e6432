"""The stand-in for vLLM's engine-core client under a synchronous ``LLM``; what it shares is ``client``."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from rayguard.engine.vllm import asking
from rayguard.engine.vllm.client import PUT_DOWN_S, HealingClient
from rayguard.engine.vllm.patching import wrap

if TYPE_CHECKING:
    from rayguard.engine.protocol import Carried, Verdicts
    from rayguard.engine.vllm.asking import Asked


_SENDING = "_rayguard_sending"


def send_one_at_a_time(kind: type) -> None:
    """Let threads send to a core of ``kind`` one after the other, if that is vLLM's ``SyncMPClient``.

    Under an ``LLM``, weights are pushed and canaries asked for beside the thread that generates. Encoder
    and socket are for one thread: of two, answers were lost for ever, or libzmq aborted the process
    ("Assertion failed: !_current_out", measured with 0.32).
    """
    if any(base.__name__ == "SyncMPClient" for base in kind.__mro__):
        wrap(kind, "_send_input", _send_alone)


def _send_alone(send: Any, core: Any, *message: Any) -> None:
    with core.__dict__.setdefault(_SENDING, threading.Lock()):
        send(core, *message)


class SyncHealingClient(HealingClient):
    """In place of ``SyncMPClient`` (or ``InprocClient``) under a synchronous ``LLM``."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._asking = threading.Lock()  # held while a question of ours is answered: only then we read

    def ask(self, question: Asked, deadline_s: float) -> None:
        """Let the core answer, where nothing runs: else the one whose requests run reads what it sends."""
        with self._asking:
            with self._taking_over:
                core, busy = self.core, bool(self._requests)
            if not busy:
                asking.read(core, question, deadline_s)

    def get_output(self) -> Any:
        """Return the next outputs; across the death of a core, from the next one."""
        with self._taking_over:
            self._in_hand = False
            self._taking_over.notify_all()
        while True:
            self.inflight.save_if_due(self._requests)
            with self._taking_over:
                core = self.core
                if self._ready:
                    self._in_hand = True
                    return self._made_here()
            try:
                outputs = core.get_output()
            except Exception as error:  # noqa: BLE001 - whatever the core raises is a fault to diagnose
                self._report(error, core).result(self.patience_s)
                continue
            with self._taking_over:
                if core is not self.core:
                    continue  # too late: its successor makes these tokens again
                self._in_hand = True
                ended = self._see(outputs)
            if ended:
                for request in self._next_suspect():
                    with contextlib.suppress(Exception):  # a dead core: the next get_output says so
                        core.add_request(request)
            return outputs

    def add_request(self, request: Any) -> None:
        """Book the request and send it."""
        with self._asking, self._taking_over:
            sent = self._take(request)
            core = self.core
        if sent is None:
            return
        try:
            core.add_request(sent)
        except Exception as error:  # noqa: BLE001 - a dead core; the next one gets it with the others
            self._report(error, core).result(self.patience_s)

    def abort_requests(self, request_ids: list[str]) -> None:
        """Forget the requests, and tell the core if it lives."""
        self._forget(request_ids)
        if request_ids:
            self.core.abort_requests(request_ids)

    def adopt(self, core: Any, verdicts: Verdicts) -> Carried:
        """Go on with ``core``. Called by the supervisor's thread; callers wait, or will find it."""
        with self._taking_over:
            self._taking_over.wait_for(lambda: not (self._in_hand and self._requests), PUT_DOWN_S)
            send, carried = self._plan(verdicts)
            for request in send:
                core.add_request(request)
            self.core = core
        return carried

    def interrupt(self, error: Exception) -> None:
        """Wake whoever waits for the current core (vLLM leaves them blocked when it is killed)."""
        for waiting in list(getattr(self.core, "utility_results", {}).values()):
            if not waiting.done():
                waiting.set_exception(error)
        queue = getattr(self.core, "outputs_queue", None)
        if queue is not None:
            queue.put_nowait(error)
