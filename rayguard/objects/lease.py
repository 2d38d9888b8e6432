"""One holder's claim on an object of the store: a value. Who keeps the table of them is ``ledger``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Lease:
    """What one process knows about an object that it holds.

    Invariant: ``ended_at`` is set only on a lease whose ``scope`` has ended, and never before ``opened_at``.
    """

    object_id: str  # hex, as Ray prints it
    site: str = ""  # "file:line in function" that made it; empty: it was not seen being made
    step: int = -1  # since which step this process holds it; -1: since before the first
    owner: bool = True  # made by this process; False: borrowed
    task: str = ""  # key of the task that made it, see ``task_key``
    scope: int = 0  # the scope that made it; 0: none, or the user took it out
    lane: str = ""  # the thread or asyncio task that the scope was opened in
    opened_at: int = 0  # when its scope was opened, in ticks of the ledger
    ended_at: int = 0  # when its scope ended; 0: it has not
    keep_steps: int = 1  # so many later scopes of the same line leave it alone
    size_bytes: int | None = None
    local: int = 0  # references of this process
    submitted: int = 0  # tasks in flight that have it as an argument
    read_step: int = -1  # the last step in which somebody read it or passed it on
    born: int = 0  # tick of its entry: a snapshot of counts taken before knows nothing of it
    adopted: bool = False  # seen in a pass only


def task_key(object_or_task_id: str) -> str:
    """Return what the hex ids of a task, of its results and of what it put have in common.

    The first byte of a put object's id is the number of the attempt, not of the task (Ray 2.60).
    """
    return object_or_task_id[2:48]
