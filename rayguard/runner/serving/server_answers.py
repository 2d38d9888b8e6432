"""Asking a server on this machine: what it counts, and whether it was told to pause.

Each answer has a deadline. No proxy of the environment is asked, and nothing is sent that changes anything.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayguard.runner.serving.address import ServerAddress

_MOST_BYTES = 16 << 20
_BLOCK_BYTES = 1 << 16
_OK = 200


def metrics_of(address: ServerAddress, within_s: float) -> str | None:
    """Return the text of ``/metrics``, '' where there is none; None where it is not answered in time."""
    return _asked(address, "/metrics", within_s)


def is_paused(address: ServerAddress, within_s: float) -> bool:
    """Say whether it was told to make nothing: vLLM's servers tell that where they take weights."""
    text = _asked(address, "/is_paused", within_s)
    with contextlib.suppress(ValueError, AttributeError):
        return json.loads(text or "{}").get("is_paused") is True
    return False


def _asked(address: ServerAddress, path: str, within_s: float) -> str | None:
    until = time.monotonic() + within_s
    connection = http.client.HTTPConnection(address.host, address.port, timeout=within_s)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        text = bytearray()
        while chunk := answer.read1(_BLOCK_BYTES):
            text += chunk
            if len(text) > _MOST_BYTES or time.monotonic() > until:
                return None
        return text.decode(errors="replace") if answer.status == _OK else ""
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
