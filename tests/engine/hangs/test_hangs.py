"""Hangs of a real vLLM engine: each kind is found, told apart and cured; and what is no hang is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import pytest

from examples.grpo.model import build
from rayguard import GuardPolicy, RestartBudget
from rayguard.recovery.incident import Outcome
from rayguard.recovery.ladder import Ladder
from rayguard.testing.fuse import CONFIG_KEY, Fuse
from tests.engine.load import PATIENCE_S, Load, Looped, until
from tests.engine.real import ENVIRONMENT, incidents

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]


def engine_arguments(folder):
    """Return what an engine that can hang is built with."""
    return {
        "scheduler_cls": "tests.engine.hanging.HangingScheduler",
        "worker_extension_cls": "tests.engine.hanging.HangingWorker",
        "additional_config": {CONFIG_KEY: str(folder)},
    }


@pytest.fixture(scope="module", params=["AsyncLLM", "LLM"])
def owner(request, tmp_path_factory, prefork):
    """One engine for all tests of a kind; each test leaves it serving."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("hangs")
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(folder / "home")}.items():
        patch.setenv(name, value)
    (folder / "fuses").mkdir()
    made = Looped(str(build(folder / "model", 0)), request.param, **engine_arguments(folder / "fuses"))
    made.fuses = folder / "fuses"
    often = RestartBudget(max_restarts=50, within_s=3600.0)
    made.start_engine(policy=GuardPolicy(ladder=Ladder(rungs=()), engine_budget=often))
    yield made
    made.close()
    patch.undo()


def arm(owner):
    """Put the hangs into the present workers."""
    called = owner.engine.collective_rpc("arm_hang", args=(str(owner.fuses),))
    if owner.kind == "AsyncLLM":
        owner.run(called)


def hang(owner, which):
    """Bring a hang about under load; return when it happened, in which process, and the incident."""
    before = len(incidents())
    with Load(owner).going():
        if which.startswith("worker_"):
            arm(owner)
        if which.startswith("stopped_"):
            at, pid = time.time(), owner.pid(which.removeprefix("stopped_"))
            os.kill(pid, signal.SIGSTOP)
        else:
            fuse = Fuse(owner.fuses / which)
            fuse.light()
            until(lambda: fuse.burnt() is not None)
            at, pid = fuse.burnt()
        until(lambda: len(incidents()) > before and incidents()[-1].outcome is not Outcome.OPEN)
    (incident,) = incidents()[before:]
    print(
        f"{owner.kind} {which}: found after {incident.detected_at - at:.1f} s: {incident.cause}", flush=True
    )
    print("\n".join(incident.notes), flush=True)
    return at, pid, incident


SYNC_TOO = ("stopped_core", "output_dies")
CAUSES = {
    "stopped_core": "engine_core process {pid} is stopped (T)",
    "stopped_worker": "engine_worker process {pid} is stopped (T)",
    "input_dies": "engine_core process {pid} has lost its input thread",
    "output_dies": "engine_core process {pid} has lost its output thread",
    "core_spins": "engine_core process {pid} computes without making a token",
    "worker_spins": "engine_worker process {pid} computes without making a token",
    "core_waits": "engine_core process {pid} waits and never comes back, in wait_for_ever",
    "worker_waits": "engine_worker process {pid} waits and never comes back, in wait_for_ever",
}


@pytest.mark.parametrize("which", CAUSES)
def test_a_hang_is_found_told_apart_and_cured(owner, which):
    """No request is lost; the incident names the process, what is wrong with it, and where it stands."""
    if owner.kind == "LLM" and which not in SYNC_TOO:
        pytest.skip("the engine's processes are the same under both frontends")
    at, pid, incident = hang(owner, which)
    assert (incident.kind, incident.scope, incident.outcome) == ("engine_hang", "engine", Outcome.RECOVERED)
    assert CAUSES[which].format(pid=pid) in incident.cause
    assert (incident.signature == "engine.frozen") is which.startswith("stopped_")
    assert incident.settings == ()
    notes = "\n".join(incident.notes)
    assert f"process {pid}: state" in notes
    assert "main thread: " in notes
    assert len(notes) < 20_000
    assert at < incident.detected_at < at + PATIENCE_S
    assert incident.detect_s > 0


def test_a_blocked_event_loop_is_the_users_and_restarts_nothing(owner):
    """The core has answered and nobody reads: said once, with the line, and the engine is left alone."""
    if owner.kind == "LLM":
        pytest.skip("no loop")
    before, epoch = len(incidents()), owner.engine_status()["epoch"]

    said, waited = threading.Event(), []

    def users_slow_reward_function():
        began = time.monotonic()
        said.wait(PATIENCE_S)  # how long that takes depends on the pace of this machine
        waited.append(time.monotonic() - began)
        threading.Event().wait(max(waited))

    load = Load(owner)
    with load.going():
        for _ in range(2):
            blocked = threading.Event()
            owner.loop.call_soon_threadsafe(users_slow_reward_function)
            owner.loop.call_soon_threadsafe(blocked.set)
            until(lambda: load.failed or len(incidents()) > before, load.told)
            said.set()
            until(blocked.is_set)
    assert owner.engine_status()["epoch"] == epoch
    (incident,) = incidents()[before:]
    assert (incident.kind, incident.scope, incident.remedy) == ("user_code", "code", "none")
    assert "users_slow_reward_function" in incident.cause
    assert "test_hangs.py" in incident.cause
    assert "to_thread" in incident.advice
    assert any("users_slow_reward_function" in line for line in incident.notes)


def test_what_is_no_hang_is_left_alone(owner):
    """Saturation, an owner in a debugger, an engine that its owner pauses, a stop shorter than the limit."""
    if owner.kind == "LLM":
        pytest.skip("its watch is the same, and it cannot be paused")
    before, epoch = len(incidents()), owner.engine_status()["epoch"]
    load = Load(owner)
    with load.going():
        done = threading.Event()
        done.wait(2.0)
        me = os.getpid()
        # The driver in a debugger: all its threads stand, the engine's processes do not.
        debugger = f"kill -STOP {me}; sleep 12; kill -CONT {me}"
        subprocess.run(["sh", "-c", f"({debugger}) </dev/null >/dev/null 2>&1 &"], check=True)
        done.wait(14.0)
        owner.run(owner.engine.pause_generation(mode="keep"))
        done.wait(11.0)
        owner.run(owner.engine.resume_generation())
        for which in ("core", "worker"):
            os.kill(owner.pid(which), signal.SIGSTOP)
            done.wait(0.8)
            os.kill(owner.pid(which), signal.SIGCONT)
            done.wait(1.0)
        answered = load.answered
        done.wait(5.0)
        assert load.answered > answered
    assert owner.engine_status()["epoch"] == epoch
    assert incidents()[before:] == []


def test_a_call_that_is_not_answered_is_told_with_its_line_and_left_alone(
    owner, caplog, monkeypatch, tmp_path
):
    """It may wait for a trainer; vLLM itself would never say a word."""
    monkeypatch.setattr("rayguard.engine.hangs.unanswered_calls.TOLD_AFTER_S", 2.0)
    before, epoch = len(incidents()), owner.engine_status()["epoch"]
    answers, file = [], tmp_path / "go-on"

    def call():
        called = owner.engine.collective_rpc("come_back_with", args=(str(file),))
        answers.append(owner.run(called) if owner.kind == "AsyncLLM" else called)

    calling = threading.Thread(target=call)
    calling.start()
    until(lambda: "has not been answered" in caplog.text)
    file.touch()
    calling.join(PATIENCE_S)
    assert answers == [[7]]
    assert (
        "the call collective_rpc('come_back_with') to the engine has not been answered for 2 s" in caplog.text
    )
    assert "stands, in come_back_with (" in caplog.text
    assert (len(incidents()), owner.engine_status()["epoch"]) == (before, epoch)
