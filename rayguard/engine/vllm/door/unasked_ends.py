"""Ends that a core makes by itself: at a SIGTERM it answers all that runs with what there is, as "abort".

Nobody wished for them, so they are taken out, and the requests go on with the next core. Where the core stays
after all, its word holds after a while, as it does in bare vLLM: no caller waits for ever.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from rayguard.engine.vllm.door.calls import CallDoor
    from rayguard.engine.vllm.interfaces import EngineCoreOutput

STAYS_S = 20.0  # a core that goes is gone by then, and another has taken over


class UnaskedEnds:
    """Those of one core.

    Args:
        calls: Knows which of the owner's calls end what runs; None where nothing can be known.
        hand_out: Gives the frontend ends that had been taken out, unless another core has taken over. It is
            called in a thread of its own.
    """

    def __init__(self, calls: CallDoor | None, hand_out: Callable[[list[EngineCoreOutput]], None]) -> None:
        self._calls = calls
        self._hand_out = hand_out
        self._stand: set[str] = set()  # requests whose end is handed out after all

    def without(self, outputs: list[EngineCoreOutput], running: Container[str]) -> list[EngineCoreOutput]:
        """Return ``outputs`` without ends of requests in ``running`` that nobody asked for."""
        ends = [one for one in outputs if one.finish_reason is not None and self._unasked(one, running)]
        if not ends:
            return outputs
        later = threading.Timer(STAYS_S, self._let_stand, (ends,))
        later.daemon = True
        later.start()
        return [one for one in outputs if not any(one is end for end in ends)]

    def _unasked(self, output: EngineCoreOutput, running: Container[str]) -> bool:
        if getattr(output.finish_reason, "name", "") != "ABORT" or output.request_id not in running:
            return False
        return (
            self._calls is not None
            and output.request_id not in self._stand
            and not self._calls.ends_requests()
        )

    def _let_stand(self, ends: list[EngineCoreOutput]) -> None:
        self._stand.update(one.request_id for one in ends)
        self._hand_out(ends)
