"""What grows: told from what does not, with the process and the share of it that it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.memory.growth.growing import Courses, Growing, rates, size
from rayguard.memory.reading import MemorySample, Quantity, Reading

MIB = 1 << 20
ME = 7


def sample(step, **used):
    """Return one sample; bytes in MiB by quantity, ``engine`` for another process's PRIVATE."""
    readings = [
        Reading(
            quantity=Quantity.PRIVATE if name == "engine" else Quantity(name),
            used=round(value * MIB),
            pid=8 if name == "engine" else 0 if name in ("node", "shm") else ME,
            who="engine" if name == "engine" else "",
        )
        for name, value in used.items()
    ]
    return MemorySample(at=float(step), step=step, readings=tuple(readings))


def growing(steps, **courses):
    """Return what grows after ``steps``, of courses that are functions of the step."""
    known = Courses()
    found = ()
    for step in range(steps):
        known.add(sample(step, **{name: course(step) for name, course in courses.items()}))
        found = known.growing()
    return found


def test_a_heap_that_grows_is_told_with_its_pace_and_its_start():
    """And that the native share does not grow."""
    (found,) = growing(
        12,
        private=lambda s: 500 + 20 * max(0, s - 3),
        heap=lambda s: 100 + 20 * max(0, s - 3),
        native=lambda s: 400,
    )
    assert found.quantity is Quantity.HEAP
    assert found.pid == ME
    assert found.bytes_per_step == pytest.approx(20 * MIB, rel=0.05)
    assert found.since in (3, 4)
    assert found.level == (Quantity.NATIVE,)
    assert (
        found.sentence(ME)
        == f"heap of this process: 20 MiB a step since step {found.since}; native does not grow"
    )


def test_growth_of_which_nobody_knows_the_share_stays_the_process():
    """No reading of the heap: this interpreter does not tell."""
    (found,) = growing(12, private=lambda s: 100 + 20 * s)
    assert (found.quantity, found.level) == (Quantity.PRIVATE, ())


def test_half_heap_half_native_is_the_process():
    """Neither share would be the truth."""
    (found,) = growing(
        16, private=lambda s: 100 + 40 * s, heap=lambda s: 50 + 19 * s, native=lambda s: 50 + 19 * s
    )
    assert found.quantity is Quantity.PRIVATE


def test_the_process_comes_before_the_node_and_an_engine_has_its_own_pid():
    """What says most about the cause first; of two processes the faster."""
    found = growing(
        16,
        node=lambda s: 9000 + 70 * s,
        private=lambda s: 500 + 20 * s,
        engine=lambda s: 900 + 50 * s,
        shm=lambda s: 10 + 30 * s,
    )
    assert [(one.quantity, one.pid) for one in found] == [
        (Quantity.PRIVATE, 8),
        (Quantity.PRIVATE, ME),
        (Quantity.SHM, 0),
        (Quantity.NODE, 0),
    ]
    assert found[0].sentence(ME).startswith("private of engine 8: 50 MiB a step")


@pytest.mark.parametrize(
    "course",
    [
        pytest.param(lambda s: 500, id="level"),
        pytest.param(lambda s: 500 + min(s, 3) * 200, id="warm-up"),
        pytest.param(lambda s: 500 + 15 * (s % 5), id="sawtooth"),
        pytest.param(lambda s: 500 + (400 if s > 20 else 0), id="one load"),
        pytest.param(lambda s: 500 + 4 * (1 - 0.8**s) * 20, id="plateau"),
    ],
)
def test_what_only_looks_like_growth_is_none(course):
    """After enough steps."""
    assert growing(60, private=course) == ()


def test_steps_that_go_back_begin_another_life():
    """An actor that was restarted has a new process."""
    known = Courses()
    for step in [*range(12), 0, 1, 2]:
        known.add(sample(step, private=100 + 20 * step))
    assert known.growing() == ()


def test_samples_without_steps_say_nothing():
    """Growth by the second is the forecast's business."""
    known = Courses()
    for _ in range(20):
        known.add(sample(-1, private=100))
    assert known.growing() == ()


def test_a_process_that_is_gone_makes_room():
    """Engines come and go; their courses must not stay for ever."""
    known = Courses()
    for step in range(600):
        reading = Reading(quantity=Quantity.PRIVATE, used=MIB, pid=step)
        known.add(MemorySample(at=float(step), step=step, readings=(reading,)))
    assert len(known._courses) <= 256


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)), min_size=1, max_size=60))
def test_any_course_is_taken(pairs):
    """Whatever is read, there is an answer, and what grows has grown."""
    known = Courses()
    for step, (private, heap) in enumerate(pairs):
        known.add(sample(step, private=private / MIB, heap=heap / MIB))
        assert all(one.bytes_per_step > 0 for one in known.growing())


def test_a_rate_needs_a_rise_between_all_points():
    """A plateau, or one step down, is no rate."""
    assert rates([(0, 10), (2, 30), (3, 40)]) == 10
    assert rates([(0, 10), (1, 20), (2, 20)]) == 0
    assert rates([(0, 10), (1, 30), (2, 20), (3, 50)]) == 0
    assert rates([(0, 10)]) == rates([]) == 0


def test_sizes_are_for_people():
    """Few digits."""
    assert [size(value) for value in (0, 640, 20 * MIB, 1.5 * (1 << 30), 1536)] == [
        "0 B",
        "640 B",
        "20 MiB",
        "1.5 GiB",
        "1.5 KiB",
    ]


def test_growth_without_a_known_pace_is_a_sentence_too():
    """When only the quantity is known."""
    assert Growing(quantity=Quantity.SHM, who="/dev/shm").sentence(ME) == "shm (/dev/shm) grows"
