"""``rayguard memory``, run as people and scripts run it; how it looks, from made-up nodes."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from pseudo_terminal import on_a_terminal

from rayguard.cli.memory_views import show, size
from rayguard.cli.terminal import without_native_lines
from rayguard.memory.holders import Holder, Table
from rayguard.memory.probes.census import Census, Store
from rayguard.memory.probes.device import DeviceMemory
from rayguard.memory.probes.files import FileSystem
from rayguard.memory.probes.node import NodeMemory, Stall
from rayguard.memory.probes.ray_node import RayNode
from rayguard.ray_internals.node_stats import StoreMemory
from rayguard.recovery.status import StatusPage, Who
from rayguard.recovery.tally import Tally

DEADLINE_S = 120
GIB = 1 << 30
MIB = 1 << 20


def command(home, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "rayguard", "memory", *arguments],
        env={**os.environ, "RAYGUARD_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.fixture
def hog():
    """A child that holds 200 MiB and has an escape sequence in its name."""
    code = "import mmap, sys; b = mmap.mmap(-1, 200 << 20, flags=34); b.write(bytes(200 << 20)); print(1, flush=True); sys.stdin.read()"
    name = "\x1b[31mh\x1b]0;og\x07[bold]"
    child = subprocess.Popen(
        [name, "-c", code], executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    yield child
    child.communicate(timeout=30)


def test_scripts_get_json_with_a_row_for_a_process_that_holds_much(tmp_path, hog):
    """Bytes as numbers; what nobody told is null."""
    run = command(tmp_path, "--json", "--pss", "--top", "1000")
    shown = json.loads(run.stdout)
    row = next(row for row in shown["rows"] if row["pid"] == hog.pid)
    assert row["private"] > 200 * MIB
    assert row["pss"] > 200 * MIB
    assert shown["node"]["used"] <= shown["node"]["total"]
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("watched", "how", "other"), [(False, "guarded", "watched"), (True, "watched", "guarded")]
)
def test_a_process_of_ours_is_marked_as_what_it_is(tmp_path, watched, how, other):
    """By the status page that it wrote; by pid and start time, so no stranger is."""
    page = StatusPage(tmp_path, Who(actor_class="Trainer", watched=watched), tally=Tally())
    assert page.publish()
    shown = json.loads(command(tmp_path, "--json", "--top", "1000").stdout)
    assert {row["pid"]: row[how] for row in shown["rows"] if row[how]} == {os.getpid(): "Trainer"}
    assert not [row for row in shown["rows"] if row[other]]
    lines = command(tmp_path, "--top", "1000").stdout.splitlines()
    assert [line for line in lines if line.endswith(f" {how}=Trainer")]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_a_table_that_fits(tmp_path, hog, columns):
    """No line is longer than the terminal, and no process paints it."""
    code, shown = on_a_terminal("memory", columns=columns, RAYGUARD_HOME=str(tmp_path))
    assert code == 0
    assert "\x1b]" not in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= columns
    assert "MiB" in plain
    assert str(hog.pid) in plain


def test_watching_goes_on_until_it_is_interrupted(tmp_path):
    """One JSON object a line; Ctrl-C is no error."""
    watching = [sys.executable, "-m", "rayguard", "memory", "--json", "--watch", "--interval", "0.2"]
    child = subprocess.Popen(
        ["env", "--default-signal=INT", *watching],  # it is ignored in what a shell runs in the background
        env={**os.environ, "RAYGUARD_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    first, second = (json.loads(child.stdout.readline()) for _ in range(2))
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=DEADLINE_S)
    assert first["at"] < second["at"]
    assert child.returncode == 0


@pytest.mark.parametrize("arguments", [["--interval", "0"], ["--top", "0"]])
def test_nonsense_is_refused(tmp_path, arguments):
    """With the usual exit code, before anything is read."""
    run = command(tmp_path, *arguments)
    assert run.returncode == 2


NODE = RayNode(pid=7, node_id="n", gcs_address="h:1")
FULL = Census(
    node=NodeMemory(used=90 * GIB, total=100 * GIB, source="cgroup"),
    own_cgroup=NodeMemory(used=3 * GIB, total=4 * GIB, source="/sys/fs/cgroup/pod"),
    kills_at=95 * GIB,
    stall=Stall(some_10s_ratio=0.25, some_60s_ratio=0, full_10s_ratio=0.1, full_60s_ratio=0),
    oom_kills=2,
    stores=(
        Store(
            node=NODE,
            memory=StoreMemory(
                used=GIB, capacity=2 * GIB, fallback=3 * MIB, spilled_total=5 * GIB, objects=9
            ),
        ),
        Store(node=NODE),
    ),
    shm=(FileSystem(path="/dev/shm", used=GIB, total=8 * GIB),),
    disks=(FileSystem(path="/tmp/ray", used=GIB, total=0),),
    devices=(DeviceMemory(index=0, uuid="u", name="H200", used=70 * GIB, total=140 * GIB),),
    notes=("the raylet 7 does not answer",),
)
ROWS = Table(
    rows=(Holder(name="ray::Rollout", pid=30, processes=3, private=7 * GIB, device=70 * GIB, objects=MIB, guarded="Rollout"),),
    others=Holder(name="others", processes=5, private=512),
    unreadable=4,
)  # fmt: skip


def test_a_pipe_gets_a_line_for_each_fact_and_each_row(capsys):
    """Everything that limits, everything that holds, everything that could not be seen."""
    show(FULL, ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "memory: 90.00 GiB of 100.00 GiB (90%), Ray kills at 95.00 GiB (limit of the container)",
        "cgroup: 3.00 GiB of 4.00 GiB (75%), the kernel kills there: /sys/fs/cgroup/pod",
        "stalled: 25% of the last 10 s some task waited for memory, 10% all of them",
        "OOM kills: 2 by the kernel so far",
        "object store: 1.00 GiB of 2.00 GiB (50%), 9 objects, 3 MiB on disk for want of room, 5.00 GiB spilled so far",
        "object store: of raylet 7: no answer",
        "shared memory: 1.00 GiB of 8.00 GiB (12%) under /dev/shm",
        "disk: 1.00 GiB under /tmp/ray",
        "GPU 0: 70.00 GiB of 140.00 GiB (50%), H200",
        "ray::Rollout pid=30 procs=3 private=7.00GiB shared=0 GPU=70.00GiB objects=1MiB guarded=Rollout",
        "others pid=- procs=5 private=512B shared=0 GPU=0 objects=0",
        "Note: the raylet 7 does not answer",
        "4 processes of other users cannot be read and are in no row.",
    ]


def test_a_node_without_ray_and_gpu_says_so(capsys):
    """And shows what there is."""
    show(Census(no_devices="Driver Not Loaded"), Table())
    assert capsys.readouterr().out.splitlines() == [
        "memory: neither /proc/meminfo nor a cgroup can be read",
        "No Ray node runs here (or none that can be seen).",
        "No GPU: Driver Not Loaded.",
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, ""), (1023, "1023 B"), (MIB, "1 MiB"), (1023 * MIB, "1023 MiB"), (GIB, "1.00 GiB")],
)
def test_sizes_are_said_as_people_read_them(value, said):
    """In powers of two, named so."""
    assert size(value) == said


def test_what_native_code_writes_is_kept_off_the_terminal(capfd):
    """Ray's C++ tells of each cluster that does not let us in; the line of that node says so."""
    with without_native_lines():
        os.write(2, b"gcs_client.cc:210: Failed to get cluster ID\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"
