"""Histories as values, for tests of what is made of them."""

from examples.grpo.history import History, RolloutState, Step
from examples.grpo.memory import ProcessMemory
from examples.grpo.schedule import plan
from rayguard.recovery.incident import Incident, Outcome
from rayguard.testing.injector import FiredFault, What

VERDICTS = {
    What.SCHEDULER_ASSERTION: (
        "scheduler_assertion",
        "engine",
        "the bookkeeping broke: AssertionError (/lib/vllm/v1/core/block_pool.py:690)",
    ),
    What.SEEDED_PARTIAL_PREFILL: (
        "engine_internal_error",
        "engine",
        "prefilled in parts: RuntimeError: CPU Generator does not use offset (/lib/vllm/v1/model_runner.py:35)",
    ),
    What.KILL_CORE: ("engine_dead", "engine", "engine_core process 7 was killed by signal 9"),
    What.KILL_WORKER: ("engine_dead", "engine", "engine_worker process 7 was killed by signal 9"),
    What.STOP_CORE: ("engine_hang", "engine", "no progress for 2.0 s with 32 requests running (7 T)"),
    What.KILL_ACTOR: ("actor_died", "process", "the actor's process 7 died"),
}


def good_history(steps: int = 40) -> History:
    """A run in which everything went as it must: one step a second, each fault cured within its step."""
    history = History(steps_planned=steps, started_at=1_000.0, guarded=True, ready_at=1_010.0, doing="done")
    history.rollouts = [RolloutState(actor_id="a0"), RolloutState(actor_id="a1")]
    history.memory = [memory_of("a0", 7), memory_of("a1", 8), memory_of("a0", 9)]
    planned = plan(steps, 0)
    for number in range(steps):
        start = 1_010.0 + number
        for fault in (fault for fault in planned if fault.step == number):
            history.fired.append(FiredFault(planned=fault, at=start + 0.1, pid=7))
            name, actor_id = f"{number}-{fault.target}", f"a{fault.target}"
            seen = incident(fault.what, detected_at=start + 0.2, id=name, actor_id=actor_id)
            history.incidents.append(seen)
        history.steps.append(
            Step(
                number=number,
                started_at=start,
                ended_at=start + 1,
                tokens=1024,
                reward=0.5 + 0.49 * number / (steps - 1),
                logp_diff=1e-6,
            )
        )
    history.deliveries.expected = 64 * steps
    history.deliveries.seen.update(str(n) for n in range(64 * steps))
    history.ended_at = 1_010.0 + steps
    return history


def memory_of(actor_id: str, pid: int, *told: str) -> ProcessMemory:
    """What the recording of a healthy process says."""
    mb = 1_000_000
    return ProcessMemory(
        actor_id=actor_id, pid=pid, first=300 * mb, most=342 * mb, last=310 * mb, seconds=40.0, told=told
    )


def incident(what: What, *, detected_at: float, id: str, actor_id: str = "a0") -> Incident:  # noqa: A002
    """What a perfect guard writes about ``what``."""
    kind, scope, cause = VERDICTS[what]
    return Incident(
        id=id,
        actor_id=actor_id,
        kind=kind,
        scope=scope,
        cause=cause,
        remedy="restart_engine",
        detected_at=detected_at,
        detect_s=0.05,
        recover_s=0.5,
        closed_at=detected_at + 0.5,
        tokens_saved=100,
        requests=32,
        outcome=Outcome.RECOVERED,
    )
