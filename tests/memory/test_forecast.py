"""What runs out, and when: proven growth is foretold, and all that only looks like it is left in peace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayguard.errors import ConfigError
from rayguard.memory.forecast import Horizon, Trend
from rayguard.memory.history import Lows
from rayguard.memory.reading import Quantity
from tests.benchmarks.memory import bench_forecast
from tests.benchmarks.memory.traces import all_kinds, trace

GB, MB = 1e9, 1e6
LOOKS = 4  # in each step
ANY = Horizon(seconds=1e12, steps=1e12)


def fed(course, steps=60, step_s=30.0, trend=None, stepless=False) -> Trend:
    """Return a trend that has seen ``course(step, part of the step)`` in bytes."""
    trend = trend or Trend(Quantity.PRIVATE)
    for look in range(steps * LOOKS):
        step, part = divmod(look, LOOKS)
        trend.add(look * step_s / LOOKS, -1 if stepless else step - 1, course(step, part / LOOKS))
    return trend


def leaking(step, _part=0.0):
    return 10 * GB + step * 100 * MB


def test_a_straight_leak_is_foretold_about_right():
    """100 MB a step, 5 steps of 30 s before the limit."""
    found = fed(leaking).forecast(leaking(64))
    assert found.in_steps == pytest.approx(5, abs=0.6)
    assert found.in_s == pytest.approx(150, abs=25)
    assert found.slope_per_step == pytest.approx(100 * MB, rel=0.03)
    assert found.slope_per_s == pytest.approx(100 * MB / 30, rel=0.03)
    assert (found.quantity, found.since_step) == (Quantity.PRIVATE, 0)
    assert 0.5 < found.confidence <= 1
    assert found.sentence().startswith(
        "private grows 98 MB a step since step 0; at this pace it reaches 16.4 GB in 130 s ("
    )


def test_more_seen_makes_it_surer():
    """Of the same growth, with the same way left."""
    few, many = fed(leaking, 8), fed(leaking, 60)
    few, many = few.forecast(leaking(9), ANY), many.forecast(leaking(61), ANY)
    assert few.confidence < many.confidence


def test_a_leak_in_something_without_steps_is_foretold_in_seconds():
    """An engine over half an hour: no steps are made up for it."""
    found = fed(leaking, stepless=True).forecast(leaking(64))
    assert (found.in_steps, found.slope_per_step, found.since_step) == (None, None, -1)
    assert found.in_s == pytest.approx(150, abs=25)
    assert "a minute" in found.sentence()


def test_a_leak_under_garbage_activations_evaluations_and_a_dip_is_foretold():
    """What comes and goes hides nothing, and the limit is met by the highest of it."""

    def course(step, part):
        garbage, evaluation = step % 5 * 150 * MB, (500 * MB if step % 11 == 10 else 0)
        dip = -2 * GB if step == 33 else 0
        return leaking(step) + part * 2 * GB + garbage + evaluation + dip

    found = fed(course).forecast(leaking(64) + 2 * GB + 600 * MB)
    assert found.slope_per_step == pytest.approx(100 * MB, rel=0.15)
    assert 0 <= found.in_steps < 8


def test_a_leak_that_begins_late_is_told_from_the_step_on_that_it_began():
    """Flat for 100 steps first."""
    found = fed(lambda step, _: leaking(max(0, step - 100)), 140).forecast(leaking(43))
    assert found.since_step == pytest.approx(99, abs=6)
    assert found.slope_per_step == pytest.approx(100 * MB, rel=0.1)


LOOK_ALIKES = {
    "flat": lambda step, part: 10 * GB,
    "warm-up": lambda step, part: 10 * GB - 5 * GB * math.exp(-step / 2),
    "load in the first step": lambda step, part: 10 * GB if step else part * 10 * GB,
    "logarithmic cache": lambda step, part: 5 * GB + GB * math.log1p(step),
    "cache that fills": lambda step, part: 10 * GB - 5 * GB * math.exp(-step / 15),
    "sawtooth": lambda step, part: 8 * GB + (step + part) % 4 * 0.5 * GB,
    "one jump": lambda step, part: 5 * GB + (4.5 * GB if step > 40 else 0),
    "two jumps": lambda step, part: 5 * GB + 2.2 * GB * ((step > 20) + (step > 40)),
    "evaluations": lambda step, part: 9.7 * GB if step % 10 == 9 else 5 * GB,
    "activations": lambda step, part: 5 * GB + part * 4.7 * GB,
    "lengths that come back": lambda step, part: 5 * GB + 2 * GB * math.sin(step / 9),
    "slow drift far below": lambda step, part: 5 * GB + step * MB,
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_what_looks_like_a_leak_is_left_in_peace_at_every_moment(name):
    """No forecast while it is fed, though all of them come near to the limit."""
    trend, course = Trend(Quantity.PRIVATE), LOOK_ALIKES[name]
    for look in range(100 * LOOKS):
        step, part = divmod(look, LOOKS)
        trend.add(look * 5.0, step - 1, course(step, part / LOOKS))
        assert trend.forecast(10.4 * GB) is None, step


def test_slow_growth_far_from_the_limit_is_no_forecast():
    """Nothing is foretold for the day after tomorrow."""
    assert fed(leaking).forecast(1000 * GB) is None


def test_the_first_steps_prove_nothing():
    """Four of them could be warm-up."""
    assert fed(leaking, 4).forecast(leaking(5)) is None
    assert Trend(Quantity.NODE).forecast(10) is None


def test_what_came_back_before_is_not_foretold_the_second_time():
    """A collector that comes every 12 steps: nobody can tell in the first tooth, in the others one can."""
    trend, told = Trend(Quantity.PRIVATE), []
    for step in range(60):
        trend.add(step * 30.0, step, 5 * GB + step % 12 * 0.25 * GB)
        told += [step] if trend.forecast(8.2 * GB) else []
    assert told
    assert max(told) < 12


def test_what_stopped_is_not_foretold_any_more():
    """Twenty steps of growth, then six of rest."""
    stopped = [leaking(min(step, 20)) for step in range(27)]
    trend = Trend(Quantity.PRIVATE)
    for step, used in enumerate(stopped):
        trend.add(step * 30.0, step, used)
    assert trend.forecast(leaking(22)) is None


def test_the_horizon_is_the_users():
    """Near enough in seconds or in steps; a horizon that is not ahead is refused."""
    trend = fed(leaking)
    assert trend.forecast(leaking(64), Horizon(seconds=10, steps=1)) is None
    assert trend.forecast(leaking(64), Horizon(seconds=10, steps=6)) is not None
    assert trend.forecast(leaking(64), Horizon(seconds=200, steps=0)) is not None
    for seconds, steps in ((-1, 5), (math.nan, 5), (0, 0)):
        with pytest.raises(ConfigError, match="horizon"):
            Horizon(seconds=seconds, steps=steps)


def test_a_counter_that_begins_anew_is_another_life():
    """What the process before had grown by is not held against this one."""
    trend = fed(leaking)
    trend.add(60 * 30.0, 0, leaking(0))
    assert trend.forecast(leaking(64)) is None
    trend = fed(leaking)
    trend.forget()
    assert trend.forecast(leaking(64)) is None


def test_what_was_recycled_may_leak_again_and_is_foretold_again():
    """The same trend through a forgetting."""
    trend = fed(leaking)
    trend.forget()
    for look in range(60 * LOOKS):
        trend.add(1800 + look * 7.5, 60 + look // LOOKS, leaking(look // LOOKS))
    assert trend.forecast(leaking(63)) is not None


numbers = st.one_of(
    st.floats(), st.integers(-(10**12), 10**15), st.sampled_from([math.nan, math.inf, -math.inf, -1.0])
)


@given(st.lists(st.tuples(numbers, st.integers(-3, 10**9), numbers), max_size=300), numbers)
@settings(max_examples=60)
def test_nothing_makes_it_raise(points, limit):
    """Not a number, out of order, negative, huge."""
    trend = Trend(Quantity.PRIVATE)
    for at, step, used in points:
        trend.add(at, step, used)
    trend.forecast(limit)


courses = st.builds(
    lambda seed, kind: trace(kind, seed),
    st.integers(0, 900),
    st.sampled_from([kind for kind in all_kinds() if kind.startswith("leak")]),
)


def near_the_end(points) -> Trend:
    trend = Trend(Quantity.PRIVATE)
    for at, step, used in points:
        trend.add(at, step, used)
    return trend


@given(courses, st.integers(-6, 6), st.integers(0, 40), st.integers(0, 1000))
@settings(max_examples=25)
def test_scale_of_memory_and_origin_of_time_change_nothing(leak, twice, base, later):
    """Twice the bytes, another base, another clock: the same forecast."""
    points = leak.points[: int(len(leak.points) * 0.93)]
    found = near_the_end(points).forecast(leak.limit)
    scale, base = 2.0**twice, base * float(2**30)
    moved = [(at + later, step, used * scale + base) for at, step, used in points]
    other = near_the_end(moved).forecast(leak.limit * scale + base)
    assert (found is None) == (other is None)
    if found is not None:
        assert other.in_s == pytest.approx(found.in_s, rel=1e-3, abs=1e-3)
        assert other.since_step == found.since_step


@given(courses, st.floats(0.5, 1.5), st.floats(0.5, 1.5))
@settings(max_examples=25)
def test_a_nearer_limit_is_reached_sooner_and_never_less_foreseen(leak, one, other):
    """More room never means less time."""
    trend = near_the_end(leak.points[: int(len(leak.points) * 0.9)])
    near, far = (trend.forecast(leak.limit * share, ANY) for share in sorted((one, other)))
    assert far is None or near.in_s <= far.in_s


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1e15)), min_size=1, max_size=400))
@settings(max_examples=50)
def test_every_look_is_within_its_bins_and_the_newest_ones_are_exact(looks):
    """Joined bins keep the lowest and the highest, and their order."""
    lows, step, steps = Lows(), 0, {}
    for at, (more, used) in enumerate(looks):
        step += more
        lows.add(at, step, used)
        steps.setdefault(step, []).append(used)
    bins = lows.bins()
    assert [each.at for each in bins] == sorted(each.at for each in bins)
    assert min(each.low for each in bins) == min(used for _, used in looks)
    assert max(each.high for each in bins) == max(used for _, used in looks)
    assert (bins[-1].low, bins[-1].high) == (min(steps[step]), max(steps[step]))


def test_memory_stays_bounded_and_reaches_far_back():
    """Any number of looks in 5 KB; what is remembered of them are thousands of steps."""
    trend, lows = Trend(Quantity.PRIVATE), Lows()
    for number in range(50_000):
        lows.add(number, number, number)
    for number in range(20_000):
        trend.add(number, number // 2, number)
    for course in (lows, trend._lows):
        assert sum(level.itemsize * len(level) for level in course._levels) <= 5000
    assert lows.bins()[-1].step - lows.bins()[0].step > 3000


def test_the_benchmark_of_traces_in_short():
    """Every kind once or twice: no bar is far away, and a forecaster that is silent or shouts would not pass."""
    figures = bench_forecast.run(130, 500)
    assert figures["forecast_early_ratio"] >= 0.85
    assert figures["forecast_false_ratio"] <= 0.04


def test_traces_are_the_same_for_the_same_seed():
    """And every leak but a few that pause for long ends at its limit; the others never get there."""
    for kind in all_kinds():
        one = trace(kind, 3)
        assert one == trace(kind, 3)
        assert one.leaks or not one.died, kind
