"""What this process holds open: for tests that nothing is left open."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path


def open_files() -> Counter[str]:
    """Count the open descriptors of this process by what they lead to.

    Compare with ``not open_files() - before``: what an earlier test left behind may be closed meanwhile, by a thread
    of Ray's.
    """
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile: that of this very listing is one
            found[str(entry.readlink())] += 1
    return found
