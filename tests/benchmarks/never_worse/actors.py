"""The actors of a program, as users write them: nothing here knows rayguard.

The state is the list of the calls that took effect, so that every answer says what the state was: that list,
and the digest of whatever else an actor holds. A strike fires once: whoever makes its file first strikes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.never_worse import errors

SLOW_S = 60.0  # at most: a slow call ends when its caller has given up
GIVEN_UP = "given-up"


class Struck:
    """Knows which strikes have fired, in ``folder``."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def now(self, key: str) -> bool:
        """Say, once, that it is to fire."""
        try:
            (self.folder / key).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def struck(folder: str, call: dict[str, Any], *, changed: bool) -> None:
    """Do to this process what is to be done at this point of the call."""
    kind = call["strike"]
    inside = ("raise_before", "raise_after", "kill_before", "kill_after", "os_exit", "sys_exit", "slow")
    if kind not in inside or kind.endswith("_after") is not changed or not Struck(folder).now(call["key"]):
        return
    if kind.startswith("raise"):
        raise errors.made(call["error"])
    if kind.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "os_exit":
        os._exit(7)
    if kind == "sys_exit":
        sys.exit(3)
    until, given_up = time.monotonic() + SLOW_S, Path(folder, f"{call['key']}-{GIVEN_UP}")
    while time.monotonic() < until and not given_up.exists():
        time.sleep(0.05)  # noqa: TID251 - a user's code that is slow


class Counter:
    """State that is a list."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.applied: list[int] = []

    def step(self, call: dict[str, Any]) -> tuple[list[int], str]:
        """Take a step; return all that have been taken, and the digest of the rest of the state."""
        struck(self.folder, call, changed=False)
        self.learn(call["number"])
        self.applied.append(call["number"])
        struck(self.folder, call, changed=True)
        return list(self.applied), self.digest()

    def learn(self, number: int) -> None:
        """Change whatever else there is."""

    def digest(self) -> str:
        """Return a word for whatever else there is."""
        return ""

    def pid(self) -> int:
        """Say which process this is."""
        return os.getpid()


class Torch(Counter):
    """State that is a module and its optimizer, too."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        import torch

        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def learn(self, number: int) -> None:
        """Take a step of the optimizer."""
        import torch

        self.optimizer.zero_grad()
        self.model(torch.full((2, 4), 1.0 + number)).square().sum().backward()
        self.optimizer.step()

    def digest(self) -> str:
        """Return one of the weights and of what the optimizer keeps for each."""
        kept = self.optimizer.state
        tensors = [one for weight in self.model.parameters() for one in (weight, *kept[weight].values())]
        found = hashlib.sha256()
        for one in tensors:
            found.update(one.detach().numpy().tobytes())
        return found.hexdigest()[:16]


_seeding = threading.Lock()


@functools.lru_cache(maxsize=4096)
def digest_after(applied: tuple[int, ...]) -> str:
    """Return the digest of a ``Torch`` that took these steps, in this order, and met no fault."""
    with _seeding:  # torch has one seed, and programs are judged side by side
        fresh = Torch("")
    for number in applied:
        fresh.learn(number)
    return fresh.digest()


class Rank(Counter):
    """A member of a group that reduces over gloo at each step."""

    def join(self, rank: int, size: int, place: str) -> int:
        """Begin the group."""
        import datetime as dt

        import torch.distributed as dist

        dist.init_process_group(
            "gloo",
            init_method=f"file://{place}",
            rank=rank,
            world_size=size,
            timeout=dt.timedelta(seconds=10),
        )
        return rank

    def learn(self, number: int) -> None:
        """Reduce with the others."""
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(2))


def saving(base: type) -> type:
    """Return ``base`` with torch's two methods by which state is handed over."""

    class Saves(base):
        def state_dict(self) -> dict[str, Any]:
            found = {"applied": list(self.applied)}
            if hasattr(self, "model"):
                found |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            return found

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.applied = list(state["applied"])
            if hasattr(self, "model"):
                self.model.load_state_dict(state["model"])
                self.optimizer.load_state_dict(state["optimizer"])

    return Saves


def flavored(base: type, flavor: str) -> type:
    """Return ``base`` with methods of that kind.

    Without ``super()``: Ray 2.60 pickles the methods of an async actor by value, and where a class was made
    in a function with them a second class, of which the actor is none.
    """
    if flavor == "async":

        class Async(base):
            async def step(self, call: dict[str, Any]) -> tuple[list[int], str]:
                return base.step(self, call)

        return Async
    if flavor == "generator":

        class Generator(base):
            def step(self, call: dict[str, Any]) -> Any:
                yield base.step(self, call)

        return Generator
    return base


def async_init(base: type) -> type:
    """Return ``base`` with an ``__init__`` that Ray awaits."""

    class AsyncInit(base):
        async def __init__(self, folder: str) -> None:
            base.__init__(self, folder)

    return AsyncInit


BASES = {"counter": Counter, "torch": Torch, "group": Rank}
FLAVORS = ("sync", "async", "threaded", "generator")


def _all() -> dict[str, type]:
    """Return every class that a program may ask for, by its name in this module."""
    found = {}
    for holds, base in BASES.items():
        for flavor in FLAVORS:
            for saves in (False, True):
                for init in ("plain", "async"):
                    cls = flavored(saving(base) if saves else base, flavor)
                    cls = async_init(cls) if init == "async" else cls
                    name = named(holds, flavor, init, saves=saves)
                    found[name] = type(name, (cls,), {"__module__": __name__, "__qualname__": name})
    return found


def named(holds: str, flavor: str, init: str, *, saves: bool) -> str:
    """Return the name of the class that is so."""
    return "".join(word.capitalize() for word in (holds, flavor, init)) + ("Saves" if saves else "")


globals().update(_all())  # workers import them by name, as they do a user's


def class_of(spec: dict[str, Any]) -> type:
    """Return the class that an actor of a program is of."""
    holds = "group" if spec["group"] else spec["holds"]
    found: type = globals()[named(holds, spec["flavor"], spec["init"], saves=spec["saves"])]
    return found


def task(folder: str, call: dict[str, Any]) -> tuple[list[int], str]:
    """Return what it was told."""
    struck(folder, call, changed=False)
    return [call["number"]], ""
