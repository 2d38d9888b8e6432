"""``rayguard incidents --stories``: one line per cause, from this machine's journal and without Ray."""

import json
import re

import pytest
from fabricated_cluster import AT
from pseudo_terminal import on_a_terminal
from test_cli import command

from rayguard.recovery.incident import Incident, Outcome
from rayguard.recovery.journal import Journal

ACTORS = [f"{number:032x}" for number in range(1, 4)]


@pytest.fixture
def home(tmp_path):
    """A node that died with two actors, and something else."""
    journal = Journal(tmp_path)
    common = {"job_id": "01000000", "outcome": Outcome.RECOVERED, "remedy": "restart_actor"}
    journal.write(
        Incident(
            id="aaaa01",
            kind="node_died",
            scope="node",
            cause="node 3 is gone",
            node="n3",
            detected_at=AT,
            closed_at=AT + 9,
            evidence=tuple(ACTORS[:2]),
            advice="Look at its power.",
            **common,
        )
    )
    for number, actor in enumerate(ACTORS[:2]):
        journal.write(
            Incident(
                id=f"bbbb0{number}",
                kind="actor_died",
                scope="process",
                cause="the actor died",
                actor_id=actor,
                target="Rollout",
                node="n3",
                detected_at=AT + number,
                closed_at=AT + 8,
                **common,
            )
        )
    journal.write(
        Incident(
            id="cccc01",
            kind="host_oom",
            scope="process",
            cause="killed for memory",
            actor_id=ACTORS[2],
            target="Trainer",
            node="n1",
            detected_at=AT + 5_000,
        )
    )
    return tmp_path


def test_stories_join_what_has_one_cause(home):
    """A line each, offline, oldest first."""
    ran = command(home, "incidents", "--stories")
    first, second = ran.stdout.splitlines()
    assert "aaaa01 node_died (node) 3 incidents: " in first
    assert "node 3 is gone" in first
    assert "cccc01 host_oom (process) 1 incident: " in second
    assert second.endswith("open")
    both = json.loads(command(home, "incidents", "--stories", "--json").stdout)
    assert [story["incidents"] for story in both] == [["aaaa01", "bbbb00", "bbbb01"], ["cccc01"]]
    assert len(command(home, "incidents", "--stories", "--last", "1").stdout.splitlines()) == 1
    assert "host_oom" in command(home, "incidents", "--stories", "--kind", "host_oom").stdout


@pytest.mark.parametrize("wanted", ["aaaa01", "aa", "bbbb01"])
def test_one_story_is_shown_whole(home, wanted):
    """By its id, the beginning of it, or that of an incident in it."""
    ran = command(home, "incidents", "--stories", wanted)
    assert ran.returncode == 0
    for expected in ("story aaaa01", "node 3 is gone", "Look at its power.", "bbbb00", "bbbb01"):
        assert expected in ran.stdout
    (whole_story,) = json.loads(command(home, "incidents", "--stories", wanted, "--json").stdout)
    assert [one["id"] for one in whole_story["incidents"]] == ["aaaa01", "bbbb00", "bbbb01"]


def test_a_story_that_is_none_is_an_error(home):
    """Exit code 1."""
    ran = command(home, "incidents", "--stories", "zzzz")
    assert (ran.returncode, "no story begins with 'zzzz'" in ran.stderr) == (1, True)


@pytest.mark.parametrize("columns", [80, 160])
def test_stories_fit_a_terminal(home, columns):
    """On a real one."""
    code, text = on_a_terminal("incidents", "--stories", columns=columns, RAYGUARD_HOME=str(home))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert code == 0
    assert "node 3 is gone" in " ".join(plain.split())
    assert max(len(line.rstrip("\r")) for line in plain.split("\n")) <= columns
