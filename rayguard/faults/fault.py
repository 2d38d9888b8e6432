"""What happened: the facts of one failure, and nothing concluded from them.

A ``Fault`` is plain data. It can be printed, pickled, written to the journal and given to
``rayguard.faults.diagnose`` on another machine. Reading facts off a live exception is here too
(``facts_of``), because an exception is a value; reading them off processes is ``rayguard.process``.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from rayguard.faults.printed.frames import Frame
from rayguard.faults.printed.traceback import exceptions_in

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ExceptionFact", "Fault", "Frame", "ProcessExit", "Role", "Silence", "facts_of"]

MAX_MESSAGE_CHARS = 4_000
MAX_FRAMES = 24
MAX_CHAIN = 8


class Role(str, Enum):
    """Which process a fact was seen in."""

    ROLLOUT = "rollout"
    TRAINER = "trainer"
    ACTOR = "actor"
    ENGINE_CORE = "engine_core"
    ENGINE_WORKER = "engine_worker"
    DRIVER = "driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionFact:
    """One exception as it was seen in one process. ``frames`` run from the outermost call inwards."""

    type_name: str
    message: str = ""
    frames: tuple[Frame, ...] = ()
    role: Role = Role.ACTOR
    pid: int = 0
    at: float = 0.0  # wall clock, seconds; 0 when unknown

    @property
    def where(self) -> str:
        """``file:line`` of the raise, or an empty string."""
        return f"{self.frames[-1].file}:{self.frames[-1].line}" if self.frames else ""

    def __str__(self) -> str:
        text = f"{self.type_name}: {self.message}" if self.message else self.type_name
        return f"{text} ({self.where})" if self.frames else text


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """A process that is gone. ``exitcode`` is negative for a signal, as in ``multiprocessing``."""

    role: Role
    pid: int
    exitcode: int | None = None
    at: float = 0.0

    def __str__(self) -> str:
        if self.exitcode is None:
            how = "is gone (exit code unknown)"
        elif self.exitcode < 0:
            how = f"was killed by signal {-self.exitcode}"
        else:
            how = f"exited with code {self.exitcode}"
        return f"{self.role.value} process {self.pid} {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Work was there and nothing came back. ``states`` maps pid to the kernel's process state letter.

    ``why`` is what its processes told of the reason, ``evidence`` the lines that show it (stacks above all).
    """

    role: Role
    silent_s: float
    requests: int
    states: tuple[tuple[int, str], ...] = ()
    why: str = ""
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        seen = ", ".join(f"{pid} {state}" for pid, state in self.states)
        why = f": {self.why}" if self.why else ""
        return f"no progress for {self.silent_s:.1f} s with {self.requests} requests running ({seen}){why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Everything known about one failure, before any verdict.

    ``operation`` is the call that failed (``build``, ``generate``, ``push_weights``, a method's name).
    ``exceptions`` is the chain the caller saw, outermost first. ``records`` are the exceptions that the
    engine's own processes wrote, oldest first: there the root cause usually stands. ``log`` holds lines
    that its processes printed.
    """

    role: Role = Role.ACTOR
    operation: str = ""
    exceptions: tuple[ExceptionFact, ...] = ()
    records: tuple[ExceptionFact, ...] = ()
    exits: tuple[ProcessExit, ...] = ()
    silence: Silence | None = None
    log: tuple[str, ...] = field(default=())
    at: float = 0.0


def facts_of(error: BaseException, *, role: Role = Role.ACTOR, at: float = 0.0) -> tuple[ExceptionFact, ...]:
    """Return the chain of ``error``, outermost first, Ray's wrappers (``.cause``) included.

    Where an exception lost its traceback on its way through Ray, its frames and its own causes come from
    the text that Ray printed into the wrapper.
    """
    links = tuple(_chain(error))
    facts = [_fact(link, role, at) for link in links]
    if facts[-1].frames and len(links) > 1:
        return tuple(facts)
    # Only the innermost text counts: an outer wrapper repeats what an inner one says.
    printed = next(filter(None, (exceptions_in(_text(link)) for link in reversed(links))), ())
    if not printed:
        return tuple(facts)
    seen = [
        ExceptionFact(
            type_name=one.type_name,
            message=_shorten(one.message),
            frames=one.frames[-MAX_FRAMES:],
            role=role,
            at=at,
        )
        for one in reversed(printed)
    ]
    if len(links) > 1:  # the wrapped exception itself is here, only its frames are missing
        facts[-1] = replace(facts[-1], frames=seen[0].frames)
        seen = seen[1:]
    return tuple(facts + seen)[: 2 * MAX_CHAIN]


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < MAX_CHAIN:
        seen.add(id(link))
        yield link
        wrapped = getattr(link, "cause", None)  # RayTaskError keeps the user's exception there
        if not isinstance(wrapped, BaseException):
            wrapped = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        link = wrapped


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"<str() of the exception raised {type(broken).__name__}>"


def _shorten(message: str) -> str:
    """Keep both ends: Ray's wrappers say who failed at the start and why at the end."""
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    half = MAX_MESSAGE_CHARS // 2 - 3
    return f"{message[:half]}\n...\n{message[-half:]}"


def _fact(error: BaseException, role: Role, at: float) -> ExceptionFact:
    kind = type(error)
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    return ExceptionFact(
        type_name=kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}",
        message=_shorten(_text(error)),
        frames=tuple(Frame(f.filename, f.lineno or 0, f.name, f.line or "") for f in frames),
        role=role,
        at=at,
    )
