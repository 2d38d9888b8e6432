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
_ENGINE = re.compile(r"\bfailed: (?:500|502|503)\b")


class ServerLostError(ConnectionError):
    """The server went while a call was waiting for it."""


class ServerHungError(TimeoutError):
    """The server is there, and makes no progress."""


def is_lost(error: BaseException) -> bool:
    """Say whether a call failed because nobody was there to answer it."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _NAMES) or bool(_TEXTS.search(str(error)))


def is_of_the_engine(error: BaseException) -> bool:
    """Say whether a server answered that it cannot: its engine may be dead, and it may be about to end."""
    return bool(_ENGINE.search(str(error)))
