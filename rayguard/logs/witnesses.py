"""From printed lines to the facts in them: exceptions and telling lines, in the order of the lines.

Lines of several processes may be interleaved; each process has its own traceback. Only lines that some
signature may speak of become facts. Judging them is ``rayguard.logs.report``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from rayguard.faults.boilerplate import without_boilerplate
from rayguard.faults.counsel import counsels
from rayguard.faults.fault import ExceptionFact
from rayguard.faults.printed.traceback import PrintedException, TracebackReader
from rayguard.faults.printed.unfold import unfolded
from rayguard.faults.quote import MAX_TEXT_CHARS, clean, cut, exception_quote
from rayguard.faults.witness import Source, Witness, names_of, origin_of_frames, up_to_fault
from rayguard.logs.alarms import is_alarming

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rayguard.faults.catalog import Catalog
    from rayguard.faults.printed.line import PrintedLine
    from rayguard.faults.scene import Scene

MAX_PROCESSES = 4_096
# torchrun's summary lists the other ranks' failures before the one that came first.
_OTHER_FAILURES, _FIRST_FAILURE = "Failures:", "Root Cause (first observed failure):"
_MIN_WIDTH = 60  # of a terminal that breaks lines
_WRAP_CHARS = 200  # looked at on either side of a break
_NAMES = re.compile(r"[A-Za-z_][\w.]{0,160}(?:Error|Exception|Timeout|Interrupt)(?![A-Za-z0-9_])")
# Source code that stands between frames: the names in it are not what was raised.
_SOURCE_CODE = re.compile(
    r"^[\s|>]{0,20}(?:(?:el)?if |except\b|from [\w.]{1,80} import |import |class \w|def \w"
    r"|(?:assert |return )?isinstance\()"
)
_NATIVE_CHECK = "Check failed"
_NATIVE_EXCEPTION = ("Unhandled exception: ", "Unhandled unknown exception")  # of std::terminate, in ray/util
_NOT_FINITE = re.compile(r"(?i)(?<![a-z])(?:nans?|infs?|infinite|infinity|(?:non-?)?finite)(?![a-z])")
# A number that a step of training printed; 0 is also what is printed in place of NaN.
_OF_STEP = re.compile(
    r"(?<!max_)(?:loss|grad_norm)['\"]?\s{0,2}[:=]\s{0,2}['\"]?-?(?=[\d.]{0,20}[1-9])\d[\d.]{0,20}"
)
_ENGINE = re.compile(r"EngineCore|\bengine_core\b")
_WORKER = re.compile(
    r"VllmWorker|Worker_(?:TP|DP|PP)|WorkerProc|RayWorkerWrapper|RayWorkerVllm|multiproc_worker|ModelRunner"
)
# vLLM's files that print what its processes raised: "ERROR 08-18 02:14:37 async_llm_engine.py:57] ..."
_CORE_SOURCES = ("core.py:", "engine.py:", "async_llm_engine.py:", "async_llm.py:")
_WORKER_SOURCES = ("multiproc_worker_utils.py:", "multiproc_executor.py:", "worker_base.py:")
_CORE_FILES = (
    "vllm/v1/engine/core.py",
    "sglang/srt/managers/scheduler.py",
    "vllm/engine/multiprocessing/engine.py",
)
_WORKER_FILES = (
    "vllm/v1/executor/multiproc_executor.py",
    "vllm/v1/worker/",
    "vllm/worker/",
    "sglang/srt/model_executor/",
)


@dataclass(slots=True)
class _Printer:
    """A process that prints: its traceback, and whether it now tells of what was not the first failure."""

    reader: TracebackReader = field(default_factory=TracebackReader)
    later: bool = False

    def placed(self, fact: Witness) -> Witness:
        return replace(fact, later=True) if self.later else fact


@dataclass(slots=True)
class Reader:
    """Turns the lines of one text into witnesses, in the words of ``catalog``; ``scene`` notes the rest."""

    catalog: Catalog
    scene: Scene = field(default_factory=lambda: counsels().scene())
    _finite_line: int = 0  # the last on which a step's numbers were finite

    def read(self, lines: Iterable[PrintedLine]) -> Iterator[Witness]:
        """Yield the facts, nearly in the order of their lines (an exception comes when it is complete)."""
        printers: dict[tuple[str, str], _Printer] = {}
        before: PrintedLine | None = None
        for line in chain.from_iterable(map(unfolded, lines)):
            key = (line.process, line.source if line.source.endswith(tuple("0123456789")) else "")
            printer = printers.get(key)
            if printer is None:
                if len(printers) >= MAX_PROCESSES:
                    yield from _ended(printers.pop(next(iter(printers))))
                printer = printers[key] = _Printer()
            yield from self._facts(line, printer)
            if before is not None and _is_wrapped(before, line):
                yield from self._across(before, line)
            before = line
        for printer in printers.values():
            yield from _ended(printer)

    def is_outlived(self, witness: Witness) -> bool:
        """Say, when all is read, whether a line told of NaN and training went on with finite numbers."""
        said = witness.source is Source.LOG and witness.line < self._finite_line
        return said and _NOT_FINITE.search(witness.text) is not None

    def _note(self, line: PrintedLine) -> bool:
        """Note what ``line`` says beside the facts; return whether it is the first that alarms."""
        text = without_boilerplate(line.text)
        self.scene.see(line.text, line.process)
        if _is_finite_step(line.text):
            self._finite_line = line.number
        if self.scene.alarm or not is_alarming(replace(line, text=text)):
            return False
        self.scene.alarm = line.text
        return True

    def _facts(self, line: PrintedLine, printer: _Printer) -> Iterator[Witness]:
        """Yield the exception that ``line`` ended, and what it says itself."""
        alarms = self._note(line)
        part, done = printer.reader.feed(line)
        if done is not None:
            yield printer.placed(of_exception(done))
        if not part and line.text and (alarms or self._telling(line.text)):
            yield printer.placed(of_line(line))
        if line.text.startswith(_OTHER_FAILURES):
            printer.later = True
        elif line.text.startswith(_FIRST_FAILURE):
            printer.later = False

    def _across(self, before: PrintedLine, line: PrintedLine) -> Iterator[Witness]:
        """Yield the two lines as one where only together they say something: a terminal broke it in two."""
        index = self.catalog.index
        alone = index.fragments_in(before.text) | index.fragments_in(line.text)
        for joint in ("", " "):
            text = before.text[-_WRAP_CHARS:] + joint + line.text.lstrip()[:_WRAP_CHARS]
            if index.fragments_in(text) - alone:
                yield of_line(replace(before, text=before.text + joint + line.text.lstrip()))
                return

    def _telling(self, text: str) -> bool:
        return self.catalog.index.speaks_of(text) or _NAMES.search(text) is not None


def _is_finite_step(text: str) -> bool:
    told = "loss" in text or "grad_norm" in text
    return told and _OF_STEP.search(text) is not None and _NOT_FINITE.search(text) is None


def _is_wrapped(before: PrintedLine, line: PrintedLine) -> bool:
    return before.width >= _MIN_WIDTH and not line.prefixed and line.number == before.number + 1


def _ended(printer: _Printer) -> Iterator[Witness]:
    done = printer.reader.end()
    if done is not None:
        yield printer.placed(of_exception(done))


def of_exception(one: PrintedException) -> Witness:
    """Return the fact of a printed exception."""
    role = _role(one)
    fact = ExceptionFact(type_name=one.type_name, message=one.message, frames=one.frames)
    names = names_of(one.type_name).union(*(names_of(name) for name in one.wrapped))
    return Witness(
        source=Source.RECORD if role.startswith("engine") else Source.CHAIN,
        quote=exception_quote(fact, up_to_fault(one.frames)),
        names=names,
        text=without_boilerplate(one.message),
        frames=one.frames,
        role=role,
        root=True,
        origin=origin_of_frames(one.frames)
        if one.type_name
        else None,  # cut short: nobody knows what was raised
        mild=one.line.mild or one.type_name.endswith("Warning"),
        line=one.line.number,
    )


def of_line(line: PrintedLine) -> Witness:
    """Return the fact of one line."""
    said = clean(line.text, MAX_TEXT_CHARS)
    if _NATIVE_CHECK in said and ".cc:" in line.source:  # whose invariant it was, its file says
        said = f"{line.source}: {said.strip()}"
    if said.startswith(_NATIVE_EXCEPTION) and line.source.startswith("logging.cc:"):
        said = f"({line.process}) {said.strip()}"
    text = without_boilerplate(said)
    named = [] if _SOURCE_CODE.match(text) else _NAMES.findall(text)[:8]
    names = frozenset().union(*(names_of(name) for name in named))
    return Witness(
        source=Source.LOG,
        quote=cut(said),
        names=names,
        text=text,
        role=_role_by_name(line),
        mild=line.mild,
        line=line.number,
        times=line.times,
    )


def _role(one: PrintedException) -> str:
    named = _role_by_name(one.line)
    if named:
        return named
    files = [frame.file for frame in one.frames]
    if any(part in file for file in files for part in _CORE_FILES):
        return "engine_core"
    if any(part in file for file in files for part in _WORKER_FILES):
        return "engine_worker"
    return ""


def _role_by_name(line: PrintedLine) -> str:
    if _WORKER.search(line.process) or line.source.startswith(_WORKER_SOURCES):
        return "engine_worker"
    if _ENGINE.search(line.process) or line.source.startswith(_CORE_SOURCES):
        return "engine_core"
    return ""
