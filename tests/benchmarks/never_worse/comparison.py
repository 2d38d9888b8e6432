"""Runs programs in every way, side by side, and has the oracle compare: what ``make never-worse`` does."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.benchmarks.never_worse.actors import digest_after
from tests.benchmarks.never_worse.oracle import Finding, Oracle
from tests.benchmarks.never_worse.runner import Driver

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.benchmarks.never_worse.program import Program

AGAIN = 2  # times that a program is run again before it is called worse: Ray itself races here and there
_WORDS = ("worse", "silent", "hung")
_ORACLE = Oracle(digest_after)


def held(
    programs: Sequence[Program], ways: Iterable[str], *, jobs: int, explain: bool = False
) -> dict[str, Any]:
    """Run all of them bare and in ``ways``, ``jobs`` at a time; return the figures. What is bad is printed."""
    console, began, totals = Console(stderr=True), time.monotonic(), Counter[str]()
    fired, logs = Counter[str](), Path(tempfile.mkdtemp(prefix="never-worse-logs-"))
    drivers = {way: Driver(way, logs / f"{way}.err") for way in ("bare", *ways)}
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    threads = ThreadPoolExecutor(jobs * len(drivers) + jobs)
    try:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=len(programs))
            with ThreadPoolExecutor(jobs) as side_by_side:
                asked = [side_by_side.submit(_Case(one, drivers, threads).compared) for one in programs]
                for done in as_completed(asked):
                    case = done.result()
                    totals.update(case.counted())
                    fired.update(case.fired)
                    case.tell(console, whole=explain)
                    said = ", ".join(f"{totals[word]} {word}" for word in (*_WORDS, "better"))
                    progress.update(task, advance=1, description=said)
    finally:
        for driver in drivers.values():
            threads.submit(driver.end)
        threads.shutdown()
    bad = any(totals[word] for word in (*_WORDS, "unsteady"))
    if bad:
        console.print(f"what the drivers themselves said: {logs}", soft_wrap=True, highlight=False)
    else:
        shutil.rmtree(logs, ignore_errors=True)
    return {
        "programs": len(programs),
        **{name: totals[name] for name in (*_WORDS, "better", "unsteady")},
        "fired": dict(sorted(fired.items())),
        "wall_s": round(time.monotonic() - began, 1),
    }


@dataclass(slots=True)
class _Case:
    """One program: its bare runs, and what was found of it in each way."""

    program: Program
    drivers: dict[str, Driver]
    threads: ThreadPoolExecutor
    bare: list[dict[str, Any]] = field(default_factory=list)
    found: dict[str, list[tuple[Finding, dict[str, Any]]]] = field(default_factory=dict)
    fired: Counter[str] = field(default_factory=Counter)

    def compared(self) -> _Case:
        """Run it in all ways at once; in those that come out bad, and bare, again."""
        ways = [way for way in self.drivers if way != "bare"]
        for _ in range(1 + AGAIN):
            runs = {way: self.threads.submit(self.drivers[way].run, self.program) for way in ("bare", *ways)}
            self.bare.append(runs["bare"].result())
            for way in ways:
                ran = runs[way].result()
                self.fired.update(ran["fired"])
                finding = _ORACLE.compared(self.program, self.bare, ran)
                self.found.setdefault(way, []).append((finding, ran))
            ways = [way for way in ways if not self.found[way][-1][0].good]
            if not ways:
                break
        return self

    def counted(self) -> Counter[str]:
        """Return what it adds to the figures.

        What any bare run gave is allowed. What came out worse once and not again is unsteady. What was silent
        or hung, and no bare run was so, stays that, however seldom it comes.
        """
        counted = Counter[str]()
        for way in self.found:
            final = self._final(way)
            counted.update(word for word in _WORDS if getattr(final, word))
            counted["unsteady"] += final.good and len(self.found[way]) > 1
            counted["better"] += bool(final.better)
        return counted

    def _final(self, way: str) -> Finding:
        tries = [_ORACLE.compared(self.program, self.bare, ran) for _, ran in self.found[way]]
        return next((one for one in tries if one.silent or one.hung), tries[-1])

    def tell(self, console: Console, *, whole: bool) -> None:
        """Print what is not good, and what was so once."""
        for way, tries in self.found.items():
            final = self._final(way)
            shown = [(word, what) for word in _WORDS for what in getattr(final, word)]
            if final.good and len(tries) > 1:
                first = tries[0][0]
                shown = [("unsteady", f"once {w}: {what}") for w in _WORDS for what in getattr(first, w)]
            for word, what in shown:
                line = f"seed {self.program.seed} {way} {word}: {what}"
                console.print(line, soft_wrap=True, highlight=False, markup=False)
            for one in (
                (self.program.to_json(), *self.bare, *(ran for _, ran in tries)) if shown and whole else ()
            ):
                console.print(json.dumps(one), soft_wrap=True, highlight=False, markup=False)
