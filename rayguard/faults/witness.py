"""The facts of a fault in one shape and in one order: the nearest to the root cause first.

A ``Witness`` is one exception, exit, silence or log line, cleaned of whatever could not be printed or
pickled. Judging witnesses is ``rayguard.faults.signature``. Nothing here raises on odd input: a broken fact
is skipped, because the diagnosis runs while something else is already broken.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import Enum
from itertools import chain, repeat
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from rayguard.faults.boilerplate import without_boilerplate
from rayguard.faults.fault import ExceptionFact, Fault, Frame, ProcessExit, Silence
from rayguard.faults.quote import (
    MAX_LINE_CHARS,
    MAX_TEXT_CHARS,
    MOST,
    PACKAGES,
    clean,
    cut,
    exception_quote,
    number,
    signal_quote,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_RECORDS = 24
MAX_CHAIN = 16
MAX_LOG_LINES = 100
MAX_FRAMES = 48
STALE_S = 120.0
MAX_TIMES = 100

_STDLIB = re.compile(r"/lib(?:64)?/python\d(?:\.\d{1,2})?/")
_FOLDERS = (one.name for one in iter_modules([str(Path(__file__).parents[1])]) if one.ispkg)
_OURS = re.compile(rf"/rayguard/(?:{'|'.join(_FOLDERS)})/")
_LEFT_OUT = ("...", "\N{HORIZONTAL ELLIPSIS}")  # by a person who shortened a long path
_COMPILED = (".pyx", ".pxi", ".pxd", ".cpp", ".cc", ".cu", ".h", ".hpp")
_POLITE_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_ANSWERS = frozenset({"__getattr__", "__getattribute__", "__torch_function__", "__torch_dispatch__"})
_NAME_IN_WRAPPER = re.compile(r"\(([\w.]{1,200})\)$")


class Source(str, Enum):
    """Where a fact was seen."""

    RECORD = "record"  # written by one of the engine's own processes
    CHAIN = "chain"  # in the chain of exceptions that the caller saw
    LOG = "log"
    EXIT = "exit"
    SILENCE = "silence"


class Origin(str, Enum):
    """Whose code a frame is in."""

    USER = "user"
    LIBRARY = "library"
    STDLIB = "stdlib"


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """One fact, ready to be matched. ``names`` holds the type as it was and its last part."""

    source: Source
    quote: str
    names: frozenset[str] = frozenset()
    text: str = ""
    frames: tuple[Frame, ...] = ()
    role: str = ""
    pid: int = 0
    exitcode: int | None = None
    operation: str = ""
    root: bool = False  # the innermost of its chain, the oldest of the records
    origin: Origin | None = None  # whose code raised; None where the frames do not say
    mild: bool = False  # printed as a warning or below
    later: bool = False  # who printed it says that another failure came first
    line: int = 0  # of a text, from 1; 0 where there is none
    times: int = 1  # how often the line was printed, where its printer counted

    @property
    def evidence(self) -> str:
        """The quote, with the process it comes from."""
        if self.source is Source.RECORD:
            return f"{self.role} {self.pid}: {self.quote}" if self.pid else f"{self.role}: {self.quote}"
        return self.quote if self.source is not Source.LOG else f"log: {self.quote}"


class Said:
    """The texts of all facts of one failure, to be asked what stands in them, and how often.

    Every fragment is looked for once, however many facts ask: time stays linear in the texts.
    """

    def __init__(self, seen: Iterable[Witness]) -> None:
        """Join the texts of ``seen``."""
        said = ((witness.text, min(witness.times, MAX_TIMES)) for witness in seen if witness.text)
        texts = chain.from_iterable(repeat(text, times) for text, times in said)
        self._text = "\n".join(texts)
        self._times: dict[str, int] = {}

    def times(self, fragment: str) -> int:
        """Return how often ``fragment`` was said."""
        known = self._times.get(fragment)
        if known is None:
            known = self._times[fragment] = self._text.count(fragment)
        return known


def witnesses(fault: Fault) -> tuple[Witness, ...]:
    """Return what is known, the nearest to the root cause first.

    The engine's records (oldest first; the caller's EngineDeadError says nothing), then the caller's chain
    from the inside out, what was printed, the exits, the silence.
    """
    operation = clean(fault.operation, MAX_LINE_CHARS)
    records = _fresh(_only(fault.records, ExceptionFact), fault)
    kept = records[: MAX_RECORDS - 4] + records[max(MAX_RECORDS - 4, len(records) - 4) :]
    chain = _only(fault.exceptions, ExceptionFact)[-MAX_CHAIN:][::-1]
    printed = (line for line in _sequence(fault.log)[-MAX_LOG_LINES:] if isinstance(line, str) and line)
    lines = tuple(dict.fromkeys(printed))
    return (
        *_exceptions(kept, Source.RECORD, operation),
        *_exceptions(chain, Source.CHAIN, operation),
        *(_line(line, operation) for line in lines),
        *sorted(
            (_exit(one, operation) for one in _only(fault.exits, ProcessExit)[:MAX_RECORDS]), key=_telling
        ),
        *(_silence(one, operation) for one in (fault.silence,) if isinstance(one, Silence)),
    )


def origin_of(file: str) -> Origin:
    """Say whose code ``file`` is: a library's, the standard library's, or the user's own."""
    file = file.replace("\\", "/")
    known = any(part in file for part in PACKAGES) or _OURS.search(file) is not None
    if known or file.endswith(_COMPILED) or file.startswith(_LEFT_OUT):
        return Origin.LIBRARY
    if file.startswith("<frozen") or _STDLIB.search(file):
        return Origin.STDLIB
    return Origin.USER


def _exceptions(facts: list[ExceptionFact], source: Source, operation: str) -> Iterator[Witness]:
    frames = [_frames(fact.frames) for fact in facts]
    for index, fact in enumerate(facts):
        inner = frames[index]
        yield Witness(
            source=source,
            quote=exception_quote(fact, up_to_fault(inner)),
            names=names_of(fact.type_name),
            text=without_boilerplate(clean(fact.message, MAX_TEXT_CHARS)),
            frames=inner,
            role=_word(fact.role),
            pid=number(fact.pid),
            operation=operation,
            root=index == 0,
            origin=origin_of_frames(*frames[index:]),
        )


def origin_of_frames(*outwards: tuple[Frame, ...]) -> Origin | None:
    """Return whose code raised: the innermost frame outside the standard library says it.

    Where an exception shows nothing else (Ray hides frames), the one it caused is asked.
    """
    for frames in outwards:
        index = _at_fault(frames)
        if index is not None:
            return origin_of(frames[index].file)
    return None


def up_to_fault(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames up to the one whose code raised: the line to look at is the last one's."""
    index = _at_fault(frames)
    return frames if index is None else frames[: index + 1]


def _at_fault(frames: tuple[Frame, ...]) -> int | None:
    # json.loads("{") is the caller's mistake, not json's: frames of the standard library are passed over.
    # What an object's class is asked for or given is the mistake of who asks or gives, not of who answers.
    for index in range(len(frames) - 1, -1, -1):
        if index and frames[index].function.rpartition(".")[2] in _ANSWERS:
            continue
        if origin_of(frames[index].file) is not Origin.STDLIB:
            return index
    return None


def _line(line: str, operation: str) -> Witness:
    text = clean(line, MAX_LINE_CHARS)
    return Witness(source=Source.LOG, quote=cut(text), text=without_boilerplate(text), operation=operation)


def _exit(one: ProcessExit, operation: str) -> Witness:
    code = number(one.exitcode) if isinstance(one.exitcode, int) else None
    if code is None:
        how = "is gone (exit code unknown)"
    else:
        how = f"was killed by signal {signal_quote(code)}" if code < 0 else f"exited with code {code}"
    role = _word(one.role)
    quote = cut(f"{role} process {number(one.pid)} {how}")
    return Witness(source=Source.EXIT, quote=quote, role=role, exitcode=code, operation=operation)


def _telling(gone: Witness) -> int:
    """Order exits: one process is killed, the others of its engine then end by themselves."""
    if gone.exitcode is None or gone.exitcode == 0:
        return 3
    if gone.exitcode > 0:
        return 2
    return 1 if -gone.exitcode in _POLITE_SIGNALS else 0


def _silence(one: Silence, operation: str) -> Witness:
    try:
        quote = str(one)
    except (TypeError, ValueError, OverflowError):  # a field that is no sane number
        quote = "no progress"
    text = clean(quote, MAX_TEXT_CHARS)
    return Witness(
        source=Source.SILENCE,
        quote=cut(text),
        text=text,
        role=_word(one.role),
        operation=operation,
    )


def _fresh(records: list[ExceptionFact], fault: Fault) -> list[ExceptionFact]:
    """Drop records of an earlier failure that the engine survived (a refused utility call, for example)."""
    silent_s = _seconds(fault.silence.silent_s) if isinstance(fault.silence, Silence) else 0.0
    exits = (one.at for one in _only(fault.exits, ProcessExit))
    newest = max(_seconds(at) for at in (fault.at, *exits, *(record.at for record in records)))
    oldest = newest - STALE_S - silent_s
    fresh = [record for record in records if not 0 < _seconds(record.at) < oldest]
    return fresh or records


def names_of(type_name: object) -> frozenset[str]:
    """Return a type's name as it is, its last part, and what it wraps: `RayTaskError(ValueError)`."""
    name = clean(type_name, MAX_LINE_CHARS)
    wrapped = _NAME_IN_WRAPPER.search(name)  # RayTaskError(ValueError)
    bare = name[: wrapped.start()] if wrapped else name
    inner = {wrapped[1]} if wrapped else set()
    return frozenset({name, bare, bare.rpartition(".")[2], *inner} - {""})


def _word(role: object) -> str:
    return cut(clean(getattr(role, "value", role), MAX_LINE_CHARS), 40)


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 < value < MOST else 0.0


def _frames(values: object) -> tuple[Frame, ...]:
    return tuple(
        frame
        for frame in _sequence(values)[-MAX_FRAMES:]
        if isinstance(frame, Frame)
        and all(isinstance(text, str) for text in (frame.file, frame.function, frame.code))
    )


def _sequence(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else ()


def _only(values: object, kind: type) -> list:  # type: ignore[type-arg]
    return [value for value in _sequence(values) if isinstance(value, kind)]
