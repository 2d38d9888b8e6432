"""The node's memory as Ray counts it: machines, containers of both versions, nested, unlimited, unreadable."""

import os

import pytest
from trees import GIB, UNLIMITED_V1, meminfo, version_1, version_2, written

from rayguard.memory.probes.node import MonitorSettings, NodeMemory, NodeProbe

MACHINE = NodeMemory(used=40 * GIB, total=100 * GIB, source="machine")
FREE_SWAP = (40 + 3) * GIB


@pytest.fixture
def probe(tmp_path):
    """Build a probe of a machine of 100 GiB, 40 in use, with the cgroup files that are passed."""

    def build(cgroup, own="0::/\n", settings=None, **proc):
        written(
            tmp_path / "proc",
            {"meminfo": meminfo(100, 60, swap_gib=8, swap_free_gib=5), "self/cgroup": own, **proc},
        )
        written(tmp_path / "cgroup", cgroup)
        return NodeProbe(
            settings or MonitorSettings.of({}), proc=tmp_path / "proc", cgroup=tmp_path / "cgroup"
        )

    return build


V2 = version_2("", 8 * GIB, 6 * GIB, inactive=GIB, active=2 * GIB)
V1 = version_1("", 8 * GIB, 6 * GIB, inactive=GIB, active=2 * GIB)
CONTAINER = NodeMemory(used=3 * GIB, total=8 * GIB, source="cgroup")


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        ({}, MACHINE),
        (V2, CONTAINER),
        (V1, CONTAINER),
        (V1 | V2 | version_1("", 50 * GIB, GIB), CONTAINER),  # hybrid: version 2 first, as Ray
        (version_2("", "max", 6 * GIB), MACHINE),
        (version_2("", 0, 6 * GIB), MACHINE),
        (version_1("", UNLIMITED_V1, 6 * GIB), MACHINE),
        (version_2("", 200 * GIB, 6 * GIB), MACHINE),  # more than there is limits nothing
        (version_2("", 100 * GIB, 6 * GIB), NodeMemory(used=6 * GIB, total=100 * GIB, source="cgroup")),
        ({**V2, "memory.max": "rubbish"}, MACHINE),
        ({**V2, "memory.stat": ""}, MACHINE),
        ({"memory.max": 8 * GIB}, MACHINE),
        (version_2("", 8 * GIB, 9 * GIB), NodeMemory(used=8 * GIB, total=8 * GIB, source="cgroup")),
        (version_2("", 8 * GIB, GIB, inactive=2 * GIB), NodeMemory(used=0, total=8 * GIB, source="cgroup")),
        (version_2("pod/", GIB, GIB // 2), MACHINE),  # Ray looks at the root only
    ],
)
def test_use_and_limit_are_those_ray_sees(probe, cgroup, expected):
    """The smaller limit, and the use that belongs to it, without the page cache."""
    assert probe(cgroup).read() == expected


def test_without_meminfo_the_cgroup_is_enough_and_without_both_there_is_no_reading(probe, tmp_path):
    """Nothing raises."""
    both = probe(V2)
    (tmp_path / "proc/meminfo").unlink()
    assert both.read() == CONTAINER
    (tmp_path / "cgroup/memory.max").write_text("max")
    assert both.read() is None


def test_meminfo_of_an_old_kernel_without_available_is_added_up(probe):
    """Free, cached and buffers, as Ray does."""
    old = "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 50 kB\nCached: 250 kB\n"
    assert probe({}, meminfo=old).read() == NodeMemory(used=600 << 10, total=1000 << 10)


@pytest.mark.parametrize(
    ("cgroup", "used", "total"),
    [
        ({}, 43, 108),
        (V2, 3 + 3, 8 + 8),  # no swap files: the machine's
        (version_2("", 8 * GIB, 4 * GIB, swap_max=GIB, swap_current=GIB // 2), 4.5, 9),
        (version_2("", 8 * GIB, 4 * GIB, swap_max="max", swap_current=GIB), 5, 16),
        (version_2("", 8 * GIB, 4 * GIB, swap_max=0, swap_current=GIB), 4, 8),
        (
            {
                **version_1("", 8 * GIB, 6 * GIB),
                "memory/memory.memsw.usage_in_bytes": 7 * GIB,
                "memory/memory.memsw.limit_in_bytes": 10 * GIB,
            },
            7,
            10,
        ),
        (
            {
                **version_1("", UNLIMITED_V1, 6 * GIB),
                "memory/memory.memsw.usage_in_bytes": 7 * GIB,
                "memory/memory.memsw.limit_in_bytes": UNLIMITED_V1,
            },
            43,
            108,
        ),
    ],
)
def test_swap_counts_where_ray_was_told_to_count_it(probe, cgroup, used, total):
    """``RAY_count_swap_in_memory_monitor``; off by default."""
    settings = MonitorSettings.of({"RAY_count_swap_in_memory_monitor": "true"})
    found = probe(cgroup, settings=settings).read()
    assert (found.used / GIB, found.total / GIB) == (used, total)


@pytest.mark.parametrize(
    ("environment", "config", "expected"),
    [
        ({}, None, 950),
        ({"RAY_memory_usage_threshold": "0.8"}, None, 800),
        ({"RAY_memory_usage_threshold": "0.8"}, {"memory_usage_threshold": 0.7}, 700),  # seen on Ray 2.60
        ({"RAY_memory_usage_threshold": "rubbish"}, None, 950),
        ({"RAY_memory_usage_threshold": "7"}, None, 1000),
        ({"RAY_min_memory_free_bytes": "20"}, None, 980),  # the later of the two
        ({"RAY_min_memory_free_bytes": "200"}, None, 950),
        ({"RAY_memory_monitor_refresh_ms": "0"}, None, None),
        ({}, {"memory_monitor_refresh_ms": 0}, None),
    ],
)
def test_ray_kills_where_its_settings_say(environment, config, expected):
    """In bytes of a node of 1000."""
    assert MonitorSettings.of(environment, config).kills_at(1000) == expected


NESTED_V2 = {
    "cgroup.controllers": "memory",
    **version_2("kube/", 50 * GIB, 45 * GIB),
    **version_2("kube/pod/", 10 * GIB, GIB),
    **version_2("kube/pod/ray/", "max", GIB, events="oom 3\noom_kill 2\n"),
}


def test_the_fullest_limit_around_the_process_is_its_own_cgroup(probe):
    """Not the nearest: the one at which the kernel would kill first."""
    own = probe(NESTED_V2, own="0::/kube/pod/ray\n").own_cgroup()
    assert (own.used, own.total) == (45 * GIB, 50 * GIB)
    assert own.source.endswith("cgroup/kube")


def test_what_a_process_may_still_take_is_what_the_tightest_limit_leaves(probe):
    """Which is neither the nearest limit nor the fullest one."""
    here = probe({**NESTED_V2, **version_2("kube/pod/", 3 * GIB, GIB)}, own="0::/kube/pod/ray\n")
    assert [limit.left for limit in here.limits()[1:]] == [2 * GIB, 5 * GIB]
    assert here.own_cgroup().left == 5 * GIB
    assert here.left() == 2 * GIB


def test_where_no_limit_can_be_read_the_caller_says_what_is_left(probe):
    nothing = probe({}, own="", meminfo="")
    assert (nothing.limits(), nothing.left(), nothing.left(default=7)) == ((), 0, 7)


@pytest.mark.parametrize(
    "own", ["", "0::/\n", "0::/not/here\n", "0::/../../outside\n", "9:name=systemd:/\n", "rubbish"]
)
def test_a_process_in_no_limited_cgroup_has_none(probe, own):
    """The root is the node's; a path that is not there belongs to another cgroup namespace."""
    assert probe(NESTED_V2 if "not" in own else V2, own=own).own_cgroup() is None


def test_own_cgroup_of_version_1_and_of_a_hybrid_machine(probe):
    """Memory is in the old hierarchy, the new one holds the name only."""
    files = {**version_1("job/", 4 * GIB, 3 * GIB), "unified/cgroup.controllers": "", "unified/job/x": ""}
    own = probe(files, own="4:cpu,memory:/job\n0::/job\n").own_cgroup()
    assert (own.used, own.total) == (3 * GIB, 4 * GIB)


def test_an_unlimited_cgroup_limits_nothing(probe):
    """Neither "max" nor the huge number of version 1."""
    files = version_1("job/", UNLIMITED_V1, 3 * GIB)
    assert probe(files, own="4:memory:/job\n").own_cgroup() is None


@pytest.mark.parametrize(
    ("cgroup", "own", "expected"),
    [
        (NESTED_V2, "0::/kube/pod/ray\n", 2),
        ({**V2, "memory.events": "oom_kill 5\n"}, "0::/\n", 5),  # a container sees its own cgroup as the root
        ({**version_1("job/", GIB, 1), "memory/job/memory.oom_control": "under_oom 0\noom_kill 4\n"}, "4:memory:/job\n", 4),
        ({}, "0::/\n", 9),
        ({**V2, "memory.events": "oom_kill many\n"}, "0::/\n", 9),
    ],
)  # fmt: skip
def test_kills_by_the_kernel_are_counted(probe, cgroup, own, expected):
    """The cgroup's counter before the machine's."""
    assert probe(cgroup, own=own, vmstat="pgfault 7\noom_kill 9\n").oom_kills() == expected


def test_without_any_counter_kills_are_unknown(probe):
    """None, not zero."""
    assert probe({}).oom_kills() is None


STALLED = (
    "some avg10=12.50 avg60=3.00 avg300=1.00 total=123\nfull avg10=2.00 avg60=1.00 avg300=0.00 total=9\n"
)


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({"pressure/memory": STALLED}, "0::/\n", (0.125, 0.02)),
        ({"pressure/memory": "some avg10=1.00 avg60=1.00 avg300=0 total=1\n"}, "0::/\n", (0.01, 0.0)),
        ({"pressure/memory": "nonsense\n"}, "0::/\n", None),
        ({}, "0::/\n", None),
    ],
)
def test_pressure_comes_from_the_machine(probe, files, own, expected):
    """As shares of time."""
    stall = probe({}, own=own, **files).stall()
    assert (stall and (stall.some_10s_ratio, stall.full_10s_ratio)) == expected


def test_pressure_of_the_own_cgroup_comes_first(probe):
    """A neighbour's pressure is not ours."""
    files = {**NESTED_V2, "kube/pod/ray/memory.pressure": STALLED.replace("12.50", "50.00")}
    quiet = STALLED.replace("12.50", "0.00")
    assert probe(files, own="0::/kube/pod/ray\n", **{"pressure/memory": quiet}).stall().some_10s_ratio == 0.5


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files_are_missing_readings(probe, tmp_path):
    """Not errors."""
    blind = probe(V2)
    for file in ("proc/meminfo", "cgroup/memory.current", "proc/self/cgroup"):
        (tmp_path / file).chmod(0)
    assert blind.read() is None
    assert blind.own_cgroup() is None


def test_a_directory_in_the_place_of_a_file_is_a_missing_reading(probe, tmp_path):
    """A read that fails after the open, as of a pressure file of a kernel that has pressure switched off."""
    blind = probe({})
    (tmp_path / "proc/pressure/memory").mkdir(parents=True)
    (tmp_path / "proc/meminfo").unlink()
    (tmp_path / "proc/meminfo").mkdir()
    assert (blind.stall(), blind.read()) == (None, None)


def test_this_machine_can_be_read():
    """On any Linux."""
    found = NodeProbe().read()
    assert 0 < found.used <= found.total
