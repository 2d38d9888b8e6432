"""The first questions to a cluster whose address is all that one knows: is it Ray, which, are we let in."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

from rayguard.ray_internals.capability import Capability

if TYPE_CHECKING:
    from collections.abc import Callable

    from rayguard.ray_internals.capability import Found

_GCS, _CLIENT = "ray.core.generated.gcs_service_pb2", "ray.core.generated.ray_client_pb2"
_first = Capability(
    "first question to a cluster",
    "where something else listens, or another Ray, connecting takes a minute to fail",
    {
        "grpc": "ray._private.grpc_utils:grpc",
        "channel": "ray._private.grpc_utils:init_grpc_channel",
        "read": f"{_GCS}:InternalKVGetRequest",
        "table": f"{_GCS}_grpc:InternalKVGcsServiceStub",
        "ask": f"{_CLIENT}:ClusterInfoRequest",
        "ping": f"{_CLIENT}:ClusterInfoType.PING",
        "server": f"{_CLIENT}_grpc:RayletDriverStub",
    },
    test=lambda found: (_question(found), _ping(found)),
)
_token = Capability(
    "token of this machine",
    "RAY_AUTH_MODE=token has to be set where a cluster wants one",
    {
        "enable": "ray._private.authentication.authentication_token_setup"
        ":maybe_enable_token_auth_if_token_available"
    },
)
_nodes = Capability(
    "nodes of this machine",
    "Ray itself says that no node runs here, later and less clearly",
    {"find": "ray._private.services:find_node_ids"},
)


class HandshakeError(Exception):
    """There was no answer.

    ``code`` is gRPC's name for why: UNAUTHENTICATED where the token is missing or wrong; "NO_TOKEN" where one
    is to be used and none is here.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def cluster_versions(place: str, deadline_s: float) -> tuple[str, str]:
    """Return the versions of Ray and Python that a cluster says it runs; empty where it does not say.

    Raises:
        HandshakeError: There was no answer.
    """
    if not _first.usable():
        return "", ""
    found = _first.found()
    reply = _asked(place, lambda on: found["table"](on).InternalKVGet(_question(found), timeout=deadline_s))
    try:
        facts = json.loads(reply.value)
        return str(facts["ray_version"]), str(facts["python_version"])
    except (ValueError, KeyError, TypeError):
        return "", ""


def ping_client_server(place: str, deadline_s: float) -> None:
    """Ask a Ray Client server whether it is one.

    Raises:
        HandshakeError: There was no answer.
    """
    if _first.usable():
        found = _first.found()
        _asked(place, lambda on: found["server"](on).ClusterInfo(_ping(found), timeout=deadline_s))


def take_token() -> bool:
    """Use the token that is kept here, unless the user decided otherwise: with an address, Ray does not."""
    if os.environ.get("RAY_AUTH_MODE") is not None or not _token.usable():
        return False
    logging.getLogger("ray").setLevel(logging.ERROR)  # it would tell that it is switched on
    return bool(_token.found()["enable"](warn_if_disabled=False))


def a_node_runs_here() -> bool:
    """Say whether a node runs on this machine: Ray lets only such in. True where Ray has to say it itself."""
    return bool(_nodes.found()["find"]()) if _nodes.usable() else True


def _question(found: Found) -> object:
    return found["read"](namespace=b"cluster", key=b"CLUSTER_METADATA")


def _ping(found: Found) -> object:
    return found["ask"](type=found["ping"])


def _asked(place: str, ask: Callable[[object], Any]) -> Any:
    from ray.exceptions import AuthenticationError  # noqa: PLC0415 - only where a cluster is asked

    found = _first.found()
    try:
        with found["channel"](place, asynchronous=False) as channel:
            return ask(channel)
    except AuthenticationError:  # token mode was asked for
        raise HandshakeError("NO_TOKEN") from None
    except found["grpc"].RpcError as error:
        raise HandshakeError(error.code().name) from None
