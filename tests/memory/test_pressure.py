"""How full is too full: thresholds that make sense, levels that do not flap."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.errors import ConfigError
from rayguard.memory.pressure import (
    DEFAULTS,
    RAY_KILLS_AT,
    Pressure,
    Thresholds,
    below_ray,
    defaults,
    pressure,
)
from rayguard.memory.reading import Quantity, Reading

shares = st.floats(0, 2)
thresholds = st.tuples(st.floats(0.1, 0.99), st.floats(0.1, 0.99), st.floats(0, 0.09)).filter(
    lambda each: each[2] < min(each[0], each[1] - each[0])
)


def reading(used: int, limit: int | None = 1000, quantity: Quantity = Quantity.NODE) -> Reading:
    return Reading(quantity=quantity, used=used, limit=limit)


def test_levels_are_ordered():
    """HARD is more than SOFT is more than OK."""
    assert Pressure.OK < Pressure.SOFT < Pressure.HARD


def test_the_node_is_hard_before_ray_kills():
    """Whatever Ray's threshold, there is room between HARD and the kill, and between SOFT and HARD."""
    for share in (0.1, 0.2, 0.35, 0.5, 0.9, 0.95, 1.0):
        found = below_ray(share)
        assert found.soft < found.hard < share
    assert below_ray() == Thresholds(soft=RAY_KILLS_AT - 0.03 - 0.10, hard=RAY_KILLS_AT - 0.03)


@pytest.mark.parametrize(
    ("soft", "hard", "slack", "says"),
    [
        (0.9, 0.8, 0.01, "soft must be below hard"),
        (0.8, 0.8, 0.01, "soft must be below hard"),
        (0.8, 1.2, 0.03, "hard must be a share"),
        (-0.1, 0.9, 0.03, "soft must be a share"),
        (math.nan, 0.9, 0.03, "soft must be a share"),
        (0.8, math.inf, 0.03, "hard must be a share"),
        ("0.8", 0.9, 0.03, "soft must be a share"),
        (True, 0.9, 0.03, "soft must be a share"),
        (85, 95, 3, "soft must be a share"),
        (0.8, 0.9, 0.2, "could never be left"),
        (0.0, 0.9, 0.0, "could never be left"),
    ],
)
def test_thresholds_that_mean_nothing_are_refused_with_a_sentence(soft, hard, slack, says):
    """Percent for shares, the wrong order, no number, a level that nothing could leave."""
    with pytest.raises(ConfigError, match=says):
        Thresholds(soft=soft, hard=hard, slack=slack)


@pytest.mark.parametrize("share", [0.0, 0.05, 1.5, math.nan, "0.9", None])
def test_a_threshold_of_ray_that_leaves_no_room_is_refused(share):
    """With 0.05 Ray would kill before anything could be done."""
    with pytest.raises(ConfigError, match="memory_usage_threshold"):
        below_ray(share)


def test_what_has_no_limit_is_never_short():
    """A limit of None or 0 says nothing."""
    assert pressure(reading(10**15, None), Thresholds()) is Pressure.OK
    assert pressure(reading(10**15, 0), Thresholds()) is Pressure.OK


def test_every_quantity_has_thresholds():
    """The node's are below Ray's, a disk's below where Ray stops to spill."""
    assert all(isinstance(defaults(quantity), Thresholds) for quantity in Quantity)
    assert below_ray().hard < RAY_KILLS_AT
    assert DEFAULTS[Quantity.DISK].hard < RAY_KILLS_AT


def test_up_at_the_threshold_and_down_only_well_below_it():
    """A course over both thresholds and back."""
    bounds, level, seen = Thresholds(soft=0.8, hard=0.9, slack=0.05), Pressure.OK, []
    for used in (799, 800, 770, 749, 899, 900, 860, 849, 760, 740):
        level = pressure(reading(used), bounds, level)
        seen.append(level.name)
    assert seen == ["OK", "SOFT", "SOFT", "OK", "SOFT", "HARD", "HARD", "SOFT", "SOFT", "OK"]


@given(thresholds, st.sampled_from(Pressure), shares, shares)
def test_more_in_use_is_never_less_pressure(bounds, before, one, other):
    """Whatever the level before."""
    found = Thresholds(soft=bounds[0], hard=bounds[1], slack=bounds[2])
    low, high = sorted((one, other))
    assert found.level(low, before) <= found.level(high, before)


@given(thresholds, shares, st.sampled_from(Pressure))
def test_a_level_is_stable(bounds, share, before):
    """The same reading again changes nothing: no flapping."""
    found = Thresholds(soft=bounds[0], hard=bounds[1], slack=bounds[2])
    level = found.level(share, before)
    assert found.level(share, level) == level


@given(thresholds, st.floats(0, 1), st.lists(st.floats(-1, 1), min_size=2, max_size=50))
def test_what_trembles_by_less_than_the_slack_changes_level_once_at_most(bounds, middle, trembles):
    """Each way between two levels is further than the slack."""
    found = Thresholds(soft=bounds[0], hard=bounds[1], slack=bounds[2])
    level, levels = Pressure.OK, []
    for each in trembles:
        level = found.level(middle + each * found.slack * 0.49, level)
        levels.append(level)
    assert levels == sorted(levels)
