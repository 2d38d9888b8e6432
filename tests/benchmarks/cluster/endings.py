"""Jobs that end, each in its own way, while Prometheus looks: no false alarm, and none that outlives its job."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayguard.cluster.agent.death_verdict import DRIVER, DRIVER_DIED
from rayguard.recovery.incident import Outcome
from rayguard.recovery.journal import Journal
from tests.benchmarks.cluster.jobs import Job
from tests.benchmarks.cluster.runbooks import follow

if TYPE_CHECKING:
    from rayguard.recovery.incident import Incident
    from tests.benchmarks.cluster.alarms import Alarms
    from tests.benchmarks.cluster.prometheus import Prometheus
    from tests.benchmarks.cluster.runbooks import Followed
    from tests.benchmarks.cluster.stage import Stage

_PROGRAM = Path(__file__).parent / "ending_job.py"
_WORK_S = 60.0
_LIMIT_S = 400.0
_LEFT_S = 20.0  # for an alert of a job that is over, in time lapse
_QUIET_S = 10.0
_LOOK_S = 0.5
# In time lapse a minute is a second, and what takes seconds is alarming: no word on these.
_NOT_CURED = "RayguardRecoveryFailed"
_OF_DURATION = frozenset({"RayguardIncidentOpen", "RayguardTrainingTimeLow", "RayguardJobStalled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What must be told of a job, and no more: alerts, unexpected deaths by class."""

    alerts: frozenset[str] = frozenset()
    deaths: dict[str, float] = field(default_factory=dict)


EXPECTED = {
    "end": Expected(),
    "killed": Expected(deaths={DRIVER: 1}),
    "exit": Expected(deaths={"Mayfly": 1}),
    "given_up": Expected(alerts=frozenset({_NOT_CURED}), deaths={"Doomed": 2}),
}


@dataclass
class Ending:
    """One of these jobs: how it ends, its id and the pid of its driver."""

    how: str
    job: Job
    id: str = ""
    pid: int = 0


def check(
    stage: Stage, server: Prometheus, alarms: Alarms, folder: Path, followed: list[Followed]
) -> dict[str, Any]:
    """Run the jobs to their ends; return what is wrong with what was told of them.

    The runbook of the one alert that must fire is followed meanwhile, into ``followed``.
    """
    with contextlib.ExitStack() as running:
        endings = [
            Ending(how, running.enter_context(_job(how, stage.address, folder, stage.homes[0])))
            for how in EXPECTED
        ]
        for one in endings:
            one.id, one.pid = (
                f"{int(one.job.until('job', _LIMIT_S)):08x}",
                int(one.job.until("pid", _LIMIT_S)),
            )
            one.job.until("step", _LIMIT_S)
        for one in endings:  # before the first of them ends
            _until_said(server, one, over=0)
        followed += _follow(endings[-1], stage, server)
        for one in endings:
            if one.how == "killed":
                os.kill(one.pid, signal.SIGKILL)
            else:
                one.job.until("over", _LIMIT_S)
        for one in endings:
            _until_said(server, one, over=1)
        left = _left(server, {one.id: one.how for one in endings})
    wrong = [
        *left,
        *(problem for one in endings for problem in _amiss(one, server, alarms, _journal(stage, one.id))),
    ]
    return {"endings": len(endings), "endings_amiss": wrong}


def _job(how: str, address: str, folder: Path, home: Path) -> Job:
    asked = ["--address", address, "--how", how, "--seconds", str(_LIMIT_S if how == "killed" else _WORK_S)]
    return Job(str(_PROGRAM), asked, folder / how, home)


def _follow(one: Ending, stage: Stage, server: Prometheus) -> list[Followed]:
    """Follow the runbook of what could not be cured, on the node where that was, while its alert fires."""
    one.job.until("given_up", _LIMIT_S)

    def fires() -> bool:
        named = {
            (each.name, each.labels.get("ray_job")) for each in server.alerts() if each.state == "firing"
        }
        return (_NOT_CURED, one.id) in named

    server.until(fires, _LEFT_S, f"{_NOT_CURED} does not fire")
    told = {home: each for home in stage.homes for each in Journal(home).read() if each.job_id == one.id}
    home, incident = next((home, each) for home, each in told.items() if each.outcome is Outcome.FAILED)
    says = {"rayguard incidents": incident.id, "rayguard incidents --kind <kind> --last 5": incident.id}
    return follow("recovery-failed", stage, home, {"<kind>": incident.kind}, says)


def _until_said(server: Prometheus, one: Ending, *, over: int) -> None:
    query = f'max(rayguard_job_over{{ray_job="{one.id}"}}) == {over}'
    said = f"no node says whether the job that ends so is over: {one.how}, {over}"
    server.until(lambda: bool(server.ask(query)), _LIMIT_S, said)


def _left(server: Prometheus, jobs: dict[str, str]) -> list[str]:
    """Wait until no alert of these jobs fires, and a while longer; return those that do."""
    deadline, quiet_since, firing = time.monotonic() + _LEFT_S + _QUIET_S, time.monotonic(), set[str]()
    while time.monotonic() < deadline:
        alerts = [
            one for one in server.alerts() if one.state == "firing" and one.labels.get("ray_job") in jobs
        ]
        firing = {f"{jobs[one.labels['ray_job']]}: {one.name} outlives its job" for one in alerts}
        if firing:
            quiet_since = time.monotonic()
        if time.monotonic() - quiet_since >= _QUIET_S:
            return []
        threading.Event().wait(_LOOK_S)
    return sorted(firing) or ["alerts of jobs that are over come and go"]


def _journal(stage: Stage, job_id: str) -> list[Incident]:
    found = [one for home in stage.homes for one in Journal(home).read() if one.job_id == job_id]
    # One node of the check has little memory left: what is told of that is true, and no ending.
    return [one for one in found if not one.signature.startswith("memory.")]


def _amiss(one: Ending, server: Prometheus, alarms: Alarms, told: list[Incident]) -> list[str]:
    """Return what was told of a job and should not have been, or the other way round."""
    expected, found = EXPECTED[one.how], []
    fired = alarms.of_jobs[one.id] - _OF_DURATION
    if fired != expected.alerts:
        found.append(f"alerts {sorted(fired)}")
    counted = server.ask(f'sum by (actor_class) (rayguard_process_deaths_total{{ray_job="{one.id}"}})')
    deaths = {row["metric"]["actor_class"]: float(row["value"][1]) for row in counted}
    if deaths != expected.deaths:
        found.append(f"deaths {deaths}")
    if not _fits(one, told):
        found.append(f"incidents {[(each.scope, each.target, each.cause[:120]) for each in told]}")
    return [f"{one.how}: {problem}" for problem in found]


def _fits(one: Ending, told: list[Incident]) -> bool:
    """Say whether the incidents of a job are those of its ending."""
    if one.how == "given_up":
        return any(each.remedy == "give_up" and each.outcome is Outcome.FAILED for each in told)
    if one.how == "killed":
        return [(each.signature, each.pid) for each in told] == [(DRIVER_DIED, one.pid)]
    dead = [int(line["dead"]) for line in one.job.lines() if "dead" in line]
    return [each.pid for each in told] == dead
