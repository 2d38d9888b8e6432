"""``make never-worse N=200 SEED=0``: is anything worse with rayguard than without it?

Small random programs (a driver, one to three actors, faults on purpose) are drawn from their seeds. Each is
run on real Ray bare, and again watched (the plugin, no class named), guarded (the decorator) and named (the
plugin, every class named). An oracle compares: with rayguard each call ends as it did without, or better.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from tests.benchmarks.never_worse.comparison import held
from tests.benchmarks.never_worse.driver import WAYS
from tests.benchmarks.never_worse.program import drawn

_EPILOG = """\
What the last line (JSON) counts, of programs and ways:
  worse     a call gave its answer bare, and an error (or an answer of an actor begun anew) with rayguard
  silent    an answer that no order of the calls without faults gives, where bare it was an error, or where
            no incident tells that the actor began anew
  hung      a call that never ended, and did end bare
  better    at least one call ended better than bare
  unsteady  worse once, and not when it was run again: look at what is printed, Ray itself may race there
  fired     how often each kind of fault struck
Ends with 1 where worse, silent or hung is not 0.

Examples:
  make never-worse N=40 SEED=0                 forty programs
  make never-worse N=500 SEED=1000             five hundred others
  python -m tests.benchmarks.never_worse --only 18 --ways named --explain
                                               one program in one way, with all that became of it
  python -m tests.benchmarks.never_worse --programs 20 --show
                                               only print the programs, one a line
"""


def main() -> int:
    """Run as the command line says; return the exit code."""
    options = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.never_worse",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--programs", type=int, default=40, metavar="N", help="how many (default: 40)")
    options.add_argument("--seed", type=int, default=0, help="of the first; they count up (default: 0)")
    options.add_argument("--only", type=int, nargs="+", metavar="SEED", help="these programs instead")
    options.add_argument("--ways", nargs="+", default=list(WAYS[1:]), choices=WAYS[1:], help="default: all")
    options.add_argument(
        "--jobs",
        type=int,
        default=1 + (os.cpu_count() or 1),
        metavar="N",
        help="programs side by side, each in all ways; they mostly wait (default: one more than there are cores)",
    )
    options.add_argument("--explain", action="store_true", help="print each program that is not good, whole")
    options.add_argument("--show", action="store_true", help="print the programs, and run none")
    chosen = options.parse_args()
    seeds = chosen.only or range(chosen.seed, chosen.seed + chosen.programs)
    programs = [drawn(seed) for seed in seeds]
    if chosen.show:
        for program in programs:
            print(json.dumps(program.to_json()))
        return 0
    figures = held(programs, chosen.ways, jobs=chosen.jobs, explain=chosen.explain)
    print(json.dumps(figures), flush=True)
    return int(bool(figures["worse"] or figures["silent"] or figures["hung"]))


if __name__ == "__main__":
    sys.exit(main())
