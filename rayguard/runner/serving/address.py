"""Where a server can be asked on this machine, from its command line. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.dialects.job_settings import LAST_PORT
from rayguard.dialects.words import option_texts_of, program_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_SERVERS = (("swift", "rollout"), ("swift", "deploy"), ("vllm", "serve"), ("trl", "vllm-serve"))
_SERVER_MODULES = frozenset({"vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"})
_USUAL_PORT = "8000"  # of each of them
_ANY = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - what it listens on, not we
_OTHERWISE = {
    "uds": "it listens on a Unix socket",
    "ssl_certfile": "it speaks TLS",
    "ssl_keyfile": "it speaks TLS",
    "grpc": "it speaks gRPC",
    "headless": "it has no HTTP of its own",
}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where it is asked; where ``port`` is 0, ``why`` it cannot be."""

    host: str = ""
    port: int = 0
    why: str = ""


def is_known_server(words: Sequence[str]) -> bool:
    """Say whether a command is a server that is known."""
    program, module = program_of(words)
    return (program, *words[1:2]) in _SERVERS or module in _SERVER_MODULES


def address_of(words: Sequence[str]) -> ServerAddress:
    """Return where the server that ``words`` start is asked how far it is."""
    options = option_texts_of(words)
    otherwise = next((why for name, why in _OTHERWISE.items() if name in options), "")
    if otherwise:
        return ServerAddress(why=otherwise)
    if "port" not in options and "config" in options:
        return ServerAddress(why="its port may stand in the file that --config names")
    port = options.get("port", _USUAL_PORT if is_known_server(words) else None) or ""
    if not port.isdecimal() or not 0 < int(port) <= LAST_PORT:
        return ServerAddress(why="its port is not known")
    host = (options.get("host") or "").strip("[]")
    return ServerAddress(_ANY.get(host, host), int(port))
