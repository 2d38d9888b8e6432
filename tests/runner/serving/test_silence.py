"""Whether a server is taken for one that stands still: what it counts, look by look."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rayguard.runner.serving.counters import counters_of
from rayguard.runner.serving.found import SILENT, UNANSWERED
from rayguard.runner.serving.patience import ServingPatience
from rayguard.runner.serving.silence import EngineCounters, EngineSilence

PATIENCE = ServingPatience(silent_s=300.0)
TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 5.0
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="discard_all"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 10.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 1.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} 32.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 3.0
"""


def counted(running=1.0, tokens=10.0, **more):
    return EngineCounters(running=running, tokens=tokens, **more)


class CountersStory:
    """Looks at one server, five seconds apart."""

    def __init__(self, patience=PATIENCE):
        self.silence, self.now = EngineSilence(patience), 0.0

    def looks(self, seconds, *, waited_for=True, **engines):
        """Look for so long, with the same counters; return what was found first."""
        until = self.now + seconds
        while self.now < until:
            self.now += 5.0
            found = self.silence.answered(engines, self.now, waited_for=waited_for)
            if found is not None:
                return found
        return None

    def unanswered(self, seconds, step=35.0):
        until = self.now + seconds
        while self.now < until:
            self.now += step
            found = self.silence.unanswered(self.now)
            if found is not None:
                return found
        return None


def test_what_vllm_counts_is_read_engine_by_engine():
    """What its front counts by itself, aborted requests, is not among it: it says nothing of an engine."""
    found = counters_of(TEXT)
    assert found["0"] == EngineCounters(running=2.0, tokens=42.0, others=(0.25, 0.0, 5.0))
    assert found["1"] == EngineCounters(running=0.0, tokens=1.0, others=(0.0, 0.0, 0.0), asleep=True)
    assert counters_of(TEXT.replace("} 3.0", "} 99.0")) == found


def test_a_text_of_something_else_counts_nothing():
    """Another server's, a page, or nothing."""
    assert counters_of("") == counters_of("<html>not found</html>") == {}
    assert counters_of("process_start_time_seconds 1.0\n") == {}


def test_an_engine_that_stands_still_under_a_request_is_found_after_the_time():
    """Not before."""
    story = CountersStory()
    assert story.looks(295, zero=counted()) is None
    found = story.looks(10, zero=counted())
    assert found.signature == SILENT
    assert "engine zero" in found.cause


def test_an_engine_that_has_made_no_token_yet_has_three_times_as_long():
    """It may compile."""
    story = CountersStory()
    assert story.looks(895, zero=counted(tokens=0.0)) is None
    assert story.looks(10, zero=counted(tokens=0.0)) is not None


def test_idle_is_no_silence():
    """Nor is sleep, nor a request whose client has gone."""
    for engine, waited_for in [
        (counted(running=0.0), True),
        (counted(asleep=True), True),
        (counted(), False),
    ]:
        assert CountersStory().looks(100_000, zero=engine, waited_for=waited_for) is None


def test_one_engine_of_several_may_stand_still_alone():
    """The others make tokens meanwhile: their sum would hide it."""
    story, tokens = CountersStory(), itertools.count()
    found = None
    while found is None and story.now < 1000:
        found = story.looks(5, one=counted(tokens=float(next(tokens))), two=counted())
    assert "engine two" in found.cause
    assert story.now <= 310


def test_pieces_of_a_long_prompt_are_progress_without_a_token():
    """The cache fills."""
    story = CountersStory()
    for part in range(100):
        assert story.looks(100, zero=counted(others=(part / 100,))) is None


def test_what_was_slow_before_may_be_as_slow_again():
    """Ten times the longest silence that ended by itself."""
    story = CountersStory()
    assert story.looks(200, zero=counted()) is None
    assert story.looks(5, zero=counted(tokens=11.0)) is None
    assert story.looks(1900, zero=counted(tokens=11.0)) is None
    assert story.looks(200, zero=counted(tokens=11.0)) is not None


def test_a_pause_is_forgiven():
    """A trainer may hold its requests while it pushes weights."""
    story = CountersStory()
    for _ in range(20):
        assert story.looks(290, zero=counted()) is None
        story.silence.forgiven()


def test_time_in_which_nobody_looked_does_not_count():
    """Rayguard itself may have been stopped."""
    story = CountersStory()
    assert story.looks(100, zero=counted()) is None
    story.now += 10_000
    assert story.looks(5, zero=counted()) is None


def test_a_server_that_had_answered_may_be_busy_for_a_long_time():
    """A quarter of an hour, as long as nothing longer was seen of it; any answer begins anew."""
    story = CountersStory()
    assert story.looks(10, zero=counted(running=0.0)) is None
    assert story.unanswered(70) is None
    assert story.looks(10, zero=counted(running=0.0)) is None
    assert story.unanswered(870) is None
    assert story.unanswered(70).signature == UNANSWERED


def test_a_server_that_never_answered_is_never_judged():
    """It starts, or it is somebody else's."""
    assert CountersStory().unanswered(100_000) is None


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 2), st.booleans()), max_size=80))
def test_whoever_moves_within_the_time_is_never_ended(looks):
    """Whatever runs, however slowly: a token every 59 looks of 5 s."""
    story, tokens = CountersStory(), 1.0
    for at, (running, more, waited_for) in enumerate(looks):
        tokens += more if at % 59 else 1.0
        assert story.looks(5, zero=counted(round(running), tokens), waited_for=waited_for) is None
