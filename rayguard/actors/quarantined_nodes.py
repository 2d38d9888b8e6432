"""Nodes that get no work for a while, as the jobs' supervisors say, and how new actors are kept off them.

Whether a node is one of them is ``rayguard.cluster.supervisor.quarantine``. Ray cannot be told for actors
that exist: it may start them again there. What is placed anew goes elsewhere, as long as there is room.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from rayguard.harmless import harmless
from rayguard.ray_internals import kv

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = "quarantine:"
_DEADLINE_S = 2.0
_FRESH_S = 5.0  # between two questions to Ray's control process: a pool hires many at once
_BY_USER = ("scheduling_strategy", "label_selector", "fallback_strategy", "placement_group")
_LABEL = "ray.io/node-id"  # each node has it by itself, from Ray 2.49 on

_lock = threading.Lock()
_known: tuple[float, dict[str, float]] = (float("-inf"), {})


def quarantined_nodes() -> dict[str, float]:
    """Return the nodes in quarantine, and until when (wall clock, seconds). Empty where nobody knows."""
    global _known  # noqa: PLW0603 - one answer for all pools of the process
    with _lock:
        asked_at, found = _known
        if time.monotonic() - asked_at > _FRESH_S:
            found = {}
            with harmless("quarantine"):
                found = _asked()
            _known = time.monotonic(), found
    now = time.time()
    return {node: until for node, until in found.items() if until > now}


def elsewhere(options: Mapping[str, object]) -> dict[str, object]:
    """Return options that keep a new actor off these nodes where there is room; none if the user placed it.

    ``options`` are those of the actor already.
    """
    nodes = sorted(quarantined_nodes())
    if not nodes or any(options.get(name) not in (None, "DEFAULT") for name in _BY_USER):
        return {}
    return {
        "label_selector": {_LABEL: f"!in({','.join(nodes)})"},
        "fallback_strategy": [{"label_selector": {}}],  # rather there than nowhere
    }


def _asked() -> dict[str, float]:
    if not kv.connected():
        return {}
    return {node: float(line["until"]) for node, line in kv.records(KEY, deadline_s=_DEADLINE_S).items()}
