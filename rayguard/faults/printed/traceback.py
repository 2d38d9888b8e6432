"""Tracebacks in printed lines: read one line at a time, for one process, whatever was cut from them.

A traceback may lack its head, its frames' source lines or its last line; it may be a Ray error that carries
another one. The lines come from ``line``; what an exception means is the catalog's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rayguard.faults.printed.exception_line import NAME, exception_after_frames, named_exception
from rayguard.faults.printed.frames import TRACEBACK, Frame, boxed_frame_in, frame_in
from rayguard.faults.printed.guess import ENDINGS, asserted, completed, from_code, mistake_saying, type_saying
from rayguard.faults.printed.learnt_prefixes import Heads

if TYPE_CHECKING:
    from rayguard.faults.printed.line import PrintedLine

MAX_TEXT_CHARS = 32_000  # of a text within an exception: the end is what counts
MAX_FRAMES = 48
MAX_MESSAGE_LINES = 16
MAX_MESSAGE_CHARS = 3_000
_MAX_OTHER_LINES = 6  # of the same process, within a traceback

_BOX = "│╭╰"
# What is said of a destructor; a dump of where threads stand, below a line that says why.
_DUMPS = ("Stack (most recent call first)", "Current thread 0x", "Thread 0x")
_HANDLER = re.compile(r"(?i)handler|alarm|time_?out")
_IGNORED = ("Exception ignored in", *_DUMPS)
_FATAL = "Fatal Python error: "
# A notebook names the type in front: "RuntimeError      Traceback (most recent call last)".
_HEAD_TYPE = re.compile(rf"^({NAME})(?:\(({NAME})\))?\s{{4,80}}Traceback \(most recent")
# VS Code's debugger names the type, then the message; its frames begin with the innermost.
_DEBUGGER = re.compile(rf"^(?:Exception has occurred|发生异常): ({NAME})")
# The line of code that rich and typer, or a notebook, mark below a frame.
_BOXED_CODE = re.compile(r"^❱\s{0,4}\d{1,9}\s{0,4}[│|]?\s{0,80}(.{0,400})$")
_CELL_CODE = re.compile(r"^-{2,5}> (\d{1,9}) (.{0,400})$")
# A frame of a dump (faulthandler, SIGABRT): no exception ends it, whatever comes below.
_DUMPED = re.compile(r'^ {0,4}File "[^"]{1,400}", line \d{1,9} in ')
# Two processes wrote at once: "AssertionError  File "/a.py", line 1, in f", and later ": what it says".
_RUN_IN = re.compile(rf'^({NAME}{ENDINGS}):?\s{{2,8}}(?=File "[^"]{{1,400}}", line \d)')
_MARKS = re.compile(  # carets, what was left out, a notebook's lines round the one that raised
    r"^[\s|]*[\^~\s]+$|^\s*\.\.\.<\d{1,6} lines>\.\.\.$"
    r"|^\s*\[Previous line repeated \d{1,9} more times?\]$"
    r"|^\s{0,8}(?:\d{1,9} .{0,4000}|\d{1,9}|\(\.\.\.\).{0,200})$"
)
_ENDS_MESSAGE = re.compile(
    r"^(?:Traceback|EngineCore |WorkerProc |AsyncLLM |During handling|The above exception|Process "
    r"|Exception ignored|frame #"
    r"|Exception raised from|Fatal Python|Set the environment variable|\*\*\*|===|---|  File "
    r"|Error executing job|Exception in thread|\[rank|INFO|WARN|ERROR|terminate called|Aborted|Killed"
    r"|srun:|make:|wandb:)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedException:
    """One exception of a printed traceback. ``wrapped``: the types that a wrapper says it carries."""

    type_name: str
    message: str
    frames: tuple[Frame, ...]
    wrapped: tuple[str, ...]
    line: PrintedLine


@dataclass(slots=True)
class TracebackReader:
    """Reads the lines of one process. ``feed`` returns what a line completed; ``end`` what is still open.

    Invariant: after ``end`` it is as new.
    """

    _frames: list[Frame] = field(default_factory=list)
    _wrapped: list[str] = field(default_factory=list)
    _outer: tuple[list[Frame], str] = field(
        default_factory=lambda: ([], "")
    )  # of the wrapper, in case that nothing follows
    _type: str = ""
    _message: list[str] = field(default_factory=list)
    _at: PrintedLine | None = None  # the line that names the type; the last frame's until it is seen
    _said: str = ""  # the line after the frames, which may be a message without its type
    _asserted: str = ""  # the assertion on the line before, where the frame that it is of was cut off
    _named: str = ""  # the type that the head names
    _inside_out: bool = False  # the innermost frame comes first
    _others: int = 0
    _wants_code: bool = False
    _ignored: bool = False  # Python said "Exception ignored in", of a destructor
    _dump: bool = False  # of threads: no exception ends it, and one below it is another one
    _open: bool = False  # a head or a frame was seen, and no type yet

    def feed(self, line: PrintedLine) -> tuple[bool, PrintedException | None]:
        """Return whether ``line`` is part of a traceback, and the earlier exception that it completes."""
        text = line.text
        if text.startswith((*_IGNORED, _FATAL)):  # no code of the frame above it
            done = self.end()
            self._ignored = not text.startswith(_FATAL)
            self._dump = text.startswith(_DUMPS)
            return self._ignored, done
        head = text.find(TRACEBACK)
        held = _DEBUGGER.match(text)
        if head >= 0 or held is not None:
            ignored = self._ignored and self._at is None
            done = self.end()
            self._open, self._at, self._ignored = True, line, ignored
            self._inside_out = held is not None
            named = held or _HEAD_TYPE.match(text)
            self._named = "" if named is None else named[named.lastindex or 1]
            return named is not None or head == 0 or text[:head].isspace(), done
        if text[:1] in _BOX:
            return self._boxed(text.strip(f"{_BOX} "), line)
        run_in = _RUN_IN.match(text) if "File" in text else None
        frame = frame_in(text if run_in is None else text[run_in.end() :])
        below = bool(self._type) and not self._frames and ".py, " in text  # its frames, the innermost first
        if frame is not None and not below:
            dumped = not self._open and _DUMPED.match(text) is not None  # and its head was cut off
            done = self._add_frame(frame, line, "" if run_in is None else run_in[1])
            self._ignored, self._dump = self._ignored or dumped, self._dump or dumped
            return True, done
        below_dump = self._dump and text[:1].strip() != "" and named_exception(text) is not None
        if self._open and not below_dump:
            return self._within(line)
        return self._after(line)

    def end(self) -> PrintedException | None:
        """Return the exception read so far, and begin anew."""
        done = None
        if self._inside_out:
            self._frames.reverse()
            if not self._type:
                self._type, self._message = self._named, list(filter(None, [self._said]))
        idle = self._ignored and (self._dump or not _is_of_an_alarm(self._frames))
        if self._at is not None and not idle and (self._type or self._frames or self._wrapped):
            if not self._type:
                self._guess_type()
            elif len(self._message) == 1 and self._frames:
                self._message = [completed(self._type, self._message[0], self._frames[-1].code)]
            done = PrintedException(
                type_name=self._type,
                message="\n".join(self._message)[:MAX_MESSAGE_CHARS],
                frames=tuple(self._frames[-MAX_FRAMES:]),
                wrapped=tuple(self._wrapped),
                line=self._at,
            )
        self._frames, self._wrapped, self._message = [], [], []
        self._type, self._at, self._others, self._wants_code, self._open = "", None, 0, False, False
        self._said = self._named = self._asserted = ""
        self._ignored, self._dump, self._inside_out, self._outer = False, False, False, ([], "")
        return done

    def _guess_type(self) -> None:
        """Take what the code that raised, or the wrapper round it, says of an exception that was cut off."""
        frames, said = self._outer
        self._frames = self._frames or frames
        named, message = from_code(self._frames[-1].code) if self._frames else ("", "")
        if not named and self._said:
            named, message = type_saying(self._said), self._said
        self._type = named or self._named or (self._wrapped[-1] if self._wrapped else "")
        self._message = list(filter(None, [message or said]))

    def _boxed(self, text: str, line: PrintedLine) -> tuple[bool, PrintedException | None]:
        frame = boxed_frame_in(text)
        if frame is not None:
            return True, self._add_frame(frame, line)
        code = _BOXED_CODE.match(text)
        if code is not None and self._frames:
            last = self._frames[-1]
            self._frames[-1] = Frame(last.file, last.line, last.function, code[1].strip("│ "))
        self._wants_code = False
        return self._open, None

    def _add_frame(self, frame: Frame, line: PrintedLine, run_in: str = "") -> PrintedException | None:
        """Add ``frame``; the type that stands before it ends the traceback so far, and may say more below."""
        done = None
        if run_in and self._frames:
            self._type = self._type or run_in
        if self._type:
            done = self.end()
        self._named = run_in or self._named
        self._frames.append(frame)
        del self._frames[: -2 * MAX_FRAMES]
        self._open, self._at, self._wants_code, self._others = True, line, True, 0
        self._asserted = ""
        self._said = self._said if self._inside_out else ""
        return done

    def _within(self, line: PrintedLine) -> tuple[bool, PrintedException | None]:
        text = line.text
        if not text.strip() or _MARKS.match(text):
            return True, None
        before, self._asserted = self._asserted, ""
        cell = _CELL_CODE.match(text)
        if cell is not None and self._frames:
            last = self._frames[-1]
            self._frames[-1] = Frame(last.file, int(cell[1]), last.function, cell[2].strip())
            self._wants_code = False
            return True, None
        indented = text[0] in " \t|"
        rest = bool(self._named) and text.startswith(": ")  # of a line that two processes wrote
        if self._wants_code and self._frames and not rest and (indented or not named_exception(text)):
            last = self._frames[-1]
            self._frames[-1] = Frame(last.file, last.line, last.function, text.strip(" |\t"))
            self._wants_code = False
            return True, None
        bare = text.strip(" |+-\t")
        if rest:
            found: tuple[str, str, str] | None = (self._named, "", bare[2:].strip())
        else:
            found = (
                None
                if indented and self._frames and not named_exception(bare)
                else exception_after_frames(bare)
            )
        if found is not None:
            return self._name(found, line, before)
        self._asserted = asserted(text)
        ready = bool(self._frames) or self._inside_out
        if not (indented or self._said or self._others) and ready and self._is_message(line):
            self._said = text.strip()
        self._others += 1
        if self._others > _MAX_OTHER_LINES:
            return False, self.end()
        return indented, None

    def _name(
        self, found: tuple[str, str, str], line: PrintedLine, code: str
    ) -> tuple[bool, PrintedException | None]:
        name, inner, message = found
        if code and name == "AssertionError":  # as pytest says it, of an assertion that says nothing itself
            message = message or code
        if message.startswith("ray::"):  # a task's own frames and exception follow, if they were not cut off
            self._wrapped += [name, f"{name.rpartition('.')[2]}({inner})", inner] if inner else [name]
            self._outer, self._frames = (self._frames, message), []
            self._open, self._at, self._others, self._wants_code = True, line, 0, False
            return True, None
        self._type, self._message, self._at, self._open = name, [message] if message else [], line, False
        if inner:
            self._wrapped.append(inner)
        return True, None

    def _after(self, line: PrintedLine) -> tuple[bool, PrintedException | None]:
        if self._type and self._continues(line):
            self._message.append(line.text.strip())
            return False, None  # also looked at by itself: it may be somebody else's line
        return self._begin(line)

    def _begin(self, line: PrintedLine) -> tuple[bool, PrintedException | None]:
        """Begin with a line that names an exception; its frames were cut off, or stood in another process."""
        before = self._asserted
        done = self.end()
        found = named_exception(line.text.strip())
        if found is None and (name := mistake_saying(line.text)):
            found = name, "", line.text
        if found is None or (line.mild and not line.text.startswith(found[0])):
            self._asserted = before if _MARKS.match(line.text) else asserted(line.text)
            return False, done
        self._at = line
        return self._name(found, line, before)[0], done

    def _continues(self, line: PrintedLine) -> bool:
        if self._at is None or not line.text.strip() or len(self._message) >= MAX_MESSAGE_LINES:
            return False
        return self._is_message(line) and named_exception(line.text.strip()) is None

    def _is_message(self, line: PrintedLine) -> bool:
        at = self._at
        same_form = at is not None and line.prefixed == at.prefixed and line.level == at.level
        return same_form and not _ENDS_MESSAGE.match(line.text)


def _is_of_an_alarm(frames: list[Frame]) -> bool:
    """Say whether a signal's handler raised: Python ignores it in a destructor, and the work waits for it."""
    return bool(frames) and _HANDLER.search(frames[-1].function) is not None


def exceptions_in(text: str) -> tuple[PrintedException, ...]:
    """Return the exceptions of a printed chain, the root cause first (as Python prints them).

    Ray pickles an exception without its traceback and without its ``__cause__``; both survive only as text in
    the message of ``RayTaskError`` and ``ActorDiedError``.
    """
    if '  File "' not in text:
        return ()
    reader, heads = TracebackReader(), Heads()
    fed = (reader.feed(heads.peel(raw)) for raw in text[-MAX_TEXT_CHARS:].splitlines())
    found = [*(done for _, done in fed), reader.end()]
    return tuple(one for one in found if one is not None and one.frames and one.type_name)
