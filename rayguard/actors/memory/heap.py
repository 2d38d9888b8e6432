"""The heap of a process that has imported what it needs: no collection need walk it again."""

from __future__ import annotations

import atexit
import gc


def freeze() -> None:
    """Take what is there now out of collections until the process ends, where nobody has done so before.

    vLLM and torch bring half a million objects that stay. A full collection walks them in half a second, in
    which no request is served, and under load there is one every few seconds. At the end they are given back:
    libraries complain of what is left to them then. A forked worker shares a heap that was frozen before: to
    give that back would copy all of it.
    """
    if gc.get_freeze_count():
        return
    gc.freeze()
    atexit.register(gc.unfreeze)
