"""Run every benchmark, one after the other, and print the figures of each: ``make bench``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

SHORT = {
    "bench_call": (),
    "bench_snapshot": (),
    "bench_gang": (),
    "bench_numeric": (),
    "bench_restart": ("3",),
    "bench_identity": ("--trials", "50"),
    "bench_throughput": ("--groups", "100"),
    "bench_hangs": ("--minutes", "3"),
    "bench_logs": ("--megabytes", "500"),
}


def main() -> int:
    failed = 0
    for name, arguments in SHORT.items():
        print(f"{name} ...", flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments]
        run = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
        failed += run.returncode != 0
        lines = run.stdout.strip().splitlines() or ["(no output)"]
        print(f"  {lines[-1]}" if run.returncode == 0 else f"  exit {run.returncode}: {run.stderr[-800:]}")
    print(json.dumps({"benchmarks": len(SHORT), "failed": failed, "load": os.getloadavg()[0]}))
    return failed


if __name__ == "__main__":
    sys.exit(main())
