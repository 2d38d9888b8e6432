"""Orders from a gang's owner to its ranks, which they follow while their main thread stands in a collective.

Over the TCPStore that the owner keeps for the gang's whole life, and that the ranks meet in: one key for an
order, one for an answer. A thread of each rank waits for the next key, in C++ and without the GIL: nothing is
polled.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rayguard.harmless import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_ROUND = timedelta(days=1)  # one wait of a rank, then it waits on; torch logs each that is over
_CONNECT_S = 60.0
_KEPT = 64  # orders that a rank may be behind
_POLL_S = 0.02
GENERATION = "generation"  # what the keys of one begin with
CUT, LOOK, END = "cut", "look", "end"  # leave the collective; say where you stand; follow no more orders


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where the owner's store listens; ``next_order`` is the first that a new rank has to follow."""

    host: str
    port: int
    next_order: int = 0

    def connect(self, timeout_s: float) -> Any:
        """Return a client of its own: a wait in one blocks whoever else uses it.

        Raises:
            RuntimeError: The store does not answer in time.
        """
        from torch.distributed import TCPStore  # noqa: PLC0415 - slow to load

        return TCPStore(
            self.host,
            self.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
        )


class Orders:
    """The owner's side; for one thread at a time."""

    def __init__(self, host: str) -> None:
        """Open the store on this node; ``host`` is how the ranks reach it."""
        from torch.distributed import TCPStore  # noqa: PLC0415 - slow to load

        self._host = host
        self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self._next = 0

    @property
    def address(self) -> StoreAddress:
        """Return what a new rank is told."""
        return StoreAddress(self._host, self.store.port, self._next)

    def give(self, do: str, **options: object) -> int:
        """Give an order to all ranks; return its number."""
        number, self._next = self._next, self._next + 1
        self.store.set(f"order/{number}", json.dumps({"do": do, **options}))
        if number >= _KEPT:
            self.store.delete_key(f"order/{number - _KEPT}")
        return number

    def forget_generation(self, number: int) -> None:
        """Remove what the ranks of an old generation have left in the store: its gang may live for weeks."""
        for key in self.store.list_keys():
            if key.startswith(f"{GENERATION}/{number}/"):
                self.store.delete_key(key)

    def answers(self, number: int, names: Iterable[str], *, deadline_s: float) -> dict[str, Any]:
        """Return what these ranks answered to an order in time, by name."""
        missing, found = set(names), dict[str, Any]()
        until = time.monotonic() + deadline_s
        while missing:
            for name in sorted(missing):
                key = f"answer/{number}/{name}"
                if self.store.check([key]):
                    found[name] = json.loads(self.store.get(key))
                    self.store.delete_key(key)
                    missing.discard(name)
            if not missing or time.monotonic() >= until:
                break
            threading.Event().wait(_POLL_S)
        return found


class OrderThread:
    """The rank's side: a thread that follows each order by ``acts``, and answers with what that returns."""

    def __init__(self, address: StoreAddress, name: str, acts: Mapping[str, Callable[..., object]]) -> None:
        self._address, self._name, self._acts = address, name, acts
        threading.Thread(target=self._run, name="rayguard-orders", daemon=True).start()

    def _run(self) -> None:
        with harmless("gang"):
            from torch.distributed import DistStoreError  # noqa: PLC0415 - loaded by now

            store, number = self._address.connect(_CONNECT_S), self._address.next_order
            while True:
                try:
                    store.wait([f"order/{number}"], _ROUND)
                except DistStoreError:  # no order came
                    continue
                except RuntimeError:  # the owner is gone, and Ray ends its actors
                    return
                order = json.loads(store.get(f"order/{number}"))
                if order["do"] == END:
                    return
                store.set(f"answer/{number}/{self._name}", json.dumps(self._follow(**order)))
                number += 1

    def _follow(self, do: str, **options: object) -> object:
        with harmless("gang"):
            return self._acts[do](**options)
        return None
