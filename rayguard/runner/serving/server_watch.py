"""Watches each life of a server, beside it: its processes in one thread, what it counts in another.

Found is told once, to whoever began the watch; ending the server and starting it again is theirs. What
cannot be watched is said once for all lives.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from rayguard.harmless import harmless
from rayguard.process.deaths import DeathWatch
from rayguard.runner.serving.address import address_of, is_known_server
from rayguard.runner.serving.counters import counters_of
from rayguard.runner.serving.engine_loss import EngineLoss
from rayguard.runner.serving.server_answers import is_paused, metrics_of
from rayguard.runner.serving.server_processes import ServerProcesses, ends_of
from rayguard.runner.serving.silence import EngineSilence

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.dialects.dialect import Command
    from rayguard.process.identity import ProcessId
    from rayguard.runner.serving.found import NotServing
    from rayguard.runner.serving.patience import ServingPatience

_CLOSE_S = 1.0  # a thread that waits for an answer is left to its own deadline
_PAUSED_S = 5.0


class ServerWatch:
    """How the server that ``command`` starts is watched, over all its lives."""

    def __init__(self, command: Command, patience: ServingPatience, say: Callable[[str], None]) -> None:
        self.command, self.patience = command, patience
        self.address = address_of(command.words)
        self._say, self._said = say, set[str]()
        self._lock = threading.Lock()

    def begin(self, leader: ProcessId, tell: Callable[[NotServing], None]) -> WatchedLife:
        """Watch the life of ``leader`` until it is closed; ``tell`` is called once at most, from a thread."""
        if self.address.why:
            self.cannot_ask(self.address.why)
        return WatchedLife(self, leader, tell)

    def cannot_ask(self, why: str) -> None:
        """Say, once, that its progress cannot be seen."""
        self.say_once(f"its progress is not watched ({why}), only whether its engine is there")

    def say_once(self, text: str) -> None:
        """Say what has not been said of an earlier life."""
        with self._lock:
            news = text not in self._said
            self._said.add(text)
        if news:
            self._say(text)


class WatchedLife:
    """One life of a server."""

    def __init__(self, watch: ServerWatch, leader: ProcessId, tell: Callable[[NotServing], None]) -> None:
        self._watch, self._tell, self._leader = watch, tell, leader
        self._processes = ServerProcesses(leader, watch.command.environment)
        self._done = threading.Event()
        self._told = threading.Lock()
        self._threads = [self._start("rayguard-engines", self._watch_processes)]
        if watch.address.port:
            self._threads.append(self._start("rayguard-counters", self._watch_counters))

    def close(self) -> None:
        """End it; nothing is told once this has returned, unless it was being told."""
        self._done.set()
        for thread in self._threads:
            thread.join(_CLOSE_S)

    def _start(self, name: str, run: Callable[[], None]) -> threading.Thread:
        def harmlessly() -> None:
            with harmless("server watch"):
                run()

        thread = threading.Thread(target=harmlessly, name=name, daemon=True)
        thread.start()
        return thread

    def _found(self, found: NotServing) -> None:
        if not self._done.is_set() and self._told.acquire(blocking=False):
            self._done.set()
            self._tell(found)

    def _watch_processes(self) -> None:
        patience = self._watch.patience
        replaces = not is_known_server(self._watch.command.words)
        loss = EngineLoss(self._leader, patience, replaces=replaces)
        deaths = DeathWatch("rayguard-engine-deaths")  # to know how they ended: their parents ask at once
        watched: set[ProcessId] = set()
        port, served = self._watch.address.port, False
        try:
            while not self._done.wait(patience.processes_s):
                living, now = self._processes.living(), time.monotonic()
                needed = loss.needed(living, now)
                for one in set(needed) - watched:
                    deaths.watch(one, lambda _: None)
                watched = set(needed)
                served = served or (port > 0 and self._processes.connections(port)[0])
                found = loss.judge(living, ends_of(needed), now, served=served) if living else None
                if found is not None:
                    self._found(found)
        finally:
            deaths.close()

    def _watch_counters(self) -> None:
        patience, address = self._watch.patience, self._watch.address
        silence, counted = EngineSilence(patience), False
        while not self._done.wait(patience.counters_s):
            listens, connected = self._processes.connections(address.port)
            text = metrics_of(address, patience.answer_s) if listens else None
            if text is None:
                found = silence.unanswered(time.monotonic())
            elif counters := counters_of(text):
                counted = True
                found = silence.answered(counters, time.monotonic(), waited_for=connected)
            else:
                if not counted:
                    self._watch.cannot_ask("its /metrics does not tell what vLLM counts")
                    return
                continue
            if found is not None and is_paused(address, _PAUSED_S):
                silence.forgiven()
            elif found is not None:
                self._found(found)
