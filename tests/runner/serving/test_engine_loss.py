"""Whether an engine is taken for gone: stories of processes, second by second."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.faults.diagnosis import Diagnosis, Kind, Scope
from rayguard.process.identity import ProcessId
from rayguard.runner.serving.engine_loss import EngineLoss, LivingProcess, ProcessEnd
from rayguard.runner.serving.found import GONE, SILENT, NotServing
from rayguard.runner.serving.patience import ServingPatience

PATIENCE = ServingPatience()
KILLED, IN_ORDER, NOBODY_KNOWS = ProcessEnd(-signal.SIGKILL), ProcessEnd(0), ProcessEnd()
CORE, WORKER = "VLLM::EngineCore", "VLLM::Worker_TP0"


def who(number):
    return ProcessId(number, number)


LEADER = who(1)
SERVER = {LEADER: LivingProcess(None)}


class ServerStory:
    """A server whose processes come and go while a clock runs."""

    def __init__(self, *, replaces=False, served=True):
        self.served = served
        self.loss = EngineLoss(LEADER, PATIENCE, replaces=replaces)
        self.living, self.ends, self.now = dict(SERVER), {}, 0.0

    def comes(self, number, title="", parent=1):
        self.living[who(number)] = LivingProcess(who(parent), title)
        return self

    def goes(self, number, end=KILLED):
        del self.living[who(number)]
        self.ends[who(number)] = end
        return self

    def after(self, seconds, step=2.0):
        """Look every ``step`` seconds; return what was found first."""
        until = self.now + seconds
        while self.now < until:
            self.now += step
            needed = self.loss.needed(self.living, self.now)
            ends = {one: self.ends[one] for one in needed if one in self.ends}
            found = self.loss.judge(self.living, ends, self.now, served=self.served)
            if found is not None:
                return found
        return None


def served(*titles, **more):
    """A server with an engine for each title, for a while."""
    story = ServerStory(**more)
    for number, title in enumerate(titles, start=10):
        story.comes(number, title)
    assert story.after(600) is None
    return story


def test_a_killed_engine_of_a_server_that_lives_on_is_gone_within_ten_seconds():
    """A client that got an error waits 15 s for the server to go."""
    story = served(CORE).goes(10)
    found = story.after(12)
    assert story.now - 600 <= 12
    assert found.signature == GONE
    assert "VLLM::EngineCore (process 10) was ended by SIGKILL" in found.cause


@pytest.mark.parametrize("end", [IN_ORDER, NOBODY_KNOWS, ProcessEnd(-signal.SIGTERM)])
def test_an_engine_that_may_have_ended_in_order_is_waited_for_longer(end):
    """The server may be ending too, or make a new one."""
    story = served(CORE).goes(10, end)
    assert story.after(50) is None
    assert story.after(20) is not None


def test_a_start_that_fails_has_longer_to_end_by_itself():
    """And to say why: what it says then is the reason."""
    story = served(CORE, served=False).goes(10, ProcessEnd(1))
    assert story.after(50) is None
    assert story.after(20) is not None


def test_a_worker_between_server_and_engine_counts_without_a_title():
    """What ms-swift calls llm_worker: its engine goes to another parent when it dies."""
    story = ServerStory().comes(5).comes(10, CORE, parent=5)
    assert story.after(100) is None
    found = story.goes(5).goes(10, NOBODY_KNOWS).after(12)
    assert "the parent of VLLM::EngineCore (process 5) was ended by SIGKILL" in found.cause


def test_an_engine_that_ended_for_its_worker_names_the_worker_too():
    """The first to go is the reason."""
    story = ServerStory().comes(5).comes(10, CORE, parent=5).comes(11, WORKER, parent=10)
    assert story.after(100) is None
    story.goes(11)
    assert story.after(2) is None
    found = story.goes(10, ProcessEnd(1)).after(20)
    assert "exit code 1" in found.cause
    assert "VLLM::Worker_TP0 (process 11) was ended by SIGKILL" in found.evidence[0]


def test_helpers_may_come_and_go():
    """Trackers, compilers, tokenizers: nothing of vLLM's title."""
    story = served(CORE).comes(20).comes(21)
    assert story.after(10) is None
    assert story.goes(20).goes(21, KILLED).after(600) is None


def test_a_server_that_makes_a_new_engine_is_left_alone():
    """At once, or within the time it has."""
    story = served(CORE).goes(10)
    assert story.comes(20, CORE).after(600) is None
    assert story.goes(20).after(6) is None
    assert story.comes(21, CORE).after(600) is None


def test_a_server_that_nobody_knows_has_longer_to_make_a_new_engine():
    """It may wait a while before it does."""
    story = served(CORE, replaces=True).goes(10)
    assert story.after(50) is None
    assert story.comes(20, CORE).after(600) is None
    assert story.goes(20).after(70) is not None


def test_fewer_engines_than_before_are_the_server_s_own_affair():
    """It scales down, or goes on without one: it knows of it, since it has asked how it ended."""
    story = served(CORE, CORE, CORE).goes(10, IN_ORDER).goes(11, KILLED)
    assert story.after(600) is None
    assert story.goes(12, KILLED).after(12) is not None


def test_a_crash_that_the_server_does_not_even_notice_is_none_of_them():
    """A zombie: half of the requests fail, for ever."""
    story = served(CORE, CORE).goes(10, ProcessEnd(-signal.SIGKILL, unnoticed=True))
    assert "SIGKILL" in story.after(12).cause
    story = served(CORE, CORE).goes(10, ProcessEnd(-signal.SIGTERM, unnoticed=True))
    assert story.after(600) is None


def test_a_server_without_an_engine_process_is_never_judged():
    """Its engine may be in its own process, or on another machine."""
    assert ServerStory().comes(5).after(600) is None
    assert ServerStory().comes(5).goes(5).after(600) is None


def test_a_process_that_could_not_be_read_once_is_not_lost():
    """It is there at the next look."""
    story = served(CORE)
    del story.living[who(10)]
    assert story.after(2) is None
    assert story.comes(10, CORE).after(600) is None


STEPS = st.lists(
    st.tuples(st.integers(10, 14), st.sampled_from([KILLED, IN_ORDER, NOBODY_KNOWS])), max_size=20
)


@given(STEPS, st.floats(0.5, 7.0))
def test_whoever_always_has_a_noticed_engine_is_never_ended(steps, pause):
    """Engines of one parent come and go in any order, as long as one is there."""
    story = served(CORE)
    number = 100
    for at, end in steps:
        number += 1
        story.comes(number, CORE)
        gone = [one for one in story.living if one != LEADER and one.pid != number]
        if gone:
            story.goes(gone[at % len(gone)].pid, end)
        assert story.after(pause, step=pause) is None


LOG = Diagnosis(signature="s", kind=Kind.CUDA_OOM, scope=Scope.ENGINE, cause="out of memory", confidence=0.9)


def test_what_the_log_names_as_the_reason_is_the_reason():
    """Where it names one, for sure; of silence it cannot."""
    gone, silent = NotServing(GONE, "gone"), NotServing(SILENT, "silent")
    assert gone.diagnosis(LOG) is LOG
    assert silent.diagnosis(LOG).kind is Kind.ENGINE_HANG
    for kind, scope, confidence in [
        (Kind.ENGINE_INTERNAL_ERROR, Scope.ENGINE, 0.9),
        (Kind.ACTOR_DIED, Scope.PROCESS, 0.9),
        (Kind.REQUEST_INVALID, Scope.REQUEST, 0.95),
        (Kind.CUDA_OOM, Scope.ENGINE, 0.6),
        (Kind.UNKNOWN, Scope.UNKNOWN, 0.0),
    ]:
        of_log = Diagnosis(signature="s", kind=kind, scope=scope, cause="c", confidence=confidence)
        assert gone.diagnosis(of_log).signature == GONE
