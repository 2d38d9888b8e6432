"""The death of a pool's owner: an actor that Ray restarts, whose call Ray repeats.

Its engines wait for its next life. What that owes, and what it knows, it has from its ledger and from the
token logs of its actors. The way of a trial is as in ``arena``, but nobody watches this pool from inside: the
watcher would die with it.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import ray

import rayguard
from rayguard.process.identity import ProcessId
from tests.benchmarks.trials import rollouts, score, stage
from tests.benchmarks.trials.arena import ATTEMPTS
from tests.benchmarks.trials.batch import ANSWER_S
from tests.benchmarks.trials.observer import Notes, Sent
from tests.benchmarks.trials.rest import gone
from tests.benchmarks.trials.score import Outcome
from tests.benchmarks.trials.segments import Segments
from tests.benchmarks.trials.strike import MOMENT_S, STATUS_S, servers_of
from tests.benchmarks.trials.witness import CoreWitness, Crowd, core_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.benchmarks.trials.oracle import Oracle, Question
    from tests.benchmarks.trials.plan import Trial
    from tests.benchmarks.trials.witness import SeenRequest

_END_S = 60.0
_DYING_S = 10.0  # of actors whose owner is gone
_COMES_S = 30.0  # until Ray has begun its next life
# What dies with it, by the variant of a trial; or soon after it.
ALONE, CORE, ACTOR, SERVERS, NEXT_LIFE = "nobody", "a core", "an actor", "servers", "its next life"
WITH = (ALONE, CORE, ALONE, ACTOR, SERVERS, NEXT_LIFE)
_LOOK_S = 0.001


class Holder:
    """Owns a pool, as a user's controller actor does."""

    def __init__(self, folder: str, engines: int) -> None:
        kind, options = rollouts.OwnedRollout, {"num_cpus": 0}
        policy = rayguard.PoolPolicy(progress=False, spares=kind.SPARES)
        self.pool: Any = rayguard.RolloutPool(kind, folder, engines=engines, options=options, policy=policy)

    def generate(self, prompts: list[Any], sampling: list[Any], ids: list[str]) -> list[Any]:
        """Ask for a batch; Ray repeats this call in the next life."""
        batch = self.pool.generate(prompts, sampling, ids=ids, deadline_s=ANSWER_S, partial="shrink")
        return [*batch, *batch.missing]

    def ready(self) -> tuple[ProcessId, list[ProcessId], list[ProcessId]]:
        """Return who owns the pool, its actors and their engines' cores, once all engines serve."""
        self.pool.wait_ready(timeout_s=stage.START_S)
        engines = self.pool.status()["engines"].values()
        calls = [handle.engine_status.remote() for handle in self.pool.handles.values()]
        cores = [one["pids"]["core"] for one in ray.get(calls, timeout=STATUS_S)]
        return ProcessId.me(), _known(one["pid"] for one in engines), _known(cores)

    def update_weights(self) -> str:
        """Bring all engines to the current weights."""
        return str(self.pool.update_weights())

    def end(self) -> None:
        """Close the pool."""
        self.pool.close()


class OwnerArena:
    """The pool of one owner, and the trials in which it is killed."""

    def __init__(self, oracle: Oracle, source: Any, folder: Path, engines: int) -> None:
        self.oracle, self.source, self.folder, self.engines = oracle, source, folder, engines
        self.segments = Segments()
        options = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 4, "num_cpus": 0}
        self.owner = ray.remote(Holder).options(**options).remote(str(folder), engines)

    def hold(self, trial: Trial) -> Outcome:
        """Hold a trial, once more where the fault came too late; return what came of it."""
        outcome = Outcome(trial=trial)
        for attempt in range(ATTEMPTS):
            self._once(trial, outcome, attempt)
            if outcome.fired or outcome.problems[1:]:
                break
        return outcome

    def close(self) -> None:
        """End the pool and its owner."""
        ray.get(self.owner.end.remote(), timeout=_END_S)
        ray.kill(self.owner)

    def _once(self, trial: Trial, outcome: Outcome, attempt: int) -> None:
        me, actors, cores = ray.get(self.owner.ready.remote(), timeout=stage.START_S)
        self.segments.note([process.pid for process in (*actors, *cores)])
        if trial.new_weights and not attempt:
            self._renew()
        questions = self.oracle.questions
        asked = {f"t{trial.number}{'abc'[attempt]}o-{n}": questions[q] for n, q in enumerate(trial.questions)}
        weights = score.weights_of(self._current())
        tokens = sum(self.oracle.tokens(weights, question) for question in asked.values())
        seen = [_Core.of(path) for path in self._living()]
        call = self.owner.generate.remote(
            [q.prompt for q in asked.values()], [dict(q.sampling) for q in asked.values()], list(asked)
        )
        at, then, got = None, [], []
        with Crowd(rollouts.witnesses(self.folder), self.engines) as crowd:
            if _come(
                lambda: sum(core.tokens() for core in seen) >= trial.part * tokens / (1 + attempt), call
            ):
                killed = _killed(_beside(trial), actors, cores)
                at = time.monotonic()
                os.kill(me.pid, signal.SIGKILL)
                for process in killed:
                    process.kill()
                for actor in actors:
                    gone(actor, _DYING_S)
                times = int(at * 1e9), time.monotonic_ns()
                then = [one for core in seen for one in core.witness.as_of(*times, core.since)]
                if _beside(trial) == NEXT_LIFE:
                    _kill_next_life(me, 0.1 * trial.variant)
            try:
                got = ray.get(call, timeout=ANSWER_S + stage.START_S)
            except ray.exceptions.RayError as error:
                outcome.lost.append(f"the call raised {type(error).__name__}: {error}")
        outcome.two_on_a_device += crowd.too_many
        self._judge(outcome, asked, got, at, then)
        if at is not None:
            self._ended(outcome, actors, cores)

    def _renew(self) -> None:
        """Give the engines the next weights."""
        now = score.weights_of(self._current())
        weights = rollouts.WEIGHTS[(rollouts.WEIGHTS.index(now) + 1) % len(rollouts.WEIGHTS)]
        ray.get(self.source.advance.remote(weights), timeout=STATUS_S)
        ray.get(self.owner.update_weights.remote(), timeout=MOMENT_S)

    def _ended(self, outcome: Outcome, actors: Sequence[ProcessId], cores: Sequence[ProcessId]) -> None:
        """Note which engines the next life goes on with, and what else is left."""
        _, _, now = ray.get(self.owner.ready.remote(), timeout=stage.START_S)
        outcome.adopted = len(set(now) & set(cores))
        dying = [process for process in (*actors, *cores) if process not in now]
        left = [process for process in dying if not gone(process, _END_S)]
        outcome.left_over += [f"process {process.pid} outlived its pool's owner" for process in left]
        outcome.shm_left += self.segments.left(_END_S)

    def _judge(
        self,
        outcome: Outcome,
        asked: dict[str, Question],
        got: Sequence[Any],
        at: float | None,
        then: Sequence[SeenRequest],
    ) -> None:
        version, lengths = self._current(), self.oracle.prompt_tokens
        notes = Notes(sent=[Sent(at=0.0, id=name, engine="", version=version, known=0) for name in asked])
        score.judge(outcome, asked, got, self.oracle, notes, score.number_of(version))
        if at is None:
            return
        prompts = {
            name if question.n == 1 else f"{name}/{index}": lengths[question.name]
            for name, question in asked.items()
            for index in range(question.n)
        }
        seen, outcome.unseen = score.as_of_fault(self._witnessed(), then)
        cuts = score.cuts_of(seen, prompts)
        outcome.running, outcome.fired = len(cuts), bool(cuts)
        samples = {sample.id: sample for generation in got for sample in generation.samples}
        score.judge_tokens(outcome, cuts, samples)
        known = {(one.id, one.at_ns) for one in then}
        mine = (one for one in seen if one.id[: -score.TAIL] in prompts)
        again = [one.at_ns / 1e9 for one in mine if (one.id, one.at_ns) not in known]
        what = _beside(outcome.trial)
        recover_s = min(again) - at if again else None
        outcome.notes.append(f"it died with {what}, next token after {recover_s or math.nan:.2f} s")
        outcome.recover_s = recover_s if what == ALONE else None

    def _current(self) -> str:
        return str(ray.get(self.source.weights.remote(), timeout=STATUS_S)[0])

    def _living(self) -> list[Path]:
        return [path for path in rollouts.witnesses(self.folder).glob("*.witness") if core_of(path).alive()]

    def _witnessed(self) -> Iterator[SeenRequest]:
        for path in rollouts.witnesses(self.folder).glob("*.witness"):
            yield from CoreWitness(path).read()


@dataclass(frozen=True, slots=True)
class _Core:
    witness: CoreWitness
    since: int

    @classmethod
    def of(cls, path: Path) -> _Core:
        witness = CoreWitness(path)
        return cls(witness, witness.count)

    def tokens(self) -> int:
        return sum(seen.now - seen.start for seen in self.witness.read(self.since))


def _beside(trial: Trial) -> str:
    """Return what dies with the owner in this trial."""
    return WITH[trial.variant % len(WITH)]


def _killed(what: str, actors: Sequence[ProcessId], cores: Sequence[ProcessId]) -> list[psutil.Process]:
    """Return which processes are to die with the owner."""
    if what == SERVERS:
        return [server for actor in actors for server in servers_of(psutil.Process(actor.pid))]
    return [psutil.Process(one.pid) for one in {CORE: cores[:1], ACTOR: actors[:1]}.get(what, ())]


def _kill_next_life(last: ProcessId, after_s: float) -> None:
    """Kill the owner once more, ``after_s`` after it lives again."""
    pause, until = threading.Event(), time.monotonic() + _COMES_S
    while time.monotonic() < until:
        for one in psutil.process_iter(["cmdline"]):
            titled = " ".join(one.info["cmdline"] or ()).startswith(f"ray::{Holder.__name__}")
            if titled and one.pid != last.pid:
                pause.wait(after_s)
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
                return
        pause.wait(0.01)
    raise TimeoutError(f"the owner did not begin another life within {_COMES_S:g} s")


def _known(pids: Iterable[int]) -> list[ProcessId]:
    return [known for pid in pids if (known := ProcessId.of(pid)) is not None]


def _come(has_come: Any, call: Any) -> bool:
    """Wait for the moment; False where the call is over before."""
    pause, until, looks = threading.Event(), time.monotonic() + MOMENT_S, 0
    while time.monotonic() < until:
        if has_come():
            return True
        looks += 1
        if looks % 100 == 0 and ray.wait([call], timeout=0)[0]:
            return False
        pause.wait(_LOOK_S)
    return False
