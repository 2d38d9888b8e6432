"""Files that look like leftovers, each with the one flaw that its name says, and some without."""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import threading
import uuid
from dataclasses import replace
from pathlib import Path

from rayguard.process.cleanup import belongings, shm
from rayguard.process.cleanup.belongings import Belonging, OwnerNote
from rayguard.process.cleanup.verdict import Shape, Sort
from rayguard.process.identity import ProcessId, owner_mark
from rayguard.process.pid_namespace import world
from tests.process.lookalike_cage import NOBODY, Alike, Cage, until


def shape_of(path) -> Shape:
    return shm.shape(os.lstat(path), shm.born_ns(str(path)))


class Files(Cage):
    """Makes the files, and the notes that their dead owners would have left of them."""

    def segment(self, name: str = "") -> Path:
        """Make a segment as ``multiprocessing.shared_memory`` does."""
        path = shm.SHM / (name or f"psm_{secrets.token_hex(4)}")
        path.write_bytes(b"x" * 4096)
        self._paths.append(path)
        return path

    def noted(self, path, *, sort=Sort.SEGMENT, owner=None, users=None, where=None, shape=None) -> Belonging:
        """Note ``path`` as its dead owner would have, but for what is given."""
        users = (self.used_by,) if users is None else users
        marks = tuple(one if isinstance(one, str) else owner_mark(one) for one in users)
        one = Belonging(sort=sort, path=str(path), shape=shape or shape_of(path), users=marks)
        key = (owner or self.dead, world() if where is None else where)
        self._notes.setdefault(key, []).append(one)
        return one

    def write_notes(self) -> None:
        """Put all notes where the reaper looks."""
        owners = {}
        for (owner, where), ours in self._notes.items():
            assert owners.setdefault(owner, where) == where, "one note for each owner"
            assert len(ours) <= 1_000, "more than a note holds"
            belongings.write(self.home, OwnerNote(owner=owner, world=where, belongings=tuple(ours)))

    def spare_file(self, kind: str, path: Path, **flaw) -> None:
        """Note a file that must be left alone."""
        self.noted(path, **flaw)
        self._expect(self.alikes, kind, path)

    def own_file(self, kind: str, path: Path, **more) -> None:
        """Note a file that must go."""
        self.noted(path, **more)
        self._expect(self.ours, kind, path)

    def _expect(self, where, kind, path):
        there = os.lstat(path)

        def still():
            try:
                return os.lstat(path).st_ino == there.st_ino
            except FileNotFoundError:
                return False

        where.append(Alike(kind, str(path), still))

    def flawed_files(self, count: int) -> None:
        """Make ``count`` files of each flaw that a file can have."""
        self._files_of_the_living(count)
        for path in self._mapped(count):
            self.spare_file("mapped by a living reader", path)
        for _ in range(count):
            self._held_files()
            self._other_files()
            self._other_kinds()

    def _files_of_the_living(self, count: int) -> None:
        living, stopped, headless = (
            ProcessId.me(),
            self.identity(self.stopped()),
            self.identity(self.headless()),
        )
        elsewhere = replace(self.dead, started=1)
        for _ in range(count):
            self.spare_file("its owner lives", self.segment(), owner=living)
            self.spare_file("its owner is stopped", self.segment(), owner=stopped)
            self.spare_file("its owner lost its first thread", self.segment(), owner=headless)
            self.spare_file("a user of it lives", self.segment(), users=(self.used_by, living))
            self.spare_file("a user of it is stopped", self.segment(), users=(stopped,))
            self.spare_file("users that are no processes", self.segment(), users=("nobody",))
            self.spare_file("nobody is known to have used it", self.segment(), users=())
            where = "another boot pid:[1] -"
            self.spare_file("of another boot or container", self.segment(), owner=elsewhere, where=where)

    def _held_files(self) -> None:
        path = self.segment()
        self._held.append(path.open("rb"))
        self.spare_file("open in a process that does not map it", path)
        self.spare_file("on its way through a socket", self._in_flight())
        self.spare_file("a socket that is listened to", self._listening(), sort=Sort.SOCKET)

    def _other_files(self) -> None:
        self._renamed()
        self._replaced()
        self._changed()
        path = self.segment()
        link = shm.SHM / f"{path.name}-kept"
        os.link(path, link)
        self._paths.append(link)
        self.spare_file("has a second name", path)
        self.spare_file("a name that a user chose", self.segment(f"my_dataset_{secrets.token_hex(4)}"))
        path = self.room / str(uuid.uuid4())
        path.write_bytes(b"a user's")
        self.spare_file("a file with a socket's name", path, sort=Sort.SOCKET)
        if os.geteuid() == 0:
            path = self.segment()
            os.chown(path, NOBODY, NOBODY)
            self.spare_file("another user's", path)

    def _changed(self) -> None:
        path = self.segment()
        before = shape_of(path)

        def changed():
            path.chmod(0o640)
            return shape_of(path) != before

        until(changed)
        self.spare_file("changed after it was noted", path, shape=before)

    def _stored_into(self, path: Path) -> None:
        """As an engine does at each step, after it was noted: tmpfs takes that for a change of the file."""
        before = os.lstat(path).st_ctime_ns
        for _ in range(50):  # another kernel may not
            with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as map_:
                map_[:1] = b"y"
            if os.lstat(path).st_ctime_ns != before:
                return
            threading.Event().wait(0.01)

    def own_files(self, count: int) -> None:
        """Make ``count`` files of each kind that is provably ours and dead."""
        zombie = self.identity(self.zombie())
        for number in range(count):
            self.own_file("a segment", self.segment())
            path = self.segment()
            self.own_file("a segment that was stored into through its map", path)
            self._stored_into(path)
            self.own_file("a semaphore", self.segment(f"sem.mp-{secrets.token_hex(4)}"))
            if number == 0:
                self.own_file("of an owner that is a zombie", self.segment(), owner=zombie)
            path = self.room / str(uuid.uuid4())
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
                server.listen()
            self.own_file("a socket", path, sort=Sort.SOCKET)
            path = self.room / f"vllm_dist_{uuid.uuid4().hex}"
            path.write_bytes(b"where ranks met")
            self.own_file("a rendezvous file", path, sort=Sort.RENDEZVOUS)

    def _mapped(self, count: int) -> list[Path]:
        """Return segments that a child maps, and has not open."""
        paths = [self.segment() for _ in range(count)]
        code = (
            "import mmap, os, sys, time\n"
            "held = []\n"
            "for path in sys.argv[1:]:\n"
            "    fd = os.open(path, os.O_RDONLY)\n"
            "    held.append(mmap.mmap(fd, 0, prot=mmap.PROT_READ))\n"
            "    os.close(fd)\n"
            "print('up', flush=True)\n"
            "time.sleep(600)\n"
        )
        self.python(code, *map(str, paths))
        return paths

    def _in_flight(self) -> Path:
        """Return a segment that only a message holds which nobody has received."""
        path = self.segment()
        here, there = socket.socketpair()
        fd = os.open(path, os.O_RDONLY)
        socket.send_fds(here, [b"x"], [fd])
        os.close(fd)
        self._held += [here, there]
        return path

    def _renamed(self) -> None:
        """Another file of a user is moved to the name that was noted."""
        path = self.segment()
        self.noted(path)
        other = shm.SHM / f"users_{secrets.token_hex(4)}"
        other.write_bytes(b"precious")
        other.rename(path)
        self._expect(self.alikes, "another file was renamed to its name", path)

    def _replaced(self) -> None:
        """The file that was noted is gone, and another one made with its name."""
        path = self.segment()
        self.noted(path)
        self._held.append(path.open("rb"))  # so that its inode is not given to the next one
        path.unlink()
        path.write_bytes(b"anew")
        self._expect(self.alikes, "made anew with the same name", path)

    def _other_kinds(self) -> None:
        target = self.room / secrets.token_hex(8)
        target.write_bytes(b"precious")
        makers = {
            "a symlink to a user's file": lambda path: path.symlink_to(target),
            "a directory": lambda path: path.mkdir(),
            "a pipe": os.mkfifo,
        }
        for kind, make in makers.items():
            path = shm.SHM / f"psm_{secrets.token_hex(4)}"
            make(path)
            self._paths.append(path)
            self.spare_file(kind, path)
        self._expect(self.alikes, "what a symlink in /dev/shm points at", target)

    def _listening(self) -> Path:
        path = self.room / str(uuid.uuid4())
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.listen()
        self._held.append(server)
        return path
