"""When what breaks: the seeded schedule of disturbances, as plain values.

How each is brought about: ``faults``. Whether the guard got it right: ``verdict``.
"""

from __future__ import annotations

import random

from rayguard.testing.injector import PlannedFault, What

# In this order: the assertion needs an engine whose chunked prefill is still on, and the deaths that follow a
# seeded prompt on the same engine show that its cure outlives them. From the natural fault on all requests
# are seeded, so all engines meet it in the same step. An actor takes longest to come back: the steps after
# its death are the other rollout's, and the next two faults hit that one.
STAGES = (
    ((What.SCHEDULER_ASSERTION, 1),),
    ((What.SEEDED_PARTIAL_PREFILL, 0), (What.SEEDED_PARTIAL_PREFILL, 1)),
    ((What.KILL_ACTOR, 0),),
    ((What.KILL_CORE, 1),),
    ((What.STOP_CORE, 1),),
    ((What.KILL_WORKER, 0),),
)
CALM_STEPS = 2  # undisturbed at the start and at the end, to compare with
BATCH_TOKENS = 2 * 16 * 16  # of one rollout in one step: prompts, samples, new tokens
SHORTEST_RUN = 2 * CALM_STEPS + len(STAGES)


def plan(steps: int, seed: int) -> tuple[PlannedFault, ...]:
    """Spread the faults over the run: one stage per stretch of steps, at a step the dice choose."""
    if steps < SHORTEST_RUN:
        raise ValueError(f"{steps} steps are too few for {len(STAGES)} stages of faults: take {SHORTEST_RUN}")
    dice = random.Random(seed)
    stretch = (steps - 2 * CALM_STEPS) / len(STAGES)
    slack = max(1, int(stretch) - 1)  # the last step of a stretch stays calm
    planned = []
    for number, stage in enumerate(STAGES):
        step = CALM_STEPS + int(number * stretch) + dice.randrange(slack)
        after_tokens = dice.randrange(BATCH_TOKENS // 8, BATCH_TOKENS // 4)
        planned += [
            PlannedFault(step=step, target=target, what=what, after_tokens=after_tokens)
            for what, target in stage
        ]
    return tuple(planned)
