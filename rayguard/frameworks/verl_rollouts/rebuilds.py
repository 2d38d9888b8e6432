"""Lost replicas that are made again beside the training, and serve once a weight update has reached them.

A thread ends what is left of a lost replica and makes another one like it. The next update finds that one
among the manager's replicas, and once it ended without error the load balancer sends it requests: nobody is
ever answered from the weights that it began with. The trainer waits for none of it.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.frameworks.verl_rollouts import in_actor, replica_remains, server_incidents
from rayguard.frameworks.verl_rollouts.asking import asked
from rayguard.frameworks.verl_rollouts.rebuild_plan import RebuildLimits, why_not_made_again
from rayguard.frameworks.verl_rollouts.server_managers import ReplicaPlace, place_of
from rayguard.harmless import harmless
from rayguard.ray_internals.actor_classes import actor_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rayguard.faults.diagnosis import Kind
    from rayguard.frameworks.verl_rollouts.interfaces import CheckpointEngineManager, RolloutReplica
    from rayguard.recovery.incident import Incident

_log = logging.getLogger("rayguard")


@dataclass(slots=True, eq=False)
class Rebuild:
    """One lost replica, until another serves in its place."""

    lost: RolloutReplica
    place: ReplicaPlace
    incident: Incident


@dataclass(slots=True, eq=False)
class NewReplica:
    """What was made for it, until it serves."""

    made: RolloutReplica
    place: ReplicaPlace
    incident: Incident


class ReplicaRebuilds:
    """The lost replicas of one ``CheckpointEngineManager``.

    Args:
        limits: How often, and how long.
        make: Makes a replica like the lost one.
        start: Runs a function beside the training.
    """

    def __init__(
        self,
        limits: RebuildLimits | None = None,
        make: Callable[[RolloutReplica, RebuildLimits], RolloutReplica] = replica_remains.made_anew,
        start: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self.limits = limits or RebuildLimits()
        self._make, self._start = make, start or _in_a_thread
        self._lock = threading.Lock()
        self._known_lost: weakref.WeakSet[RolloutReplica] = weakref.WeakSet()
        self._tries: dict[object, tuple[float, ...]] = {}  # by rank
        self._ready: list[NewReplica] = []  # made, and not among the manager's yet
        self._joined: list[NewReplica] = []  # among the manager's, and not serving yet
        self._updating = False

    # -- the driver's side: within an update, or between two

    def begin_update(self, manager: CheckpointEngineManager) -> None:
        """Have the replicas that were made since the last update take part in this one."""
        with self._lock:
            self._updating = True
            ready, self._ready = self._ready, []
            if ready:
                manager.add_replicas([one.made for one in ready])
                self._joined += ready

    def leave_out(
        self,
        manager: CheckpointEngineManager,
        lost: Mapping[RolloutReplica, Kind],
        *,
        between_updates: bool = False,
    ) -> bool:
        """Take lost replicas from a manager, and begin to make them again; say whether it was done.

        Nothing is done ``between_updates`` where one has begun by now: it looks itself.
        """
        with self._lock:
            if between_updates and self._updating:
                return False
            manager.remove_replicas(list(lost))
            new = [one for one in lost if one not in self._known_lost]
            self._known_lost.update(new)
            unserved = [one for one in self._joined if one.made in new]
            self._joined = [one for one in self._joined if one not in unserved]
        places = {id(one.made): one.place for one in unserved}
        for one in unserved:
            server_incidents.replica_given_up(one.incident, "the new one was lost before it served")
        for replica in new:
            self._begin(manager, replica, lost[replica], places.get(id(replica)) or place_of(replica))
        return True

    async def end_update(self, step: object) -> None:
        """Have the new replicas serve that an update has brought to ``step``."""
        with self._lock:
            self._updating = False
            joined, self._joined = self._joined, []
        for one in joined:
            if not await self._serves(one, step):
                with self._lock:
                    self._joined.append(one)  # the next update reaches it, too

    def update_failed(self, error: BaseException) -> None:
        """Write that new replicas do not serve: the update with them failed, whose error is the caller's."""
        with self._lock:
            self._updating = False
            joined, self._joined = self._joined, []
        for one in joined:
            why = f"the weight update with the new one failed: {type(error).__name__}"
            server_incidents.replica_given_up(one.incident, why)

    async def _serves(self, one: NewReplica, step: object) -> bool:
        """Prove that a new replica has the weights, and have requests sent to it."""
        new, within_s = one.made, self.limits.ask_s
        found = await asked(new.server_handle, in_actor.look, within_s=within_s)
        proved = found is not None and not found.engine_dead and (step is None or found.step == step)
        old = one.place.stands_there
        if not proved or not await asked(
            one.place.balancer,
            in_actor.take_place,
            old.server_address,
            actor_id(old.server_handle),
            new.server_address,
            new.server_handle,
            within_s=within_s,
        ):
            _log.warning(
                "rayguard: the new verl replica %s gets no requests yet: %s",
                _rank(new),
                "the load balancer did not answer" if proved else "it does not say that it has the weights",
            )
            return False
        one.place.taken_by(new)
        server_incidents.replica_serves(one.incident, new.server_address, step)
        return True

    # -- beside the training

    def _begin(
        self,
        manager: CheckpointEngineManager,
        replica: RolloutReplica,
        kind: Kind,
        place: ReplicaPlace | None,
    ) -> None:
        rank = _rank(replica)
        why = why_not_made_again(manager, replica, is_placed=place is not None)
        if why or place is None:
            _log.warning("rayguard: verl replica %s is not made again: %s", rank, why)
            return
        incident = server_incidents.replica_opened(rank, kind)
        one = Rebuild(replica, place, incident)
        if self._takes_a_try(rank):
            self._start(lambda: self._made_again(one))
        else:
            server_incidents.replica_given_up(incident, self._spent())

    def _takes_a_try(self, rank: object) -> bool:
        now = time.time()
        with self._lock:
            tries = self._tries.get(rank, ())
            if not self.limits.budget.allows(tries, now):
                return False
            self._tries[rank] = (*self.limits.budget.recent(tries, now), now)
            return True

    def _spent(self) -> str:
        budget = self.limits.budget
        return f"it was tried {budget.max_restarts} times within {budget.within_s:.0f} s"

    def _made_again(self, one: Rebuild) -> None:
        """Make a replica like the lost one, again where that fails, within its budget."""
        pause = threading.Event()
        while said := self._tried(one):
            _log.warning("rayguard: verl replica %s could not be made again: %s", _rank(one.lost), said)
            if not _job_goes_on():
                return
            if not self._takes_a_try(_rank(one.lost)):
                server_incidents.replica_given_up(one.incident, f"{self._spent()}; the last: {said}")
                return
            pause.wait(self.limits.again_s)

    def _tried(self, one: Rebuild) -> str:
        """Try to make it once; return what went wrong, '' if nothing."""
        try:
            made = self._make(one.lost, self.limits)
        except Exception as error:  # noqa: BLE001 - verl's, or Ray's
            return f"{type(error).__name__}: {error}"
        with self._lock:
            self._ready.append(NewReplica(made, one.place, one.incident))
        _log.warning(
            "rayguard: verl replica %s was made again, and serves after the next weight update",
            _rank(one.lost),
        )
        return ""


def _rank(replica: object) -> object:
    return getattr(replica, "replica_rank", "?")


def _job_goes_on() -> bool:
    import ray  # noqa: PLC0415 - where verl has replicas, Ray is

    return bool(ray.is_initialized())


def _in_a_thread(run: Callable[[], None]) -> None:
    def harmlessly() -> None:
        with harmless("rollout"):
            run()

    threading.Thread(target=harmlessly, name="rayguard-replicas", daemon=True).start()
