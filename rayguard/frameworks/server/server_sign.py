"""What a server shows of itself: whether it answers, which process it is, how far it has come.

Not ``/health``: that is answered by a server whose engine is dead or frozen. Which process it is,
``/metrics`` says (``process_start_time_seconds``, as vLLM has it), else, of a server on this machine, who
listens on its port.
"""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

import psutil

_LOOK_S = 5.0
_MOST_BYTES = 8 << 20
_STARTED = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_PROGRESS = re.compile(
    r"^vllm:(?:generation_tokens|prompt_tokens|request_success)_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE
)


class Presence(Enum):
    """Whether anybody is there."""

    UP = "up"
    SILENT = "silent"  # the port is open, and nothing is answered in time: busy, or frozen
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ServerSign:
    """One look at a server. ``life`` and ``progress`` are '' and None where it does not tell."""

    presence: Presence
    life: str = ""  # another one after each restart
    progress: float | None = None  # grows with each token


def look(url: str) -> ServerSign:
    """Look at the server at ``url``; never raises, takes 5 s at most and mostly a few ms."""
    presence, text = _asked(f"{url.rstrip('/')}/metrics")
    if presence is not Presence.UP:
        return ServerSign(presence)
    started = _STARTED.search(text)
    counters = [float(one) for one in _PROGRESS.findall(text)]
    life = f"started at {started[1]}" if started else _listener(url)
    return ServerSign(presence, life, sum(counters) if counters else None)


def is_ready(url: str) -> bool:
    """Say whether it takes requests: a server that is starting answers here last."""
    return _asked(f"{url.rstrip('/')}/health", ready=True)[0] is Presence.UP


def _asked(url: str, *, ready: bool = False) -> tuple[Presence, str]:
    try:
        with urllib.request.urlopen(url, timeout=_LOOK_S) as answer:  # noqa: S310 - the trainer's own server
            return Presence.UP, answer.read(_MOST_BYTES).decode(errors="replace")
    except urllib.error.HTTPError as error:
        error.close()
        return Presence.DOWN if ready else Presence.UP, ""  # it answers, if only that it does not know
    except TimeoutError:
        return Presence.SILENT, ""
    except urllib.error.URLError as error:
        late = isinstance(error.reason, (TimeoutError, socket.timeout))
        return Presence.SILENT if late else Presence.DOWN, ""
    except (OSError, ValueError):  # it went while it answered
        return Presence.DOWN, ""


def _listener(url: str) -> str:
    """Return which process of this machine listens on the port of ``url``; '' for none, or a stranger's."""
    place = urlsplit(url)
    if place.hostname not in {"localhost", "127.0.0.1", "0.0.0.0", "::1", "::"}:  # noqa: S104 - compared with
        return ""
    try:
        for one in psutil.net_connections(kind="tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == place.port and one.pid:
                return f"process {one.pid} of {psutil.Process(one.pid).create_time()}"
    except (psutil.Error, OSError):
        pass
    return ""
