"""Random faults against gangs of real ranks, judged by an oracle: ``make trials-gang N=50 SEED=1``.

Three ranks train a small transformer under FSDP2 or DDP, with dropout, AdamW, clipping and a schedule. In each
trial one fault strikes, and what the training came to is compared with the same without a fault, to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import textwrap
import time
import traceback
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.benchmarks.trials_gang.leaks import GENERATIONS
from tests.benchmarks.trials_gang.oracle import missed, rounded, summary
from tests.benchmarks.trials_gang.plan import COMPRESSED, HOUR_S, Kind, plan
from tests.benchmarks.trials_gang.run import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.benchmarks.trials_gang.oracle import Outcome
    from tests.benchmarks.trials_gang.plan import Trial

WIDTH = 120  # of the table where there is no terminal
COLUMNS = ("fault", "n", "good", "named", "detected", "worst", "out", "worst", "resumed", "worst")
_EPILOG = f"""\
What the last line (JSON) says:
  trials             held
  curve_identical    of them: each rank's loss in each step, and in the end its weights, moments and random
                     numbers are those of a training without a fault, to the bit
  steps_lost_max     how often a step was made again at most (1)
  resume_ratio       from the fault to the end of the call that was made again, less a usual step, over the
                     whole-job restart that came before it in the same run (<= 0.1 median, <= 0.3 at most with
                     spares, <= 0.3 without), where a process was replaced. Of hangs it counts from when they
                     were found: finding them is
  hang_detect_p95_s  (<= 10)
  abort_s_p99        from the order to leave a collective until the last rank that could was out (<= 0.5)
  guilty_right       of guilty_n: the incident names who was struck, and nobody else
  false_alarms       recoveries in an hour without faults, {COMPRESSED:.0f} times compressed (0)
  leaked             what grew over {GENERATIONS} generations, in any process: descriptors, threads, memory,
                     shared memory; and files left (0)
  with_problems      trials that were not as they should be: told above the table
Ends with 1 where one of these is missed that does not depend on how busy the machine is: curve_identical,
steps_lost_max, guilty_right, with_problems, false_alarms, leaked.

Kinds of faults:
{textwrap.indent(textwrap.fill(", ".join(kind.value for kind in Kind), 104), "  ")}

Examples:
  make trials-gang N=50 SEED=1                          all of it, about a quarter of an hour on two idle cores
  make trials-gang N=8 ARGS="--kinds gil endless_loop"  eight trials of these kinds
  python -m tests.benchmarks.trials_gang --trials 50 --seed 1 --only 17 --bare
                                                        one trial of those planned, and nothing else
  python -m tests.benchmarks.trials_gang --trials 50 --seed 1 --show
                                                        only print the trials, one a line
"""


def main() -> int:
    """Run as the command line says; return the exit code."""
    chosen = _options().parse_args()
    trials = plan(chosen.trials, chosen.seed, chosen.kinds)
    if chosen.only:
        trials = tuple(trial for trial in trials if trial.number in chosen.only)
    if chosen.show:
        print(*trials, sep="\n")
        return 0
    if chosen.bare:
        chosen.quiet, chosen.generations, chosen.every = 0.0, 0, 0
    folder = Path(tempfile.mkdtemp(prefix="rayguard-gang-"))
    try:
        told = watched(folder, trials, chosen)
    finally:
        if chosen.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(told), flush=True)
    return int(bool(told["missed"]))


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.trials_gang",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--trials", type=int, default=13, metavar="N", help="how many (default: 13)")
    options.add_argument("--seed", type=int, default=0, help="of the plan (default: 0)")
    options.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these of the planned alone")
    options.add_argument(
        "--kinds", type=Kind, nargs="+", default=tuple(Kind), metavar="KIND", help="of these kinds alone"
    )
    options.add_argument(
        "--every",
        type=int,
        default=8,
        metavar="N",
        help="trials of a gang to a whole-job restart (default: 8)",
    )
    options.add_argument(
        "--quiet", type=float, default=HOUR_S, metavar="S", help=f"without faults (default: {HOUR_S:.0f} s)"
    )
    options.add_argument(
        "--generations",
        type=int,
        default=GENERATIONS,
        metavar="N",
        help=f"that fail (default: {GENERATIONS})",
    )
    options.add_argument(
        "--bare", action="store_true", help="the trials alone: no restarts, hour, generations"
    )
    options.add_argument("--show", action="store_true", help="print the trials, and hold none")
    options.add_argument("--keep", action="store_true", help="keep journal, marks and checkpoints")
    return options


def watched(folder: Path, trials: Sequence[Trial], chosen: argparse.Namespace) -> dict[str, Any]:
    """Run behind a progress bar; return the figures."""
    console, began, broken = Console(stderr=True), time.monotonic(), ""
    load = os.getloadavg()[0]
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting Ray", total=len(trials))
        shown: list[Outcome] = []

        def tell(what: str) -> None:
            for outcome in run.outcomes[len(shown) :]:
                shown.append(outcome)
                _explain(console, outcome, chosen)
            progress.update(task, description=what, completed=len(run.outcomes))
            if not console.is_terminal:
                console.print(f"{time.monotonic() - began:7.1f} s  {what}", soft_wrap=True, highlight=False)

        run = Run(folder, tell)
        try:
            run.perform(
                trials,
                every=chosen.every,
                quiet_s=chosen.quiet,
                generations=chosen.generations,
                seed=chosen.seed,
            )
        except (Exception, KeyboardInterrupt) as error:  # what was found so far is told all the same
            broken = f"{type(error).__name__}: {error}"
            console.print(traceback.format_exc(), highlight=False, soft_wrap=True, markup=False)
        tell("done")
    told = {
        **summary(run.outcomes, run.whole_s),
        **run.rest,
        "broken": [*filter(None, [broken]), *run.amiss],
        "seed": chosen.seed,
        "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
        "took_s": round(time.monotonic() - began),
    }
    Console(width=None if sys.stdout.isatty() else WIDTH).print(_table(run.outcomes))
    return {**told, "missed": missed(told)}


def _explain(console: Console, outcome: Outcome, chosen: argparse.Namespace) -> None:
    """Say how a trial went, and what is needed to repeat one that failed."""
    trial = outcome.trial
    figures = ", ".join(
        f"{name} {_s(value)}"
        for name, value in (
            ("detected", outcome.detect_s),
            ("out", outcome.abort_s),
            ("resumed", outcome.resume_s),
        )
    )
    said = [f"{'FAILED' if outcome.problems else 'good'}: {trial}: {figures}; {outcome.said}"]
    said += [f"    {what}" for what in outcome.problems]
    if outcome.problems:
        again = f"python -m tests.benchmarks.trials_gang --trials {chosen.trials} --seed {chosen.seed} --bare"
        if len(chosen.kinds) < len(Kind):
            again += f" --kinds {' '.join(kind.value for kind in chosen.kinds)}"
        said.append(f"    again: {again} --only {trial.number}")
    console.print("\n".join(said), highlight=False, soft_wrap=True, markup=False)


def _table(outcomes: Sequence[Outcome]) -> Table:
    """Return the outcomes by kind of fault."""
    shown = Table(title="by kind of fault (times in seconds, medians and worst)")
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name == COLUMNS[0] else "right")
    kinds: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        kinds[outcome.trial.kind.value + (" +spares" if outcome.trial.place.spares else "")].append(outcome)
    for name, of in sorted(kinds.items()):
        good, named = sum(not one.problems for one in of), sum(bool(one.guilty) for one in of)
        times = [sorted(filter(None, (getattr(one, what) for one in of))) for what in _TIMES]
        figures = [_s(figure) for found in times for figure in _middle_and_worst(found)]
        shown.add_row(name, str(len(of)), str(good), str(named), *figures)
    return shown


_TIMES = ("detect_s", "abort_s", "resume_s")


def _middle_and_worst(ordered: Sequence[float]) -> tuple[float | None, float | None]:
    return (ordered[len(ordered) // 2], ordered[-1]) if ordered else (None, None)


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{rounded(seconds):.2f}"


if __name__ == "__main__":
    sys.exit(main())
