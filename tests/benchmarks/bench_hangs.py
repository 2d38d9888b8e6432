"""Hangs on a saturated engine: no false alarm for minutes, then how soon a frozen process is found.

One real vLLM engine on the CPU that is never without work. First ``--minutes`` of that, with nothing done to
it: a restart is a false alarm. Then its core and its worker are frozen (SIGSTOP) in turns, ``--freezes`` times,
each in a newly built engine under load; measured is from the signal to the moment of detection that the
incident names. Every answer must be whole, whatever happened meanwhile.

Last line JSON; ends with 1 when there was a false alarm, or the 95th percentile misses what is promised.
``python -m tests.benchmarks.bench_hangs --minutes 10``
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from rayguard import GuardPolicy, RestartBudget
from rayguard.recovery.incident import Outcome
from rayguard.recovery.ladder import Ladder
from tests.engine.load import Load, Looped, until
from tests.engine.real import ENVIRONMENT, incidents

PROMISED_S = 10.0


def saturate(owner: Looped, minutes: float) -> tuple[int, int]:
    """Return how many answers came in ``minutes``, and how many incidents."""
    before, load, done = len(incidents()), Load(owner), threading.Event()
    with load.going():
        began = load.answered
        until_s = time.monotonic() + minutes * 60
        while (left_s := until_s - time.monotonic()) > 0:
            done.wait(min(30.0, left_s))
            told = f"{load.answered - began} answers, {len(incidents()) - before} incidents"
            print(f"  {max(0.0, until_s - time.monotonic()):4.0f} s left: {told}", flush=True)
    return load.answered - began, len(incidents()) - before


def freeze(owner: Looped, which: str) -> float:
    """Freeze ``which`` under load; return the seconds until that was detected."""
    before, load = len(incidents()), Load(owner)
    with load.going():
        at = time.time()
        os.kill(owner.pid(which), signal.SIGSTOP)
        until(lambda: len(incidents()) > before and incidents()[-1].outcome is not Outcome.OPEN, load.told)
    (incident,) = incidents()[before:]
    assert (incident.kind, incident.outcome) == ("engine_hang", Outcome.RECOVERED), incident
    assert f"engine_{which} process" in incident.cause, incident.cause
    return incident.detected_at - at


def run(kind: str, minutes: float, freezes: int) -> dict:
    from examples.grpo.model import build

    folder = Path(tempfile.mkdtemp(prefix="rayguard-hangs-"))
    os.environ["RAYGUARD_HOME"] = str(folder / "home")
    owner = Looped(str(build(folder / "model", 0)), kind)
    try:
        often = RestartBudget(max_restarts=freezes + 1, within_s=86400.0)
        owner.start_engine(
            policy=GuardPolicy(ladder=Ladder(rungs=()), engine_budget=often, quarantine_after=freezes + 2)
        )
        load = os.getloadavg()[0]
        answers, alarms = saturate(owner, minutes) if minutes > 0 else (0, 0)
        found = []
        for number in range(freezes):
            which = ("core", "worker")[number % 2]
            found.append(freeze(owner, which))
            print(f"  {which:6} frozen: found after {found[-1]:.2f} s", flush=True)
    finally:
        owner.close()
    found.sort()
    return {
        "false_alarms": alarms,
        "minutes": minutes,
        "hang_detect_p95_s": round(found[min(len(found) - 1, int(0.95 * len(found)))], 2) if found else None,
        "n": len(found),
        "hang_detect_median_s": round(found[len(found) // 2], 2) if found else None,
        "answers": answers,
        "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--freezes", type=int, default=10)
    options.add_argument("--kind", choices=("AsyncLLM", "LLM"), default="AsyncLLM")
    chosen = options.parse_args()
    os.environ.update(ENVIRONMENT)
    told = run(chosen.kind, chosen.minutes, chosen.freezes)
    print(json.dumps(told))
    return int(told["false_alarms"] > 0 or (told["hang_detect_p95_s"] or 0.0) > PROMISED_S)


if __name__ == "__main__":
    sys.exit(main())
