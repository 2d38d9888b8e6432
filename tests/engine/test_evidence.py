"""What is gathered of an engine that failed, and how long its last words are waited for."""

from __future__ import annotations

import time

import pytest

from rayguard.engine.error_records import RecordWriter
from rayguard.engine.evidence import gather
from rayguard.faults.diagnose import diagnose
from rayguard.faults.fault import ProcessExit, Role


class Gone:
    """An engine whose worker ended, nobody knows how."""

    def exits(self):
        return (ProcessExit(role=Role.ENGINE_WORKER, pid=7),)


@pytest.mark.parametrize(("said", "code"), [("-9", -9), ("1", 1), ("None", None)])
def test_a_core_that_says_how_its_worker_ended_is_not_waited_for(tmp_path, said, code):
    """Also where it does not know: vLLM asks a moment before the worker is a zombie."""
    RecordWriter(tmp_path, Role.ENGINE_CORE, 6).write(
        f"Worker proc VllmWorker-0 died unexpectedly (exit code: {said}), shutting down executor."
    )
    began = time.monotonic()
    fault = gather(Gone(), None, tmp_path, 0.0, None)
    assert time.monotonic() - began < 0.5
    assert [gone.exitcode for gone in fault.exits] == [code]


def test_a_core_that_says_nothing_is_waited_for_a_moment(tmp_path):
    """It may be about to say it; but not for long."""
    began = time.monotonic()
    fault = gather(Gone(), None, tmp_path, 0.0, None)
    assert 0.9 < time.monotonic() - began < 5
    assert [gone.exitcode for gone in fault.exits] == [None]


class Both:
    """An engine whose core was killed: its worker ended of that, and its code can be read first."""

    def __init__(self):
        self.asked = 0

    def exits(self):
        self.asked += 1
        code = -9 if self.asked > 3 else None
        return (
            ProcessExit(role=Role.ENGINE_CORE, pid=6, exitcode=code),
            ProcessExit(role=Role.ENGINE_WORKER, pid=7, exitcode=1),
        )


def test_what_a_worker_says_is_not_the_last_word_on_its_core(tmp_path):
    """Else the worker would be named, which ended because the core was gone."""
    fault = gather(Both(), None, tmp_path, 0.0, None)
    assert [gone.exitcode for gone in fault.exits] == [-9, 1]
    assert "engine_core process 6 was killed by signal 9" in diagnose(fault).cause
