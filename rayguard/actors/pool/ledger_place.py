"""Where a pool's ledger lies: where the user says, or where the next life of the actor looks for it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from pathlib import Path
from typing import Literal

from rayguard.actors.incarnation import Incarnation
from rayguard.actors.pool.ledger import Ledger, NoLedger, in_use
from rayguard.errors import ConfigError
from rayguard.recovery.harmless import harmless

Place = str | os.PathLike[str] | Literal[False] | None
_SUFFIX = ".ledger"
_OF_ACTOR = re.compile(rf"actor-[0-9a-f]+-\d+{re.escape(_SUFFIX)}(\.new)?")
_OLD_S = 7 * 24 * 3600.0


def open_ledger(place: Place) -> NoLedger:
    """Open the ledger of a pool that is being made.

    ``None``: one in a restartable actor, found again by its next life on this node (its first pool by the
    first pool there, and so on), and none elsewhere. ``False``: none. A name: in rayguard's home. A path.

    Raises:
        ConfigError: The user's ledger cannot be used.
    """
    if place is False:
        return NoLedger()
    if not (place is None or isinstance(place, (str, os.PathLike))) or place == "":
        raise ConfigError(f"PoolPolicy(ledger=...) takes a name, a path, False or None, got {place!r}")
    if place is None:
        with harmless("ledger"):
            return _of_this_actor()
        return NoLedger()
    path = Path(place)
    if path.name == str(place) and not path.suffix:
        path = _home() / f"{path.name}{_SUFFIX}"
    try:
        return Ledger(path.expanduser().absolute())
    except OSError as error:
        raise ConfigError(f"PoolPolicy(ledger={os.fspath(place)!r}) cannot be used: {error}") from error


def _of_this_actor() -> NoLedger:
    life = Incarnation.current()
    if not life.actor_id or not life.max_restarts:
        return NoLedger()
    home = _home()
    _sweep(home)
    for number in itertools.count():
        path = home / f"actor-{life.actor_id}-{number}{_SUFFIX}"
        if not in_use(path):
            return Ledger(path)
    raise AssertionError  # count() has no end


def _home() -> Path:
    from rayguard.config import Settings  # noqa: PLC0415 - pydantic, a fifth of a second

    return Settings().home / "pools"


def _sweep(home: Path) -> None:
    """Remove ledgers of actors that were not written for a week: such an actor will not ask for it again."""
    with contextlib.suppress(OSError):
        for path in home.iterdir():
            if _OF_ACTOR.fullmatch(path.name) and not in_use(path):
                with contextlib.suppress(OSError):
                    if time.time() - path.lstat().st_mtime > _OLD_S:
                        path.unlink()
