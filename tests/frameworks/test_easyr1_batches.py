"""Batches that do not divide, on the interface of EasyR1 in small; on EasyR1 itself: ``checks_easyr1``."""

from __future__ import annotations

import logging
import types

import pytest

from rayguard.cluster.plugin import config, worker_hook
from rayguard.frameworks import easyr1_batches, hooks


class DataProto:
    """Rows of named columns, as lists."""

    def __init__(self, batch, meta_info=None):
        self.batch, self.meta_info = batch, meta_info or {}

    def __len__(self):
        return len(next(iter(self.batch.values()))) if self.batch else 0

    def __getitem__(self, rows):
        return DataProto({name: value[rows] for name, value in self.batch.items()}, self.meta_info)

    @staticmethod
    def concat(data):
        """One after the other."""
        names = data[0].batch
        return DataProto({name: Column(row for one in data for row in one.batch[name]) for name in names})

    def chunk(self, chunks):
        """Cut into equal pieces."""
        assert len(self) % chunks == 0, f"only support equal chunk. Got size {len(self)} and chunk {chunks}."
        each = len(self) // chunks
        return [self[at * each : (at + 1) * each] for at in range(chunks)]

    def split(self, split_size):
        """Cut into pieces of this size."""
        assert len(self) % split_size == 0, f"only support equal split. Got {len(self)} and {split_size}."
        return self.chunk(len(self) // split_size)


class Column(list):
    """A list that can be written to in slices by a number, as a tensor can."""

    def __getitem__(self, at):
        found = super().__getitem__(at)
        return Column(found) if isinstance(at, slice) else found

    def __setitem__(self, at, value):
        if isinstance(at, slice):
            value = [value] * len(range(*at.indices(len(self))))
        super().__setitem__(at, value)

    def clone(self):
        """Copy."""
        return Column(self)


class FSDPWorker:
    """The one method of EasyR1's that is changed, as it is there."""

    def __init__(self, rollout_n):
        self.config = types.SimpleNamespace(rollout=types.SimpleNamespace(n=rollout_n))

    def _init_dist_mesh(self, config, role):
        config.global_batch_size *= self.config.rollout.n
        config.global_batch_size_per_device = config.global_batch_size // WORLD
        if config.global_batch_size_per_device % config.micro_batch_size_per_device_for_update:
            raise ValueError(
                f"{role} global batch size per device must be divisible by the micro batch size."
            )


WORLD = 6


def dispatch_dp_compute_data_proto(worker_group, *args, **kwargs):
    world = worker_group.world_size
    return [one.chunk(chunks=world) for one in args], {
        key: one.chunk(chunks=world) for key, one in kwargs.items()
    }


def collect_dp_compute_data_proto(worker_group, outputs):
    assert len(outputs) == worker_group.world_size
    return DataProto.concat(outputs) if outputs[0].batch else outputs[0]


def get_seqlen_balanced_partitions(seqlen_list, k_partitions, equal_size):
    if equal_size:
        assert len(seqlen_list) % k_partitions == 0
    return [list(range(at, len(seqlen_list), k_partitions)) for at in range(k_partitions)]


def easyr1(**other):
    """Return the four modules of EasyR1, fresh, with what a test has in other ways."""
    classes = {
        "DataProto": type("DataProto", (DataProto,), dict(vars(DataProto))),
        "FSDPWorker": type("FSDPWorker", (FSDPWorker,), dict(vars(FSDPWorker))),
    }
    modules = {}
    for name in (
        easyr1_batches.DISPATCH,
        easyr1_batches.PROTOCOL,
        easyr1_batches.TRAINER,
        easyr1_batches.WORKERS,
    ):
        modules[name] = types.ModuleType(name)
    modules[easyr1_batches.DISPATCH].DataProto = DataProto
    modules[easyr1_batches.DISPATCH].dispatch_dp_compute_data_proto = dispatch_dp_compute_data_proto
    modules[easyr1_batches.DISPATCH].collect_dp_compute_data_proto = collect_dp_compute_data_proto
    modules[easyr1_batches.PROTOCOL].DataProto = classes["DataProto"]
    modules[easyr1_batches.TRAINER].get_seqlen_balanced_partitions = get_seqlen_balanced_partitions
    modules[easyr1_batches.WORKERS].FSDPWorker = classes["FSDPWorker"]
    for name, value in other.items():
        holder = next(module for module in modules.values() if hasattr(module, name))
        setattr(holder, name, value)
    return modules


@pytest.fixture
def modules():
    """The four modules, changed."""
    found = easyr1()
    assert all(easyr1_batches.attach(module) for module in found.values())
    return found


def called(modules, batch, work, world=WORLD):
    """Make a call as a group does: share out, let each worker do its work, bring together."""
    group, dispatch = types.SimpleNamespace(world_size=world), modules[easyr1_batches.DISPATCH]
    (pieces,), _ = dispatch.dispatch_dp_compute_data_proto(group, DataProto(batch))
    return pieces, dispatch.collect_dp_compute_data_proto(group, [work(piece) for piece in pieces])


@pytest.mark.parametrize(("rows", "each"), [(512, 1), (512, 5), (7, 4), (12, 2), (1, 3)])
def test_what_is_sampled_comes_back_for_each_row_in_its_place(modules, rows, each):
    """However many answers a prompt has; copies are cut off again."""

    def sample(piece):
        return DataProto({"answers": Column(row for row in piece.batch["ids"] for _ in range(each))})

    pieces, found = called(modules, {"ids": Column(range(rows))}, sample)
    assert len({len(piece) for piece in pieces}) == 1
    assert list(found.batch["answers"]) == [row for row in range(rows) for _ in range(each)]


def test_rows_that_fill_up_do_not_count_where_gradients_are_made(modules):
    """512 rows on 6 workers: 516, of which 512 have a mask; the workers' metrics are left as they are."""
    batch = {"ids": Column(range(512)), "response_mask": Column([1] * 512)}
    pieces, metrics = called(modules, batch, lambda _: DataProto(None))
    assert [len(piece) for piece in pieces] == [86] * 6
    assert sum(sum(piece.batch["response_mask"]) for piece in pieces) == 512
    assert pieces[-1].batch["response_mask"][-4:] == [0] * 4
    assert batch["response_mask"] == [1] * 512, "the caller's own batch stays as it is"
    assert metrics.batch is None


def test_a_call_that_failed_leaves_nothing_for_the_next_one(modules):
    """One call's rows are forgotten as another one begins."""
    group, dispatch = types.SimpleNamespace(world_size=4), modules[easyr1_batches.DISPATCH]
    dispatch.dispatch_dp_compute_data_proto(group, DataProto({"ids": Column(range(7))}))
    _, found = called(modules, {"ids": Column(range(8))}, lambda piece: piece, world=4)
    assert list(found.batch["ids"]) == list(range(8))


def test_a_worker_cuts_what_is_left_into_a_shorter_piece(modules):
    """What divides is cut by EasyR1 itself."""
    proto = modules[easyr1_batches.PROTOCOL].DataProto
    assert [len(one) for one in proto({"ids": Column(range(10))}).split(4)] == [4, 4, 2]
    assert [len(one) for one in proto({"ids": Column(range(8))}).split(4)] == [4, 4]


def test_a_batch_is_balanced_although_it_does_not_divide(modules):
    """Each row once; where nothing is to be equal, EasyR1's answer is untouched."""
    balanced = modules[easyr1_batches.TRAINER].get_seqlen_balanced_partitions
    found = balanced([5] * 28, 3, True)
    assert sorted(row for part in found for row in part) == list(range(28))
    assert balanced([5] * 28, 3, False) == get_seqlen_balanced_partitions([5] * 28, 3, False)


@pytest.fixture
def world(monkeypatch):
    """A process group of six."""
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(distributed, "get_world_size", lambda: WORLD)


def settings(global_batch_size, micro):
    """What EasyR1 calls an actor's configuration."""
    return types.SimpleNamespace(
        global_batch_size=global_batch_size,
        micro_batch_size_per_device_for_update=micro,
        ulysses_size=1,
        fsdp=types.SimpleNamespace(enable_cpu_offload=False),
    )


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("batch", "micro", "each", "mini"), [(128, 4, 107, 4), (512, 4, 427, 1), (120, 4, 100, 4)]
)
def test_as_many_optimizer_steps_as_were_asked_for(modules, batch, micro, each, mini):
    """512 prompts of 5 answers on 6 workers: a mini-batch is rounded up, and the last one may be shorter."""
    worker, config = modules[easyr1_batches.WORKERS].FSDPWorker(5), settings(batch, micro)
    worker._init_dist_mesh(config, "actor")
    assert config.global_batch_size_per_device == each
    assert config.micro_batch_size_per_device_for_update == micro
    assert config.global_batch_size == batch * 5
    rows = -(-mini * batch * 5 // WORLD)
    assert -(-rows // each) == mini


@pytest.mark.usefixtures("world")
def test_a_mini_batch_that_divides_is_refused_as_ever(modules):
    """100 on each worker is no multiple of 3, which EasyR1 says itself."""
    worker = modules[easyr1_batches.WORKERS].FSDPWorker(5)
    with pytest.raises(ValueError, match="micro batch size"):
        worker._init_dist_mesh(settings(120, 3), "actor")


def of_another_shape(worker_group, data, chunks):
    """A dispatch that is not the one we know."""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dispatch_dp_compute_data_proto", of_another_shape),
        ("get_seqlen_balanced_partitions", of_another_shape),
        ("FSDPWorker", type("FSDPWorker", (), {})),
    ],
)
def test_a_place_that_is_not_as_it_is_known_is_left_alone_and_said_once(name, value, caplog):
    """One line, and nothing is changed."""
    module = next(one for one in easyr1(**{name: value}).values() if hasattr(one, name))
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert not easyr1_batches.attach(module)
    assert getattr(module, name) is value
    assert len(caplog.records) == 1
    assert "not as it is known" in caplog.text


def test_verl_itself_is_left_alone_without_a_word(caplog):
    """It pads by its own means."""
    module = types.ModuleType(easyr1_batches.PROTOCOL)
    module.DataProto = type("DataProto", (), {"is_padding_enabled": lambda self: True})
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert not easyr1_batches.attach(module)
    assert not caplog.records


def test_each_module_that_is_changed_is_waited_for():
    """And that of the groups."""
    asked = {}
    hooks.watch_imports(asked.__setitem__)
    assert {*easyr1(), "verl.single_controller.ray.base"} <= set(asked)
    module = easyr1()[easyr1_batches.PROTOCOL]
    asked[easyr1_batches.PROTOCOL](module)
    assert len(module.DataProto({"ids": Column(range(3))}).split(2)) == 2


@pytest.mark.parametrize("asked_for", [True, False])
def test_workers_and_drivers_follow_frameworks_unless_told_not_to(monkeypatch, asked_for):
    """One key of the plugin's configuration."""
    asked, every = [], []
    hooks.watch_imports(lambda name, _: every.append(name))
    monkeypatch.setattr(
        "rayguard.frameworks.after_import.after_import", lambda name, then: asked.append(name)
    )
    worker_hook.follow_frameworks(config.asked({"frameworks": asked_for}))
    assert every
    assert asked == (every if asked_for else [])
