"""Who killed a process: each sign on its own, against each other, and from trees that look like a kernel's."""

import os
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayguard.faults.diagnosis import Kind
from rayguard.process.death_cause.evidence import gather, last_lines
from rayguard.process.death_cause.killer import ACTOR_DIED, HOST_OOM, DeathEvidence, Killer, who_killed
from rayguard.process.flight.readings import Group, Machine, node_kills, node_ratio
from rayguard.process.flight.recording import MemoryPoint, Recording
from rayguard.process.identity import ProcessId

OOM = (
    "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2, ID: 27) "
    "was 22.41GB used / 23.54GB limit (0.952013)\nOOM kill reason: Memory usage exceeded threshold"
)
LOST = "Worker unexpectedly exits with a connection error code 2. End of file."
KERNEL = "Memory cgroup out of memory: Killed process 77 (ray::Trainer) total-vm:8kB, anon-rss:4kB"
SEEN = {
    "node_ratio": 0.4,
    "silent_s": 0.6,
    "group_kills": 0,
    "node_kills": 0,
}  # a recording that ends in peace


@pytest.mark.parametrize(
    ("known", "killer", "kind", "said"),
    [
        (
            {"ray_kind": "NODE_OUT_OF_MEMORY", "ray_said": OOM},
            Killer.RAY_MEMORY,
            HOST_OOM,
            "memory monitor at 95.2 %",
        ),
        (
            {"ray_kind": "NODE_OUT_OF_MEMORY", "ray_said": "other words"},
            Killer.RAY_MEMORY,
            HOST_OOM,
            "memory monitor",
        ),
        ({"kernel_log": (KERNEL,)}, Killer.KERNEL, HOST_OOM, "by the kernel, out of memory"),
        ({"group_kills": 1, "node_ratio": 0.97}, Killer.KERNEL, HOST_OOM, "out of memory at 97.0 %"),
        ({"node_kills": 1, "node_ratio": 0.97}, Killer.KERNEL, HOST_OOM, "by the kernel"),
        (
            {"ending": "rayguard: CUDA error"},
            Killer.RAYGUARD,
            ACTOR_DIED,
            "was ended by rayguard: CUDA error",
        ),
        ({"ending": "os._exit(3) in f (a.py:1)"}, Killer.ITSELF, ACTOR_DIED, "ended itself: os._exit(3)"),
        ({"exitcode": 3}, Killer.ITSELF, ACTOR_DIED, "ended itself with exit code 3 (sys.exit"),
        (
            {"exitcode": 3, "ending": "os._exit(3) in f (a.py:1)"},
            Killer.ITSELF,
            ACTOR_DIED,
            "exit code 3 (os._exit(3) in f (a.py:1))",
        ),
        ({"ray_said": "Worker exits with an exit code 4."}, Killer.ITSELF, ACTOR_DIED, "with exit code 4"),
        (
            {"ray_said": "exits with an exit code 1. The process receives a SIGTERM."},
            Killer.OUTSIDE,
            ACTOR_DIED,
            "(SIGTERM) by a person",
        ),
        ({"exitcode": -15}, Killer.OUTSIDE, ACTOR_DIED, "(SIGTERM) by a person"),
        ({"exitcode": -11}, Killer.ITSELF, ACTOR_DIED, "signal 11 (SIGSEGV), its own crash"),
        ({"exitcode": -6}, Killer.ITSELF, ACTOR_DIED, "signal 6 (SIGABRT), its own crash"),
        ({"exitcode": -2}, Killer.OUTSIDE, ACTOR_DIED, "signal 2 (SIGINT), which somebody sent"),
        ({"exitcode": -77}, Killer.OUTSIDE, ACTOR_DIED, "signal 77"),
        (
            {"stderr": ("*** SIGSEGV received at time=17 on cpu 1 ***",)},
            Killer.ITSELF,
            ACTOR_DIED,
            "crashed (SIGSEGV)",
        ),
        (
            {"stderr": ("Fatal Python error: Aborted", "", "later")},
            Killer.ITSELF,
            ACTOR_DIED,
            "crashed (SIGABRT)",
        ),
        ({"stderr": ("terminate called after throwing",)}, Killer.ITSELF, ACTOR_DIED, "crashed (SIGABRT)"),
        (
            {"ray_kind": "INTENDED_SYSTEM_EXIT", "ray_said": "killed by `ray.kill`"},
            Killer.RAY,
            ACTOR_DIED,
            "by Ray",
        ),
        ({"ray_kind": "INTENDED_USER_EXIT"}, Killer.ITSELF, ACTOR_DIED, "as it wished"),
        (SEEN, Killer.OUTSIDE, ACTOR_DIED, "SIGKILL of a person or another program (memory was at 40 %"),
        ({**SEEN, "exitcode": -9}, Killer.OUTSIDE, ACTOR_DIED, "SIGKILL of a person or another program"),
        ({"exitcode": -9}, Killer.OUTSIDE, ACTOR_DIED, "nobody knows whose"),
        ({**SEEN, "node_ratio": 0.97}, Killer.OUTSIDE, HOST_OOM, "likely of a program that guards memory"),
        ({**SEEN, "node_kills": 3}, Killer.OUTSIDE, ACTOR_DIED, "of a person"),  # of another container
        ({**SEEN, "silent_s": 60.0}, Killer.UNKNOWN, ACTOR_DIED, "or os._exit"),
        ({"ray_kind": "SYSTEM_ERROR", "ray_said": LOST}, Killer.UNKNOWN, ACTOR_DIED, "(also of the kernel"),
        ({"kernel_log": (KERNEL.replace("77", "78"),), **SEEN}, Killer.OUTSIDE, ACTOR_DIED, "of a person"),
    ],
)
def test_each_sign_names_its_killer(known, killer, kind, said):
    """With words that go on from "process 77"."""
    verdict = who_killed(DeathEvidence(pid=77, **known))
    assert (verdict.killer, verdict.kind) == (killer, kind)
    assert said in verdict.how
    assert verdict.of_memory == (kind == HOST_OOM)
    assert Kind(verdict.kind)


def test_the_surest_sign_wins():
    """Ray's monitor, our own word and the kernel's log come before what can be guessed from counts."""
    everything = {
        "ray_kind": "NODE_OUT_OF_MEMORY",
        "ray_said": OOM,
        "ending": "rayguard: x",
        "kernel_log": (KERNEL,),
        "exitcode": -11,
        "group_kills": 1,
        "node_ratio": 0.5,
        "silent_s": 0.1,
    }
    order = []
    while everything:
        verdict = who_killed(DeathEvidence(pid=77, **everything))
        order.append(verdict.killer)
        for name in {
            Killer.RAY_MEMORY: ("ray_kind", "ray_said"),
            Killer.RAYGUARD: ("ending",),
            Killer.KERNEL: ("kernel_log",) if "kernel_log" in everything else ("group_kills",),
            Killer.ITSELF: ("exitcode",),
            Killer.OUTSIDE: ("node_ratio", "silent_s"),
        }[verdict.killer]:
            del everything[name]
    assert order == [
        Killer.RAY_MEMORY,
        Killer.RAYGUARD,
        Killer.KERNEL,
        Killer.ITSELF,
        Killer.KERNEL,
        Killer.OUTSIDE,
    ]


anything = st.fixed_dictionaries(
    {},
    optional={
        "exitcode": st.none() | st.integers(-200, 300),
        "ray_kind": st.sampled_from(
            ["", "SYSTEM_ERROR", "NODE_OUT_OF_MEMORY", "INTENDED_USER_EXIT", "NEW_KIND"]
        ),
        "ray_said": st.text(max_size=40) | st.just(OOM),
        "ending": st.text(max_size=20),
        "stderr": st.lists(st.text(max_size=40), max_size=3).map(tuple),
        "kernel_log": st.lists(st.text(max_size=40), max_size=3).map(tuple),
        "group_kills": st.none() | st.integers(0, 3),
        "node_kills": st.none() | st.integers(0, 3),
        "node_ratio": st.none() | st.floats(0, 1),
        "silent_s": st.none() | st.floats(0, 100),
    },
)


@given(anything)
def test_there_is_always_a_verdict_and_never_certainty(known):
    """Whatever was found."""
    verdict = who_killed(DeathEvidence(pid=77, **known))
    assert verdict.how
    assert 0 < verdict.confidence < 1
    assert verdict.of_memory or verdict.kind == ACTOR_DIED


# -- the kernel's files


def tree(root, *, version, limit=1 << 30, kills=2):
    """Make what a kernel shows of a cgroup, of a machine with 4 GiB of which a half is in use."""
    group, used = "/box/worker", 900 << 20
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        "MemTotal:        4194304 kB\nMemFree: 1 kB\nMemAvailable:    2097152 kB\n"
    )
    (root / "proc/vmstat").write_text("nr_free_pages 12\noom_kill 7\n")
    if version == 1:
        (root / "proc/self/cgroup").write_text(f"9:name=systemd:/\n4:cpu,memory:{group}\n0::/\n")
        here = root / "sys/fs/cgroup/memory" / group.strip("/")
        files = {
            "memory.usage_in_bytes": used,
            "memory.limit_in_bytes": limit,
            "memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}",
            "memory.stat": f"cache 1\ntotal_inactive_file {100 << 20}\ntotal_active_file 0",
        }
    else:
        (root / "proc/self/cgroup").write_text(f"0::{group}\n")
        here = root / "sys/fs/cgroup" / group.strip("/")
        files = {
            "memory.current": used,
            "memory.max": limit,
            "memory.events": f"low 0\nhigh 0\nmax 9\noom 3\noom_kill {kills}",
            "memory.stat": f"anon 1\ninactive_file {100 << 20}\nactive_file 0",
        }
    here.mkdir(parents=True)
    if version == 2:
        (root / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory")
    for name, said in files.items():
        (here / name).write_text(f"{said}\n")
    return here


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_that_comes_first_is_what_counts(tmp_path, version):
    """800 of 1024 MiB in use, cached files not counted, although half the machine is free."""
    here = tree(tmp_path, version=version)
    group = Group.mine(tmp_path)
    assert group == Group(here)
    assert (group.kills(), group.limit()) == (2, 1 << 30)
    seen = Machine(tmp_path).read()
    assert seen.node_ratio == pytest.approx(800 / 1024)
    assert (seen.group_kills, seen.node_kills) == (2, 7)
    assert node_ratio(tmp_path) == 0.5


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_above_counts_too(tmp_path, version):
    """A slice or a pod may be what is full."""
    here = tree(tmp_path, version=version, limit=(1 << 63) - 4096 if version == 1 else "max")
    above = here.parent
    for name in here.iterdir():
        (above / name.name).write_text(name.read_text())
    (above / ("memory.limit_in_bytes" if version == 1 else "memory.max")).write_text(f"{1000 << 20}\n")
    assert Machine(tmp_path).read().node_ratio == pytest.approx(0.8)


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_that_cannot_be_seen_is_looked_for_where_it_is_mounted(tmp_path, version):
    """In a container the path may be the host's."""
    here = tree(tmp_path, version=version)
    said = (tmp_path / "proc/self/cgroup").read_text().replace("/box/worker", "/of/the/host")
    (tmp_path / "proc/self/cgroup").write_text(said)
    group = Group.mine(tmp_path)
    assert group == Group(here.parents[1])
    assert group.kills() is None
    assert Machine(tmp_path).read().node_ratio == 0.5


def test_nothing_to_read_is_nothing_known(tmp_path):
    """An unreadable /proc is no error."""
    seen = Machine(tmp_path).read()
    assert (seen.node_ratio, seen.group_kills, seen.node_kills) == (0.0, None, None)
    assert node_kills(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    for text in ("", "nonsense\n", "0:\n", ":::\n", "4:memory:\n"):
        (tmp_path / "proc/self/cgroup").write_text(text)
        assert Machine(tmp_path).read().group_kills is None


def recording(group="", *, started=1, last_at=None, group_kills=None, node_kills=None, **known):
    memory = (MemoryPoint(at=time.time(), private=5, node_ratio=0.5),)
    return Recording(
        process=ProcessId(77, started),
        alive=False,
        last_at=time.time() if last_at is None else last_at,
        memory=memory,
        group=group,
        group_kills=group_kills,
        node_kills=node_kills,
        **known,
    )


@pytest.mark.parametrize("version", [1, 2])
def test_a_kill_that_the_group_counts_after_the_last_sample_is_the_kernels(tmp_path, version):
    """And none that it counted before."""
    here = tree(tmp_path, version=version, kills=2)
    for before, killer in ((1, Killer.KERNEL), (2, Killer.OUTSIDE)):
        found = gather(
            recording(str(here), group_kills=before, node_kills=7), died_at=time.time(), root=tmp_path
        )
        assert who_killed(found).killer is killer
    assert found.node_kills == 0


def test_the_kernels_log_is_read_from_shortly_before_the_death(tmp_path):
    """An entry of yesterday about the same pid says nothing."""
    (tmp_path / "dev").mkdir()
    now_us = int(time.monotonic() * 1e6)
    said = [
        f"4,1,{now_us - 3_600_000_000},-;Out of memory: Killed process 77 (old)",
        f"6,2,{now_us - 1_000_000},-;usb 1-1: something else",
        " SUBSYSTEM=usb",
        f"4,3,{now_us - 900_000},-;{KERNEL}",
    ]
    (tmp_path / "dev/kmsg").write_text("\n".join(said) + "\n")
    found = gather(recording(), died_at=time.time(), root=tmp_path)
    assert found.kernel_log == (KERNEL,)
    assert who_killed(found).killer is Killer.KERNEL
    (tmp_path / "dev/kmsg").write_text("nonsense;oom-kill:\n1,2;oom-kill:\n")
    assert gather(recording(), died_at=time.time(), root=tmp_path).kernel_log == ()


def test_a_kill_before_the_process_began_was_of_an_earlier_one_with_its_pid(tmp_path):
    """Also where nobody knows when the process was last seen, as after the death of a node's agent."""
    (tmp_path / "dev").mkdir()
    an_hour_ago_us = int((time.monotonic() - 3600) * 1e6)
    (tmp_path / "dev/kmsg").write_text(f"4,1,{an_hour_ago_us},-;{KERNEL}\n")
    for started_ago_s, seen in ((7200, (KERNEL,)), (60, ())):
        began = round((time.clock_gettime(time.CLOCK_BOOTTIME) - started_ago_s) * os.sysconf("SC_CLK_TCK"))
        found = gather(recording(started=began, last_at=0.0), died_at=time.time(), root=tmp_path)
        assert found.kernel_log == seen


def test_the_last_lines_of_a_file(tmp_path):
    """Not its empty ones; of a file that is gone, a directory or nothing at all: none."""
    log = tmp_path / "worker.err"
    log.write_bytes(b"x" * 100_000 + b"\nfirst\n\n  second \xff\nthird")
    assert last_lines(str(log), 3) == ["first", "  second \ufffd", "third"]
    assert last_lines("", 3) == []
    assert last_lines(str(tmp_path / "gone"), 3) == []
    assert last_lines(str(tmp_path), 3) == []


def test_silence_means_nothing_where_nobody_recorded():
    """A worker that had no recorder could not have said that it ends itself."""
    seen = DeathEvidence(pid=7, ray_kind="SYSTEM_ERROR", node_ratio=0.2, silent_s=1.0, node_kills=0)
    assert who_killed(seen).killer is Killer.OUTSIDE
    found = who_killed(replace(seen, recorded=False))
    assert (found.killer, found.kind) == (Killer.UNKNOWN, "actor_died")
    assert "by SIGKILL or os._exit (memory was at 20 %, the kernel killed nobody for memory)" in found.how
    assert who_killed(replace(seen, recorded=False, exitcode=-9)).killer is Killer.OUTSIDE
