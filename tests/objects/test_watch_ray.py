"""What outlived its scope: named, and ended only when told so. Real Ray."""

import numpy as np
import pytest

from rayguard.objects import reaper, watch
from rayguard.objects.scope import object_scope
from rayguard.objects.scope_ended_error import ScopeEndedError
from rayguard.ray_internals.object_refs import core_worker, counts

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


def test_what_could_not_be_ended_with_its_scope_is_named_and_ended_when_told_so(fresh, monkeypatch):
    """Where its scope's end had no time to search. What no scope made is no leak, however much it grows."""
    holder = Holder()
    undeclared = []
    with monkeypatch.context() as patch:
        patch.setattr(reaper._duty, "allows", lambda: False)
        for step in range(5):
            with object_scope(step, across=False):
                holder.cache["refs"].append(fresh.put(np.zeros(MB // 10)))
            undeclared.append(fresh.put(step))
    (leak,) = watch.leaks()
    assert "test_what_could_not" in leak.site
    assert leak.count == 4
    assert any("Holder.cache" in name and "refs" in name for name in leak.holders), leak.holders
    dry = watch.end_leaks()
    assert len(dry.ended) == 4
    assert dry.size_bytes > 4 * 0.79 * MB
    assert set(dry.ended) <= set(counts(core_worker())), "nothing was touched"
    assert len(watch.end_leaks(dry_run=False).ended) == 4
    assert [ended(fresh, ref) for ref in holder.cache["refs"]] == [True] * 4 + [False]
    assert fresh.get(undeclared) == [0, 1, 2, 3, 4]
