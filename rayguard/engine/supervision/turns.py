"""Threads use an engine one after the other that is made for one of them, as vLLM's synchronous ``LLM`` is.

Two at once get each other's tokens, or libzmq aborts the process. Which engines are such is theirs to say
(``Engine.one_thread``); what a thread does in its turn is ``rayguard.actors.guard.mixins``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.errors import DeadlineError
from rayguard.harmless import harmless
from rayguard.process.code_lines import frames_of, line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from rayguard.engine.protocol import Engine
    from rayguard.engine.supervision.lifecycle import Lives

_log = logging.getLogger("rayguard")
_LOOK_S = 5.0
_TOLD_AFTER_S = 30.0  # with nothing moving; a batch in the turn before may take hours


@dataclass(slots=True, eq=False)
class _Waiting:
    """One thread that waits for its turn."""

    thread: int
    called: threading.Event = field(default_factory=threading.Event)


class Turns:
    """One turn at a time, in the order in which threads came. In its own turn a thread may begin another.

    Invariant: nobody waits while nobody has the turn.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None  # whose turn it is
        self._depth = 0  # how many it has begun within each other
        self._waiting: deque[_Waiting] = deque()

    @property
    def depth(self) -> int:
        """How many turns the calling thread is in, one within the other."""
        return self._depth if self._thread == threading.get_ident() else 0

    @contextmanager
    def turn(self, patience_s: float, moved: Callable[[], object]) -> Iterator[None]:
        """Wait for the calling thread's turn, and have it until the block is left.

        Raises:
            DeadlineError: For ``patience_s``, no turn ended and ``moved()`` (how far the engine is) stayed
                the same.
        """
        waiting = self._join()
        if waiting is not None:
            try:
                self._wait(waiting, patience_s, moved)
            except BaseException:
                self._withdraw(waiting)
                raise
        try:
            yield
        finally:
            self._leave()

    def _join(self) -> _Waiting | None:
        me = threading.get_ident()
        with self._lock:
            if self._thread in {None, me}:
                self._thread = me
                self._depth += 1
                return None
            waiting = _Waiting(me)
            self._waiting.append(waiting)
            return waiting

    def _wait(self, waiting: _Waiting, patience_s: float, moved: Callable[[], object]) -> None:
        began = since = time.monotonic()
        seen, told = None, False
        while not waiting.called.wait(min(_LOOK_S, patience_s)):
            now, saw = time.monotonic(), (self._thread, moved())
            if saw != seen:
                seen, since = saw, now
            elif now - since >= patience_s:
                raise DeadlineError("with_engine", now - began, self._who())
            elif now - since >= _TOLD_AFTER_S and not told:
                told = True
                _log.warning("rayguard: a call waits for the engine: %s", self._who())

    def _withdraw(self, waiting: _Waiting) -> None:
        with self._lock:
            if not waiting.called.is_set():
                self._waiting.remove(waiting)
                return
        self._leave()

    def _who(self) -> str:
        thread = self._thread
        name = next((one.name for one in threading.enumerate() if one.ident == thread), str(thread))
        where = "" if thread is None else line_of(frames_of(thread), "")
        return (
            f"an LLM is for one thread at a time, and it is the turn of thread {name}, in which nothing moves"
            f"{where and ', at '}{where}"
        )

    def _leave(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            following = self._waiting.popleft() if self._waiting else None
            if following is None:
                self._thread = None
                return
            self._thread, self._depth = following.thread, 1
            following.called.set()


class EngineTurns:
    """The turns of one engine slot."""

    def __init__(self, lives: Lives, patience_s: float) -> None:
        self._lives = lives
        self._patience_s = patience_s
        self._turns = Turns()

    def turn(self) -> AbstractContextManager[None]:
        """Let the calling thread use an engine that is for one at a time, once those before it have.

        Raises:
            DeadlineError: Nothing moves in the turn of another.
        """
        if not self._lives.one_thread:
            return nullcontext()
        return self._turns.turn(self._patience_s, self._moved)

    def _moved(self) -> object:
        engine = self._lives.engine
        return self._lives.epoch, None if engine is None else engine.progress().turns

    def left(self, engine: Engine, error: BaseException) -> None:
        """Say that ``error`` came out of a use of ``engine``: no other thread gets what is left of that."""
        if self._turns.depth == 1:
            with harmless("turn"):
                engine.left(error)
