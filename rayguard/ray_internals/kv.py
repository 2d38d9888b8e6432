"""The table of names that Ray's control process keeps: it survives an actor, its node and a driver.

Everybody who keeps something there asks through here. Not for more than some kilobytes: it lives in the
memory of the control process.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rayguard.ray_internals.capability import Capability

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMESPACE = b"rayguard"
DEADLINE_S = 10.0  # without one, a question to a control process that is down waits for a minute

_kv = Capability(
    "table of names",
    "what should outlive a process is not kept: an actor's restarts, its saved state, quarantines, agents",
    # The client itself and not ray.experimental's functions around it: those take no deadline.
    {"client": "ray.experimental.internal_kv:internal_kv_get_gcs_client"},
    parts=(
        "internal_kv_get",
        "internal_kv_put",
        "internal_kv_del",
        "internal_kv_keys",
        "internal_kv_multi_get",
    ),
)


def connected() -> bool:
    """Say whether there is a table to ask in this process."""
    return _kv.usable() and _kv.found()["client"]() is not None


def get(key: str, *, deadline_s: float = DEADLINE_S) -> bytes | None:
    """Return what is kept under ``key``; None for nothing.

    This and all others here:

    Raises:
        RuntimeError: Ray does not run in this process.
        CapabilityOffError: Ray has moved its table.
    """
    value: bytes | None = _client().internal_kv_get(key.encode(), NAMESPACE, deadline_s)
    return value


def put(key: str, value: bytes, *, overwrite: bool = True, deadline_s: float = DEADLINE_S) -> bool:
    """Keep ``value`` under ``key``; say whether the key is new."""
    return bool(_client().internal_kv_put(key.encode(), value, overwrite, NAMESPACE, deadline_s))


def delete(key: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Take ``key`` out."""
    _client().internal_kv_del(key.encode(), False, NAMESPACE, deadline_s)  # noqa: FBT003 - a C signature


def keys(prefix: str, *, deadline_s: float = DEADLINE_S) -> list[str]:
    """Return the keys that begin so."""
    return [key.decode() for key in _client().internal_kv_keys(prefix.encode(), NAMESPACE, deadline_s) or ()]


def put_record(key: str, record: Mapping[str, object]) -> None:
    """Keep plain JSON values under ``key``."""
    put(key, json.dumps(record).encode())


def records(prefix: str, *, deadline_s: float = DEADLINE_S) -> dict[str, dict[str, Any]]:
    """Return the records whose keys begin so, by the rest of their keys."""
    wanted = [key.encode() for key in keys(prefix, deadline_s=deadline_s)]
    lines = _client().internal_kv_multi_get(wanted, NAMESPACE, deadline_s) if wanted else {}
    return {key.decode().removeprefix(prefix): dict(json.loads(line)) for key, line in lines.items()}


def _client() -> Any:
    client = _kv.found()["client"]()
    if client is None:
        raise RuntimeError("Ray is not running in this process")
    for name in _kv.parts:
        _kv.part(client, name)
    return client
