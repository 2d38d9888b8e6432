"""Names of Ray's modules by which frames, classes and functions of its own are told from a user's."""

from __future__ import annotations

# The way from a user's call into Ray. Any other module of Ray that makes objects does so for itself: a data
# set's blocks, a server's replies. Those are never the user's to end.
CALLED_BY_USERS = (
    "ray._private.",
    "ray.actor",
    "ray.remote_function",
    "ray._raylet",
    "ray.util.tracing",
    "ray._common.",
)

# Ray's machinery. Libraries that run users' code (Train, Data, RLlib) are none of it.
MACHINERY = ("ray._private.", "ray.dashboard.", "ray.serve.", "ray.util.client.", "ray.autoscaler.")


def user_class(cls: type) -> type:
    """Return the class that a user wrote, of the one that Ray makes of it for an actor; else ``cls``."""
    found: type = getattr(cls, "__ray_actor_class__", cls)
    return found
