"""Which errors of a request say that its server is lost, and whether it is made again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rayguard.faults.diagnosis import Kind

_OF_ACTORS = {"ActorDiedError": Kind.ACTOR_DIED, "ActorUnavailableError": Kind.ACTOR_UNAVAILABLE}
_OF_ENGINES = {"EngineDeadError": Kind.ENGINE_DEAD}
NAIVE = "naive"  # verl's name of the way to push weights where rollouts and trainer share their GPUs
_SHARED = (
    "its trainer calls every replica as it sleeps and updates weights, also one that is lost "
    "(checkpoint_engine.backend=naive)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """How often and how long a request is made again.

    ``repeats``: after servers that were lost under it; a request that ends more of them is likely at fault.
    ``returns``: after servers that were known as lost, and put back by somebody. ``within_s``: from the
    first loss to the last new attempt's begin. ``ask_s``: for an answer of the balancer, or of a server.
    """

    repeats: int = 2
    returns: int = 8
    within_s: float = 600.0
    ask_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOut:
    """What a balancer did about a lost server.

    ``first``: nobody has told it that before; ``back``: it was known as lost and stood there again;
    ``others``: how many servers are left to ask.
    """

    first: bool
    back: bool
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What one request has gone through."""

    struck: int = 0
    returned: int = 0

    def with_one(self, taken: TakenOut | None) -> Losses:
        """Return them with one more."""
        back = taken is not None and taken.back
        return Losses(struck=self.struck + (not back), returned=self.returned + back)

    def why_not_again(
        self, taken: TakenOut | None, limits: RolloutLimits, *, since_s: float, backend: str
    ) -> str:
        """Say why the request is not made again; '' if it is. ``since_s``: seconds since the first loss."""
        if taken is None:
            return "the load balancer did not take it out"
        reasons = {
            _SHARED: backend == NAIVE,
            "no other replica is left": not taken.others,
            f"{self.struck} servers were lost under this request": self.struck > limits.repeats,
            "servers that are lost are put back again and again": self.returned > limits.returns,
            f"the first loss is {since_s:.0f} s ago": since_s > limits.within_s,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")


def loss_of(error: BaseException, actor: str) -> Kind | None:
    """Return how the server, the actor of this id, is lost; None where ``error`` does not say so.

    An error of Ray that a server's own code met (another actor died) comes as one of its task: it is the
    caller's.
    """
    names = [kind.__name__ for kind in type(error).__mro__]
    if "RayTaskError" in names:
        names += [kind.__name__ for kind in type(getattr(error, "cause", None)).__mro__]
        return next((_OF_ENGINES[name] for name in names if name in _OF_ENGINES), None)
    of = getattr(error, "actor_id", None)
    if isinstance(of, str) and of and of != actor:
        return None
    return next((_OF_ACTORS[name] for name in names if name in _OF_ACTORS), None)
