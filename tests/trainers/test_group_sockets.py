"""A collective that nobody ends is left within half a second, on real gloo, and nothing else is cut."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from rayguard.trainers.group_sockets import GroupSockets, open_ends

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
RANK = """
import json, os, socket, sys, threading, time, warnings
warnings.filterwarnings("ignore")
import torch, torch.distributed as dist
from datetime import timedelta
from rayguard.trainers.group_sockets import GroupSockets, open_ends

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
away = socket.create_server(("127.0.0.1", 0))  # of the user's own: it must stay
mine = socket.create_connection(away.getsockname())
store = dist.FileStore(f"{folder}/store", world)
for generation in range(int(sys.argv[4])):
    before = open_ends()
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"g{generation}", store), rank=rank, world_size=world,
        timeout=timedelta(seconds=120))
    def share(ends):
        gathered = [None] * world
        dist.all_gather_object(gathered, ends)
        return gathered
    group = GroupSockets.of(before, share)
    dist.barrier()
    open(f"{folder}/in-{generation}-{rank}", "w").close()
    if rank == world - 1:
        time.sleep(0.5)  # it never comes
    cut = {}
    def watch():
        while not os.path.exists(f"{folder}/cut-{generation}"):
            time.sleep(0.005)
        cut["at"] = time.monotonic()
        group.cut()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        if rank == world - 1:
            thread.join()
            left = 0.0
        else:
            dist.all_reduce(torch.ones(4))
            left = -1.0
    except RuntimeError:
        left = time.monotonic() - cut.get("at", time.monotonic())
    thread.join()
    with open(f"{folder}/told-{generation}-{rank}.part", "w") as file:
        json.dump({"left": left, "sockets": len(group), "mine": mine.getpeername()[1]}, file)
    os.rename(f"{folder}/told-{generation}-{rank}.part", f"{folder}/told-{generation}-{rank}")
    group.close()
    try:
        dist.destroy_process_group()
    except RuntimeError:
        pass
mine.sendall(b"still here")
peer, _ = away.accept()
assert peer.recv(20) == b"still here"
open(f"{folder}/files-{rank}", "w").write(str(len(os.listdir("/proc/self/fd"))))
"""


@pytest.fixture
def gang(tmp_path):
    """Start ranks; end those that are left."""
    (tmp_path / "rank.py").write_text(textwrap.dedent(RANK))
    started = []

    def start(world, generations=1):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        for rank in range(world):
            words = [sys.executable, tmp_path / "rank.py", str(rank), str(world), tmp_path, str(generations)]
            started.append(subprocess.Popen(words, env=environment))
        return started

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait(30)


def told(folder, generation, rank):
    path = folder / f"told-{generation}-{rank}"
    deadline = time.monotonic() + 100
    while not path.exists():
        assert time.monotonic() < deadline, (
            f"rank {rank} did not leave the collective of generation {generation}"
        )
        time.sleep(0.01)  # noqa: TID251 - another process's file
    return json.loads(path.read_text())


def until_all_are_in(folder, generation, world):
    deadline = time.monotonic() + 100
    while not all((folder / f"in-{generation}-{rank}").exists() for rank in range(world)):
        assert time.monotonic() < deadline, "the group was not made"
        time.sleep(0.01)  # noqa: TID251 - other processes' files
    time.sleep(0.3)  # noqa: TID251 - into the collective


@pytest.mark.timeout(240)
def test_who_waits_in_a_collective_is_out_at_once_and_joins_the_next(gang, tmp_path):
    """Three ranks, of which one does not come; twice; no descriptor is left, and the user's own socket lives."""
    processes = gang(3, generations=3)
    for generation in range(3):
        until_all_are_in(tmp_path, generation, 3)
        (tmp_path / f"cut-{generation}").touch()
        found = [told(tmp_path, generation, rank) for rank in range(3)]
        assert [one["sockets"] for one in found] == [2, 2, 2], "a full mesh, and nothing else"
        assert all(0 <= one["left"] < 0.5 for one in found), found
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert len({(tmp_path / f"files-{rank}").read_text() for rank in range(3)}) == 1


@pytest.mark.timeout(240)
def test_a_stopped_rank_keeps_nobody(gang, tmp_path):
    """SIGSTOP: its sockets are open, and say nothing."""
    processes = gang(3)
    until_all_are_in(tmp_path, 0, 3)
    processes[2].send_signal(signal.SIGSTOP)
    (tmp_path / "cut-0").touch()
    assert all(0 <= told(tmp_path, 0, rank)["left"] < 0.5 for rank in range(2))


def test_sockets_that_no_other_rank_names_are_left_alone():
    """The user's own, though they are as new; also where this process has both ends."""
    before = open_ends()
    server = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(server.getsockname())
    far, _ = server.accept()
    try:
        assert len(open_ends()) == len(before) + 2
        for everybodys in (lambda mine: [[], []], lambda mine: [mine, []]):
            none = GroupSockets.of(before, everybodys)
            assert len(none) == 0
            none.cut()
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        group = GroupSockets([near.fileno()])
        group.cut()
        group.cut()
        assert far.recv(1) == b""
        group.close()
    finally:
        for one in (near, far, server):
            one.close()


def test_a_descriptor_that_is_another_file_by_now_is_not_touched():
    """The trap of remembering numbers."""
    server = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(server.getsockname())
    far, _ = server.accept()
    group = GroupSockets([near.fileno()])
    number = near.fileno()
    near.close()
    other = socket.create_connection(server.getsockname())
    reused, _ = server.accept()
    try:
        assert number in (other.fileno(), reused.fileno())
        group.cut()
        other.sendall(b"x")
        assert reused.recv(1) == b"x"
    finally:
        group.close()
        for one in (far, other, reused, server):
            one.close()
