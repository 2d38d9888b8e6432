"""How rows are shared out over ranks: each once, no rank left waiting, for any size, world and micro-batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.batching.plan import Part, nearest_sizes, plan
from rayguard.errors import ConfigError

SIZES, WORLDS, MICROS = st.integers(0, 700), st.integers(1, 40), st.integers(0, 33)


@given(SIZES, WORLDS, MICROS, st.booleans())
def test_each_row_goes_to_one_rank_once_and_in_order(size, world, micro, even):
    """Nothing is lost, nothing comes twice."""
    made = plan(size, world, micro, even=even)
    rows = [row for parts in made.ranks for part in parts for row in range(part.start, part.stop)]
    assert rows == list(range(size))
    assert len(made.ranks) == world
    assert sum(made.counts) == size


@given(SIZES, WORLDS, MICROS, st.booleans())
def test_all_ranks_take_part_in_each_collective(size, world, micro, even):
    """As many micro-batches on each, and a row in each: forward and backward are collectives."""
    made = plan(size, world, micro, even=even)
    assert len({len(parts) for parts in made.ranks}) == 1
    parts = [part for parts in made.ranks for part in parts]
    assert all(part.rows >= 1 for part in parts)
    assert not micro or all(part.rows <= micro for part in parts)


@given(SIZES, WORLDS, MICROS)
def test_even_ranks_are_alike(size, world, micro):
    """In each micro-batch; and no more pads than the ranks and whole micro-batches ask for."""
    made = plan(size, world, micro)
    assert len({part.rows for parts in made.ranks for part in parts}) == 1
    step = world * max(1, micro)
    assert made.pads == max(step, -(-size // step) * step) - size
    assert max(made.counts) - min(made.counts) <= 1


@given(SIZES, WORLDS, MICROS)
def test_uneven_ranks_have_pads_only_where_they_have_nothing(size, world, micro):
    """A part of pads alone has one."""
    made = plan(size, world, micro, even=False)
    for part in (part for parts in made.ranks for part in parts):
        assert part.pads == (part.start == part.stop)
    assert max(made.counts) - min(made.counts) <= 1


def test_512_over_6():
    """The batch that ends EasyR1's jobs: "only support equal chunk. Got size of DataProto 512 and chunk 6"."""
    assert plan(512, 6).counts == (86, 86, 85, 85, 85, 85)
    assert plan(512, 6).pads == 4
    assert plan(512, 6, even=False).pads == 0
    assert plan(7, 3, 2).ranks == (
        (Part(0, 2), Part(2, 3, 1)),
        (Part(3, 5), Part(5, 5, 2)),
        (Part(5, 7), Part(7, 7, 2)),
    )


@given(SIZES, WORLDS, st.integers(1, 33))
def test_the_nearest_sizes_divide(size, world, micro):
    """The one below, the one above, nothing between; the size itself where it divides."""
    below, above = nearest_sizes(size, world, micro)
    assert below <= size <= above
    assert below % (world * micro) == above % (world * micro) == 0
    assert above - below in (0, world * micro)


@pytest.mark.parametrize(
    ("given_", "name"),
    [((-1, 2), "size"), ((4, 0), "world"), ((4, 2, -1), "micro"), ((4.0, 2), "size"), ((4, True), "world")],
)
def test_numbers_that_make_no_sense_are_named(given_, name):
    """A clear error, not a ZeroDivisionError."""
    with pytest.raises(ConfigError, match=f"^{name} must be a whole number"):
        plan(*given_)
    if len(given_) == 2:
        with pytest.raises(ConfigError, match=name):
            nearest_sizes(*given_)
