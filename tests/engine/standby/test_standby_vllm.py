"""A real vLLM engine with a second one that waits: killed or frozen under load, and its callers never know."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from multiprocessing import resource_tracker

import pytest

from examples.grpo.model import build
from rayguard import GuardPolicy, RestartBudget, Weights
from rayguard.process.identity import ProcessId, owned_by, owner_mark
from rayguard.process.tree import descendants
from rayguard.recovery.incident import Outcome
from rayguard.recovery.machine import EngineState
from tests.engine.real import ENVIRONMENT, PROMPTS, Owner, collect, incidents, told

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

_ids = itertools.count()
_PATIENCE_S = 300.0  # for a busy machine; nothing here asserts how fast


class Harness:
    """An owner with a standby, and a trainer that has two versions."""

    def __init__(self, folder, kind, prefork):
        self.prefork = prefork
        self.files = {version: build(folder / version, int(version)) for version in ("1", "2")}
        self.version = "1"
        self.loop = asyncio.new_event_loop() if kind == "AsyncLLM" else None
        self.owner = Owner(str(build(folder / "model", 0)), kind)
        often = RestartBudget(max_restarts=50, within_s=3600.0)
        self.owner.start_engine(
            weights=lambda: Weights(self.version, path=str(self.files[self.version] / "model.safetensors")),
            policy=GuardPolicy(standby="engine", engine_budget=often),
        )

    @property
    def slot(self):
        return self.owner._engine_slot

    def answers(self, **more):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        # Long enough that a strike after 200 tokens of 1,600 cannot come too late, on a busy machine either.
        values = {"temperature": 0, "max_tokens": 200, "logprobs": 1, "ignore_eos": True}
        kind = RequestOutputKind.FINAL_ONLY
        params = SamplingParams(**{**values, **more}, repetition_penalty=1.3, output_kind=kind)
        if self.loop is None:
            return told(self.owner.with_engine(lambda e: e.generate(PROMPTS, params, use_tqdm=False)))
        prefix = f"t{next(_ids)}"
        call = self.owner.with_engine(lambda e: collect(e, PROMPTS, params, prefix))
        return told(self.loop.run_until_complete(call))

    def update(self, version):
        self.version = version
        updated = self.owner.update_weights()
        return updated if self.loop is None else self.loop.run_until_complete(updated)

    def ready(self):
        """Wait until the standby could take over; weights reach it only while the loop runs."""
        until = time.monotonic() + _PATIENCE_S
        while self.owner.engine_status()["standby"] != "ready":
            assert time.monotonic() < until, "no standby"
            if self.loop is None:
                threading.Event().wait(0.05)
            else:
                self.loop.run_until_complete(asyncio.sleep(0.05))
        self.slot._recovery.state = EngineState()  # as if long after the last fault: the same settings
        return self.slot._lives.standby._state.spare

    def processes(self):
        """Return every process that carries our mark, but for multiprocessing's tracker and the shared server."""
        me, others = ProcessId.me(), {resource_tracker._resource_tracker._pid, self.prefork.pid}
        return [p for p in descendants(me) if owned_by(p, owner_mark(me)) and p.pid not in others]

    def close(self):
        self.owner.stop_engine()
        if self.loop is not None:
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()


@pytest.fixture(scope="module", params=["AsyncLLM", "LLM"])
def harness(request, tmp_path_factory, prefork):
    """One slot for all tests of a kind; at its end nothing of it is left."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp(request.param)
    for name, value in {**ENVIRONMENT, "RAYGUARD_HOME": str(folder / "home")}.items():
        patch.setenv(name, value)
    harness = Harness(folder, request.param, prefork)
    yield harness
    harness.ready()
    assert len(harness.processes()) >= 2
    harness.close()
    assert harness.processes() == []
    patch.undo()


@pytest.fixture(scope="module")
def undisturbed(harness):
    """What the engine says when nothing happens."""
    return harness.answers()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("which", ["core", "worker"])
def test_the_standby_goes_on_with_what_was_cut(harness, undisturbed, which, sign):
    """Same tokens, text and logprobs; the next epoch; the process that waited serves; the old one is gone."""
    spare = harness.ready()
    old, waited = harness.slot.engine(1.0), [known.process for known in spare.engine.processes()]
    before, epoch = len(incidents()), harness.owner.engine_status()["epoch"]
    with harness.owner.struck(which, sign, after_tokens=200):
        assert harness.answers() == undisturbed
    status = harness.owner.engine_status()
    assert status["epoch"] == epoch + 1
    assert status["pids"]["core"] == waited[0].pid
    (incident,) = incidents()[before:]
    assert incident.outcome is Outcome.RECOVERED
    assert "the standby engine took over" in incident.notes
    assert (incident.tokens_lost, incident.requests) == (0, len(PROMPTS))
    assert incident.kind == ("engine_dead" if sign is signal.SIGKILL else "engine_hang")
    harness.ready()
    assert not any(known.process.alive() for known in old.processes())
    assert all(process.alive() for process in waited)


def test_the_standby_has_the_version_that_serves(harness, undisturbed):
    """A push reaches it behind the caller's back; after the takeover its workers hold that version."""
    harness.ready()
    assert harness.update("2") == "2"
    second = harness.answers()
    assert second != undisturbed
    spare = harness.ready()
    assert spare.proof.version == "2"
    with harness.owner.struck("core", after_tokens=200):
        assert harness.answers() == second
    assert harness.slot.engine(1.0) is spare.engine
    assert harness.owner.engine_status()["weight_version"] == "2"
    harness.ready()
    harness.update("1")
    assert harness.answers() == undisturbed
    harness.ready()


def test_a_standby_that_dies_costs_the_callers_nothing(harness, undisturbed):
    """It is replaced while the engine serves, without an incident."""
    spare, before, epoch = harness.ready(), len(incidents()), harness.owner.engine_status()["epoch"]
    os.kill(spare.engine.processes()[0].process.pid, signal.SIGKILL)
    assert harness.answers() == undisturbed
    until = time.monotonic() + _PATIENCE_S
    while harness.ready() is spare:
        assert time.monotonic() < until
        harness.answers(max_tokens=5)
    assert len(incidents()) == before
    assert harness.owner.engine_status()["epoch"] == epoch
