"""What stands round a failure: fragments that the whole text says, its framework, the processes it names.

A ``Scene`` is fed every line, or every fact, once; ``rayguard.faults.counsel`` asks it. Pure: no files, no
Ray. What a line has to do with the failure is not judged here.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ahocorasick_rs import AhoCorasick

from rayguard.faults.quote import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rayguard.faults.witness import Witness

MAX_PROCESSES = 64
MAX_CHARS = 4_000  # of one line

_PROCESS = re.compile(r"\bpid[=:]\s?(\d{2,9})(?:,? ip[=:]\s?([\w.:]{3,45}))?")
_GONE = re.compile(r"ray::|\b(?:died|dead|crashed|killed)\b|^\s{0,8}pid: ")
_ACTOR = re.compile(r"ray::(\w{1,80})|\((\w{1,80}) pid=")
_SESSION = re.compile(r"(/[\w./-]{1,200}/session_[\w.-]{4,60})")


class Fragments:
    """What is looked for in every line: one automaton, however many rules ask."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Make the automaton of ``texts``."""
        self.texts = tuple(dict.fromkeys(texts))
        self._automaton = AhoCorasick(list(self.texts)) if self.texts else None

    def in_(self, text: str) -> set[str]:
        """Return those that stand in ``text``."""
        if self._automaton is None:
            return set()
        found = self._automaton.find_matches_as_indexes(text, overlapping=True)
        return {self.texts[match[0]] for match in found}


@dataclass(slots=True)
class Scene:
    """What a text says round its failure. ``processes``: pid to address ("" where none is named)."""

    fragments: Fragments
    said: Counter[str] = field(default_factory=Counter)  # fragment to the number of lines that hold it
    processes: dict[str, str] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)  # those of them that a death, or a failed call, names
    actors: set[str] = field(default_factory=set)  # names of classes of actors
    sessions: dict[str, None] = field(default_factory=dict)  # folders of Ray's sessions that are named
    last: str = ""  # what was said last
    alarm: str = ""  # the first line that tells of something wrong, whether or not a signature knows it

    def see(self, text: str, process: str = "") -> None:
        """Take note of one line."""
        line = f"({process}) {text}" if process else text
        line = line[:MAX_CHARS]
        if not line.strip():
            return
        self.said.update(self.fragments.in_(line))
        if "pid" in line and len(self.processes) < MAX_PROCESSES:
            self._name(text, self.processes)
            self._name(process, self.processes)
            self.actors.update(name for names in _ACTOR.findall(line) for name in names if name)
            if _GONE.search(text):
                self._name(text, self.gone)
        if "/session_" in line and len(self.sessions) < MAX_PROCESSES:
            self.sessions.update(dict.fromkeys(_SESSION.findall(line)))
        self.last = text.strip() or self.last

    def _name(self, text: str, named: dict[str, str]) -> None:
        for pid, address in _PROCESS.findall(text):
            named[pid] = address or named.get(pid, "")

    def times(self, fragments: Iterable[str]) -> int:
        """Return on how many lines any of ``fragments`` stands."""
        return sum(self.said[fragment] for fragment in fragments)

    def framework(self, marks: Mapping[str, tuple[str, ...]]) -> str:
        """Return the first name of which a mark stands in the text, "" for none."""
        return next((name for name, its in marks.items() if self.times(its)), "")


def scene_of(seen: Iterable[Witness], fragments: Fragments) -> Scene:
    """Return the scene that facts make, where there are no lines."""
    scene = Scene(fragments)
    for witness in seen:
        scene.see(f"{witness.quote} {witness.text}")
        for frame in witness.frames:
            scene.see(clean(f"{frame.file} in {frame.function} {frame.code}", MAX_CHARS))
    return scene
