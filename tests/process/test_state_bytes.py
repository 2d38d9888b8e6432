"""State as bytes and back: whatever ``state_dict`` may return comes back equal."""

import collections
import enum
import io
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rayguard.process import state_bytes

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
ARRAYS = [
    np.bool_,
    np.int8,
    np.int64,
    np.uint16,
    np.float16,
    np.float32,
    np.float64,
    np.complex64,
    "U3",
    "S2",
]


def back(value):
    """Go the whole way, through one block of bytes as in a file."""
    data = b"".join(bytes(memoryview(part).cast("B")) for part in state_bytes.to_parts(value))
    return state_bytes.from_bytes(data)


def bits(tensor):
    """Return what a tensor holds, bit for bit: NaNs are equal to themselves."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def same(one, other):
    """Say whether two states are equal, types and bits included."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, tuple(one.shape)) == (other.dtype, tuple(other.shape))
            and bits(one) == bits(other)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)  # a NaN is not equal to itself


@st.composite
def tensors(draw):
    """A tensor of any dtype and shape, perhaps a view that does not lie in memory as it reads."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = int(np.prod(shape)) if shape else 1
    raw = draw(st.binary(min_size=16 * size, max_size=16 * size))
    if dtype is torch.bool:
        raw = bytes(one & 1 for one in raw)
    flat = torch.frombuffer(bytearray(raw or b"\0" * 16), dtype=dtype)[:size]
    tensor = flat.reshape(shape)
    form = draw(st.sampled_from(["as it is", "transposed", "sliced", "expanded", "conjugate", "wants grad"]))
    if form == "transposed" and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    elif form == "sliced" and tensor.dim() > 0:
        tensor = tensor[::2]
    elif form == "expanded":
        tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
    elif form == "conjugate" and dtype.is_complex:
        tensor = tensor.conj()
    elif form == "wants grad" and dtype.is_floating_point and dtype.itemsize > 1:
        tensor = tensor.clone().requires_grad_()
    return tensor


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=9)
arrays = st.sampled_from(ARRAYS).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
states = st.recursive(
    plain | arrays | arrays.map(np.transpose) | tensors(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(states)
def test_any_nested_state_comes_back_equal(state):
    """Types, shapes and bits; order of dicts too."""
    assert same(state, back(state))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3)], ids=str)
def test_each_dtype_and_shape(dtype, shape):
    """0-dim and empty ones too."""
    tensor = torch.arange(6)[: int(np.prod(shape))].reshape(shape).to(torch.float32).to(dtype)
    assert same(tensor, back([tensor])[0])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex64).conj().imag,
        torch.randn(4, 4).t(),
        torch.randn(4, 4)[1:3, ::2],
        torch.randn(4).expand(5, 4),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.nn.Parameter(torch.randn(3)),
        torch.randn(3).requires_grad_() * 2,
    ],
    ids=[
        "conjugate",
        "negative",
        "transposed",
        "sliced",
        "expanded",
        "channels last",
        "parameter",
        "of a graph",
    ],
)
def test_tensors_that_do_not_lie_in_memory_as_they_read(tensor):
    """Views, lazy signs, and what hangs in a graph."""
    assert same(tensor, back({"tensor": tensor})["tensor"])


@pytest.mark.parametrize("kind", ["parameter", "leaf"])
def test_what_is_trained_still_is(kind):
    """A class may hand its parameters over as they are, and take them as they are: its next step needs grads."""
    weight = torch.nn.Parameter(torch.ones(3)) if kind == "parameter" else torch.ones(3).requires_grad_()
    found = back({"weight": weight})["weight"]
    assert type(found) is type(weight)
    assert found.requires_grad
    assert found.is_leaf


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8),
    ],
    ids=["sparse", "csr", "quantized"],
)
@pytest.mark.filterwarnings("default")
def test_what_is_no_dense_tensor_comes_back_by_pickle(make):
    """Nothing of it lies in memory as it reads."""
    tensor = make()
    found = back(tensor)
    assert found.layout == tensor.layout
    dense = [one.dequantize() if one.is_quantized else one.to_dense() for one in (tensor, found)]
    assert torch.equal(*dense)


def test_one_tensor_in_two_places_is_one_afterwards():
    """Tied weights are tied still."""
    tied = torch.randn(4)
    found = back({"embedding": tied, "head": tied})
    assert found["embedding"] is found["head"]
    assert same(tied, found["head"])


def test_views_of_one_storage_share_it_still():
    """A store into one is seen in the others, as before; a slice does not bring its whole storage along."""
    storage = torch.arange(1_000_000, dtype=torch.float32)
    views = {"all": storage[:10], "some": storage[2:5], "odd": storage[1:9:2]}
    parts = state_bytes.to_parts(views)
    assert sum(memoryview(part).nbytes for part in parts) < 10_000
    found = back(views)
    assert same(views, found)
    found["all"].zero_()
    assert found["some"].tolist() == [0.0] * 3
    assert found["odd"].tolist() == [0.0] * 4


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 20), st.integers(1, 3)), min_size=1, max_size=6))
def test_a_store_into_one_view_is_seen_where_it_was_seen_before(cuts):
    """Whichever way the views overlap; and nowhere else."""
    storage = torch.arange(20)
    views = [storage[start : start + size : step] for start, size, step in cuts]
    found = back(views)
    for n, view in enumerate(views):
        if len(view):
            view[-1] = found[n][-1] = 100 + n
            assert [list(one) for one in found] == [list(one) for one in views]


def test_tied_weights_are_kept_once_and_tied_still():
    """``state_dict`` makes two tensors of them."""
    tied = torch.nn.Linear(100, 100, bias=False)
    model = torch.nn.Sequential(tied, tied)
    parts = state_bytes.to_parts(model.state_dict())
    assert sum(memoryview(part).nbytes for part in parts) < 1.1 * 100 * 100 * 4
    found = back(model.state_dict())
    assert found["0.weight"].data_ptr() == found["1.weight"].data_ptr()
    assert found._metadata == model.state_dict()._metadata


def test_thousands_of_tensors():
    """Each by itself, small and large."""
    state = {f"layer{n}": torch.full((n % 50,), float(n)) for n in range(5_000)}
    assert same(state, back(state))


class Named(torch.Tensor):
    """A subclass."""


def named(**attributes):
    """Return a parameter with attributes, as frameworks of parallel layers have them."""
    found = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    vars(found).update(attributes)
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 4).t(),
        lambda: torch.randn(4).expand(5, 4),
        lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        lambda: torch.empty(3, 0, 2).transpose(0, 2),
        lambda: torch.randn(3).requires_grad_() * 2,
        lambda: torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
        lambda: torch.nn.Buffer(torch.ones(2)),
        lambda: named(tensor_model_parallel=True),
        lambda: torch.ones(3).as_subclass(Named),
        lambda: torch.ones(3, device="meta"),
        lambda: torch.tensor(5.0),
    ],
    ids=[
        "transposed",
        "expanded",
        "channels last",
        "empty",
        "of a graph",
        "parameter",
        "buffer",
        "with attributes",
        "subclass",
        "meta",
        "number",
    ],
)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_tensor_comes_back_as_torch_would_load_it(make):
    """Its class, strides, gradients and attributes."""
    tensor, file = make(), io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    loaded, found = torch.load(file, weights_only=False), back([tensor])[0]
    for said in (type, vars, *map(_said, ("dtype", "shape", "device", "requires_grad", "is_leaf"))):
        assert said(found) == said(loaded)
    assert found.stride() == loaded.stride()
    assert loaded.is_meta or torch.equal(found, loaded)


def _said(name):
    return lambda tensor: getattr(tensor, name)


def test_a_tensor_of_inference_comes_back():
    """Torch lets nobody store into it outside of inference, but what comes back is a plain one."""
    with torch.inference_mode():
        tensor = torch.ones(3)
    assert torch.equal(back([tensor])[0].zero_(), torch.zeros(3))


def test_what_comes_back_can_be_written_to():
    """The optimizer steps in place."""
    found = back({"tensor": torch.ones(3), "array": np.ones(3), "long": np.ones(100_000)})
    for one in found.values():
        one[0] += 1
        assert float(one[0]) == 2.0


def test_a_read_only_array_stays_one():
    """As it was."""
    array = np.ones(100_000)
    array.flags.writeable = False
    assert not back(array).flags.writeable


def test_a_model_and_its_optimizer_go_on_as_they_were():
    """What a trainer hands over, bit for bit; the next step is the same."""

    def trainer():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)

    def step(model, optimizer, n):
        inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(n))
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    one, other = trainer(), trainer()
    for n in range(3):
        step(*one, n)
    state = back(
        {"model": one[0].state_dict(), "optimizer": one[1].state_dict(), "rng": torch.get_rng_state()}
    )
    other[0].load_state_dict(state["model"])
    other[1].load_state_dict(state["optimizer"])
    assert same(one[1].state_dict(), other[1].state_dict())
    assert [step(*one, n) for n in range(3, 6)] == [step(*other, n) for n in range(3, 6)]


class Phase(enum.Enum):
    """A plain class of the user's."""

    WARM = 1


def test_other_classes_go_as_ray_moves_them():
    """Ordered dicts, enums, and classes of a script, by value."""

    class Local:
        def __init__(self, tensor):
            self.tensor = tensor

    state = collections.OrderedDict(
        phase=Phase.WARM, local=Local(torch.ones(2)), generator=np.random.default_rng(3)
    )
    found = back(state)
    assert type(found) is collections.OrderedDict
    assert found["phase"] is Phase.WARM
    assert same(found["local"].tensor, torch.ones(2))
    assert found["generator"].random() == state["generator"].random()


def test_the_bytes_of_tensors_are_views_and_no_copies():
    """Twice the memory of a big state is not there."""
    tensor, array = torch.zeros(1 << 20), np.zeros(1 << 20)
    parts = state_bytes.to_parts({"tensor": tensor, "array": array})
    views = [part for part in parts if isinstance(part, memoryview) and part.nbytes > 10_000]
    assert sum(view.nbytes for view in views) == 12 << 20
    tensor[5], array[5] = 1.0, 1.0
    assert state_bytes.from_bytes(b"".join(parts))["tensor"][5] == 1.0
    assert state_bytes.from_bytes(b"".join(parts))["array"][5] == 1.0


def test_without_torch_none_is_loaded(monkeypatch):
    """An actor without torch does not pay for it."""
    monkeypatch.delitem(sys.modules, "torch")
    state_bytes.to_parts({"n": 1, "array": np.ones(3)})
    assert "torch" not in sys.modules


@settings(max_examples=30)
@given(st.data())
def test_a_cut_state_is_an_error_and_never_another_state(data):
    """Wherever it is cut."""
    whole = b"".join(state_bytes.to_parts({"n": 3, "weight": torch.arange(50), "text": "x" * 40}))
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(Exception, match=r"(?s).*"):
        state_bytes.from_bytes(cut)


def test_what_does_not_pickle_is_its_own_error():
    """The keeper tells it."""
    import threading

    with pytest.raises(TypeError, match="lock"):
        state_bytes.to_parts({"lock": threading.Lock()})
