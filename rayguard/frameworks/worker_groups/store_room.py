"""How much of this node's object store may be used: more would push others' objects to disk."""

from __future__ import annotations

_STORE_RATIO = 0.2


def room_bytes() -> int:
    """Return that many bytes."""
    import ray  # noqa: PLC0415 - only where a group was made

    here_is = ray.get_runtime_context().get_node_id()
    stores = [
        node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["NodeID"] == here_is
    ]
    return int(sum(stores) * _STORE_RATIO)
