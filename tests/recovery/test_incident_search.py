"""The incident of an error of which only the text is left, or the actor's id."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from rayguard import incident_of
from rayguard.recovery.incident import Incident, Outcome, attach
from rayguard.recovery.journal import Journal

ray_exceptions = pytest.importorskip("ray.exceptions")

ACTOR = "ab" * 16
INCIDENT = Incident(
    kind="user_code",
    scope="process",
    cause="ValueError: a; b (c) in d: e",
    target="Trainer.__init__",
    actor_id=ACTOR,
    evidence=("line 3",),
    remedy="give_up",
    outcome=Outcome.FAILED,
    detected_at=5.0,
    recover_s=1.5,
)


class OwnPickleError(Exception):
    """Pickles itself, and so loses what was hung on it."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text

    def __reduce__(self):
        return OwnPickleError, (self.code, self.text)


def text_of(error):
    """Return the traceback's text with the note that tells the incident, as Python 3.11 and Ray print it."""
    return f"Traceback (most recent call last):\n{error!r}\nrayguard incident {INCIDENT.id}: {INCIDENT.sentence()}\n"


def task_error(error):
    """Return what Ray makes of an error, after it has crossed to the caller."""
    cause = pickle.loads(pickle.dumps(error))
    return ray_exceptions.RayTaskError(
        "f", text_of(error), cause, proctitle="p", pid=1, ip="127.0.0.1", actor_id=ACTOR
    )


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home of rayguard."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    return tmp_path


def raised_by_ray():
    error = OwnPickleError(3, "x")
    attach(error, INCIDENT)
    yield task_error(error).as_instanceof_cause()
    yield task_error(error)
    yield ray_exceptions.ActorDiedError.from_task_error(task_error(ValueError("in __init__")))
    outer = RuntimeError("of the caller's own")
    outer.__cause__ = task_error(error)
    yield outer


@pytest.mark.parametrize("error", list(raised_by_ray()), ids=["task", "bare task", "init", "cause"])
def test_the_incident_that_the_text_names_is_found(error, home):
    """Whole where this node's journal has it, else as the text says it."""
    told = incident_of(error)
    whole = dataclasses.replace(INCIDENT, evidence=(), actor_id="", detected_at=0.0)
    assert told == whole
    assert Journal(home).write(INCIDENT)
    assert incident_of(error) == INCIDENT


def test_a_dead_actors_newest_death_is_found_by_the_actor(home):
    """Its text names no incident, but the agent of its node, or its next life, has told one."""
    died = ray_exceptions.ActorDiedError()
    died.actor_id = ACTOR
    assert incident_of(died) is None
    journal = Journal(home)
    answered = {"outcome": Outcome.ANSWERED, "scope": "request"}
    journal.write(dataclasses.replace(INCIDENT, id="1" * 12, **answered, detected_at=9.0))
    journal.write(dataclasses.replace(INCIDENT, id="2" * 12, detected_at=2.0))
    journal.write(dataclasses.replace(INCIDENT, id="3" * 12, detected_at=3.0))
    journal.write(dataclasses.replace(INCIDENT, id="4" * 12, actor_id="cd" * 16, detected_at=8.0))
    assert incident_of(died).id == "3" * 12


def test_an_error_without_an_incident_has_none(home):
    """Also one that cannot say what it is."""

    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    assert incident_of(ValueError("nothing of ours")) is None
    assert incident_of(MuteError()) is None


def test_a_text_that_was_cut_off_still_names_its_incident(home):
    """Of another node, and in part."""
    error = RuntimeError("...rayguard incident 0123456789ab: user_code (proc")
    assert incident_of(error).id == "0123456789ab"
    assert incident_of(error).kind == "unknown"
