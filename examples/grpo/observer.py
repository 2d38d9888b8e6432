"""Keeps the history up to date while the loop waits: what rollouts say about themselves, and the journal."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import ray

from examples.grpo.history import RolloutState
from rayguard.recovery.journal import default_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from concurrent.futures import Future

    from examples.grpo.history import History
    from examples.grpo.outcome.view import View

POLL_S = 0.1
LOOK_EVERY_S = 0.5


class Observer:
    """Waits for results and looks around meanwhile; ``also`` is called at each look."""

    def __init__(
        self, history: History, view: View, rollouts: Sequence[Any], also: Callable[[], None]
    ) -> None:
        self.history = history
        self.view = view
        self.also = also
        self.rollouts = rollouts
        self.journal = default_journal()
        self.asked: dict[int, Any] = {}
        self.looked_at = 0.0
        history.rollouts = [RolloutState(actor_id=rollout._actor_id.hex()) for rollout in rollouts]  # noqa: SLF001

    def wait(self, futures: Sequence[Future[Any]], *, deadline_s: float) -> list[Any]:
        """Return the results of ``futures`` in their order.

        Raises:
            TimeoutError: They did not come in time: a rollout hangs, and nobody noticed.
        """
        deadline = time.monotonic() + deadline_s
        left: Collection[Future[Any]] = futures
        while left:
            _, left = wait(left, timeout=POLL_S)
            self.look()
            if left and time.monotonic() > deadline:
                raise TimeoutError(
                    f"{len(left)} of {len(futures)} calls were not answered in {deadline_s:.0f} s"
                )
        return [future.result() for future in futures]

    def until(self, true: Callable[[], bool], *, deadline_s: float) -> bool:
        """Look around until ``true()``; say whether it came to be in time."""
        pause, deadline = threading.Event(), time.monotonic() + deadline_s
        while not true():
            if time.monotonic() > deadline:
                return False
            self.look()
            pause.wait(POLL_S)
        return True

    def look(self, *, now: bool = False) -> None:
        """Read the journal and the rollouts' answers, at most twice a second unless asked to."""
        if now or time.monotonic() - self.looked_at > LOOK_EVERY_S:
            self.looked_at = time.monotonic()
            self.also()
            if self.history.guarded:
                self.history.incidents = self.journal.read()
            for number, rollout in enumerate(self.rollouts):
                self._ask(number, rollout)
        self.view.tick()

    def _ask(self, number: int, rollout: Any) -> None:
        ref = self.asked.get(number)
        if ref is None:
            self.asked[number] = rollout.engine_status.remote()
        elif ray.wait([ref], timeout=0)[0]:
            del self.asked[number]
            _note(self.history.rollouts[number], ref)
        elif self.history.ready_at is not None:
            self.history.rollouts[number].state = "recovering"


def _note(seen: RolloutState, ref: Any) -> None:
    try:
        status = ray.get(ref, timeout=POLL_S)
    except ray.exceptions.RayError:  # dead or just being restarted: that is what we show
        seen.state = "gone"
        return
    seen.state = "serving" if status["serving"] else "recovering"
    seen.epoch, seen.rung = status["epoch"], status["rung"]
    seen.settings = tuple(status["settings"])
    seen.weight_version = status["weight_version"] or ""
