"""What ranks and driver of a trial leave for each other and for the oracle: small files in its folder.

Times are of the monotonic clock, which is one for all processes of a machine. Loads as little as it can.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def mark(folder: str | Path, name: str) -> bool:
    """Leave a mark with the time; False where it is there already: this is not the first attempt."""
    try:
        descriptor = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    os.write(descriptor, repr(time.monotonic()).encode())
    os.close(descriptor)
    return True


def marks(folder: Path, prefix: str) -> dict[str, float]:
    """Return the times of all marks whose name begins so, by the rest of the name."""
    found = sorted(folder.glob(f"{prefix}*"))
    return {one.name[len(prefix) :]: float(one.read_text() or "nan") for one in found}


def note(folder: str | Path, name: str, line: str) -> None:
    """Add a line to a file, in one piece, also where the process ends in the next moment."""
    descriptor = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def notes(folder: Path, prefix: str) -> dict[str, list[str]]:
    """Return the lines of all files whose name begins so, by the rest of the name."""
    return {one.name[len(prefix) :]: one.read_text().split() for one in sorted(folder.glob(f"{prefix}*"))}
