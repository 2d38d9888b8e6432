"""What a vLLM frontend knows of what its core is doing: read twice a second by the watch, never at each step.

One ``CoreActivity`` for each life of a core. Everything is read from vLLM's own books and from the calls that
pass through the core's client; the core itself is never asked, as a hung one would not answer.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayguard.engine.protocol import Progress
    from rayguard.engine.vllm.client import HealingClient
    from rayguard.engine.vllm.interfaces import EngineCoreClient, FrontendRequest

# By what stops the scheduler and what lets it go on (vllm/v1/engine/core.py, 0.32).
_PAUSES = ("pause_scheduler", "pause_scheduler_async", "sleep", "sleep_async")
_RESUMES = ("resume_scheduler", "resume_scheduler_async", "wake_up", "wake_up_async")
_UNBOUNDED = 1 << 40


class CoreActivity:
    """Adds to a frontend's progress what the present core is asked to do. For one thread."""

    def __init__(self, core: EngineCoreClient) -> None:
        self._core = core
        self.paused = False  # by its owner: nothing is answered then
        self._carried: dict[str, int] | None = None  # tokens of requests that this core took over
        self._begun: set[str] = set()  # that have a token of this core, at the last look
        self._computed = 0  # prompt tokens of all that were seen to begin
        for names, paused in ((_PAUSES, True), (_RESUMES, False)):
            for name in names:
                call = getattr(core, name, None)
                if callable(call):
                    setattr(core, name, self._noting(call, paused=paused))

    def _noting(self, call: Callable[..., object], *, paused: bool) -> Callable[..., object]:
        @functools.wraps(call)
        def noting(*args: object, **kwargs: object) -> object:
            # Waking the weights alone leaves the scheduler asleep, until the cache has its memory again.
            tags = kwargs.get("tags", args[0] if args else None) if call.__name__.startswith("wake") else None
            weights_alone = isinstance(tags, Iterable) and tags and not {"kv_cache", "scheduling"} & set(tags)
            self.paused = paused or bool(weights_alone)
            return call(*args, **kwargs)

        return noting

    def add_to(self, progress: Progress, client: HealingClient) -> Progress:
        """Return ``progress`` with what the core is doing; unchanged where vLLM's books look different."""
        with contextlib.suppress(Exception):  # another vLLM: the watch then knows less, and waits longer
            beginning, ahead = self._prompts(progress.running, client)
            return replace(
                progress,
                beginning=beginning,
                ahead=ahead,
                computed=self._computed,
                asked=sum(not call.done() for call in list(self._core.utility_results.values())),
                unread=self._core.outputs_queue.qsize(),
                paused=self.paused,
            )
        return progress

    def _prompts(self, running: tuple[str, ...], client: HealingClient) -> tuple[int, int]:
        """Return how many requests have no token from this core, and what it may compute in silence for them.

        One step while others decode, as each step brings them a token; else until the first one begins.
        """
        states = client.processor.request_states
        known = {name: state for name in running if (state := states.get(name)) is not None}
        made = {name: _made(state) for name, state in known.items()}
        if self._carried is None:
            self._carried = made
        sizes = {name: state.prompt_len + self._carried.get(name, 0) for name, state in known.items()}
        begun = {name for name, count in made.items() if count > self._carried.get(name, 0)}
        self._computed += sum(sizes[name] for name in begun - self._begun)
        self._begun = begun
        waiting = [size for name, size in sizes.items() if name not in begun]
        alone = 0 if begun else max(waiting, default=0)
        return len(waiting), min(sum(waiting), self._step_tokens() + alone)

    def _step_tokens(self) -> int:
        config = getattr(getattr(self._core, "vllm_config", None), "scheduler_config", None)
        return getattr(config, "max_num_batched_tokens", None) or _UNBOUNDED


def _made(state: FrontendRequest) -> int:
    return 0 if state.detokenizer is None else state.detokenizer.num_output_tokens()
