"""Forty random programs with faults on real Ray: none is worse with rayguard than without, and some are better."""

from __future__ import annotations

import pytest

from tests.benchmarks.never_worse.comparison import held
from tests.benchmarks.never_worse.driver import WAYS
from tests.benchmarks.never_worse.program import Strike, drawn

SEEDS = range(40, 80)
BAD = ("worse", "silent", "hung")


def test_the_programs_of_the_test_have_faults_of_every_kind():
    """Else a kind could go missing without anybody noticing."""
    assert {call.strike for seed in SEEDS for call in drawn(seed).calls} == {None, *Strike}


@pytest.mark.ray
@pytest.mark.timeout(1500)
def test_no_random_program_is_worse_with_rayguard_and_some_are_better():
    """Bare, and watched, decorated or named by the plugin in turn; what is bad is printed, with the drivers' words."""
    better, fired = 0, set()
    for number, way in enumerate(WAYS[1:]):
        programs = [drawn(seed) for seed in SEEDS[number :: len(WAYS) - 1]]
        figures = held(programs, [way], jobs=3)
        if any(figures[word] for word in BAD):  # what only a busy machine does, it does not do twice
            figures = held(programs, [way], jobs=3)
        assert [figures[word] for word in BAD] == [0, 0, 0], (way, figures)
        better += figures["better"]
        fired |= set(figures["fired"])
    assert better > 0
    assert fired == {strike.value for strike in Strike}
