"""An ``__init__`` that does not come back is told once, with its line; one that does is not."""

import asyncio
import re
import threading

import pytest

from rayguard.actors.guard import restarts, slow_init, wrappers
from rayguard.cluster.plugin import pending_calls
from rayguard.faults.catalog import default_catalog
from rayguard.process.flight import recorder
from rayguard.ray_internals import worker

DEADLINE_S = 20.0


def deep(gate):
    gate.wait(DEADLINE_S)  # the line that is told


async def deep_async(gate):
    await asyncio.wait_for(asyncio.to_thread(gate.wait, DEADLINE_S), DEADLINE_S)


class Stuck:
    def __init__(self, gate):
        deep(gate)


class StuckAsync:
    async def __init__(self, gate):
        await deep_async(gate)


class StuckInLoop:
    async def __init__(self, gate):
        deep(gate)


@pytest.fixture(params=["guarded", "watched"])
def init_of(request, monkeypatch):
    """Return the wrapped ``__init__`` of a class, and make what it is called with this process's actor."""
    monkeypatch.setattr(slow_init, "TOLD_AFTER_S", 0.2)
    monkeypatch.setattr(restarts, "begin", lambda _: True)
    monkeypatch.setattr(restarts, "opening", lambda _: True)
    monkeypatch.setattr(restarts, "resume", lambda _: None)

    def wrapped(cls):
        one = cls.__new__(cls)
        monkeypatch.setattr(worker, "this_actor", lambda: one)
        if request.param == "guarded":
            init = wrappers.wrap("__init__", cls.__init__)
        else:
            init = pending_calls.dispatching(pending_calls.Late("__init__", cls.__init__, cls))
        return one, init

    return wrapped


@pytest.fixture
def told(monkeypatch):
    """What was told, and the moment of it."""
    lines, moment = [], threading.Event()
    default_catalog()  # read once in a process, as the first of its inits raises; it takes longer than these may

    def note(line):
        lines.append(line)
        moment.set()

    monkeypatch.setattr(recorder, "record_event", note)
    return lines, moment


@pytest.mark.parametrize(
    ("cls", "place"),
    [
        (Stuck, "at deep (actors/guard/test_slow_init.py:17), in wait (lib/"),
        (StuckAsync, "at deep_async (actors/guard/test_slow_init.py:22), in wait_for (lib/"),
        (StuckInLoop, "at deep (actors/guard/test_slow_init.py:17), in wait (lib/"),
    ],
)
def test_an_init_that_does_not_come_back_is_told_once_with_its_line(init_of, told, cls, place, capfd):
    """Also where it awaits, and no thread has it on its stack. It then goes on as if nothing were."""
    one, init = init_of(cls)
    lines, moment = told
    gate, ends = threading.Event(), []

    def run():
        ends.append(asyncio.run(init(one, gate)) if cls is not Stuck else init(one, gate))

    running = threading.Thread(target=run, daemon=True)
    running.start()
    assert moment.wait(DEADLINE_S)
    gate.set()
    running.join(DEADLINE_S)
    assert ends == [None]
    (line,) = lines
    assert line.startswith(f"rayguard: {cls.__name__}.__init__ has run for 0 s and still runs, {place[:20]}")
    assert place.partition(":")[0] in line
    assert capfd.readouterr().err.strip() == line


def test_an_init_that_ends_is_not_told(init_of, told):
    """Neither one that works nor one that raises; nor that of an object that is no actor."""
    one, init = init_of(Stuck)
    gate = threading.Event()
    gate.set()
    init(one, gate)
    with pytest.raises(AttributeError):
        init(one, None)
    other, slow = init_of(Stuck)
    worker.this_actor = lambda: one
    gate = threading.Event()
    threading.Timer(0.5, gate.set).start()
    slow(other, gate)
    assert told[0] == []


def test_the_line_is_the_users_and_not_a_librarys():
    """Where the actor's class is of a library, its package counts as the user's."""
    frames = []

    def here():
        re.sub("x", lambda _: frames.extend(slow_init._on_stack(threading.get_ident())) or "", "x")

    def _rayguard_init():
        here()

    _rayguard_init()
    library = frames[3:]  # as if the user's code were called no further: `sub`, called by `here`
    assert [one.f_code.co_name for one in library] == ["sub", "here"]
    assert slow_init.line_of(library, "tests").startswith("here (actors/guard/test_slow_init.py:")
    assert ", in sub (" in slow_init.line_of(library, "tests")
    assert slow_init.line_of(library, "re").startswith("sub (")
    assert slow_init.line_of([], "re") == ""
