"""Random faults against a pool of real engines, judged by an oracle: ``make trials N=20 SEED=0``.

Last line JSON; ends with 1 where one of these is not zero: ``lost``, ``doubled``, ``stale``, ``mixed`` (by two
weights), ``not_identical``; ``innocents_blamed`` (requests that got an error for what was not their fault);
``settings_left_on`` (safe settings after their probation), ``shm_left`` (shared memory of dead engines),
``left_over`` (their processes); ``two_on_a_device`` (more engines at a time than devices); ``never_noticed`` (no
incident, and no answer within its deadline), ``amiss`` (the fault's own caller got something else than is promised, or
an engine was begun anew in vain); ``misfired``.

``python -m tests.benchmarks.trials --trials 20 --seed 0 [--only NUMBER] [--faults NAME]``
``python -m tests.benchmarks.trials --saturate MINUTES``: no fault at all; restarts, incidents must be none.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.benchmarks.trials.plan import Fault, Size, plan, plan_of
from tests.benchmarks.trials.run import Run
from tests.benchmarks.trials.saturate import saturated
from tests.benchmarks.trials.score import ZERO, Outcome, median, summary

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = ("fault", "n", "good", "detected", "worst", "next token", "worst", "tokens lost", "restarted")
WIDTH = 120  # of the table where there is no terminal
SLOW_S = 1.0  # a death that was noticed later is explained


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--trials", type=int, default=20)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--only", type=int, nargs="+", help="numbers of the trials to hold, of those planned"
    )
    names = ", ".join(fault.value for fault in Fault)
    options.add_argument(
        "--faults", type=Fault, nargs="+", metavar="NAME", help=f"hold trials of these kinds alone: {names}"
    )
    options.add_argument("--saturate", type=float, metavar="MINUTES", help="all on, no fault, so long")
    options.add_argument("--cold", type=int, default=2, help="cold starts to compare with")
    options.add_argument("--keep", action="store_true", help="keep journal, witnesses and models")
    chosen = options.parse_args()
    size = Size()
    trials = plan(chosen.trials, chosen.seed, size)
    if chosen.faults:
        trials = plan_of(chosen.faults, chosen.trials, chosen.seed, size)
    if chosen.only:
        trials = tuple(trial for trial in trials if trial.number in chosen.only)
    folder = Path(tempfile.mkdtemp(prefix="rayguard-trials-"))
    try:
        if chosen.saturate is None:
            told, broken = watched(folder, trials, size, chosen)
        else:
            told, broken = saturated(folder, size, chosen.saturate)
    finally:
        if chosen.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(told), flush=True)
    return broken


def watched(
    folder: Path, trials: Sequence[Any], size: Size, chosen: argparse.Namespace
) -> tuple[dict[str, Any], int]:
    """Run trials behind a progress bar; return the figures and whether a promise is broken."""
    console = Console(stderr=True)
    load, began, broken = os.getloadavg()[0], time.monotonic(), 0
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting Ray", total=len(trials))

        def tell(what: str) -> None:
            if run.outcomes and run.outcomes[-1] not in shown:
                shown.append(run.outcomes[-1])
                explain(console, shown[-1], chosen)
            progress.update(task, description=what, completed=len(run.outcomes))
            if not console.is_terminal:
                console.print(f"{time.monotonic() - began:7.1f} s  {what}", soft_wrap=True, highlight=False)

        shown: list[Outcome] = []
        run = Run(folder, size, tell)
        try:
            run.perform(trials, cold_starts=chosen.cold)
        except (Exception, KeyboardInterrupt):  # what was found so far is told all the same
            broken = 1
            console.print(traceback.format_exc(), highlight=False, soft_wrap=True)
        tell("done")
    told = {
        **summary(run.outcomes, run.cold_s),
        "seed": chosen.seed,
        "planned": len(trials),
        "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
        "took_s": round(time.monotonic() - began),
    }
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table(run.outcomes))
    return told, int(broken or any(told[name] for name in ZERO))


def explain(console: Console, outcome: Outcome, chosen: argparse.Namespace) -> None:
    """Say what is needed to repeat a trial that failed, and in a line how the others went."""
    trial = outcome.trial
    figures = f"detected {_s(outcome.detect_s)}, next token {_s(outcome.recover_s)}, "
    figures += f"{outcome.running} running, lost tokens {max(outcome.tokens_lost, default=0)}"
    said = [f"{'FAILED' if outcome.problems else 'good'}: {trial}: {figures}"]
    for name in ("problems", "differing_other", "cuts_misstated"):
        said += [f"    {'' if name == 'problems' else name + ': '}{what}" for what in getattr(outcome, name)]
    if outcome.detect_s is None:
        late = not trial.fault.acts and trial.fault is not Fault.KILL_OWNER  # what notices that is Ray
    else:
        late = outcome.detect_s > SLOW_S and trial.fault.ends
    if outcome.problems or late:
        again = f"python -m tests.benchmarks.trials --trials {chosen.trials} --seed {chosen.seed}"
        if chosen.faults:
            again += f" --faults {' '.join(fault.value for fault in chosen.faults)}"
        said += [f"    {trial!r}", *(f"    {note}" for note in outcome.notes)]
        said += [f"    again: {again} --only {trial.number}"]
    said += [f"    restarted: {what}" for what in outcome.restarted[:3]]
    console.print("\n".join(said), highlight=False, soft_wrap=True, markup=False)


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return the outcomes by kind of fault."""
    shown = Table(title="by kind of fault (times in seconds, medians and worst)")
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name == COLUMNS[0] else "right")
    kinds: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        kinds[outcome.trial.fault.value + (" +standby" if outcome.trial.standby else "")].append(outcome)
    for name, of in kinds.items():
        detected = [o.detect_s for o in of if o.detect_s is not None]
        recovered = [o.recover_s for o in of if o.recover_s is not None]
        lost = max((tokens for o in of for tokens in o.tokens_lost), default=0)
        good = sum(not o.problems for o in of)
        figures = [
            figure for times in (detected, recovered) for figure in (median(times), max(times, default=None))
        ]
        restarted = sum(len(o.restarted) for o in of)
        shown.add_row(name, str(len(of)), str(good), *map(_s, figures), str(lost), str(restarted))
    return shown


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"


if __name__ == "__main__":
    sys.exit(main())
