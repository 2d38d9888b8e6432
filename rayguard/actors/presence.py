"""What a guarded process shows of itself: its status page, its metrics endpoint, a journal ready to write.

Set up once per process, when a guarded actor starts; all of it may fail without harm.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rayguard.recovery.harmless import harmless

if TYPE_CHECKING:
    from rayguard.actors.incarnation import Incarnation
    from rayguard.recovery.status import StatusPage

_lock = threading.Lock()
_page: StatusPage | None = None


def show(life: Incarnation, name: str) -> None:
    """Publish the page of this process and serve its metrics, if the settings say so."""
    global _page  # noqa: PLW0603 - one page per process
    with _lock:
        if _page is not None:
            return
        with harmless("journal"):
            # Now and not at the first incident: loading the settings takes a third of a second.
            from rayguard.recovery.journal import default_journal  # noqa: PLC0415

            default_journal()
        with harmless("metrics"):
            from rayguard.metrics.exporter import serve_as_configured  # noqa: PLC0415

            serve_as_configured()
        with harmless("status"):
            from rayguard.config import Settings  # noqa: PLC0415
            from rayguard.recovery.status import StatusPage, Who  # noqa: PLC0415

            who = Who(actor_class=name, actor_id=life.actor_id, job_id=life.job_id, incarnation=life.number)
            _page = StatusPage(Settings().home, who)
            _page.start()


def last_page(pid: int, died_at: float) -> tuple[str, ...]:
    """Return what a dead process of this node said last of its engines: up to a second before its end."""
    from rayguard.config import Settings  # noqa: PLC0415
    from rayguard.recovery.status import read_pages  # noqa: PLC0415

    pages = [page for page in read_pages(Settings().home) if page.pid == pid and not page.alive]
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
