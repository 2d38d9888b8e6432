"""The prefork server on plain functions: contents, exit codes, deaths, deadlines. No vLLM here.

The real engine through the server is in ``test_prefork_vllm.py``.
"""

import ast
import json
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rayguard.engine.prefork import child
from rayguard.engine.prefork import process as prefork_process
from rayguard.engine.prefork import server as prefork
from rayguard.engine.prefork.server import PreforkServer
from rayguard.process.identity import OWNER_ENV, ProcessId, owned_by, owner_mark
from rayguard.recovery.tally import TALLY

MODULES = ("tabnanny",)  # something that nobody else imports


@pytest.fixture
def guard_errors():
    """How many failures of prefork were counted during the test."""
    before = TALLY.guard_errors["prefork"]
    return lambda: TALLY.guard_errors["prefork"] - before


@pytest.fixture(scope="module")
def shared():
    """A server that no test of this module harms."""
    server = PreforkServer(MODULES)
    server.start()
    assert server.ready(30)
    yield server
    server.stop()


@pytest.fixture
def server():
    """A server for a test that harms it."""
    server = PreforkServer(MODULES)
    server.start()
    assert server.ready(30)
    yield server
    server.stop()


def until(true, timeout_s=10.0):
    """Wait for ``true()``; say whether it came."""
    tick, deadline = threading.Event(), time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        tick.wait(0.01)
    return True


def finished(process, timeout_s=10.0):
    process.join(timeout_s)
    return process.exitcode


def tell(pipe, what):
    pipe.send(eval(what))  # the test says what


def asked(server, what):
    """Evaluate ``what`` in a child of ``server``."""
    mine, its = multiprocessing.Pipe(duplex=False)
    process = server.context().Process(target=tell, args=(its, what))
    process.start()
    its.close()
    assert mine.poll(10)
    answer = mine.recv()
    assert finished(process) == 0
    return answer


def put_twice(queue, lock, number):
    with lock:
        queue.put(number)
        queue.put(number * 2)


def sleep_for(seconds):
    threading.Event().wait(seconds)


def test_a_child_is_forked_from_the_server_with_its_modules(shared):
    """It descends from the server and finds the preloaded module there, without importing it."""
    ppid, preloaded = asked(shared, "(os.getppid(), 'tabnanny' in sys.modules)")
    assert (ppid, preloaded) == (shared.pid, True)
    assert "tabnanny" not in sys.modules


def test_arguments_queues_locks_and_pipes_travel(shared):
    """What vLLM hands to its core does: nested values, a queue, a lock, a connection."""
    context = shared.context()
    queue, lock = context.Queue(), context.Lock()
    process = context.Process(target=put_twice, args=(queue, lock, 21))
    process.start()
    assert [queue.get(timeout=10), queue.get(timeout=10)] == [21, 42]
    assert finished(process) == 0
    queue.close()
    queue.join_thread()


def test_a_large_argument_travels(shared):
    """More than a pipe holds, so that the hand-over waits for the child to read."""
    process = shared.context().Process(target=len, args=(b"x" * 3_000_000,))
    process.start()
    assert finished(process) == 0


@pytest.mark.parametrize(
    ("ending", "args", "code"),
    [(os._exit, (7,), 7), (os._exit, (255,), 255), (sys.exit, (3,), 3), (sleep_for, (0,), 0)],
)
def test_exit_codes_are_the_childs(shared, ending, args, code):
    """The server passes on what it reaped."""
    process = shared.context().Process(target=ending, args=args)
    process.start()
    assert finished(process) == code


def test_the_exit_code_of_a_killed_child_is_the_signal(shared):
    """As vLLM's monitor and our diagnosis read it; the sentinel wakes at once."""
    process = shared.context().Process(target=sleep_for, args=(60,))
    process.start()
    os.kill(process.pid, signal.SIGKILL)
    assert multiprocessing.connection.wait([process.sentinel], 5)
    assert process.exitcode == -signal.SIGKILL


def test_a_child_lives_in_the_present_of_its_owner(shared, monkeypatch, tmp_path):
    """Environment, path, folder, CPUs: as they are now, not as they were when the server started."""
    monkeypatch.setenv("VLLM_FOR_TEST", "now")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        environ, path, folder, its_cpus = asked(
            shared, "(dict(os.environ), sys.path, os.getcwd(), os.sched_getaffinity(0))"
        )
    finally:
        os.sched_setaffinity(0, cpus)
    assert environ == dict(os.environ)
    assert str(tmp_path) in path
    assert folder == str(tmp_path)
    assert its_cpus == {min(cpus)}


def test_every_process_carries_the_owners_mark(shared):
    """The kernel shows a forked process with the environment of the server: the mark is there."""
    mark = owner_mark(ProcessId.me())
    process = shared.context().Process(target=sleep_for, args=(60,))
    process.start()
    try:
        assert owned_by(ProcessId.of(shared.pid), mark)
        assert owned_by(ProcessId.of(process.pid), mark)
        assert f"{OWNER_ENV}={mark}" in Path(f"/proc/{process.pid}/environ").read_text()
    finally:
        process.kill()
        assert finished(process) == -9


def test_what_outlives_its_owner_leaves_his_group_and_not_his_session():
    """Ray ends the group of a dead worker; a session of its own would be scheduled apart (autogroups)."""
    server = PreforkServer(MODULES, keep_s=5.0)
    server.start()
    try:
        assert server.ready(30)
        group, session = asked(server, "(os.getpgid(0), os.getsid(0))")
        assert group not in (os.getpgrp(), 0)
        assert session == os.getsid(0)
    finally:
        server.stop()


def test_the_server_has_one_thread(shared):
    """Fork loses all others, with whatever locks they hold."""
    assert psutil.Process(shared.pid).num_threads() == 1


def test_the_users_own_forkserver_is_left_alone(shared):
    """Neither started in the owner nor confused in a child that uses one itself."""
    theirs = multiprocessing.forkserver._forkserver
    assert theirs._forkserver_pid is None
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=os._exit, args=(4,))
    process.start()
    try:
        assert finished(process) == 4
        assert theirs._forkserver_pid not in {None, shared.pid}
        assert asked(shared, "os.getppid()") == shared.pid
        own = "multiprocessing.forkserver._forkserver"
        assert asked(shared, f"({own}._forkserver_pid, {own}._forkserver_address)") == (None, None)
    finally:
        theirs._stop()


def test_memory_is_told(shared):
    """For the status page."""
    memory = psutil.Process(shared.pid).memory_full_info()
    assert 0 < memory.uss <= memory.rss < 2**30


def test_start_is_idempotent_and_returns_at_once(shared):
    """Called before each build."""
    pid, began = shared.pid, time.monotonic()
    shared.start()
    assert shared.pid == pid
    assert time.monotonic() - began < 0.5


def test_a_dead_server_is_replaced(server):
    """No context from a dead one; the next start makes another."""
    os.kill(server.pid, signal.SIGKILL)
    assert until(lambda: not server.alive)
    assert server.context() is None
    assert not server.ready()
    server.start()
    assert server.ready(30)
    assert asked(server, "1 + 1") == 2


def test_a_process_outlives_its_server_as_a_reported_death_only(server):
    """The owner is told that its process died (255); one that did survive is ended."""
    process = server.context().Process(target=sleep_for, args=(60,))
    process.start()
    os.kill(server.pid, signal.SIGKILL)
    assert finished(process) == prefork_process.SERVER_DIED
    assert until(lambda: not psutil.pid_exists(process.pid))


def test_a_process_started_after_the_server_died_is_spawned(server, guard_errors):
    """The context may be older than the death: the user's process starts all the same."""
    context = server.context()
    os.kill(server.pid, signal.SIGKILL)
    assert until(lambda: not server.alive)
    process = context.Process(target=os._exit, args=(7,))
    process.start()
    assert finished(process, 30) == 7
    assert guard_errors() == 1


def test_a_stopped_server_is_not_asked(server, guard_errors):
    """SIGSTOP: it would never answer."""
    os.kill(server.pid, signal.SIGSTOP)
    assert until(lambda: ProcessId.of(server.pid).state() == "T")
    assert server.context() is None
    assert guard_errors() == 1


def test_a_server_that_stops_while_asked_costs_a_deadline_and_no_second_process(
    server, guard_errors, monkeypatch, tmp_path
):
    """Spawned at the deadline; the late fork finds its pipe closed and does not run the target."""
    monkeypatch.setattr(prefork_process.Popen.__init__, "__defaults__", (0.5,))
    process = server.context().Process(target=_count_run, args=(str(tmp_path),))
    os.kill(server.pid, signal.SIGSTOP)
    process.start()
    assert finished(process, 30) == 0
    os.kill(server.pid, signal.SIGCONT)
    assert asked(server, "'the late one was served before this one'")
    assert until(lambda: not psutil.Process(server.pid).children())
    assert len(list(tmp_path.iterdir())) == 1
    assert guard_errors() == 1


def _count_run(folder):
    Path(folder, str(os.getpid())).touch()


def test_stop_ends_it_and_leaves_nothing(server):
    """The process, its folder, its descriptors."""
    pid, folder = server.pid, Path(server.context()._address).parent
    server.stop()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    assert server.pid is None
    assert not server.ready()


def test_stop_ends_one_that_does_not_listen(server):
    """By force at the deadline."""
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    server.stop(deadline_s=0.3)
    assert not psutil.pid_exists(pid)
    assert time.monotonic() - began < 3


def test_stop_does_not_wait_for_a_preload(tmp_path, monkeypatch):
    """An import under way cannot hear; it is ended at once."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slow_to_import.py").write_text("import threading; threading.Event().wait(60)")
    server = PreforkServer(("slow_to_import",))
    server.start()
    assert not server.ready(0.3)
    assert server.alive
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "1 threads",
        ),
        ("raise ValueError('broken install')", "ValueError: broken install"),
        ("import nonexistent_module", "ModuleNotFoundError"),
    ],
)
def test_an_unfit_preload_is_refused_once(tmp_path, monkeypatch, guard_errors, caplog, source, why):
    """Threads cannot be forked; a module that does not import is no preload. Not tried again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "unfit.py").write_text(source)
    server = PreforkServer(("unfit",))
    server.start()
    with caplog.at_level(logging.WARNING, "rayguard"):
        assert not server.ready(30)
        assert not server.ready(30)
    server.start()
    assert until(lambda: not server.alive)
    assert (server.context(), guard_errors()) == (None, 1)
    assert why in caplog.text
    server.stop()


def test_the_thread_of_an_allocator_that_is_told_of_forks_is_no_reason(tmp_path, monkeypatch):
    """That of pyarrow has one as soon as it is imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "frees_later.py").write_text(
        "import pathlib, threading\n"
        "def wait():\n"
        "    pathlib.Path('/proc/thread-self/comm').write_text('jemalloc_bg_thd')\n"
        "    named.set()\n"
        "    threading.Event().wait()\n"
        "named = threading.Event()\n"
        "threading.Thread(target=wait, daemon=True).start()\n"
        "named.wait(10)\n"
    )
    server = PreforkServer(("frees_later",))
    server.start()
    assert server.ready(30)
    server.stop()


def test_a_preload_that_dies_is_told_and_tried_again(tmp_path, monkeypatch, guard_errors):
    """Killed for memory, say: that may pass."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "deadly.py").write_text("import os; os.kill(os.getpid(), 9)")
    server = PreforkServer(("deadly",))
    server.start()
    assert not server.ready(30)
    assert guard_errors() == 1
    (tmp_path / "deadly.py").write_text("")
    server.start()
    assert server.ready(30)
    server.stop()


def test_a_server_of_another_environment_is_replaced(tmp_path, monkeypatch, guard_errors):
    """A constant made at import of HF_HUB_OFFLINE, say, cannot be changed in a child."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "constant.py").write_text(
        "import os; copies = dict(os.environ), {**os.environ}, os.environ.copy(), [*os.environ.items()]\n"
        "IT = os.environ.get('READ_AT_IMPORT'); SCAN = [os.environ[n] for n in os.environ if n[:5] == 'SCAN_']"
    )
    monkeypatch.setenv("NOT_READ_AT_IMPORT", "only copied")
    monkeypatch.setenv("SCAN_ME", "1")
    server = PreforkServer(("constant",))
    server.start()
    assert server.ready(30)
    first = server.pid
    monkeypatch.setenv("NOT_READ_AT_IMPORT", "x")
    assert server._last().changed() == ()
    assert asked(server, "__import__('constant').IT") is None

    monkeypatch.setenv("READ_AT_IMPORT", "now")
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # applied in the child
    monkeypatch.delenv("SCAN_ME")
    assert server._last().changed() == ("OMP_PROC_BIND", "READ_AT_IMPORT", "SCAN_ME")
    busy = server.context()
    assert (busy, guard_errors()) == (None, 1)
    assert server.ready(30)
    assert server.pid != first
    assert not psutil.pid_exists(first)
    assert asked(server, "__import__('constant').IT") == "now"
    server.stop()


def test_a_server_with_engines_is_kept_when_it_is_replaced(tmp_path, monkeypatch):
    """Its end would be theirs."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "constant.py").write_text("import os; IT = os.environ.get('READ_AT_IMPORT')")
    server = PreforkServer(("constant",))
    server.start()
    assert server.ready(30)
    first = server.pid
    process = server.context().Process(target=sleep_for, args=(60,))
    process.start()
    monkeypatch.setenv("READ_AT_IMPORT", "now")
    server.start()
    assert server.pid != first
    assert process.is_alive()
    process.kill()
    assert finished(process) == -9
    monkeypatch.setenv("READ_AT_IMPORT", "later")
    assert server.ready(30)
    server.start()
    assert not psutil.pid_exists(first)
    server.stop()


BOTH = """
import gc, pathlib, sys, threading
from rayguard.engine.prefork.server import PreforkServer, installed
server = PreforkServer(("imported_there",))
with installed(server, wait_s=30) as forked:
    print(forked, gc.isenabled())
server.stop()
"""
# Each waits for the other one to begin.
MEETS = """
import gc, pathlib, threading
here, there = (pathlib.Path({folder!r}, name) for name in {names!r})
here.write_text(str(gc.isenabled()))
pause, tries = threading.Event(), 0
while not there.exists():
    tries += 1
    assert tries < 2_000, "imported one after the other"
    pause.wait(0.01)
def get_mp_context():
    return None
"""


def test_the_owner_imports_vllm_while_the_server_does(tmp_path):
    """A first engine waits for one import, not for two; neither looks for garbage meanwhile."""
    package = tmp_path / "vllm" / "v1" / "engine"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()  # before the installed one
    for name, names in ((package / "utils.py", "ab"), (tmp_path / "imported_there.py", "ba")):
        name.write_text(MEETS.format(folder=str(tmp_path), names=tuple(names)))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(prefork.__file__).parents[3]}"}
    said = subprocess.run(
        [sys.executable, "-c", BOTH], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.split() == ["True", "True"], said.stderr
    assert [(tmp_path / name).read_text() for name in "ab"] == ["False", "False"]


OWNER = """
import os, sys, threading, time
from rayguard.engine.prefork.server import PreforkServer
server = PreforkServer(("tabnanny",))
server.start()
assert server.ready(30)
process = server.context().Process(target=time.sleep, args=(60,))
process.start()
fork = os.fork()
if fork == 0:
    assert not server.alive and not server.ready()
    threading.Event().wait(60)
    os._exit(0)
print([server.pid, process.pid, fork, os.path.dirname(server.context()._address)], flush=True)
threading.Event().wait(60 if sys.argv[1] == "wait" else 0)
"""


@pytest.mark.parametrize("way", ["killed", "exits"])
def test_the_server_ends_with_its_owner(way):
    """Also when a fork of the owner and a child of the server live on, and nothing stays behind."""
    arguments = [sys.executable, "-c", OWNER, "wait" if way == "killed" else "exit"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as owner:
        server, child, fork, folder = ast.literal_eval(owner.stdout.readline())
        try:
            if way == "killed":
                owner.kill()
            else:
                assert owner.wait(20) == 0
            assert until(lambda: not psutil.pid_exists(server), 5)
            assert until(lambda: not Path(folder).exists(), 5)
        finally:
            for pid in (server, child, fork):
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGKILL)
            owner.kill()


def test_what_servers_killed_with_their_owners_left_is_removed(monkeypatch, request):
    """As Ray does it, to the whole process group; the folders of the living stay."""
    place = Path(tempfile.mkdtemp())  # pytest's own is too long for a socket
    request.addfinalizer(lambda: shutil.rmtree(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    living = PreforkServer(MODULES)
    living.start()
    arguments = [sys.executable, "-c", OWNER, "wait"]
    environment = {**os.environ, "TMPDIR": str(place)}
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    ) as owner:
        *pids, folder = ast.literal_eval(owner.stdout.readline())
        os.killpg(owner.pid, signal.SIGKILL)
    assert until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert Path(folder).is_relative_to(place)
    assert Path(folder).exists()
    another = PreforkServer(MODULES)
    another.start()
    assert not Path(folder).exists()
    assert living.ready(30)
    assert another.ready(30)
    assert asked(living, "'its socket is still there'")
    living.stop()
    another.stop()
    assert list(place.iterdir()) == []


def test_a_long_temporary_folder_does_not_break_the_socket(monkeypatch, tmp_path):
    """A socket's path has 107 characters at most."""
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    server = PreforkServer(MODULES)
    server.start()
    assert server.ready(30)
    assert asked(server, "2 + 2") == 4
    server.stop()
    assert list(deep.iterdir()) == []


def test_a_blocked_sigchld_in_the_owner_does_not_hide_exit_codes():
    """Signal masks are inherited; the server must hear of its children."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        server = PreforkServer(MODULES)
        server.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert server.ready(30)
    process = server.context().Process(target=os._exit, args=(9,))
    process.start()
    assert finished(process) == 9
    server.stop()


def test_the_main_module_of_a_ray_worker_is_not_imported_again(shared, monkeypatch):
    """It would import Ray in each engine process; the user's own main is, as vLLM's spawn does."""
    main = sys.modules["__main__"]
    popen = prefork_process.Popen.__new__(prefork_process.Popen)
    process = shared.context().Process(target=len, args=("",))
    monkeypatch.setattr(main, "__spec__", None)
    seen = {}
    for path in ("/x/ray/_private/workers/default_worker.py", "/x/train.py"):
        monkeypatch.setattr(main, "__file__", path, raising=False)
        seen[path] = path.encode() in bytes(popen._pickled(process))
    assert list(seen.values()) == [False, True]


def test_a_process_that_needs_its_own_executable_is_spawned(shared, guard_errors):
    """NUMA binding runs Python under numactl, which a fork would escape."""
    config = _Config()
    process = shared.context().Process(target=_exit_with_parent, kwargs={"vllm_config": config})
    process.start()
    assert finished(process, 30) == (os.getpid() % 100)
    assert guard_errors() == 0


class _Config:
    class parallel_config:  # noqa: N801
        numa_bind = True


def _exit_with_parent(vllm_config):
    os._exit(os.getppid() % 100)


def test_a_script_without_a_guarded_main_ends_as_with_spawn(tmp_path):
    """``__main__`` is imported in the child, so what it defines is found there."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import json, os, sys
        from rayguard.engine.prefork.server import PreforkServer
        class Mine:
            value = 5
        def told(thing):
            os._exit(thing.value)
        if __name__ == "__main__":
            server = PreforkServer(("tabnanny",))
            server.start()
            assert server.ready(30)
            process = server.context().Process(target=told, args=(Mine(),))
            process.start()
            process.join(10)
            print(json.dumps(process.exitcode))
        """)
    )
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, timeout=60, check=True)
    assert json.loads(done.stdout) == 5


def test_threads_share_the_server(shared):
    """Eight builds at once."""
    codes = {}

    def build(number):
        process = shared.context().Process(target=os._exit, args=(number,))
        process.start()
        codes[number] = finished(process)

    threads = [threading.Thread(target=build, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert codes == {number: number for number in range(1, 9)}


def test_without_vllm_a_build_goes_on_as_ever(shared, guard_errors, monkeypatch):
    """``installed`` says no, and counts it."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine", None)
    with prefork.installed(shared) as forked:
        assert not forked
    assert guard_errors() == 1


@pytest.mark.parametrize(
    ("on_the_cpu", "has_one", "spoilt"), [(True, True, False), (False, True, True), (False, False, False)]
)
def test_a_torch_that_looked_for_gpus_spoils_forks_only_where_engines_use_one(
    monkeypatch, on_the_cpu, has_one, spoilt
):
    """The registry's torch has CUDA, also beside vLLM for the CPU, and asks for GPUs as vLLM is imported."""
    cuda = SimpleNamespace(is_initialized=lambda: False, _is_in_bad_fork=lambda: True, __name__="torch.cuda")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    platform = SimpleNamespace(is_cpu=lambda: on_the_cpu)
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    monkeypatch.setattr(child, "has_accelerator", lambda: has_one)
    assert ("torch.cuda" in child.device_state()) is spoilt


def test_servers_in_all_their_ways_to_end_leave_nothing():
    """Twelve of the thousand of ``bench_hosts``."""
    command = [sys.executable, "-m", "tests.benchmarks.runs.bench_hosts", "12", "--beside"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["inherited"] == 4
