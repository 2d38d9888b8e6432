"""What rayguard's own actors are called, what they are asked, and under which keys they say something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ray import ObjectRef

AGENT, SUPERVISOR = "rayguard:agent:", "rayguard:supervisor:"  # and the id of the node, or of the job

# Of lines in the cluster's table of names.
AGENT_KEY, SUPERVISOR_KEY = "agent:", "supervisor:"
STATE_KEY, TRIED_KEY, QUARANTINE_KEY = "supervisor-state:", "agent-tried:", "quarantine:"
KEYS = (AGENT_KEY, SUPERVISOR_KEY, STATE_KEY, TRIED_KEY, QUARANTINE_KEY)


class RemoteMethod(Protocol):
    """One method of an actor's handle."""

    def remote(self, *arguments: object) -> ObjectRef:
        """Ask it; wait for nothing."""


class ActorOfOurs(Protocol):
    """The handle of an agent or a supervisor."""

    hello: RemoteMethod
    stop: RemoteMethod


class AgentHandle(ActorOfOurs, Protocol):
    """The handle of a node's agent, as supervisors ask it."""

    told: RemoteMethod
    pages: RemoteMethod
