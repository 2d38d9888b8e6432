"""Which environment variables make a process with imports unfit for another that has other values now.

What a module has made a constant of, at its import, a fork cannot change. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayguard.engine.prefork import child

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

# Read by C code when a library is loaded, so that no Python hook sees it.
_READ_IN_C = re.compile(r"(OMP|KMP|GOMP|MKL|PYTORCH|MALLOC|LD)_")
# NVML and CUDA start in the child; the other is applied there.
_FIT_IN_CHILD = frozenset({"CUDA_VISIBLE_DEVICES", child.DYNAMIC_THREADS})


@dataclass(frozen=True, slots=True)
class ImportedWith:
    """The variables of process ``pid`` before its imports and after, and which of them those looked up."""

    pid: int
    before: Mapping[str, str]
    after: Mapping[str, str]
    read: AbstractSet[str]

    def differs(self, now: Mapping[str, str]) -> tuple[str, ...]:
        """Return the variables that were looked up and are others in ``now``."""
        read = {*self.read, *filter(_READ_IN_C.match, {*now, *self.before})}
        # vLLM sets some at its import, there as in the owner: the values before and after are right.
        ends = (self.before, self.after)
        differs = {name for name in read if now.get(name) not in {end.get(name) for end in ends}}
        if now.get("OMP_NUM_THREADS", "").isdigit():
            differs.discard("OMP_NUM_THREADS")  # the child applies it
        if "LD_PRELOAD" in differs and self._has_loaded(now.get("LD_PRELOAD", "")):
            differs.discard("LD_PRELOAD")  # vLLM's CPU platform sets it to torch's own libgomp
        return tuple(sorted(differs - _FIT_IN_CHILD))

    def _has_loaded(self, libraries: str) -> bool:
        try:
            maps = Path(f"/proc/{self.pid}/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return all(library in maps for library in re.split(r"[ :]+", libraries))
