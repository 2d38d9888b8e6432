"""One rank's part in one generation of a gang: its process group, and the way out of a collective.

A generation meets in the gang's store under a prefix of its own, so a straggler of an old one meets nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rayguard.trainers.gang.orders import GENERATION
from rayguard.trainers.group_sockets import GroupSockets, open_ends

if TYPE_CHECKING:
    from rayguard.trainers.gang.rank_group import JoinOrder
    from rayguard.trainers.group_sockets import Ends

_POLL_S = 0.005
_COLLECTIVE = timedelta(days=7)  # the gang itself says when a collective is over


class GangBrokenError(RuntimeError):
    """This rank was taken out of what it did, because another one went: told to the gang, never to a user."""


class RankGeneration:
    """A process group of one generation. ``cut`` may come from any thread, the rest from the main one."""

    def __init__(self, order: JoinOrder, store: Any) -> None:
        from torch.distributed import PrefixStore  # noqa: PLC0415 - loaded by now

        self.number, self.is_cut = order.generation, False
        self._order = order
        self._store = PrefixStore(f"{GENERATION}/{order.generation}", store)
        self._until = time.monotonic() + order.meet_s
        self._met = 0
        self._lock = threading.Lock()
        self._sockets = GroupSockets(())
        self._before = open_ends()
        self._excepthook = sys.excepthook

    def join(self) -> None:
        """Make the default process group, with all ranks.

        Raises:
            GangBrokenError: The gang was cut meanwhile, or a rank did not come.
            Exception: What torch raised.
        """
        import torch.distributed as dist  # noqa: PLC0415 - loaded by now

        order = self._order
        os.environ.update(
            RANK=str(order.rank), WORLD_SIZE=str(order.size), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1"
        )
        self._meet([])  # first: who waits for a rank within torch cannot be told that it is gone
        dist.init_process_group(
            order.backend, store=self._store, rank=order.rank, world_size=order.size, timeout=_COLLECTIVE
        )
        self.find_sockets()

    def find_sockets(self) -> None:
        """Find the sockets of all groups made since the generation began; each rank calls this.

        Raises:
            GangBrokenError: As ``join``.
        """
        found = GroupSockets.of(self._before, self._meet)
        with self._lock:
            before, self._sockets = self._sockets, found
        before.close()
        if self.is_cut:
            raise GangBrokenError("the gang was cut as this rank joined")

    def cut(self) -> bool:
        """Take the main thread out of the collective that it stands in, and let it enter no other."""
        with self._lock:
            self.is_cut = True
            self._sockets.cut()
        if self._order.backend != "gloo":
            import torch.distributed as dist  # noqa: PLC0415 - loaded by now

            with contextlib.suppress(Exception):  # gloo's part of it knows no abort
                dist.group.WORLD.abort()
        return True

    def leave(self) -> None:
        """Leave the group; whoever is in it has been taken out."""
        import torch.distributed as dist  # noqa: PLC0415 - loaded by now

        self.cut()
        with self._lock:
            self._sockets.close()
        sys.excepthook = self._excepthook  # each group that is made hangs another one before it, for ever
        if dist.is_initialized():
            with contextlib.suppress(Exception):  # a broken group: there is no way to part in peace
                dist.destroy_process_group()

    def _meet(self, mine: list[Ends]) -> list[list[Ends]]:
        """Hand something to all ranks and return everybody's; polls, so that a cut is seen."""
        self._met += 1
        keys = [f"met/{self._met}/{rank}" for rank in range(self._order.size)]
        self._store.set(keys[self._order.rank], json.dumps(mine))
        while not self._store.check(keys):
            if self.is_cut:
                raise GangBrokenError("the gang was cut as this rank joined")
            if time.monotonic() > self._until:
                raise GangBrokenError(f"not all ranks came within {self._order.meet_s:.0f} s")
            threading.Event().wait(_POLL_S)
        found = (json.loads(self._store.get(key)) for key in keys)
        return [[_ends(one) for one in theirs] for theirs in found]


def _ends(listed: list[list[Any]]) -> Ends:
    near, far = listed
    return (near[0], near[1]), (far[0], far[1])
