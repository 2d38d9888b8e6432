"""``TrainerGang``: ranks of a trainer that live and die together."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from rayguard.actors.life import snapshot_files
from rayguard.actors.methods import state_methods
from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.options import explained
from rayguard.ray_internals.actor_classes import is_actor_class
from rayguard.ray_internals.worker import connected_ray
from rayguard.trainers.gang.core import GangCore
from rayguard.trainers.gang.gang_weights import GangWeights, start_holder
from rayguard.trainers.gang.hosts import GangHosts
from rayguard.trainers.gang.kept.rank_files import forget_gang
from rayguard.trainers.gang.orders import END, Orders
from rayguard.trainers.gang.policy import GangPolicy
from rayguard.trainers.gang.seats import GangSeats, GangSize
from rayguard.trainers.gang.shares import checked_method, refuse_unawaited

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

_FORGET_S = 20.0  # for a rank on another node, which may be busy
_PUBLISH_S = 60.0
_IDLE_S = 1.0  # for a call that is about to end
_BACKENDS = ("gloo", "nccl", "cpu:gloo,cuda:nccl")


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStatus:
    """What a gang is at a moment. ``calls`` have ended well; ``causes`` are of its last recoveries.

    ``copies_behind``: how many calls ago the ranks had the states of which copies lie on other nodes, all of
    one call. None: there are no copies, or none yet.
    """

    trainer: str
    ranks: int
    spares: int
    calls: int
    generation: int
    recoveries: int
    causes: tuple[str, ...] = ()
    closed: bool = False
    copies_behind: int | None = None


class TrainerGang:
    """Ranks of a trainer, as Ray actors, that begin anew together when one of them dies, hangs or is stopped.

    The trainer's class has ``setup(self, group)``, which builds model and optimizer on torch's default
    process group (``RankGroup`` says which rank this is), and any methods; derive it from
    ``rayguard.TrainerMixin``, and its state is found by itself, or give it ``state_dict`` and
    ``load_state_dict``. After a fault every rank gets a new object of it (``__init__``, ``setup``), takes up
    the state of the last call that *all* ranks completed, and the interrupted call is made again with the
    same arguments.

    Args:
        trainer: The class; no actor class.
        ranks: How many there are.
        spares: Actors that wait with torch loaded, to take a rank at once: with ``options``' resources too.
        args: Of its ``__init__``, on each rank.
        kwargs: Of its ``__init__``.
        options: Of each rank's actor, as for ``@ray.remote``: ``{"num_gpus": 1}``.
        policy: What the gang may do, and how long it may wait.
        backend: Of torch.distributed; by default NCCL with gloo for the CPU where ranks have GPUs, else gloo.

    Raises:
        ConfigError: Something does not fit; Ray is not initialised.
        RecoveryTimeoutError: The cluster has no room for the ranks.
        Exception: What ``__init__`` or ``setup`` raised on a rank. Nothing is left running.
    """

    @explained
    def __init__(  # noqa: PLR0913 - one keyword each
        self,
        trainer: type,
        *,
        ranks: int,
        spares: int = 0,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        options: Mapping[str, Any] | None = None,
        policy: GangPolicy | None = None,
        backend: str | None = None,
    ) -> None:
        self._closed, self._lock = True, threading.RLock()
        _check(trainer, ranks, spares, policy, backend)
        self._trainer, policy, options = trainer, policy or GangPolicy(), dict(options or {})
        if policy.min_ranks is not None and policy.min_ranks > ranks:
            raise ConfigError(f"GangPolicy.min_ranks is {policy.min_ranks}, and the gang has {ranks} ranks")
        import ray  # noqa: PLC0415 - free to import

        wanted = GangSize(ranks, spares, backend or (_BACKENDS[2] if options.get("num_gpus") else "gloo"))
        self._orders = Orders(ray.util.get_node_ip_address())
        self._hosts = GangHosts(
            self._orders,
            partial(trainer, *args, **(kwargs or {})),
            trainer.__module__.partition(".")[0],
            options,
            count=ranks + spares,
            start_s=policy.start_s,
        )
        self._closed = False
        self._weights: GangWeights | None = None
        self._published: object = None
        self._seats = GangSeats(trainer.__name__, self._orders, self._hosts, wanted, policy)
        self._core = GangCore(trainer.__name__, self._seats, policy)
        snapshot_files.go_with_job()
        try:
            self._core.begin()
        except BaseException:
            self.close()
            raise

    @explained
    def call(
        self, method: str, /, *args: Any, each: Any = None, deadline_s: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method on all ranks; return what each returned, in their order. All of it or none of it.

        Args:
            method: Its name.
            args: The same on each rank. They must not change until the call ends: it may be made again.
            each: One more argument for each rank: a sequence; what ``rayguard.split_batch`` returned, planned
                anew when the gang shrinks; or a function that returns a sequence for a number of ranks.
            deadline_s: How long it may take; else learned from earlier calls (``GangPolicy``).
            kwargs: As ``args``.

        Raises:
            ConfigError: There is no such method, or ``each`` does not fit.
            GangCallError: It failed each time that it was made.
            GaveUpError: The gang cannot be kept alive.
            Exception: What the method raised on a rank; all ranks are as they were before the call.
        """
        name = checked_method(self._trainer, method)
        if deadline_s is not None and not deadline_s > 0:
            raise ConfigError(f"call(deadline_s=...) must be more than 0 seconds, got {deadline_s!r}")
        with self._lock:
            self._open()
            return self._core.call(name, args, kwargs, each, deadline_s)

    @explained
    def resize(self, ranks: int) -> None:
        """Go on with another number of ranks; their state is shared anew. Call it between two calls.

        Raises:
            ConfigError: ``ranks`` is less than 1.
            RecoveryTimeoutError: There is no room for more; the gang stays as it is.
            GaveUpError: The gang cannot be kept alive.
        """
        _whole("ranks", ranks, 1)
        with self._lock:
            self._open()
            self._core.resize(ranks)

    def weights(self) -> GangWeights:
        """Return what rollouts are given, ``start_engine(weights=gang.weights())``; sent to any actor.

        What it says is current is what ``publish_weights`` has gathered last, also while the gang recovers.
        """
        with self._lock:
            self._open()
            if self._weights is None:
                self._weights = GangWeights(start_holder())
            return self._weights

    def publish_weights(self) -> str:
        """Gather all weights, and make them those that rollouts take up; return their version.

        By the trainer's ``weights()``, which each rank calls and rank 0 returns a mapping from, if it has
        that; else those of its ``model``, or of its one module.

        Raises:
            ConfigError: It has no module, or several.
            Exception: As ``call``.
        """
        import ray  # noqa: PLC0415 - a gang's owner

        source = self.weights()
        with self._lock:
            version, weights = self._core.weights()
            ray.get(source.holder.take.remote(version, [weights]), timeout=_PUBLISH_S)
            self._published = weights  # the gang's owner owns it: it lives as long as this reference
        return version

    def status(self) -> GangStatus:
        """Say how many ranks and spares there are, and what they have been through."""
        core, seats = self._core, self._seats
        copied = seats.copies.copied
        return GangStatus(
            trainer=core.name,
            ranks=0 if self._closed else seats.size,
            spares=0 if self._closed else seats.spares,
            calls=core.number,
            generation=seats.generation,
            recoveries=core.recoveries,
            causes=tuple(core.causes),
            closed=self._closed,
            copies_behind=None if copied is None or self._closed else core.number - copied,
        )

    def close(self) -> None:
        """End all ranks, give their places back, and remove what they kept. A second call does nothing.

        A call that runs in another thread ends with its ranks.
        """
        import ray  # noqa: PLC0415 - a gang's owner

        if self._closed:
            return
        self._closed = True
        idle = self._lock.acquire(timeout=_IDLE_S)
        try:
            with harmless("gang"):
                if idle:
                    self._orders.give(END)
                    self._forget_elsewhere()
                self._seats.copies.close()
                self._hosts.close()
                forget_gang(self._seats.gang)
            if self._weights is not None:
                with contextlib.suppress(Exception):  # dead already
                    ray.kill(self._weights.holder)
        finally:
            if idle:
                self._lock.release()

    def __enter__(self) -> Self:
        """Return the gang; it is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent: the ranks go with the process that made them."""
        raise ConfigError(
            "a TrainerGang cannot be sent: use it in the process that made it; gang.weights() can be sent"
        )

    def _open(self) -> None:
        if self._closed:
            raise ConfigError(f"this gang of {self._trainer.__name__} is closed: make another one")

    def _forget_elsewhere(self) -> None:
        """Have one rank of each other node remove what was kept there."""
        import ray  # noqa: PLC0415 - a gang's owner

        by_node = {host.node: host for host in self._hosts.alive if host.process is not None}
        others = [host.actor.forget.remote() for node, host in by_node.items() if node != self._hosts.here]
        with contextlib.suppress(Exception):  # busy, or gone: the job's end removes it
            ray.get(others, timeout=_FORGET_S)


def _check(trainer: object, ranks: object, spares: object, policy: object, backend: object) -> None:
    if is_actor_class(trainer):
        raise ConfigError(
            "TrainerGang takes the plain class: the gang makes the actors, leave @ray.remote out"
        )
    if not isinstance(trainer, type):
        raise ConfigError(f"TrainerGang takes a class, got {trainer!r}")
    if not callable(getattr(trainer, "setup", None)):
        raise ConfigError(
            f"{trainer.__name__} has no setup(self, group): there it builds its model and optimizer, on each "
            "rank, and again after each fault"
        )
    refuse_unawaited(trainer, "setup")
    if state_methods(trainer) is None:
        raise ConfigError(
            f"{trainer.__name__} cannot say its state, so nothing could be restored: derive it from "
            "rayguard.TrainerMixin, or give it state_dict(self) and load_state_dict(self, state)"
        )
    _whole("ranks", ranks, 1)
    _whole("spares", spares, 0)
    if policy is not None and not isinstance(policy, GangPolicy):
        raise ConfigError(f"TrainerGang(policy=...) takes a rayguard.GangPolicy, got {policy!r}")
    if backend is not None and backend not in _BACKENDS:
        raise ConfigError(f"TrainerGang(backend=...) is one of {', '.join(_BACKENDS)}; got {backend!r}")
    if connected_ray() is None:
        raise ConfigError("Ray is not initialised: call ray.init() before rayguard.TrainerGang(...)")


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"TrainerGang's {name} must be a whole number from {least}, got {value!r}")
