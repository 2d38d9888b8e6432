"""Taking a rank out of a collective that will not end: the group's own sockets are cut.

On gloo nothing else does: torch's own ways to abort a group, shut it down or destroy it leave the waiter
where it is until the group's time-out, half an hour by default (torch 2.13, measured). Shutting the sockets
between the ranks gives it "Connection closed by peer" within a millisecond, on both ends.

Which sockets are the group's: connected TCP sockets that were not there before the group was made, and whose
far end another rank says is its own. So nothing of Ray's or of the user's is ever cut. They are kept as
duplicates: a number of a descriptor may be another file a moment later.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Ends = tuple[tuple[str, int], tuple[str, int]]  # near and far, each an address and a port

_DESCRIPTORS = "/proc/self/fd"


class GroupSockets:
    """The sockets of one process group; for one generation of a gang.

    Usage: ``before = open_ends()``, make the group, then ``GroupSockets.of(before, share)`` with a function
    that gathers a list from all ranks (``all_gather_object``). ``cut`` may come from any thread.
    """

    def __init__(self, descriptors: Iterable[int]) -> None:
        self._kept = [os.dup(one) for one in descriptors]

    @classmethod
    def of(cls, before: Iterable[Ends], share: Callable[[list[Ends]], Sequence[list[Ends]]]) -> GroupSockets:
        """Find the group's sockets, with the help of all ranks: each calls this.

        Args:
            before: What ``open_ends`` said before the group was made.
            share: Hands a list to all ranks and returns everybody's, this rank's own among them.
        """
        known, now = set(before), open_ends()
        new = [ends for ends in now if ends not in known]
        held = cls(
            now[ends] for ends in new
        )  # before the others are waited for: a number may mean another then
        try:
            others = {near for theirs in share(new) for near, _ in theirs}
        except BaseException:
            held.close()
            raise
        others -= {near for near, _ in new}  # a connection of this process to itself is nobody else's
        for descriptor, ends in zip(list(held._kept), new, strict=True):
            if ends[1] not in others:
                held._kept.remove(descriptor)
                os.close(descriptor)
        return held

    def __len__(self) -> int:
        """Return how many there are: one for each other rank, where the group is a full mesh."""
        return len(self._kept)

    def cut(self) -> None:
        """End every transfer of the group, here and at the far ends. Harmless when done twice."""
        for descriptor in list(self._kept):
            with contextlib.suppress(OSError):  # closed at the far end already
                shared = socket.socket(fileno=os.dup(descriptor))
                try:
                    shared.shutdown(socket.SHUT_RDWR)
                finally:
                    shared.close()

    def close(self) -> None:
        """Let go of them: while they are kept, a far end does not see that this one was closed."""
        while self._kept:
            os.close(self._kept.pop())


def open_ends() -> dict[Ends, int]:
    """Return the connected TCP sockets of this process: both ends, and the descriptor."""
    found: dict[Ends, int] = {}
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - a path object for each is not needed
        with contextlib.suppress(OSError):  # closed meanwhile, not connected, no socket
            descriptor = int(name)
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                ends = _ends(descriptor)
                if ends is not None:
                    found[ends] = descriptor
    return found


def _ends(descriptor: int) -> Ends | None:
    one = socket.socket(fileno=os.dup(descriptor))
    try:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return None
        near, far = one.getsockname(), one.getpeername()
        return (_plain(near[0]), near[1]), (_plain(far[0]), far[1])
    finally:
        one.close()


def _plain(address: str) -> str:
    """Return an address as both ends write it."""
    return address.removeprefix("::ffff:").partition("%")[0]
