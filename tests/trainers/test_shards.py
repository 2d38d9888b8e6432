"""State that is spread over ranks: taken apart, put together, shared by another number of ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rayguard.errors import StateLostError
from rayguard.trainers.shards import LocalShard, put_together, shared_anew, taken_apart


def shard_of(whole, rank, ranks, dim=0):
    """The part of one rank, cut as torch cuts."""
    from torch.distributed.tensor import Shard

    pieces = torch.chunk(whole, ranks, dim)
    local = pieces[rank] if rank < len(pieces) else whole.narrow(dim, 0, 0)
    return LocalShard(local, (Shard(dim),), tuple(whole.shape), tuple(whole.stride()), (ranks,))


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.sampled_from([0, 1]))
def test_any_number_of_ranks_shares_it_as_torch_would(rows, columns, before, after, dim):
    """Also where some have nothing; what is not sharded is the rank's own."""
    whole = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)
    states = [
        {
            "w": shard_of(whole, rank, before, dim),
            "in": [{"s": shard_of(whole, rank, before, dim)}],
            "n": rank,
        }
        for rank in range(before)
    ]
    for rank in range(after):
        found = shared_anew(states, rank, after)
        wanted = shard_of(whole, rank, after, dim)
        for one in (found["w"], found["in"][0]["s"]):
            assert torch.equal(one.local, wanted.local)
            assert (one.mesh, one.shape) == ((after,), (rows, columns))
        assert found["n"] == rank % before


def test_what_is_the_same_on_all_stays():
    """A replicated tensor has no parts."""
    from torch.distributed.tensor import Replicate

    one = LocalShard(torch.ones(2), (Replicate(),), (2,), (1,), (3,))
    assert torch.equal(shared_anew([{"w": one}] * 3, 1, 2)["w"].local, torch.ones(2))


def test_a_mesh_of_several_dimensions_is_refused():
    """Which part lies where is not known."""
    from torch.distributed.tensor import Replicate, Shard

    one = LocalShard(torch.ones(2), (Replicate(), Shard(0)), (2,), (1,), (2, 2))
    with pytest.raises(StateLostError, match="another number of ranks"):
        shared_anew([{"w": one}] * 4, 0, 3)


def test_without_a_mesh_it_cannot_come_back():
    """Says which there are."""
    with pytest.raises(StateLostError, match=r"mesh of \(3,\)"):
        put_together({"w": shard_of(torch.ones(4), 0, 3)}, [])


def test_plain_state_is_left_as_it_is():
    """The very same tensors; a module's state keeps the versions of its parts."""
    state = {"model": torch.nn.BatchNorm1d(2).state_dict(), "plain": [1, (2, "x")]}
    found = put_together(taken_apart(state), [])
    assert found["plain"] == state["plain"]
    assert found["model"]._metadata == state["model"]._metadata
    assert all(found["model"][name] is value for name, value in state["model"].items())
