"""What processes hold outside of themselves, shared memory above all; and who holds a file now.

Reads the kernel's tables. What of it was noted is ``belongings``, what it means is ``verdict``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import signal
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from rayguard.process.cleanup.verdict import Shape, Sort, made_up
from rayguard.process.identity import ProcessId, open_files

if TYPE_CHECKING:
    from collections.abc import Iterable


SHM = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
_PROC = Path("/proc")
_LISTENS = 0x10000  # __SO_ACCEPTCON in /proc/net/unix
_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000  # linux/fcntl.h
_STATX_BTIME, _STATX_BYTES = 0x800, 256  # linux/stat.h
_F_SETSIG = 10  # Linux; not in Python's fcntl
# A sockaddr_in, as gloo writes the addresses of an engine's workers into their FileStore.
_ADDRESS = re.compile(rb"\x02\x00(..)[\x00-\xff]{4}\x00{8}", re.DOTALL)
_MAX_STORE_BYTES = 1 << 20


def shape(found: os.stat_result, born_ns: int = 0) -> Shape:
    """Return which file it is."""
    return Shape(
        device=found.st_dev,
        inode=found.st_ino,
        changed_ns=found.st_ctime_ns,
        user=found.st_uid,
        born_ns=born_ns,
        mode=found.st_mode,
        size=found.st_size,
    )


def born_ns(name: str = "", *, folder: int = _AT_FDCWD, file: int | None = None) -> int:
    """Return when a file was made: one in an open ``folder``, or an open ``file``; 0: nobody knows."""
    flags = _AT_SYMLINK_NOFOLLOW if file is None else _AT_EMPTY_PATH
    read = ctypes.create_string_buffer(_STATX_BYTES)
    with contextlib.suppress(AttributeError):  # a C library without it
        at, text = (folder, os.fsencode(name)) if file is None else (file, b"")
        if _libc.statx(at, text, flags, _STATX_BTIME, read) == 0:
            (mask,) = struct.unpack_from("I", read, 0)
            seconds, fraction = struct.unpack_from("qI", read, 80)
            return int(seconds) * 10**9 + int(fraction) if mask & _STATX_BTIME else 0
    return 0


def mapped_segments(process: ProcessId, directory: Path = SHM) -> list[Path]:
    """Return the segments with made-up names that ``process`` maps; raises ``OSError`` if that is hidden.

    By inode: the kernel shows a semaphore by the name that glibc gave it first ("sem.x (deleted)").
    """
    device = directory.stat().st_dev
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}"
    inodes: set[int] = set()
    with (_PROC / str(process.pid) / "maps").open("rb") as maps:
        for line in maps:
            fields = line.split(None, 5)
            if fields[3].decode() == wanted:
                inodes.add(int(fields[4]))
    if not inodes:
        return []
    with os.scandir(directory) as entries:
        return [Path(e.path) for e in entries if e.inode() in inodes and made_up(Sort.SEGMENT, e.name)]


def bound_sockets(process: ProcessId) -> list[Path]:
    """Return the files of the listening sockets of ``process`` with made-up names; raises ``OSError``."""
    own = _PROC / str(process.pid)
    listening: dict[str, Path] = {}
    for line in (own / "net/unix").read_text(errors="surrogateescape").splitlines()[1:]:
        fields = line.split(None, 7)
        if len(fields) == 8 and int(fields[3], 16) & _LISTENS and made_up(Sort.SOCKET, Path(fields[7]).name):  # noqa: PLR2004 - the table's columns
            listening[f"socket:[{fields[6]}]"] = Path(fields[7])
    if not listening:
        return []
    return sorted({listening[shown] for _, shown in open_files(process.pid) if shown in listening})


def rendezvous_files(processes: Iterable[ProcessId], directory: Path) -> list[Path]:
    """Return the files in ``directory`` through which the workers among ``processes`` found each other.

    Nothing holds such a file open. But it lists the addresses on which its workers listen, a dozen ports: it
    is theirs when they listen on every one of them now.
    """
    ports = {port for process in processes for port in listening_ports(process)}
    if not ports:
        return []
    with os.scandir(directory) as entries:
        candidates = [Path(e.path) for e in entries if made_up(Sort.RENDEZVOUS, e.name)]
    return [path for path in candidates if (named := _ports_in(path)) and named <= ports]


def listening_ports(process: ProcessId) -> tuple[int, ...]:
    """Return the TCP ports on which ``process`` listens; none when it may not be asked."""
    try:
        connections = psutil.Process(process.pid).net_connections("tcp")
    except (psutil.Error, OSError):
        return ()
    return tuple(sorted({c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}))


def _ports_in(path: Path) -> set[int]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return set()
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return set()
        found = _ADDRESS.findall(opened.read(_MAX_STORE_BYTES))
    return {struct.unpack(">H", port)[0] for port in found}


def held(file: int) -> bool | None:
    """Say whether anybody else has the open file ``file`` open or mapped; None when the kernel does not say.

    Asked by a write lease, which the kernel grants to who is alone: it counts every process of every user and
    container, and descriptors that are on their way through a socket, which ``/proc`` cannot show. Taken in
    17 us; given back at once.
    """
    try:
        # Should somebody open it just now, the kernel tells us by a signal: not by SIGIO, which would end us.
        fcntl.fcntl(file, _F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    return False


def listened_to(path: str) -> bool | None:
    """Say whether any process has the socket at ``path`` bound; None when the kernel does not say.

    Asked with the wrong type of socket: a living server is not disturbed by it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError as error:
            return True if error.errno == errno.EPROTOTYPE else None
    return True


def holders(wanted: Shape) -> tuple[int, ...]:
    """Return the pids that can be seen to have the file open or mapped: for people, not a proof."""
    return tuple(pid for pid in psutil.pids() if _holds(pid, wanted))


def _holds(pid: int, wanted: Shape) -> bool:
    device = f" {os.major(wanted.device):02x}:{os.minor(wanted.device):02x} {wanted.inode} "
    with contextlib.suppress(OSError):
        maps = (_PROC / str(pid) / "maps").read_bytes()
        if re.search(re.escape(device.encode()), maps):
            return True
        for fd in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                found = fd.stat()
                if (found.st_dev, found.st_ino) == (wanted.device, wanted.inode):
                    return True
    return False
