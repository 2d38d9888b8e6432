"""The watch on an engine, with real processes and a scripted frontend: what it reports, and what it leaves alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typing_extensions import override

from rayguard import GuardPolicy
from rayguard.engine.context import Surroundings
from rayguard.engine.hangs import blocked_loop, silence
from rayguard.engine.hangs import watch as watch_module
from rayguard.engine.hangs.watch import EngineWatch
from rayguard.engine.plain import PlainEngine
from rayguard.engine.protocol import EngineProcess, Progress, Standing
from rayguard.engine.vllm.core_activity import CoreActivity
from rayguard.faults.diagnose import diagnose
from rayguard.faults.fault import Fault, Role
from rayguard.process.identity import OWNER_ENV, ProcessId, owner_mark
from rayguard.process.stacks import CodePlace, Stack, Thread
from rayguard.recovery.machine import EngineState, Failed, handle
from rayguard.recovery.remedy import Action
from rayguard.recovery.tally import TALLY, EngineTally

POLICY = GuardPolicy(hang_stopped_s=0.5, hang_idle_s=2.0, hang_busy_s=4.0)
BUSY = "while True: pass"
ASLEEP = "import threading; threading.Event().wait(120)"
COMPILES = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


class Scripted(PlainEngine):
    """An engine whose progress the test says, with real processes."""

    def __init__(self, processes):
        super().__init__(object())
        self.now = Progress(running=("a", "b"), beginning=0)
        self.reads_on = None
        self.known = processes

    @property
    @override
    def loop(self):
        return self.reads_on

    @override
    def processes(self):
        return self.known

    @override
    def progress(self):
        return self.now

    def step(self):
        self.now = replace(self.now, turns=self.now.turns + 1)


@pytest.fixture
def started():
    """Start Python processes as engine processes; all are ended."""
    children = []

    def start(*codes):
        roles = (Role.ENGINE_CORE, Role.ENGINE_WORKER)
        environment = {**os.environ, OWNER_ENV: owner_mark(ProcessId.me())}
        mine = [
            subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True)
            for code in codes
        ]
        children.extend(mine)
        return Scripted(
            tuple(
                EngineProcess(role, ProcessId.of(child.pid)) for role, child in zip(roles, mine, strict=False)
            )
        )

    yield start
    for child in children:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(10)


class Watched:
    """A watch and what it reported."""

    def __init__(self, engine, around=None, policy=POLICY):
        self.seen, self.changed = [], threading.Event()
        self.watch = EngineWatch(policy, self.take, EngineTally("test"), around=around)
        self.watch.watch(engine)

    def take(self, engine, silence):
        self.seen.append(silence)
        self.changed.set()

    def first(self, limit_s=60.0):
        assert self.changed.wait(limit_s), "nothing was reported"
        return self.seen[0]

    def none_for(self, seconds):
        self.changed.wait(seconds)
        assert self.seen == []


@pytest.fixture
def watched():
    made = []

    def make(*arguments, **more):
        made.append(Watched(*arguments, **more))
        return made[-1]

    yield make
    for one in made:
        one.watch.close()


def test_a_stopped_process_is_reported_with_its_evidence(started, watched):
    """Which one it is stands in the reason, and what the kernel says in the evidence."""
    engine = started(ASLEEP, ASLEEP)
    worker = engine.known[1].process.pid
    os.kill(worker, signal.SIGSTOP)
    silence = watched(engine).first()
    assert silence.role is Role.ENGINE_WORKER
    assert silence.why == f"engine_worker process {worker} is stopped (T)"
    assert (worker, "T") in silence.states
    assert any("state T" in line for line in silence.evidence)
    assert silence.why in str(silence)


def test_an_engine_that_is_frozen_again_and_again_keeps_its_settings(started, watched):
    """From the kernel's T to the remedy: nothing that the engine is built with avoids a SIGSTOP."""
    engine, policy, state = started(ASLEEP, ASLEEP), GuardPolicy(), EngineState()
    os.kill(engine.known[0].process.pid, signal.SIGSTOP)
    found = diagnose(Fault(silence=watched(engine).first()))
    assert found.signature == "engine.frozen"
    for freeze in range(policy.engine_budget.max_restarts):
        event = Failed(diagnosis=found, now=1_000.0 + 30.0 * freeze)
        state, decision = handle(state, event, policy)
        assert (decision.remedy.action, state.applied) == (Action.RESTART_ENGINE, ())
    _, decision = handle(state, replace(event, now=1_200.0), policy)
    assert decision.remedy.action is Action.GIVE_UP


def test_a_frozen_process_is_known_by_its_state_where_no_stack_can_be_read(started, watched, monkeypatch):
    """The kernel's letter is enough to tell it from a hang that a setting might avoid."""
    monkeypatch.setattr(silence, "read_stacks", None)
    engine = started(ASLEEP)
    os.kill(engine.known[0].process.pid, signal.SIGSTOP)
    assert diagnose(Fault(silence=watched(engine).first())).signature == "engine.frozen"


def test_an_idle_engine_with_work_is_reported_and_once_for_each_limit(started, watched):
    """The supervisor hears of it again only if nothing came of it."""
    began = time.monotonic()
    watching = watched(started(ASLEEP, ASLEEP))
    assert watching.first().silent_s >= POLICY.hang_idle_s
    assert time.monotonic() - began >= POLICY.hang_idle_s
    assert len(watching.seen) == 1


def test_an_engine_without_work_or_with_progress_is_left_alone(started, watched):
    """Stopped or idle: nobody waits for it."""
    engine = started(ASLEEP)
    engine.now = Progress(turns=3)
    os.kill(engine.known[0].process.pid, signal.SIGSTOP)
    watching = watched(engine)
    watching.none_for(2.0)
    os.kill(engine.known[0].process.pid, signal.SIGCONT)
    engine.now = Progress(turns=3, running=("a",))
    for _ in range(15):
        engine.step()
        watching.none_for(0.25)


@pytest.mark.parametrize(
    "away",
    [{"asked": 1}, {"paused": True}, {"unread": 3}],
    ids=["a weight push", "paused by its owner", "its answers are not read"],
)
def test_who_is_not_to_blame_is_left_alone(started, watched, away):
    """Longer than each limit."""
    engine = started(ASLEEP)
    engine.now = replace(engine.now, **away)
    watching = watched(engine)
    watching.none_for(POLICY.hang_busy_s + 1.0)
    engine.now = replace(engine.now, asked=0, paused=False, unread=0)
    assert watching.first() is not None


def test_a_compiler_that_a_worker_started_works_for_the_engine(started, watched):
    """The worker sleeps and waits for it; what it burns is the engine's."""
    policy = replace(POLICY, hang_busy_s=60.0)
    watching = watched(started(COMPILES), policy=policy)
    watching.none_for(3 * POLICY.hang_idle_s)


def test_a_compile_in_the_stacks_excuses_the_silence(started, watched, monkeypatch):
    """Until the limit of those who compute."""
    policy = replace(POLICY, hang_busy_s=7.0)
    place = CodePlace("compile_fx", "/x/torch/_inductor/compile_fx.py", 1)

    def stacks(processes, **_):
        return tuple(Stack(pid=p.pid, threads=(Thread("MainThread", (place,)),)) for p in processes)

    monkeypatch.setattr(silence, "read_stacks", stacks)
    found = watched(started(ASLEEP), policy=policy).first()
    assert found.silent_s >= policy.hang_busy_s


def test_a_hang_is_reported_without_evidence_if_that_fails(started, watched, monkeypatch):
    """Never worse: the failure is counted, the verdict stands."""

    def broken(*_, **__):
        raise RuntimeError("no stacks today")

    monkeypatch.setattr(silence, "read_stacks", broken)
    before = TALLY.guard_errors["stacks"]
    found = watched(started(ASLEEP)).first()
    assert (found.why, len(found.evidence)) == ("", 1)
    assert TALLY.guard_errors["stacks"] > before


def test_an_engine_that_comes_back_while_it_is_looked_at_is_left_alone(started, watched, monkeypatch):
    """A verdict is only told if it still holds when the evidence is there."""
    engine = started(ASLEEP)
    looked = []

    def slow(processes, **_):
        looked.append(1)
        engine.step()
        return ()

    monkeypatch.setattr(silence, "read_stacks", slow)
    watching = watched(engine)
    watching.none_for(2 * POLICY.hang_idle_s + 1.0)
    assert looked


def test_a_blocked_loop_is_said_once_and_is_no_failure(started, watched, monkeypatch):
    """With the line that blocks it; the engine may be as silent as it likes."""
    monkeypatch.setattr(blocked_loop, "LATE_S", 0.9)
    told = []
    engine, loop = started(ASLEEP), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    engine.reads_on = loop
    watching = watched(engine, around=Surroundings(target="Rollout", write=lambda i: told.append(i) or True))

    def users_reward():
        threading.Event().wait(5.0)

    try:
        for _ in range(2):
            engine.step()
            free = threading.Event()
            loop.call_soon_threadsafe(users_reward)
            loop.call_soon_threadsafe(free.set)
            assert free.wait(60)
            engine.step()
        assert watching.seen == []
        (incident,) = told
        assert (incident.kind, incident.scope, incident.target) == ("user_code", "code", "Rollout")
        assert "users_reward" in incident.cause
        assert "test_watch.py" in incident.cause
        assert watching.first() is not None  # with the loop free again, its silence counts
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


# -- what vLLM's frontend knows


class Core:
    """The client of a core, as far as it is asked."""

    def __init__(self):
        self.utility_results, self.outputs_queue = {}, SimpleNamespace(qsize=lambda: 2)
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=64))

    def pause_scheduler(self, mode="abort"):
        return mode

    def resume_scheduler(self):
        return True

    def wake_up(self, tags=None):
        return tags


def client(**tokens):
    def state(count):
        detokenizer = SimpleNamespace(num_output_tokens=lambda: count)
        return SimpleNamespace(detokenizer=detokenizer, prompt_len=100)

    return SimpleNamespace(
        processor=SimpleNamespace(request_states={name: state(n) for name, n in tokens.items()})
    )


def test_requests_begin_until_this_core_has_sent_a_token():
    """Those that were carried over have older ones."""
    doing, running = CoreActivity(Core()), Progress(running=("old", "new"))
    assert doing.add_to(replace(running, running=("old",)), client(old=5)).beginning == 1
    assert doing.add_to(running, client(old=5, new=0)).beginning == 2
    assert doing.add_to(running, client(old=6, new=0)).beginning == 1
    assert doing.add_to(running, client(old=6, new=1)).beginning == 0


def test_what_may_be_computed_in_silence_is_a_step_or_a_prompt():
    """While others decode each step brings them a token; with nobody else, a whole prompt brings nothing."""
    doing, running = CoreActivity(Core()), Progress(running=("a", "b", "c"))
    nobody_yet = doing.add_to(running, client(a=0, b=0, c=0))
    assert (nobody_yet.ahead, nobody_yet.computed) == (164, 0)
    others_decode = doing.add_to(running, client(a=1, b=0, c=0))
    assert (others_decode.ahead, others_decode.computed) == (64, 100)
    all_begun = doing.add_to(running, client(a=2, b=1, c=1))
    assert (all_begun.ahead, all_begun.computed) == (0, 300)


def test_calls_and_pauses_are_seen_as_they_pass():
    """A wake-up of the weights alone leaves the scheduler asleep."""
    core = Core()
    doing = CoreActivity(core)
    core.utility_results = {
        1: SimpleNamespace(done=lambda: False),
        2: SimpleNamespace(done=lambda: True),
    }
    now = doing.add_to(Progress(), client())
    assert (now.asked, now.unread, now.paused) == (1, 2, False)
    assert core.pause_scheduler(mode="keep") == "keep"
    assert doing.add_to(Progress(), client()).paused
    core.wake_up(tags=["weights"])
    assert doing.add_to(Progress(), client()).paused
    core.wake_up(tags=["kv_cache"])
    assert not doing.add_to(Progress(), client()).paused
    core.pause_scheduler()
    core.resume_scheduler()
    assert not doing.add_to(Progress(), client()).paused


def test_a_vllm_with_other_books_is_watched_with_less():
    """Nothing is known then, and nothing fails."""
    progress = Progress(turns=3, running=("a",))
    assert CoreActivity(object()).add_to(progress, client(a=1)) == progress


def test_requests_that_wait_for_a_paused_engine_are_told_and_no_hang(started, watched, caplog, monkeypatch):
    """Once for each pause: its owner may have forgotten it."""
    monkeypatch.setattr(watch_module, "_FORGOTTEN_S", 1.0)
    engine = started(ASLEEP)
    engine.now = replace(engine.now, paused=True)
    paused = Standing(state="paused", call="pause_scheduler(mode='keep')", since=time.monotonic())
    engine.standing = lambda: paused
    one = watched(engine)
    one.none_for(3.0)
    told = [line for line in caplog.messages if "requests wait for an engine" in line]
    assert len(told) == 1
    assert "2 requests wait for an engine that is paused since pause_scheduler(mode='keep')" in told[0]
    assert one.watch._tally.standing == "paused"
