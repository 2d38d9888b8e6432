"""The census: which container grows, by what name, and that it keeps nothing alive."""

import array
import gc
import itertools
import mmap
import weakref
from collections import OrderedDict, defaultdict, deque
from multiprocessing.shared_memory import SharedMemory

import pytest

from rayguard.memory.growth.heap_census import CensusError, HeapCensus
from rayguard.memory.growth.weight import Buffer, buffer, weight

pytestmark = pytest.mark.usefixtures("own_heap")

KIB = 1 << 10
SIZE = 64 * KIB
ALWAYS = 1e12  # of the time: a pass is always due


class Holder:
    """Stands for a trainer."""

    def __init__(self, kept=None):
        self.kept = kept


class Node:
    """One of a chain."""

    def __init__(self, before=None):
        self.before = before


def census(step, *, passes=4, **kwargs):
    """Pass over the heap after each of some steps; return what was found."""
    taken = HeapCensus(share=ALWAYS, **kwargs)
    for number in range(passes):
        step(number)
        assert taken.look(number, last=number == passes - 1)
    return taken


CONTAINERS = {
    "list": (list, lambda kept, n: kept.append(bytearray(SIZE))),
    "dict": (dict, lambda kept, n: kept.update({n: bytearray(SIZE)})),
    "OrderedDict": (OrderedDict, lambda kept, n: kept.update({n: bytearray(SIZE)})),
    "defaultdict": (lambda: defaultdict(list), lambda kept, n: kept[n].append(bytearray(SIZE))),
    "deque": (deque, lambda kept, n: kept.append(bytearray(SIZE))),
    "set": (set, lambda kept, n: kept.add(bytes([n % 256]) * SIZE)),
    "subclass": (type("Mine", (list,), {}), lambda kept, n: kept.append(bytearray(SIZE))),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_that_grows_is_named_by_the_way_to_it(kind):
    """Any of Python's, also a dict that the collector does not know since it holds nothing but bytes."""
    make, grow = CONTAINERS[kind]
    trainer = Holder(make())
    held, _ = census(lambda number: grow(trainer.kept, number)).found()
    assert held[0].path == "Holder.kept"
    assert held[0].items_per_step == 1
    assert held[0].item_bytes == pytest.approx(SIZE, rel=0.05)


def test_what_does_not_grow_any_more_is_not_named():
    """A cache that is full, a queue that is emptied, a list that is made anew."""
    trainer = Holder()
    full, queue = {}, []

    def step(number):
        if len(full) < 2:
            full[number] = bytearray(SIZE)
        queue[:] = [bytearray(SIZE)] * (number % 2 + 1)
        trainer.kept = [bytearray(SIZE) for _ in range(number + 1)]

    held, _ = census(step, passes=5).found()
    assert held == ()


@pytest.mark.parametrize("kind", [list, deque])
def test_a_queue_that_fills_faster_than_it_is_emptied_grows(kind):
    """Its first item is always another."""
    trainer = Holder(kind([bytearray(SIZE)]))

    def step(number):
        trainer.kept.extend(bytearray(SIZE) for _ in range(3))
        del trainer.kept[0]

    held, _ = census(step).found()
    assert held[0].path == "Holder.kept"
    assert held[0].items_per_step == 2


def test_objects_that_hold_each_other_are_told_by_their_type():
    """No container grows in a chain; the way is to the newest, not along the chain."""
    trainer = Holder()

    def step(number):
        trainer.kept = Node(trainer.kept)

    _, kinds = census(step).found()
    (node,) = (kind for kind in kinds if kind.name.endswith("Node"))
    assert node.number_per_step == 1
    assert node.path == "Holder.kept"


def test_nothing_is_kept_alive():
    """What the user drops is gone at once, in the middle of a census and after it."""
    trainer, refs = Holder([]), []
    taken = HeapCensus(share=ALWAYS)
    gc.collect()
    gc.disable()
    try:
        for number in range(5):
            trainer.kept.append(Holder(bytearray(SIZE)))
            refs.append(weakref.ref(trainer.kept[-1]))
            taken.look(number, last=number >= 3)
        whole = weakref.ref(trainer)
        del trainer
        assert whole() is None
        assert [ref() for ref in refs] == [None] * 5
        assert taken.found()[0][0].path == "Holder.kept"
    finally:
        gc.enable()


def test_a_failure_keeps_nothing_alive_either(monkeypatch):
    """The frames of an error would hold the whole heap for as long as somebody has it."""
    one = Holder()
    seen = weakref.ref(one)

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(HeapCensus, "_types", broken)
    taken = HeapCensus()
    with pytest.raises(CensusError, match="ZeroDivisionError") as caught:
        taken.look(0)
    del one
    assert seen() is None
    assert caught.value.__context__ is None
    assert taken.off
    assert not taken.look(1)


def test_a_twentieth_of_the_time_is_the_most():
    """The next pass comes no sooner than twenty times what the last one took."""
    now, cpu = [100.0], itertools.count(0.0, 0.01)
    taken = HeapCensus(clock=lambda: now[0], cpu=lambda: next(cpu))
    assert taken.look(0)
    took = taken.took_s
    now[0] += took * 19
    assert not taken.look(1)
    now[0] += took * 2
    assert taken.look(2)


def test_a_heap_that_takes_too_long_is_looked_at_less_closely_and_then_not_at_all():
    """No step waits longer than the deadline, twice."""
    cpu = itertools.count(0.0, 1.0)
    taken = HeapCensus(cpu=lambda: next(cpu), clock=itertools.count(0.0, 1e9).__next__, deadline_s=0.5)
    assert not taken.look(0)
    assert "types and some dicts were not looked at" in taken.note
    assert not taken.off
    assert not taken.look(1)
    assert taken.off
    assert taken.note.startswith("the heap was not looked at")


def test_no_code_of_the_users_runs():
    """A lazy proxy must not load what it stands for."""

    class Touchy(dict):
        @property
        def __class__(self):
            raise AssertionError

        def __getattribute__(self, name):
            raise AssertionError(name)

        def __len__(self):
            raise AssertionError

        def __sizeof__(self):
            raise AssertionError

        __hash__ = None

    kept = Holder([Touchy()])
    held, _ = census(lambda number: kept.kept.extend(Touchy() for _ in range(2000))).found()
    assert held[0].path == "Holder.kept"


def test_buffers_are_weighed_once():
    """Two views of one memory are one memory."""
    np = pytest.importorskip("numpy")
    big = np.ones(SIZE)
    seen = set()
    assert weight([big, big[1:], big[::2]], seen) == pytest.approx(8 * SIZE, rel=0.01)
    assert weight(memoryview(bytearray(SIZE)), set()) == pytest.approx(SIZE, rel=0.01)
    assert weight([array.array("d", [1.0] * SIZE), b"x" * SIZE, "x" * SIZE], set()) == pytest.approx(
        10 * SIZE, rel=0.01
    )


def test_the_size_of_mapped_memory_is_seen():
    """Python's own size of it is a few bytes."""
    mapped = mmap.mmap(-1, SIZE)
    assert weight(Holder({"a": mapped}), set()) > SIZE
    segment = SharedMemory(create=True, size=SIZE)
    try:
        assert buffer(segment).size >= SIZE
        assert weight(segment, set()) == pytest.approx(SIZE, rel=0.1)
    finally:
        segment.close()
        segment.unlink()
    mapped.close()
    assert buffer(mapped) is None
    view = memoryview(b"x")
    view.release()
    assert buffer(view) is None


def test_torchs_tensors_are_weighed_by_their_storage():
    """A view of ten elements keeps all of it; a tensor without memory has no size."""
    torch = pytest.importorskip("torch")
    tensor = torch.ones(SIZE)
    assert buffer(tensor[:10]) == Buffer(("torch", tensor.data_ptr()), 4 * SIZE, "cpu")
    assert weight([tensor, tensor[:10]], set()) == pytest.approx(4 * SIZE, rel=0.05)
    assert buffer(torch.eye(3).to_sparse()) is None
    trainer = Holder([])

    def step(number):
        trainer.kept.append(torch.ones(SIZE))

    held, kinds = census(step).found()
    assert held[0].item == "torch tensor on cpu"
    assert held[0].bytes_per_step == pytest.approx(4 * SIZE, rel=0.05)
    (tensors,) = (kind for kind in kinds if kind.name == "torch tensor on cpu")
    assert tensors.bytes_per_step == pytest.approx(4 * SIZE, rel=0.05)
