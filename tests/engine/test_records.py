"""What an engine process wrote is what its owner reads."""

import dataclasses
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from rayguard.engine.error_records import (
    MAX_FILE_BYTES,
    MAX_LINE_BYTES,
    EngineRecords,
    RecordingHandler,
    RecordWriter,
    clear,
    read_records,
)
from rayguard.faults.fault import Role


def raised(error, cause=None):
    """Return ``error`` with a traceback, and ``cause`` behind it."""
    try:
        raise error from cause
    except type(error) as caught:
        return caught


@pytest.fixture
def writer(tmp_path):
    return RecordWriter(tmp_path, Role.ENGINE_CORE, 4711)


@pytest.fixture
def logger(writer):
    it = logging.Logger("vllm.test")  # noqa: LOG001 - not the application's
    it.addHandler(RecordingHandler(writer))
    return it


def test_an_exception_is_read_back_whole(writer, tmp_path):
    """Class, text, file, line, function, process and time."""
    before = time.time()
    writer.write("EngineCore encountered a fatal error.", raised(AssertionError("token_budget >= 0")))
    (fact,) = read_records(tmp_path, before).exceptions
    assert (fact.type_name, fact.message, fact.role, fact.pid) == (
        "AssertionError",
        "token_budget >= 0",
        Role.ENGINE_CORE,
        4711,
    )
    assert before <= fact.at <= time.time()
    assert fact.frames[-1].file == __file__
    assert fact.frames[-1].function == "raised"
    assert fact.frames[-1].code == "raise error from cause"
    assert read_records(tmp_path, before).log == ("EngineCore encountered a fatal error.",)


def test_a_cause_stands_before_what_it_caused(writer, tmp_path):
    """Oldest first: the root cause is the first exception."""
    writer.write("first", raised(RuntimeError("outer"), raised(KeyError("root"))))
    writer.write("second", raised(ValueError("later")))
    found = read_records(tmp_path, 0)
    assert [fact.type_name for fact in found.exceptions] == ["KeyError", "RuntimeError", "ValueError"]
    assert found.log == ("first", "second")


def test_two_processes_are_read_in_the_order_of_time(tmp_path):
    """The worker's exception comes before the core's that follows from it."""
    core = RecordWriter(tmp_path, Role.ENGINE_CORE, 1)
    worker = RecordWriter(tmp_path, Role.ENGINE_WORKER, 2)
    core.write("starting")
    worker.write("WorkerProc hit an exception.", raised(RuntimeError("offset")))
    core.write("EngineCore encountered a fatal error.", raised(RuntimeError("Worker failed")))
    found = read_records(tmp_path, 0)
    assert [(fact.role, fact.message) for fact in found.exceptions] == [
        (Role.ENGINE_WORKER, "offset"),
        (Role.ENGINE_CORE, "Worker failed"),
    ]
    assert found.log[0] == "starting"


def test_older_records_are_left_out(writer, tmp_path):
    """The fault of an earlier epoch is not this one's cause."""
    writer.write("early", raised(ValueError("early")))
    between = time.time()
    threading.Event().wait(0.01)
    writer.write("late", raised(ValueError("late")))
    found = read_records(tmp_path, between)
    assert [fact.message for fact in found.exceptions] == ["late"]
    assert found.log == ("late",)


def test_torn_and_foreign_lines_are_skipped(writer, tmp_path):
    """A full disk or a kill tears a line; the next one is whole all the same."""
    writer.write("first", raised(ValueError("first")))
    with writer.path.open("ab") as file:
        file.write(b'\n{"at": 1e12, "message": "torn", "chain": [{"type_na')
    writer.write("second", raised(ValueError("second")))
    others = (b"[]", b"7", b"null", b'{"at": "x"}', b"\xff\xfe", b'{"at": 1e12, "message": 1, "chain": [1]}')
    (tmp_path / "core-1.jsonl").write_bytes(b"\n".join(others))
    assert [fact.message for fact in read_records(tmp_path, 0).exceptions] == ["first", "second"]


@pytest.mark.parametrize("text", ["x" * 10_000_000, "\x00" * 100_000, "\u3042" * 100_000, "a\nb\r\n\u2028c"])
def test_a_record_has_a_bound_and_stays_one_line(writer, tmp_path, text):
    """An exception may carry a whole tensor in its text."""
    error = ValueError("root" + text)
    for depth in range(12):
        error = raised(RuntimeError(f"{depth}{text}"), error)
    writer.write(text, error)
    lines = [line for line in writer.path.read_bytes().split(b"\n") if line]
    assert len(lines) == 1
    assert len(lines[0]) <= MAX_LINE_BYTES
    found = read_records(tmp_path, 0)
    assert found.exceptions[0].frames
    assert found.exceptions[0].message
    assert found.log[0] == text[:2_000]


def test_the_innermost_exceptions_survive_the_cut(writer, tmp_path):
    """When a chain is too long for a line, the cause is kept, not what followed from it."""
    error = raised(KeyError("root"))
    for _ in range(6):
        error = raised(RuntimeError("\x00" * 4_000), error)
    writer.write("", error)
    assert read_records(tmp_path, 0).exceptions[0].type_name == "KeyError"


def test_text_that_is_no_unicode_is_written(writer, tmp_path):
    """A lone surrogate (from a bad file name) is no reason to lose the record."""
    writer.write("x\udc80", raised(ValueError("y\udc80")))
    assert read_records(tmp_path, 0).exceptions[0].message == "y\udc80"


def test_a_file_has_a_bound_and_the_last_record_is_there(writer, tmp_path, monkeypatch):
    """An engine that logs an error at each step does not fill the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for number in range(6_000):
        writer.write(f"{number} " + "x" * 1_990)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) <= 2 * MAX_FILE_BYTES + MAX_LINE_BYTES
    log = read_records(tmp_path, 0).log
    assert log[-1].startswith("5999 ")
    assert [int(line.split()[0]) for line in log] == list(range(6_000 - len(log), 6_000))


def test_records_are_private_and_no_link_is_followed(writer, tmp_path):
    """The directory may be in a place where others write."""
    writer.write("x")
    assert stat.S_IMODE(writer.path.stat().st_mode) == 0o600
    clear(tmp_path)
    victim = tmp_path / "victim"
    writer.path.symlink_to(victim)
    with pytest.raises(OSError, match=writer.path.name):
        writer.write("x")
    assert not victim.exists()
    assert read_records(tmp_path, 0) == EngineRecords()


def test_clear_removes_records_and_nothing_else(writer, tmp_path):
    """A process that still runs begins a new file."""
    (tmp_path / "other.txt").write_text("kept")
    writer.write("before")
    clear(tmp_path)
    assert read_records(tmp_path, 0) == EngineRecords()
    writer.write("after")
    assert read_records(tmp_path, 0).log == ("after",)
    assert (tmp_path / "other.txt").exists()


def test_no_directory_is_no_records(tmp_path):
    """An engine that never wrote has no story."""
    assert read_records(tmp_path / "none", 0) == EngineRecords()
    clear(tmp_path / "none")


def test_a_record_survives_sigkill(tmp_path):
    """It is on the disk when the call returns."""
    code = (
        "import os, signal, sys\n"
        "from rayguard.engine.error_records import RecordWriter\nfrom rayguard.faults.fault import Role\n"
        f"RecordWriter({str(tmp_path)!r}, Role.ENGINE_WORKER, os.getpid()).write('last words', ValueError('v'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    child = subprocess.run([sys.executable, "-c", code], check=False)
    assert child.returncode == -signal.SIGKILL
    assert read_records(tmp_path, 0).log == ("last words",)


def test_many_threads_never_mix_their_lines(writer, tmp_path):
    """One write each, appended by the kernel."""

    def write(name):
        for number in range(50):
            writer.write(f"{name}-{number}", raised(ValueError("x" * 500)))

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_records(tmp_path, 0).log) == sorted(f"{a}-{b}" for a in range(4) for b in range(50))


def test_the_handler_keeps_errors_with_and_without_exception(logger, tmp_path):
    """An exit code stands in a line that has no exception."""
    try:
        raise AssertionError("token_budget")  # noqa: TRY301 - as in the scheduler
    except AssertionError:
        logger.exception("EngineCore encountered a fatal error.")
    logger.error("Worker proc %s died unexpectedly (exit code: %s)", "VllmWorker-0", -9)
    logger.warning("not an error")
    found = read_records(tmp_path, 0)
    assert [fact.message for fact in found.exceptions] == ["token_budget"]
    assert found.log[1] == "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)"
    assert len(found.log) == 2


def test_a_log_call_with_wrong_arguments_keeps_its_exception(logger, tmp_path):
    """The message is broken, not the exception that it was about."""
    logger.error("%d things", "many", exc_info=raised(ValueError("kept")))
    found = read_records(tmp_path, 0)
    assert found.log == ("%d things",)
    assert found.exceptions[0].message == "kept"


def test_an_exception_that_cannot_print_itself_is_recorded(logger, tmp_path):
    """Its class and its place are known all the same."""

    class BrokenError(Exception):
        def __str__(self):
            raise ZeroDivisionError

    logger.error("x", exc_info=raised(BrokenError()))
    (fact,) = read_records(tmp_path, 0).exceptions
    assert fact.type_name.endswith("BrokenError")
    assert fact.where


def test_a_full_disk_is_no_error_of_the_engine(writer, monkeypatch, capsys):
    """The handler never raises; it complains on stderr as logging does."""
    monkeypatch.setattr(logging, "raiseExceptions", True)
    it = logging.Logger("vllm.test")  # noqa: LOG001 - not the application's
    it.addHandler(RecordingHandler(without_directory(writer)))
    it.error("x", exc_info=raised(ValueError("y")))
    assert "No such file or directory" in capsys.readouterr().err


def without_directory(writer):
    """Return a writer whose directory is not there."""
    writer.path = writer.path.parent / "gone" / writer.path.name
    return writer


def test_facts_are_plain_values(writer, tmp_path):
    """They go into the journal as they are."""
    writer.write("x", raised(ValueError("y")))
    (fact,) = read_records(tmp_path, 0).exceptions
    assert dataclasses.asdict(fact)["frames"][0]["function"] == "raised"
