"""Runbooks followed: each command of a page is carried out on the live cluster, in the state that its alert tells of."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from deploy.generate.alerts.job_alerts import alerts
from tests.as_printed.commands import commands_of
from tests.as_printed.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.benchmarks.cluster.prometheus import Prometheus
    from tests.benchmarks.cluster.stage import Stage

_FROZEN = "RayguardProcessFrozen"
_FIRES_S = 60.0
_LIMIT_S = 180.0
_END_S = 300.0
_WORDS = 300
# Commands of pages that change nothing.
_LOOKS = ("rayguard status", "rayguard incidents", "rayguard memory", "rayguard reap --dry-run", "ray status")
_LOOKS += ("ray memory", "df ", "du ", "ps ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """One command of one page: what came of it. ``problem`` is empty where it did what the page says."""

    page: str
    command: str
    problem: str = ""


def follow(
    page: str, stage: Stage, home: Path, meant: Mapping[str, str], says: Mapping[str, str]
) -> list[Followed]:
    """Carry out the commands of a page as a person does on the node whose state is in ``home``.

    ``meant`` gives what a reader puts in the place of ``<pid>`` and the like; a command with another
    placeholder is of another case, and so is one that is not in ``says``: what it must print at least.
    """
    commands = commands_of(_page(page))
    gone = [one for one in says if one not in commands]
    found = [Followed(page=page, command=one, problem="the page has no such command") for one in gone]
    for command in commands:
        if command in says:
            typed, wanted = command, says[command]
            for placeholder, word in meant.items():
                typed, wanted = typed.replace(placeholder, word), wanted.replace(placeholder, word)
            found.append(Followed(page=page, command=command, problem=_problem(typed, wanted, stage, home)))
    return found


class OnCall:
    """Follows the runbook of each alert when it fires for the first time: what only looks, and is told whole.

    ``with OnCall(stage) as person: person.told("RayguardAgentGone")``; ``person.followed`` afterwards.
    """

    def __init__(self, stage: Stage) -> None:
        self.followed: list[Followed] = []
        self._stage = stage
        self._pages = {one.name: one.slug for one in alerts()}
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._known: set[str] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._news.put("")
        self._thread.join(_END_S)

    def told(self, name: str) -> None:
        """Take the news that an alert fires."""
        if name not in self._known:
            self._known.add(name)
            self._news.put(name)

    def _run(self) -> None:
        while name := self._news.get():
            page = self._pages[name]
            looks = [one for one in commands_of(_page(page)) if one.startswith(_LOOKS) and "<" not in one]
            self.followed += follow(page, self._stage, self._stage.homes[0], {}, dict.fromkeys(looks, ""))


def counted(followed: list[Followed]) -> dict[str, Any]:
    """Return how many commands were carried out, how many did what their page says, and the others."""
    amiss = [f"{one.page}: {one.problem}" for one in followed if one.problem]
    return {"runbooks": len(followed), "runbooks_ok": len(followed) - len(amiss), "runbooks_amiss": amiss}


def frozen(stage: Stage, server: Prometheus, pid: int) -> list[Followed]:
    """Follow the runbook of a process that is stopped, once the alert fires; the process goes on after that."""

    def fires() -> bool:
        return any(one.name == _FROZEN and one.state == "firing" for one in server.alerts())

    try:
        server.until(fires, _FIRES_S, f"{_FROZEN} does not fire")
    except TimeoutError as error:
        return [Followed(page="process-frozen", command="", problem=str(error))]
    says = {
        "ps -eo pid,stat,etime,cmd | awk '$2 ~ /^[Tt]/'": "<pid>",
        "grep TracerPid /proc/<pid>/status": "TracerPid:\t0",
        "kill -CONT <pid>": "",
    }
    return follow("process-frozen", stage, stage.homes[0], {"<pid>": str(pid)}, says)


def _page(name: str) -> Path:
    return ROOT / "docs" / "runbooks" / f"{name}.md"


def _problem(typed: str, wanted: str, stage: Stage, home: Path) -> str:
    programs = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "RAYGUARD_HOME": str(home),
        "RAY_ADDRESS": stage.address,
    }
    try:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", typed],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{typed!r} does not end in {_LIMIT_S:.0f} s"
    if done.returncode:
        return f"{typed!r} ended with {done.returncode}: {done.stderr[-_WORDS:]}"
    return "" if wanted in done.stdout else f"{typed!r} does not say {wanted!r}: {done.stdout[-_WORDS:]}"
