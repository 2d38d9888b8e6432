"""What is a hang, and what is not."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.process.watchdog import (
    IDLE_CPU_RATIO,
    PACE_FACTOR,
    PAUSE_FACTOR,
    Hang,
    Limits,
    Observation,
    Watchdog,
    judge,
)

LIMITS = Limits(stopped_s=2.0, idle_s=8.0, busy_s=60.0, interval_s=0.5)


def run(observations, limits=LIMITS):
    """Return the verdict after each observation."""
    state, verdicts = None, []
    for seen in observations:
        state, verdict = judge(state, seen, limits)
        verdicts.append(verdict)
    return verdicts


def silence(until_s, *, cores=0.0, states=("S",), start_s=0.0, progress=7, running=3):
    """Observations without progress: ``cores`` in use, every half second."""
    step_s = LIMITS.interval_s
    count = int((until_s - start_s) / step_s) + 1
    return [
        Observation(
            at_s=start_s + n * step_s,
            progress=progress,
            running=running,
            cpu_s=n * step_s * cores,
            states=states,
        )
        for n in range(count)
    ]


def first_hang(observations, limits=LIMITS):
    """Return when the first verdict came, and which."""
    verdicts = zip(observations, run(observations, limits), strict=True)
    return next(((seen.at_s, verdict.hang) for seen, verdict in verdicts if verdict), None)


@pytest.mark.parametrize("letter", ["T", "t"])
def test_a_stopped_process_is_a_hang_soon(letter):
    """One stopped worker stops the engine, whatever the others do."""
    seen = silence(20, cores=1.0, states=("S", letter, "R"))
    assert first_hang(seen) == (2.0, Hang.STOPPED)


def test_an_idle_engine_with_work_is_a_hang_after_a_while():
    """Requests wait and nobody computes."""
    assert first_hang(silence(20)) == (8.0, Hang.IDLE)


def test_a_computing_engine_is_given_time():
    """A long prefill or a compile burns CPU."""
    assert first_hang(silence(59.5, cores=0.9)) is None
    assert first_hang(silence(100, cores=0.9)) == (60.0, Hang.BUSY)


def test_a_trickle_of_cpu_is_idle():
    """Threads that only wake to look around do not compute."""
    assert first_hang(silence(20, cores=IDLE_CPU_RATIO * 0.9)) == (8.0, Hang.IDLE)
    assert first_hang(silence(20, cores=IDLE_CPU_RATIO * 1.1)) is None


def test_no_work_is_no_hang():
    """An engine without requests may do nothing for ever."""
    assert first_hang(silence(500, running=0, states=("T",))) is None


def test_the_clock_starts_with_the_work():
    """Silence before the first request does not count."""
    before = silence(100, running=0)
    after = silence(120, start_s=100.5)
    assert first_hang(before + after) == (108.0, Hang.IDLE)


def test_a_short_stop_in_a_long_prefill_is_no_hang():
    """A profiler stops a process for a moment; the silence is not its doing."""
    seen = [
        Observation(
            at_s=n * 0.5, progress=7, running=1, cpu_s=n * 0.5, states=("t" if 40 <= n < 42 else "R",)
        )
        for n in range(100)
    ]
    assert first_hang(seen) is None


def test_a_paused_observer_starts_again():
    """We were in a debugger for an hour; the engine may have been too."""
    before = silence(7.5, states=("T",))[:3]
    after = silence(3615, start_s=3600.0, states=("T",))
    assert first_hang(before + after) == (3602.0, Hang.STOPPED)


def test_a_clock_that_jumps_back_starts_again():
    """Nothing can be said about a silence of negative length."""
    assert first_hang(silence(7.5, start_s=100)[:5] + silence(7.5)) is None


def test_a_slow_pace_is_learned():
    """An engine that has been slow before is given ten times that."""
    slow = [
        Observation(at_s=n * 0.5, progress=n // 6, running=1, cpu_s=0.0, states=("S",)) for n in range(60)
    ]
    assert first_hang(slow) is None
    last_progress_s = 27.0
    then = silence(100, start_s=30.0, progress=slow[-1].progress)
    at_s, hang = first_hang(slow + then)
    assert hang is Hang.IDLE
    assert at_s - last_progress_s == pytest.approx(PACE_FACTOR * 3.0)


def test_waiting_for_work_is_no_pace():
    """The first token of a request after an idle hour teaches nothing about the engine."""
    idle = silence(3600, running=0)
    first = Observation(at_s=3602.0, progress=8, running=1, cpu_s=0.0)  # ten times that would be 20 s
    then = silence(3700, start_s=3602.5, progress=8)
    assert first_hang([*idle, first, *then]) == (3610.0, Hang.IDLE)


def test_a_pause_of_the_observer_is_no_pace():
    """Progress that came while we looked away says nothing about its speed."""
    before = silence(1.0)
    resumed = Observation(at_s=500.0, progress=8, running=3, cpu_s=0.0)
    then = silence(520, start_s=500.5, progress=8)
    assert first_hang([*before, resumed, *then]) == (508.0, Hang.IDLE)


def test_a_counter_that_falls_is_no_progress():
    """Growth counts, from wherever the counter is now."""
    seen = silence(4.0, progress=100) + silence(20, start_s=4.5, progress=2)
    assert first_hang(seen) == (8.0, Hang.IDLE)


def test_the_verdict_says_what_was_seen():
    """It ends up in an incident that a person reads."""
    (*_, verdict) = run(silence(10, states=("T", "S")))
    assert verdict is not None
    assert str(verdict) == (
        "stopped: no progress for 10.0 s with 3 requests running, 0.00 cores in use, process states T S"
    )


def test_the_watchdog_remembers_for_its_caller():
    """The small object is judge with a memory."""
    dog = Watchdog(2.0, 8.0, 60.0, interval_s=0.5)
    assert [dog.see(seen) for seen in silence(20)] == run(silence(20))


# -- invariants, for any history --------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.one_of(st.floats(0.05, 1.0), st.floats(3.0, 100.0)),  # time passed: regular, or a pause
        st.integers(0, 3),  # progress made
        st.integers(0, 2),  # requests running
        st.floats(0.0, 2.0),  # cores in use
        st.sampled_from([("S",), ("R",), ("T",), ("t", "R"), ()]),
    ),
    max_size=120,
)


@st.composite
def histories(draw):
    """Return what an observer may see, in any order of events."""
    at_s = cpu_s = 0.0
    progress = 0
    seen = [Observation(at_s=0.0, progress=0, running=1, cpu_s=0.0)]
    for passed_s, made, running, cores, states in draw(steps):
        at_s, progress, cpu_s = at_s + passed_s, progress + made, cpu_s + cores * passed_s
        seen.append(Observation(at_s=at_s, progress=progress, running=running, cpu_s=cpu_s, states=states))
    return seen


def quiet_s(observations, index):
    """Seconds up to ``index`` without progress, with work, with an observer who looked all the time."""
    start = index
    while start > 0:
        now, before = observations[start], observations[start - 1]
        paused = now.at_s - before.at_s > PAUSE_FACTOR * LIMITS.interval_s
        if paused or now.progress > before.progress or now.running == 0:
            break
        start -= 1
    return observations[index].at_s - observations[start].at_s


@given(histories())
def test_never_a_hang_where_there_was_progress_no_work_or_a_pause(observations):
    """The observation that shows one of these is never the one that says hung."""
    verdicts = run(observations)
    for (before, now), verdict in zip(pairwise(observations), verdicts[1:], strict=True):
        paused = now.at_s - before.at_s > PAUSE_FACTOR * LIMITS.interval_s
        if paused or now.progress > before.progress or now.running == 0:
            assert verdict is None


@given(histories())
def test_never_before_the_limit_of_its_kind(observations):
    """Each kind of hang has a minimum of silence, counted independently here."""
    least = {Hang.STOPPED: LIMITS.stopped_s, Hang.IDLE: LIMITS.idle_s, Hang.BUSY: LIMITS.busy_s}
    for index, verdict in enumerate(run(observations)):
        if verdict is not None:
            assert quiet_s(observations, index) >= least[verdict.hang] - 1e-6
            assert verdict.silent_s == pytest.approx(quiet_s(observations, index))


@given(histories())
def test_always_in_the_end(observations):
    """Whatever came before, an engine that is stopped for good is called hung."""
    end_s = observations[-1].at_s
    then = silence(
        end_s + 10, start_s=end_s + 0.5, progress=observations[-1].progress, states=("T",), running=1
    )
    assert run(observations + then)[-1] is not None


@given(histories())
def test_the_state_keeps_its_invariant(observations):
    """No time stamp in the memory is in the future or before the silence it belongs to."""
    state = None
    for seen in observations:
        state, _ = judge(state, seen, LIMITS)
        assert state.newest == seen
        assert state.since.at_s <= seen.at_s
        assert state.stopped_at_s is None or state.since.at_s <= state.stopped_at_s <= seen.at_s
        assert state.longest_gap_s >= 0
