"""All processes and all Ray nodes of a machine, from the files of a kernel that is not this one."""

import socket
import subprocess
import sys

import pytest
from trees import meminfo, written

from rayguard.memory.probes.census import Observer, processes
from rayguard.memory.probes.ray_node import RayNode, Registered, own_ray_node, ray_nodes, registered

RAYLET = [
    "/venv/ray/core/src/ray/raylet/raylet",
    "--node_id=abc",
    "--gcs-address=127.0.0.1:1",
    "--session_dir=/tmp/ray/session_1",
    "--fallback_directory=/spill",
    "--plasma_directory=/dev/shm",
    "--object_store_memory=1000",
    "--static_resource_list=CPU,1,--node_id=not-this",
]


def process(pid, parent, *arguments, name="x", pages="100 50 20", started=500, **files):
    """Return the files of one process."""
    fields = ["S", str(parent), *["0"] * 17, str(started), *["0"] * 30]
    return {
        f"{pid}/stat": f"{pid} ({name}) {' '.join(fields)}\n",
        f"{pid}/statm": f"{pages} 0 0 0 0\n",
        f"{pid}/cmdline": "".join(f"{argument}\0" for argument in arguments),
        **{f"{pid}/{file}": text for file, text in files.items()},
    }


@pytest.fixture
def proc(tmp_path):
    def build(*some):
        files = {"meminfo": meminfo(10, 6), "self/cgroup": "0::/\n"}
        for one in some:
            files |= one
        return written(tmp_path / "proc", files)

    return build


def test_processes_are_read_with_their_parents_and_starts(proc):
    """By number, and not by name."""
    root = proc(process(10, 1, "python", "x.py", name="a) b (c", started=77), process(2, 0, "init"))
    (tmp, found) = processes(root)
    assert (tmp.pid, tmp.arguments) == (2, ("init",))
    assert (found.pid, found.parent, found.started) == (10, 1, 77)
    assert found.private == 30 * 4096
    assert found.shared == 20 * 4096


def test_kernel_threads_zombies_and_torn_files_are_no_processes(proc):
    """Nothing to hold, or gone while we read."""
    root = proc(
        process(2, 0, name="kthreadd", pages="0 0 0"),
        {"3/stat": "3 (x)"},
        {"4/comm": "no stat"},
        {"self-x/stat": "no pid"},
    )
    assert list(processes(root)) == []


def test_a_process_without_a_command_line_goes_by_the_kernels_name(proc):
    """Some empty it."""
    (found,) = processes(proc(process(9, 1, name="tini")))
    assert found.name == "tini"


def test_a_raylet_is_found_by_its_command_line(proc):
    """With what it was started with; of its environment, only what is Ray's."""
    environment = "RAY_memory_usage_threshold=0.8\0SECRET=1\0"
    root = proc(process(20, 1, *RAYLET, environ=environment), process(21, 20, "ray::IDLE"))
    (node,) = ray_nodes(root)
    assert (node.pid, node.node_id, node.gcs_address, node.store_bytes) == (20, "abc", "127.0.0.1:1", 1000)
    assert (node.session_dir, node.spill_dirs, node.shm_dir) == (
        "/tmp/ray/session_1",
        ("/spill",),
        "/dev/shm",
    )
    assert dict(node.environment) == {"RAY_memory_usage_threshold": "0.8"}


def test_what_is_no_raylet_or_another_users_is_told_apart(proc):
    """No environment is an empty one; a program that mentions a raylet is none."""
    root = proc(
        process(20, 1, *RAYLET),
        process(30, 1, "grep", "raylet"),
        process(31, 1, "/bin/raylet"),
        process(32, 1, name="raylet"),
    )
    assert [(node.pid, dict(node.environment)) for node in ray_nodes(root)] == [(20, {})]


def test_a_worker_finds_its_own_raylet_among_several(proc, monkeypatch):
    """By the pid that Ray puts into its environment."""
    root = proc(process(20, 1, *RAYLET), process(40, 1, *[word.replace("abc", "def") for word in RAYLET]))
    monkeypatch.setenv("RAY_RAYLET_PID", "40")
    assert own_ray_node(root).node_id == "def"


def test_outside_of_ray_no_raylet_is_our_own(proc, monkeypatch):
    """Even where one runs."""
    monkeypatch.delenv("RAY_RAYLET_PID", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert own_ray_node(proc(process(20, 1, *RAYLET))) is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ()),
        ({"object_spilling_config": ""}, ()),
        ({"object_spilling_config": "{torn"}, ()),
        ({"object_spilling_config": "[1]"}, ()),
        ({"object_spilling_config": '{"type": "smart_open", "params": {"uri": "s3://x"}}'}, ()),
        ({"object_spilling_config": '{"params": {"directory_path": "/a"}}'}, ("/a",)),
        ({"object_spilling_config": '{"params": {"directory_path": ["/a", "/b"]}}'}, ("/a", "/b")),
    ],
)
def test_spill_directories_come_from_the_clusters_settings(config, expected):
    """As far as there are any."""
    assert Registered(address="h:1", system_config=config).spill_dirs == expected


@pytest.mark.parametrize("address", ["", "no-port", "127.0.0.1:x"])
def test_a_gcs_that_cannot_be_reached_is_unknown(address):
    """An address that is none."""
    assert registered(RayNode(pid=1, node_id="a", gcs_address=address)) is None


def test_a_gcs_that_ended_is_unknown_and_ray_is_not_loaded():
    """Ray's own client would try for many seconds."""
    with socket.socket() as taken:  # bound and not listening: refused
        taken.bind(("127.0.0.1", 0))
        code = (
            "import sys; from rayguard.memory.probes.ray_node import *; "
            f"print(registered(RayNode(pid=1, node_id='a', gcs_address='127.0.0.1:{taken.getsockname()[1]}')), 'ray' in sys.modules)"
        )
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
    assert run.stdout.split() == ["None", "False"]


def test_a_census_of_a_node_whose_cluster_does_not_answer(proc, monkeypatch):
    """Says so, and shows everything else."""
    monkeypatch.setattr("rayguard.memory.probes.census.registered", lambda node: None)
    root = proc(
        process(20, 1, *RAYLET, environ="RAY_memory_usage_threshold=0.5\0"),
        process(21, 20, "ray::A", started=501),
    )
    observer = Observer(proc=root)
    census = observer.look(pss=True, guarded={(21, 501): "Trainer", (20, 1): "stranger"})
    observer.close()
    assert [one.memory for one in census.stores] == [None]
    assert census.kills_at == 5 << 30
    assert [(one.pid, one.guarded) for one in census.processes] == [(20, ""), (21, "Trainer")]
    assert census.notes == (
        "the GCS at 127.0.0.1:1 does not answer",
        "the PSS of 2 processes cannot be read: other users', or just ended",
    )


def test_a_census_without_ray_tells_no_threshold(proc):
    """Nobody kills at 95 % where there is no raylet."""
    census = Observer(proc=proc(process(5, 1, "bash"))).look()
    assert (census.kills_at, census.stores, census.notes) == (None, (), ())
    assert census.node.total == 10 << 30
