"""Hours in the life of an engine, as its watch sees them: simulated on a clock of their own, by seed.

Every stretch is one that real engines have and survive: long prefills with a heavy tail, cold compiles,
preempted requests, a starved machine, a disk that stalls, a machine that sleeps, weight pushes, an owner that
pauses, blocks or debugs. ``hung`` continues an hour at any look with one that none survives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rayguard.engine.hangs.watchdog import Hang, Limits, Observation, Phase, WatchState, judge

LIMITS = Limits()  # those of GuardPolicy()


@dataclass(frozen=True)
class Stretch:
    """``seconds`` of one kind. ``step_s`` draws the time between signs of progress; None: there are none."""

    seconds: float
    phase: Phase
    cores: float
    states: tuple[str, ...] = ("S", "S")
    step_s: Callable[[], float] | None = None
    slept: bool = False  # nobody ran, the watch neither


class Life:
    """One seeded engine and its machine."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.step_s = rng.lognormvariate(-3.5, 0.7)  # of decoding: 30 ms, from 5 to 200
        self.threads = rng.choice([1.0, 1.0, 2.0, 8.0])
        self.tail = rng.uniform(1.1, 1.6)

    def hour(self) -> Iterator[Stretch]:
        rng = self.rng
        yield self._computing(Phase.PREFILL, rng.uniform(1, 250))  # the first request compiles
        kinds = [
            *[self._decode] * 12,
            *[self._prefill] * 6,
            *[self._idle] * 2,
            self._preempted,
            self._starved,
            self._disk,
            self._slept,
            self._away,
            self._push,
        ]
        while True:
            yield from rng.choice(kinds)()

    def _computing(self, phase: Phase, seconds: float) -> Stretch:
        return Stretch(seconds, phase, self.threads * self.rng.uniform(0.6, 1.0), ("S", "R"))

    def _steps(self) -> float:
        return self.step_s * self.rng.lognormvariate(0, 0.5)

    def _decode(self) -> Iterator[Stretch]:
        yield replace(self._computing(Phase.DECODE, self.rng.uniform(5, 60)), step_s=self._steps)

    def _prefill(self) -> Iterator[Stretch]:
        yield self._computing(Phase.PREFILL, min(240.0, 0.2 * self.rng.paretovariate(self.tail)))

    def _idle(self) -> Iterator[Stretch]:
        yield Stretch(self.rng.expovariate(1 / 20), Phase.IDLE, 0.0)

    def _preempted(self) -> Iterator[Stretch]:
        yield self._computing(Phase.DECODE, self.rng.uniform(0.5, 5))

    def _starved(self) -> Iterator[Stretch]:
        phase = self.rng.choice([Phase.DECODE, Phase.PREFILL])
        yield Stretch(self.rng.uniform(5, 120), phase, self.rng.uniform(0.0, 0.2), ("R", "S"))

    def _disk(self) -> Iterator[Stretch]:
        yield Stretch(
            self.rng.uniform(5, 120), self.rng.choice([Phase.DECODE, Phase.PREFILL]), 0.01, ("S", "D")
        )

    def _slept(self) -> Iterator[Stretch]:
        yield Stretch(self.rng.uniform(3, 1000), Phase.DECODE, 0.0, ("T", "T"), slept=True)

    def _away(self) -> Iterator[Stretch]:
        yield Stretch(self.rng.uniform(1, 600), Phase.AWAY, 0.0)

    def _push(self) -> Iterator[Stretch]:
        yield Stretch(self.rng.uniform(0.5, 100), Phase.CALL, self.rng.choice([0.0, 1.0]))


def observed(life: Life, hours: float) -> Iterator[Observation]:
    """Yield what a watch sees of ``life``, twice a second, a little late as on a machine with work."""
    rng, at_s, cpu_s, progress = life.rng, 0.0, 0.0, 0
    look_s = 0.0
    for stretch in life.hour():
        end_s = at_s + stretch.seconds
        step_s = at_s if stretch.step_s is None else at_s + stretch.step_s()
        if stretch.slept:
            look_s = end_s
        while look_s < end_s:
            cpu_s += stretch.cores * (look_s - at_s)
            at_s = look_s
            while stretch.step_s is not None and step_s <= at_s:
                progress, step_s = progress + 1, step_s + stretch.step_s()
            yield Observation(
                at_s=at_s,
                progress=progress,
                running=0 if stretch.phase is Phase.IDLE else 4,
                cpu_s=cpu_s,
                states=stretch.states,
                phase=stretch.phase,
            )
            look_s += 0.5 + rng.expovariate(1 / 0.02)
        cpu_s += stretch.cores * (end_s - at_s)
        at_s = end_s
        progress += stretch.phase not in {Phase.IDLE, Phase.AWAY}  # what it did came to its end
        if at_s > hours * 3600:
            return


_HUNG = {  # what hangs look like: cores in use, states
    Hang.STOPPED: (0.0, ("T", "S")),
    Hang.IDLE: (0.001, ("S", "S")),
    Hang.BUSY: (0.95, ("R", "S")),
}


def found_after_s(state: WatchState, hang: Hang, rng: random.Random) -> float:
    """Hang the engine at a random moment after the last look; return how long the watch takes to say so."""
    last, (cores, states) = state.newest, _HUNG[hang]
    began_s = last.at_s + rng.uniform(0, 0.5)
    at_s, progress = last.at_s + 0.5, last.progress + 1  # it worked up to that moment
    spun_s = 1.0 if hang is Hang.IDLE else 0.0  # vLLM's readers, before they sleep
    while True:
        hung_s = at_s - began_s
        seen = replace(
            last,
            at_s=at_s,
            progress=progress,
            cpu_s=last.cpu_s + cores * hung_s + min(spun_s, hung_s),
            states=states,
        )
        state, verdict = judge(state, seen, LIMITS)
        if verdict is not None:
            return hung_s
        at_s += 0.5 + rng.expovariate(1 / 0.02)
