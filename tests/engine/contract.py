"""What every engine keeps, the shipped fake as the real vLLM: one contract, checked on all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol


class Subject(Protocol):
    """An engine slot that can be used and struck."""

    slot: Any

    def answers(self) -> Any:
        """Run one batch and return everything a caller can see of it."""

    def struck(self) -> AbstractContextManager[Any]:
        """Let the engine die once in the middle of what runs inside."""


def check_contract(subject: Subject) -> None:
    """One life after another: same handle, same answers, nothing left of the life before."""
    slot = subject.slot
    earlier = slot.engine(1.0).progress().tokens
    wanted = subject.answers()
    before = slot.engine(1.0)
    handle, life, epoch, progress = before.handle, before.life, slot.status()["epoch"], before.progress()
    assert progress.tokens > earlier
    assert progress.turns > 0
    assert (progress.running, progress.held) == ((), ()), "nobody waits"
    assert before.facts()["max_num_seqs"] == 16, "what it was really built with"
    assert all(known.process.alive() for known in before.processes())
    assert before.exits() == ()

    with subject.struck():
        assert subject.answers() == wanted, "the caller cannot tell"

    after = slot.engine(1.0)
    assert slot.status()["epoch"] == epoch + 1, "one rebuild"
    assert after.handle is handle, "what the user's code holds stays the same object"
    assert after.life is not life
    assert after.progress().tokens >= 2 * progress.tokens - earlier - 8, "counters go on, never start again"
    assert not any(known.process.alive() for known in before.processes()), "ended to the last process"
    assert before.close(polite_s=0.0, force_s=1.0) == (), "closing twice does nothing"
    assert slot.report(RuntimeError("late"), life).result(1.0) is None
    assert slot.status()["epoch"] == epoch + 1, "a report about an older life starts nothing"
    assert subject.answers() == wanted
