"""Where a pool's ledger lies: where the user says, or where the next life of the actor looks for it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from pathlib import Path
from typing import Literal

from rayguard.actors.life.incarnation import Incarnation
from rayguard.errors import ConfigError
from rayguard.harmless import harmless
from rayguard.home import home
from rayguard.pool.ledger.request_ledger import NoLedger, RequestLedger, in_use

LedgerPlace = str | os.PathLike[str] | Literal[False] | None
_FOLDER, _SUFFIX = "pools", ".ledger"
_OF_ACTOR = re.compile(rf"actor-[0-9a-f]+-\d+{re.escape(_SUFFIX)}(\.new)?")
_OLD_S = 7 * 24 * 3600.0


def open_ledger(place: LedgerPlace) -> NoLedger:
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
        path = home() / _FOLDER / f"{path.name}{_SUFFIX}"
    try:
        return RequestLedger(path.expanduser().absolute())
    except OSError as error:
        raise ConfigError(f"PoolPolicy(ledger={os.fspath(place)!r}) cannot be used: {error}") from error


def _of_this_actor() -> NoLedger:
    life = Incarnation.current()
    if not life.actor_id or not life.max_restarts:
        return NoLedger()
    folder = home() / _FOLDER
    _sweep(folder)
    paths = (folder / f"actor-{life.actor_id}-{number}{_SUFFIX}" for number in itertools.count())
    return RequestLedger(next(path for path in paths if path not in in_use))


def _sweep(folder: Path) -> None:
    """Remove ledgers of actors that were not written for a week: such an actor will not ask for it again."""
    for path in folder.glob(f"actor-*{_SUFFIX}*"):
        if _OF_ACTOR.fullmatch(path.name) and path not in in_use:
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > _OLD_S:
                    path.unlink()
