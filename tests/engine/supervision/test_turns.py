"""Threads that use one engine: each in its turn, in the order they came, and nobody waits for nobody."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from rayguard.engine.supervision import turns as turns_module
from rayguard.engine.supervision.turns import Turns
from rayguard.errors import DeadlineError

LONG_S = 60.0


def until(seen):
    pause = threading.Event()
    for _ in range(6_000):
        if seen():
            return
        pause.wait(0.01)
    raise AssertionError("it never came to be")


def started(turns, name, log, go_on=None, *, fails=False):
    def use():
        try:
            with turns.turn(LONG_S, lambda: None):
                log.append(name)
                if go_on is not None:
                    assert go_on.wait(LONG_S)
                if fails:
                    sys.exit(name)
                log.append(f"{name} done")
        except SystemExit:
            pass

    waiting = len(turns._waiting)
    thread = threading.Thread(target=use, name=name)
    thread.start()
    until(lambda: name in log or len(turns._waiting) > waiting)
    return thread


def test_threads_take_turns_in_the_order_they_came():
    """Never two at once, also after one that failed or was ended."""
    turns, log, go_on = Turns(), [], threading.Event()
    threads = [started(turns, name, log, go_on, fails=name == "b") for name in "abcd"]
    assert log == ["a"]
    go_on.set()
    for thread in threads:
        thread.join(LONG_S)
    assert log == ["a", "a done", "b", "c", "c done", "d", "d done"]
    with turns.turn(0.0, lambda: None):
        assert turns.depth == 1, "nobody has it any more"


def test_a_thread_may_begin_a_turn_within_its_own():
    """A method that uses the engine may call another that does."""
    turns, log = Turns(), []
    with turns.turn(LONG_S, lambda: None):
        with turns.turn(0.01, lambda: None):
            assert turns.depth == 2
        thread = started(turns, "other", log)
        assert log == [], "the inner end was not the end"
    thread.join(LONG_S)
    assert log == ["other", "other done"]
    assert turns.depth == 0


def test_a_turn_in_which_nothing_moves_is_told_with_its_line_and_then_not_waited_for(monkeypatch, caplog):
    """And the turn that was given up is not handed to who went away."""
    monkeypatch.setattr(turns_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(turns_module, "_TOLD_AFTER_S", 0.02)
    turns, log, go_on = Turns(), [], threading.Event()
    thread = started(turns, "stuck", log, go_on)
    with (
        caplog.at_level(logging.WARNING, logger="rayguard"),
        pytest.raises(DeadlineError, match=r"thread stuck.* at use \(.*test_turns\.py:\d+\)"),
        turns.turn(0.3, lambda: None),
    ):
        pass
    assert [line for line in caplog.messages if "turn of thread stuck" in line]
    go_on.set()
    thread.join(LONG_S)
    with turns.turn(0.0, lambda: None):
        pass


def test_a_long_batch_before_is_waited_for(monkeypatch):
    """Patience counts from the last thing that moved."""
    monkeypatch.setattr(turns_module, "_LOOK_S", 0.01)
    turns, log, go_on, steps = Turns(), [], threading.Event(), []

    def moved():
        steps.append(1)
        if len(steps) == 60:
            go_on.set()
        return len(steps)

    thread = started(turns, "long", log, go_on)
    with turns.turn(0.2, moved):
        assert log == ["long", "long done"]
    thread.join(LONG_S)
