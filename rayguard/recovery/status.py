"""The page on which each guarded process says how it is doing, for people and for other processes.

One small file per process, ``<home>/status/<pid>-<started>.json``, replaced in one step, so that a reader
never sees half a page. It stays when its process dies: the last state is what one wants to know then. What
happened over time is ``rayguard.recovery.journal``; numbers for machines are ``rayguard.metrics``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.private import open_regular
from rayguard.process.identity import ProcessId
from rayguard.recovery.published import Published
from rayguard.recovery.tally import TALLY, EngineTally, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import TypeAdapter

_NAME = re.compile(r"(\d+)-(\d+)\.json")
_MAX_PAGE_BYTES = 1 << 20
KEEP_DEAD_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """What runs in a process; empty where it is no Ray actor."""

    actor_class: str = ""
    actor_id: str = ""
    job_id: str = ""
    incarnation: int = 0  # 0 is the first life of the actor


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePage:
    """One engine slot, as ``EngineTally`` has it."""

    name: str
    epoch: int = 0
    rung: int = 0
    settings: tuple[str, ...] = ()
    serving: bool = False
    weight_version: str = ""
    requests_running: int = 0
    tokens_generated: int = 0
    restarts: int = 0


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
    engines: tuple[EnginePage, ...] = ()
    last_incident: str = ""
    metrics_url: str = ""
    at: float = 0.0
    alive: bool | None = None

    def to_json(self) -> dict[str, Any]:
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
        self._empty = Page(pid=me.pid, started=me.started, world=_world(), host=socket.gethostname(), who=who)
        self._tally = tally

    def _page(self) -> Page:
        tally = self._tally.snapshot()
        return dataclasses.replace(
            self._empty,
            engines=tuple(_engine_page(engine) for engine in tally.engines.values()),
            last_incident=tally.last_incident,
            metrics_url=tally.metrics_url,
        )


def _engine_page(engine: EngineTally) -> EnginePage:
    return EnginePage(**{f.name: getattr(engine, f.name) for f in dataclasses.fields(EnginePage)})


def _written(page: Page, at: float) -> bytes:
    return json.dumps(dataclasses.replace(page, at=at).to_json(), allow_nan=False).encode()


def read_pages(home: Path | str) -> list[Page]:
    """Return the pages of all processes, newest first. What is no page is skipped.

    Also tidies up: a page of ours goes when its process is *provably* dead (same boot, same pid namespace,
    pid and start time) and the page is older than a day.
    """
    pages = sorted(_pages(Path(home) / "status"), key=lambda page: page.at, reverse=True)
    return [page for page in pages if not _is_rubbish(page, Path(home) / "status")]


def _pages(directory: Path) -> Iterator[Page]:
    try:
        paths = list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    world = _world()
    for path in paths:
        name = _NAME.fullmatch(path.name)
        page = _page_in(path) if name else None
        if name and page and (page.pid, page.started) == (int(name[1]), int(name[2])):
            same_world = bool(world) and page.world == world
            alive = ProcessId(page.pid, page.started).alive() if same_world else None
            yield dataclasses.replace(page, alive=alive)


def _page_in(path: Path) -> Page | None:
    file = open_regular(path)
    if file is None:
        return None
    with open(file, "rb") as stream:  # noqa: PTH123 - a descriptor, not a path
        content = stream.read(_MAX_PAGE_BYTES)
    try:
        return _page_format().validate_json(content)
    except ValueError:
        return None


def _is_rubbish(page: Page, directory: Path) -> bool:
    if page.alive is not False or time.time() - page.at < KEEP_DEAD_S:
        return False
    with contextlib.suppress(OSError):  # not ours to remove, or another reader was faster
        path = directory / f"{page.pid}-{page.started}.json"
        if path.lstat().st_uid == os.getuid():
            path.unlink()
            (directory / f".{page.pid}-{page.started}.tmp").unlink(missing_ok=True)
    return True


@lru_cache(maxsize=1)
def _page_format() -> TypeAdapter[Page]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - only readers need it; a guarded process writes

    return TypeAdapter(Page)


def _world() -> str:
    """Name this boot and pid namespace: elsewhere the same pid is another process. '' when unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
