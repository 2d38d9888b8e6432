"""``rayguard top``: pictures that fit any terminal, and a live screen that ends cleanly."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from fabricated_cluster import AT, GIB, a_worker, answers, node_id, readings, troubled
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rayguard.cli.top import Forecasts
from rayguard.cli.top_frame import picture, shared_out
from rayguard.cluster.view.answers import view

DEADLINE_S = 60
LEAST = 3


def drawn(said, width, height, **more):
    """Return the lines of a picture, as they stand on the screen."""
    console = Console(width=width, height=height, color_system=None, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(picture(view(said, address="10.0.0.1:6379"), width, height, **more))
    return captured.get().splitlines()


@pytest.mark.parametrize("height", [8, 12, 24, 50])
@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize(("nodes", "actors"), [(3, 2), (4, 12), (100, 1_000)])
@pytest.mark.parametrize("make", [answers, troubled])
def test_a_picture_fits_the_terminal(make, nodes, actors, width, height):
    """Never a line or a column more: the screen would jump."""
    lines = drawn(make(nodes, actors), width, height, forecasts={node_id(0): 75.0}, foot="q ends")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("q ends")


def test_a_hundred_nodes_are_troubles_first_and_a_count_of_the_rest():
    """With what is in between them, so that nothing is hidden."""
    text = "\n".join(drawn(troubled(100, 1_000), 160, 50, forecasts={node_id(0): 75.0}))
    assert text.index("gpu-001") < text.index("gpu-002") < text.index("gpu-003 ")
    assert "3 faults of this node within 15 min" in text
    assert "full in 75 s" in text
    assert re.search(r"… and \d+ nodes more, \d+ of them fine, memory \d+% to \d+%", text)
    assert "GPU 3 fell off the bus" in text
    assert "restart for ever" in text


def test_names_that_are_long_strange_or_hostile_break_nothing():
    """No escape reaches the terminal, no row is torn."""
    said = answers(1, 0)
    names = [
        "x" * 300,
        "日本語クラス" * 20,
        "evil\x1b[2J\x07\u202e",
        "[bold]markup[/bold]",
        "é" * 80,
        "\ud800",
    ]
    said["agents"][node_id(0)]["readings"] = readings([a_worker(n, name) for n, name in enumerate(names)])
    said["nodes"][0]["host"] = "h" * 200
    text = "\n".join(lines := drawn(said, 80, 30))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]markup" in text
    assert max(map(len, lines)) <= 80


@given(
    st.dictionaries(
        st.sampled_from(["nodes", "stories", "classes", "jobs", "engines", "incidents"]), st.integers(0, 200)
    ),
    st.integers(0, 120),
)
def test_lines_are_shared_out_without_waste_or_excess(wanted, lines):
    """The invariant of ``shared_out``; where all is wanted, all is given."""
    given_out = shared_out(wanted, lines)
    assert sum(given_out.values()) <= lines
    for name, room in given_out.items():
        assert min(wanted[name], LEAST) <= room <= wanted[name]
    if sum(wanted.values()) <= lines:
        assert given_out == {name: want for name, want in wanted.items() if want}


def test_a_node_whose_memory_runs_full_is_forecast_and_a_calm_one_is_not():
    """From what was seen while we look: five minutes of it, since loading a model is no leak."""
    forecasts, found, looks, share_per_look = Forecasts(), {}, 200, 0.0036
    for look in range(looks):
        said = answers(2, 0, at=AT + 2 * look)
        said["agents"][node_id(0)]["readings"] = readings(used=0.2 + look * share_per_look)
        found = forecasts.add(view(said))
    left = 0.95 - (0.2 + (looks - 1) * share_per_look)
    assert found == {node_id(0): pytest.approx(2 * left / share_per_look, rel=0.3)}


LIVE = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import fabricated_cluster as made
from rayguard.cli.top import top
from rayguard.cluster.view.answers import view
asked = 0
def ask():
    global asked
    asked += 1
    if "fails" in sys.argv and asked > 1:
        raise ConnectionError("the head is gone")
    return view(made.troubled(3, 9), address=f"look-{{asked}}")
top(ask(), ask, 0.2)
"""


class Screen:
    """A program on a pseudo-terminal of its own."""

    def __init__(self, *arguments):
        self.ours, self.theirs = pty.openpty()
        self.before = termios.tcgetattr(self.theirs)
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", LIVE, *arguments],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )

    def until(self, *wanted):
        """Read until all of ``wanted`` was shown."""
        end = time.monotonic() + DEADLINE_S
        while not all(one in self.shown for one in wanted):
            assert time.monotonic() < end, self.shown[-2_000:]
            self._read(0.1)
            assert self.process.poll() is None, self.shown[-2_000:]

    def ends(self):
        """Wait for its end; return its exit code and whether the terminal is as it was."""
        end = time.monotonic() + DEADLINE_S
        while self.process.poll() is None and time.monotonic() < end:  # it writes until it ends
            self._read(0.1)
        self._read(0.1)
        return self.process.wait(1), termios.tcgetattr(self.theirs) == self.before

    def _read(self, wait_s):
        while select.select([self.ours], [], [], wait_s)[0]:
            self.shown += os.read(self.ours, 65_536).decode("utf-8", "replace")

    def close(self):
        self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def live(request):
    made = Screen(*getattr(request, "param", ()))
    yield made
    made.close()


@pytest.mark.parametrize("how", ["q", "Ctrl-C"])
def test_the_live_screen_goes_on_and_ends_cleanly(live, how):
    """By key and by signal: the terminal is as it was, with the last picture on it, and no traceback."""
    live.until("look-1", "look-3", "q ends, a look every 0.2 s")
    if how == "q":
        os.write(live.ours, b"q")
    else:
        live.process.send_signal(signal.SIGINT)
    assert live.ends() == (0, True)
    left = live.shown.split("\x1b[?1049l")[-1]
    assert "look-" in left
    assert "q ends" not in left
    assert "Traceback" not in live.shown


def test_the_live_screen_does_not_flicker(live):
    """The screen is written over, never cleared between two pictures."""
    live.until("look-4")
    os.write(live.ours, b"q")
    live.ends()
    pictures = live.shown.split("\x1b[?1049h")[1].split("\x1b[?1049l")[0]
    assert pictures.count("\x1b[2J") <= 1


@pytest.mark.parametrize("live", [("fails",)], indirect=True)
def test_a_cluster_that_does_not_answer_any_more_leaves_its_last_picture(live):
    """With its age and the reason, and q still ends it."""
    live.until("look-1", "No answer for", "the head is gone")
    os.write(live.ours, b"q")
    assert live.ends() == (0, True)


def test_without_a_terminal_it_is_shown_once():
    """As plain lines."""
    ran = subprocess.run(
        [sys.executable, "-c", LIVE], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert "\x1b" not in ran.stdout
    assert len([line for line in ran.stdout.splitlines() if line.startswith("node ")]) == 6


def test_the_picture_of_a_large_cluster_is_quick():
    """A hundred nodes and a thousand actors: its cost is that of what is shown, not of what there is."""
    found = view(answers(100, 1_000))
    small = view(answers(10, 100))

    def cost(seen):
        console = Console(width=160, height=50, color_system=None)
        times = []
        for _ in range(5):
            began = time.process_time()
            with console.capture():
                console.print(picture(seen, 160, 50))
            times.append(time.process_time() - began)
        return min(times)

    assert cost(found) < 5 * cost(small)
    assert found.nodes[0].memory.limit == 64 * GIB
