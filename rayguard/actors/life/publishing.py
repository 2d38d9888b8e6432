"""What a guarded process shows of itself: status page, metrics endpoint, journal, flight recorder.

Set up once per process, when a guarded actor starts; all of it may fail without harm.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from typing import TYPE_CHECKING

from rayguard.harmless import counted, harmless
from rayguard.home import home
from rayguard.process import stacks
from rayguard.process.flight import recorder

if TYPE_CHECKING:
    from rayguard.actors.life.incarnation import Incarnation
    from rayguard.metrics.node.numbers_file import NumbersPage
    from rayguard.process.cleanup.verdict import Leftover
    from rayguard.recovery.status import StatusPage

_log = logging.getLogger("rayguard")
_lock = threading.Lock()
_page: StatusPage | None = None
_numbers: NumbersPage | None = None
_guards = False  # here a guard acts; else, rayguard only watches


def show(life: Incarnation, name: str) -> None:
    """Publish the page of this process and serve its metrics, if the settings say so."""
    with _lock:
        if _page is not None:
            return
        with harmless("journal"):
            # Now and not at the first incident: loading the settings takes a third of a second.
            from rayguard.recovery.journal import default_journal  # noqa: PLC0415

            default_journal()
        with harmless("metrics"):
            from rayguard.metrics.configured import serve_as_configured  # noqa: PLC0415

            serve_as_configured()
    show_page(life, name)


def guards() -> None:
    """Say that a guard acts in this process, also where it was only watched before."""
    global _guards  # noqa: PLW0603 - one process
    _guards = True
    with _lock:
        if _page is not None:
            _page.guarded()


def show_page(life: Incarnation, name: str, *, watched: bool = False) -> None:
    """Publish the page of this process, once. Loads no settings."""
    global _page  # noqa: PLW0603 - one page per process
    with _lock, harmless("status"):
        from rayguard.recovery.status import StatusPage, Who  # noqa: PLC0415 - not for every guarded actor

        if _page is None:
            who = Who(
                actor_class=name,
                actor_id=life.actor_id,
                job_id=life.job_id,
                incarnation=life.number,
                watched=watched and not _guards,
            )
            _page = StatusPage(home(), who)
            _page.start()


def show_if_asked(life: Incarnation, name: str) -> None:
    """Do as ``show`` where a port was given, and else nothing: it takes a third of a second."""
    if os.environ.get("RAYGUARD_METRICS_PORT"):
        show(life, name)


def show_numbers(life: Incarnation, name: str, *, if_read: bool = False) -> None:
    """Leave the numbers of this process for the endpoint of its node, from now on.

    A second call says anew whose they are: the actor's, in a worker that had none yet. With ``if_read`` only
    where the node has an agent, now or later. Loads no settings and no Prometheus.
    """
    global _numbers  # noqa: PLW0603 - one file per process
    with _lock, harmless("numbers"):
        from rayguard.metrics.node.numbers_file import NumbersPage  # noqa: PLC0415 - most processes have no use for it
        from rayguard.recovery.status import Who  # noqa: PLC0415

        who = Who(actor_class=name, actor_id=life.actor_id, job_id=life.job_id, incarnation=life.number)
        if _numbers is not None:
            _numbers.who = who
            return
        _numbers = NumbersPage(home(), who, if_read=if_read)
        _numbers.start()


def leave_numbers() -> None:
    """Leave the last numbers of this process behind: it is about to end, and no handler will run."""
    if _numbers is not None:
        _numbers.publish_now()


def record(life: Incarnation, name: str) -> None:
    """Start the flight recorder of this process. A full disk or a home that is not ours leaves it off."""
    with harmless("recorder"):
        # Not the settings: a third of a second that a healthy actor need not pay.
        recorder.start(home(), title=name, actor_id=life.actor_id, failed=partial(counted, "recorder"))
        stacks.register()  # for the agent, should a call never end


def reap() -> None:
    """Take away what dead processes of rayguard left on this node; aside, bounded, only what is proved."""
    with harmless("reap"):
        from rayguard.process.cleanup import reaper  # noqa: PLC0415 - not where no guarded actor lives

        reaper.reap_at_start(home(), report=_reaped, failed=partial(counted, "reap"))


def _reaped(what: list[Leftover]) -> None:
    if what:
        _log.info("rayguard: %d leftovers of dead processes: %s", len(what), what)


def last_page(pid: int, died_at: float) -> tuple[str, ...]:
    """Return what a dead process of this node said last of its engines: up to a second before its end."""
    from rayguard.recovery.status import read_pages  # noqa: PLC0415

    pages = [page for page in read_pages(home()) if page.pid == pid and not page.alive]
    return tuple(
        f"{max(0.0, died_at - page.at):.1f} s before the end {engine.name} had {engine.requests_running} "
        f"requests running and had generated {engine.tokens_generated} tokens"
        for page in pages[:1]
        for engine in page.engines
    )


def refresh() -> None:
    """Publish at once what has changed."""
    if _page is not None:
        _page.publish()
