"""A stage for commands."""

from __future__ import annotations

import signal

import pytest
from small_programs import Stage


@pytest.fixture(autouse=True)
def signals_are_heard():
    """Whoever runs tests in the background has them ignored, and a command that is started keeps that."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)
