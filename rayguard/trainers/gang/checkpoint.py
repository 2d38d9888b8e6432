"""The state of a gang on a disk that all nodes share: for the loss of a node, and for the next job.

A folder for each, ``call-<number>``, with a file of each rank; complete once ``complete.json`` is in it: the
gang's owner writes that when all ranks have answered. What is not complete is passed over, and removed later.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.errors import StateLostError
from rayguard.process import state_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NAME = re.compile(r"call-(\d{1,18})")
_COMPLETE = "complete.json"
_KEPT = 2


@dataclass(frozen=True, slots=True)
class DiskState:
    """A complete checkpoint: of ``size`` ranks, after ``number`` calls."""

    folder: str
    number: int
    size: int


def write_part(place: str, number: int, rank: int, parts: Iterable[bytes | memoryview]) -> None:
    """Write one rank's part, whole or not at all.

    Raises:
        OSError: There is no room, or no right to write.
    """
    folder = _folder(place, number)
    folder.mkdir(parents=True, exist_ok=True)
    writing = folder / f".rank-{rank}.writing"
    with writing.open("wb") as file:
        for part in parts:
            file.write(memoryview(part).cast("B"))
        file.flush()
        os.fsync(file.fileno())
    writing.replace(folder / f"rank-{rank}.state")


def complete(place: str, number: int, size: int) -> None:
    """Say that all ``size`` parts are there, and remove older checkpoints but one."""
    folder = _folder(place, number)
    writing = folder / ".complete.writing"
    writing.write_text(json.dumps({"number": number, "size": size}), encoding="ascii")
    writing.replace(folder / _COMPLETE)
    for old in sorted(_numbers(place))[:-_KEPT]:
        shutil.rmtree(_folder(place, old), ignore_errors=True)


def newest(place: str) -> DiskState | None:
    """Return the newest complete checkpoint in ``place``; None where there is none."""
    for number in sorted(_numbers(place), reverse=True):
        folder = _folder(place, number)
        try:
            size = json.loads((folder / _COMPLETE).read_text("ascii"))["size"]
        except (OSError, ValueError, KeyError):
            continue
        if all((folder / f"rank-{rank}.state").exists() for rank in range(size)):
            return DiskState(str(folder), number, size)
    return None


def read_parts(state: DiskState, ranks: Sequence[int]) -> list[object]:
    """Return the parts of these ranks.

    Raises:
        StateLostError: One cannot be read.
    """
    try:
        files = (Path(state.folder) / f"rank-{rank}.state" for rank in ranks)
        return [state_bytes.from_bytes(file.read_bytes()) for file in files]
    except Exception as error:
        raise StateLostError(f"the checkpoint in {state.folder} cannot be read: {error!r}") from error


def _folder(place: str, number: int) -> Path:
    return Path(place) / f"call-{number:09d}"


def _numbers(place: str) -> list[int]:
    found = (_NAME.fullmatch(one.name) for one in Path(place).glob("call-*"))
    return [int(match[1]) for match in found if match is not None]
