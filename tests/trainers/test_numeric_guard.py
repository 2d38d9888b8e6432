"""Bad ids and logits: made harmless in the stream, told where the caller reads, with tensor, rank, step and row.

Each test runs as on the host, where a look costs nothing, and as on a device, where nothing may be read. What a
real device does is in ``test_numeric_gpu``.
"""

from __future__ import annotations

import contextlib
import pickle

import pytest

import rayguard
from rayguard.errors import ConfigError, NumericError
from rayguard.trainers import numeric_guard

torch = pytest.importorskip("torch")
VOCABULARY, WIDTH = 11, 4


class Model(torch.nn.Module):
    """An embedding and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        return self.lm_head(self.words(ids))


class NoReading(torch.utils._python_dispatch.TorchDispatchMode):
    """Fails where a number is read from a tensor, as a GPU's stream would stand still there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(func), "a read of its own"
        assert "nonzero" not in str(func)
        return func(*args, **(kwargs or {}))


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.fixture(autouse=True, params=["host", "device"])
def place(request, monkeypatch):
    if request.param == "device":
        monkeypatch.setattr(numeric_guard, "_on_the_host", lambda _: False)
    return request.param


@pytest.fixture
def model():
    return Model()


def test_a_model_that_is_well_gives_the_same_and_no_error(model):
    """To the bit, forward and backward."""
    plain = model(IDS)
    plain.sum().backward()
    gradient = model.words.weight.grad.clone()
    model.zero_grad()
    guard = rayguard.NumericGuard(model)
    guarded = model(IDS)
    guarded.sum().backward()
    guard.check()
    assert torch.equal(plain, guarded)
    assert torch.equal(model.words.weight.grad, gradient)


@pytest.mark.parametrize("bad", [-1, VOCABULARY, 1 << 40])
def test_an_id_outside_the_embedding_is_told_and_kills_nothing(model, bad):
    """Bare, it is an IndexError on the CPU and a poisoned process on a GPU."""
    guard = rayguard.NumericGuard(model, rank=3)
    guard.check(step=7)
    ids = IDS.clone()
    ids[1, 2] = bad
    assert model(ids).isfinite().all()
    with pytest.raises(NumericError) as told:
        guard.check()
    error = told.value
    assert (error.tensor, error.kind, error.rank, error.step, error.row, error.value) == (
        "words",
        "token id",
        3,
        7,
        5,
        bad,
    )
    assert str(error) == f"token id {bad} lies outside words (row 5 of the batch, rank 3, step 7)"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    guard.check()
    model(IDS)
    guard.check()


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf in all"])
def test_logits_that_are_not_finite_are_told(model, bad):
    """A NaN row, one with +inf, one of -inf alone; the others stay what they were."""
    guard = rayguard.NumericGuard(model)
    with torch.no_grad():
        before = model(IDS)
        poison = torch.zeros(VOCABULARY)
        poison[2:3] = float("nan") if bad == "nan" else float("inf")
        spoiled = torch.full((VOCABULARY,), float("-inf")) if bad == "-inf in all" else poison

        def spoil(_module, _args, logits):
            logits[1, 0] += spoiled
            return logits

        first = next(iter(model.lm_head._forward_hooks))
        hook = model.lm_head.register_forward_hook(spoil)
        model.lm_head._forward_hooks.move_to_end(first)
        after = model(IDS)
        hook.remove()
    rows = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)]
    assert all(torch.equal(before[row], after[row]) for row in rows)
    assert torch.softmax(after, -1).isfinite().all()
    with pytest.raises(
        NumericError, match=r"logits are not finite in lm_head \(row 3 of the batch, rank 0, step 0\)"
    ):
        guard.check()


def test_a_row_with_some_minus_infinity_is_what_masks_make(model):
    """Every sampler does so."""
    guard = rayguard.NumericGuard(model)
    process = guard.logits_processor()
    scores = torch.zeros(2, VOCABULARY)
    scores[:, 3:] = float("-inf")
    assert torch.equal(process(IDS, scores.clone()), scores)
    guard.check()
    scores[1, 0] = float("nan")
    assert torch.multinomial(torch.softmax(process(IDS, scores), -1), 1).shape == (2, 1)
    with pytest.raises(NumericError, match=r"in scores \(row 1"):
        guard.check()


def test_the_first_bad_row_is_the_one_that_is_told(model):
    """Whatever came after; ids before the logits that they spoiled."""
    guard = rayguard.NumericGuard(model)
    guard.step = 1
    model(torch.tensor([[50, 1]]))
    guard.step = 2
    model(torch.tensor([[1, 60]]))
    with pytest.raises(NumericError) as told:
        guard.check()
    assert (told.value.step, told.value.row, told.value.value) == (1, 0, 50)


def test_nothing_is_read_from_a_device_of_its_own(model, place):
    """A read would stop a GPU's stream: with bad numbers, and without."""
    guard = rayguard.NumericGuard(model)
    process = guard.logits_processor()
    with NoReading() if place == "device" else contextlib.nullcontext():
        logits = model(torch.tensor([[1, 99]]))
        logits.sum().backward()
        process(IDS, logits.detach()[0])
        process(IDS, torch.full((2, VOCABULARY), float("nan")))
        model(IDS)
    with pytest.raises(NumericError, match="token id 99"):
        guard.check()


def test_on_a_device_that_cannot_be_read_all_works_until_the_check():
    """The device "meta" has shapes and no numbers: any read of one raises, and so must the check."""
    model = Model().to("meta")
    guard = rayguard.NumericGuard(model)
    process = guard.logits_processor()
    ids = IDS.to("meta")
    with NoReading():
        logits = model(ids)
        logits.sum().backward()
        process(ids, logits.detach()[0])
    with pytest.raises(RuntimeError):
        guard.check()


def test_who_traces_a_model_is_not_looked_at():
    """``torch.compile`` would break its graph at a read, and what stands in for a tensor has none."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = Model()
    with FakeTensorMode(allow_non_fake_inputs=True):
        rayguard.NumericGuard(model)
        assert model(IDS).shape == (2, 3, VOCABULARY)
    torch._dynamo.reset()
    broken = torch._dynamo.explain(Model())(IDS).graph_break_count
    guarded = Model()
    guard = rayguard.NumericGuard(guarded)
    assert torch._dynamo.explain(guarded)(IDS).graph_break_count <= broken
    guard.check()


def test_what_is_sound_is_the_same_tensor_on_the_host(model, place):
    """Nothing is copied, and autograd sees nothing of us."""
    guard = rayguard.NumericGuard(model)
    scores = torch.randn(2, VOCABULARY, requires_grad=True)
    assert (guard.logits_processor()(IDS, scores) is scores) == (place == "host")
    huge = torch.full((2, VOCABULARY), torch.finfo(torch.float32).max)  # whose sum is infinite
    assert torch.equal(guard.logits_processor()(IDS, huge.clone()), huge)
    model(torch.empty((0, 3), dtype=torch.long))
    guard.check()


def test_gradients_past_a_bad_row_are_those_of_the_others(model):
    """The step is thrown away after the check; until then nothing of the bad row is in it."""
    guard = rayguard.NumericGuard(model)
    process = guard.logits_processor()
    scores = torch.randn(2, VOCABULARY)
    scores[1, 4] = float("nan")
    scores.requires_grad_()
    process(IDS, scores).square().sum().backward()
    wanted = 2 * scores.detach()
    wanted[1, 4] = 0.0
    assert torch.equal(scores.grad, wanted)
    with pytest.raises(NumericError, match=r"in scores \(row 1"):
        guard.check()


@pytest.mark.parametrize("read", ["item", "tolist", "cpu", "numpy", "__float__", "__bool__"])
def test_a_read_of_the_callers_own_raises_it(model, read):
    """Where it would wait for the device anyway."""
    guard = rayguard.NumericGuard(model)
    with pytest.raises(NumericError, match="token id 99"), guard.at_sync():
        loss = model(torch.tensor([[1, 99]])).sum().detach()
        getattr(loss, read)()
        pytest.fail("it went on")
    with pytest.raises(NumericError), guard.at_sync():
        model(torch.tensor([[1, 99]]))
    with guard.at_sync():
        assert model(IDS).sum().item() != 0


def test_after_close_the_model_is_bare(model):
    """And what had been noted is still told."""
    guard = rayguard.NumericGuard(model)
    guard.close()
    with pytest.raises(IndexError):
        model(torch.tensor([[99]]))
    guard.check()


def test_the_head_is_found_or_named():
    """By Hugging Face's own word for it, by name, or as a module."""

    class Named(Model):
        def get_output_embeddings(self):
            return self.lm_head

    for model, head in ((Named(), None), (Model(), "lm_head"), (Model(), None)):
        guard = rayguard.NumericGuard(model, head=head)
        with torch.no_grad():
            model.lm_head.weight[0, 0] = float("nan")
            model(IDS)
        with pytest.raises(NumericError, match="lm_head"):
            guard.check()
    model = Model()
    assert rayguard.NumericGuard(model, head=model.lm_head)
    with pytest.raises(ConfigError, match="has no module 'nothing'"):
        rayguard.NumericGuard(Model(), head="nothing")
    with pytest.raises(ConfigError, match="no Embedding and no head"):
        rayguard.NumericGuard(torch.nn.Linear(2, 2))
