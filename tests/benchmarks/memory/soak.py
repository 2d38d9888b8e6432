"""A leaking training job under a real limit, bare and under guard: ``make soak-memory``.

Ray's memory monitor is made to kill a little above what the node uses now. The bare job dies as the published
one did; the guarded one must end with all steps done, none twice, and the right result. Last line JSON.
``python -m tests.benchmarks.memory.soak [--rest]``; ``--rest`` adds the figures of the other memory benchmarks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rayguard.memory.probes.node import MonitorSettings, NodeProbe
from tests.benchmarks.memory.soak_job import ROOM_MIB, STEPS

MIB = 1 << 20
_LIMIT_S = 600.0
_REST = ("bench_forecast", "bench_lookalikes", "bench_ledger", "bench_recorder")
_FIGURES = (
    "forecast_early_ratio",
    "forecast_false_ratio",
    "wrong_kills",
    "ledger_pass_ms",
    "watcher_core_ratio",
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rest", action="store_true", help="run the other memory benchmarks, too")
    options.add_argument("--plot", type=Path, help="draw both courses into this file (needs matplotlib)")
    options.add_argument("--keep", action="store_true", help="keep journal and recordings")
    chosen = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rayguard-soak-"))
    try:
        print(
            f"bare: {STEPS} steps, each leaks; Ray kills {ROOM_MIB} MiB above what is in use", file=sys.stderr
        )
        threshold = kills_at()
        bare = arm(folder / "bare", threshold, guard=False)
        print(f"  {bare}\nunder guard", file=sys.stderr)
        guarded = arm(folder / "guarded", threshold, guard=True)
        print(f"  {guarded}", file=sys.stderr)
    finally:
        if chosen.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    told = figures(bare, guarded)
    if chosen.plot:
        draw(bare, guarded, chosen.plot)
    if chosen.rest:
        told |= rest()
    print(json.dumps(told))
    return int(not (told["survived_with_guard"] and told["died_without"]))


def kills_at() -> float:
    """Return the share of this node at which Ray shall kill: the same for both arms."""
    memory = NodeProbe(MonitorSettings()).read()
    assert memory is not None, "this machine does not tell its memory"
    return (memory.used + ROOM_MIB * MIB) / memory.total


def arm(folder: Path, threshold: float, *, guard: bool) -> dict[str, Any]:
    """Run the job in a process of its own and return what it says."""
    folder.mkdir()
    environment = {
        **os.environ,
        "RAY_memory_usage_threshold": f"{threshold:.4f}",
        "RAY_AUTH_MODE": "disabled",
        "RAYGUARD_HOME": str(folder / "home"),
    }
    command = [sys.executable, "-m", "tests.benchmarks.memory.soak_job", "--folder", str(folder)]
    ran = subprocess.run(
        [*command, *(["--guard"] if guard else [])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    lines = ran.stdout.strip().splitlines()
    if not lines:
        raise RuntimeError(f"the job said nothing (exit {ran.returncode}): {ran.stderr[-2_000:]}")
    told: dict[str, Any] = json.loads(lines[-1])
    return {**told, "threshold": round(threshold, 3)}


def figures(bare: dict[str, Any], guarded: dict[str, Any]) -> dict[str, Any]:
    """Return what is to be shown of both."""
    store = guarded["store_mib"]
    part = max(1, len(store) // 4)
    early, late = max(store[:part], default=0.0), max(store[-part:], default=0.0)
    done = guarded["steps"] == STEPS and guarded["right"] and not guarded["repeated"]
    return {
        "survived_with_guard": bool(done),
        "died_without": bare["steps"] < STEPS,
        "died_at_step": bare["steps"],
        "died_of": bare["error"][:80],
        "steps_lost": STEPS - guarded["steps"],
        "steps_repeated": guarded["repeated"],
        "lives": guarded["lives"],
        "store_ratio": round(late / early, 3) if early else None,
        "store_mib": [early, late],
    }


def draw(bare: dict[str, Any], guarded: dict[str, Any], into: Path) -> None:
    """Draw the memory of the trainer and the object store, step by step, of both."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (memory, store) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    for axes, name, title in (
        (memory, "trainer_mib", "the trainer's own memory (MiB)"),
        (store, "store_mib", "object store (MiB)"),
    ):
        axes.plot(guarded[name], color="tab:green", label="under guard")
        axes.plot(bare[name], color="tab:red", linestyle="--", label="bare")
        axes.plot(len(bare[name]) - 1, bare[name][-1], "x", color="tab:red", markersize=10)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        axes.set_ylim(bottom=0)
    memory.annotate(
        "killed by Ray",
        (len(bare["trainer_mib"]) - 1, bare["trainer_mib"][-1]),
        textcoords="offset points",
        xytext=(-78, -4),
        color="tab:red",
        fontsize=9,
    )
    memory.legend(frameon=False, fontsize=9)
    figure.savefig(into, dpi=110)


def rest() -> dict[str, Any]:
    """Run the other memory benchmarks; return the figures that belong here."""
    found: dict[str, Any] = {}
    for name in _REST:
        print(name, file=sys.stderr)
        ran = subprocess.run(
            [sys.executable, "-m", f"tests.benchmarks.memory.{name}"],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        lines = ran.stdout.strip().splitlines()
        told = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        found |= {figure: told[figure] for figure in _FIGURES if figure in told}
    return {name: found.get(name) for name in _FIGURES}


if __name__ == "__main__":
    sys.exit(main())
