"""What an audit costs: an ``AsyncLLM`` that is never without work, with ``GuardPolicy.audit`` and without.

One real vLLM engine on the CPU, in short alternating blocks as in ``bench_throughput``, which prints what is
measured here beside its own figures. Each audited answer is made again beside the others, so the share that is
audited is what it should cost.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track

from rayguard.engine.audit import Audit
from rayguard.engine.vllm.questions.audited import AuditedRequests
from rayguard.recovery.tally import EngineTally
from tests.engine.load import Looped, until

SHARE = 1 / 16
REQUESTS, TOKENS, AT_ONCE = 64, 64, 12  # of a block; fewer at once than the engine has places
ARMS = ("bare", "audited", "audited", "bare")
_ids = itertools.count()


class Audited:
    """An engine whose answers are audited in some blocks and not in others."""

    def __init__(self, model: str) -> None:
        self.owner = Looped(model, "AsyncLLM")
        self.owner.start_engine()
        slot = self.owner._engine_slot
        self.tally, self.wrong, self.taken = EngineTally("bench"), [], 0
        self.audit = Audit(
            SHARE,
            0.5,
            ready=lambda: slot.ready,
            wrong=lambda *told: self.wrong.append(told),
            tally=self.tally,
        )
        client = slot.engine(60.0).client
        self.inflight, self.listener = client.inflight, AuditedRequests(self.audit, client)

    def block(self, arm: str) -> float:
        """Return the seconds of one block; audits that are under way at its end are waited for, uncounted."""
        self.inflight.audited = self.listener if arm == "audited" else None
        began = time.perf_counter()
        self.owner.run(self._all(), 600.0)
        took = time.perf_counter() - began
        self.taken += round(REQUESTS * SHARE) if arm == "audited" else 0
        until(lambda: self.tally.audited >= self.taken, lambda: f"{self.tally} of {self.taken}")
        return took

    async def _all(self) -> None:
        places = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._one(n, places) for n in range(REQUESTS)))

    async def _one(self, number: int, places: asyncio.Semaphore) -> None:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        async with places:
            prompt = {"prompt_token_ids": [20 + number, 7, 90, 11]}
            async for _ in self.owner.engine.generate(prompt, params, f"b{next(_ids)}"):
                pass


def measured(model: Path, groups: int) -> list[list[tuple[str, float]]]:
    """Return the seconds of each block, by group and arm."""
    os.environ["RAYGUARD_HOME"] = tempfile.mkdtemp(prefix="rayguard-audit-")
    bench = Audited(str(model))
    for arm in ARMS:
        bench.block(arm)
    numbers = track(range(groups), "Audited and not", console=Console(stderr=True))
    found = [[(arm, bench.block(arm)) for arm in ARMS] for _ in numbers]
    assert not bench.wrong, bench.wrong
    bench.owner.close()
    return found
