"""What ``group_checks`` are held against: the same deaths without rayguard, and the same run without a death."""

from __future__ import annotations

import time
from dataclasses import dataclass

from group_checks import NO_SNAPSHOTS, Run, incidents, looked_after


@dataclass(frozen=True)
class BareEnd:
    """How a death ended; ``reach_s``: from the making of the group to the call within which it was."""

    said: str
    reach_s: float


def ended_bare(framework, ray, folder, *, method, rank, **of):
    """Have ``rank`` die in its third call that counts, where nobody looks after the group."""
    began = time.monotonic()
    run = Run(framework, ray, folder, **of)
    try:
        run.update(1.0)
        run.update(2.5)
        run.group.prepare_rollout_engine()
        reach_s = time.monotonic() - began
        run.strike(method, rank)
        struck = _how(lambda: getattr(run.group, method)([1.0, 1.0]))
        later = _how(run.group.compute_values)
        return BareEnd(f"{struck}; the next call: {later}", reach_s)
    finally:
        run.close()


def _how(call):
    """Say how a call ends."""
    began = time.monotonic()
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__} after {time.monotonic() - began:.1f} s"
    return "answered"


def is_identical_without_a_fault(framework, ray, folder):
    """Whether all answers of a run are the same with rayguard as without, and nothing was told."""
    before = len(incidents())
    bare = _answers(framework, ray, folder)
    with looked_after(framework, NO_SNAPSHOTS):
        guarded = _answers(framework, ray, folder)
    return bare == guarded and len(incidents()) == before


def _answers(framework, ray, folder):
    run = Run(framework, ray, folder, collective=True)
    try:
        found = [run.group.update_actor([number, number]) for number in (1.0, 2.5, 4.0)]
        run.group.prepare_rollout_engine()
        found.append(run.group.generate_sequences([2.0, 3.0]))
        run.group.release_rollout_engine()
        found.append(run.group.update_actor([0.5, 0.5]))
        return [list(one) for one in found], [state for _, *state in run.group.compute_values()]
    finally:
        run.close()
