"""Forking a process that has the same parent: Ray's workers are children of their raylet."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

_CLONE3, _PARENT, _SET_TID, _CLEAR_TID = 435, 0x00008000, 0x01000000, 0x00200000
_THREAD_BYTES = 1024  # within these the C library keeps a thread's id


def sibling() -> int:
    """Fork; return as ``os.fork``.

    Raises:
        OSError: It cannot be, and nothing was forked.
    """
    try:
        libc, python = ctypes.PyDLL(None), ctypes.pythonapi
        libc.pthread_self.restype = ctypes.c_void_p
    except AttributeError as error:
        raise OSError("another C library than is known here") from error
    thread, tid = libc.pthread_self(), threading.get_native_id()
    # Where the C library keeps the thread's id, which ``fork`` would write anew.
    places = range(thread, thread + _THREAD_BYTES, 4)
    found = [at for at in places if ctypes.c_int.from_address(at).value == tid]
    if len(found) != 1:
        raise OSError("another C library than is known here")
    order = (ctypes.c_uint64 * 8)(_PARENT | _SET_TID | _CLEAR_TID, 0, *found)
    python.PyOS_BeforeFork()
    pid: int = libc.syscall(_CLONE3, ctypes.byref(order), ctypes.c_size_t(ctypes.sizeof(order)))
    if pid == 0:
        python.PyOS_AfterFork_Child()
        with contextlib.suppress(KeyError):  # Python 3.11 leaves the parent's
            vars(threading.Thread)["_set_native_id"](threading.main_thread())
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()) or "clone3")
    return pid
