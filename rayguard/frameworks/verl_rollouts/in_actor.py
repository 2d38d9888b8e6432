"""What is run within verl's own actors: its load balancer, and its servers. All in one step of the actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.frameworks.verl_rollouts.lost_servers import TakenOut
from rayguard.ray_internals.actor_classes import actor_id

if TYPE_CHECKING:
    from rayguard.frameworks.verl_rollouts.interfaces import LoadBalancer

_TOLD = "_rayguard_told"  # in the balancer: the actors that were told of, and whether they are out


@dataclass(frozen=True, slots=True)
class ServerLook:
    """``engine_dead``: it says so; ``step``: of the last update that has reached this very process."""

    engine_dead: bool
    step: object

    @property
    def has_weights(self) -> bool:
        """Say whether an update has reached it."""
        return self.step is not None


def take_out(balancer: LoadBalancer, server: str, actor: str, *, remove: bool) -> TakenOut:
    """Have nobody sent to a lost server any more, and say what there was; noted only without ``remove``.

    The last one stays: verl's clients would wait for ever for an empty balancer to fill up
    (``FullyAsyncLLMServerClient(only_hybrid=True)``), where a dead server at least gives them its error.
    """
    told: dict[str, bool] = vars(balancer).setdefault(_TOLD, {})
    servers = list(balancer.get_all_servers())
    handle = (vars(balancer).get("_servers") or {}).get(server)
    # Another one may stand at its address by now.
    here = server in servers and (handle is None or actor_id(handle) == actor)
    others = len(servers) - (here and remove)
    first, back = not told.get(actor, False), told.get(actor, False) and here
    if actor in told and not remove:
        first = False
    if here and others and remove:
        balancer.remove_servers([server])
    told[actor] = told.get(actor, False) or remove
    return TakenOut(first=first, back=back, others=others)


def take_place(balancer: LoadBalancer, lost: str, lost_actor: str, server: str, handle: object) -> bool:
    """Have a new server sent requests, and the lost one none."""
    balancer.add_servers({server: handle})
    if lost != server:  # else it has taken its place by now
        take_out(balancer, lost, lost_actor, remove=True)
    return True


def look(server: object) -> ServerLook:
    """Say how a server is: one that Ray started anew has no step, until weights have reached it."""
    engine = getattr(server, "engine", None)
    return ServerLook(
        engine_dead=getattr(engine, "errored", False) is True,
        step=getattr(server, "global_steps", None),
    )
