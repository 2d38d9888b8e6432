"""What a recording says: growth with its beginning and its method, and nothing where there was none."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.process.flight.growth import LEAST_BYTES, growth
from rayguard.process.flight.recording import MemoryPoint, MethodState, Recording, RoundPoint, in_bytes
from rayguard.process.identity import ProcessId

MB = 1_000_000


def leak(rounds, since, rate, base=500 * MB, noise=0.0, seed=1):
    rng = random.Random(seed)
    return [
        (n, round(base + max(0, n - since + 1) * rate + rng.uniform(-noise, noise))) for n in range(rounds)
    ]


@pytest.mark.parametrize("since", [0, 3, 10])
@pytest.mark.parametrize("noise", [0, 5 * MB])
def test_a_leak_is_told_with_its_rate_and_its_beginning(since, noise):
    """Also under noise of a quarter of a step."""
    found = growth(leak(30, since, 20 * MB, noise=noise))
    assert found is not None
    assert found.bytes_a_round == pytest.approx(20 * MB, rel=0.05)
    assert abs(found.since - since) <= (1 if noise else 0)
    assert found.until == 29
    assert found.total_bytes == pytest.approx((29 - max(0, since - 1)) * 20 * MB, rel=0.15)


def test_a_load_before_the_leak_is_no_part_of_it():
    """A first step that loads a model, some level ones, then 20 MB a step."""
    found = growth([(0, 9 * MB), *((n, used) for n, used in leak(20, 3, 20 * MB)[1:])])
    assert found is not None
    assert (found.since, found.until) == (3, 19)
    assert found.bytes_a_round == pytest.approx(20 * MB, rel=0.02)


def test_a_long_leak_is_thinned_and_still_right():
    """Five hundred rounds say no more than thirty-two."""
    found = growth(leak(500, 100, MB, noise=3 * MB))
    assert found is not None
    assert found.bytes_a_round == pytest.approx(MB, rel=0.1)
    assert 80 <= found.since <= 140


@pytest.mark.parametrize(
    "points",
    [
        [],
        leak(3, 0, 100 * MB),
        [(n, 500 * MB) for n in range(50)],
        [(n, 500 * MB + (300 * MB if n >= 5 else 0)) for n in range(50)],  # one load
        [(n, min(500 * MB + n * 40 * MB, 900 * MB)) for n in range(50)],  # a cache that fills
        [(n, 500 * MB + n % 10 * 30 * MB) for n in range(50)],  # garbage, collected now and then
        [(n, 900 * MB - n * 10 * MB) for n in range(50)],  # it shrinks
        leak(50, 0, 100_000),  # too little to matter
    ],
)
def test_what_looks_like_a_leak_and_is_none_is_not_told(points):
    """A sentence that is wrong is worse than none."""
    assert growth(points) is None


def test_noise_is_no_growth():
    """A hundred times."""
    for seed in range(100):
        rng = random.Random(seed)
        assert growth([(n, 500 * MB + rng.randrange(100 * MB)) for n in range(60)]) is None, seed


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 1 << 50)), max_size=80))
def test_whatever_was_recorded_there_is_an_answer(points):
    """And growth is growth."""
    found = growth(points)
    if found is not None:
        assert found.total_bytes >= LEAST_BYTES
        assert found.bytes_a_round > 0
        assert found.since <= found.until


def recording(**known):
    return Recording(process=ProcessId(7, 8), alive=False, **known)


def rounds(points, method="Trainer.update"):
    return tuple(RoundPoint(at=float(n), first=n, last=n, private=used, method=method) for n, used in points)


def curve(points, method):
    return tuple(MemoryPoint(at=float(n), private=used, method=method(n)) for n, used in points)


def test_the_sentence_names_the_method_in_which_memory_grew():
    """Memory that grows during ``update`` and is level during ``generate``."""
    samples = [(n, 500 * MB + (n + 1) // 2 * 20 * MB) for n in range(60)]
    found = recording(
        steps=rounds(leak(30, 3, 20 * MB)),
        memory=curve(samples, lambda n: "Trainer.update" if n % 2 else "Trainer.generate"),
    )
    assert found.sentence() == "RSS grew 20 MB a step from step 3 on in `Trainer.update`"


def test_without_steps_growth_is_told_by_calls_of_the_method():
    """Of that method only: others have their own count."""
    points = leak(30, 3, 20 * MB)
    found = recording(
        call_rounds=(*rounds([(900 + n, 5) for n in range(9)], "Trainer.ping"), *rounds(points)),
        memory=curve(points, lambda _: "Trainer.update"),
    )
    assert found.sentence() == "RSS grew 20 MB a call from call 3 on in `Trainer.update`"


def test_without_growth_there_is_no_sentence():
    """Nor with nothing at all."""
    assert recording().sentence() == ""
    level = [(n, 500 * MB) for n in range(30)]
    assert recording(steps=rounds(level), memory=curve(level, lambda _: "A.a")).sentence() == ""


def test_running_methods_are_told_newest_first():
    """Those that had begun and not ended."""

    def state(name, begun, ended, at):
        return MethodState(name=name, begun=begun, ended=ended, begun_at=at, ended_at=at)

    found = recording(methods=(state("A.a", 3, 2, 10.0), state("A.b", 5, 5, 30.0), state("A.c", 9, 7, 20.0)))
    assert [(one.name, one.running) for one in found.running] == [("A.c", 2), ("A.a", 1)]


def test_the_rate_of_steps():
    """None where nobody can tell."""
    assert recording(steps=rounds([(n, 1) for n in range(11)])).steps_per_s == 1.0
    assert recording().steps_per_s is None
    assert recording(steps=rounds([(1, 1)])).steps_per_s is None


@pytest.mark.parametrize(
    ("size", "said"), [(0, "0.0 MB"), (1_230_000, "1.2 MB"), (20_400_000, "20 MB"), (1_340_000_000, "1.3 GB")]
)
def test_bytes_are_written_as_people_write_them(size, said):
    """Decimal, as in the documents."""
    assert in_bytes(size) == said
