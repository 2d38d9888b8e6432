"""Who is at fault for a silence: told from states, CPU time and stacks."""

import pytest

from rayguard.engine.hangs.culprit import Suspect, compiling, culprit, lines_about
from rayguard.engine.hangs.phase import phase_of, signs
from rayguard.engine.hangs.watchdog import Hang, Phase
from rayguard.engine.protocol import Progress
from rayguard.faults.fault import Role
from rayguard.process.identity import ProcessId
from rayguard.process.stacks import CodePlace, Stack, Thread

VLLM = "/venv/lib/python3.11/site-packages/vllm"


def thread(*functions, name="", file=f"{VLLM}/v1/engine/core.py"):
    return Thread(name, tuple(CodePlace(function, file, 7) for function in functions))


INPUT = thread("poll", "process_input_sockets", "run")
OUTPUT = thread("get", "process_output_sockets", "run")
WAITS_FOR_WORK = thread("_process_input_queue", "run_busy_loop", name="MainThread")
WAITS_FOR_WORKER = thread("acquire_read", "dequeue", "step", "run_busy_loop", name="MainThread")
SCHEDULES = thread("schedule", "step", "run_busy_loop", name="MainThread")
WORKER_WAITS = thread("acquire_read", "dequeue", "worker_busy_loop", name="MainThread")
WORKER_WORKS = thread("matmul", "execute_model", "worker_busy_loop", name="MainThread")


def core(*threads, state="S", cores=0.0):
    stack = Stack(pid=10, threads=threads) if threads else None
    return Suspect(role=Role.ENGINE_CORE, process=ProcessId(10, 1), state=state, cores=cores, stack=stack)


def worker(*threads, state="S", cores=0.0):
    stack = Stack(pid=11, threads=threads) if threads else None
    return Suspect(role=Role.ENGINE_WORKER, process=ProcessId(11, 1), state=state, cores=cores, stack=stack)


CASES = {
    "a stopped worker": (
        Hang.STOPPED,
        [core(), worker(state="T")],
        "engine_worker process 11 is stopped (T)",
    ),
    "a stopped core": (Hang.STOPPED, [core(state="t"), worker()], "engine_core process 10 is stopped (t)"),
    "no input thread": (
        Hang.IDLE,
        [core(WAITS_FOR_WORK, OUTPUT), worker(WORKER_WAITS)],
        "engine_core process 10 has lost its input thread",
    ),
    "no output thread": (
        Hang.IDLE,
        [core(WAITS_FOR_WORK, INPUT), worker(WORKER_WAITS)],
        "engine_core process 10 has lost its output thread",
    ),
    "a core that forgot its requests": (
        Hang.IDLE,
        [core(WAITS_FOR_WORK, INPUT, OUTPUT), worker(WORKER_WAITS)],
        "engine_core process 10 waits for requests although it was given some",
    ),
    "a worker that waits": (
        Hang.IDLE,
        [core(WAITS_FOR_WORKER, INPUT, OUTPUT), worker(WORKER_WORKS)],
        "engine_worker process 11 waits and never comes back, in matmul (",
    ),
    "a core that waits": (
        Hang.IDLE,
        [core(SCHEDULES, INPUT, OUTPUT), worker(WORKER_WAITS)],
        "engine_core process 10 waits and never comes back, in schedule (",
    ),
    "a worker that spins": (
        Hang.BUSY,
        [core(WAITS_FOR_WORKER, INPUT, OUTPUT, cores=1.0), worker(WORKER_WORKS, cores=0.9)],
        "engine_worker process 11 computes without making a token (0.9 cores, in matmul (",
    ),
    "a core that spins": (
        Hang.BUSY,
        [core(SCHEDULES, INPUT, OUTPUT, cores=0.9), worker(WORKER_WAITS, cores=0.1)],
        "engine_core process 10 computes without making a token (0.9 cores, in schedule (",
    ),
    "a spin that nobody could read": (
        Hang.BUSY,
        [core(cores=0.1), worker(cores=1.0)],
        "engine_worker process 11 computes without making a token (1.0 cores)",
    ),
    "an idle engine that nobody could read": (Hang.IDLE, [core(), worker()], ""),
    "a core of another engine": (
        Hang.IDLE,
        [core(thread("sleep", "their_loop", name="MainThread", file="/else/engine.py"))],
        "engine_core process 10 waits and never comes back, in sleep (",
    ),
    "nobody": (Hang.BUSY, [], ""),
}


@pytest.mark.parametrize("case", CASES)
def test_the_process_at_fault_is_named(case):
    """And what is wrong with it."""
    hang, suspects, expected = CASES[case]
    role, why = culprit(hang, suspects)
    assert why.startswith(expected)
    assert bool(why) == bool(expected)
    if why:
        assert why.startswith(role.value)


def compiled(place):
    return Thread("MainThread", (CodePlace("fn", "/lib/python3.11/ast.py"), CodePlace("go", place)))


@pytest.mark.parametrize(
    ("place", "slow"),
    [
        ("/x/torch/_inductor/compile_fx.py", True),
        ("/x/torch/_dynamo/convert_frame.py", True),
        ("/x/triton/compiler/compiler.py", True),
        ("/x/torch/_inductor/output_code.py", False),  # a compiled model runs
        ("/x/torch/_dynamo/eval_frame.py", False),
        ("/x/vllm/v1/engine/core.py", False),
    ],
)
def test_a_compile_is_told_from_what_was_compiled(place, slow):
    """Frames of torch.compile stand in every step of a compiled model."""
    assert compiling([core(SCHEDULES), worker(compiled(place))]) is slow


def test_a_compile_pool_without_work_compiles_nothing():
    """Inductor keeps its threads."""
    waits = Thread(
        "pool",
        (CodePlace("wait", "/lib/python3.11/threading.py"), CodePlace("x", "torch/_inductor/graph.py")),
    )
    assert not compiling([worker(waits)])
    assert not compiling([worker()])


def test_capturing_and_loading_are_no_hang():
    """They say so by the function, wherever it stands."""
    assert compiling([worker(thread("copy_", "capture_model", name="MainThread"))])


def test_the_evidence_is_short_and_begins_with_the_main_thread():
    """It is kept in a journal and read by people."""
    deep = thread(*(f"f{n}" for n in range(100)), "worker_busy_loop", name="MainThread")
    suspects = [core(OUTPUT, INPUT, WAITS_FOR_WORKER)] + [worker(deep)] * 40
    lines = lines_about(suspects)
    assert lines[0] == "engine_core process 10: state S, 0.00 cores"
    assert lines[1].startswith("  main thread: acquire_read (")
    assert len(lines) <= 24
    assert all(len(line) < 700 for line in lines)


NOW = Progress(turns=5, running=("a",), beginning=0)


@pytest.mark.parametrize(
    ("progress", "reads", "phase"),
    [
        (Progress(), True, Phase.IDLE),
        (NOW, True, Phase.DECODE),
        (Progress(turns=5, running=("a",), beginning=1, ahead=2001), True, Phase.PREFILL),
        (Progress(turns=5, running=("a",), beginning=1, ahead=2000), True, Phase.DECODE),  # as it often did
        (Progress(turns=5, running=("a",)), True, Phase.PREFILL),  # nobody knows
        (Progress(turns=5, running=("a",), beginning=0, asked=1), True, Phase.CALL),
        (Progress(asked=1), True, Phase.CALL),
        (Progress(turns=5, running=("a",), beginning=0, paused=True), True, Phase.AWAY),
        (Progress(turns=5, running=("a",), beginning=0, unread=2), True, Phase.AWAY),
        (Progress(turns=6, running=("a",), beginning=0, unread=2), True, Phase.DECODE),  # it is being read
        (NOW, False, Phase.AWAY),
    ],
)
def test_the_phase_is_told_by_what_the_owner_knows(progress, reads, phase):
    """Calls, pauses and owners that do not read come before the engine itself."""
    assert phase_of(progress, before=Progress(turns=5), most=1000, owner_reads=reads) is phase


def test_an_answered_call_is_a_sign_of_life():
    """So is a turn; a call that was just asked is none."""
    assert signs(Progress(turns=7, asked=0), Progress(turns=5, asked=2)) == 4
    assert signs(Progress(turns=5, asked=2), Progress(turns=5, asked=0)) == 0
