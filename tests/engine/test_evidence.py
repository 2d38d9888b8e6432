"""What is gathered of an engine that failed, and how long its last words are waited for."""

from __future__ import annotations

import time

import pytest

from rayguard.engine.evidence import gather
from rayguard.engine.records import RecordWriter
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
