"""Which process of a silent engine is at fault, and how: read off states, CPU time and stacks.

Pure. The names of functions are those of vLLM's engine core (vllm/v1/engine/core.py and
vllm/distributed/device_communicators/shm_broadcast.py, 0.32); for engines of other kinds, and where no
stack could be read, states and CPU time still tell a frozen process from a spinning one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayguard.engine.hangs.watchdog import Hang
from rayguard.faults.fault import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rayguard.process.identity import ProcessId
    from rayguard.process.stacks import CodePlace, Stack, Thread

MAX_LINES = 24
MAX_FRAMES = 6
SPINS = 0.2  # cores: one thread that never waits, on a machine that others use too

# Threads of a core whose end leaves it alive and deaf or dumb.
_INPUT, _OUTPUT = "process_input_sockets", "process_output_sockets"
_MAIN = frozenset({"run_busy_loop", "run_engine_core", "worker_busy_loop", "worker_main"})
_WAITING = frozenset({"wait", "_worker", "get", "select", "poll", "_recv", "recv", "read", "accept"})
_WAITS_FOR_WORK = frozenset({"_process_input_queue"})
_WAITS_FOR_OTHERS = frozenset({"acquire_read", "dequeue"})
# Slow, and no hang: what is being compiled, captured or loaded is said by the frames of whoever does it.
# Not all of torch/_dynamo and torch/_inductor: a compiled model has frames of theirs in each step.
_COMPILING = (
    "torch/_dynamo/convert_frame.py", "torch/_dynamo/symbolic_convert.py", "torch/_functorch/_aot_autograd/",
    "torch/_inductor/compile_fx.py", "torch/_inductor/codecache.py", "torch/_inductor/graph.py",
    "torch/_inductor/scheduler.py", "torch/_inductor/async_compile.py",
    "torch/_inductor/select_algorithm.py", "torch/utils/cpp_extension.py", "triton/compiler/",
    "triton/backends/", "triton/runtime/autotuner.py", "vllm/compilation/backends.py",
    "vllm/compilation/compiler_interface.py", "flashinfer/jit/", "numba/core/", "llvmlite/",
)  # fmt: skip
_CAPTURING = frozenset({"capture_model", "_capture_cudagraphs", "compile_or_warm_up_model", "load_model"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One process of the engine in the silence: CPU cores it used on average, and where it stands."""

    role: Role
    process: ProcessId
    state: str = ""
    cores: float = 0.0
    stack: Stack | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.role.value} process {self.process.pid}"

    @property
    def main(self) -> Thread | None:
        """The thread that does the work."""
        threads = () if self.stack is None else self.stack.threads
        return next((t for t in threads if t.name == "MainThread" or _functions(t) & _MAIN), None)


def compiling(suspects: Iterable[Suspect]) -> bool:
    """Say whether a process compiles, captures or loads: it will come back, however long that takes."""
    threads = (thread for one in suspects if one.stack is not None for thread in one.stack.threads)
    return any(_compiles(thread) for thread in threads)


def _compiles(thread: Thread) -> bool:
    if not thread.places or _waits(thread):
        return False
    return bool(_functions(thread) & _CAPTURING) or any(
        part in place.file for place in thread.places for part in _COMPILING
    )


def _waits(thread: Thread) -> bool:
    """Say whether it only waits for work, as threads of a pool do, and ours."""
    return thread.places[0].function in _WAITING or "/rayguard/process/" in thread.places[0].file


def culprit(hang: Hang, suspects: Sequence[Suspect]) -> tuple[Role, str]:
    """Return whose fault the silence is and what is wrong with it; an empty text where nothing tells."""
    for one in suspects:
        if one.state in {"T", "t"}:
            return one.role, f"{one.name} is stopped ({one.state})"
    for one in suspects:
        if one.role is Role.ENGINE_CORE and (lacking := _lacking(one)):
            return one.role, f"{one.name} {lacking}"
    return _spinning(suspects) if hang is Hang.BUSY else _stuck(suspects)


def _lacking(core: Suspect) -> str:
    """Say which of a core's threads has ended."""
    threads = () if core.stack is None else core.stack.threads
    alive = set().union(*(_functions(thread) for thread in threads))
    if not alive & _MAIN:  # no stack, or not of a core that we know
        return ""
    if _INPUT not in alive:
        return "has lost its input thread: requests are accepted and never reach its scheduler"
    if _OUTPUT not in alive:
        return "has lost its output thread: it works, and nothing comes out"
    return ""


def _spinning(suspects: Sequence[Suspect]) -> tuple[Role, str]:
    # A core waits for its worker and a worker for the next step: who stands in neither is the one.
    busy = [one for one in suspects if one.cores >= SPINS]
    at_work = [one for one in busy if not _waiting(one)] or busy
    if not at_work:
        return Role.ENGINE_CORE, ""
    most = max(at_work, key=lambda one: one.cores)
    return most.role, f"{most.name} computes without making a token ({most.cores:.1f} cores{_where(most)})"


def _stuck(suspects: Sequence[Suspect]) -> tuple[Role, str]:
    known = [one for one in suspects if one.main is not None]
    stuck = [one for one in known if not _waiting(one)]
    if stuck:
        last = stuck[-1]  # workers stand behind the core that waits for them
        return last.role, f"{last.name} waits and never comes back{_where(last)}"
    for one in known:
        if one.main is not None and _functions(one.main) & _WAITS_FOR_WORK:
            return one.role, f"{one.name} waits for requests although it was given some"
    return Role.ENGINE_CORE, ""


def standing_of(suspects: Sequence[Suspect]) -> str:
    """Return which process the others wait for and its line, for the end of a sentence; "" if unknown."""
    for one in suspects:
        if one.state in {"T", "t"}:
            return f", and {one.name} is stopped ({one.state})"
    known = [one for one in suspects if one.main is not None]
    last = next((one for one in reversed(known) if not _waiting(one)), known[0] if known else None)
    return "" if last is None else f": {last.name} stands{_where(last)}"


def _waiting(one: Suspect) -> bool:
    return one.main is not None and bool(_functions(one.main) & (_WAITS_FOR_OTHERS | _WAITS_FOR_WORK))


def _functions(thread: Thread) -> set[str]:
    return {place.function for place in thread.places}


def _where(one: Suspect) -> str:
    main = one.main
    return f", in {_telling(main.places)[0]}" if main is not None and main.places else ""


def _telling(places: Sequence[CodePlace]) -> list[CodePlace]:
    """Return the frames that say something: not the standard library's at the innermost end."""
    for first, place in enumerate(places):
        if "/lib/python" not in place.file or "-packages/" in place.file:
            return list(places[first : first + MAX_FRAMES])
    return list(places[:MAX_FRAMES])


def lines_about(suspects: Iterable[Suspect]) -> tuple[str, ...]:
    """Return the evidence as lines for people: one for each process, one for each telling thread."""
    lines: list[str] = []
    for one in suspects:
        where = (
            "" if one.stack is None or not one.stack.waits_in else f", in the kernel: {one.stack.waits_in}"
        )
        lines.append(f"{one.name}: state {one.state or '?'}, {one.cores:.2f} cores{where}")
        threads = () if one.stack is None else one.stack.threads
        telling = [thread for thread in threads if _tells(thread)]
        telling.sort(key=lambda thread: thread is not one.main)
        lines += [f"  {_said(thread, one)}" for thread in telling[:4]]
    return tuple(lines[:MAX_LINES])


def _tells(thread: Thread) -> bool:
    return bool(_functions(thread) & (_MAIN | {_INPUT, _OUTPUT})) or (
        bool(thread.places) and not _waits(thread)
    )


def _said(thread: Thread, one: Suspect) -> str:
    name = "main thread" if thread is one.main else thread.name or "thread"
    places = _telling(thread.places) if thread is one.main else list(thread.places[:2])
    return f"{name}: {' < '.join(map(str, places))}"[:600]
