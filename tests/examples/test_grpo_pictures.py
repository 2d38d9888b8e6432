"""What people see: the live view, the plain lines, the table and the picture, from the same history."""

import io
import os
from dataclasses import replace

from grpo_histories import good_history, memory_of
from matplotlib.colors import to_hex
from rich.console import Console

from examples.grpo.history import History, RolloutState
from examples.grpo.memory import memory_of_processes
from examples.grpo.outcome.picture import AWAY, draw, picture
from examples.grpo.outcome.summary import brief, summary
from examples.grpo.outcome.view import LiveView, PlainView, showing
from rayguard.process.flight.writer import FlightRecorder


def printed(what, width=120):
    console = Console(file=io.StringIO(), width=width)
    console.print(what)
    return console.file.getvalue()


def test_the_live_view_shows_progress_engines_and_the_latest_incidents():
    """Steps, reward, each engine with epoch and rung, and the faults as they come."""
    history = good_history()
    history.rollouts[1] = RolloutState(
        epoch=4, rung=2, settings=("chunked_prefill_off",), state="recovering", weight_version="update-9"
    )
    text = printed(LiveView(history))
    for expected in (
        "40/40",
        "0.99",
        "rollout 1",
        "recovering",
        "chunked_prefill_off",
        "update-9",
        "actor_died",
    ):
        assert expected in text


def test_the_live_view_can_be_drawn_before_anything_happened():
    """The first frame comes before the first engine."""
    history = History(steps_planned=40, started_at=0.0, guarded=True, rollouts=[RolloutState()])
    assert "nothing yet" in printed(LiveView(history))


def test_the_plain_view_says_each_thing_once():
    """A log has one line per event, however often the loop looks."""
    history = good_history()
    console = Console(file=io.StringIO(), width=200)
    view = PlainView(history, console)
    for _ in range(3):
        view.tick()
    lines = console.file.getvalue().splitlines()
    assert sum("kill worker in rollout 0" in line for line in lines) == 1
    assert sum(" reward " in line for line in lines) == len(history.steps)
    assert len(lines) == len(history.steps) + len(history.fired) + 2 * len(history.incidents) + 1


def test_no_control_codes_leave_for_a_file():
    """Not a terminal: plain lines, nothing to redraw."""
    console = Console(file=io.StringIO(), width=100)
    with showing(good_history(), console) as view:
        view.tick()
    assert "\x1b" not in console.file.getvalue()


def test_the_table_has_a_row_for_each_fault_and_the_last_word():
    """Also in a narrow terminal nothing is cut off."""
    text = printed(summary(good_history(), []), width=80)
    assert text.count("recovered") == len(good_history().fired)
    assert "2560 of 2560 requests came back" in text
    assert "All well" in text


def test_memory_has_a_row_for_each_life_and_says_what_was_relieved():
    """Also of a process that was killed."""
    history = good_history()
    history.memory[1] = memory_of("a1", 8, "collect freed 12 MiB in 0.02 s")
    text = printed(summary(history, []))
    rows = [line for line in text.splitlines() if "rollout" in line and "342" in line]
    assert [line.split()[1:4] for line in rows] == [
        ["rollout", "0", "(7)"],
        ["rollout", "1", "(8)"],
        ["rollout", "0", "(9)"],
    ]
    assert "collect freed 12 MiB" in rows[1]
    assert rows[0].split()[-2] == "none"


def test_memory_is_what_the_processes_recorded(tmp_path):
    """Read from a real recording; one without a reading is left out."""
    assert memory_of_processes(tmp_path) == []
    flight = FlightRecorder(tmp_path, title="Rollout", actor_id="a0")
    try:
        assert memory_of_processes(tmp_path) == []
        for private in (300, 350, 320):
            flight.record_memory(private=private)
        flight.record_event("memory: collect freed 30 MiB in 0.01 s")
        flight.record_event("something else")
        [found] = memory_of_processes(tmp_path)
    finally:
        flight.close()
    assert (found.actor_id, found.pid, found.first, found.most, found.last) == (
        "a0",
        os.getpid(),
        300,
        350,
        320,
    )
    assert found.told == ("collect freed 30 MiB in 0.01 s",)


def test_the_table_names_a_fault_without_incident():
    """A miss is shown where the eye looks."""
    history = good_history()
    history.incidents.pop(0)
    text = printed(summary(history, ["one thing is wrong"]))
    assert "no incident" in text
    assert "- one thing is wrong" in text
    assert "All well" not in text


def test_paths_are_shortened_for_people():
    """The report keeps the whole path."""
    assert (
        brief("AssertionError\n (/usr/lib/vllm/v1/core/pool.py:690)") == "AssertionError (core/pool.py:690)"
    )


def test_the_picture_is_drawn_for_a_whole_a_broken_and_an_empty_run(tmp_path):
    """PNG in every case: also a run that died in its first step has a picture."""
    broken = good_history()
    broken.steps, broken.incidents, broken.fired = broken.steps[:1], [], broken.fired[:1]
    empty = replace(broken, steps=[], fired=[])
    for number, history in enumerate((good_history(), broken, empty)):
        path = draw(history, tmp_path / f"{number}.png")
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000


def test_the_picture_shows_who_was_away_while_the_steps_went_on():
    """A lane for each rollout; away from a fault to the end of its incident, and not the whole pool."""
    history = good_history()
    lanes = picture(history).axes[2]
    assert [label.get_text() for label in lanes.get_yticklabels()] == ["rollout 0", "rollout 1"]
    away = [one for one in lanes.collections if to_hex(one.get_facecolor()[0]) == AWAY]
    targets = [fault.planned.target for fault in history.fired]
    assert [len(one.get_paths()) for one in away] == [targets.count(0), targets.count(1)]
    left, _, right, _ = away[0].get_paths()[0].get_extents().extents.tolist()
    first = next(fault.at for fault in history.fired if fault.planned.target == 0) - 1_010.0
    assert (round(left, 3), round(right - left, 3)) == (round(first, 3), 0.6)


def test_faults_of_one_moment_are_all_named():
    """The second number would lie on the first."""
    history = good_history()
    marks = [text.get_text() for text in picture(history).axes[0].texts]
    assert ", ".join(marks).split(", ") == [str(n + 1) for n in range(len(history.fired))]
    assert any("," in mark for mark in marks)
