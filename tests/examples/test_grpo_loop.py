"""The loop waits for nobody but whom it is about to hit: training goes on with the engines that serve."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from examples.grpo.history import History
from examples.grpo.loop import Loop
from examples.grpo.observer import Observer
from examples.grpo.rollout import Rollouts
from examples.grpo.samples import PromptSource
from rayguard.testing.injector import PlannedFault, What


def done(value):
    future = Future()
    future.set_result(value)
    return future


class FakeRollouts:
    """Two rollouts; ``away`` are not there, and come back when they are asked for the third time."""

    def __init__(self, said):
        self.said, self.away, self.asked = said, set(), 0

    def wait_ready(self):
        self.said.append("wait for all")

    def serves(self, number):
        self.asked += 1
        if self.asked > 2:
            self.away.discard(number)
        return number not in self.away

    def sample(self, requests):
        self.said.append("sample")
        return [done(request) for request in requests]

    def read(self, _answers, _requests):
        return []

    def push(self):
        self.said.append("push")
        return "update-1"


class FakeDisturbance:
    """Hits rollout 0 in step 3."""

    def __init__(self, said):
        self.said = said
        fault = PlannedFault(step=3, target=0, what=What.KILL_CORE, after_tokens=1)
        self.injector = SimpleNamespace(due=lambda step: [fault] if step == 3 else [])

    def prepare(self, step):
        self.said.append(f"aim {step}")

    def shape(self, requests):
        return requests

    def strike(self, _step):
        pass

    def settle(self):
        pass


class QuietObserver(Observer):
    """Looks at nothing."""

    def __init__(self):
        self.looked = 0

    def look(self, *, now=False):
        self.looked += 1


@pytest.fixture
def loop():
    said = []
    metrics = SimpleNamespace(reward=0.5, logp_diff=0.0)
    trained = SimpleNamespace(future=lambda: done(metrics))
    return Loop(
        cast=SimpleNamespace(rollouts=FakeRollouts(said), train=lambda _samples: trained.future()),
        prompts=PromptSource(encode=lambda text: list(text.encode())),
        observer=QuietObserver(),
        disturbance=FakeDisturbance(said),
        history=History(steps_planned=4, started_at=0.0, guarded=True),
    )


def test_a_step_goes_on_while_a_rollout_is_away(loop):
    """Only before the first step and after the last one the whole pool is waited for."""
    said = loop.disturbance.said
    loop.start()
    loop.cast.rollouts.away = {0}
    loop.step(0)
    loop.finish()
    assert said == ["wait for all", "push", "aim 0", "sample", "push", "wait for all"]
    assert [step.number for step in loop.history.steps] == [0]


def test_only_who_is_to_be_hit_is_waited_for(loop):
    """A blow at one that is away would show nothing; that another one is away is no reason to wait."""
    loop.cast.rollouts.away = {1}
    loop.step(3)
    assert loop.cast.rollouts.asked == 1
    loop.cast.rollouts.away, loop.cast.rollouts.asked = {0}, 0
    loop.step(3)
    assert loop.cast.rollouts.asked == 3


def test_a_rollout_serves_when_its_pool_says_so():
    """One that is built, fenced, or replaced under another name does not."""
    rollouts = Rollouts.__new__(Rollouts)
    rollouts.names = ("rollout-0", "rollout-1", "rollout-2")
    engines = {"rollout-0": {"state": "serving"}, "rollout-1": {"state": "fenced"}}
    rollouts.pool = SimpleNamespace(status=lambda: {"engines": engines})
    assert [rollouts.serves(number) for number in range(3)] == [True, False, False]


def test_looking_around_ends_in_time():
    """One that never comes back does not hold the run for ever: the verdict tells of it."""
    assert not QuietObserver().until(lambda: False, deadline_s=0.2)
    assert QuietObserver().until(lambda: True, deadline_s=0.0)
