"""Ports that the settings name: taken already, named twice, or where the kernel may put anything."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from rayguard.dialects.job_settings import LAST_PORT
from rayguard.preflight_checks.finding import PreflightFinding, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rayguard.dialects.job_settings import JobSettings
    from rayguard.preflight_checks.listening import PortFacts

_FIRST = 1024  # below, one must be root
_ELSEWHERE = 20_000  # above Ray's workers, below what Linux hands out unless told otherwise


def check(job: JobSettings, here: PortFacts) -> Iterator[PreflightFinding]:
    """Yield ports that cannot be had, or perhaps not; the corrections of all fit together."""
    named = {name: port for name, port in job.ports.items() if port}
    wrong = {**_twice(job, named), **_taken(named, here)}
    perhaps = {
        name: _perhaps(name, port, here)
        for name, port in named.items()
        if name not in wrong and here.may_be_handed_out(port)
    }
    corrected: dict[str, int] = {}
    for name in (*wrong, *perhaps):
        start = named[name] + 1 if name in wrong else _ELSEWHERE
        corrected[name] = _free(job, {**named, **corrected}, here, start)
    for name, (kind, why) in wrong.items():
        yield error(kind, why, ports={name: corrected[name]})
    for name, why in perhaps.items():
        yield warning("ports.ephemeral", why, ports={name: corrected[name]})


def _taken(named: Mapping[str, int], here: PortFacts) -> dict[str, tuple[str, str]]:
    return {
        name: (
            "ports.taken",
            f"{name}={port} is taken on this machine{here.taken[port]}: 'address already in use'",
        )
        for name, port in named.items()
        if port in here.taken
    }


def _twice(job: JobSettings, named: Mapping[str, int]) -> dict[str, tuple[str, str]]:
    """Return which names have the port of another one, or one of Ray's workers."""
    found: dict[str, tuple[str, str]] = {}
    before: dict[int, str] = {}
    first, last = job.worker_ports or (0, -1)
    for name, port in named.items():
        if port in before:
            why = f"{name} and {before[port]} are both port {port}: the second one cannot listen"
            found[name] = ("ports.same", why)
        elif first <= port <= last:
            why = (
                f"{name}={port} is one of the ports {first} to {last} of Ray's workers: Ray does not start "
                "('is trying to use a port number ... that is used by other components')"
            )
            found[name] = ("ports.same", why)
        before.setdefault(port, name)
    return found


def _perhaps(name: str, port: int, here: PortFacts) -> str:
    first, last = here.ephemeral or (0, 0)
    return (
        f"{name}={port} lies among the ports {first} to {last} that the kernel gives to outgoing "
        "connections: one of them may have it when the job begins (take another, or keep it free: sysctl -w "
        f"net.ipv4.ip_local_reserved_ports={port})"
    )


def _free(job: JobSettings, named: Mapping[str, int], here: PortFacts, start: int) -> int:
    """Return a port from ``start`` on that nobody has and nobody may be given; from the beginning, else."""
    first, last = job.worker_ports or (0, -1)
    used = set(named.values())
    for port in chain(range(max(start, _FIRST), LAST_PORT + 1), range(_FIRST, start)):
        mine = port in used or port in here.taken or first <= port <= last
        if not mine and not here.may_be_handed_out(port):
            return port
    return 0
