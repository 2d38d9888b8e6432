"""Which ports are taken on this machine, and which the kernel gives to outgoing connections: ``/proc``."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_PROC = Path("/proc")
_LISTEN = "0A"  # the state, as /proc/net/tcp writes it
_MOST_PROCESSES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """Ports of one machine. ``taken`` says by whom: '' or `` by python (pid 7)``."""

    taken: Mapping[int, str] = field(default_factory=dict)
    ephemeral: tuple[int, int] | None = None  # first and last
    reserved: frozenset[int] = frozenset()  # of these, kept free

    def may_be_handed_out(self, port: int) -> bool:
        """Say whether an outgoing connection may get ``port``."""
        if self.ephemeral is None or port in self.reserved:
            return False
        return self.ephemeral[0] <= port <= self.ephemeral[1]


def port_facts(asked: Collection[int], proc: Path = _PROC) -> PortFacts:
    """Return which ports are taken, of those ``asked`` by whom; nothing where there is no ``/proc``."""
    listening = dict(_listening(proc))
    wanted = {inode for port, inode in listening.items() if port in asked}
    owners = _owners(wanted, proc) if wanted else {}
    ipv4 = proc / "sys/net/ipv4"
    span = re.findall(r"\d+", _text(ipv4 / "ip_local_port_range"))
    return PortFacts(
        taken={port: owners.get(inode, "") for port, inode in listening.items()},
        ephemeral=(int(span[0]), int(span[1])) if len(span) == 2 else None,  # noqa: PLR2004 - first and last
        reserved=frozenset(_reserved(_text(ipv4 / "ip_local_reserved_ports"))),
    )


def _listening(proc: Path) -> Iterator[tuple[int, str]]:
    for name in ("tcp", "tcp6"):
        for line in _text(proc / "net" / name).splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTEN:  # noqa: PLR2004 - the inode is the tenth
                with suppress(ValueError):
                    yield int(words[1].rpartition(":")[2], 16), words[9]


def _owners(inodes: set[str], proc: Path) -> dict[str, str]:
    """Return who holds these sockets, as far as this user may see."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, str] = {}
    with suppress(OSError):
        for one in [path for path in proc.iterdir() if path.name.isdecimal()][:_MOST_PROCESSES]:
            with suppress(OSError):  # gone by now, or not ours
                for descriptor in (one / "fd").iterdir():
                    inode = wanted.get(str(descriptor.readlink()))
                    if inode is not None:
                        command = _text(one / "comm").strip()
                        found[inode] = f" by {command or 'a process'} (pid {one.name})"
            if len(found) == len(inodes):
                break
    return found


def _reserved(text: str) -> Iterator[int]:
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
