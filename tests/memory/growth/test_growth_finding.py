"""What explains a growth: the most exact cause that has a fair share of it, or none."""

import pytest

from rayguard.memory.growth.finding import (
    GrowingContainer,
    GrowingLine,
    GrowingType,
    GrowthEvidence,
    Mapped,
    Native,
    explain,
)
from rayguard.memory.growth.growing import Growing
from rayguard.memory.reading import Quantity

MIB = 1 << 20
ME = 7
GROWING = Growing(quantity=Quantity.HEAP, pid=ME, bytes_per_step=20 * MIB, since=3)
LINE = GrowingLine(
    file="/x/trainer.py", line=48, function="update", bytes_per_step=20 * MIB, blocks_per_step=1
)
HELD = GrowingContainer(
    kind="list", path="Trainer.seen", items_per_step=1, item_bytes=20 * MIB, item="bytearray"
)
GROWN = Native(private=20 * MIB, malloc_used=20 * MIB)


def test_a_container_with_its_line_is_one_sentence():
    """As the issue wants it."""
    found = explain(GROWING, GrowthEvidence(lines=(LINE,), held=(HELD,), native=GROWN), ME)
    assert found.sentence == (
        "heap of this process: 20 MiB a step since step 3: `list` Trainer.seen grows by 1 item a step "
        "(bytearray, 20 MiB each), allocated at trainer.py:48 in update: 20 MiB a step in 1 allocations"
    )
    assert found.where == "trainer.py:48 in update"
    assert found.bytes_per_step == 20 * MIB
    assert len(found.evidence) == 3


def test_what_has_a_small_share_does_not_explain():
    """A line of 1 MiB is not why 20 MiB are gone; it is evidence all the same where another is the cause."""
    small = GrowingLine(file="log.py", line=1, bytes_per_step=MIB)
    assert explain(GROWING, GrowthEvidence(lines=(small,)), ME) is None
    found = explain(GROWING, GrowthEvidence(lines=(small,), held=(HELD,)), ME)
    assert found.where == "Trainer.seen"
    assert "log.py" not in found.sentence
    assert any("log.py" in one for one in found.evidence)


def test_growth_that_has_ended_is_no_finding():
    """A cache that was full after the first look."""
    assert explain(GROWING, GrowthEvidence(lines=(LINE,), native=Native(private=MIB)), ME) is None
    # What was seen to get longer to the end counts more than the noise of a busy process
    assert (
        explain(GROWING, GrowthEvidence(held=(HELD,), native=Native(private=MIB)), ME).where == "Trainer.seen"
    )


def test_what_python_does_not_account_for_is_c():
    """The allocator holds more, and no traced line is behind it."""
    native = Native(
        private=20 * MIB, malloc_used=20 * MIB, mappings=(Mapped(name="[heap]", bytes_per_step=20 * MIB),)
    )
    found = explain(GROWING, GrowthEvidence(native=native), ME)
    assert "C code took by malloc and did not free ([heap])" in found.sentence
    assert found.where == "[heap]"


def test_free_memory_that_malloc_keeps_is_no_leak():
    """Fragmentation."""
    native = Native(private=20 * MIB, malloc_free=18 * MIB, malloc_used=MIB, trimmable=90 * MIB)
    found = explain(GROWING, GrowthEvidence(native=native), ME)
    assert "fragmentation and no leak; malloc_trim" in found.sentence
    assert found.where == "malloc"


def test_a_mapping_is_the_last_to_be_blamed():
    """Neither malloc nor Python: mmap."""
    native = Native(private=20 * MIB, mappings=(Mapped(name="/memfd:pool", bytes_per_step=19 * MIB),))
    assert explain(GROWING, GrowthEvidence(native=native), ME).where == "/memfd:pool"


def test_tensors_that_keep_their_graph_explain_native_growth():
    """Four bytes each for Python, megabytes for C++."""
    losses = GrowingContainer(
        kind="list", path="Trainer.losses", items_per_step=1, item_bytes=4, hint="detach() them"
    )
    kind = GrowingType(name="torch tensor on cpu", number_per_step=2, bytes_per_step=8 * MIB)
    found = explain(GROWING, GrowthEvidence(held=(losses,), kinds=(kind,), native=GROWN), ME)
    assert found.where == "Trainer.losses"
    assert "detach() them" in found.sentence


def test_tensors_without_a_container_are_told_by_device():
    """The type is what is left to say."""
    kind = GrowingType(name="torch tensor on cuda:0", number_per_step=3, bytes_per_step=30 * MIB)
    device = Growing(quantity=Quantity.TORCH, pid=ME, who="cuda:0", bytes_per_step=32 * MIB)
    found = explain(device, GrowthEvidence(kinds=(kind,)), ME)
    assert "3 more `torch tensor on cuda:0` a step (30 MiB)" in found.sentence


@pytest.mark.parametrize("quantity", list(Quantity))
def test_nothing_seen_is_nothing_found(quantity):
    """Rather than a guess."""
    growing = Growing(quantity=quantity, pid=ME, bytes_per_step=20 * MIB)
    assert explain(growing, GrowthEvidence(), ME) is None
    assert explain(growing, GrowthEvidence(native=Native(private=20 * MIB)), ME) is None
