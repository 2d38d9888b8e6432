"""What the next life tells of a death: the catalog's verdict, the recording's sentence, and who did it."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rayguard.actors.guard import life_entry
from rayguard.actors.guard.guard import guard
from rayguard.actors.life import postmortem, process_exit, publishing
from rayguard.actors.life.incarnation import Incarnation, PastDeath
from rayguard.actors.life.postmortem import Postmortem
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.home import home
from rayguard.process.death_cause.evidence import gather
from rayguard.process.death_cause.killer import Killer, who_killed
from rayguard.process.flight import recorder
from rayguard.process.flight.reader import read_recording
from rayguard.recovery.incident import Incident
from rayguard.recovery.policy import GuardPolicy
from rayguard.recovery.tally import TALLY

LIFE = """
import os, sys
from rayguard.process.flight import recorder
from rayguard.process.death_cause.killer import Killer, who_killed
from rayguard.process.death_cause.evidence import gather
from rayguard.process.flight.reader import read_recording
flight = recorder.start(sys.argv[1], title="Trainer", actor_id="abc", every_s=3600)
for step in range(12):
    call = recorder.begin("Trainer", "update")
    recorder.record_memory(private=500_000_000 + max(0, step - 2) * 20_000_000, node_ratio=0.3, step=step)
    flight._round._recorded_ns = 0  # as if the steps were long
    recorder.end(call)
recorder.begin("Trainer", "update")
recorder.record_memory(private=680_000_000, node_ratio=0.3, step=11)
recorder.record_event("engine 0 rebuilt")
os.kill(os.getpid(), 9)
"""
OOM = (
    "NODE_OUT_OF_MEMORY: 1 worker(s) were killed due to the node running low on memory. Memory on the node was "
    "22.41GB used / 23.54GB limit (0.952013)\nOOM kill reason: Memory usage exceeded threshold"
)
LOST = "SYSTEM_ERROR: Worker unexpectedly exits with a connection error code 2. End of file."
UNKNOWN = Diagnosis(
    signature="unknown",
    kind=Kind.ACTOR_DIED,
    scope=Scope.PROCESS,
    cause="died without a word",
    confidence=0.3,
)


@pytest.fixture
def dead(tmp_path, monkeypatch):
    """Return the pid of a process that recorded a leak and was killed."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", LIFE, str(tmp_path)])
    assert child.wait(60) == -9
    return child.pid


def death(pid, how, **known):
    return PastDeath(pid=pid, at=time.time(), how=how, **known)


def test_a_kill_for_memory_is_told_with_the_growth_that_led_to_it(dead):
    """In one sentence."""
    told = death(dead, OOM)
    found = Postmortem.of(told, "abc")
    verdict = found.judged(UNKNOWN, told)
    assert verdict.cause == (
        f"the actor's process {dead}: RSS grew 20 MB a step from step 3 on in `Trainer.update`, killed by Ray's "
        "memory monitor at 95.2 %"
    )
    assert (verdict.kind, verdict.scope) == (Kind.HOST_OOM, Scope.PROCESS)
    assert verdict.confidence > 0.9
    assert any("running low on memory" in line for line in found.log)


def test_a_persons_kill_keeps_the_growth_in_the_notes(dead):
    """It was not why."""
    told = death(dead, LOST)
    found = Postmortem.of(told, "abc")
    verdict = found.judged(UNKNOWN, told)
    assert f"process {dead} died without a word: by SIGKILL of a person or another program" in verdict.cause
    assert "memory was at 30 %" in verdict.cause
    assert LOST in verdict.cause
    assert verdict.kind is Kind.ACTOR_DIED
    incident = found.noted_on(Incident(id="a", kind="actor_died", scope="process", cause=verdict.cause))
    notes = "\n".join(incident.notes)
    assert "RSS grew 20 MB a step from step 3 on in `Trainer.update`" in notes
    assert "680 MB of its own at the end, after step 11" in notes
    assert "`Trainer.update` ran, since" in notes
    assert "engine 0 rebuilt" in notes


def test_a_verdict_of_the_catalog_that_knows_more_stays(dead):
    """An exit code that Ray or the worker's log has, a kind that is no death."""
    known = death(dead, LOST, exitcode=-11)
    assert Postmortem.of(known, "abc").judged(UNKNOWN, known) is UNKNOWN
    other = Diagnosis(
        signature="x", kind=Kind.NODE_DIED, scope=Scope.NODE, cause="the node is gone", confidence=0.9
    )
    told = death(dead, LOST)
    assert Postmortem.of(told, "abc").judged(other, told) is other


def test_without_a_recording_rays_word_is_enough_for_its_own_kills(tmp_path, monkeypatch):
    """The actor may have lived on another node, or with the recorder off."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    told = death(77, OOM)
    verdict = Postmortem.of(told, "abc").judged(UNKNOWN, told)
    assert verdict.cause == "the actor's process 77 was killed by Ray's memory monitor at 95.2 %"
    told = death(77, LOST)
    found = Postmortem.of(told, "abc")
    assert "by SIGKILL (also of the kernel, out of memory) or os._exit" in found.judged(UNKNOWN, told).cause
    incident = Incident(id="a", kind="k", scope="process", cause="c")
    assert found.noted_on(incident) is incident


def test_an_incident_that_a_process_left_word_of_gets_the_notes_too(dead):
    """Its cause is known; what it did last is not."""
    incident = Incident(id="a", kind="cuda_device_assert", scope="process", cause="c", pid=dead)
    found = Postmortem.of_word(dead, "abc").noted_on(incident)
    assert found.cause == "c"
    assert "RSS grew 20 MB a step" in "\n".join(found.notes)
    assert Postmortem.of_word(0, "abc").noted_on(incident) is incident


def test_a_bug_in_it_changes_nothing(dead, monkeypatch):
    """It is counted, and the incident is what it would have been."""
    told = death(dead, LOST)
    whole = Postmortem.of(told, "abc")

    def explode(*_args, **_kwargs):
        raise RuntimeError("a bug in rayguard")

    before = TALLY.guard_errors["postmortem"]
    monkeypatch.setattr(postmortem, "_recording", explode)
    assert Postmortem.of(told, "abc") == Postmortem()
    assert Postmortem.of_word(dead, "abc") == Postmortem()
    assert Postmortem().judged(UNKNOWN, told) is UNKNOWN
    monkeypatch.setattr(postmortem, "_notes", explode)
    incident = Incident(id="a", kind="k", scope="process", cause="c")
    assert whole.noted_on(incident) is incident
    assert TALLY.guard_errors["postmortem"] == before + 3


# -- the recorder of an actor's process


@pytest.fixture
def off():
    recorder.stop()
    yield
    recorder.stop()


def test_a_shown_actor_records(off, tmp_path, monkeypatch):
    """In the home that the settings name."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    publishing.record(Incarnation(actor_id="abc"), "Trainer")
    assert recorder.current() is not None
    assert recorder.current().path.is_relative_to(tmp_path / "flight")


def test_a_full_disk_leaves_the_recorder_off_and_is_counted(off, tmp_path, monkeypatch):
    """The actor goes on."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = TALLY.guard_errors["recorder"]
    publishing.record(Incarnation(actor_id="abc"), "Trainer")
    assert recorder.current() is None
    assert TALLY.guard_errors["recorder"] == before + 1


def test_a_failure_of_the_recorder_is_counted_once(off, tmp_path, monkeypatch):
    """And not once a second."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    publishing.record(Incarnation(actor_id="abc"), "Trainer")
    before = TALLY.guard_errors["recorder"]
    recorder.current().went_wrong(ValueError("x"))
    recorder.current().went_wrong(ValueError("x"))
    assert TALLY.guard_errors["recorder"] == before + 1


@pytest.mark.parametrize("wanted", [True, False])
def test_the_policy_can_leave_it_off(off, wanted, tmp_path, monkeypatch):
    """It is on by default."""
    monkeypatch.setenv("RAYGUARD_HOME", str(tmp_path))
    cls = guard(policy=GuardPolicy() if wanted else GuardPolicy(flight_recorder=False))(type("A", (), {}))
    life_entry._show_itself(cls())
    assert (recorder.current() is not None) is wanted


def test_an_end_that_rayguard_makes_is_told_so(off, tmp_path, monkeypatch):
    """And not taken for one by the user's own ``os._exit``."""
    monkeypatch.setattr(process_exit, "_end_children", lambda: None)
    flight = recorder.start(tmp_path, every_s=3600.0)
    ends = []
    monkeypatch.setattr(os, "_exit", ends.append)
    process_exit.end_process(None)
    assert ends == [1]
    seen = gather(read_recording(flight.path), died_at=time.time())
    assert who_killed(seen).killer is Killer.RAYGUARD


@pytest.mark.parametrize("said", ["~/somewhere", "relative/place", "/an/absolute/one", ""])
def test_the_home_is_that_of_the_settings(said, monkeypatch):
    """Without loading them."""
    from rayguard.config import Settings

    monkeypatch.setenv("RAYGUARD_HOME", said)
    assert home() == Settings().home
    monkeypatch.delenv("RAYGUARD_HOME")
    assert home() == Settings().home
    code = "import sys; import rayguard.actors.life.publishing, rayguard.process.flight.recorder; print('pydantic' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "False"
    assert Path(home()).is_absolute()
