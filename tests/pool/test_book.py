"""The pool's book: every request delivered once, whatever happens to the actors."""

from __future__ import annotations

import time
from array import array

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rayguard.engine.generated import Generated
from rayguard.pool.book import Book
from rayguard.pool.values.request import Request
from tests.pool.book_invariants import check


def ask(name, group=None):
    return Request(id=name, group=group or name, prompt=(1, 2))


def tokens(*ids):
    return Generated(tokens=array("i", ids))


def filled(members=2, requests=4, capacity=8, **options):
    book = Book(**options)
    for n in range(members):
        book.join(f"m{n}", capacity)
    for n in range(requests):
        book.accept(ask(f"r{n}"))
    return book


def placed(given):
    return {name: [entry.request.id for entry in entries] for name, entries in given.items()}


def test_the_emptiest_actor_is_served_first():
    """Requests spread evenly."""
    book = filled(members=3, requests=9)
    assert sorted(len(ids) for ids in placed(book.dispatch()).values()) == [3, 3, 3]
    check(book)


def test_the_completions_of_one_prompt_stay_together():
    """They share a prefix cache."""
    book = filled(members=2, requests=0)
    for n in range(8):
        book.accept(ask(f"p{n // 4}/{n % 4}", f"p{n // 4}"))
    assert placed(book.dispatch()) == {
        "m0": ["p0/0", "p0/1", "p0/2", "p0/3"],
        "m1": ["p1/0", "p1/1", "p1/2", "p1/3"],
    }


def test_nobody_gets_more_than_its_capacity_and_a_slow_one_gets_less():
    """The rest waits in the queue, where it can still go anywhere."""
    book = filled(members=2, requests=20, capacity=6)
    book.set_slowness("m1", 3.0)
    given_ = placed(book.dispatch())
    assert len(given_["m0"]) == 6
    assert len(given_["m1"]) == 2
    assert book.queued == 12


def test_a_closed_actor_keeps_its_requests_and_gets_no_new_ones():
    """As while it drains or its weights are old."""
    book = filled()
    book.dispatch()
    book.set_open("m0", is_open=False)
    book.accept(ask("late"))
    assert placed(book.dispatch()) == {"m1": ["late"]}
    assert len(book.slots["m0"].running) == 2


def test_what_a_lost_actor_had_goes_first_and_on_from_its_tokens():
    """Nothing that was generated is thrown away."""
    book = filled(requests=4)
    book.dispatch()
    assert book.progressed("m0", "r0", 0, tokens(5, 6))
    assert book.progressed("m0", "r0", 1, tokens(6, 7)), "an overlap joins on"
    assert not book.progressed("m0", "r0", 9, tokens(9)), "a gap does not"
    book.accept(ask("late"))
    lost = book.remove("m0", blame=True)
    assert lost.requeued == ("r0", "r2")
    order = [entry.order() for entry in book.dispatch()["m1"]]
    assert [o.request.id for o in order] == ["r0", "r2", "late"]
    assert list(order[0].prior.tokens) == [5, 6, 7]
    assert order[0].cuts == (3,)
    assert order[1].prior is None


def test_late_news_of_an_actor_that_lost_the_request_are_ignored():
    """It was frozen, its work went elsewhere, and now it wakes."""
    book = filled(requests=1)
    book.dispatch()
    book.lose("m0", blame=False)
    book.set_open("m0", is_open=False)
    assert placed(book.dispatch()) == {"m1": ["r0"]}
    assert not book.progressed("m0", "r0", 0, tokens(1))
    assert book.finished("m0", "r0") is None
    assert book.finished("m1", "r0").request.id == "r0"
    assert book.finished("m1", "r0") is None, "once"


def test_a_request_that_kills_every_actor_is_found_and_given_up_and_no_other():
    """After two deaths it runs alone; the third is proof."""
    book = filled(members=2, requests=6, quarantine_after=3)
    quarantined = []
    for _ in range(20):
        for name, entries in book.dispatch().items():
            slot = book.slots[name]
            if "r3" in slot.running:
                quarantined += book.lose(name, blame=True).quarantined
            else:
                for entry in entries:
                    assert book.finished(name, entry.request.id) is not None
        check(book)
        if not book.entries:
            break
    assert [entry.request.id for entry in quarantined] == ["r3"]
    assert not book.entries, "all others were answered"


def test_a_suspect_gets_its_turn_although_all_are_busy():
    """One actor is left to run empty for it."""
    book = filled(members=2, requests=1, capacity=2, quarantine_after=2)
    book.dispatch()
    book.lose("m0", blame=True)
    for n in range(10):
        book.accept(ask(f"other{n}"))
    book.join("m0", 2)
    first = placed(book.dispatch())
    alone = next(name for name, ids in first.items() if "r0" in ids)
    assert first[alone] == ["r0"]
    assert placed(book.dispatch()) == {}, "nothing joins a suspect"
    book.finished(alone, "r0")
    assert placed(book.dispatch())[alone], "and then it is an actor like any other"


def test_beginning_afresh_forgets_the_tokens():
    """What could not be continued exactly is not put before other tokens."""
    book = filled(requests=1)
    book.dispatch()
    book.progressed("m0", "r0", 0, tokens(1, 2))
    book.restarted("m0", "r0")
    assert book.entries["r0"].order().prior is None


def test_the_cost_of_dispatch_does_not_grow_with_the_number_of_actors():
    """Ten times the actors cost less than four times as much for each request."""

    def cost(members):
        book = filled(members=members, requests=4_000, capacity=64)
        best = float("inf")
        for _ in range(3):
            began = time.thread_time()
            given_ = book.dispatch()
            best = min(best, time.thread_time() - began)
            for name, entries in given_.items():
                for entry in entries:
                    book.finished(name, entry.request.id)
                    book.accept(entry.request)
        return best

    assert cost(640) < 4 * cost(64)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 9), max_size=30), st.integers(0, 30))
def test_pieces_put_together_are_the_whole(ids, cut):
    """``since`` and ``plus`` undo each other."""
    whole = Generated(tokens=array("i", ids), versions=(("1", 0),) if ids else ())
    cut = min(cut, len(ids))
    assert whole.first(cut).plus(whole.since(cut)) == whole


class Life(RuleBasedStateMachine):
    """Anything may happen in any order; nothing is lost, nothing doubled."""

    @initialize()
    def begin(self):
        self.book = Book(quarantine_after=3)
        self.open, self.delivered, self.quarantined, self.names = set(), [], [], 0

    @rule()
    def join(self):
        self.names += 1
        self.book.join(f"m{self.names}", 3)

    @rule(count=st.integers(1, 5))
    def ask(self, count):
        for _ in range(count):
            name = f"r{len(self.open) + len(self.delivered) + len(self.quarantined)}"
            self.book.accept(ask(name))
            self.open.add(name)

    @rule()
    def dispatch(self):
        self.book.dispatch()

    @rule(data=st.data(), blame=st.booleans(), gone=st.booleans())
    def lose(self, data, blame, gone):
        if not self.book.slots:
            return
        name = data.draw(st.sampled_from(sorted(self.book.slots)))
        lost = self.book.remove(name, blame=blame) if gone else self.book.lose(name, blame=blame)
        for entry in lost.quarantined:
            self.open.discard(entry.request.id)
            self.quarantined.append(entry.request.id)

    @rule(data=st.data(), is_open=st.booleans())
    def turn(self, data, is_open):
        if self.book.slots:
            self.book.set_open(data.draw(st.sampled_from(sorted(self.book.slots))), is_open=is_open)

    @rule(data=st.data())
    def finish(self, data):
        running = sorted((slot.name, r) for slot in self.book.slots.values() for r in slot.running)
        if running:
            name, request_id = data.draw(st.sampled_from(running))
            assert self.book.finished(name, request_id) is not None
            self.open.discard(request_id)
            self.delivered.append(request_id)

    @invariant()
    def nothing_lost_nothing_doubled(self):
        if hasattr(self, "book"):
            check(self.book, self.open)
            assert self.book.entries.keys() == self.open
            assert len(self.delivered) == len(set(self.delivered))


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40)
