"""What carrying a command's output costs: the same command bare and under ``rayguard run``, in turns.

Three commands: 200,000 lines written one by one, as a logger does; the same in blocks, as ``print`` into a file does;
and a second of work that prints 20 lines. Output goes to a file both ways, and must be the same to the byte. What a
command takes that does nothing is measured in each round and taken off; ``start_s`` is what ``rayguard run`` adds to it.

The last line is JSON: for each command ``bare_s``, ``ratio`` (the median over rounds of the wall-clock seconds under
``rayguard run`` over bare) and ``cpu_ratio`` (of CPU seconds, those of rayguard with the command's); for the first two
``us_a_line``, the CPU microseconds that a line costs more. Fails where a line that is written alone costs more than the promise, or the
command that prints little takes more than 5 % longer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

LIMIT_US = 5.0  # CPU microseconds for a line that is written alone
LIMIT_LITTLE = 1.05  # of the wall-clock time of a command that prints little
_RUN_S = 60
_MANY = 10_000  # lines: of fewer, CPU seconds say nothing, which are counted in hundredths
_RAYGUARD = (
    sys.executable, "-m", "rayguard", "run", "--no-preflight", "--no-plugin", "--max-restarts", "0", "--",
)  # fmt: skip
_PRINTS = """
import sys, time
lines, flushed, work_s = int(sys.argv[1]), sys.argv[2] == "lines", float(sys.argv[3])
began, out = time.monotonic(), open(1, "w", buffering=1 << 13, closefd=False)
for step in range(lines):
    while time.monotonic() - began < work_s * step / lines:
        pass
    print(f"step {step:6d} | loss 1.2345 | reward 0.6789 | kl 0.0123 | tokens/s 1234.5", file=out, flush=flushed)
"""


@dataclass(frozen=True)
class Printed:
    """A command: how many lines it prints, ``"lines"`` or ``"blocks"``, and over how many seconds of work."""

    lines: int
    way: str = "lines"
    work_s: float = 0.0


NOTHING = Printed(0)


@dataclass(frozen=True)
class Took:
    """Wall-clock and CPU seconds of one run, of the command and what ran it together."""

    wall_s: float
    cpu_s: float

    def less(self, other: Took) -> Took:
        """Return what it took more than another."""
        return Took(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)


def took(printed: Printed, before: tuple[str, ...], out: Path) -> Took:
    """Run a command once, after the words ``before``, with its output in ``out``.

    Raises:
        SystemExit: It did not end well within a minute.
    """
    words = [str(printed.lines), printed.way, str(printed.work_s)]
    used = os.times()
    with out.open("wb") as file:
        began = time.perf_counter()
        done = subprocess.run(
            [*before, sys.executable, "-c", _PRINTS, *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            timeout=_RUN_S,
            check=False,
        )
        wall_s = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{printed} ended with {done.returncode}")
    now = os.times()
    children = now.children_user + now.children_system - used.children_user - used.children_system
    return Took(wall_s, children)


def pair(printed: Printed, folder: Path, *, bare_first: bool) -> tuple[Took, Took]:
    """Run a command bare and under ``rayguard run``, one after the other; return what each took.

    Raises:
        SystemExit: What was carried is not what was printed.
    """
    both = {}
    for guarded in (False, True) if bare_first else (True, False):
        both[guarded] = took(printed, _RAYGUARD if guarded else (), folder / str(guarded))
    if (folder / "False").read_bytes() != (folder / "True").read_bytes():
        raise SystemExit("what was carried is not what was printed")
    return both[False], both[True]


def figures(nothing: list[tuple[Took, Took]], runs: list[tuple[Took, Took]], lines: int) -> dict[str, float]:
    """Return what a command comes to, the start and the end of each round's empty one taken off."""
    net = [
        (bare.less(empty), guarded.less(empty_guarded))
        for (empty, empty_guarded), (bare, guarded) in zip(nothing, runs, strict=True)
    ]
    found = {
        "bare_s": round(median(bare.wall_s for bare, _ in net), 3),
        "ratio": round(median(guarded.wall_s / bare.wall_s for bare, guarded in net), 3),
        "cpu_ratio": round(median(guarded.cpu_s / bare.cpu_s for bare, guarded in net), 3),
    }
    if lines >= _MANY:
        found["us_a_line"] = round(
            median(guarded.cpu_s - bare.cpu_s for bare, guarded in net) / lines * 1e6, 2
        )
    return found


def main() -> int:
    """Measure, print the figures; return 1 where a promise is missed."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--lines", type=int, default=200_000)
    options.add_argument("--rounds", type=int, default=7)
    asked = options.parse_args()
    commands = {
        "by_line": Printed(asked.lines),
        "by_block": Printed(asked.lines, "blocks"),
        "little": Printed(20, work_s=1.0),
    }
    nothing: list[tuple[Took, Took]] = []
    runs: dict[str, list[tuple[Took, Took]]] = {way: [] for way in commands}
    with tempfile.TemporaryDirectory(prefix="rayguard-bench-") as name:
        for turn in range(asked.rounds):
            nothing.append(pair(NOTHING, Path(name), bare_first=turn % 2 == 0))
            for way, printed in commands.items():
                runs[way].append(pair(printed, Path(name), bare_first=turn % 2 == 0))
    of = {way: figures(nothing, runs[way], printed.lines) for way, printed in commands.items()}
    start_s = round(median(guarded.less(bare).wall_s for bare, guarded in nothing), 2)
    for way, one in of.items():
        print(f"{way:>8}: " + ", ".join(f"{name} {value}" for name, value in one.items()))
    held = of["by_line"]["us_a_line"] <= LIMIT_US and of["little"]["ratio"] <= LIMIT_LITTLE
    load = round(os.getloadavg()[0], 1)
    told = {"lines": asked.lines, "pairs": asked.rounds, "start_s": start_s, "load": load}
    print(json.dumps({**told, **of, "held": held}))
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
