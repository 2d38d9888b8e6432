"""The invariants of a pool's book, asserted."""


def check(book, of=()):
    """Assert them; ``of`` names ids that must be in the book."""
    queued = [*book._queue, *book._suspects]
    assert len(queued) == len(set(queued)), "queued twice"
    for request_id, entry in book.entries.items():
        holders = [slot.name for slot in book.slots.values() if request_id in slot.running]
        assert (request_id in queued) == (entry.engine is None)
        assert holders == ([] if entry.engine is None else [entry.engine]), (
            request_id,
            holders,
        )
    for slot in book.slots.values():
        assert not slot.alone or len(slot.running) == 1
    assert book.running == sum(len(slot.running) for slot in book.slots.values())
    assert set(of) <= book.entries.keys()
