"""A second engine that waits: when it takes over, when it may not, and that it never harms the first."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from rayguard.engine.build import footprint
from rayguard.engine.context import Surroundings
from rayguard.engine.standby.plan import next_step
from rayguard.engine.supervision.slot import engine_slot
from rayguard.engine.weights.version import Weights
from rayguard.errors import ConfigError, GaveUpError, WeightsError
from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.memory.probes.node import NodeMemory
from rayguard.recovery.budget import RestartBudget
from rayguard.recovery.incident import Outcome
from rayguard.recovery.policy import GuardPolicy
from rayguard.recovery.tally import TALLY
from rayguard.testing.fakes import FakeEngineDeadError, FakeLLM, answer

POLICY = GuardPolicy(
    standby="engine",
    engine_budget=RestartBudget(max_restarts=4, within_s=600.0),
    build_deadline_s=5.0,
    weights_deadline_s=5.0,
)


class Slot:
    """An engine slot with scripted engines; ``built`` holds them in order, with what they were built for."""

    def __init__(self, tmp_path, *, weights=None, policy=POLICY, process=False):
        self.built, self.incidents, self.process = [], [], process
        self.refusing = 0  # standby builds that are to fail
        self.holding = None  # an event that standby builds wait for
        self.held = threading.Event()  # one of them waits
        self.target = f"Fake-{tmp_path.name}"

        def diagnose(fault):
            cause = str(fault.exceptions[0]) if fault.exceptions else "it died"
            return Diagnosis(
                signature="x", kind=Kind.ENGINE_DEAD, scope=Scope.ENGINE, cause=cause, confidence=0.9
            )

        around = Surroundings(
            target=self.target,
            home=lambda: tmp_path,
            diagnose=diagnose,
            write=self.incidents.append,
        )
        self.slot = engine_slot(self.recipe, policy=policy, surroundings=around, weights=weights)
        self.slot.start()

    def recipe(self, settings):
        kwargs = settings.as_kwargs(max_num_seqs=16)
        if settings.standby and self.holding is not None:
            self.held.set()
            self.holding.wait(10)
        if settings.standby and self.refusing:
            self.refusing -= 1
            raise OSError("no room today")
        llm = FakeLLM(process=self.process, **kwargs)
        self.built.append((llm, settings.standby))
        return llm

    def ready(self):
        wait(lambda: self.slot.status()["standby"] == "ready")
        return self.slot._lives.standby._state.spare.engine

    def strike(self, prompt=1, times=1):
        """Let the engine that serves die ``times`` times in one call; return what the caller gets."""
        left = [times]

        def script(_llm, request):
            if left[0] and len(request.tokens) >= 4:
                left[0] -= 1
                raise FakeEngineDeadError("struck")

        self.slot.engine(5.0).handle.script = script
        for llm, _ in self.built:
            llm.script = script
        return self.slot.engine(5.0).handle.generate([prompt])[0].tokens

    @property
    def epoch(self):
        return self.slot.status()["epoch"]

    @property
    def tally(self):
        return TALLY.engine(self.target)

    @property
    def last(self):
        return [one for one in self.incidents if one.outcome is not Outcome.OPEN][-1]


def wait(true, seconds=10.0):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not come to pass"
        threading.Event().wait(0.005)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Make slots that are closed at the end; pauses after failures are short."""
    monkeypatch.setattr("rayguard.engine.standby.keeper.pause_s", lambda failures: 0.02 * failures)
    monkeypatch.setattr("rayguard.engine.supervision.slot.find_spec", lambda _name: None)
    slots = []

    def make(**more):
        slots.append(Slot(tmp_path, **more))
        return slots[-1]

    yield make
    for slot in slots:
        slot.slot.close(0.0)


def tensors(value):
    import torch

    return {"w": torch.full((2,), float(value))}


def version(value):
    return Weights.from_tensors(str(value), tensors(value))


def test_the_standby_takes_over_and_a_new_one_is_built_after_it(made):
    """The caller gets the same tokens, the old engine is ended, and there is a standby again."""
    slot = made()
    slot.ready()
    first = slot.slot.engine(1.0)
    assert [standby for _, standby in slot.built] == [False, True]
    assert slot.strike() == answer(1, 16)
    assert slot.epoch == 2
    assert slot.slot.engine(1.0).life is slot.built[1][0].core, "the one that waited serves"
    assert "the standby engine took over" in slot.last.notes
    assert slot.last.outcome is Outcome.RECOVERED
    slot.ready()
    assert first.closed
    assert [standby for _, standby in slot.built] == [False, True, True]
    assert slot.strike() == answer(1, 16)
    assert slot.epoch == 3


def test_a_standby_with_other_settings_than_were_decided_is_not_used(made):
    """A fault that climbs a rung: the incident says so, and the next standby has the new settings."""
    slot = made()
    slot.ready()
    slot.strike()
    wrong = slot.ready()
    assert slot.strike() == answer(1, 16)
    assert slot.slot.status()["settings"] == ["async_scheduling_off"]
    assert "the standby was not used: it was built with no safe setting" in slot.last.notes
    slot.ready()
    assert wrong.closed
    assert slot.built[-1][0].settings["async_scheduling"] is False


def test_each_push_reaches_the_standby_behind_the_callers_back(made):
    """First the engine that serves, then the same value for the standby: the source is asked once."""
    current, asked = {"v": version(1)}, []

    def source():
        asked.append(1)
        return current["v"]

    slot = made(weights=source)
    slot.ready()
    current["v"], before = version(2), len(asked)
    assert slot.slot.bring_weights() == "2"
    wait(lambda: slot.slot._lives.standby._state.spare.proof.version == "2")
    assert len(asked) == before + 1
    assert slot.ready().pushes == 2
    assert slot.strike() == answer(1, 16, "2")
    assert slot.slot.status()["weight_version"] == "2"


def test_a_takeover_at_the_version_that_served_waits_for_no_trainer(made):
    """The source hangs: the standby proves what the engine before it had, and goes on."""
    hang = threading.Event()

    def source():
        if hang.is_set() and not taken_over():
            raise AssertionError("nobody is to be asked")
        return version(1)

    def taken_over():  # the next standby needs the source again
        return slot.slot._lives.epoch == 2

    slot = made(weights=source)
    slot.ready()
    hang.set()
    assert slot.strike() == answer(1, 16, "1")
    assert slot.slot.status()["weight_version"] == "1"
    assert slot.slot.serving


def test_a_standby_that_is_behind_is_brought_forward_before_it_serves(made, monkeypatch):
    """It could not be pushed to while it waited."""
    current = {"v": version(1)}
    slot = made(weights=lambda: current["v"])
    slot.ready()
    spare = slot.slot._lives.standby._state.spare
    slot.built[1][0].takes_weights = False
    current["v"] = version(2)
    slot.slot.bring_weights()
    assert slot.slot.status()["standby"] == "building"
    assert (spare.proof.version, spare.engine.pushes) == ("1", 1)
    monkeypatch.setattr("rayguard.engine.standby.plan.LOOK_S", 60.0)  # its keeper does not look
    slot.built[1][0].takes_weights = True
    assert slot.strike() == answer(1, 16, "2")
    assert slot.slot.engine(1.0) is spare.engine
    assert spare.engine.pushes == 2
    assert slot.slot.status()["weight_version"] == "2"


def test_a_standby_that_does_not_prove_its_weights_is_pushed_again(made):
    """Its receipts are read back at the takeover, whatever we remember."""
    slot = made(weights=lambda: version(1))
    spare = slot.ready()
    assert spare.pushes == 1
    spare._receipts = []
    slot.strike()
    assert slot.slot.engine(1.0) is spare
    assert spare.pushes == 2


def test_a_death_in_the_middle_of_a_push_ends_with_the_new_version(made):
    """The standby had the old one: it is brought forward before it serves anybody."""
    current = {"v": version(1)}
    slot = made(weights=lambda: current["v"])
    spare = slot.ready()

    def die(_version):
        raise FakeEngineDeadError("struck while it loaded")

    slot.built[0][0].on_push = die
    current["v"] = version(2)
    assert slot.slot.bring_weights() == "2"
    assert slot.slot.engine(1.0) is spare
    assert spare._receipts[0].version == "2"
    assert slot.epoch == 2


def test_a_push_to_an_engine_that_was_replaced_meanwhile_is_not_entered_for_its_successor(made):
    """It came back late and well: the version is proved by the engine that serves, or not at all."""
    current, begun, go_on = {"v": version(1)}, threading.Event(), threading.Event()
    slot = made(weights=lambda: current["v"])
    spare, old = slot.ready(), slot.slot.engine(1.0)

    def slowly(_version):
        begun.set()
        go_on.wait(10)

    slot.built[0][0].on_push = slowly
    current["v"] = version(2)
    told = []
    pushing = threading.Thread(target=lambda: told.append(slot.slot.bring_weights()))
    pushing.start()
    assert begun.wait(10)
    current["v"] = version(3)
    slot.slot.report(FakeEngineDeadError("frozen"), old.life).result(10)
    go_on.set()
    pushing.join(10)
    assert told == ["3"]
    assert slot.slot.engine(1.0) is spare
    assert spare._receipts[0].version == slot.slot.status()["weight_version"] == "3"


def test_a_push_that_fails_costs_the_standby_and_not_the_engine(made):
    """It may be half loaded: another one is built; the engine that serves has the new version."""
    current = {"v": version(1)}
    slot = made(weights=lambda: current["v"])
    spare = slot.ready()

    def refuse(_version):
        raise WeightsError("torn")

    slot.built[1][0].on_push = refuse
    current["v"] = version(2)
    assert slot.slot.bring_weights() == "2"
    wait(lambda: spare.closed)
    assert slot.ready() is not spare
    assert slot.tally.standby_failures == 1
    assert slot.epoch == 1


def test_a_build_that_fails_is_tried_again_and_harms_nobody(made, caplog):
    """Three failures, one line of the same text, an engine that serves all the while."""
    caplog.set_level(logging.WARNING, "rayguard")
    slot = made()
    slot.ready()
    slot.refusing = 3
    slot.strike()
    assert slot.slot.engine(1.0).handle.generate([2])[0].tokens == answer(2, 16)
    slot.ready()
    assert slot.tally.standby_failures == 3
    assert len([one for one in caplog.records if "no room today" in one.getMessage()]) == 1
    assert slot.epoch == 2


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_standby_that_dies_or_stands_still_is_replaced_quietly(made, sign, monkeypatch):
    """No incident, no new epoch: a count and another standby."""
    monkeypatch.setattr("rayguard.engine.standby.plan.LOOK_S", 0.05)
    slot = made(process=True)
    spare = slot.ready()
    os.kill(spare.processes()[0].process.pid, sign)
    wait(lambda: spare.closed)
    assert slot.ready() is not spare
    assert (slot.epoch, slot.incidents, slot.tally.standby_failures) == (1, [], 1)
    assert slot.slot.status()["pids"]["core"] == slot.built[0][0].process.pid


def test_one_that_stands_still_as_it_is_needed_is_not_used(made, monkeypatch):
    """Nobody had looked yet: an engine is built."""
    monkeypatch.setattr(
        "rayguard.engine.standby.keeper.next_step", lambda view: next_step(replace(view, fit=True))
    )
    slot = made(process=True)
    spare = slot.ready()
    process = spare.processes()[0].process
    os.kill(process.pid, signal.SIGSTOP)
    wait(lambda: process.state() == "T")
    assert slot.strike() == answer(1, 16)
    assert slot.slot.engine(1.0) is not spare
    assert "stopped" in " ".join(slot.last.notes)


def test_a_standby_that_fails_as_it_takes_over_is_made_good_by_a_new_engine(made, monkeypatch):
    """Never worse than without it."""
    slot = made()
    spare = slot.ready()
    before = TALLY.guard_errors["standby"]
    monkeypatch.setattr(spare, "serve", lambda *_a, **_k: 1 / 0)
    assert slot.strike() == answer(1, 16)
    assert slot.epoch == 2
    assert spare.closed
    assert TALLY.guard_errors["standby"] == before + 1
    assert "the standby failed as it took over" in slot.last.notes


def test_a_fault_while_the_standby_is_built_waits_for_it(made):
    """Sooner than building another one beside it."""
    slot = made()
    slot.ready()
    slot.holding = threading.Event()
    slot.strike()
    wait(lambda: slot.slot.status()["standby"] == "building")
    threading.Timer(0.2, slot.holding.set).start()
    slot.slot._recovery.state = slot.slot._recovery.state.__class__()  # as if long after the last fault
    assert slot.strike() == answer(1, 16)
    assert [standby for _, standby in slot.built[:3]] == [False, True, True]
    assert slot.slot.engine(1.0).life is slot.built[2][0].core
    assert "the standby was still being built" in slot.last.notes


def test_giving_up_ends_the_standby_too(made):
    """Nothing is left that holds memory."""
    slot = made(
        policy=GuardPolicy(
            standby="engine", quarantine_after=1, engine_budget=RestartBudget(max_restarts=1, within_s=600.0)
        )
    )
    slot.ready()
    with pytest.raises(GaveUpError):
        for _ in range(3):
            slot.strike(times=2)
    wait(lambda: slot.slot.status()["standby"] == "none")
    assert not slot.tally.standby_ready


def test_close_ends_both(made):
    """To the last process."""
    slot = made(process=True)
    slot.ready()
    slot.slot.close(0.0)
    assert [llm.process.poll() for llm, _ in slot.built] == [-9, -9]


def test_close_does_not_wait_for_a_standby_that_is_being_built(made, monkeypatch):
    """The build is called off; what comes of it later is ended."""
    monkeypatch.setattr("rayguard.engine.build.builder._CALLED_OFF_S", 0.1)
    slot = made(process=True)
    slot.ready()
    slot.holding = threading.Event()
    slot.strike()
    assert slot.held.wait(10)  # "building" is told before the recipe is called
    slot.slot.close(0.0)
    slot.holding.set()
    wait(lambda: len(slot.built) == 3 and slot.built[2][0].process.poll() == -9)


def test_what_it_costs_is_told(made, caplog):
    """In the status, in one line of the log, and as a gauge."""
    caplog.set_level(logging.INFO, "rayguard")
    slot = made(process=True)
    slot.ready()
    status = slot.slot.status()
    assert 0 < status["standby_bytes"] < 50 << 20
    assert status["standby_device_bytes"] == 0
    assert slot.tally.standby_ready
    assert any("GiB of host memory" in one.getMessage() for one in caplog.records)


def test_without_one_the_status_says_so(made):
    """The default keeps a process and no engine."""
    slot = made(policy=GuardPolicy(standby=None))
    assert slot.slot.status()["standby"] == "none"
    with pytest.raises(ConfigError, match="'process', 'engine' or None"):
        GuardPolicy(standby="hot")


class Driver:
    """Stands for pynvml: one GPU."""

    def __init__(self, free):
        self.free = free

    def nvmlInit(self):
        return None

    def nvmlShutdown(self):
        return None

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, _handle):
        return [type("User", (), {"pid": os.getpid(), "usedGpuMemory": 3 << 30})]

    def nvmlDeviceGetMemoryInfo(self, _handle):
        return type("Memory", (), {"free": self.free, "total": 80 << 30})


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 80 GiB of which 30 are free."""
    monkeypatch.setitem(__import__("sys").modules, "pynvml", Driver(30 << 30))
    monkeypatch.setattr(footprint, "_torch_has_cuda", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_gpu_that_has_no_room_for_two_is_left_to_the_one_that_serves(gpu):
    """Refused before vLLM tries, with what to do."""
    nothing = footprint.Footprint()
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization=0\.9 asks for 72\.0 of 80\.0 GiB.*0\.45"):
        footprint.refuse_without_room({"gpu_memory_utilization": 0.9}, nothing)
    footprint.refuse_without_room({"gpu_memory_utilization": 0.3}, nothing)
    footprint.refuse_without_room({}, nothing)


def test_device_memory_is_measured_where_the_driver_tells(gpu):
    """Of our own processes only."""
    from rayguard.process.identity import ProcessId

    assert footprint.measure([ProcessId.me()]).device_bytes == 3 << 30
    assert footprint.measure([]).device_bytes == 0


def test_host_memory_is_left_to_the_one_that_serves(made, monkeypatch, caplog):
    """The standby is not even begun, and the reason is in the log."""
    caplog.set_level(logging.WARNING, "rayguard")
    full = NodeMemory(used=(1 << 34) - (1 << 20), total=1 << 34)
    monkeypatch.setattr(footprint.NodeProbe, "limits", lambda _: (full,))
    slot = made()
    wait(lambda: any("no room for a standby engine" in one.getMessage() for one in caplog.records))
    assert [standby for _, standby in slot.built] == [False]
    assert slot.slot.engine(1.0).handle.generate([2])[0].tokens == answer(2, 16)
    assert slot.tally.standby_failures > 0
