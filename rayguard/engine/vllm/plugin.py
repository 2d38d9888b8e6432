"""rayguard inside vLLM's own processes.

Exceptions to disk; no process that outlives its owner, but for a core that waits for an heir (``adoption``);
what ``receiver``, ``exact`` and ``numbers`` put in.

vLLM loads ``install`` (entry point group ``vllm.general_plugins``) in the process that owns the engine,
in the engine core and in each worker. It does nothing at all unless the owner has set ``RAYGUARD_RECORDS``;
and whatever goes wrong in it is logged and left at that.

It does not handle death by signal, which leaves no record here: the engine core logs its worker's exit
code, the owner sees the core's. Ending processes on purpose is ``rayguard.process.tree``.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.util
import os
import threading
from typing import TYPE_CHECKING

from rayguard.engine.error_records import RECORDS_ENV
from rayguard.engine.vllm.adoption import records, take_over, ties
from rayguard.engine.vllm.exact import installer
from rayguard.engine.vllm.numbers import worker as numbers
from rayguard.engine.vllm.receiver import install_receiver
from rayguard.faults.fault import Role
from rayguard.process import stacks
from rayguard.process.identity import OWNER_ENV, ProcessId, owner_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_log = logging.getLogger("rayguard")
_ENGINE_THREADS = ("vllm.v1.", "vllm.distributed.")  # not those that report usage or traces
_ROLES = {"EngineCore": Role.ENGINE_CORE, "VllmWorker": Role.ENGINE_WORKER}  # by multiprocessing's name


class _Installed:
    """What this process has set up. Its ``pid`` tells a forked child that it has nothing yet."""

    def __init__(self) -> None:
        self.pid = 0
        self.excepthook: Callable[[threading.ExceptHookArgs], object] = threading.__excepthook__


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
    if owner is not None and role is Role.ENGINE_CORE and ties.maker() not in {owner.pid, None}:
        # The core of another program, which inherited our owner's environment. Its workers ask here too.
        del os.environ[RECORDS_ENV]
        return
    records.begin(directory, role)
    _end_with_its_threads()
    stacks.register()
    if owner is None:
        _log.warning("%s=%r names no process: this engine process is not tied to it", OWNER_ENV, mark)
    else:
        ties.tie(mark, owner, core=role is Role.ENGINE_CORE)
    inside = installer.inside_an_engine()
    install_receiver()  # late: it may import for seconds, in which the owner may die
    if inside:
        installer.install()
        numbers.install()
        if role is Role.ENGINE_CORE:
            take_over.install()


def _role() -> Role | None:
    """Return what vLLM started this process for; None in the owner and in helpers of any kind."""
    name = multiprocessing.current_process().name
    return next((role for prefix, role in _ROLES.items() if name.startswith(prefix)), None)


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
        if ends:
            name = "a thread" if args.thread is None else f"the thread {args.thread.name}"
            records.write(f"{name} of the engine ended with an exception", args.exc_value)
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
