"""Prefixes that nobody described come off, once a frame of a traceback has shown their form."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.faults.printed.learnt_prefixes import MAX_HEADS, Heads
from rayguard.faults.printed.traceback import TracebackReader
from rayguard.logs.report import diagnose_text

SAID = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/vllm/v1/core/sched/scheduler.py", line 240, in schedule
    assert len(self._async_stopped) == 0
AssertionError
(RolloutWorker pid=812) step 4
RuntimeError: NCCL error: unhandled system error"""
HEADS = [
    "2024-08-22 13:52:41 ERROR 201188 [worker_base.py:148] ",
    "  | [2025-03-10T15:07:29Z] ERROR 03-10 08:07:29 [core.py:302] ",
    "2025-11-20 10:11:12 | worker_3 | ERROR | ",
    "[2025-11-20, 10:11:12 UTC] {subprocess.py:93} INFO - ",
    "11/20/2025 10:11:12 - ERROR - __main__ - ",
    "20-Nov-25 10:11:12 ERROR    ",
    "time=2025-11-20T10:11:12Z level=error msg=",
    "job-7f9c/worker-2: ",
    "[1,3]<stderr>:",
    "<rank 3> ",
    "wandb: ",
    "stderr: ",
    "      ",
]


def _read(lines):
    heads, reader = Heads(), TracebackReader()
    found = [reader.feed(heads.peel(raw, number))[1] for number, raw in enumerate(lines, start=1)]
    return [one for one in (*found, reader.end()) if one is not None]


@pytest.mark.parametrize("head", HEADS)
def test_any_prefix_comes_off_a_traceback(head):
    """Frames, code, type and the line it stands in are read as without it."""
    one = _read([head + line for line in SAID.splitlines()])[0]
    assert one.type_name == "AssertionError"
    assert one.frames[-1].function == "schedule"
    assert one.frames[-1].code == "assert len(self._async_stopped) == 0"
    assert one.line.number == 4


@pytest.mark.parametrize("head", HEADS)
def test_the_answer_is_that_without_the_prefix(head):
    """The cause, its scope and what followed."""
    bare = diagnose_text(SAID).diagnosis
    seen = diagnose_text("\n".join(head + line for line in SAID.splitlines())).diagnosis
    assert (seen.kind, seen.signature) == (bare.kind, bare.signature)


def test_numbers_and_levels_vary_in_a_prefix_that_was_learnt():
    """The same logger at another time, of another rank, in another tone."""
    heads = Heads()
    heads.peel('node7 rank 3 @ 10:11:12 ERROR >>   File "/app/run.py", line 3, in main')
    line = heads.peel("node12 rank 15 @ 10:11:13 INFO >> all is well")
    assert (line.text, line.prefixed, line.level) == ("all is well", True, "INFO")
    assert line.process.split() == ["node12", "rank", "15"]
    assert heads.peel("node7 is rank 3 @ 10:11:12").text == "node7 is rank 3 @ 10:11:12"


def test_two_processes_with_one_prefix_are_told_apart():
    """Their tracebacks are interleaved."""
    lines = []
    for number, line in enumerate(SAID.splitlines()[:4]):
        lines += [f"trainer-{rank} >> {line}" for rank in ((0, 1) if number % 2 else (1, 0))]
    lines.insert(2, 'trainer-1 >>   File "/app/run.py", line 3, in main')
    assert [one.type_name for one in _read(lines)] == ["AssertionError"] * 2


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("2024-08-22 13:52:41 ERROR 201188 [base.py:148] ValueError: bad", "ValueError: bad"),
        ("worker_3 | trainer | 10:11:12 | my.errors.BadThing: no", None),
        ("the step failed with ValueError: bad", None),
        ("Error executing method load_model: ValueError: bad", None),
        (
            "[trainer] 2024-08-22 13:52:41 - Traceback (most recent call last):",
            "Traceback (most recent call last):",
        ),
    ],
)
def test_a_line_alone_loses_what_only_a_log_puts_there(raw, text):
    """Words of a sentence stay: they say something."""
    assert Heads().peel(raw).text == (raw if text is None else text)


@pytest.mark.parametrize(
    "raw",
    [
        'AssertionError  File "/app/run.py", line 3, in main',
        'it said: Traceback (most recent call last):  File "/app/run.py", line 3, in main',
        '  |   File "/app/run.py", line 3, in main',
        r'error=\n  File "/app/run.py", line 3, in main',
        """'  File "/app/run.py", line 3, in main\\n'""",
    ],
)
def test_what_stands_before_a_frame_and_is_no_prefix_is_not_learnt(raw):
    """A type, a joined traceback, the bars of a group, a written line end, a quotation mark."""
    heads = Heads()
    heads.peel(raw)
    assert not heads._forms


def test_two_services_of_docker_compose_are_told_apart():
    """Their lines begin with the service's name, also those of code and a bare exception at the end."""
    lines = [
        "vllm-1   | Traceback (most recent call last):",
        "trainer  | INFO 05-01 10:00:00 [train.py:3] step 4",
        'vllm-1   |   File "/app/serve.py", line 3, in main',
        "trainer  |",
        "vllm-1   |     assert ready",
        "trainer  | waiting for its answer",
        "vllm-1   | AssertionError",
    ]
    heads = Heads()
    told = [(line.process, line.text) for line in map(heads.peel, lines)]
    assert told[4:] == [
        ("vllm-1", "    assert ready"),
        ("trainer", "waiting for its answer"),
        ("vllm-1", "AssertionError"),
    ]
    assert [one.type_name for one in _read(lines)] == ["AssertionError"]
    assert heads.peel("WARNING  | app:3 - [slow]").process == ""
    assert Heads().peel("trainer  | waiting").text == "trainer  | waiting"


def test_only_so_many_prefixes_are_kept():
    """A text that has a new one on every line costs no more."""
    heads = Heads()
    for number in range(4 * MAX_HEADS):
        heads.peel(f'{"x" * (number + 1)} >>   File "/app/run.py", line 3, in main')
    assert len(heads._forms) == MAX_HEADS


@given(st.text(max_size=300), st.text(max_size=60))
def test_anything_may_stand_there(text, head):
    """Whatever it is: no exception, and nothing made up."""
    heads = Heads()
    heads.peel(f'{head}  File "/app/run.py", line 3, in main')
    line = heads.peel(head + text)
    assert len(line.text) <= len(head + text) + 2


@pytest.mark.parametrize(
    "word", ["a.b/", "[x] ", "12 ", "a=b ", "(a) ", "ERROR ", "10:11:12 ", "<a> ", "- | "]
)
def test_time_is_linear(word):
    """Twice as much takes about twice the time: here at most four times, of the best of five."""

    def best(times):
        raw = word * times + "Error: x"
        took = []
        for _ in range(5):
            begun = time.perf_counter()
            for _ in range(50):
                Heads().peel(raw)
            took.append(time.perf_counter() - begun)
        return min(took)

    assert best(400) < 4 * best(200) + 0.01
