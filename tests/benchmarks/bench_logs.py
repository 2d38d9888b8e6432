"""How fast a huge log is read: the scan of rayguard beside `grep -E -c` on the same patterns, in one run.

Writes the log of a healthy job with one failure inside to a temporary folder, diagnoses it in a process of its
own, and lets grep count the lines that hold any of the automaton's patterns. Last line JSON.
``python -m tests.benchmarks.bench_logs --megabytes 1000``
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from tests.benchmarks.healthy_log import healthy_lines

DISTINCT_BYTES = 8_000_000  # of healthy lines; then they repeat
FAILURE = """\
(WorkerDict pid=20017, ip=10.0.0.2) Traceback (most recent call last):
(WorkerDict pid=20017, ip=10.0.0.2)   File "/opt/venv/lib/python3.12/site-packages/verl/workers/fsdp_workers.py", line 612, in update_actor
(WorkerDict pid=20017, ip=10.0.0.2)     metrics = self.actor.update_policy(data=data)
(WorkerDict pid=20017, ip=10.0.0.2)   File "/opt/venv/lib/python3.12/site-packages/verl/protocol.py", line 701, in chunk
(WorkerDict pid=20017, ip=10.0.0.2)     assert len(self) % chunks == 0, f"only support equal chunk. Got size of DataProto {len(self)} and chunk {chunks}."
(WorkerDict pid=20017, ip=10.0.0.2) AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.
"""
_CHILD = """
import json, resource, sys, time
from pathlib import Path
from rayguard.faults.catalog import default_catalog
from rayguard.logs.many_files import Across
from rayguard.logs.files import find
from rayguard.logs.scan import Anchors
catalog = default_catalog()
across = Across(catalog, Anchors(catalog))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin = time.perf_counter()
report = across.diagnose(find(sys.argv[1:]).files, [])
took = time.perf_counter() - begin
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": took, "kind": report.diagnosis.kind.value, "line": report.evidence[0].line,
                  "rss_mb": round(after / 1024), "rss_before_mb": round(before / 1024)}))
"""


def write_log(path: Path, size: int, at: float = 0.6, failure: str = FAILURE) -> int:
    """Write about ``size`` bytes with ``failure`` inside; return the number of its first line."""
    if shutil.disk_usage(path.parent).free < 2 * size:
        raise SystemExit(f"{path.parent} has no room for {size / 1e6:.0f} MB; choose a smaller --megabytes")
    lines: list[bytes] = []
    made, some = 0, healthy_lines(0)
    while made < min(size, DISTINCT_BYTES):
        lines += (f"{line}\n".encode() for line in islice(some, 5_000))
        made = sum(map(len, lines))
    healthy, written, number, first = b"".join(lines), 0, 1, 0
    with path.open("wb") as file:
        while written < size:
            if not first and written + len(healthy) >= size * at:
                cut = healthy.find(b"\n", max(int(size * at) - written, 0)) + 1
                file.write(healthy[:cut] + failure.encode() + healthy[cut:])
                first = number + healthy.count(b"\n", 0, cut)
            else:
                file.write(healthy)
            number += len(lines)
            written += len(healthy)
    return first


def measure(megabytes: int) -> dict[str, object]:
    from rayguard.faults.catalog import default_catalog
    from rayguard.logs.scan import Anchors

    patterns = [pattern.decode() for pattern in Anchors(default_catalog()).patterns]
    with tempfile.TemporaryDirectory(prefix="rayguard-logs-") as folder:
        path = Path(folder) / "train.log"
        first = write_log(path, megabytes * 1_000_000)
        size_mb = path.stat().st_size / 1e6
        with path.open("rb") as file:  # both read it from the page cache
            while file.read(1 << 22):
                pass
        run = subprocess.run(
            [sys.executable, "-c", _CHILD, str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=3600,
        )
        ours = json.loads(run.stdout.splitlines()[-1])
        wanted = Path(folder) / "patterns"
        wanted.write_text("\n".join(re.sub(r"([][\\.*^$+?(){}|])", r"\\\1", one) for one in patterns))
        begin = time.perf_counter()
        grep = subprocess.run(
            ["grep", "-E", "-c", "-f", str(wanted), str(path)],
            capture_output=True, text=True, check=False, timeout=3600, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        grep_s = time.perf_counter() - begin
    return {
        "mb": round(size_mb, 1),
        "patterns": len(patterns),
        "scan_s": round(ours["seconds"], 2),
        "scan_mb_per_s": round(size_mb / ours["seconds"], 1),
        "grep_s": round(grep_s, 2),
        "grep_mb_per_s": round(size_mb / grep_s, 1),
        "times_grep": round(grep_s / ours["seconds"], 2),
        "grep_lines": int(grep.stdout or 0),
        "peak_rss_mb": ours["rss_mb"],
        "rss_before_mb": ours["rss_before_mb"],
        "kind": ours["kind"],
        "line_right": first <= ours["line"] <= first + FAILURE.count("\n"),
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--megabytes", type=int, default=1000)
    print(json.dumps(measure(options.parse_args().megabytes)))
