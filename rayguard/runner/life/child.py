"""One life of a command: started in a session of its own, sent what signals come, ended to the last process.

Its session, and not only its group: it is then no background job of our terminal, which would be stopped
when it reads from it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.process.identity import ProcessId
from rayguard.process.tree import end
from rayguard.runner.ending import NOT_EXECUTABLE, NOT_FOUND, Ending
from rayguard.runner.life.leftovers import left_by
from rayguard.runner.life.signals import ENDING, FOUND, PASSED_ON
from rayguard.runner.life.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rayguard.dialects.dialect import Command
    from rayguard.runner.life.kept_output import KeptOutput
    from rayguard.runner.life.signals import Signals
    from rayguard.runner.serving.found import NotServing
    from rayguard.runner.serving.server_watch import ServerWatch

_TICK_S = 60.0
_KILL_S = 5.0  # for the kernel
_LAST_WORDS_S = 2.0  # to carry what the command's last processes printed
_HELPLESS_S = 10.0  # for a server that serves nobody, at most: it has nothing to finish
_LEFT_S = 5.0  # for what a failed command left, to end when it is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """How one life of a command ended. ``stopped``: the signal to rayguard that ended it, None for none.

    ``found``: why rayguard ended it by itself, None where it did not.
    """

    ending: Ending
    lasted_s: float
    pid: int = 0
    stopped: int | None = None
    found: NotServing | None = None
    reader_gone: bool = False
    left: tuple[int, ...] = ()  # pids that still run
    error: str = ""  # why it could not be started


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a command is treated. ``must_stay``: it is a server, that failed also where it ended with 0.

    ``watch``: it is one that is ended when it serves nobody any more.
    """

    grace_s: float
    must_stay: bool
    say: Callable[[str], None]
    watch: ServerWatch | None = None


def live(
    command: Command, environment: Mapping[str, str], kept: KeptOutput, signals: Signals, manner: Manner
) -> Life:
    """Run ``command`` to its end; return how it was."""
    streams = Streams(kept.feed)
    began = time.monotonic()
    signals.held = True  # from here on nothing may be left behind
    try:
        typed, out, error = streams.child_files()
        try:
            process = subprocess.Popen(
                command.words,
                env={**environment},
                cwd=command.folder,
                stdin=typed,
                stdout=out,
                stderr=error,
                start_new_session=True,
            )
        except (OSError, ValueError) as failed:
            return _not_started(command, failed)
        finally:
            streams.begin()
        return _Child(process, streams, signals, manner).attend(began)
    finally:
        streams.end(_LAST_WORDS_S)
        kept.end()
        signals.held = False


def _not_started(command: Command, failed: OSError | ValueError) -> Life:
    if isinstance(failed, FileNotFoundError) and not command.folder.is_dir():
        why = f"there is no folder {command.folder}"
    elif isinstance(failed, FileNotFoundError):
        why = f"{command.words[0]}: command not found"
    else:
        why = f"{command.words[0]}: {getattr(failed, 'strerror', None) or failed}"
    code = NOT_FOUND if isinstance(failed, FileNotFoundError) else NOT_EXECUTABLE
    return Life(ending=Ending(code), lasted_s=0.0, error=why)


class _Child:
    """A command that runs."""

    def __init__(
        self, process: subprocess.Popen[bytes], streams: Streams, signals: Signals, manner: Manner
    ) -> None:
        self._process = process
        leader = ProcessId.of(process.pid)
        assert leader is not None  # nobody has waited for it
        self._leader = leader
        self._streams, self._signals, self._manner = streams, signals, manner
        self._stopped: int | None = None
        self._noticed: NotServing | None = None
        self._found: NotServing | None = None  # what it was ended for
        self._interrupts = 0
        self._kill_at = float("inf")

    def attend(self, began: float) -> Life:
        """Pass signals on until it has ended, then end what it left: all, where it did not end well."""
        threading.Thread(target=self._notice_end, name="rayguard-end", daemon=True).start()
        watch = self._manner.watch
        watched = watch.begin(self._leader, self._notice) if watch is not None else None
        try:
            while self._goes_on():
                pass
        finally:
            if watched is not None:
                watched.close()
        status = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        failed = (
            self._stopped is not None or status is None or status.si_status != 0 or self._manner.must_stay
        )
        left = left_by(self._leader)
        if failed and left:
            left = end(left, polite_s=min(_LEFT_S, self._manner.grace_s), force_s=_KILL_S)
        ending = Ending(self._process.wait())
        return Life(
            ending=ending,
            lasted_s=time.monotonic() - began,
            pid=self._process.pid,
            stopped=self._stopped or self._signals.late(),
            found=self._found,
            reader_gone=self._streams.reader_gone,
            left=tuple(one.pid for one in left),
        )

    def _notice_end(self) -> None:
        # Not waited for yet: until then its number, and its session's, is given to nobody else.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._signals.came.put(None)

    def _notice(self, found: NotServing) -> None:
        self._noticed = found
        self._signals.came.put(FOUND)

    def _goes_on(self) -> bool:
        """Wait for one signal, or the end; return False at the end."""
        now = time.monotonic()
        if now >= self._kill_at:
            self._kill()
        try:
            number = self._signals.next(min(_TICK_S, max(0.01, self._kill_at - now)))
        except queue.Empty:
            return True
        if number is None:
            return False
        self._pass_on(number)
        return True

    def _pass_on(self, number: int) -> None:
        if number == FOUND:
            self._end_helpless()
        elif number == signal.SIGWINCH:
            self._streams.resize()
            self._send(signal.SIGWINCH)
        elif number == signal.SIGTSTP:
            self._send(signal.SIGSTOP)  # a stop that may be ignored is, in a session without a terminal
            os.kill(os.getpid(), signal.SIGSTOP)
            self._send(signal.SIGCONT)
        elif number in PASSED_ON:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, number)  # not send_signal, which may wait for it
        elif number in ENDING:
            self._end(number)

    def _end(self, number: int) -> None:
        self._interrupts += number == signal.SIGINT
        if self._stopped is None:
            self._stopped = number
            self._kill_at = time.monotonic() + self._manner.grace_s
            name = signal.Signals(number).name
            self._manner.say(
                f"{name} is passed on; what runs in {self._manner.grace_s:g} s is killed (Ctrl-C again: now)"
            )
        if self._interrupts > 1:
            self._kill()
        else:
            self._send(number)

    def _end_helpless(self) -> None:
        if self._noticed is None or self._stopped is not None:  # of the life before; or it ends already
            return
        self._found = self._noticed
        self._manner.say(f"{self._found.cause}: it is ended")
        self._kill_at = time.monotonic() + min(_HELPLESS_S, self._manner.grace_s)
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _kill(self) -> None:
        self._kill_at = float("inf")
        end((self._leader, *left_by(self._leader)), polite_s=0, force_s=_KILL_S)
