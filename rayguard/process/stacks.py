"""Where the threads of another process stand: Python stacks, and what the kernel says where there are none.

Two ways, neither of which stops the process: ``py-spy`` where it is installed and may read (it also reads
stopped processes), else ``faulthandler`` inside the process, if that was registered there (``register``)
and the process can run a signal handler. ``read_stacks`` never touches a process that does not carry the
mark, and a signal is only sent where the kernel says that it is caught: its default would kill.

What the stacks tell is decided in ``rayguard.engine.hangs.culprit``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rayguard.process.deaths import held_pidfd
from rayguard.process.identity import ProcessId, open_files, owned_by

if TYPE_CHECKING:
    from collections.abc import Sequence

# Not SIGUSR1 or SIGUSR2: Slurm, torchrun, Ray Tune and people use those. Nothing we know uses this one.
DUMP_SIGNAL = getattr(signal, "SIGRTMAX", 64) - 5
MAX_PROCESSES = 16
MAX_THREADS = 64
MAX_FRAMES = 40
MAX_DUMP_BYTES = 256 * 1024
_QUIET_S = 0.05  # a dump that has not grown for so long is whole: it has no last line
_CHECK_S = 0.01
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[([^\]]*)\])? \(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')


@dataclass(frozen=True, slots=True)
class CodePlace:
    """One frame."""

    function: str
    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.function} ({'/'.join(self.file.split('/')[-3:])}:{self.line})"


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread, innermost frame first."""

    name: str
    places: tuple[CodePlace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What was found out about one process. ``threads`` is empty where nobody could read them."""

    pid: int
    state: str = ""
    waits_in: str = ""  # the kernel function it sleeps in
    threads: tuple[Thread, ...] = ()
    by: str = ""  # who read them


_files: list[IO[bytes]] = []  # faulthandler knows only the descriptor: it must stay open


def register() -> bool:
    """Have this process write its stacks to memory of its own at ``DUMP_SIGNAL``; say whether it can.

    Who asks reads them through ``/proc``, so nothing stays behind when the process dies. Not where somebody
    else uses the signal. A child that was forked is not asked until it registers too.
    """
    try:
        if not _files and _catches(os.getpid()):
            return False
        file = os.fdopen(os.memfd_create(_name(os.getpid())), "wb", buffering=0)
        # What was read is cut away: the next dump must begin where the file does.
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
        faulthandler.register(DUMP_SIGNAL, file=file, all_threads=True)
    except (AttributeError, OSError, RuntimeError):  # an old kernel, or one that keeps the signal for itself
        return False
    for before in _files:  # of an earlier call, or the parent's: nothing writes to it here any more
        before.close()
    _files[:] = [file]
    return True


def _name(pid: int) -> str:
    return f"rayguard-{pid}.stack"


def read_stacks(processes: Sequence[ProcessId], *, mark: str, deadline_s: float) -> tuple[Stack, ...]:
    """Return what can be found out about ``processes`` in time, in their order."""
    return _read([p for p in processes[:MAX_PROCESSES] if p.alive() and owned_by(p, mark)], deadline_s)


def look(process: ProcessId, *, deadline_s: float) -> Stack:
    """Return what can be found out about a process that need not carry a mark; it must be of our user.

    Both ways leave it as it is: ``py-spy`` only reads, and the signal is sent only where it is caught.
    """
    return _read([process], deadline_s)[0]


def _read(processes: Sequence[ProcessId], deadline_s: float) -> tuple[Stack, ...]:
    until = time.monotonic() + deadline_s
    read = _by_py_spy(processes, until)
    left = [p for p in processes if p.pid not in read and p.state() not in {"T", "t", "D"}]
    dumped = _by_faulthandler(left, until)
    return tuple(_seen(p, read.get(p.pid, ()), dumped.get(p.pid, ())) for p in processes)


def _seen(process: ProcessId, read: tuple[Thread, ...], dumped: tuple[Thread, ...]) -> Stack:
    return Stack(
        pid=process.pid,
        state=process.state(),
        waits_in=_waits_in(process.pid),
        threads=read or dumped,
        by="py-spy" if read else "faulthandler" if dumped else "",
    )


def _waits_in(pid: int) -> str:
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii", errors="replace")
        return "" if name == "0" else name[:80]
    return ""


# -- py-spy


def _py_spy() -> str | None:
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _by_py_spy(processes: Sequence[ProcessId], until: float) -> dict[int, tuple[Thread, ...]]:
    program = _py_spy()
    if program is None or not processes:
        return {}
    # Non-blocking: it reads the memory and never stops the process, so it cannot leave one stopped either.
    command = [program, "dump", "--nonblocking", "--json", "--pid"]
    spies: dict[int, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as ends:
        for process in processes:
            with contextlib.suppress(OSError):
                spy = subprocess.Popen(
                    [*command, str(process.pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
                ends.callback(_end, spy)
                spies[process.pid] = spy
        read = {pid: _printed(spy, until) for pid, spy in spies.items()}
    return {pid: threads for pid, threads in read.items() if threads}


def _printed(spy: subprocess.Popen[bytes], until: float) -> tuple[Thread, ...]:
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError, OSError):
        said, _ = spy.communicate(timeout=max(0.0, until - time.monotonic()))
        return from_py_spy(said.decode(errors="replace")) if spy.returncode == 0 else ()
    return ()


def _end(spy: subprocess.Popen[bytes]) -> None:
    if spy.poll() is None:
        spy.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            spy.wait(1.0)
    if spy.stdout is not None:
        spy.stdout.close()


def from_py_spy(text: str) -> tuple[Thread, ...]:
    """Return the threads in what ``py-spy dump --json`` printed.

    Raises:
        ValueError: It is nothing that py-spy prints.
    """
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError("py-spy prints a list of threads")  # noqa: TRY004 - one error for any wrong text
    return tuple(_thread(one) for one in found[:MAX_THREADS] if isinstance(one, dict))


def _thread(one: dict[str, Any]) -> Thread:
    frames = [frame for frame in one.get("frames") or () if isinstance(frame, dict)]
    places = (
        # 0.4 prints the class too: ``Thread.run``
        CodePlace(str(f.get("name")).rpartition(".")[2], str(f.get("filename")), int(f.get("line") or 0))
        for f in frames[:MAX_FRAMES]
    )
    return Thread(str(one.get("thread_name") or ""), tuple(places))


# -- faulthandler


def _by_faulthandler(processes: Sequence[ProcessId], until: float) -> dict[int, tuple[Thread, ...]]:
    files = {p: path for p in processes if (path := _dump_file(p.pid)) is not None}
    asked = {p: path for p, path in files.items() if _ask(p, path)}
    pause, sizes = threading.Event(), dict.fromkeys(asked.values(), 0)
    grown_at = time.monotonic()
    while asked and time.monotonic() < until:
        now = {path: _size(path) for path in sizes}
        if now != sizes:
            sizes, grown_at = now, time.monotonic()
        elif all(sizes.values()) and time.monotonic() - grown_at >= _QUIET_S:
            break
        pause.wait(_CHECK_S)
    return {p.pid: from_faulthandler(_head(path)) for p, path in asked.items() if sizes[path]}


def _dump_file(pid: int) -> Path | None:
    """Return where the memory that the process holds open for its stacks is found, if it registered."""
    with contextlib.suppress(OSError):
        return next((fd for fd, shown in open_files(pid) if shown.startswith(f"/memfd:{_name(pid)}")), None)
    return None


def _ask(process: ProcessId, path: Path) -> bool:
    """Send the signal, if it is certain that this process catches it and that nobody else gets it."""
    with contextlib.suppress(OSError), held_pidfd(process) as fd:
        if fd is not None and _catches(process.pid):  # asked after the open: it is this very one
            os.truncate(path, 0)
            signal.pidfd_send_signal(fd, DUMP_SIGNAL)
            return True
    return False


def _catches(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (DUMP_SIGNAL - 1) & 1)


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _head(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as dump:
        return dump.read(MAX_DUMP_BYTES).decode(errors="replace")
    return ""


def from_faulthandler(text: str) -> tuple[Thread, ...]:
    """Return the threads in what ``faulthandler`` wrote; it does not name them before Python 3.14."""
    threads: list[Thread] = []
    for line in text.splitlines():
        if began := _THREAD.match(line):
            threads.append(Thread(began[1] or "", ()))
        elif threads and (frame := _FRAME.match(line)) and len(threads[-1].places) < MAX_FRAMES:
            number = int(frame[2]) if frame[2].isdecimal() else 0
            place = CodePlace(frame[3].rpartition(".")[2], frame[1], number)
            threads[-1] = Thread(threads[-1].name, (*threads[-1].places, place))
    return tuple(threads[:MAX_THREADS])
