"""Whose memory it is that was short when an owner died: what its engine sees of the machine and its cgroup."""

import pytest

from rayguard.engine.vllm.adoption import ties
from rayguard.memory.probes.node import NodeMemory

FULL, FREE = NodeMemory(used=96, total=100), NodeMemory(used=50, total=100)


@pytest.mark.parametrize(
    ("machine", "own_cgroup", "short"),
    [
        (FREE, None, False),
        (FULL, None, True),
        (FREE, FULL, True),  # a container of a machine that has plenty
        (FREE, FREE, False),
        (None, None, False),
    ],
)
def test_memory_is_short_where_the_machine_or_a_cgroup_is_full(monkeypatch, machine, own_cgroup, short):
    monkeypatch.setattr(ties.NodeProbe, "read", lambda _: machine)
    monkeypatch.setattr(ties.NodeProbe, "_own_limits", lambda _: [own_cgroup] if own_cgroup else [])
    assert ties._memory_is_short() is short
