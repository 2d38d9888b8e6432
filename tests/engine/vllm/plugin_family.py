"""A program with vLLM's process tree and names, without vLLM: owner, engine core, worker.

Run as ``python plugin_family.py REPORT CORE_START WORKER_START WHAT``. Each process appends what it is to
the file REPORT, one JSON line each. A forked worker does not load plugins again, as in vLLM.
"""

import ctypes
import json
import logging
import logging.config
import multiprocessing
import os
import sys
import threading
from pathlib import Path

from rayguard.engine.vllm import plugin
from rayguard.engine.vllm.adoption import ties
from rayguard.process.identity import OWNER_ENV, ProcessId, owner_mark, owner_of

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"null": {"class": "logging.NullHandler"}},
    "loggers": {"vllm": {"handlers": ["null"], "propagate": False}},
}
FOR_EVER = threading.Event()
seen_by_receiver = []


def receiver():
    """Stand in for what would import the real vLLM."""
    seen_by_receiver.append(bool(ties._of_this_process))


plugin.install_receiver = receiver  # at import: spawned processes import this file too


def death_signal():
    held = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(held), 0, 0, 0)
    return held.value


def report(path, **more):
    line = {
        "name": multiprocessing.current_process().name,
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "death_signal": death_signal(),
        "threads": [t.name for t in threading.enumerate()],
        "tied_before_receiver": seen_by_receiver,
        "handlers": [type(h).__name__ for h in logging.getLogger("vllm").handlers],
        **more,
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def fail(text):
    try:
        raise ValueError(text)  # noqa: TRY301 - it must have a traceback
    except ValueError:
        logging.getLogger("vllm.v1.engine").exception("%s encountered a fatal error.", text)


def worker(path, start, what):
    logging.config.dictConfig(LOGGING)  # vLLM's worker_main does, before it loads plugins
    if start == "spawn":
        plugin.install()
    fail("worker")
    report(path)
    FOR_EVER.wait()


def lose_a_thread(module):
    space = {"__name__": module}
    exec("def run():\n    raise ValueError('it is gone')", space)
    thread = threading.Thread(target=space["run"])
    thread.start()
    thread.join()


def core(path, start, what):
    logging.config.dictConfig(LOGGING)
    if what == "late":  # the owner dies while the core still imports
        owner = owner_of(os.environ[OWNER_ENV])
        report(path)
        while owner.alive():
            FOR_EVER.wait(0.02)
        plugin.DeathWatch.watch = lambda *_: None  # its thread's word comes too late
    plugin.install()
    plugin.install()
    fail("core")
    report(path, records=os.environ.get("RAYGUARD_RECORDS"))
    if what.startswith("thread of "):
        lose_a_thread(what.removeprefix("thread of "))
        report(path)
    if what != "late":
        child = multiprocessing.get_context(start).Process(
            target=worker, args=(path, start, what), name="VllmWorker-0", daemon=True
        )
        child.start()
    FOR_EVER.wait()


def helper(path, *_):
    plugin.install()
    fail("helper")
    report(path)


def own(path, core_start, worker_start, what):
    if what != "stranger":
        os.environ[OWNER_ENV] = owner_mark(ProcessId.me())
    plugin.install()
    fail("owner")
    report(path)
    target, name = (helper, None) if what == "helper" else (core, "EngineCore")
    process = multiprocessing.get_context(core_start).Process(
        target=target, args=(path, worker_start, what), name=name
    )
    # From a thread that ends, as a rebuild does.
    starter = threading.Thread(target=process.start)
    starter.start()
    starter.join()
    FOR_EVER.wait()


if __name__ == "__main__":
    own(Path(sys.argv[1]), *sys.argv[2:])
