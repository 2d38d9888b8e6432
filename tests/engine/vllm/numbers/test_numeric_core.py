"""The core's part: whose blocks are taken out of the prefix cache and zeroed, and what its frontends are sent."""

from __future__ import annotations

import types

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

NULL = 0


class Book:
    """As much of a scheduler as is asked: requests, and which blocks of the cache they hold."""

    def __init__(self, held, *, stale=(), speculative=None, connector=None):
        blocks = {NULL: types.SimpleNamespace(ref_cnt=1, is_null=True)}
        for ids in held.values():
            for one in ids:
                blocks.setdefault(one, types.SimpleNamespace(ref_cnt=0, is_null=False)).ref_cnt += one != NULL
        self.requests = {
            name: types.SimpleNamespace(is_finished=lambda: False, num_stale_output_tokens=int(name in stale))
            for name in held
        }
        self.evicted, self.ended = set(), []
        self.kv_cache_manager = types.SimpleNamespace(
            get_block_ids=lambda name: (list(held[name]),),
            evict_blocks=self.evicted.update,
            block_pool=types.SimpleNamespace(blocks=blocks),
        )
        self.vllm_config = types.SimpleNamespace(speculative_config=speculative)
        self.connector = connector

    def finish_requests(self, names, status):
        self.ended.append((sorted(names), status.name))


def step(book, counts, tokens=None):
    """Take in a step in which all of ``counts`` got a token, but for what ``tokens`` says."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

    from rayguard.engine.vllm.numbers import core

    names = list(book.requests)
    came = {name: (tokens or {}).get(name, [7]) for name in names}
    output = types.SimpleNamespace(
        num_nans_in_logits=counts,
        sampled_token_ids=[came[name] for name in names],
        req_id_to_index={name: i for i, name in enumerate(names)},
    )
    made = EngineCoreOutputs(
        outputs=[
            EngineCoreOutput(name, came[name], num_nans_in_logits=(counts or {}).get(name, 0))
            for name in names
            if came[name]
        ]
    )
    sent = core._updated(lambda *_: {0: made}, book, None, output)[0].outputs
    zeroed = core._to_zero(lambda _: None, book)
    assert core._to_zero(lambda _: [3], book) == [3], "once"
    shown = {one.request_id: one.finish_reason.name if one.finish_reason else None for one in sent}
    return shown, zeroed


def test_a_spoiled_request_ends_and_its_own_blocks_are_zeroed():
    """What another one holds is left: it was made before, and may be sound."""
    book = Book({"a": [1, 2, 3], "b": [1, 4, NULL]})
    assert step(book, {"a": 0, "b": 2}) == ({"a": None, "b": "ERROR"}, [4])
    assert book.evicted == {NULL, 1, 4}
    assert book.ended == [(["b"], "FINISHED_ERROR")]


def test_what_only_spoiled_ones_share_is_zeroed():
    book = Book({"a": [1, 2], "b": [1, 3], "c": [5]})
    assert step(book, {"a": 1, "b": 1, "c": 0})[1] == [1, 2, 3]


@pytest.mark.parametrize("counts", [None, {}, {"a": 0, "b": 0}])
def test_where_all_is_well_nothing_is_done(counts):
    book = Book({"a": [1], "b": [2]})
    assert step(book, counts) == ({"a": None, "b": None}, None)
    assert (book.evicted, book.ended) == (set(), [])


@pytest.mark.parametrize(
    ("book", "tokens"),
    [
        (Book({"a": [1]}), {"a": []}),  # a part of a prompt: it has more of it to come, and is seen then
        (Book({"a": [1]}, stale=("a",)), None),
        (Book({"a": [1]}, speculative="ngram"), None),
    ],
)
def test_who_has_no_token_of_it_goes_on(book, tokens):
    """So does all under speculative decoding, where a count is of a row."""
    shown, zeroed = step(book, {"a": 5}, tokens)
    assert set(shown.values()) <= {None}
    assert zeroed is None
    assert (book.evicted, book.ended) == (set(), [])


def test_questions_of_our_own_are_answered_as_ever():
    """Who asks them looks for NaN himself."""
    book = Book({"rayguard-canary-1": [1], "rayguard-audit-2": [2]})
    shown, _ = step(book, dict.fromkeys(book.requests, 1))
    assert set(shown.values()) == {None}


def test_blocks_that_may_be_on_their_way_elsewhere_are_not_zeroed():
    book = Book({"a": [1]}, connector=object())
    assert step(book, {"a": 1}) == ({"a": "ERROR"}, None)


def test_what_goes_wrong_in_it_ends_no_core():
    """The step's results are handed on as they came."""
    book = Book({"a": [1]})
    book.kv_cache_manager.evict_blocks = lambda _: 1 / 0
    assert step(book, {"a": 1})[0] == {"a": "ERROR"}
    book = Book({"a": [1]})
    book.finish_requests = lambda *_: 1 / 0
    assert step(book, {"a": 1})[0] == {"a": None}


def test_the_installed_vllm_is_as_we_know_it():
    """All that is wrapped is there, and says what it said."""
    from rayguard.engine.vllm.numbers import core

    assert core.fits()
