"""A batch in chunks: the gradient of the whole, whatever the number of ranks, and answers in the old order."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rayguard
from rayguard.batching.chunks import split_batch
from rayguard.batching.rows import count_rows
from rayguard.errors import ConfigError

torch = pytest.importorskip("torch")
TOKENS, WIDTH = 5, 3


def a_batch(size, dtype=torch.float64, seed=0):
    """``x`` (rows, tokens, width) and what counts of it; some rows count nowhere."""
    made = torch.Generator().manual_seed(seed)
    mask = (torch.rand(size, TOKENS, generator=made) < 0.7).to(dtype)
    return {"x": torch.randn(size, TOKENS, WIDTH, generator=made, dtype=dtype), "response_mask": mask}


def token_losses(weights, rows):
    return torch.tanh(rows["x"] @ weights) ** 2 * rows["response_mask"]


def per_row(weights, rows):
    return token_losses(weights, rows).sum(1) / rows["response_mask"].sum(1).clamp(min=1)


def gradient(loss, weights):
    return torch.autograd.grad(loss, weights)[0]


def whole(kind, batch, weights):
    if kind == "token-mean":
        return token_losses(weights, batch).sum() / batch["response_mask"].sum().clamp(min=1)
    return per_row(weights, batch).mean()


def sharded(kind, chunks, weights):
    """As DDP and FSDP do: micro-batches add up on each rank, and the ranks' gradients are averaged."""
    ranks = []
    for chunk in chunks:
        losses = []
        for rows, real in chunk:
            if kind == "token-mean":
                losses.append(token_losses(weights, rows).sum() * chunk.weight("response_mask"))
            else:
                losses.append(per_row(weights, rows)[:real].sum() * chunk.weight())
        ranks.append(sum(gradient(loss, weights) for loss in losses))
    return sum(ranks) / len(chunks)


def difference(size, world, micro, even, kind, dtype):
    """Against the whole batch's gradient in fp64: in fp32 that is itself 1.5e-6 off, for one thread's sums."""
    batch = a_batch(size, dtype)
    weights = torch.linspace(-1, 1, WIDTH, dtype=dtype).requires_grad_()
    exact = weights.detach().double().requires_grad_()
    expected = gradient(whole(kind, {name: value.double() for name, value in batch.items()}, exact), exact)
    found = sharded(kind, split_batch(batch, world, micro, even=even), weights)
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-9))


@settings(max_examples=60)
@given(
    st.integers(1, 64),
    st.integers(1, 9),
    st.integers(0, 7),
    st.booleans(),
    st.sampled_from(["token-mean", "sequence-mean"]),
)
def test_the_gradient_is_that_of_the_whole_batch(size, world, micro, even, kind):
    """For any size, number of ranks and micro-batch, padded or uneven."""
    assert difference(size, world, micro, even, kind, torch.float64) < 1e-12


@pytest.mark.parametrize("kind", ["token-mean", "sequence-mean"])
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_512_rows_go_on_over_6_ranks_where_there_were_8(kind, even, dtype, bound):
    """Two died: the same batch for those that are left."""
    assert difference(512, 6, 16, even, kind, dtype) < bound
    eight = split_batch(a_batch(512), 8, 16, even=even)
    six = eight.over(6)
    assert (len(six), six.plan.size, six.plan.micro) == (6, 512, 16)
    assert sum(sum(chunk.real) for chunk in six) == 512


def test_averages_of_averages_are_wrong_and_this_test_can_see_it():
    """What the weights are for: the mean of the ranks' means is not the mean."""
    batch, weights = a_batch(13), torch.linspace(-1, 1, WIDTH, dtype=torch.float64).requires_grad_()
    expected = gradient(whole("token-mean", batch, weights), weights)
    means = [
        gradient(whole("token-mean", rows, weights), weights) for c in split_batch(batch, 4) for rows, _ in c
    ]
    assert float((sum(means) / 4 - expected).abs().max() / expected.abs().max()) > 1e-3


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 7), st.booleans())
def test_answers_come_back_in_the_order_of_the_batch(size, world, micro, even):
    """Without pads, for lists, tensors and dictionaries."""
    rows = list(range(100, 100 + size))
    chunks = split_batch({"n": torch.tensor(rows), "text": [str(n) for n in rows]}, world, micro, even=even)
    back = chunks.join([[part for part, _ in chunk] for chunk in chunks])
    assert back["n"].tolist() == rows
    assert back["text"] == [str(n) for n in rows]
    lists = split_batch(rows, world, micro, even=even)
    assert lists.join([list(chunk.parts) for chunk in lists]) == rows


def test_pads_are_copies_that_count_nowhere():
    """Of a neighbour, as long as it; the batch itself is left as it was, and other columns are copied whole."""
    mask = [[1, 1], [1, 0], [1, 1]]
    chunks = split_batch({"ids": [[5, 6], [7, 8], [9, 9]], "loss_mask": mask}, 2, masks=["loss_mask"])
    assert chunks[1].parts == ({"ids": [[9, 9], [9, 9]], "loss_mask": [[1, 1], [0, 0]]},)
    assert chunks[1].real == (1,)
    assert mask == [[1, 1], [1, 0], [1, 1]]
    tensors = a_batch(3)
    before = tensors["response_mask"].clone()
    assert split_batch(tensors, 2)[1].parts[0]["response_mask"][1].sum() == 0
    assert torch.equal(tensors["response_mask"], before)


def test_a_rank_without_rows_still_has_one_that_does_not_count():
    """Its forward and backward are parts of collectives."""
    chunks = split_batch(a_batch(2), 4, even=False)
    assert [chunk.real for chunk in chunks] == [(1,), (1,), (0,), (0,)]
    assert [count_rows(chunk.parts[0]) for chunk in chunks] == [1, 1, 1, 1]
    assert chunks[3].parts[0]["response_mask"].sum() == 0


def test_a_chunk_goes_to_another_process():
    """With the counts of the whole batch."""
    chunk = pickle.loads(pickle.dumps(rayguard.split_batch([1, 2, 3], 2)[0]))
    assert (chunk.parts, chunk.rank, chunk.world, chunk.weight()) == (([1, 2],), 0, 2, 2 / 3)


@pytest.mark.parametrize(
    ("batch", "options", "words"),
    [
        ([], {}, "the batch has no rows"),
        ({}, {}, "an empty dictionary"),
        ("text", {}, "a batch is a tensor, an array, a list"),
        (torch.tensor(3.0), {}, "without dimensions"),
        ({"a": [1], "b": [1, 2]}, {}, r"different numbers of rows \(a: 1, b: 2\)"),
        ({"response_mask": [1]}, {"masks": ["respose_mask"]}, "did you mean 'response_mask'"),
        ([1], {"masks": ["m"]}, "no column 'm'"),
        ([1], {"world": 0}, "world must be a whole number"),
    ],
)
def test_what_cannot_be_split_is_told(batch, options, words):
    """In one line."""
    with pytest.raises(ConfigError, match=words):
        split_batch(batch, **{"world": 2, **options})


def test_a_weight_of_what_was_not_counted_is_told():
    """With what there is."""
    chunk = split_batch(a_batch(3), 2)[0]
    with pytest.raises(ConfigError, match=r"there is rows, response_mask.*mean 'response_mask'"):
        chunk.weight("responce_mask")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([[[1, 2]]], "2 ranks have a chunk, and there are 1 answers"),
        ([[[1, 2]], []], "rank 1 has 1 micro-batches, and answered 0"),
        ([[[1, 2]], [[3]]], "rank 1 answered 1 rows for a micro-batch of 2"),
        ([[[1, 2]], [(3, 4)]], "cannot join list, tuple"),
    ],
)
def test_answers_that_do_not_fit_are_told(answers, words):
    """By rank."""
    with pytest.raises(ConfigError, match=words):
        split_batch([1, 2, 3], 2).join(answers)
