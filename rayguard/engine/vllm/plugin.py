"""rayguard inside vLLM's own processes.

Exceptions to disk, no process that outlives its owner; what ``receiver``, ``exact`` and ``numbers`` put in.

vLLM loads ``install`` (entry point group ``vllm.general_plugins``) in the process that owns the engine,
in the engine core and in each worker. It does nothing at all unless the owner has set ``RAYGUARD_RECORDS``;
and whatever goes wrong in it is logged and left at that.

It does not handle death by signal, which leaves no record here: the engine core logs its worker's exit
code, the owner sees the core's. Ending processes on purpose is ``rayguard.process.tree``.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import multiprocessing.util
import os
import signal
import threading
from typing import TYPE_CHECKING, NoReturn

import psutil

from rayguard.engine.deadline import bounded
from rayguard.engine.error_records import RECORDS_ENV, RecordingHandler, RecordWriter
from rayguard.engine.vllm.exact import installer
from rayguard.engine.vllm.numbers import worker as numbers
from rayguard.engine.vllm.receiver import install_receiver
from rayguard.faults.fault import Role
from rayguard.home import home
from rayguard.process import stacks
from rayguard.process.cleanup import belongings
from rayguard.process.deaths import DeathWatch
from rayguard.process.identity import OWNER_ENV, ProcessId, claim, owner_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_log = logging.getLogger("rayguard")
_ENGINE_THREADS = ("vllm.v1.", "vllm.distributed.")  # not those that report usage or traces
_PR_SET_PDEATHSIG = 1
_TIDY_S = 5.0  # milliseconds, but for a home that hangs or a machine that is overrun
_ROLES = {"EngineCore": Role.ENGINE_CORE, "VllmWorker": Role.ENGINE_WORKER}  # by multiprocessing's name


class _Installed:
    """What this process has set up. Its ``pid`` tells a forked child that it has nothing yet."""

    def __init__(self) -> None:
        self.pid = 0
        self.handler: RecordingHandler | None = None
        self.excepthook: Callable[[threading.ExceptHookArgs], object] = threading.__excepthook__
        self.deaths: DeathWatch | None = None
        self.claim = -1


_installed = _Installed()


def install() -> None:
    """Set this process up, once; does nothing without ``RAYGUARD_RECORDS``, and never raises."""
    try:
        directory = os.environ.get(RECORDS_ENV)
        if directory and _installed.pid != os.getpid():
            _install(directory)
    except Exception:  # noqa: BLE001 - a user's engine starts here: without us it must start as it would
        _log.exception("rayguard could not set itself up in the vLLM process %d", os.getpid())


def _install(directory: str) -> None:
    if _installed.pid == 0:
        # vLLM forks workers from a core (and, on CUDA, cores from the owner) and does not load plugins
        # again there. Not os.register_at_fork: that runs before the child knows its name and parent.
        multiprocessing.util.register_after_fork(_installed, lambda _: install())
    _installed.pid = os.getpid()
    role = _role()
    mark = os.environ.get(OWNER_ENV, "")
    owner = owner_of(mark)
    if role is None or owner == ProcessId.me():
        return
    if owner is not None and role is Role.ENGINE_CORE and _maker() not in {owner.pid, None}:
        # The core of another program, which inherited our owner's environment. Its workers ask here too.
        del os.environ[RECORDS_ENV]
        return
    _record(directory, role)
    _end_with_its_threads()
    stacks.register()
    if owner is None:
        _log.warning("%s=%r names no process: this engine process is not tied to it", OWNER_ENV, mark)
    else:
        _installed.claim = claim(mark)
        _tie(owner)
    inside = installer.inside_an_engine()
    install_receiver()  # late: it may import for seconds, in which the owner may die
    if inside:
        installer.install()
        numbers.install()


def _role() -> Role | None:
    """Return what vLLM started this process for; None in the owner and in helpers of any kind."""
    name = multiprocessing.current_process().name
    return next((role for prefix, role in _ROLES.items() if name.startswith(prefix)), None)


def _maker() -> int | None:
    """Return the pid of who made this process; not always its parent, which may be a prefork server."""
    maker = multiprocessing.parent_process()
    return None if maker is None else maker.pid


def _record(directory: str, role: Role) -> None:
    writer = RecordWriter(directory, role, os.getpid())
    if _installed.handler is not None:  # inherited through a fork, and still in its place
        _installed.handler.writer = writer
        return
    _installed.handler = RecordingHandler(writer)
    _keep_first(logging.getLogger("vllm"), _installed.handler)


def _end_with_its_threads() -> None:
    """Let this process end when a thread of vLLM's does with an exception: the others would wait for it.

    A core whose thread that sends or reads is gone computes on and is heard no more; nothing else tells.
    """
    if threading.excepthook is not _thread_ended:
        _installed.excepthook = threading.excepthook
        threading.excepthook = _thread_ended


def _thread_ended(args: threading.ExceptHookArgs) -> None:
    """Do as before us, and end the process where it cannot go on."""
    tells = args.exc_value is not None and not isinstance(args.exc_value, SystemExit)  # as `threading` has it
    ends = tells and _of_the_engine(args.exc_traceback)
    try:
        if ends and _installed.handler is not None:
            name = "a thread" if args.thread is None else f"the thread {args.thread.name}"
            _installed.handler.writer.write(f"{name} of the engine ended with an exception", args.exc_value)
        _installed.excepthook(args)
    finally:
        if ends:
            os._exit(1)


def _of_the_engine(traceback: TracebackType | None) -> bool:
    """Say whether the thread's own function is one that vLLM's engine needs."""
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") == threading.__name__:
        traceback = traceback.tb_next
    where = "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__"))
    return where.startswith(_ENGINE_THREADS)


def _keep_first(logger: logging.Logger, handler: logging.Handler) -> None:
    """Make ``handler`` the first of ``logger``, for good.

    First, because vLLM's own writes to a pipe that may be full. For good, because a forked worker calls
    ``dictConfig`` (its ``worker_main`` does) after we were installed, and that takes off all handlers
    that it does not name.
    """
    logger.handlers.insert(0, handler)
    take_off = logger.removeHandler

    def remove_handler(hdlr: logging.Handler) -> None:
        if hdlr is not handler:
            take_off(hdlr)

    logger.removeHandler = remove_handler  # type: ignore[method-assign]


def _tie(owner: ProcessId) -> None:
    """End this process when its owner, its maker or its parent ends."""
    parent = os.getppid()
    if _starts_from_main_thread(parent, owner):
        _arm_death_signal()
    _installed.deaths = DeathWatch("rayguard-tie")
    for pid in {owner.pid, _maker() or owner.pid, parent}:
        tie = owner if pid == owner.pid else ProcessId.of(pid)
        # One who began after us has the pid of someone who died before we looked.
        if tie is None or tie.started > ProcessId.me().started:
            _exit(owner)
        _installed.deaths.watch(tie, _exit)
        if not tie.alive():  # dead already: the watch's thread tells us too, but later than what comes next
            _exit(owner)
    if os.getppid() != parent:  # it died before the death signal was armed
        _exit(owner)


def _starts_from_main_thread(parent: int, owner: ProcessId) -> bool:
    """Say whether the death signal can be armed: it comes when the parent's *thread* that forked us ends.

    A core forks workers, and a prefork server (a child of the owner that is not our maker) forks cores,
    from the main thread. An owner starts engines from any thread, its rebuild thread above all, which
    ends when the engine is up: the signal would kill each rebuilt engine at once.
    """
    if parent == owner.pid:
        return False
    if parent == _maker():
        return True
    try:
        return psutil.Process(parent).ppid() == owner.pid
    except psutil.Error:
        return False


def _arm_death_signal() -> None:
    """Ask for SIGKILL with the parent's end: ends us even when native code never lets a thread run."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        _log.warning("no death signal for process %d: errno %d", os.getpid(), ctypes.get_errno())


def _exit(_: ProcessId) -> NoReturn:
    """End at once: nobody is left to answer, and a clean shutdown may wait for the dead."""
    with contextlib.suppress(Exception):
        owner = owner_of(os.environ.get(OWNER_ENV, ""))
        if owner is not None and not owner.alive():  # else it tidies up itself
            bounded(lambda: belongings.unlink_own(owner, home()), _TIDY_S)
    os._exit(1)
