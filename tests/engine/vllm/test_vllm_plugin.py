"""Inside the engine's processes: the truth on disk, and nobody outlives the owner."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from rayguard.engine.error_records import read_records
from rayguard.engine.vllm import plugin
from rayguard.faults.fault import Role
from rayguard.process.identity import OWNER_ENV, ProcessId, owned_by, owner_mark

FAMILY = Path(__file__).with_name("plugin_family.py")
GONE_WITHIN_S = 2.0


def until(condition, limit_s):
    """Wait for ``condition``; say whether it came true in time."""
    pause, end = threading.Event(), time.monotonic() + limit_s
    while not (met := condition()) and time.monotonic() < end:
        pause.wait(0.01)
    return bool(met)


class Family:
    """One run of ``plugin_family.py``."""

    def __init__(self, folder):
        self.records = folder / "records"
        self.records.mkdir()
        self._report = folder / "report"
        self._report.touch()
        self.owner = None

    def start(self, core_start="spawn", worker_start="spawn", what="", environment=None):
        environment = {"RAYGUARD_RECORDS": str(self.records), **(environment or {})}
        self.owner = subprocess.Popen(
            [sys.executable, str(FAMILY), str(self._report), core_start, worker_start, what],
            env={**os.environ, **environment},
        )
        return self

    def said(self, count):
        """Wait for ``count`` processes; return what each said, owner first."""
        assert until(lambda: len(self.lines()) >= count, 30), self.lines()
        return self.lines()

    def lines(self):
        text = self._report.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def identities(self, count):
        found = [ProcessId.of(line["pid"]) for line in self.said(count)]
        assert None not in found
        return found

    def end(self):
        for child in psutil.Process(self.owner.pid).children(recursive=True):
            child.kill()
        self.owner.kill()
        self.owner.wait(10)
        for line in self.lines():  # orphans, where a test failed
            left = ProcessId.of(line["pid"])
            if left is not None and left.alive():
                os.kill(left.pid, signal.SIGKILL)


@pytest.fixture
def family(tmp_path):
    it = Family(tmp_path)
    yield it
    it.end()


STARTS = [
    ("spawn", "spawn"),  # vLLM on a CPU
    ("spawn", "fork"),
    ("fork", "fork"),  # vLLM on CUDA
    ("forkserver", "fork"),  # the prefork server
]


@pytest.mark.parametrize(("core_start", "worker_start"), STARTS)
def test_nobody_outlives_a_killed_owner(family, core_start, worker_start):
    """Without us, core and worker were alive 40 s after their owner's SIGKILL, holding the device."""
    owner, core, worker = family.start(core_start, worker_start).identities(3)
    os.kill(owner.pid, signal.SIGKILL)
    assert until(lambda: not core.alive() and not worker.alive(), GONE_WITHIN_S)


@pytest.mark.parametrize("module", ["vllm.v1.engine.core", "vllm.distributed.kv_transfer.offload"])
def test_a_core_ends_with_a_thread_of_the_engines(family, module):
    """It would compute on and be heard no more; what the thread raised is on disk before the core is gone."""
    _, core = family.start(what=f"thread of {module}").identities(2)
    assert until(lambda: not core.alive(), 30)
    found = read_records(family.records, 0)
    assert ("ValueError", "it is gone", core.pid) in {
        (fact.type_name, fact.message, fact.pid) for fact in found.exceptions
    }
    assert len(family.lines()) == 2


@pytest.mark.parametrize("module", ["my.metrics", "vllm.usage.usage_lib", "threading_of_mine"])
def test_a_core_outlives_a_thread_that_is_not_the_engines(family, module):
    """As it does without us."""
    _, core, again, _worker = family.start(what=f"thread of {module}").said(4)
    assert core["pid"] == again["pid"]


@pytest.mark.parametrize(("core_start", "worker_start"), STARTS)
def test_each_process_records_its_own_exceptions(family, core_start, worker_start):
    """Also in a forked worker, which loads no plugins and configures logging after the fork."""
    _, core, worker = family.start(core_start, worker_start).said(3)
    found = read_records(family.records, 0)
    assert [(fact.role, fact.pid, fact.message) for fact in found.exceptions] == [
        (Role.ENGINE_CORE, core["pid"], "core"),
        (Role.ENGINE_WORKER, worker["pid"], "worker"),
    ]
    assert core["handlers"] == ["RecordingHandler", "NullHandler"]
    assert worker["handlers"] == ["RecordingHandler", "NullHandler"]


@pytest.mark.parametrize(("core_start", "worker_start"), STARTS)
def test_each_process_can_be_proved_ours(family, core_start, worker_start):
    """By its environment or, where it was forked, by its claim."""
    owner, core, worker = family.start(core_start, worker_start).identities(3)
    assert owned_by(core, owner_mark(owner))
    assert owned_by(worker, owner_mark(owner))


@pytest.mark.parametrize(("core_start", "worker_start"), STARTS)
def test_the_death_signal_is_never_armed_against_the_owner(family, core_start, worker_start):
    """It comes when the thread that forked us ends: the owner's rebuild thread has ended here."""
    owner, core, worker = family.start(core_start, worker_start).said(3)
    assert (core["ppid"] == owner["pid"]) == (core_start != "forkserver")
    assert core["death_signal"] == (signal.SIGKILL if core_start == "forkserver" else 0)
    assert worker["ppid"] == core["pid"]
    assert worker["death_signal"] == signal.SIGKILL
    assert not until(lambda: not ProcessId.of(core["pid"]).alive(), 0.5)


def test_a_worker_goes_with_its_core(family):
    """Also one that is stopped, which no thread of its own could end."""
    owner, core, worker = family.start("spawn", "fork").identities(3)
    os.kill(worker.pid, signal.SIGSTOP)
    assert until(lambda: worker.state() == "T", 5)
    os.kill(core.pid, signal.SIGKILL)
    assert until(lambda: not worker.alive(), GONE_WITHIN_S)
    assert owner.alive()


def test_an_owner_that_died_during_the_imports_is_noticed(family):
    """Nothing tells of a death that was before the watch."""
    owner, core = family.start("spawn", "spawn", "late").identities(2)
    os.kill(owner.pid, signal.SIGKILL)
    assert until(lambda: not core.alive(), GONE_WITHIN_S)
    assert len(family.lines()) == 2


def test_what_takes_long_comes_after_the_tie(family):
    """Importing vLLM's worker takes seconds, in which the owner may die."""
    owner, core, worker = family.start().said(3)
    assert owner["tied_before_receiver"] == []
    assert core["tied_before_receiver"] == [True]
    assert worker["tied_before_receiver"] == [True]


def test_the_owner_is_left_as_it_was(family):
    """Its own errors are its own; no thread, no handler."""
    owner, *_ = family.start().said(3)
    assert owner["handlers"] == []
    assert owner["threads"] == ["MainThread"]
    assert owner["death_signal"] == 0


@pytest.mark.parametrize("core_start", ["spawn", "fork"])
def test_a_helper_process_is_left_as_it_was(family, core_start):
    """A data loader is no engine process."""
    _, helper = family.start(core_start, what="helper").said(2)
    assert "RecordingHandler" not in helper["handlers"]
    assert len(helper["threads"]) == 1
    assert read_records(family.records, 0).log == ()


@pytest.mark.parametrize(("core_start", "worker_start"), [("spawn", "spawn"), ("fork", "fork")])
def test_another_programs_engine_is_left_alone(family, core_start, worker_start):
    """A script that our owner starts inherits the environment; its engines are still its own."""
    mark = owner_mark(ProcessId.me())  # the owner is this test; the script's engines are not ours
    family.start(core_start, worker_start, "stranger", {OWNER_ENV: mark})
    _, core, worker = family.said(3)
    for process in (core, worker):
        assert process["death_signal"] == 0
        assert "rayguard-tie" not in process["threads"]
    assert core["records"] is None
    assert read_records(family.records, 0).log == ()


def test_without_the_directory_nothing_happens_at_all(family):
    """The entry point is loaded by every vLLM of the environment, guarded or not."""
    _, core, worker = family.start(environment={"RAYGUARD_RECORDS": ""}).said(3)
    for process in (core, worker):
        assert process["handlers"] == ["NullHandler"]
        assert process["threads"] == ["MainThread"]
        assert process["death_signal"] == 0


def test_an_unreadable_owner_is_no_reason_to_lose_the_records(family):
    """Recording needs no owner."""
    family.start("spawn", "spawn", "stranger", {OWNER_ENV: "nonsense"}).said(3)
    assert [fact.message for fact in read_records(family.records, 0).exceptions] == ["core", "worker"]


def test_install_never_raises(monkeypatch, caplog, tmp_path):
    """An engine starts without us rather than not at all."""

    def broken(_):
        raise ZeroDivisionError

    monkeypatch.setenv("RAYGUARD_RECORDS", str(tmp_path))
    monkeypatch.setattr(plugin, "_install", broken)
    monkeypatch.setattr(plugin._installed, "pid", 0)  # an engine of another test may have installed us
    plugin.install()
    assert "ZeroDivisionError" in caplog.text


def test_vllm_finds_the_plugin():
    """The entry point leads to ``install``."""
    from importlib.metadata import entry_points

    (ours,) = [p for p in entry_points(group="vllm.general_plugins") if p.name == "rayguard"]
    assert ours.load() is plugin.install


# -- with the real vLLM ------------------------------------------------------------------------------

VLLM_OWNER = Path(__file__).with_name("vllm_owner.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Build a random Qwen2 of 100 000 parameters, with a tokenizer."""
    from rayguard.testing import tiny_qwen

    texts = ["one two three four five six seven eight nine ten"] * 20
    return tiny_qwen.build(tmp_path_factory.mktemp("model"), tied=True, texts=texts, context=2048)


class VllmOwner:
    """A process that owns a real engine, and what it says."""

    def __init__(self, model, folder):
        self._model = model
        self.records = folder / "records"
        self.records.mkdir()
        self.process = None
        self.family = ()

    def start(self, what):
        environment = {"RAYGUARD_RECORDS": str(self.records), "VLLM_CPU_KVCACHE_SPACE": "1"}
        environment |= {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        environment |= {"RAYGUARD_HOME": str(self.records.parent / "home")}
        self.process = subprocess.Popen(
            [sys.executable, str(VLLM_OWNER), what, str(self._model)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
        )
        ready = self.says()
        self.family = tuple(ProcessId(*pair) for pair in ready["processes"])
        self.segments = [Path(path) for path in ready["segments"]]
        return self

    def says(self):
        for line in self.process.stdout:
            if line.startswith(b"@"):
                return json.loads(line[1:])
        raise AssertionError("the owner said nothing more")

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process.stdout.close()
        for left in self.family:
            if left.alive():
                os.kill(left.pid, signal.SIGKILL)


@pytest.fixture
def vllm_owner(model, tmp_path):
    it = VllmOwner(model, tmp_path)
    yield it
    it.end()


@pytest.mark.vllm
def test_the_true_exception_is_on_disk_before_the_caller_has_an_error(vllm_owner):
    """A seeded request that is partially prefilled kills vLLM 0.32 on a CPU; nothing is injected."""
    seen = vllm_owner.start("natural").says()
    assert seen["caught"] == "EngineDeadError"
    root, *_ = seen["exceptions"]
    assert root["type_name"] == "RuntimeError"
    assert "CPU Generator does not use offset" in root["message"]
    assert root["role"] == "engine_worker"
    frame = root["frames"][-1]
    assert frame["file"].endswith("gpu_model_runner.py")
    assert "offset" in Path(frame["file"]).read_text().splitlines()[frame["line"] - 1]
    last = seen["exceptions"][-1]
    assert last["role"] == "engine_core"
    assert "EngineCore encountered a fatal error." in seen["log"]
    assert {root["pid"], last["pid"]} == {process.pid for process in vllm_owner.family}


@pytest.mark.vllm
def test_no_engine_process_outlives_a_killed_owner(vllm_owner):
    """EngineCore and Worker, by their own death watch; the mark survives vLLM's renaming.

    Nor their shared memory, also where nobody is left to take it away: Ray ends Python's tracker with the owner.
    """
    vllm_owner.start("idle")
    helpers = [ProcessId.of(child.pid) for child in psutil.Process(vllm_owner.process.pid).children()]
    for helper in helpers:
        if helper not in vllm_owner.family:
            os.kill(helper.pid, signal.SIGKILL)
    assert vllm_owner.segments
    assert all(path.exists() for path in vllm_owner.segments)
    owner = ProcessId.of(vllm_owner.process.pid)
    assert len(vllm_owner.family) == 2
    assert all(owned_by(process, owner_mark(owner)) for process in vllm_owner.family)
    vllm_owner.process.kill()
    assert until(lambda: not any(process.alive() for process in vllm_owner.family), 60.0)
    assert not any(path.exists() for path in vllm_owner.segments)


@pytest.mark.vllm
def test_the_end_of_a_killed_worker_is_in_the_log(vllm_owner):
    """A process that is killed writes nothing; its core does.

    The code is None where vLLM asks between the worker's closing of its files and its becoming a zombie.
    """
    seen = vllm_owner.start("worker").says()
    assert seen["caught"] == "EngineDeadError"
    told = [line for line in seen["log"] if "VllmWorker-0 died unexpectedly" in line]
    assert any(f"(exit code: {code})" in line for line in told for code in (-9, None)), seen["log"]
