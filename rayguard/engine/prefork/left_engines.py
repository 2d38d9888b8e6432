"""What becomes of a prefork server, and of the engines that it has forked, when its owner is gone.

An engine that may outlive its owner is not tied to the server. Once the owner is dead it shows by its claim
that it waits for an heir; one that does not show it in time is stopped, or computes where no thread can run.
The server waits as long: the next life of its owner's actor takes it over, and has vLLM imported at once.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import time
from multiprocessing import reduction
from typing import TYPE_CHECKING

from rayguard.engine.prefork import child
from rayguard.process.deaths import ends
from rayguard.process.identity import OWNER_ENV, ProcessId, claim, claimed_marks, owner_mark, owner_of
from rayguard.process.tree import descendants, end

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("rayguard")
_EXITING_S = 0.5
_NOTICE_S = 2.0
_LOOK_S = 0.1
_ANSWER_S = 5.0
_MAX_BYTES = 4 << 20


class Owners:
    """Who owns the calling server, one after the other."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._mark = os.environ.get(OWNER_ENV, "")
        child.server_claims.append(claim(self._mark))

    def next_one(self, listener: int, report: Mapping[str, object]) -> int | None:
        """Return the alive pipe of the heir that asks within ``keep_s``; None where there will be none.

        Engines of an owner that lives are ended at once: it has let go of them.
        """
        owner = owner_of(self._mark)
        if owner is None or not ends(owner, soon_s=_EXITING_S):
            end(descendants(ProcessId.me()), polite_s=0.0)
            return None
        left_mark, began = self._mark, time.monotonic()
        self._belong_to(owner_mark(ProcessId.me()))  # who tidies up after the dead leaves it alone
        with socket.socket(fileno=os.dup(listener)) as door:
            door.settimeout(_ANSWER_S)
            while (waited_s := time.monotonic() - began) < self._keep_s:
                if select.select([door], [], [], _LOOK_S)[0]:
                    alive = self._handed_over(door, report)
                    if alive is not None:
                        return alive
                engines = descendants(ProcessId.me())
                if not engines:
                    break
                if waited_s > _NOTICE_S:
                    stuck = [one for one in engines if left_mark in _claims(one)]
                    if stuck:
                        pids = [one.pid for one in stuck]
                        _log.warning(
                            "rayguard: engines that do not notice their owner's death are ended: %s", pids
                        )
                    end(stuck, polite_s=0.0)
        return None

    def _handed_over(self, door: socket.socket, report: Mapping[str, object]) -> int | None:
        alive = -1
        try:
            with door.accept()[0] as heir:
                heir.settimeout(_ANSWER_S)
                mark = heir.recv(64).decode("ascii")
                if owner_of(mark) is None:
                    return None
                heir.sendall(b"1")
                (alive,) = reduction.recvfds(heir, 1)
                heir.sendall(json.dumps({**report, "pid": os.getpid()}).encode())
        except (OSError, EOFError, RuntimeError, ValueError):  # it died meanwhile
            if alive >= 0:
                os.close(alive)
            return None
        self._belong_to(mark)
        return alive

    def _belong_to(self, mark: str) -> None:
        before, self._mark = child.server_claims.pop(), mark
        child.server_claims.append(claim(mark))
        os.close(before)


def ask(address: str, alive: int) -> tuple[int, dict[str, object]]:
    """Become the owner of the server at ``address``; return its pid and its report.

    Raises:
        OSError, ValueError: It is not there, or has another owner.
    """
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(_ANSWER_S)
        server.connect(address)
        server.sendall(owner_mark(ProcessId.me()).encode())
        if server.recv(1) != b"1":
            raise OSError("the server has another owner")
        reduction.sendfds(server, [alive])
        said = b""
        while len(said) < _MAX_BYTES and (more := server.recv(1 << 16)):
            said += more
    report: dict[str, object] = json.loads(said)
    return int(str(report.pop("pid"))), report


def _claims(process: ProcessId) -> set[str]:
    try:
        return claimed_marks(process.pid) if process.alive() else set()
    except OSError:
        return set()
