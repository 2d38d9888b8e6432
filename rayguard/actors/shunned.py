"""Nodes that get no work for a while, as the jobs' supervisors say, and how new actors are kept off them.

Whether a node is shunned is ``rayguard.cluster.quarantine``. Ray cannot be told for actors that exist: it may
start them again there. What is placed anew goes elsewhere, as long as there is room elsewhere.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from rayguard.recovery.harmless import harmless

KEY = "quarantine:"
_NAMESPACE = b"rayguard"
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


def elsewhere(options: dict[str, Any]) -> dict[str, Any]:
    """Return options that keep a new actor off shunned nodes where there is room; none if the user placed it.

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
    from ray.experimental.internal_kv import internal_kv_get_gcs_client  # noqa: PLC0415 - only where Ray runs

    table = internal_kv_get_gcs_client()
    if table is None:
        return {}
    found: dict[str, float] = {}
    for key in table.internal_kv_keys(KEY.encode(), _NAMESPACE, _DEADLINE_S) or ():
        line = table.internal_kv_get(key, _NAMESPACE, _DEADLINE_S)
        if line is not None:
            found[key.decode().removeprefix(KEY)] = float(json.loads(line)["until"])
    return found
