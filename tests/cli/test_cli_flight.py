"""``rayguard flight``, run as people and scripts run it."""

import json
import os
import re
import subprocess
import sys

import pytest
from pseudo_terminal import on_a_terminal

from rayguard.cli.flight_views import sparkline
from rayguard.process.flight.reader import recordings

LIFE = """
import os, sys
from rayguard.process.flight import recorder
flight = recorder.start(sys.argv[1], title="[bold]Trainer[/bold]", actor_id="abc", every_s=3600)
for step in range(12):
    call = recorder.begin("Trainer", "update")
    recorder.record_memory(private=500_000_000 + max(0, step - 2) * 20_000_000, device=9_000_000 + step,
                           node_ratio=0.3, step=step)
    flight._round._recorded_ns = 0  # as if the steps were long
    recorder.end(call)
recorder.begin("Trainer", "generate")
recorder.record_event("engine 0 \\x1b[31mrebuilt [red]")
os.write(2, b"last \\x1b[31mwords\\n")
os.kill(os.getpid(), 9)
"""


def command(home, *arguments):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAYGUARD_") and k != "FORCE_COLOR"}
    return subprocess.run(
        [sys.executable, "-m", "rayguard", "flight", *arguments],
        env={**clean, "RAYGUARD_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def flown(tmp_path_factory):
    """Return a home with the recording of a process that was killed, and its pid."""
    home = tmp_path_factory.mktemp("home")
    with (home / "err").open("wb") as stderr:
        child = subprocess.Popen([sys.executable, "-c", LIFE, str(home)], stderr=stderr)
        assert child.wait(60) == -9
    return home, child.pid


def test_a_dead_process_is_shown_with_its_last_minute(flown):
    """Growth, curves, the call that was running, events and the last words; no foreign control characters."""
    home, pid = flown
    for shown in (command(home, str(pid)), command(home, str(recordings(home)[0]))):
        assert shown.returncode == 0, shown.stderr
        text = shown.stdout
        assert f"process {pid} [bold]Trainer[/bold]: ended, last sign of life" in text
        assert "RSS grew 20 MB a step from step 3 on in `Trainer.update`" in text
        assert re.search(r"memory +[▁-█]+ +.*680 MB at the end", text)
        assert re.search(r"device +[▁-█]+", text)
        assert "30 % in use at the end" in text
        assert re.search(r"Trainer\.update +12 +\d\d:", text)
        assert re.search(r"Trainer\.generate +1 +1 +\d\d:", text)
        assert "engine 0 rebuilt [red]" in text
        assert "last words" in text
        assert "\x1b" not in text


def test_on_a_terminal_it_fits(flown):
    """A hundred columns."""
    home, pid = flown
    code, shown = on_a_terminal("flight", str(pid), columns=100, RAYGUARD_HOME=str(home))
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "RSS grew 20 MB a step" in plain
    assert "\x1b[31m" not in shown


def test_all_recordings_are_listed(flown, tmp_path):
    """And where there are none, it says where it looked."""
    home, pid = flown
    shown = command(home)
    assert shown.returncode == 0
    assert re.search(rf"{pid} +\[bold\]Trainer\[/bold\] +ended", shown.stdout)
    assert "RSS grew 20 MB a step" in shown.stdout
    none = command(tmp_path)
    assert none.returncode == 0
    assert str(tmp_path / "flight") in none.stdout


def test_a_script_gets_json(flown):
    """One object, or a list of all."""
    home, pid = flown
    one = json.loads(command(home, str(pid), "--json").stdout)
    assert (one["process"]["pid"], one["alive"], one["step"]) == (pid, False, 11)
    assert one["running"][0]["name"] == "Trainer.generate"
    assert one["sentence"].startswith("RSS grew 20 MB a step")
    (listed,) = json.loads(command(home, "--json").stdout)
    assert listed["process"]["pid"] == pid


@pytest.mark.parametrize("asked", ["999999999", "/nowhere/at/all"])
def test_what_is_not_there_is_an_error(flown, asked):
    """With the way to find out what is."""
    home, _ = flown
    shown = command(home, asked)
    assert shown.returncode == 1
    assert "there is no recording" in shown.stderr
    assert "rayguard flight" in shown.stderr


def test_bars_go_from_the_least_to_the_greatest():
    """The peak of each stretch is kept."""
    assert sparkline([]) == ""
    assert sparkline([5, 5, 5]) == "▁▁▁"
    assert sparkline([0, 7]) == "▁█"
    assert sparkline([0] * 50 + [9] + [0] * 49, width=10) == "▁▁▁▁▁█▁▁▁▁"
