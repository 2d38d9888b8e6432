"""The file of the weights that were pushed last: whole or not there, in one copy, within the memory there is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rayguard.engine.weights import tensorfile
from rayguard.frameworks.openrlhf import weight_file
from rayguard.frameworks.openrlhf.weight_file import PushKept, WeightFile, kept_in, path_of


@pytest.fixture
def file():
    found = weight_file.made()
    yield found
    os.close(found)


def push(keeper, tensors):
    for name, tensor in tensors.items():
        keeper.take(name, tensor)
    keeper.end()


def same(file, tensors):
    found = load_file(path_of(file))
    return found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in found)


def tensors(seed, *, dtype=torch.bfloat16, count=3):
    torch.manual_seed(seed)
    return {f"layer.{number}": torch.randn(4, number + 1).to(dtype) for number in range(count)}


def test_a_whole_push_is_safetensors_data(file):
    """Also to rayguard's own reader, which refuses what has gaps."""
    assert kept_in(file) is PushKept.NOTHING
    push(WeightFile(path_of(file)), tensors(1))
    assert kept_in(file) is PushKept.WHOLE
    assert same(file, tensors(1))
    with Path(path_of(file)).open("rb") as stream:
        assert tensorfile.read_header(stream, "it").keys() == tensors(1).keys()


@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_next_push_takes_its_place(file, count):
    """With fewer tensors or more, by the same writer or by one that knows nothing of the first."""
    keeper = WeightFile(path_of(file))
    push(keeper, tensors(1))
    push(keeper, tensors(2, count=count))
    assert same(file, tensors(2, count=count))
    push(WeightFile(path_of(file)), tensors(3, count=2))
    assert same(file, tensors(3, count=2))


def test_half_a_push_is_none(file):
    """Whether it was cut off, or is made again from its beginning."""
    keeper = WeightFile(path_of(file))
    push(keeper, tensors(1))
    keeper.take("layer.0", tensors(2)["layer.0"])
    assert kept_in(file) is PushKept.PART
    push(keeper, tensors(3))
    assert kept_in(file) is PushKept.WHOLE
    assert same(file, tensors(3))


def test_the_end_of_a_push_that_another_began_is_none(file):
    """The engine before this one had its beginning."""
    keeper = WeightFile(path_of(file), first="layer.0")
    rest = {name: tensor for name, tensor in tensors(1).items() if name != "layer.0"}
    push(keeper, rest)
    assert kept_in(file) is PushKept.NOTHING
    push(keeper, tensors(2))
    assert same(file, tensors(2))


def test_a_tensor_that_comes_twice_ends_the_keeping(file):
    """It is not known which of the two counts."""
    keeper = WeightFile(path_of(file))
    keeper.take("layer.0", torch.zeros(1))
    keeper.take("layer.1", torch.zeros(1))
    with pytest.raises(ValueError, match="twice"):
        keeper.take("layer.1", torch.zeros(1))
    assert (kept_in(file), keeper.off) == (PushKept.NOTHING, True)


def test_a_tensor_that_is_no_piece_of_memory_of_its_own_is_kept_as_it_looks(file):
    """A part of another, turned, without a dimension, or empty."""
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    odd = {"part": whole[1:], "turned": whole.t(), "number": torch.tensor(2.5), "none": torch.empty(0, 4)}
    push(WeightFile(path_of(file)), odd)
    assert same(file, {name: one.contiguous() for name, one in odd.items()})


def test_what_does_not_fit_is_not_kept_and_takes_no_memory(file):
    """Nor is it tried again: each push would fill the memory up to there."""
    keeper = WeightFile(path_of(file), room=lambda: 100)
    push(keeper, tensors(1, count=9))
    assert (kept_in(file), os.fstat(file).st_size, keeper.off) == (PushKept.NOTHING, 0, True)
    push(keeper, tensors(1, count=1))
    assert kept_in(file) is PushKept.NOTHING


def test_a_later_push_of_the_same_size_needs_no_more_room(file):
    """It is written over the one before."""
    rooms = [64 << 20]
    keeper = WeightFile(path_of(file), room=lambda: rooms.pop(0))
    push(keeper, tensors(1))
    assert rooms == []
    push(keeper, tensors(2))
    assert same(file, tensors(2))


def test_a_kind_of_number_that_is_not_known_ends_the_keeping(file):
    """A file with a tensor missing would pass for whole."""
    keeper = WeightFile(path_of(file))
    with pytest.raises(KeyError):
        push(keeper, {"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.complex128)})
    keeper.end()
    assert (kept_in(file), keeper.off) == (PushKept.NOTHING, True)
