"""Which engine is slow, compared by the token."""

from rayguard.pool.engine_speed import EngineSpeed


def fed(pace, name, s_per_token, running, until_s=10):
    """Let ``name`` generate at its pace, with ``running`` sequences at once."""
    tokens = 0.0
    for step in range(until_s * 4):
        tokens += 0.25 * running / s_per_token
        pace.see(name, step * 0.25, int(tokens), running)


def test_load_does_not_make_an_engine_look_slow():
    """Eight sequences share the steps, each gets a token in each."""
    pace = EngineSpeed()
    fed(pace, "few", 0.01, 2)
    fed(pace, "many", 0.01, 64)
    fed(pace, "slow", 0.05, 8)
    slowness = pace.slowness()
    assert abs(slowness["few"] - slowness["many"]) < 0.05
    assert 4.5 < slowness["slow"] < 5.5


def test_one_engine_is_compared_with_nothing():
    """And one that begins anew is not judged by its past."""
    pace = EngineSpeed()
    fed(pace, "a", 0.5, 4)
    assert pace.slowness() == {"a": 1.0}
    fed(pace, "b", 0.01, 4)
    pace.forget("a")
    assert pace.slowness() == {"b": 1.0}
