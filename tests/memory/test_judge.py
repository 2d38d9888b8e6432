"""What samples mean for a process: what is short, what will be, how much of it this process took."""

from __future__ import annotations

from rayguard.memory.judge import Bounds, Judge
from rayguard.memory.pressure import Pressure
from rayguard.memory.reading import MemorySample, Quantity, Reading
from rayguard.memory.relief import MIB

GIB = 1024 * MIB
TOTAL, KILLS_AT = 100 * GIB, 95 * GIB


def sample(step, *, private=1 * GIB, node=50 * GIB, more=(), at=None):
    readings = (
        Reading(quantity=Quantity.PRIVATE, used=private, pid=7),
        Reading(quantity=Quantity.NODE, used=node, limit=TOTAL),
        *more,
    )
    return MemorySample(at=float(step * 10 if at is None else at), step=step, readings=readings)


def test_all_is_well():
    state = Judge(Bounds()).feed(sample(1), KILLS_AT)
    assert state.pressure is Pressure.OK
    assert not state.concerns
    assert state.forecast is None


def test_the_node_is_judged_below_where_ray_kills():
    """At 95 %: soft from 82 % on, hard from 92 % on; with another threshold, below that."""
    judge = Judge(Bounds())
    assert judge.feed(sample(1, node=83 * GIB), KILLS_AT).pressure is Pressure.SOFT
    (concern,) = judge.feed(sample(2, node=93 * GIB), KILLS_AT).concerns
    assert concern.need.pressure is Pressure.HARD
    assert concern.why == "the node's memory is 93% full"
    assert concern.need.wanted > 10 * GIB, "enough to be well below soft again"
    assert Judge(Bounds()).feed(sample(1, node=38 * GIB), 40 * GIB).pressure is Pressure.HARD


def test_a_container_has_a_limit_of_its_own():
    """The group that a process lives in may be full where the node is not."""
    group = Reading(quantity=Quantity.NODE, used=98 * MIB, limit=100 * MIB, who="/pod")
    (concern,) = Judge(Bounds()).feed(sample(1, more=(group,)), KILLS_AT).concerns
    assert concern.need.pressure is Pressure.HARD
    assert "/pod" in concern.why


def test_grown_is_what_it_took_since_it_was_warm():
    """What its start took cannot be given back by a new one."""
    judge = Judge(Bounds())
    assert judge.feed(sample(0, private=3 * GIB), KILLS_AT).grown == 0
    assert judge.feed(sample(1, private=2 * GIB), KILLS_AT).grown == 0
    assert judge.feed(sample(2, private=5 * GIB), KILLS_AT).grown == 3 * GIB
    assert judge.feed(sample(3, private=1 * GIB), KILLS_AT).grown == 0


def with_engine(step, used, *, life="1", **more):
    engine = Reading(quantity=Quantity.ENGINE, used=used, who=f"processes {life}")
    return sample(step, more=(engine,), **more)


def test_what_an_engine_took_is_told_apart_from_what_its_owner_took():
    """A new engine gives back the one, a new process the other."""
    judge = Judge(Bounds())
    for step, used in ((1, 4), (5, 4), (6, 6)):
        state = judge.feed(with_engine(step, used * GIB, node=93 * GIB), KILLS_AT)
    assert (state.private, state.engine) == (1 * GIB, 6 * GIB)
    (concern,) = state.concerns
    assert (concern.quantity, concern.need.grown, concern.need.engine_grown) == (Quantity.NODE, 0, 2 * GIB)


def test_a_new_engine_has_a_course_of_its_own():
    """It is smaller than the one before it, and takes what it needs in its first half minute."""
    judge = Judge(Bounds())
    for step in range(1, 40):
        judge.feed(with_engine(step, (2 + step) * GIB), KILLS_AT)
    for step, used in ((40, 1), (41, 2), (42, 3)):
        state = judge.feed(with_engine(step, used * GIB, life="2", node=93 * GIB), KILLS_AT)
    assert state.concerns[0].need.engine_grown == 0
    state = judge.feed(with_engine(46, 3 * GIB, life="2", node=93 * GIB), KILLS_AT)
    state = judge.feed(with_engine(47, 5 * GIB, life="2", node=93 * GIB), KILLS_AT)
    assert state.concerns[0].need.engine_grown == 2 * GIB


def test_an_engine_that_leaks_is_foreseen_by_its_own_course():
    """Its owner has grown by nothing, and the sentence says whose memory it is."""
    judge = Judge(Bounds())
    states = [judge.feed(with_engine(n, (4 + n) * GIB, node=(50 + n) * GIB), KILLS_AT) for n in range(1, 45)]
    told = [c for s in states for c in s.concerns if c.quantity is Quantity.ENGINE]
    assert told
    assert told[0].need.soon
    assert told[0].need.grown == 0
    assert told[0].need.engine_grown >= told[0].need.wanted
    assert told[0].why.startswith("engine grows 1.1 GB a step")


def test_a_limit_of_its_own():
    judge = Judge(Bounds(process_limit=2 * GIB))
    assert not judge.feed(sample(1), KILLS_AT).concerns
    (concern,) = judge.feed(sample(2, private=int(1.95 * GIB)), KILLS_AT).concerns
    assert concern.quantity is Quantity.PRIVATE
    assert concern.need.pressure is Pressure.HARD
    assert concern.need.grown > 900 * MIB


def leak(judge, steps, *, per_step=GIB, begin=1):
    return [
        judge.feed(sample(n, private=2 * GIB + n * per_step, node=50 * GIB + n * per_step), KILLS_AT)
        for n in range(begin, begin + steps)
    ]


def test_a_steady_leak_is_foreseen_before_it_is_short():
    """Urgent within three steps of the end, by its own course, and said so."""
    states = leak(Judge(Bounds()), 45)
    foreseen = [s for s in states if s.forecast is not None]
    assert foreseen, "it was never foreseen"
    assert foreseen[0].step <= 42 - 3
    urgent = [s for s in states if any(c.need.soon for c in s.concerns)]
    said = [c.why for s in urgent for c in s.concerns if c.need.soon]
    assert all("grows" in why for why in said)
    assert not [s for s in states[:20] if s.concerns], "not while there is room for many steps"


def test_what_grows_slowly_far_from_the_limit_is_no_concern():
    assert not any(state.concerns for state in leak(Judge(Bounds()), 60, per_step=MIB))


def test_after_a_relief_a_new_course_begins():
    """What was given back would look like a fall, and what comes after like a rise."""
    judge = Judge(Bounds())
    leak(judge, 38)
    judge.relieved()
    state = judge.feed(sample(39, private=2 * GIB, node=50 * GIB), KILLS_AT)
    assert state.forecast is None


def test_other_places_are_told_with_their_own_names():
    shm = Reading(quantity=Quantity.SHM, used=97, limit=100, who="/dev/shm")
    (concern,) = Judge(Bounds()).feed(sample(1, more=(shm,)), KILLS_AT).concerns
    assert concern.quantity is Quantity.SHM
    assert concern.why == "shared memory (/dev/shm) is 97% full"


def test_a_sample_without_readings_says_nothing():
    """Every source may be missing."""
    state = Judge(Bounds(process_limit=5)).feed(MemorySample(at=1.0, readings=(), step=3), None)
    assert not state.concerns
    assert state.private == 0
