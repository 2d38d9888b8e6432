"""What is a hang, and what is not."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.engine.hangs.watchdog import (
    IDLE_CPU_RATIO,
    LEARNED,
    PAUSE_FACTOR,
    WARM_TURNS,
    Hang,
    Limits,
    Observation,
    Phase,
    Watchdog,
    excused,
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


def silence(  # noqa: PLR0913 - what an observation holds
    until_s, *, cores=0.0, states=("S",), start_s=0.0, progress=7, running=3, phase=Phase.PREFILL, cpu_s=0.0
):
    """Observations without progress: ``cores`` in use, every half second."""
    step_s = LIMITS.interval_s
    count = int((until_s - start_s) / step_s) + 1
    return [
        Observation(
            at_s=start_s + n * step_s,
            progress=progress,
            running=running,
            cpu_s=cpu_s + n * step_s * cores,
            states=states,
            phase=phase,
        )
        for n in range(count)
    ]


def work(until_s, *, start_s=0.0, phase=Phase.DECODE, turns=25, cores=1.0, cpu_s=0.0):
    """Observations with progress in each: an engine that makes ``turns`` steps between two looks."""
    count = int((until_s - start_s) / LIMITS.interval_s) + 1
    return [
        Observation(
            at_s=start_s + n * LIMITS.interval_s,
            progress=n * turns,
            running=3,
            cpu_s=cpu_s + n * LIMITS.interval_s * cores,
            states=("S", "R"),
            phase=phase,
        )
        for n in range(count)
    ]


def then(before, until_s, **silent):
    """Silence that follows ``before`` without a step between."""
    last = before[-1]
    silent = {"phase": last.phase, "running": last.running, **silent}
    return [
        *before,
        *silence(
            until_s, start_s=last.at_s + LIMITS.interval_s, progress=last.progress, cpu_s=last.cpu_s, **silent
        ),
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
    assert 25 <= at_s - last_progress_s <= 45


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
        "stopped: no progress for 10.0 s in load with 3 requests running, 0.00 cores in use, "
        "process states T S"
    )


def test_the_watchdog_remembers_for_its_caller():
    """The small object is judge with a memory."""
    dog = Watchdog(LIMITS)
    assert [dog.see(seen) for seen in silence(20)] == run(silence(20))


# -- against the pace of the phase ------------------------------------------------------------------


def test_a_decode_that_computes_without_a_token_is_a_hang_long_before_a_prefill_is():
    """Steps come every 20 ms; eight seconds of computing are four hundred of them."""
    at_s, hang = first_hang(then(work(30.0), 90.0, cores=1.0, states=("R",)))
    assert (at_s, hang) == (38.0, Hang.BUSY)
    assert first_hang(then(work(30.0, phase=Phase.PREFILL), 89.5, cores=1.0, states=("R",))) is None


def test_a_prompt_that_comes_with_the_silence_makes_it_a_prefill():
    """The request that the engine fell silent over came in the last step before."""
    began = then(work(30.0), 30.5, cores=1.0)
    assert first_hang(then(began, 89.0, cores=1.0, phase=Phase.PREFILL)) is None


def test_a_prompt_that_comes_into_a_silence_excuses_nothing():
    """Under load requests go on coming, to a core that spins as well."""
    began = then(work(30.0), 34.0, cores=1.0)
    assert first_hang(then(began, 89.0, cores=1.0, phase=Phase.PREFILL)) == (38.0, Hang.BUSY)


def test_the_first_requests_after_a_start_may_compile():
    """Few turns under our eyes: nothing is known of the pace."""
    few = work(2.0, turns=1)
    assert len(few) < WARM_TURNS
    assert first_hang(then(few, 61.5, cores=1.0, states=("R",))) is None
    assert len(few) < LEARNED


def test_an_excused_silence_gets_the_time_of_a_compile():
    """The stacks showed a compiler."""
    state = None
    for seen in then(work(30.0), 38.0, cores=1.0):
        state, verdict = judge(state, seen, LIMITS)
    assert verdict is not None
    state, verdict = judge(excused(state), replace(state.newest, at_s=38.5), LIMITS)
    assert verdict is None


def test_a_starved_engine_is_given_time():
    """The machine runs others: our processes want a core (R) and get almost none."""
    for cores in (0.01, 0.2):
        assert first_hang(then(work(30.0), 89.0, cores=cores, states=("R", "S"))) is None


def test_many_threads_that_get_one_core_are_given_time():
    """A step that costs 32 core-seconds is not done by one core in eight seconds."""
    assert first_hang(then(work(60.0, cores=64.0, turns=1), 119.0, cores=0.9, states=("R",))) is None


def test_a_process_that_the_kernel_holds_is_given_time():
    """D: a disk or a device, which a new engine would wait for too."""
    assert first_hang(then(work(30.0), 89.0, states=("S", "D"))) is None
    assert first_hang(then(work(30.0), 91.0, states=("S", "D")))[0] == 90.0


def test_readers_that_spin_before_they_sleep_do_not_hide_that_nobody_works():
    """A core of vLLM spins for a second when its worker does not answer."""
    spun = then(work(30.0), 31.0, cores=1.0)
    assert first_hang(then(spun, 60.0)) == (38.0, Hang.IDLE)


def test_an_engine_that_falls_idle_in_a_long_prefill_is_found():
    """What was computed before does not count for ever."""
    computing = then(work(30.0, phase=Phase.PREFILL), 80.0, cores=1.0)
    assert first_hang(then(computing, 89.0)) == (86.0, Hang.IDLE)


def test_one_long_gap_does_not_make_the_engine_untouchable():
    """The pace is what is usual, not the worst that was survived."""
    slow = then(work(300.0), 307.0, cores=1.0)
    last = slow[-1]
    after = [
        replace(seen, at_s=seen.at_s + last.at_s + 0.5, progress=seen.progress + last.progress + 1,
                cpu_s=seen.cpu_s + last.cpu_s)
        for seen in work(100.0)
    ]  # fmt: skip
    at_s, hang = first_hang(then([*slow, *after], 500.0, cores=1.0))
    assert hang is Hang.BUSY
    assert at_s - after[-1].at_s == pytest.approx(8.0)


def test_prompts_computed_in_one_step_may_be_computed_again_while_decoding():
    """A preempted request: without chunked prefill its whole prompt is one silent step again."""
    seen, at_s = work(30.0), 30.0
    for _ in range(3):  # prefills of 12 s
        seen = then(seen, at_s + 12.0, cores=1.0, phase=Phase.PREFILL)
        last = seen[-1]
        seen += [replace(last, at_s=last.at_s + 0.5, progress=last.progress + 1)]
        at_s = seen[-1].at_s
    seen += [
        replace(s, at_s=s.at_s + at_s + 0.5, progress=s.progress + last.progress + 2) for s in work(10.0)
    ]
    seen = then(seen, seen[-1].at_s + 15.0, cores=1.0)
    assert first_hang(seen, replace(LIMITS, whole_prompts=True)) is None
    assert first_hang(seen)[1] is Hang.BUSY


@pytest.mark.parametrize("phase", [Phase.CALL, Phase.AWAY])
def test_who_pushes_weights_or_does_not_read_is_not_silent(phase):
    """A push has its own deadline; a paused engine, or one that nobody reads, owes nothing."""
    away = then(work(30.0), 200.0, phase=phase)
    assert first_hang(away) is None
    at_s, hang = first_hang(then(away, 220.0, phase=Phase.DECODE))
    assert hang is Hang.IDLE
    assert at_s in {208.0, 208.5}


def test_a_core_that_is_stopped_in_a_push_is_found():
    """Its state says so, whatever it was asked for."""
    assert first_hang(then(work(30.0), 60.0, phase=Phase.CALL, states=("T", "S"))) == (32.5, Hang.STOPPED)
    assert first_hang(then(work(30.0), 60.0, phase=Phase.AWAY, states=("T", "S"))) is None


def test_a_call_into_a_silence_does_not_hide_it():
    """Who asks a hung engine for something waits for ever."""
    began = then(work(30.0), 33.0)
    assert first_hang(then(began, 60.0, phase=Phase.CALL)) == (38.0, Hang.IDLE)


def test_a_verdict_that_was_told_is_not_told_at_once_again():
    """The recovery has begun; if it has not, a full limit later it is told again."""
    dog, told_s = Watchdog(LIMITS), []
    for seen in then(work(30.0), 60.0):
        if dog.see(seen) is not None:
            told_s.append(seen.at_s)
            dog.start_again()
    assert told_s == [38.0, 46.0, 54.0]


# -- invariants, for any history --------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.one_of(st.floats(0.05, 1.0), st.floats(3.0, 100.0)),  # time passed: regular, or a pause
        st.integers(0, 3),  # progress made
        st.integers(0, 2),  # requests running
        st.floats(0.0, 2.0),  # cores in use
        st.sampled_from([("S",), ("R",), ("T",), ("t", "R"), ("D", "S"), ()]),
        st.sampled_from([Phase.DECODE, Phase.DECODE, Phase.PREFILL, Phase.CALL, Phase.AWAY]),
    ),
    max_size=120,
)


@st.composite
def histories(draw):
    """Return what an observer may see, in any order of events."""
    at_s = cpu_s = 0.0
    progress = 0
    seen = [Observation(at_s=0.0, progress=0, running=1, cpu_s=0.0)]
    for passed_s, made, running, cores, states, phase in draw(steps):
        at_s, progress, cpu_s = at_s + passed_s, progress + made, cpu_s + cores * passed_s
        seen.append(
            Observation(
                at_s=at_s, progress=progress, running=running, cpu_s=cpu_s, states=states, phase=phase
            )
        )
    return seen


def quiet_s(observations, index):
    """Seconds up to ``index`` without progress, with work, with an observer who looked all the time."""
    start = index
    while start > 0:
        now, before = observations[start], observations[start - 1]
        paused = now.at_s - before.at_s > PAUSE_FACTOR * LIMITS.interval_s
        away = Phase.AWAY in {now.phase, before.phase}
        if paused or away or now.progress > before.progress or now.running == 0:
            break
        start -= 1
    return observations[index].at_s - observations[start].at_s


@given(histories())
def test_never_a_hang_where_there_was_progress_no_work_or_a_pause(observations):
    """The observation that shows one of these is never the one that says hung."""
    verdicts = run(observations)
    for (before, now), verdict in zip(pairwise(observations), verdicts[1:], strict=True):
        paused = now.at_s - before.at_s > PAUSE_FACTOR * LIMITS.interval_s
        away = Phase.AWAY in {now.phase, before.phase}
        if paused or away or now.progress > before.progress or now.running == 0:
            assert verdict is None


@given(histories())
def test_never_before_the_limit_of_its_kind(observations):
    """Each kind of hang has a minimum of silence, counted independently here."""
    least = {Hang.STOPPED: LIMITS.stopped_s, Hang.IDLE: LIMITS.idle_s, Hang.BUSY: LIMITS.idle_s}
    for index, verdict in enumerate(run(observations)):
        if verdict is not None:
            assert quiet_s(observations, index) >= least[verdict.hang] - 1e-6
            assert verdict.hang is Hang.STOPPED or verdict.phase not in {Phase.CALL, Phase.AWAY}
            if verdict.hang is Hang.BUSY and verdict.phase is not Phase.DECODE:
                assert quiet_s(observations, index) >= LIMITS.busy_s - 1e-6
            assert verdict.silent_s <= quiet_s(observations, index) + 1e-6


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
        assert state.since.at_s <= state.calm.at_s <= seen.at_s
        assert state.stopped_at_s is None or state.stopped_at_s <= seen.at_s
        assert 0 <= state.stirring <= state.looks
