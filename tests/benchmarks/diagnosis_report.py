"""How often the diagnosis is right, by a file of labelled failure texts: ``make diagnosis-report``.

Each line of the file is a JSON object with `id`, `text`, `label` and perhaps `also_ok` (labels that count as right
too). Each text is diagnosed as it is, and buried in 5,000 lines of a healthy job's other workers. Prints the figures,
by kind, with the confusions and a reliability table; the last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

from rayguard.faults.catalog import default_catalog
from rayguard.faults.diagnosis import Diagnosis, Kind
from rayguard.logs.report import diagnose_text
from tests.benchmarks import bench_logs
from tests.benchmarks.healthy_log import healthy_lines

BURIED_LINES = 5_000
BUCKETS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.01)
# The scope of a kind, where it has one of its own (the others depend on the evidence and are not scored).
SCOPES = {
    kind: scope
    for scope, kinds in {
        "engine": "scheduler_assertion engine_internal_error engine_dead engine_init_failed engine_hang"
        " kv_cache_too_small weight_sync_failed",
        "process": "cuda_device_assert cuda_illegal_access host_oom actor_died actor_unavailable",
        "node": "gpu_hardware node_died preempted shm_exhausted disk_full os_limit",
        "group": "nccl_timeout nccl_error gloo_error",
        "request": "request_invalid",
        "job": "batch_indivisible launcher_misconfig config_invalid dependency_mismatch runtime_env_failed",
        "code": "user_code",
    }.items()
    for kind in kinds.split()
}
# A restart with the same settings cures these, and never those (the corpus' table of what people report as cures).
RESTART_CURES = frozenset(
    [
        "scheduler_assertion",
        "engine_dead",
        "engine_hang",
        "actor_died",
        "actor_unavailable",
        "node_died",
        "preempted",
        "object_lost",
        "get_timeout",
        "nccl_timeout",
        "nccl_error",
        "gloo_error",
        "port_conflict",
    ]
)
RESTART_IS_BLIND = frozenset(["config_invalid", "batch_indivisible", "user_code", "dependency_mismatch"])


class Case(NamedTuple):
    """One labelled text."""

    name: str
    text: str
    label: str
    right: frozenset[str]

    def kind_ok(self, found: Diagnosis) -> bool:
        """Whether the kind is one that counts."""
        return found.kind.value in self.right

    def scope_ok(self, found: Diagnosis) -> bool:
        """Whether what must be restarted is right; a label without a scope of its own is not scored."""
        scopes = {SCOPES.get(kind) for kind in self.right}
        return self.kind_ok(found) or None in scopes or found.scope.value in scopes

    def stopped(self, found: Diagnosis) -> bool:
        """Whether the answer says to stop, where a restart would have cured it."""
        return self.right <= RESTART_CURES and found.kind.value in RESTART_IS_BLIND

    def blind(self, found: Diagnosis) -> bool:
        """Whether the answer says that the same settings may be tried again, where they never work."""
        restarts = found.retry_same_settings and found.kind is not Kind.UNKNOWN
        return self.right <= RESTART_IS_BLIND and restarts


def read(paths: Iterable[Path]) -> list[Case]:
    """Return the cases of all files."""
    rows = (
        json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines() if line
    )
    return [
        Case(r["id"], r["text"], r["label"], frozenset({r["label"], *(r.get("also_ok") or ())})) for r in rows
    ]


def buried(case: Case) -> str:
    """Return the text cut into the output of a healthy job: whole, or line by line among the others' lines."""
    rng = random.Random(case.name)
    healthy = list(itertools.islice(healthy_lines(rng.randrange(10**6)), BURIED_LINES))
    lines, place = case.text.splitlines(), rng.randrange(BURIED_LINES)
    gap = rng.choice((0, 0, 1, 3))
    mine = "" if "pid=" in case.text or rng.random() < 0.5 else "(Worker pid=41) "
    mixed = healthy[:place]
    for line in lines:
        mixed.append(mine + line)
        mixed += itertools.islice(healthy_lines(rng.randrange(10**6)), rng.randrange(gap + 1))
    return "\n".join(mixed + healthy[place:])


def main() -> int:
    """Measure and print; 0 whatever the figures are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument(
        "--no-buried", action="store_true", help="leave out the buried texts, which take a minute"
    )
    parser.add_argument(
        "--megabytes", type=int, default=1_000, help="of the log whose reading is timed; 0: none"
    )
    asked = parser.parse_args()
    missing = [path for path in asked.files if not path.is_file()]
    if missing:
        parser.error(f"no such file: {missing[0]} (make diagnosis-report CORPUS=texts.jsonl)")
    cases, console = read(asked.files), Console()
    default_catalog()
    began, plain = time.perf_counter(), [diagnose_text(case.text).diagnosis for case in cases]
    seconds = time.perf_counter() - began
    figures: dict[str, object] = {
        "kind_ok": _share(case.kind_ok(found) for case, found in zip(cases, plain, strict=True)),
        "scope_ok": _share(case.scope_ok(found) for case, found in zip(cases, plain, strict=True)),
        "n": len(cases),
        "stopped_wrongly": sum(case.stopped(found) for case, found in zip(cases, plain, strict=True)),
        "blind_restarts": sum(case.blind(found) for case, found in zip(cases, plain, strict=True)),
        "ms_per_text": round(seconds / len(cases) * 1e3, 2),
    }
    _show_kinds(console, cases, plain)
    _show_confusions(console, cases, plain)
    _show_reliability(console, cases, plain)
    if not asked.no_buried:
        figures |= _bury(console, cases, plain)
    if asked.megabytes:
        read_log = bench_logs.measure(asked.megabytes)
        console.print(
            f"a log of {asked.megabytes} MB, beside grep -E with the same patterns: {json.dumps(read_log)}"
        )
        figures["mb_per_s"] = read_log["scan_mb_per_s"]
        figures["times_grep"] = read_log["times_grep"]
    print(json.dumps(figures))
    return 0


def _bury(console: Console, cases: list[Case], plain: list[Diagnosis]) -> dict[str, float]:
    """Return how often the kind stays what it was, and is right, within the log of a healthy job."""
    same, right = [], []
    for case, found in zip(track(cases, "buried", console=Console(stderr=True)), plain, strict=True):
        deep = diagnose_text(buried(case)).diagnosis
        same.append(deep.kind is found.kind)
        right.append(case.kind_ok(deep))
        if deep.kind is not found.kind:
            console.print(
                f"buried {case.name}: {found.kind.value} became {deep.kind.value} ({deep.signature})"
            )
    return {"buried_ok": _share(same), "buried_kind_ok": _share(right)}


def _share(right: Iterable[bool]) -> float:
    answers = list(right)
    return round(sum(answers) / max(len(answers), 1), 4)


def _show_kinds(console: Console, cases: list[Case], found: list[Diagnosis]) -> None:
    by_kind: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for case, diagnosis in zip(cases, found, strict=True):
        by_kind[case.label].append((case.kind_ok(diagnosis), case.scope_ok(diagnosis)))
    table = Table("label", "n", "kind right", "scope right", title="By kind")
    for kind, answers in sorted(by_kind.items(), key=lambda item: -len(item[1])):
        table.add_row(
            kind, str(len(answers)), str(sum(a for a, _ in answers)), str(sum(b for _, b in answers))
        )
    console.print(table)


def _show_confusions(console: Console, cases: list[Case], found: list[Diagnosis]) -> None:
    wrong = Counter(
        (case.label, diagnosis.kind.value, case.name)
        for case, diagnosis in zip(cases, found, strict=True)
        if not case.kind_ok(diagnosis)
    )
    table = Table("label", "answered", "text", title="Confusions")
    for label, answered, name in sorted(wrong):
        table.add_row(label, answered, name)
    console.print(table)


def _show_reliability(console: Console, cases: list[Case], found: list[Diagnosis]) -> None:
    table = Table("confidence", "n", "right", title="Reliability")
    for low, high in itertools.pairwise(BUCKETS):
        answers = [c.kind_ok(d) for c, d in zip(cases, found, strict=True) if low <= d.confidence < high]
        if answers:
            table.add_row(
                f"{low:.2f} - {min(high, 1):.2f}", str(len(answers)), f"{sum(answers) / len(answers):.3f}"
            )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
