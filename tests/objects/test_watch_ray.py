"""Leaks outside of scopes: found by growth, named, and dropped only when told so. Real Ray."""

import numpy as np
import pytest

from rayguard.objects import watch
from rayguard.objects.core import core_worker, counts
from rayguard.objects.ended import ScopeEndedError

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

MB = 1_000_000


class Holder:
    def __init__(self):
        self.cache = {"refs": []}


def ended(ray, ref):
    """Say whether ``ref`` was ended."""
    try:
        ray.get(ref, timeout=30)
    except ScopeEndedError:
        return True
    return False


def test_growth_outside_of_scopes_is_named_and_dropped_only_when_told_so(fresh):
    """Dry-run by default for what nobody declared."""
    assert watch.track()
    holder = Holder()
    for step in range(7):
        holder.cache["refs"].append(fresh.put(np.zeros(MB // 10)))
        once = fresh.put(step)
        assert fresh.get(once) == step
        watch.end_step(step)
    (leak,) = watch.leaks()
    assert "test_growth_outside" in leak.site
    assert leak.count == 4
    assert any("Holder.cache" in name and "refs" in name for name in leak.holders), leak.holders
    dry = watch.end_leaks()
    assert len(dry.ended) == 4
    assert dry.size_bytes > 4 * 0.79 * MB
    assert set(dry.ended) <= set(counts(core_worker())), "nothing was touched"
    assert len(watch.end_leaks(dry_run=False).ended) == 4
    assert [ended(fresh, ref) for ref in holder.cache["refs"]] == [True] * 4 + [False] * 3


def test_what_is_read_is_no_leak_however_much_it_grows(fresh):
    """By ``ray.get`` or as an argument."""
    assert watch.track()
    first = fresh.remote(num_cpus=0)(lambda value: value)
    read, passed = [], []
    for step in range(7):
        read.append(fresh.put(step))
        passed.append(fresh.put(step))
        fresh.get(read)
        fresh.get([first.remote(ref) for ref in passed])
        watch.end_step(step)
    assert watch.leaks() == []


def test_the_ledger_says_what_is_held_since_when_and_from_where(fresh):
    """All that this process holds, those unseen in the making too."""
    before = fresh.put("unseen")
    assert watch.track()
    held = [fresh.put(number) for number in range(3)]
    watch.end_step(4)
    leases = {lease.object_id: lease for lease in watch.leases()}
    assert leases[before.hex()].adopted
    assert {leases[ref.hex()].site.split(" in ")[-1] for ref in held} <= {
        "test_the_ledger_says_what_is_held_since_when_and_from_where",
        "test_the_ledger_says_what_is_held_since_when_and_from_where.<locals>.<listcomp>",
    }
    gone = held.pop().hex()
    watch.end_step(5)
    assert gone not in {lease.object_id for lease in watch.leases()}
