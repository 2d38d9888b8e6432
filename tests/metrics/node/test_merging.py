"""Many processes as one node: order does not matter, counters never fall, series stay few."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayguard.metrics.instruments.instrument import Instrument, Merge, MetricType
from rayguard.metrics.node.merging import OTHER, Places, bounded, counted, jobs_in, merged, placed, without
from rayguard.metrics.node.tables import decode, encode, encode_table, exact, labels_of
from rayguard.recovery.tally import Durations


def instrument(name, type_, merge=Merge.SUM, labels=()):
    return Instrument(name=name, type=type_, help="X.", read=lambda x: x, labels=labels, merge=merge)


COUNT = instrument("count_total", MetricType.COUNTER, labels=("kind",))
TIME = instrument("time_seconds", MetricType.HISTOGRAM)
SUM = instrument("used", MetricType.GAUGE)
MAX = instrument("epoch", MetricType.GAUGE, Merge.MAX)
MIN = instrument("forecast", MetricType.GAUGE, Merge.MIN)
OWN = instrument("job_total", MetricType.COUNTER, labels=("ray_job",))
KNOWN = {one.name: one for one in (COUNT, TIME, SUM, MAX, MIN, OWN)}

BOUNDS = [(1.0, 2.0, 5.0), (1.0, 5.0), (2.0, 3.0)]
numbers = st.floats(0, 1e6).map(exact)
durations = st.sampled_from(BOUNDS).flatmap(
    lambda bounds: st.builds(
        Durations,
        st.just(bounds),
        st.lists(st.integers(0, 9), min_size=len(bounds) + 1, max_size=len(bounds) + 1),
        numbers,
    )
)
names = st.sampled_from(["a", "b", "c"])
tables = st.fixed_dictionaries(
    {
        "count_total": st.dictionaries(st.tuples(names, names, names), numbers, max_size=4),
        "time_seconds": st.dictionaries(st.tuples(names, names), durations, max_size=2),
        "used": st.dictionaries(st.tuples(names, names), numbers, max_size=2),
        "epoch": st.dictionaries(st.tuples(names, names), numbers, max_size=2),
        "forecast": st.dictionaries(st.tuples(names, names), numbers, max_size=2),
    }
)
many = st.lists(tables, max_size=6)


def test_rules_of_each_kind():
    """Counters and histograms add up; a gauge does as its instrument says."""
    key = ("j", "C")
    one = {"count_total": {("x", *key): 2.0}, "used": {key: 3.0}, "epoch": {key: 4.0}, "forecast": {key: 9.0}}
    two = {"count_total": {("x", *key): 5.0}, "used": {key: 1.0}, "epoch": {key: 2.0}, "forecast": {key: 7.0}}
    one["time_seconds"] = {key: Durations((1.0, 2.0), [1, 2, 3], 9.0)}
    two["time_seconds"] = {key: Durations((1.0, 2.0), [10, 20, 30], 90.0)}
    assert merged([one, two], KNOWN) == {
        "count_total": {("x", *key): 7.0},
        "used": {key: 4.0},
        "epoch": {key: 4.0},
        "forecast": {key: 7.0},
        "time_seconds": {key: Durations((1.0, 2.0), [11, 22, 33], 99.0)},
    }


def test_histograms_of_two_versions_meet_in_the_buckets_that_both_have():
    """Each bucket of the sum is the sum of the buckets."""
    both = merged(
        [
            {"time_seconds": {("", ""): Durations((1.0, 2.0, 5.0), [1, 2, 3, 4], 30.0)}},
            {"time_seconds": {("", ""): Durations((2.0, 5.0, 9.0), [10, 20, 30, 40], 300.0)}},
        ],
        KNOWN,
    )
    assert both["time_seconds"]["", ""] == Durations((2.0, 5.0), [13, 23, 74], 330.0)


@settings(max_examples=40)
@given(many, st.randoms())
def test_the_order_of_processes_does_not_matter(processes, chance):
    """Files are read in any order, and merged in any groups."""
    shuffled = chance.sample(processes, len(processes))
    half = len(shuffled) // 2
    grouped = [merged(shuffled[:half], KNOWN), merged(shuffled[half:], KNOWN)]
    assert {k: v for k, v in merged(grouped, KNOWN).items() if v} == {
        k: v for k, v in merged(processes, KNOWN).items() if v
    }


@settings(max_examples=40)
@given(many, many, st.integers(1, 4))
def test_no_counter_falls_when_processes_die(living, dying, limit):
    """The dead are folded: to the last bit nothing changes, also where series are bounded."""
    everything = merged([*living, *dying], KNOWN)
    places = placed(everything, {}, limit)
    before = counted(bounded(everything, places, KNOWN), KNOWN)
    departed = bounded(merged([counted(one, KNOWN) for one in dying], KNOWN), places, KNOWN)
    whole = merged([departed, *living], KNOWN)
    after = counted(bounded(whole, placed(whole, places, limit), KNOWN), KNOWN)
    for name, series in before.items():
        assert {key: number for key, number in after.get(name, {}).items() if key in series} == series


@settings(max_examples=20)
@given(tables)
def test_gauges_of_the_dead_are_gone(table):
    """What a dead process used is used no more."""
    assert counted(table, KNOWN).keys() == {"count_total", "time_seconds"}


@given(st.lists(st.sets(st.tuples(st.integers(0, 30).map(str)), max_size=12), max_size=12), st.integers(1, 5))
def test_a_series_stays_where_it_is_and_few_have_a_place(rounds, limit):
    """One that moved from ``other`` to a place of its own would make ``other`` fall."""
    places = Places()
    for present in rounds:
        after = places.after(present, limit)
        assert len(after.own) <= limit
        assert after.own | after.other == present
        assert after.own >= places.own & present
        assert after.other >= places.other & present
        assert not after.own & after.other
        assert not after.other or len(after.own) == limit or places.other & present
        places = after


def test_what_is_beyond_the_bound_is_one_series_by_the_rule_of_its_instrument():
    """The sum of the rest, its largest, its smallest; nothing is lost."""
    keys = [("", f"C{n:03}") for n in range(250)]
    table = {one.name: {key: float(n) for n, key in enumerate(keys)} for one in (SUM, MAX, MIN)} | {
        "count_total": {("k", *key): 1.0 for key in keys}
    }
    few = bounded(table, placed(table, {}), KNOWN)
    assert {len(series) for series in few.values()} == {201}
    other = OTHER, OTHER
    assert few["used"][other] == sum(range(200, 250))
    assert (few["epoch"][other], few["forecast"][other]) == (249.0, 200.0)
    assert few["count_total"]["other", "other", "other"] == 50
    again = bounded(few, placed(few, {}), KNOWN)
    assert again == few, "other is no label set that needs a place"


def test_a_thousand_processes_of_three_classes_have_the_series_of_three():
    """No pid, no actor: what grows is the numbers."""

    def process(n):
        whose = {"ray_job": "01000000", "actor_class": f"Class{n % 3}"}
        read = [(COUNT, [(("crash",), 1)]), (TIME, [((), Durations((1.0,), [1, 0], 0.5))]), (SUM, [((), 2)])]
        return decode(encode(read), KNOWN, whose)

    of_3, of_1000 = (merged([process(n) for n in range(count)], KNOWN) for count in (3, 1000))
    assert {name: set(series) for name, series in of_3.items()} == {
        name: set(series) for name, series in of_1000.items()
    }
    assert sum(of_1000["count_total"].values()) == 1000
    assert sum(of_1000["used"].values()) == 2000


def test_a_sum_of_plain_floats_would_fall():
    """Why numbers are rounded to a binary grain: the same numbers in another order are less by a bit."""
    chance = random.Random(1)
    values = [chance.uniform(0, 100) for _ in range(50)]
    orders = [chance.sample(values, 50) for _ in range(20)]
    assert len({sum(order) for order in orders}) > 1
    assert len({sum(map(exact, order)) for order in orders}) == 1
    assert all(abs(exact(value) - value) < 1e-6 for value in values)
    assert exact(2**50 + 1) == 2**50 + 1


def test_labels_are_the_instruments_own_and_whose_it_is():
    """Its own word on the job counts more than its process's."""
    assert labels_of(COUNT) == ("kind", "ray_job", "actor_class")
    assert labels_of(OWN) == ("ray_job", "actor_class")
    families = encode([(OWN, [(("02000000",), 1)]), (COUNT, [(("x",), 1)])])
    table = decode(families, KNOWN, {"ray_job": "01000000", "actor_class": "Trainer"})
    assert set(table["job_total"]) == {("02000000", "Trainer")}
    assert set(table["count_total"]) == {("x", "01000000", "Trainer")}
    assert jobs_in(table, KNOWN) == {"01000000", "02000000"}
    assert without(table, {"01000000"}, KNOWN) == {"job_total": table["job_total"], "count_total": {}}


@settings(max_examples=40)
@given(tables)
def test_a_table_comes_back_from_its_file(table):
    """As departed keeps it."""
    assert decode(encode_table(table, KNOWN), KNOWN, {}) == table


def test_what_is_not_known_here_is_left_out():
    """A process of another version: its other numbers are shown."""
    families = [
        {"name": "tomorrow_total", "type": "counter", "samples": [[{}, 1]]},
        {"name": "used", "type": "counter", "samples": [[{}, 1]]},
        {"name": "epoch", "type": "gauge", "samples": [[{"new": "x"}, 1]]},
    ]
    assert decode(families, KNOWN, {}) == {"epoch": {("", ""): 1.0}}


GOOD = {"bounds": [1.0, 2.0], "counts": [0, 0, 0], "sum": 0.0}
WRONG = [
    None,
    7,
    [7],
    [{"name": "used"}],
    [{"name": "used", "type": "gauge", "samples": [[{}, "7"]]}],
    [{"name": "used", "type": "gauge", "samples": [[{}, None]]}],
    [{"name": "used", "type": "gauge", "samples": [[{}]]}],
    [{"name": "used", "type": "gauge", "samples": [[7, 7]]}],
    [{"name": "used", "type": "gauge", "samples": [[{}, float("inf")]]}],
    *(
        [{"name": "time_seconds", "type": "histogram", "samples": [[{}, {**GOOD, **change}]]}]
        for change in (
            {"counts": [0]},
            {"counts": [0, 0, "0"]},
            {"bounds": [2.0, 1.0]},
            {"bounds": ["a", "b"]},
            {"sum": float("nan")},
        )
    ),
]


@pytest.mark.parametrize("families", WRONG)
def test_what_is_no_list_of_numbers_is_an_error(families):
    """One sort of error, whatever is wrong: the file is left out as a whole."""
    with pytest.raises(ValueError, match=r"."):
        decode(families, KNOWN, {})


def test_numbers_that_are_none_are_not_written():
    """JSON has no word for them."""
    read = [(SUM, [((), float("nan"))]), (MAX, [((), float("inf"))]), (MIN, [((), 1)])]
    assert [family["samples"] for family in encode(read)] == [[], [], [[{}, 1]]]
