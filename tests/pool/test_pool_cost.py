"""What a pool does once, and not for each request or each engine."""

from __future__ import annotations

import io
import time

import pytest

from rayguard import errors
from rayguard.pool import progress
from rayguard.pool.actors import connection
from rayguard.pool.book import Book
from rayguard.pool.values.request import Request
from rayguard.pool.values.result import Generation
from tests.pool.book_invariants import check


def ask(name):
    return Request(id=name, group=name, prompt=(1, 2))


def test_giving_up_a_long_queue_costs_each_request_the_same():
    """Who leaves gives up thousands, and deadlines come from anywhere in the queue."""

    def cost(count):
        best = float("inf")
        for _ in range(3):
            book = Book()
            for n in range(count):
                book.accept(ask(str(n)))
            began = time.thread_time()
            for n in reversed(range(count)):
                book.drop(str(n))
            best = min(best, time.thread_time() - began)
            assert not book.queued
        return best / count

    assert cost(16_000) < 5 * cost(1_000)


def test_the_book_does_not_grow_with_what_was_answered():
    """Where no engine is ever full or idle, too: each request leaves two places of its engine behind."""
    book = Book()
    for n in range(4):
        book.join(f"m{n}", 64)
    running = []
    for n in range(5_000):
        book.accept(ask(str(n)))
        [(name, _)] = book.dispatch().items()
        running.append((name, str(n)))
        if len(running) > 100:
            assert book.finished(*running.pop(n % 2 * 50)) is not None
    check(book)
    assert book.running == 100
    assert len(book._heap) <= 50


def test_giving_up_is_one_call_for_each_engine(stage):
    """Not one for each request."""
    play = stage(engines=2, turn_s=0.05)
    told = []
    for member in play.members.values():
        member.abort = _noting(member.abort, told)
    reading = play.pool.as_completed(
        [[n] for n in range(40)], [{"max_tokens": 1}, *[{"max_tokens": 2_000}] * 39]
    )
    next(reading)
    reading.close()
    play.until(lambda: not any(member.tasks for member in play.members.values()))
    assert len(told) == 2
    assert sum(map(len, told)) == 39


def _noting(abort, told):
    async def noted(session, ids):
        told.append(ids)
        await abort(session, ids)

    return noted


def test_an_id_that_the_pool_made_is_known_when_it_is_asked_again(stage):
    """What was asked is compared then, and not before."""
    play = stage()
    [first] = play.pool.generate([[1, 2]])
    [again] = play.pool.generate([(1, 2)], ids=[first.id])
    assert again == first
    assert sum(member.served.count(first.id) for member in play.members.values()) == 1
    with pytest.raises(errors.BatchError, match="another prompt"):
        play.pool.generate([[1, 3]], ids=[first.id])


def test_an_engine_that_takes_no_requests_loses_them_to_others(stage, monkeypatch):
    """Its process may live and its event loop be stuck."""
    monkeypatch.setattr(connection, "_SEND_S", 0.1)
    play = stage(engines=2)
    play.on_loop(play.members["rollout-0"].freeze)
    prompts = [[n] for n in range(8)]
    play.right(play.pool.generate(prompts), prompts)
    assert play.core.tally.losses["actor_unavailable"] == 1
    play.on_loop(play.members["rollout-0"].thaw)
    play.pool.wait_ready(2, timeout_s=10)


def test_the_bar_asks_for_the_engines_when_it_is_drawn(monkeypatch):
    """However many answers come meanwhile."""
    asked = []
    monkeypatch.setattr(progress.sys, "stderr", io.StringIO())

    def engines():
        asked.append(1)
        return "3/4 engines"

    with progress.bar(5_000, wanted=True, engines=engines) as seen:
        for n in range(5_000):
            seen(Generation(id=str(n)))
    assert 1 <= len(asked) < 2_500
