"""No reference that somebody can still use is ever dropped: hundreds of look-alikes, on real Ray."""

import gc

import pytest
from look_alikes import MAKERS, Bench, array

from rayguard.objects.scope import object_scope
from rayguard.objects.scope_ended_error import ScopeEndedError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_heap"), pytest.mark.timeout(480)]

ROUNDS = 12


def offer(bench, numbers):
    """Make each look-alike within a scope that ends all at once; return the checks, and the scope."""
    bench.outside = {number: bench.ray.put(array(number)) for number in numbers}
    with object_scope(numbers[0], keep_steps=0) as scope:
        bench.scope = scope
        leaks = [bench.ray.put(array(-1)) for _ in range(3)]
        checks = [(make, make(bench, number)) for make, number in zip(MAKERS, numbers, strict=True)]
    bench.scope = None
    return checks, scope, leaks


def test_look_alikes_stay_readable_while_real_leaks_end(fresh):
    """Some 300 in all, of every way to hold a reference that Python has."""
    bench = Bench(fresh)
    offered, wrong = 0, []
    for turn in range(ROUNDS):
        numbers = [turn * 100 + one for one in range(len(MAKERS))]
        bench.stop.clear()
        checks, scope, leaks = offer(bench, numbers)
        if turn % 4 == 3:
            gc.collect()
        with object_scope(turn, keep_steps=0):
            pass  # what was left alone is offered once more
        offered += len(checks)
        for make, check in checks:
            try:
                right = check()
            except LookupError:  # ended, or a key that is not found again
                right = False
            if not right:
                wrong.append(make.__name__)
        assert len(scope.ended.ended) >= 3, scope.ended
        for leak in leaks:
            with pytest.raises(ScopeEndedError):
                fresh.get(leak)
        bench.cache.clear()
    assert offered >= 300
    assert wrong == []
