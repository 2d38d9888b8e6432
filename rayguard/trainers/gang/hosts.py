"""The actors of a gang: placed, started, found dead, ended. Which rank each holds is the gang's business."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rayguard.errors import ConfigError, RecoveryTimeoutError
from rayguard.process.deaths import held_pidfd
from rayguard.process.identity import ProcessId
from rayguard.ray_internals.worker import connected_ray
from rayguard.trainers.gang.rank_host import RankHost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ray import ObjectRef
    from ray.actor import ActorHandle
    from ray.util.placement_group import PlacementGroup

    from rayguard.trainers.gang.orders import Orders

_FIXED = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1}
_REFUSED = (*_FIXED, "name", "namespace", "lifetime", "get_if_exists", "concurrency_groups")


@dataclass(slots=True)
class GangHost:
    """One actor: in which bundle of the placement group it lives, and, once it has said so, which process."""

    name: str
    bundle: int
    actor: ActorHandle
    greeted: ObjectRef  # the reference to its first word
    node: str = ""
    process: ProcessId | None = None
    rank: int | None = None
    gone: bool = field(default=False, compare=False)


class GangHosts:
    """Starts and ends the actors of one gang; for one thread at a time."""

    def __init__(
        self,
        orders: Orders,
        make: Callable[[], object],
        package: str,
        options: Mapping[str, Any],
        *,
        count: int,
        start_s: float,
    ) -> None:
        refused = sorted(set(options) & set(_REFUSED))
        if refused:
            raise ConfigError(
                f"TrainerGang(options=...) cannot have {', '.join(refused)}: the gang replaces ranks itself"
            )
        self._orders, self._make, self._package = orders, make, package
        self._options, self._start_s = dict(options), start_s
        self._made = 0
        self.here = _this_node()
        self.last_error: BaseException | None = None  # of an actor that did not come up
        self._groups: list[PlacementGroup] = []
        # Of a gang that nobody holds Ray ends the actors, and keeps their places until the job ends.
        weakref.finalize(self, _aside, _give_back, self._groups).atexit = False
        self._places: list[tuple[PlacementGroup, int]] = []  # of each bundle: where, and its index there
        self.alive: list[GangHost] = []
        self.closed = False
        self.make_room(count)

    def start(self, bundle: int) -> GangHost:
        """Begin to start an actor in a bundle; ``ready`` waits for it.

        Raises:
            ConfigError: The gang was closed meanwhile.
        """
        if self.closed:
            raise ConfigError("the gang was closed while this call ran")
        import ray  # noqa: PLC0415 - only a gang's owner gets here
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: PLC0415

        name, self._made = f"host-{self._made}", self._made + 1
        group, index = self._places[bundle]
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        wanted = {"num_cpus": _cpus(self._options), **self._options, **_FIXED, "scheduling_strategy": place}
        actor = (
            ray.remote(RankHost)
            .options(**wanted)
            .remote(name, self._orders.address, self._make, self._package)
        )
        host = GangHost(name, bundle, actor, actor.hello.remote())
        self.alive.append(host)
        return host

    def deadline(self) -> float:
        """Return until when an actor that is started now has to be there, by the monotonic clock."""
        return time.monotonic() + self._start_s

    def ready(self, hosts: Sequence[GangHost], until: float) -> list[GangHost]:
        """Wait for actors that were started; return those that are there in time, the others are ended."""
        found = self.greeted(hosts, until)
        for host in hosts:
            if host.process is None:
                self.end(host)
        return found

    def greeted(self, hosts: Sequence[GangHost], until: float = 0.0) -> list[GangHost]:
        """Return those that have said that they are there, and live; waits for all ``until`` then."""
        import ray  # noqa: PLC0415 - as above

        refs = {host.greeted: host for host in hosts if host.process is None and not host.gone}
        while refs:
            done, _ = ray.wait(list(refs), timeout=max(0.0, until - time.monotonic()))
            if not done:
                break
            for ref in done:
                self._greet(refs.pop(ref), ref)
        for host in hosts:
            if host.process is not None and host.node == self.here and not host.process.alive():
                self.end(host)
        return [host for host in hosts if host.process is not None and not host.gone]

    def _greet(self, host: GangHost, ref: ObjectRef) -> None:
        import ray  # noqa: PLC0415 - as above

        try:
            _, pid, started, host.node = ray.get(ref)
            host.process = ProcessId(pid, started)
        except ray.exceptions.RayError as error:
            self.last_error = error
            self.end(host)

    def end(self, host: GangHost) -> None:
        """End an actor at once, also one that is stopped: its process, where that is on this node."""
        import ray  # noqa: PLC0415 - as above

        if host.gone:
            return
        host.gone = True
        self.alive = [one for one in self.alive if one is not host]
        if host.process is not None and host.node == self.here:
            _kill(host.process)
        with contextlib.suppress(Exception):  # dead already, or the cluster is
            ray.kill(host.actor, no_restart=True)

    def bundles_free(self) -> list[int]:
        """Return the bundles in which no actor is."""
        taken = {host.bundle for host in self.alive}
        return [bundle for bundle in range(len(self._places)) if bundle not in taken]

    def close(self) -> None:
        """End all, and give their places back. A call that runs in another thread ends, too."""
        self.closed = True
        for host in list(self.alive):
            self.end(host)
        _give_back(self._groups)

    def make_room(self, count: int) -> None:
        """Reserve so many more bundles.

        Raises:
            RecoveryTimeoutError: The cluster has no room for them.
        """
        import ray  # noqa: PLC0415 - as above
        from ray.util import placement_group, remove_placement_group  # noqa: PLC0415

        wanted = {"CPU": _cpus(self._options), "GPU": self._options.get("num_gpus", 0)}
        wanted |= {"memory": self._options.get("memory", 0), **self._options.get("resources", {})}
        bundle = {name: float(amount) for name, amount in wanted.items() if amount} or {"CPU": 0.01}
        group = placement_group([bundle] * count, strategy="PACK")
        if not group.wait(min(self._start_s, 2**30)):
            with contextlib.suppress(Exception):
                remove_placement_group(group)
            raise RecoveryTimeoutError(
                f"no room for {count} ranks and spares of {bundle} each within {self._start_s:.0f} s: "
                f"the cluster has {_amounts(ray.cluster_resources())}, of which "
                f"{_amounts(ray.available_resources())} are free"
            )
        self._groups.append(group)
        self._places += [(group, index) for index in range(count)]


def _give_back(groups: list[PlacementGroup]) -> None:
    if connected_ray() is None:  # it would start a cluster of its own
        return
    from ray.util import remove_placement_group  # noqa: PLC0415 - as above

    while groups:
        with contextlib.suppress(Exception):  # the cluster is gone
            remove_placement_group(groups.pop())


def _aside(do: Callable[[list[PlacementGroup]], None], groups: list[PlacementGroup]) -> None:
    """Do it in a thread: a collection of garbage may come in the midst of anything, also of Ray's own."""
    if groups:
        threading.Thread(target=do, args=(groups,), name="rayguard-places", daemon=True).start()


def _cpus(options: Mapping[str, Any]) -> float:
    return float(options.get("num_cpus", 0 if options.get("num_gpus") else 1))


def _amounts(resources: Mapping[str, float]) -> str:
    return (
        ", ".join(f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if resources.get(name)) or "none"
    )


def _kill(process: ProcessId) -> None:
    with contextlib.suppress(OSError), held_pidfd(process) as descriptor:
        if descriptor is not None:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        elif process.alive():
            os.kill(process.pid, signal.SIGKILL)


def _this_node() -> str:
    import ray  # noqa: PLC0415 - as above

    return str(ray.get_runtime_context().get_node_id())
