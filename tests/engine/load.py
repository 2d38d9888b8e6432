"""An engine that is never without work, and the faults that are to strike it meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time

from rayguard.engine.hangs.watchdog import LEARNED, Phase
from tests.engine.real import PROMPTS, Owner

TOKENS = 80
PATIENCE_S = 250.0  # less than the 300 s that a silence which computes may take where the pace tells nothing
_ids = itertools.count()


def until(condition, what=str, limit_s=PATIENCE_S):
    """Wait for ``condition``; fail with what ``what()`` says."""
    pause, began = threading.Event(), time.monotonic()
    while not condition():
        assert time.monotonic() - began < limit_s, what()
        pause.wait(0.02)


class Looped(Owner):
    """An owner whose ``AsyncLLM`` lives on a loop in a thread of its own."""

    def __init__(self, model, kind, **more):
        super().__init__(model, kind, **more)
        self.loop = asyncio.new_event_loop()
        self._runs = threading.Thread(target=self.loop.run_forever, name="loop")
        self._runs.start()

    def run(self, coroutine, limit_s=60.0):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(limit_s)

    def close(self):
        self.stop_engine()
        self.run(_cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._runs.join(30)
        self.loop.close()

    @property
    def engine(self):
        return self._engine_slot.engine(PATIENCE_S).handle

    @property
    def watched(self):
        """What the watch knows of the present engine, or None."""
        looking = self._engine_slot._lives._watch._looking
        return None if looking is None else looking._watchdog.state


class Load:
    """Asks ``owner`` again and again, in a thread of its own, and counts whole answers."""

    def __init__(self, owner):
        self.owner = owner
        self.answered = 0
        self.failed = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")

    def _run(self):
        try:
            if self.owner.kind == "LLM":
                self._one_by_one()
            else:
                self.owner.run(self._all_at_once(), None)
        except BaseException as error:
            self.failed = error

    def _one_by_one(self):
        while not self._stop.is_set():
            self._count(self.owner.with_engine(lambda e: e.generate(3 * PROMPTS, params(), use_tqdm=False)))

    async def _all_at_once(self):
        # More than the engine runs at once: under load there is always a queue.
        await asyncio.gather(*(self._ask_on(prompt) for prompt in 3 * PROMPTS))

    async def _ask_on(self, prompt):
        while not self._stop.is_set():
            self._count([await self.owner.with_engine(lambda e: _last(e, prompt))])

    def _count(self, outputs):
        assert all(len(output.outputs[0].token_ids) == TOKENS for output in outputs), outputs
        self.answered += len(outputs)

    def told(self):
        """Say how far it is, for the one who waited in vain."""
        return self.answered, self.owner.engine_status(), self.owner.watched

    def learned(self):
        """Say whether the watch knows the pace of the present engine."""
        state = self.owner.watched
        return bool(state and Phase.DECODE in state.paces and state.paces[Phase.DECODE].seen >= LEARNED)

    def asks(self):
        """Say whether the engine has requests: the pace may be known from the load before."""
        return self.owner.engine_status()["requests_running"] > 0

    @contextlib.contextmanager
    def going(self):
        """Run; inside, the engine's pace is learned and it is asked. At the end all have their whole answers."""
        self._thread.start()
        try:
            until(lambda: self.failed or (self.learned() and self.asks()), self.told)
            yield self
            before = self.answered
            until(lambda: self.failed or self.answered > before + len(PROMPTS), self.told)
        finally:
            self._stop.set()
            self._thread.join(PATIENCE_S)
        assert self.failed is None, self.failed
        assert not self._thread.is_alive()


async def _cancel_all():
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def params():
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, repetition_penalty=1.3)


async def _last(engine, prompt):
    final = None
    async for output in engine.generate(prompt, params(), f"load-{next(_ids)}"):
        final = output
    return final
