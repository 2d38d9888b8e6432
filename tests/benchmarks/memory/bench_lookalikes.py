"""Real things that look like leftovers, offered to the reaper: how many of them it takes by mistake.

``--each`` files of each flaw and ``--processes`` processes of each flaw: open, mapped or on the way through a
socket; owners that live, are stopped or lost their first thread; pids given to others; names given to other
files; links, directories, pipes; other users, boots and containers; marks that were inherited or forged. Beside
them some that are provably ours and dead, which must go: a reaper that takes nothing would pass otherwise.

Last line JSON; ends with 1 when one was taken by mistake or one was left that should have gone.
``python -m tests.benchmarks.memory.bench_lookalikes``
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter

from rayguard.process.cleanup import orphans, reaper
from rayguard.process.cleanup.verdict import Fate
from tests.process.lookalikes import Zoo, zoo


def offered(made: Zoo) -> float:
    """Offer all of it in one pass, as ``rayguard reap`` does; return how long that took, in seconds."""
    made.write_notes()
    began = time.monotonic()
    # Only ours: other programs of this machine are none of a benchmark's business.
    found = [one for one in reaper.find(made.home, explain=False) if made.mine(one.shown.name)]
    reaper.reap(found)
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--processes", type=int, default=6)
    arguments = parser.parse_args()
    with zoo() as made:
        made.flawed_files(arguments.each)
        made.flawed_processes(arguments.processes)
        made.own_files(20)
        made.own_processes(3)
        stale = made.stale(5)
        pass_s = offered(made)
        until = time.monotonic() + 10
        wrong = Counter(one.kind for one in made.alikes if not one.there())
        for marked, innocent in stale:
            fate, _ = orphans.end_orphan(marked, until)
            wrong["a pid that another process has now"] += fate is not Fate.LEFT or not innocent.alive()
        left = Counter(one.kind for one in made.ours if one.there())
        kinds = Counter(one.kind for one in made.alikes)
        answer = {
            "wrong_kills": sum(wrong.values()),
            "offered": len(made.alikes) + len(stale),
            "rightly_reaped": len(made.ours) - sum(left.values()),
            "rightly_reaped_of": len(made.ours),
            "kinds": len(kinds) + 1,
            "pass_s": round(pass_s, 2),
            "load": os.getloadavg()[0],
        }
    for kind, count in sorted(kinds.items()):
        print(f"{count:5} {kind}" + (f": {wrong[kind]} TAKEN" if wrong[kind] else ""))
    for kind, count in left.items():
        print(f"{count:5} {kind}: LEFT")
    print(json.dumps(answer))
    return bool(answer["wrong_kills"] or left)


if __name__ == "__main__":
    sys.exit(main())
