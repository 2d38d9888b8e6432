"""The page on which each guarded or watched process says how it is doing, for people and for other processes.

One small file per process, ``<home>/status/<pid>-<started>.json``, replaced in one step, so that a reader
never sees half a page. It stays when its process dies: the last state is what one wants to know then. What
happened over time is ``rayguard.recovery.journal``; numbers for machines are ``rayguard.metrics``.
"""

from __future__ import annotations

import dataclasses
import json
import re
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.private import read_regular
from rayguard.process.identity import ProcessId
from rayguard.process.pid_namespace import world
from rayguard.ray_internals.capability import switched_off
from rayguard.recovery.published import Published
from rayguard.recovery.tally import TALLY, EngineTally, Tally
from rayguard.recovery.typed_json import read_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAME = re.compile(r"(\d+)-(\d+)\.json")
_MAX_PAGE_BYTES = 1 << 20
KEEP_DEAD_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """What runs in a process; empty where it is no Ray actor. ``watched``: nothing is guarded in it."""

    actor_class: str = ""
    actor_id: str = ""
    job_id: str = ""
    incarnation: int = 0  # 0 is the first life of the actor
    watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One process at the moment ``at``.

    ``world`` names the boot and the pid namespace in which ``pid`` means something. ``alive`` is found out
    when the page is read; None from another world, where nobody here can tell.
    """

    pid: int
    started: int
    world: str = ""
    host: str = ""
    who: Who = Who()
    engines: tuple[EngineTally, ...] = ()
    last_incident: str = ""
    metrics_url: str = ""
    off: dict[str, str] = field(default_factory=dict)  # what Ray's changes switched off here, and why
    at: float = 0.0
    alive: bool | None = None

    def to_json(self) -> dict[str, object]:
        """Return plain JSON types."""
        return dataclasses.asdict(self)


class StatusPage(Published[Page]):
    """Publishes this process's page: when something changed, and at most every ``every_s`` seconds."""

    def __init__(
        self,
        home: Path | str,
        who: Who,
        *,
        tally: Tally = TALLY,
        every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        directory = Path(home).absolute() / "status"
        super().__init__(directory, "status", self._page, _written, every_s=every_s, clock=clock)
        me = ProcessId.me()
        self._empty = Page(pid=me.pid, started=me.started, world=world(), host=socket.gethostname(), who=who)
        self._tally = tally

    def guarded(self) -> None:
        """Say from now on that a guard acts in this process, and does not only watch it."""
        who = dataclasses.replace(self._empty.who, watched=False)
        self._empty = dataclasses.replace(self._empty, who=who)

    def _page(self) -> Page:
        tally = self._tally.snapshot()
        return dataclasses.replace(
            self._empty,
            engines=tuple(tally.engines.values()),
            last_incident=tally.last_incident,
            metrics_url=tally.metrics_url,
            off=switched_off(),
        )


def _written(page: Page, at: float) -> bytes:
    return json.dumps(dataclasses.replace(page, at=at).to_json(), allow_nan=False).encode()


def read_pages(home: Path | str) -> list[Page]:
    """Return the pages of all processes, newest first. What is no page is skipped.

    So is that of a process that is *provably* dead (same boot, same pid namespace, pid and start time) for a
    day: ``rayguard.process.cleanup.own_files`` takes it away.
    """
    pages = sorted(_pages(Path(home) / "status"), key=lambda page: page.at, reverse=True)
    return [page for page in pages if page.alive is not False or time.time() - page.at < KEEP_DEAD_S]


def _pages(directory: Path) -> Iterator[Page]:
    try:
        paths = list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    own_world = world()
    for path in paths:
        name = _NAME.fullmatch(path.name)
        page = _page_in(path) if name else None
        if name and page and (page.pid, page.started) == (int(name[1]), int(name[2])):
            known = bool(own_world) and page.world == own_world
            alive = ProcessId(page.pid, page.started).alive() if known else None
            yield dataclasses.replace(page, alive=alive)


def _page_in(path: Path) -> Page | None:
    try:
        return read_as(Page, read_regular(path, _MAX_PAGE_BYTES))
    except ValueError:
        return None
