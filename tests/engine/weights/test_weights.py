"""Weights as values: what is refused, what a digest proves, and where the current version comes from."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayguard.engine.weights import spill as spilling
from rayguard.engine.weights.sources import (
    CallbackWeights,
    CheckpointWeights,
    HeldWeights,
    WeightSource,
    as_source,
)
from rayguard.engine.weights.spill import sendable, spill
from rayguard.engine.weights.tensorfile import BLOCK_BYTES
from rayguard.engine.weights.version import WeightReceipt, Weights, check, verify
from rayguard.errors import ConfigError, WeightsError


def tensor_bytes(header: dict, data: bytes) -> bytes:
    """Return safetensors data, well or badly formed."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(dtype: str = "F32", data: bytes = bytes(16), shape: tuple[int, ...] = (4,)) -> bytes:
    """Return safetensors data with one tensor ``w``."""
    return tensor_bytes({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}, data)


GOOD = one()


# -- the value ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given_", [{}, {"payload": GOOD, "path": "/x"}])
def test_weights_are_bytes_or_a_path(given_):
    """Neither and both are refused when the value is made."""
    with pytest.raises(ConfigError, match="exactly one"):
        Weights("v1", **given_)


@pytest.mark.parametrize("version", ["", 3, None])
def test_a_version_is_a_non_empty_string(version):
    """The empty version is what a worker reports that knows none."""
    with pytest.raises(ConfigError, match="non-empty string"):
        Weights(version, payload=GOOD)


def test_a_payload_is_bytes():
    """Tensors are refused with the way to send them."""
    with pytest.raises(ConfigError, match="from_tensors"):
        Weights("v1", payload={"w": 1})


def test_weights_survive_pickling_with_their_digest():
    """They go through Ray, and are not hashed again on the other side."""
    weights = Weights("v1", payload=GOOD)
    digest = weights.digest
    copy = pickle.loads(pickle.dumps(weights))
    assert copy == weights
    assert copy._digest == [digest]


def test_a_megabyte_payload_does_not_show_in_a_traceback():
    """Errors and logs print the value."""
    assert len(repr(Weights("v1", payload=bytes(1 << 20)))) < 200


def test_a_relative_path_means_the_same_in_every_process(tmp_path, monkeypatch):
    """An engine's worker may have another working directory."""
    monkeypatch.chdir(tmp_path)
    assert Weights("v1", path="w.safetensors").path == str(tmp_path / "w.safetensors")


def test_digest_is_of_the_bytes_and_equal_for_the_same_bytes_in_a_file(tmp_path):
    """Bytes and file are two ways to send one thing."""
    (tmp_path / "w.safetensors").write_bytes(GOOD)
    wanted = hashlib.sha256(GOOD).hexdigest()
    assert Weights("v1", payload=GOOD).digest == wanted
    assert Weights("v1", path=str(tmp_path / "w.safetensors")).digest == wanted
    assert Weights("v1", path=str(tmp_path)).digest == wanted


def test_digest_of_many_files_changes_with_each_byte_and_each_name(tmp_path):
    """Shards that trade places are other weights."""
    (tmp_path / "a.safetensors").write_bytes(GOOD)
    (tmp_path / "b.safetensors").write_bytes(one(data=b"\1" * 16))
    first = Weights("v1", path=str(tmp_path)).digest
    (tmp_path / "b.safetensors").rename(tmp_path / "c.safetensors")
    second = Weights("v1", path=str(tmp_path)).digest
    (tmp_path / "c.safetensors").write_bytes(one(data=b"\2" * 16))
    assert len({first, second, Weights("v1", path=str(tmp_path)).digest}) == 3


def test_digest_is_computed_once(tmp_path):
    """The bytes that were checked are the bytes that are meant, also when the file changes."""
    file = tmp_path / "w.safetensors"
    file.write_bytes(GOOD)
    weights = Weights("v1", path=str(file))
    digest = weights.digest
    file.write_bytes(b"other")
    assert weights.digest == digest


def test_a_missing_path_is_a_weights_error():
    """Not an OSError from somewhere inside."""
    with pytest.raises(WeightsError, match=r"no \.safetensors files"):
        _ = Weights("v1", path="/nowhere/at/all").digest


def test_names_come_from_the_header_alone(tmp_path):
    """Dtype and shape of every tensor of every file; of a folder what its index names."""
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "I64", "shape": [], "data_offsets": [12, 20]},
    }
    assert Weights("v", payload=tensor_bytes(header, bytes(20))).names() == {
        "a": ("BF16", (2, 3)),
        "b": ("I64", ()),
    }
    (tmp_path / "one.safetensors").write_bytes(GOOD)
    (tmp_path / "stale.safetensors").write_bytes(GOOD)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "one.safetensors"}}')
    assert Weights("v", path=str(tmp_path)).names() == {"w": ("F32", (4,))}


def test_a_tensor_in_two_files_is_refused(tmp_path):
    """Which one would win is chance."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.safetensors").write_bytes(GOOD)
    with pytest.raises(WeightsError, match=r"'w' is in .* and in another file"):
        check(Weights("v", path=str(tmp_path)))


# -- check -------------------------------------------------------------------------------------------------


MALFORMED = {
    "empty": (b"", "is empty"),
    "noise": (b"no safetensors at all", "no complete safetensors"),
    "not json": (struct.pack("<Q", 4) + b"oops", "header cannot be read"),
    "json list": (struct.pack("<Q", 2) + b"[]", "header cannot be read"),
    "no tensors": (tensor_bytes({}, b""), "holds no tensors"),
    "only metadata": (tensor_bytes({"__metadata__": {}}, b""), "holds no tensors"),
    "no shape": (tensor_bytes({"w": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)), "cannot be read"),
    "wrong size": (one(shape=(5,)), "malformed at tensor 'w'"),
    "gap": (
        tensor_bytes({"w": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}, bytes(4)),
        "malformed at tensor 'w'",
    ),
    "trailing": (GOOD + b"\0", "cut off or padded"),
    "backwards": (
        tensor_bytes({"w": {"dtype": "F4", "shape": [2], "data_offsets": [4, 0]}}, bytes(4)),
        "malformed at tensor 'w'",
    ),
}


@pytest.mark.parametrize("how", MALFORMED)
def test_malformed_weights_are_refused(how):
    """Each with what is wrong with it, before any engine sees it."""
    payload, why = MALFORMED[how]
    with pytest.raises(WeightsError, match=why):
        check(Weights("v1", payload=payload))


@given(st.integers(0, len(GOOD) - 1))
def test_weights_that_are_still_being_written_are_refused(length):
    """Whatever the point at which the writer is."""
    with pytest.raises(WeightsError):
        check(Weights("v1", payload=GOOD[:length]))


TORCH = ["float64", "float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "complex64"]


@settings(max_examples=60)
@given(st.sampled_from(TORCH), st.integers(0, 99), st.sampled_from(["nan", "inf", "-inf"]))
def test_a_single_non_finite_value_anywhere_is_found(dtype, at, value):
    """The tensor is named; every float type that safetensors knows, judged by torch itself."""
    torch = pytest.importorskip("torch", reason="makes the tensors")
    if dtype == "float8_e4m3fn":
        value = "nan"  # it has no infinity
    plain = torch.linspace(-2, 2, 100).to(getattr(torch, dtype))
    bad = plain.clone()
    bad[at] = float(value)
    check(Weights.from_tensors("v", {"fine": plain}))
    with pytest.raises(WeightsError, match=r"tensor 'sick' holds NaN or infinity"):
        check(Weights.from_tensors("v", {"fine": plain, "sick": bad}))
    check(Weights.from_tensors("v", {"sick": bad}), finite=False)


def test_the_largest_finite_values_pass():
    """The scan looks at bits: a value beside infinity is no infinity."""
    torch = pytest.importorskip("torch", reason="makes the tensors")
    for name in TORCH[:-1]:
        dtype = getattr(torch, name)
        limits = torch.finfo(dtype)
        values = [limits.max, limits.min, limits.smallest_normal, 0.0]
        check(Weights.from_tensors("v", {"w": torch.tensor(values, dtype=torch.float64).to(dtype)}))


def test_a_value_in_the_last_block_is_found():
    """Large tensors are read in blocks."""
    data = bytearray(BLOCK_BYTES + 8)
    data[-4:] = struct.pack("<f", float("nan"))
    with pytest.raises(WeightsError, match="'w' holds NaN"):
        check(Weights("v", payload=one(data=bytes(data), shape=(len(data) // 4,))))


def test_integers_are_never_non_finite():
    """All bits set is a number there."""
    check(Weights("v", payload=one(dtype="I32", data=b"\xff" * 16)))


# -- from_tensors ------------------------------------------------------------------------------------------


def test_tied_and_strided_tensors_arrive_whole():
    """A state_dict holds tied tensors twice, and views; safetensors alone refuses the first."""
    torch = pytest.importorskip("torch", reason="makes the tensors")
    from safetensors.torch import load

    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    sent = {"embed": base, "head": base, "turned": base.t(), "row": base[1], "none": torch.empty(0)}
    weights = Weights.from_tensors("v", sent)
    check(weights)
    for name, tensor in load(weights.payload).items():
        assert torch.equal(tensor, sent[name])


def test_a_shard_of_a_distributed_tensor_is_refused():
    """It would send one rank's part under the whole tensor's name."""
    pytest.importorskip("torch", reason="from_tensors needs it")
    with pytest.raises(ConfigError, match=r"full_tensor\(\)"):
        Weights.from_tensors("v", {"w": SimpleNamespace(full_tensor=None)})


# -- verify ------------------------------------------------------------------------------------------------

WANTED = Weights("v2", payload=GOOD)
TRUE = WeightReceipt(version="v2", digest=WANTED.digest, tensors=1)


def test_all_ranks_with_the_wanted_weights_pass():
    """Nothing is raised."""
    verify(WANTED, [TRUE, TRUE])


@pytest.mark.parametrize(
    ("receipts", "why"),
    [
        ([], "no worker reported"),
        (
            [TRUE, WeightReceipt(version="v1", digest=TRUE.digest, tensors=1)],
            "worker 1 of 2 has weights 'v1'",
        ),
        ([WeightReceipt(version="", digest="", tensors=0)], "none that was ever confirmed"),
        ([TRUE, WeightReceipt(version="v2", digest="0" * 64, tensors=1)], "worker 1 of 2 has other bytes"),
    ],
)
def test_one_rank_with_other_weights_refuses_the_engine(receipts, why):
    """The rank and both versions are named."""
    with pytest.raises(WeightsError, match=why):
        verify(WANTED, receipts)


# -- spilling ----------------------------------------------------------------------------------------------


def test_large_payloads_travel_as_a_file_that_goes_away(tmp_path):
    """Same version, same digest; a file left in shared memory would be memory that nobody frees."""
    with sendable(WANTED, str(tmp_path), limit_bytes=8) as sent:
        assert sent.payload is None
        assert (sent.version, sent.digest) == (WANTED.version, WANTED.digest)
        assert Path(sent.path).read_bytes() == GOOD
    assert list(tmp_path.iterdir()) == []


def test_two_pushes_of_the_same_weights_do_not_share_a_file(tmp_path):
    """The first to end would take the other's away."""
    with sendable(WANTED, str(tmp_path), limit_bytes=8) as one_way:
        with sendable(WANTED, str(tmp_path), limit_bytes=8):
            pass
        assert Path(one_way.path).read_bytes() == GOOD


def test_spilled_weights_go_away_when_the_push_fails(tmp_path):
    """Also then."""
    with pytest.raises(WeightsError, match="refused"), sendable(WANTED, str(tmp_path), limit_bytes=8):
        raise WeightsError("refused")
    assert list(tmp_path.iterdir()) == []


def test_small_payloads_and_paths_travel_as_they_are(tmp_path):
    """A checkpoint of the user's is never copied, and above all never deleted."""
    file = tmp_path / "w.safetensors"
    file.write_bytes(GOOD)
    path = Weights("v", path=str(file))
    for weights in (WANTED, path):
        with sendable(weights, str(tmp_path / "unused"), limit_bytes=1 << 20) as sent:
            assert sent is weights
    assert spill(path, "/nowhere") is path
    assert file.exists()


def test_no_room_is_said_so_and_leaves_nothing(tmp_path, monkeypatch):
    """Containers have 64 MiB of shared memory unless told otherwise."""

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spilling.Path, "replace", full)
    with pytest.raises(WeightsError, match=r"do not fit into .*No space left.*--shm-size"):
        spill(WANTED, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WeightsError, match="do not fit"):
        spill(WANTED, str(tmp_path / "missing"))


# -- sources -----------------------------------------------------------------------------------------------


def test_as_source_knows_what_users_give(tmp_path):
    """A source, weights, a function, a path; anything else is an error at once."""
    source = CallbackWeights(lambda: None)
    assert as_source(source) is source
    assert as_source(WANTED).current() is WANTED
    assert as_source(lambda: WANTED).current() is WANTED
    assert isinstance(as_source(tmp_path), CheckpointWeights)
    assert isinstance(as_source(str(tmp_path)), WeightSource)
    with pytest.raises(ConfigError, match="got int"):
        as_source(3)


@pytest.mark.parametrize("body", [GOOD, bytearray(GOOD), memoryview(GOOD)])
def test_a_callback_may_return_version_and_bytes(body):
    """Step numbers are turned into version names."""
    assert CallbackWeights(lambda: (7, body)).current() == Weights("7", payload=GOOD)


def test_a_callback_may_return_a_path_tensors_or_nothing(tmp_path):
    """The other bodies."""
    torch = pytest.importorskip("torch", reason="makes the tensors")
    assert CallbackWeights(lambda: ("a", tmp_path)).current() == Weights("a", path=str(tmp_path))
    tensors = CallbackWeights(lambda: ("b", {"w": torch.ones(2)})).current()
    assert tensors.names() == {"w": ("F32", (2,))}
    assert CallbackWeights(lambda: None).current() is None


async def a_coroutine():
    """Return nothing that anybody waits for."""


@pytest.mark.parametrize("value", [3, "v1", ("v1",), ("v1", 3), (GOOD, "v1", 2), a_coroutine])
def test_anything_else_from_a_callback_is_refused_with_what_it_may_return(value):
    """Coroutines included, without a warning that they were never awaited."""
    fn = value if value is a_coroutine else lambda: value
    with pytest.raises(ConfigError, match="must return Weights, None"):
        CallbackWeights(fn).current()


def test_what_a_callback_raises_comes_out_as_it_is():
    """A user's own error keeps its type."""
    with pytest.raises(ZeroDivisionError):
        CallbackWeights(lambda: 1 // 0).current()


class FakeRay(ModuleType):
    """What of Ray is used: references that resolve, hang or fail."""

    class ObjectRef:
        """A reference that may point to anything, itself included."""

        def __init__(self, value):
            self.value = value

        def hex(self):
            return f"{id(self):x}"

    class RayError(Exception):
        """Base of what Ray raises."""

    class GetTimeoutError(RayError, TimeoutError):
        """The wait is over."""

    exceptions = SimpleNamespace(RayError=RayError)

    def get(self, ref, timeout):
        assert timeout == 5.0
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay("ray")
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def test_references_are_followed_to_the_weights(ray):
    """As the whole answer, and as the body of one."""
    assert CallbackWeights(lambda: ray.ObjectRef(WANTED), timeout_s=5.0).current() is WANTED
    assert CallbackWeights(lambda: (1, ray.ObjectRef(GOOD)), timeout_s=5.0).current().payload == GOOD
    nested = ray.ObjectRef((2, ray.ObjectRef(ray.ObjectRef(GOOD))))
    assert CallbackWeights(lambda: nested, timeout_s=5.0).current().version == "2"


def test_a_reference_that_cannot_be_fetched_is_a_weights_error(ray):
    """The trainer may be dead; the wait ends."""
    late = ray.ObjectRef(ray.GetTimeoutError("too late"))
    with pytest.raises(WeightsError, match="within 5 s: GetTimeoutError: too late"):
        CallbackWeights(lambda: late, timeout_s=5.0).current()


def test_what_the_asker_holds_already_is_not_fetched_again(ray, monkeypatch):
    """The same reference under the same version: its bytes are known by their digest."""
    offered = {"now": ("1", ray.ObjectRef(GOOD))}
    source = CallbackWeights(lambda: offered["now"], timeout_s=5.0)
    held = source.current_unless("").digest
    get = ray.get
    monkeypatch.setattr(ray, "get", None)  # a fetch would fail
    assert source.current_unless(held) == HeldWeights("1")
    monkeypatch.setattr(ray, "get", get)
    assert source.current_unless("another digest").digest == held
    assert source.current().payload == GOOD
    offered["now"] = ("1", ray.ObjectRef(GOOD))
    assert source.current_unless(held).payload == GOOD, "another reference may be anything"
    offered["now"] = ("2", offered["now"][1])
    assert source.current_unless(held).version == "2"
    offered["now"] = ("2", GOOD)
    assert source.current_unless(held).payload == GOOD, "no reference, nothing saved"


def test_a_reference_to_itself_ends(ray):
    """No loop goes on for ever."""
    loop = ray.ObjectRef(None)
    loop.value = loop
    with pytest.raises(ConfigError, match="must return"):
        CallbackWeights(lambda: loop, timeout_s=5.0).current()


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_real_actor_method_is_a_source(monkeypatch):
    """``trainer.weights.remote`` is all a user writes; a dead trainer is an error and no endless wait."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    try:

        @ray.remote(num_cpus=0)
        class Trainer:
            def weights(self):
                return ("step-3", ray.put(GOOD))

        trainer = Trainer.remote()
        source = as_source(trainer.weights.remote)
        assert source.current() == Weights("step-3", payload=GOOD)
        ray.kill(trainer)
        with pytest.raises(WeightsError, match="ActorDiedError"):
            for _ in range(200):  # a call that is sent at once may still be answered
                source.current()
    finally:
        ray.shutdown()


def save(folder: Path, data: bytes = GOOD, saved_s: int = 1) -> Path:
    """Write a one-file checkpoint as if saved at a given time."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.safetensors"
    file.write_bytes(data)
    os.utime(file, (saved_s, saved_s))
    return file


def test_the_newest_checkpoint_is_current_at_any_depth(tmp_path):
    """By time; of the same time, step 10 comes after step 9."""
    source = CheckpointWeights(str(tmp_path))
    assert source.current() is None
    save(tmp_path / "step_9" / "actor" / "hf", saved_s=5)
    assert source.current().version == "hf@5000000000"
    save(tmp_path / "step_10", saved_s=7)
    save(tmp_path / "step_9", saved_s=7)
    assert source.current().version == "step_10@7000000000"
    assert source.current().path == str(tmp_path / "step_10")


def test_a_checkpoint_that_is_being_written_is_passed_over(tmp_path):
    """The one before it stays current."""
    save(tmp_path / "step_1", saved_s=1)
    save(tmp_path / "step_2", GOOD[:-3], saved_s=2)
    (tmp_path / "step_3").mkdir()
    (tmp_path / "step_3" / "model.safetensors.index.json").write_text(
        '{"weight_map": {"w": "gone.safetensors"}}'
    )
    save(tmp_path / "step_3").rename(tmp_path / "step_3" / "other.safetensors")
    assert CheckpointWeights(str(tmp_path)).current().version == "step_1@1000000000"


def test_saving_over_a_checkpoint_is_a_new_version(tmp_path):
    """Same name, other bytes: never the same version; unchanged, the very same value with its digest."""
    file = save(tmp_path / "last", saved_s=1)
    source = CheckpointWeights(str(file))
    first = source.current()
    assert source.current() is first
    save(tmp_path / "last", one(data=b"\1" * 16), saved_s=2)
    second = source.current()
    assert second.version != first.version
    assert second.digest != first.digest


def test_a_checkpoint_folder_that_is_not_there_is_an_error_at_once(tmp_path):
    """A typo would mean an engine that is never updated."""
    with pytest.raises(ConfigError, match="no such checkpoint"):
        as_source(str(tmp_path / "chekpoints"))


def test_checkpoints_that_come_and_go_while_they_are_looked_for(tmp_path):
    """Trainers delete old ones at any moment; one is always found."""
    import shutil

    save(tmp_path / "keep", saved_s=1)
    source, stop, seen = CheckpointWeights(str(tmp_path)), threading.Event(), []

    def churn():
        while not stop.is_set():
            save(tmp_path / "brief", saved_s=2)
            shutil.rmtree(tmp_path / "brief")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        seen = [source.current() for _ in range(200)]
    finally:
        stop.set()
        thread.join(10)
    assert all(weights is not None for weights in seen)


def test_weights_load_neither_torch_nor_ray():
    """Nor numpy nor vLLM: the value is in every process."""
    code = (
        "import sys, rayguard.engine.weights.sources, rayguard.engine.weights.spill;"
        "print([m for m in ('ray', 'torch', 'vllm', 'numpy', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
