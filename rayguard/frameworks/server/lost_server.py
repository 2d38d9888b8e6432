"""Which errors of a call say that the server is gone, or that its engine is. Pure."""

from __future__ import annotations

import re

_NAMES = frozenset(
    {
        "ConnectionError",
        "Timeout",
        "ChunkedEncodingError",
        "ProtocolError",
        "IncompleteRead",
        "RemoteDisconnected",
    }
)
# ms-swift joins the errors of several servers into one text.
_TEXTS = re.compile(
    r"ConnectionError\(|Connection(?:Refused|Reset|Aborted)Error|RemoteDisconnected|Connection aborted|"
    r"ChunkedEncodingError\(|ReadTimeout\("
)
# ms-swift names the code of ``infer`` alone. The second line is of the group for weights, of which a worker
# that has died was a member, in a server that lives on.
_ENGINE = re.compile(
    r"\bfailed: (?:500|502|503|Internal Server Error)\b|"
    r"\bDist\w*Error\(|Failed to broadcast barrier_id|Failed to signal barrier|Barrier timed out"
)
_OF_A_GROUP = "DistError"  # what torch.distributed raises


class ServerLostError(ConnectionError):
    """The server went while a call was waiting for it."""


class ServerHungError(TimeoutError):
    """The server is there, and makes no progress."""


def is_lost(error: BaseException) -> bool:
    """Say whether a call failed because nobody was there to answer it."""
    return bool(_kinds(error) & _NAMES) or bool(_TEXTS.search(str(error)))


def is_of_the_engine(error: BaseException) -> bool:
    """Say whether a server answered that it cannot, or took no weights.

    Its engine may be dead, and it may be about to end.
    """
    return _OF_A_GROUP in _kinds(error) or bool(_ENGINE.search(str(error)))


def _kinds(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}
