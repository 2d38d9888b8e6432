"""What a call of a group of actors does to their state, by the name of the method. Pure.

The names are those of OpenRLHF 0.11. What any other one does is not known, and it is not made again.
"""

from __future__ import annotations

from rayguard.frameworks.worker_groups.calls import Effect

INIT = "init_model_from_pretrained"
# Where a rank dies in the midst of one of these it is not made again, and why.
NOT_TWICE = {
    "broadcast_to_vllm": "engines may wait in it for ever",
    "save_checkpoint": "each time it begins it removes an older checkpoint",
}
_KNOWN = {
    **dict.fromkeys(
        ("forward", "empty_cache", "get_checkpoint_states", "save_model", "get_master_addr_port", *NOT_TWICE),
        Effect.NONE,
    ),
    **dict.fromkeys(("append", "fit", "reload_states", "offload_states"), Effect.UPDATE),
    INIT: Effect.SETTING,
}


def effect_of(name: str) -> Effect | None:
    """Return what a method does; None where that is not known."""
    return _KNOWN.get(name)
