"""Where the endpoints of all nodes are, in the words of Prometheus's service discovery.

As a file (``write``), beside the one in which Ray tells of its own endpoints, or over HTTP (``/sd`` of
``rayguard.metrics.node.endpoint``).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.private import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

FILE = "rayguard_metrics_service_discovery.json"  # Ray's is prom_metrics_service_discovery.json
JOB = "rayguard"


@dataclass(frozen=True, slots=True)
class Target:
    """One endpoint: ``address`` is ``host:port``. ``labels`` go on everything that is scraped from it."""

    address: str
    labels: Mapping[str, str] = field(default_factory=dict)


def as_json(targets: Iterable[Target]) -> bytes:
    """Return what Prometheus reads: targets with the same labels together, in a fixed order."""
    groups: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for target in targets:
        labels = tuple(sorted({"job": JOB, **target.labels}.items()))
        groups.setdefault(labels, set()).add(target.address)
    told = [{"targets": sorted(groups[labels]), "labels": dict(labels)} for labels in sorted(groups)]
    return json.dumps(told, indent=1).encode()


def write(path: Path, targets: Iterable[Target]) -> bool:
    """Make the file say where ``targets`` are, in one step; return whether it said something else before.

    Readable by all, as Ray's own: Prometheus is another user, and addresses are no secret. A symlink in its
    place is replaced and not followed. Raises ``OSError``.
    """
    content = as_json(targets)
    if _holds(path, content):
        return False
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # no name that another user could foresee
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with open(file, "wb") as stream:  # noqa: PTH123 - a descriptor, not a path
            os.fchmod(file, 0o644)  # whatever our umask is
            stream.write(content)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    return True


def _holds(path: Path, content: bytes) -> bool:
    """Say whether the file says just that; of another user's, whatever its size, no more is read."""
    with contextlib.suppress(OSError):
        return read_regular(path, len(content) + 1) == content
    return False
