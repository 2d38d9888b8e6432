"""How many workers are asked for, and what an actor is hired with that has some."""

import pytest

import rayguard
from rayguard.pool.actors.spares import Spares, with_imports
from rayguard.preloading.runtime_env import preloads_later


class Clock:
    """Seconds, set by hand."""

    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_one_is_asked_for_once_and_again_when_it_was_taken(clock):
    """By a process that is younger than the question, as all of them are."""
    spares = Spares(1, clock=clock)
    assert spares.missing("node", age_s=20.0) == 1, "the first actor is ready"
    clock.now += 5
    assert spares.missing("node", age_s=24.0) == 0, "the second began before there was one"
    clock.now += 100
    assert spares.missing("node", age_s=104.5) == 1, "a life that began in it"
    clock.now += 50
    assert spares.missing("node", age_s=0.5) == 1, (
        "a life that began later: it was gone, or was not there in time"
    )


def test_a_death_right_after_the_question_takes_none(clock):
    """It has not started: another process was started beside it."""
    spares = Spares(1, clock=clock)
    spares.missing("node", age_s=20.0)
    clock.now += 1.5
    assert spares.missing("node", age_s=1.0) == 0


def test_each_node_has_its_own(clock):
    spares = Spares(2, clock=clock)
    assert [spares.missing(node, age_s=9.0) for node in ("one", "other", "one", "")] == [2, 2, 0, 0]
    clock.now += 60
    assert spares.missing("one", age_s=59.0) == 1


def test_what_an_earlier_life_of_the_owner_left_is_not_asked_for_again(clock):
    """An actor takes one of those at most."""
    spares = Spares(3, some_left=True, clock=clock)
    assert [spares.missing("node", age_s=1.0) for _ in range(5)] == [1, 1, 1, 0, 0]


def test_without_spares_nothing_is_asked_for(clock):
    assert Spares(0, clock=clock).missing("node", age_s=9.0) == 0


OPTIONS = {"num_gpus": 1, "runtime_env": {"env_vars": {"MINE": "1"}}}


def test_actors_with_spares_begin_with_vllm_imported():
    chosen = with_imports(OPTIONS, {}, spares=1)
    assert chosen["runtime_env"] == rayguard.preloaded("vllm", runtime_env={"env_vars": {"MINE": "1"}})
    assert chosen["num_gpus"] == 1


def test_without_spares_next_lives_do():
    chosen = with_imports(OPTIONS, {}, spares=0)
    assert chosen["runtime_env"]["env_vars"] == {"MINE": "1"}
    assert preloads_later(chosen["runtime_env"]["py_executable"])
    assert not preloads_later(rayguard.preloaded("vllm")["py_executable"])


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize(
    "another", [{"py_executable": "python3"}, {"pip": ["torch"]}, {"uv": ["torch"]}, {"_nsight": "default"}]
)
def test_users_who_say_how_their_python_is_started_keep_it(another, spares):
    """For the actors, or around all that the job or the owner starts."""
    own = {"runtime_env": dict(another)}
    assert with_imports(own, {}, spares=spares) == own
    assert with_imports({}, another, spares=spares) == {}


def test_whether_next_lives_are_forked_is_yes_or_no():
    with pytest.raises(rayguard.errors.ConfigError, match=r"PoolPolicy\.preload must be a bool, got 1"):
        rayguard.PoolPolicy(preload=1)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1"])
def test_a_number_of_spares_that_is_none_is_refused(wrong):
    with pytest.raises(
        rayguard.errors.ConfigError, match=r"PoolPolicy\.spares must be a whole number from 0"
    ):
        rayguard.PoolPolicy(spares=wrong)
