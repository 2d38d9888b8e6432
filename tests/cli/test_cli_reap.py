"""``rayguard reap``: what it shows, what it does, how it ends."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest
from pseudo_terminal import on_a_terminal
from typer.testing import CliRunner

from rayguard.cli.app import app
from rayguard.process.cleanup import belongings, orphans, shm
from rayguard.process.cleanup.belongings import Belonging, OwnerNote
from rayguard.process.cleanup.verdict import Fate, Sort
from rayguard.process.identity import ProcessId, owner_mark
from rayguard.process.pid_namespace import world

DEADLINE_S = 60
MARK_OF_ORPHANS = "1-1"


def dead_process():
    child = subprocess.Popen(["sleep", "60"])
    it = ProcessId.of(child.pid)
    child.kill()
    child.wait(DEADLINE_S)
    return it


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def room():
    """For sockets: where several processes test, ``tmp_path`` is too long for their paths."""
    with tempfile.TemporaryDirectory(prefix="rg-") as name:
        yield Path(name)


@pytest.fixture
def left(home, room):
    """A dead socket that goes, and one that a living process listens to."""
    dead, users = dead_process(), dead_process()
    paths = [room / str(uuid.uuid4()) for _ in range(2)]
    servers = [socket.socket(socket.AF_UNIX) for _ in paths]
    for path, server in zip(paths, servers, strict=True):
        server.bind(str(path))
        server.listen()
    servers[0].close()
    noted = tuple(
        Belonging(
            sort=Sort.SOCKET, path=str(path), shape=shm.shape(os.lstat(path)), users=(owner_mark(users),)
        )
        for path in paths
    )
    belongings.write(home, OwnerNote(owner=dead, world=world(), belongings=noted))
    yield paths
    servers[1].close()


@pytest.fixture
def no_orphans(monkeypatch):
    """A test ends no process of this machine."""
    monkeypatch.setattr(orphans, "find", list)


def run(home, *arguments):
    return CliRunner().invoke(app, ["reap", "--home", str(home), *arguments])


def test_a_dry_run_shows_and_does_nothing(home, left, no_orphans):
    """Each thing with its size and the reason."""
    ran = run(home, "--dry-run")
    assert ran.exit_code == 0
    assert f"to be reaped: socket {left[0]} 0 B (of a dead engine" in ran.output
    assert f"left alone: socket {left[1]} 0 B (held by" in ran.output
    assert ran.output.endswith("Would reap 1 (0 B), left 1 alone.\n")
    assert all(path.exists() for path in left)


def test_it_reaps_what_is_proved(home, left, no_orphans):
    """And says what it did; a second time there is nothing to do."""
    ran = run(home)
    assert ran.exit_code == 0
    assert f"reaped: socket {left[0]}" in ran.output
    assert "Reaped 1 (0 B), left 1 alone." in ran.output
    assert [path.exists() for path in left] == [False, True]
    left[1].unlink()
    assert "reaped: file of rayguard" in run(home).output  # the note itself
    assert run(home).output == "Nothing was left behind.\n"


def test_json_has_everything(home, left, no_orphans):
    """For scripts."""
    told = json.loads(run(home, "--json", "--dry-run").output)
    assert told["dry_run"] is True
    assert told["counts"] == {"to be reaped": 1, "left alone": 1}
    first = told["leftovers"][0]
    assert (first["sort"], first["name"], first["fate"]) == ("socket", str(left[0]), "to be reaped")
    told = json.loads(run(home, "--json").output)
    assert told["counts"] == {"reaped": 1, "left alone": 1}
    assert told["freed_bytes"] == 0


def test_what_should_have_gone_and_did_not_is_an_error(home, left, no_orphans, monkeypatch):
    """Exit code 1 for scripts, and the reason for people."""

    def refused(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", refused)
    ran = run(home)
    assert ran.exit_code == 1
    assert "not reaped: socket" in ran.output
    assert "Operation not permitted" in ran.output
    assert "and 1 could not be reaped." in ran.output
    assert left[0].exists()


def test_unusable_settings_are_a_usage_error(home, no_orphans, monkeypatch):
    """As for every command."""
    monkeypatch.setenv("RAYGUARD_METRICS_PORT", "many")
    ran = run(home)
    assert ran.exit_code == 2
    assert "rayguard:" in ran.output


def test_titles_of_processes_are_shown_harmlessly(home, no_orphans, monkeypatch):
    """A process chooses its own title."""
    title = "VLLM::\x1b[31mEngine\nCore [bold]"
    facts = orphans.ProcessFacts(
        ours=True,
        in_our_namespace=True,
        title=title,
        claimed=False,
        inherited=True,
        under_stranger=False,
        owner=orphans.ProcessLife.ALIVE,
        since_owner=True,
    )
    marked = orphans.Marked(ProcessId.me(), MARK_OF_ORPHANS, facts)
    monkeypatch.setattr(orphans, "find", lambda: [marked])
    output = run(home, "--dry-run").output
    assert "\x1b" not in output
    assert "VLLM:: Engine Core [bold]" in output
    assert Fate.LEFT.value in output


def test_on_a_terminal_it_is_a_table_of_a_hundred_columns(home, left):
    """A dry run, in a process of its own, beside whatever else this machine runs."""
    code, shown = on_a_terminal("reap", "--dry-run", columns=140, RAYGUARD_HOME=str(home))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert code == 0
    assert "to be reaped" in shown
    assert "verdict" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert all(path.exists() for path in left)


def test_it_needs_no_ray_and_no_torch(home):
    """It answers at once, also where the cluster is broken."""
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom rayguard.cli.app import app\n"
        f"CliRunner().invoke(app, ['reap', '--dry-run', '--home', {str(home)!r}])\n"
        "print([m for m in ('ray', 'torch', 'vllm') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert ran.stdout == "[]\n"
    assert not Path(home).exists()
