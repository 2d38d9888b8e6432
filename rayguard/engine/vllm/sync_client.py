"""The stand-in for vLLM's engine-core client under a synchronous ``LLM``; what it shares is ``client``."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import TYPE_CHECKING

from rayguard.engine.vllm.client import PUT_DOWN_S, HealingClient
from rayguard.engine.vllm.door.core_calls import LOOK_S, refused_at_its_end, wake
from rayguard.engine.vllm.door.unasked_ends import STAYS_S
from rayguard.engine.vllm.kept.condition import replay
from rayguard.engine.vllm.patch import wrap
from rayguard.engine.vllm.questions.canary_answer import CanaryQuestion, read
from rayguard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rayguard.engine.protocol import Carried, Report, Verdicts
    from rayguard.engine.vllm.interfaces import (
        EngineCoreClient,
        EngineCoreOutputs,
        EngineCoreRequest,
        OutputProcessor,
    )


_SENDING = "_rayguard_sending"
_LOOP = (
    "_run_engine"  # that steps an ``LLM`` until nothing is unanswered (vllm/entrypoints/common/offline.py)
)


def send_one_at_a_time(kind: type) -> None:
    """Let threads send to a core of ``kind`` one after the other, if that is vLLM's ``SyncMPClient``.

    Under an ``LLM``, weights are pushed and canaries asked for beside the thread that generates. Encoder
    and socket are for one thread: of two, answers were lost for ever, or libzmq aborted the process
    ("Assertion failed: !_current_out", measured with 0.32).
    """
    if any(base.__name__ == "SyncMPClient" for base in kind.__mro__):
        wrap(kind, "_send_input", _send_alone)


def _send_alone(send: Callable[..., None], core: object, *message: object) -> None:
    with vars(core).setdefault(_SENDING, threading.Lock()):
        send(core, *message)


class SyncHealingClient(HealingClient):
    """In place of ``SyncMPClient`` (or ``InprocClient``) under a synchronous ``LLM``."""

    def __init__(
        self, core: EngineCoreClient, processor: OutputProcessor, report: Report, patience_s: float
    ) -> None:
        super().__init__(core, processor, report, patience_s)
        self._asking = threading.Lock()  # held while a question of ours is answered: only then we read
        self._coming = 0  # callers that wait for that
        self._reading: threading.Thread | None = None  # the one that waits for outputs now
        self._added: dict[str, threading.Thread] = {}  # request id -> who added it

    def ask(self, question: CanaryQuestion, deadline_s: float) -> None:
        """Let the core answer, where nothing runs: else the one whose requests run reads what it sends."""
        with self._asking:
            with self._taking_over:
                core, busy = self.core, bool(self._requests)
            if not busy:
                read(core, question, deadline_s, lambda: question.gives_way and self._coming > 0)

    def _refuse_a_second(self, *coming: str) -> None:
        """Only where both are inside: an ``LLM`` returns whatever ends meanwhile, also somebody else's."""
        reading, me = self._reading, threading.current_thread()
        if reading is None or reading is me:
            return
        self._abort_own(*coming)
        raise ConfigError(
            f"an LLM is for one thread at a time: thread {reading.name} waits for its answers, and thread "
            f"{me.name} came with its own. Use it through with_engine, in which threads wait for each other, "
            "and from one thread within that; or return an AsyncLLM from build_engine"
        )

    def left(self, error: BaseException) -> None:
        """Abort what the calling thread added, if ``error`` ended the loop that was to bring its answers."""
        at = error.__traceback__
        while at is not None:
            if at.tb_frame.f_code.co_name == _LOOP:
                self._abort_own()
                return
            at = at.tb_next

    def _abort_own(self, *coming: str) -> None:
        me = threading.current_thread()
        own = [name for name in list(self._requests) if self._added.get(name) is me]
        self.abort_requests(self.processor.abort_requests([*own, *coming], internal=True))

    def get_output(self) -> EngineCoreOutputs:
        """Return the next outputs; across the death of a core, from the next one.

        Raises:
            ConfigError: Another thread is at its requests.
        """
        with self._taking_over:
            self._refuse_a_second()
            self._reading = threading.current_thread()
            self._in_hand = False
            self._taking_over.notify_all()
        try:
            return self._next_output()
        finally:
            self._reading = None

    def _next_output(self) -> EngineCoreOutputs:
        while True:
            self.inflight.save_if_due(self._requests)
            with self._taking_over:
                core, refused, self._refused = self.core, self._refused, None
                if refused is not None:
                    raise refused
                if self._ready:
                    self._in_hand = True
                    return self._own_outputs()
            try:
                outputs = core.get_output()
            except Exception as error:  # noqa: BLE001 - whatever the core raises is a fault to diagnose
                self._report(error, core).result(self.patience_s)
                continue
            with self._taking_over:
                if core is not self.core:
                    continue  # too late: its successor makes these tokens again
                self._in_hand = True
                ended = self._received(outputs)
            self._told_of_ends(core, suspect=ended)
            return outputs

    def _told_of_ends(self, core: EngineCoreClient, *, suspect: bool) -> None:
        """Tell ``core`` of requests that we ended; send the next suspect where the turn of one is over."""
        with contextlib.suppress(Exception):  # a dead core: the next get_output says so
            if spoiled := self.numeric.inside():
                core.abort_requests(spoiled)
        for request in self._next_suspect() if suspect else ():
            with contextlib.suppress(Exception):
                self._hand_over(request, core)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Book the request and send it.

        Raises:
            ConfigError: Another thread is at its requests.
            VLLMValidationError: It cannot be sent to an engine; nothing is booked for it.
        """
        try:
            self._add(request)
        except BaseException:
            with contextlib.suppress(Exception):  # a dead core has nothing left to abort
                self.abort_requests(self._undo(request))
            raise

    def _add(self, request: EngineCoreRequest) -> None:
        self._door.let_in(request, self.core)
        with self._comes(), self._asking, self._taking_over:
            self._refuse_a_second(request.request_id)
            if not self._requests:
                self._added.clear()
            self._added[request.request_id] = threading.current_thread()
            sent = self._accepted(request)
            core = self.core
        if sent is None:
            return
        try:
            core.add_request(sent)
        except Exception as error:  # its own fault; or a dead core, and the next one gets it with the others
            refusal = self._door.own_fault(sent, core)
            if refusal is not None:
                raise refusal from error
            self._report(error, core).result(self.patience_s)

    @contextlib.contextmanager
    def _comes(self) -> Iterator[None]:
        """Ask a question of ours to give way. Of callers one at a time is inside: others are refused."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    def _gone(self, core: EngineCoreClient) -> bool:
        until = time.monotonic() + STAYS_S
        while not self._is_gone(core) and time.monotonic() < until:
            threading.Event().wait(LOOK_S)
        return self._is_gone(core)

    def _call(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            while True:
                core = self.core
                try:
                    return self._method(core, name)(*args, **kwargs)
                except Exception as error:
                    if refused_at_its_end(error) and self._gone(core):
                        continue  # to whom comes next, which a client that knows its core as dead waits for
                    if not self._made_again(name, args, error, core):
                        raise
                    self._report(error, core).result(self.patience_s)

        return call

    def abort_requests(self, request_ids: list[str]) -> None:
        """Forget the requests, and tell the core if it lives."""
        following = self._forget(request_ids)
        if request_ids:
            self.core.abort_requests(request_ids)
        for request in following:
            self._hand_over(request, self.core)

    def adopt(self, core: EngineCoreClient, verdicts: Verdicts) -> Carried:
        """Go on with ``core``. Called by the supervisor's thread; callers wait, or will find it."""
        replay(self.kept, core)
        with self._taking_over:
            self._taking_over.wait_for(lambda: not (self._in_hand and self._requests), PUT_DOWN_S)
            send, carried = self._plan(verdicts)
            for request in send:
                self._hand_over(request, core)
            self.go_to(core)
        return carried

    def _hand_over(self, request: EngineCoreRequest, core: EngineCoreClient) -> None:
        try:
            core.add_request(request)
        except Exception:
            if not self._end_unsent(request, core):
                raise
            for following in self._forget((request.request_id,)):
                self._hand_over(following, core)

    def interrupt(self, error: Exception, core: EngineCoreClient | None = None) -> None:
        """Wake whoever waits for ``core``, by default the current one."""
        self._interrupts.append(error)
        wake(core or self.core, error)

    def _put(self, core: EngineCoreClient, outputs: EngineCoreOutputs) -> None:
        core.outputs_queue.put_nowait(outputs)
